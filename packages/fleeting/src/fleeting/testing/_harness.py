"""What the conformance suite is given to check, and what its checks are written with."""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from enum import Enum
from functools import partial
from itertools import islice
from typing import Any, TypeVar
from uuid import uuid4

import anyio
from attrs import define, evolve, field, frozen

from fleeting._clock import LoopClock
from fleeting._errors import ProviderError
from fleeting._protocols import InstanceGroup, MarksOwner, ReadsMarks, Suspends, Withdraws
from fleeting._types import Capability, Completed, GroupInfo, Observed, Settings, State


class Violation(AssertionError):
    """A group does not keep the contract; says which clause, what was seen, and where to read more."""

    def __init__(self, clause: str, seen: str) -> None:
        """Take the clause that is not kept, and what was seen instead."""
        self.clause = clause
        self.seen = seen
        self.more = ""
        """Where the documentation has the clause; filled in by `judge`."""
        super().__init__(clause, seen)

    def __str__(self) -> str:
        """All of it, on one line."""
        more = f"; more: {self.more}" if self.more else ""
        return " ".join(f"the contract says: {self.clause}; seen: {self.seen}{more}".split())


class NotOpened(Violation):
    """`init` raised though nothing was wrong with the cloud: nothing else can be checked."""

    def __init__(self, error: Exception) -> None:
        """Take what it raised."""
        super().__init__("init opens the group while nothing is wrong with the cloud", f"init raised {error!r}")


class NotApplicable(Exception):
    """A check does not concern this group: it does not claim the capability, or has no such limit."""


class NotChecked(NotApplicable):
    """The harness lacks what the check needs; says what to give it."""


class Trouble(Enum):
    """What an author's endpoint can be made to do, so that one sees what the group makes of it.

    Each lasts as long as the context manager that `Harness.troubles` has for it is entered.
    """

    ERROR = "answers every request with an error of its own, and does nothing"
    GARBAGE = "answers every request with nonsense, such as half a page of HTML, and does nothing"
    AUTH = "refuses the credentials"
    RATE_LIMIT = "refuses every request because of a rate limit"
    STOCK_OUT = "has no stock for new instances, and says so in its own way"
    QUOTA = "refuses new instances because of a limit of the account"
    PARTIAL = "accepts one more instance, and refuses any beyond that, at once or later"
    PROTECTED = "refuses to delete instances"
    LOST_ANSWER = "carries out requests, and breaks the connection instead of answering"
    SILENCE = "accepts requests, does nothing and never answers; on leaving, breaks those connections"
    SLOW = "takes half a second for each answer"
    BROKEN_PAGE = "answers the first page of a listing, and the others with an error"
    PAGE_LOOP = "says after every page of a listing that the first page comes next"
    EMPTY_PAGE = "puts an empty page after the first page of a listing, before the others"
    SHIFTED_PAGE = "repeats on each page of a listing the last instance of the previous page"
    UNREACHABLE = "cannot be reached: refuses every connection"
    MALFORMED = "answers every request with JSON without any of the expected fields, and does nothing"
    LATE_ANSWER = "carries out requests, and answers only after the client has given up"


TroubleMaker = Callable[[], AbstractAsyncContextManager[object]]
"""Makes the endpoint have one trouble, from entering to leaving."""


TroubleAfter = Callable[[Trouble, int], AbstractAsyncContextManager[object]]
"""Makes the endpoint have a trouble, from entering to leaving, once it has answered so many requests as usual."""

Call = Callable[[], Coroutine[Any, Any, object]]
"""A call of a group's, with its arguments, to be made."""

H = TypeVar("H")

SHOWN = 10
"""How many instances a violation names."""

LONG = 300
"""How many characters of a value a violation shows."""


def _settings() -> Settings:
    """Settings on the event loop's clock."""
    return Settings(owner="conformance", clock=LoopClock())


@frozen(kw_only=True)
class Harness:
    """One cloud resource to check a group on, made inside the event loop.

    It must have room for three more instances. What it holds already must stay as it is meanwhile. All but `make` may
    be left out; a check that needs what is missing is reported as not checked.
    """

    make: Callable[[], InstanceGroup]
    """Makes a group object for the resource, not opened yet; called for every one that a check needs.

    At most two are open at once: one to observe beside its manager's, or with `OWNER_MARK` another manager's."""

    settings: Settings = field(factory=_settings)
    """What the group is opened with."""

    kill: Callable[[str], Awaitable[None]] | None = None
    """Ends an instance behind the group's back."""

    alive: Callable[[], Awaitable[Collection[str]]] | None = None
    """Returns the ids of all instances that really exist and are paid for, not by way of the group."""

    deadline: float = 60.0
    """Seconds within which what was asked for comes, runs, or is gone."""

    settle: float = 1.0
    """Seconds after which the outcome of a call that was broken off shows itself."""

    poll: float = 0.05
    """Seconds between two views while something is waited for."""

    unknown_id: str = "i-00000000000000000"
    """An id that the cloud could have given, and has not."""

    patience: float = 30.0
    """Seconds within which a call ends though the cloud says nothing: the group's own time-outs, and some more."""

    secrets: Collection[str] = ()
    """What nobody may get to see: the values of the group's settings that are secret."""

    troubles: Mapping[Trouble, TroubleMaker] = field(factory=dict)
    """What the cloud's endpoint can be made to do; what it cannot is not checked."""

    launch: Callable[[int], Awaitable[object]] | None = None
    """Adds instances to the group behind its back, as somebody with the cloud's own tools could."""

    crowd: int = 7
    """How many of those make a listing longer than a page."""

    states: Mapping[str, State] = field(factory=dict)
    """Every state that the cloud has for an instance, as the cloud writes it, and what it means."""

    set_state: Callable[[str, str], Awaitable[None]] | None = None
    """Makes the cloud show an instance in a state, as the cloud writes it, and go on to."""

    notice: Callable[[str], Awaitable[None]] | None = None
    """Makes the cloud announce that an instance will go."""

    probed: Callable[[str], Awaitable[Completed]] | None = None
    """Runs the group's `notice_probe` as on that instance, and returns the outcome."""

    writes: Callable[[], int] | None = None
    """Counts the requests so far that would change something at the cloud."""

    requests: Callable[[], int] | None = None
    """Counts all requests so far, whatever came of them."""

    trouble_after: TroubleAfter | None = None
    """Makes the endpoint have a trouble, from entering to leaving, but answer so many requests as usual first."""

    retry_after: float | None = None
    """Seconds for which the endpoint asks clients to wait with `Trouble.RATE_LIMIT`; None: it does not say."""

    room: int = 3
    """How many more instances the resource has room for. Checks of large numbers use at most 100 of them."""

    respelled: Sequence[Callable[[], InstanceGroup]] = ()
    """Each makes a group object for the same resource from another spelling of its settings: another time-out, a URL
    with a slash at the end, a name in upper case where the cloud ignores case."""

    elsewhere: Callable[[], InstanceGroup] | None = None
    """Makes a group object for another resource of the same cloud, such as another pool of the same account."""

    make_other: Callable[[], InstanceGroup] | None = None
    """Makes a group object as another manager has it, on another machine; None: `make` does, for nothing of the group
    is kept on the machine."""

    loops: Sequence[str] = ("asyncio", "trio")
    """Backends of anyio on which the group can be opened in a second event loop, in another thread. Empty if the cloud
    lives in the event loop of the check."""

    cannot: Mapping[str, str] = field(factory=dict)
    """Names of what is left out above for good, and why: there can be no such thing for this cloud. Checks that need
    it do not apply, which is not the same as not checked."""

    def trouble(self, kind: Trouble) -> AbstractAsyncContextManager[object]:
        """Let the endpoint have a trouble, from entering to leaving.

        Raises:
            NotApplicable: It never can, or, `NotChecked`, the harness has no way to.
        """
        if kind not in self.troubles:
            raise self.lack("troubles", f"troubles[Trouble.{kind.name}], in which the cloud {kind.value}")
        return self.troubles[kind]()

    async def billed(self) -> Collection[str]:
        """Ids of the instances that really exist, not by way of the group.

        Raises:
            NotChecked: It cannot be known.
        """
        return await self.need(self.alive, "alive", "returns which instances really exist")()

    async def end(self, instance: str) -> None:
        """End an instance behind the group's back.

        Raises:
            NotChecked: That cannot be done.
        """
        await self.need(self.kill, "kill", "ends an instance behind the group's back")(instance)

    def need(self, hook: H | None, name: str, what: str) -> H:
        """Give a hook that a check cannot do without.

        Raises:
            NotApplicable: There can be none, or, `NotChecked`, the harness does not have it.
        """
        if hook is None:
            raise self.lack(name, f"{name}, which {what}")
        return hook

    def lack(self, name: str, what: str) -> NotApplicable:
        """Make the error for something that the harness was not given."""
        return NotApplicable(self.cannot[name]) if name in self.cannot else NotChecked(f"give the harness {what}")

    @asynccontextmanager
    async def opened(
        self, *, keep: bool = False, observe_only: bool = False, owner: str = ""
    ) -> AsyncIterator["Probe"]:
        """Open a group, and in the end close it, after deleting what came meanwhile unless that is to be kept."""
        is_other = owner not in ("", self.settings.owner)
        group = self.make_other() if is_other and self.make_other is not None else self.make()
        owner = owner or self.settings.owner
        try:
            info = await group.init(evolve(self.settings, owner=owner, observe_only=observe_only))
        except NotApplicable:
            raise
        except Exception as error:
            raise NotOpened(error) from error
        probe = Probe(harness=self, group=group, info=info, owner=owner)
        try:
            probe.found = dict(await probe.shown())
            yield probe
        finally:
            with anyio.move_on_after(self.deadline, shield=True):
                if not keep:
                    await probe.tidy()
            with anyio.move_on_after(self.deadline, shield=True) as limit:
                await group.shutdown()
        if limit.cancelled_caught:
            raise Violation("shutdown ends", f"{self.deadline:g} s after the call, it had not ended")

    async def open_and_close(self) -> None:
        """Open another object for the group, to observe, and close it if that went well."""
        group = self.make()
        await group.init(evolve(self.settings, observe_only=True))
        await group.shutdown()


MakeHarness = Callable[[], AbstractAsyncContextManager[Harness]]
"""Sets a cloud resource up for one check, and clears it away after that."""


@define(kw_only=True)
class Probe:
    """An open group, and the questions that checks ask of it."""

    harness: Harness
    """What the author has said about the cloud."""

    group: InstanceGroup
    """The group that is looked at."""

    info: GroupInfo
    """What it said when it was opened."""

    owner: str
    """By whom it was opened."""

    found: dict[str, Observed] = field(factory=dict)
    """The first view: the instances that were there when it was opened."""

    async def shown(self) -> Mapping[str, Observed]:
        """The instances in the group's view, less those that it reports as deleted."""
        view = await self.group.update()
        return {instance: each for instance, each in view.instances.items() if each.state is not State.DELETED}

    async def added(self) -> Mapping[str, Observed]:
        """Of those, the ones that came since the group was opened."""
        return without(await self.shown(), self.found)

    async def rest(self, seconds: float) -> None:
        """Let time pass."""
        clock = self.harness.settings.clock
        await clock.sleep_until(clock.now() + seconds)

    async def until(self, clause: str, met: Callable[[Mapping[str, Observed]], bool]) -> Mapping[str, Observed]:
        """Poll the instances shown until they are as the clause says."""
        clock = self.harness.settings.clock
        end = clock.now() + self.harness.deadline
        while not met(shown := await self.shown()):
            if clock.now() >= end:
                raise Violation(clause, f"after {self.harness.deadline:g} s the view has {describe(shown)}")
            await self.rest(self.harness.poll)
        return shown

    async def increase(self, count: int, intent: str = "") -> int:
        """Ask for instances, and look at the answer."""
        accepted = await self.group.increase(count, intent=intent or new_intent())
        if not 0 <= accepted <= count:
            clause = "increase returns how many the cloud accepted, 0 to count"
            raise Violation(clause, f"increase({count}) returned {accepted!r}")
        return accepted

    async def grow(self, count: int, intent: str = "") -> list[str]:
        """Add instances and wait until they run; returns their ids."""
        before = set(await self.shown())
        accepted = await self.increase(count, intent)
        if accepted < count:
            raise Violation("the harness has room for three instances", f"increase({count}) returned {accepted}")
        await self.until(
            "as many instances as increase accepted appear in update",
            lambda shown: len(shown.keys() - before) >= accepted,
        )
        shown = await self.until(
            "a requested instance starts running",
            lambda shown: sum(each.state is State.RUNNING for each in without(shown, before).values()) >= accepted,
        )
        return list(without(shown, before))

    async def remove(self, instances: Sequence[str]) -> None:
        """Delete instances, asking again for those that were not accepted, and wait until they are gone."""
        asked: set[str] = set()
        clock = self.harness.settings.clock
        end = clock.now() + self.harness.deadline
        while left := [instance for instance in instances if instance not in asked]:
            if clock.now() >= end:
                raise Violation("decrease accepts deletions sooner or later", f"it never accepted {left}")
            asked |= set(await self.group.decrease(left))
            await self.rest(self.harness.poll)
        await self.until(
            "an instance whose deletion was accepted leaves the view, or is reported deleted",
            lambda shown: not shown.keys() & set(instances),
        )

    def extras(self, instance: str) -> Mapping[str, Call]:
        """The calls that the capabilities add and that change something, by their names."""
        group, claimed = self.group, self.info.capabilities
        calls: dict[str, Call] = {}
        if Capability.WITHDRAW in claimed and isinstance(group, Withdraws):
            calls["withdraw"] = partial(group.withdraw, 1)
        if Capability.OWNER_MARK in claimed and isinstance(group, MarksOwner):
            calls["mark_owner"] = partial(group.mark_owner, self.harness.settings.clock.now() + self.harness.deadline)
        if Capability.SUSPEND_RESUME in claimed and isinstance(group, Suspends):
            calls["suspend"] = partial(group.suspend, [instance])
            calls["resume"] = partial(group.resume, [instance])
        return calls

    def calls(self, instance: str) -> Mapping[str, Call]:
        """Every call that asks the cloud something, by its name; `init` is that of another object, to observe."""
        group = self.group
        return {
            "init": self.harness.open_and_close,
            **self.reads(instance),
            "increase": lambda: group.increase(1, intent=new_intent()),
            "decrease": lambda: group.decrease([instance]),
            **self.extras(instance),
        }

    def reads(self, instance: str) -> Mapping[str, Call]:
        """The calls that change nothing, by their names."""
        group = self.group
        calls: dict[str, Call] = {
            "update": group.update,
            "connect_info": partial(group.connect_info, instance),
            "heartbeat": partial(group.heartbeat, instance),
        }
        if Capability.OWNER_MARK in self.info.capabilities and isinstance(group, ReadsMarks):
            calls["read_marks"] = group.read_marks
        return calls

    async def tidy(self) -> None:
        """Delete what came since the group was opened, as far as it lets itself be deleted, and take its mark away.

        Whatever a group raises here, it has raised before in the check, which says better what is wrong.
        """
        if Capability.OWNER_MARK in self.info.capabilities and isinstance(self.group, MarksOwner):
            with suppress(Exception):
                await self.group.mark_owner(None)
        with suppress(Exception):
            if added := list(await self.added()):
                await self.group.decrease(added)

    def needs(self, capability: Capability) -> None:
        """End the check unless the group has the capability."""
        if capability not in self.info.capabilities:
            raise NotApplicable(f"the group does not claim {capability.name}")


def without(shown: Mapping[str, Observed], instances: Collection[str]) -> dict[str, Observed]:
    """What is shown, less these."""
    return {instance: each for instance, each in shown.items() if instance not in instances}


def describe(shown: Mapping[str, Observed]) -> str:
    """In words, such as ``i-1 running, i-2 creating``, and how many more there are."""
    words = [f"{instance} {each.state.value}" for instance, each in islice(shown.items(), SHOWN)]
    more = [f"{len(shown) - SHOWN} more"] if len(shown) > SHOWN else []
    return ", ".join([*words, *more]) or "no instances"


def new_intent() -> str:
    """An id for an intent that no other run of the suite has used."""
    return f"conformance-{uuid4().hex}"


async def fails(call: Awaitable[object]) -> ProviderError | None:
    """Await the call; returns the error with which it said no, or None if it did not."""
    try:
        await call
    except ProviderError as error:
        return error
    return None


@frozen(kw_only=True)
class Answer:
    """What came of a call."""

    value: Any = None
    error: Exception | None = None

    def __str__(self) -> str:
        """In words: ``returned 3``, ``raised KeyError('status')``."""
        if self.error is not None:
            return f"raised {self.error!r}"
        value = repr(self.value)
        return f"returned {value if len(value) <= LONG else value[:LONG] + '…'}"


async def answer_of(call: Awaitable[object]) -> Answer:
    """Await the call, and take whatever comes of it.

    Raises:
        NotApplicable: What watches over the check did not allow the call.
    """
    try:
        return Answer(value=await call)
    except NotApplicable:
        raise
    except Exception as error:  # noqa: BLE001  (what a plugin may raise is what is being checked)
        return Answer(error=error)


async def answer_during(harness: Harness, kind: Trouble, call: Callable[[], Awaitable[object]]) -> Answer | None:
    """Make the call while the endpoint has a trouble; None: it did not end within the harness's patience."""
    return (await answers_during(harness, kind, {"": call}))[""]


async def answers_during(
    harness: Harness, kind: Trouble, calls: Mapping[str, Callable[[], Awaitable[object]]]
) -> Mapping[str, Answer | None]:
    """Make all calls at once while the endpoint has a trouble; None: it did not end within the harness's patience.

    The trouble ends before a call that has not ended is given up, so that a thread that waits for an answer gets one.
    """
    return await answers_at_once(calls, harness.patience, harness.trouble(kind))


async def answers_at_once(
    calls: Mapping[str, Callable[[], Awaitable[object]]],
    patience: float,
    meanwhile: AbstractAsyncContextManager[object] | None = None,
) -> Mapping[str, Answer | None]:
    """Make all calls at once, in a context if one is given; None: the call did not end within *patience* seconds."""
    answers: dict[str, Answer | None] = dict.fromkeys(calls)
    refusals: list[NotApplicable] = []
    done = anyio.Event()

    async def ask(name: str, call: Callable[[], Awaitable[object]]) -> None:
        try:
            answers[name] = await answer_of(call())
        except NotApplicable as refusal:  # a task group would wrap it
            refusals.append(refusal)
        if refusals or None not in answers.values():
            done.set()

    async with anyio.create_task_group() as tasks:
        async with meanwhile or nullcontext():
            for name, call in calls.items():
                tasks.start_soon(ask, name, call)
            with anyio.move_on_after(patience):
                await done.wait()
            in_time = answers.copy()  # what comes when the trouble ends comes too late
        tasks.cancel_scope.cancel()
    if refusals:
        raise refusals[0]
    return in_time
