"""The group: one scale set, asked through Azure's own SDK in worker threads.

No operation is waited for: what came of it is in the next view. The SDK repeats nothing by itself, so that a change is
asked for once, and it is the manager that decides what to do about the rest.
"""

import logging
import math
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import anyio
from attrs import define, evolve, field, frozen

from fleeting import (
    AuthFailed,
    Capability,
    Clock,
    ConnectInfo,
    GroupInfo,
    GroupRefused,
    InstanceNotFound,
    Observation,
    OutcomeUnknown,
    Problem,
    ProviderError,
    RateLimited,
    Settings,
    State,
)
from fleeting.plugins import Mark, Offload, mark_as_text, mark_from_text, refuse_if_marked, undone_on_failure
from fleeting_azure import _arm as arm
from fleeting_azure._config import AzureConfig

if TYPE_CHECKING:  # the SDK is imported when a group is opened
    from azure.core.credentials import TokenCredential
    from azure.mgmt.compute import ComputeManagementClient

T = TypeVar("T")
Q = TypeVar("Q")
A = TypeVar("A")

logging.getLogger("azure").addHandler(logging.NullHandler())  # else what the SDK has to say is on the terminal

TRIES: Final = 4
"""How often a change is tried while somebody else changes the scale set too."""


class AzureGroup:
    """The instances of one scale set."""

    def __init__(self, config: AzureConfig, *, credential: "TokenCredential | None" = None) -> None:
        """Connect to nothing yet. Without a credential, the default credential chain's is used."""
        self._config = config
        self._credential = credential
        self._offload = Offload()
        self._machines: Mapping[str, arm.Machine] = {}  # by id, as listed last
        self._listed_at = -math.inf  # when that was asked for
        self._beating = anyio.Lock()
        self._problems: Sequence[Problem] = ()  # what the scale set itself reported last
        self._since: Mapping[Problem, float] = {}  # when each was first met

    async def init(self, settings: Settings) -> GroupInfo:
        """Look at the scale set, and at who else adds and removes instances."""
        self._clock = settings.clock
        self._settings = settings
        self._looks = arm.Budget(interval=12, burst=10)  # Azure's limits: 10 a minute, and 30 saved up
        self._beats = arm.Budget(interval=3, burst=10)  # lists of 1,000 are ten requests each: 200 a minute, of 300
        updates = arm.Budget(interval=15, burst=10)  # 4 a minute, and 12 saved up
        self._growing = _Together(self._grow, settings.clock, updates)
        self._shrinking = _Together(self._shrink, settings.clock, arm.Budget(interval=0, burst=1))
        self._azure = await self._offload(_Azure.opened, self._config, self._credential)
        async with undone_on_failure(self.shutdown):
            return await self._look_around()

    async def _look_around(self) -> GroupInfo:
        try:
            self._set = await self._ask("find the scale set", self._azure.scale_set)
        except arm.Missing as missing:
            where = f"resource group {self._config.resource_group_name!r} of {self._config.subscription_id}"
            raise GroupRefused(
                f"there is no scale set {self._config.name!r} in {where}; correct the names"
            ) from missing
        harm, advice = [*self._set.harm], [*self._set.advice]
        if self._config.owner_mark and self._set.upgrades in arm.RESTARTING:
            harm.append(arm.UNMARKABLE)
        try:
            if await self._ask("list autoscale settings", partial(self._azure.is_autoscaled, self._set.id)):
                harm.append(arm.AUTOSCALED)
        except ProviderError:
            advice.append(arm.NOT_SEEN)
        if harm and not self._settings.observe_only:
            raise GroupRefused(f"scale set {self._config.name} cannot be managed as it is: {'. And '.join(harm)}")
        probe = arm.NOTICE_PROBE if self._set.os == "linux" else None
        has = {
            Capability.NOTICES: probe,
            Capability.SUSPEND_RESUME: not self._set.evicts_by_deallocating,
            Capability.OWNER_MARK: self._config.owner_mark,
        }
        return GroupInfo(
            identity=f"azure:{self._set.id.lower()}",
            max_size=self._set.max_size,
            capabilities=frozenset(capability for capability, it in has.items() if it),
            advice=(*(f"a manager would refuse it as it is: {each}" for each in harm), *advice),
            notice_probe=probe,
        )

    async def update(self) -> Observation:
        """List all instances; ask the scale set itself for problems as often as Azure lets us."""
        machines = await self._list()
        now = self._clock.now()
        if self._looks.ready_at(now) <= now:
            self._looks.take(now)
            with suppress(RateLimited):  # what was known before is still something, and the instances are there
                self._problems = await self._ask("look at the scale set", self._azure.problems)
        reported = [problem for machine in machines.values() for problem in machine.problems]
        self._since = arm.first_met([*self._problems, *reported], self._since, now)
        problems = [evolve(problem, since=at) for problem, at in self._since.items()]
        return Observation({each: machine.observed for each, machine in machines.items() if machine.id}, problems)

    async def increase(self, count: int, *, intent: str) -> int:  # noqa: ARG002  (a capacity carries none)
        """Raise the capacity, together with whoever else asks before Azure may be asked again."""
        self._settings.refuse_if_observing()
        return await self._growing(count)

    async def decrease(self, instances: Sequence[str]) -> Sequence[str]:
        """Delete them, together with those that others name while a deletion is under way."""
        self._settings.refuse_if_observing()
        return await self._shrinking(instances)

    async def suspend(self, instances: Sequence[str]) -> Sequence[str]:
        """Deallocate those that run."""
        return await self._switch("deallocate", instances, State.RUNNING, {State.SUSPENDING, State.SUSPENDED})

    async def resume(self, instances: Sequence[str]) -> Sequence[str]:
        """Start those that are deallocated."""
        return await self._switch("start", instances, State.SUSPENDED, {State.RESUMING, State.RUNNING})

    async def connect_info(self, instance: str) -> ConnectInfo:
        """Look its addresses up. Credentials are the user's: Azure has none."""
        nic = (await self._find(instance)).nic
        if nic is None:
            raise ProviderError(f"instance {instance} has no network interface; the plugin looks again later")
        internal, external = await self._ask("look addresses up", partial(self._azure.addresses, nic))
        return ConnectInfo(
            id=instance,
            os=self._set.os,
            arch=self._set.arch,
            protocol=self._set.protocol,
            user=self._set.user,
            internal_addr=internal,
            external_addr=external,
        )

    async def heartbeat(self, instance: str) -> None:
        """Return if it is listed as running; all who ask before a list is begun are answered by that one."""
        asked_at = self._clock.now()
        async with self._beating:
            if self._listed_at < asked_at:
                await self._clock.sleep_until(self._beats.ready_at(self._clock.now()))
            if self._listed_at < asked_at:
                self._beats.take(self._clock.now())
                await self._list()
        if (machine := self._machines.get(instance)) is None:
            raise InstanceNotFound(instance)
        if (state := machine.observed.state) is not State.RUNNING:
            raise ProviderError(f"instance {instance} is {state.value}")

    async def mark_owner(self, until: float | None) -> None:
        """Put a tag on the scale set, unless somebody changes that meanwhile."""
        self._settings.refuse_if_observing()
        owner = self._settings.owner
        for tries in range(1, TRIES + 1):
            found = await self._ask("find the scale set", self._azure.scale_set)
            marks = _marks_on(found)
            if until is None and owner not in {mark.owner for mark in marks}:
                return
            if until is not None:
                refuse_if_marked(marks, owner=owner, now=self._clock.now(), group=self._config.name)
            text = mark_as_text(owner, until) if until is not None else ""
            try:
                await self._ask("mark the scale set", partial(self._azure.tag, found, text), changing=True)
            except arm.OutOfDate:
                if tries == TRIES:
                    raise
            else:
                return

    async def read_marks(self) -> Sequence[Mark]:
        """Read the tag of the scale set."""
        return _marks_on(await self._ask("find the scale set", self._azure.scale_set))

    async def shutdown(self) -> None:
        """Close the SDK's connections."""
        await self._offload(self._azure.close)

    async def _grow(self, wishes: Sequence[int]) -> Sequence[int]:
        """Set the capacity from what it is now, unless somebody changes it meanwhile."""
        now = await self._ask("find the scale set", self._azure.scale_set)
        live = arm.live(await self._list()) if now.failed else None
        capacity, accepted = arm.capacity_for(now.capacity, live, sum(wishes), now.max_size)
        if accepted:
            await self._ask("raise the capacity", partial(self._azure.resize, now, capacity), changing=True)
        return arm.share(accepted, wishes)

    async def _shrink(self, wishes: Sequence[Sequence[str]]) -> Sequence[Sequence[str]]:
        """Delete what is there, by the names that they have now: another may have had them before."""
        machines = await self._list()
        named = [machines[each] for each in {id_ for wish in wishes for id_ in wish} if each in machines]
        if names := [machine.name for machine in named if machine.observed.state is not State.DELETING]:
            await self._ask("delete instances", partial(self._azure.act, "delete_instances", names), changing=True)
        return wishes

    async def _switch(
        self, action: str, instances: Sequence[str], before: State, after: Collection[State]
    ) -> Sequence[str]:
        """Change the power state of those that are in the state before. In a flexible set, each is asked by itself."""
        self._settings.refuse_if_observing()
        machines = await self._list()
        there = {each: machines[each] for each in instances if each in machines}
        names = [machine.name for machine in there.values() if machine.observed.state is before]
        act = self._azure.act if self._set.uniform else self._azure.act_on_each
        if names:
            await self._ask(f"{action} instances", partial(act, action, names), changing=True)
        return [each for each, machine in there.items() if machine.observed.state in {before, *after}]

    async def _list(self) -> Mapping[str, arm.Machine]:
        asked_at = self._clock.now()
        machines = await self._ask("list the instances", partial(self._azure.machines, self._set))
        if asked_at >= self._listed_at:  # lists may overtake each other
            self._listed_at, self._machines = asked_at, machines
        return machines

    async def _find(self, instance: str) -> arm.Machine:
        """Look at one instance; its name may be another's by now."""
        if instance not in self._machines:
            await self._list()
        with suppress(arm.Missing, arm.OutOfDate, KeyError):  # the second: so Azure calls an instance id that is gone
            call = partial(self._azure.machine, self._set, self._machines[instance].name)
            if (machine := await self._ask("look at an instance", call)).id == instance:
                return machine
        raise InstanceNotFound(instance)

    async def _ask(self, what: str, call: Callable[[], T], *, changing: bool = False) -> T:
        return await self._offload(_answer, what, call, changing=changing)


@define
class _Together(Generic[Q, A]):
    """Makes one request of those that come while another is under way, or while they must wait."""

    _send: Callable[[Sequence[Q]], Awaitable[Sequence[A]]]
    _clock: Clock
    _budget: arm.Budget
    _turn: anyio.Lock = field(factory=anyio.Lock)
    _wishes: dict[object, Q] = field(factory=dict)
    _answers: dict[object, A | ProviderError] = field(factory=dict)

    async def __call__(self, wish: Q) -> A:
        """Have it asked for. Who is cancelled meanwhile is dropped, unless Azure is being asked already."""
        me = object()
        self._wishes[me] = wish
        try:
            async with self._turn:
                for tries in range(1, TRIES + 1):
                    if me in self._wishes:
                        await self._clock.sleep_until(self._budget.ready_at(self._clock.now()))
                        await self._ask_for_all(last=tries == TRIES)
        finally:
            self._wishes.pop(me, None)
        answer = self._answers.pop(me)
        if isinstance(answer, ProviderError):
            raise answer
        return answer

    async def _ask_for_all(self, *, last: bool) -> None:
        self._budget.take(self._clock.now())
        asked = dict(self._wishes)
        try:
            answers: Sequence[A | ProviderError] = await self._send([*asked.values()])
        except ProviderError as error:
            if isinstance(error, arm.OutOfDate) and not last:
                return
            answers = [error] * len(asked)
        self._answers |= {me: answer for me, answer in zip(asked, answers, strict=True) if me in self._wishes}
        self._wishes = {me: wish for me, wish in self._wishes.items() if me not in asked}


@frozen
class _Azure:
    """The SDK's client, and what is asked of it. All of it blocks."""

    _client: "ComputeManagementClient"
    _credential: "TokenCredential"
    _where: tuple[str, str]
    """Resource group and scale set, as most requests begin."""

    @classmethod
    def opened(cls, config: AzureConfig, credential: "TokenCredential | None") -> "_Azure":
        """Import the SDK, which takes half a second, and make a client; it connects when it is first used."""
        from azure.mgmt.compute import ComputeManagementClient

        authority = config.ca_file and Path(config.ca_file).expanduser()
        if authority and not authority.is_file():
            raise ProviderError(f"there is no ca_file {authority}; name a file of certificates, or leave it out")
        if credential is None:
            from azure.identity import DefaultAzureCredential

            credential = DefaultAzureCredential(managed_identity_client_id=config.client_id)
        client = ComputeManagementClient(
            credential,
            config.subscription_id,
            base_url=config.endpoint,
            credential_scopes=[f"{config.endpoint.rstrip('/')}/.default"],
            connection_timeout=config.timeout,
            read_timeout=config.timeout,
            connection_verify=str(authority) if authority else True,
            retry_total=0,
        )
        return cls(client, credential, (config.resource_group_name, config.name))

    def close(self) -> None:
        """Close all connections."""
        self._client.close()
        if callable(close := getattr(self._credential, "close", None)):
            close()

    def scale_set(self) -> arm.ScaleSet:
        """The scale set as it is now."""
        return arm.scale_set_of(self._client.virtual_machine_scale_sets.get(*self._where))

    def problems(self) -> Sequence[Problem]:
        """What the scale set itself reports."""
        return arm.problems_of(self._client.virtual_machine_scale_sets.get_instance_view(*self._where).statuses)

    def machines(self, scale_set: arm.ScaleSet) -> Mapping[str, arm.Machine]:
        """All instances, by id; those that have none yet are not in any view, but count."""
        if scale_set.uniform:
            pages: Any = self._client.virtual_machine_scale_set_vms.list(*self._where, expand="instanceView").by_page()
        else:
            ours = f"'virtualMachineScaleSet/id' eq '{scale_set.id}'"
            vms = self._client.virtual_machines
            pages = vms.list(self._where[0], filter=ours, expand="instanceView").by_page()
        found: dict[str, arm.Machine] = {}
        followed = set()
        for page in pages:
            machines = [arm.machine_of(each, scale_set) for each in page]
            found |= {machine.id or f"?{machine.name}": machine for machine in machines}
            if pages.continuation_token in followed:
                raise ProviderError("the pages of Azure's list form a loop; the request is retried later")
            followed.add(pages.continuation_token)
        return found

    def machine(self, scale_set: arm.ScaleSet, name: str) -> arm.Machine:
        """One instance."""
        vms, own = self._client.virtual_machine_scale_set_vms, self._client.virtual_machines
        if scale_set.uniform:
            return arm.machine_of(vms.get(*self._where, name, expand="instanceView"), scale_set)
        return arm.machine_of(own.get(self._where[0], name, expand="instanceView"), scale_set)

    def resize(self, found: arm.ScaleSet, capacity: int) -> None:
        """Set the capacity, if nobody has changed the scale set since it was found."""
        self._update(found, {"sku": {**found.sku, "capacity": capacity}})

    def tag(self, found: arm.ScaleSet, mark: str) -> None:
        """Set the tag that is the mark, if nobody has changed the scale set since it was found; all others stay.

        It is emptied and not removed: what is left out of a PATCH may be left as it is.
        """
        self._update(found, {"tags": {**found.tags, arm.MARK: mark}})

    def _update(self, found: arm.ScaleSet, body: Any) -> None:  # noqa: ANN401  (JSON)
        from azure.core import MatchConditions

        match: Any = {"etag": found.etag, "match_condition": MatchConditions.IfNotModified} if found.etag else {}
        self._client.virtual_machine_scale_sets.begin_update(*self._where, body, polling=False, **match).result()

    def act(self, action: str, names: Sequence[str]) -> None:
        """Begin to ``delete_instances``, ``deallocate`` or ``start``."""
        begin = getattr(self._client.virtual_machine_scale_sets, f"begin_{action}")
        begin(*self._where, {"instanceIds": names}, polling=False)

    def act_on_each(self, action: str, names: Sequence[str]) -> None:
        """Begin to ``deallocate`` or ``start`` machines."""
        for name in names:
            getattr(self._client.virtual_machines, f"begin_{action}")(self._where[0], name, polling=False)

    def is_autoscaled(self, scale_set: str) -> bool:
        """Whether autoscale settings are about the scale set."""
        group, seen = scale_set.partition("/providers/")[0], set[str]()
        link = f"{group}/providers/Microsoft.Insights/autoscaleSettings?api-version=2022-10-01"
        while link and link not in seen:
            seen.add(link)
            page = self._get(link)
            if arm.is_autoscaled(page, scale_set):
                return True
            link = page.get("nextLink")
        return False

    def addresses(self, nic: str) -> tuple[str | None, str | None]:
        """Internal and external address of a network interface."""
        version = "?api-version=2018-10-01"  # the last for interfaces of scale sets
        internal, public = arm.addresses_of(self._get(nic + version))
        return internal, self._get(public + version)["properties"].get("ipAddress") if public else None

    def _get(self, link: str) -> Any:  # noqa: ANN401  (JSON)
        """Read what has an SDK of its own, ten times the size of all this."""
        from azure.core.rest import HttpRequest

        response = self._client.send_request(HttpRequest("GET", link))
        response.raise_for_status()
        return response.json()


def _marks_on(found: arm.ScaleSet) -> list[Mark]:
    mark = mark_from_text(found.tags.get(arm.MARK, ""))
    return [mark] if mark is not None else []


def _answer(what: str, call: Callable[[], T], *, changing: bool) -> T:
    """Ask Azure, and have one class of error for each thing that can be done about it."""
    from azure.core.exceptions import AzureError

    try:
        return call()
    except (
        AzureError,
        AttributeError,
        LookupError,
        OSError,
        TypeError,
        ValueError,
    ) as error:  # or no answer
        failure = _failure(what, error, changing=changing)
    raise failure  # out here, so that Azure's own words are not in its context: somebody else wrote them


def _failure(what: str, error: Any, *, changing: bool) -> ProviderError:  # noqa: ANN401  (whatever the SDK raises)
    from azure.core.exceptions import ClientAuthenticationError, HttpResponseError, ServiceRequestError
    from urllib3.exceptions import ConnectTimeoutError, NewConnectionError

    if isinstance(error, HttpResponseError) and error.response is not None:
        response: Any = error.response
        return arm.failure_of(
            what,
            status=response.status_code,
            code=getattr(error.error, "code", None) or "",
            target=getattr(error.error, "target", None) or "",
            message=getattr(error.error, "message", None) or "",
            retry_after=response.headers.get("Retry-After"),
            changing=changing,
        )
    if isinstance(error, ClientAuthenticationError):
        return AuthFailed("no credentials for Azure were found; log in, or give this machine an identity")
    if isinstance(
        error, ServiceRequestError
    ):  # so the SDK calls it, too, if TLS sees a connection break after the request
        inner = error.inner_exception
        reason = getattr((getattr(inner, "args", None) or [None])[0], "reason", inner)
        if isinstance(reason, ConnectTimeoutError | NewConnectionError):
            return ProviderError(f"Azure cannot be reached to {what}; check the network and the endpoint")
        if "CERTIFICATE_VERIFY_FAILED" in str(inner):  # OpenSSL's code for it
            return ProviderError(f"the endpoint to {what} is not trusted; correct endpoint or ca_file")
    return OutcomeUnknown(f"Azure gave an invalid answer to the request to {what}")
