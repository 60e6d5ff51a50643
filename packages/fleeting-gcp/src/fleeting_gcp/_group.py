"""The `googlecloud` group: what is asked of Google through its SDK, in which order, and within what time.

The SDK blocks, and takes a second and 140 MiB to import: it is imported when a group is opened, and runs in worker
threads. It repeats nothing, for the manager does that. Nor does it wait for operations: for that it would ask the
public API, whatever `endpoint` says.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TypeVar
from uuid import NAMESPACE_URL, uuid4, uuid5

from attrs import define, evolve, field
from cryptography.hazmat.primitives.asymmetric import rsa

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
    ProviderError,
    Settings,
    State,
)
from fleeting.connectors.ssh import KeyPair, best_host_key, generate_key, printed_host_key
from fleeting.plugins import Mark, Offload, SharedCall, mark_as_text, refuse_if_marked, undone_on_failure
from fleeting_gcp import _answers as answers
from fleeting_gcp._answers import Fault, Managed, Message, Refused
from fleeting_gcp._config import GcpConfig

PAGE, BATCH = 500, 1000
"""Instances on a page of the listing, and in one request: the most that the API takes."""

OPERATION_TIMEOUT, FIRST_PAUSE, LONGEST_PAUSE = 120.0, 0.1, 3.0
"""Seconds that an operation may take, and between two looks at it."""

BEST_KEY = "ssh-ed25519"
"""The type of host key that is chosen whatever others a guest publishes later."""

BOOT, PASSWORD_TIMEOUT, GUEST_PAUSE = 60.0, 90.0, 3.0
"""Seconds after a start for which host keys are waited for, that a guest has to set a password, between two looks."""

KEY_LIFE, KEY_RESERVE = 12 * 3600.0, 900.0
"""Seconds for which a key lets us in, and so long before its end there is another."""

METADATA_TRIES = 5
"""How often metadata is written that others write too."""

USER = "fleeting"
"""Who logs in, if the settings do not say; the guest agent makes the account."""

SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)
CAPABILITIES = frozenset({Capability.NAMED_CREATE, Capability.SUSPEND_RESUME, Capability.NOTICES})

T = TypeVar("T")
log = logging.getLogger("fleeting.gcp")


class _Sdk:
    """The SDK's clients; made and used in worker threads."""

    def __init__(self, config: GcpConfig) -> None:
        """Import the SDK, and read the credentials; nothing is connected yet."""
        sdk, credentials = import_module("google.cloud.compute_v1"), _credentials(config)
        options = {"universe_domain": credentials.universe_domain, "api_endpoint": config.endpoint}
        region = "Region" if config.region else ""

        def client(kind: str) -> Message:
            return getattr(sdk, f"{kind}Client")(credentials=credentials, client_options=options)

        self.groups = client(f"{region}InstanceGroupManagers")
        self.operations = client(f"{region or 'Zone'}Operations")
        self.machines = client("Instances")
        self.machine_operations = client("ZoneOperations")
        self.projects = client("Projects")

    def close(self) -> None:
        for client in (self.groups, self.operations, self.machines, self.machine_operations, self.projects):
            client.transport.close()


def _credentials(config: GcpConfig) -> Message:
    auth, named = import_module("google.auth"), config.credentials_file
    try:
        if named is None:
            found, _ = auth.default(scopes=SCOPES)
        else:
            found, _ = auth.load_credentials_from_file(str(Path(named).expanduser()), scopes=SCOPES)
    except (auth.exceptions.GoogleAuthError, OSError, ValueError):
        default = "Google's application default credentials are missing; log in with gcloud"
        raise AuthFailed(f"credentials_file {named} holds no Google credentials" if named else default) from None
    if (account := config.impersonate_service_account) is None:
        return found
    impersonated = import_module("google.auth.impersonated_credentials")
    return impersonated.Credentials(source_credentials=found, target_principal=account, target_scopes=SCOPES)


@define(eq=False)
class GcpGroup:
    """Asks for instances by names that carry the intent, and deletes one by one; it never sets a size at Google."""

    _config: GcpConfig
    _sdk: _Sdk = field(init=False, repr=False)
    _clock: Clock = field(init=False, repr=False)
    _settings: Settings = field(init=False, repr=False)
    _key: KeyPair = field(factory=generate_key, init=False)
    _offload: Offload = field(factory=Offload, init=False)
    _list: SharedCall[Mapping[str, Managed]] = field(init=False, repr=False)
    _listing: Mapping[str, Managed] = field(factory=dict, init=False, repr=False)
    _numbers: Mapping[str, int] = field(factory=dict, init=False, repr=False)
    """Google's ids of the first machines that came to run under these names; several may be begun before one does."""

    _since: Mapping[Fault, float] = field(factory=dict, init=False)
    """What keeps instances from coming, with when it was first met."""

    _os_login: bool | None = field(default=False, init=False)
    """Whether OS Login is on for the whole project; None: it could not be seen."""

    @_list.default
    def _shared(self) -> SharedCall[Mapping[str, Managed]]:
        return SharedCall(self._fetch)

    async def init(self, settings: Settings) -> GroupInfo:
        """Load the SDK, and look whether the group is there and set up such that it can be managed."""
        self._settings, self._clock = settings, settings.clock
        self._sdk = await self._in_thread(partial(_Sdk, self._config), "the start")
        try:
            async with undone_on_failure(self.shutdown):
                group = await self._ask(self._sdk.groups.get, self._where)
                refusal = answers.refusal(group, self._config)
                if refusal and not settings.observe_only:
                    raise GroupRefused(refusal)
                windows = settings.connector.os == "windows" or (settings.connector.protocol or "").startswith("winrm")
                if not windows and not self._has_way_in:  # who writes no keys need not know
                    project = await self._glance(self._sdk.projects.get, {"project": self._config.project})
                    self._os_login = None if project is None else answers.project_is_on(project, "enable-oslogin")
        except Refused:
            raise GroupRefused(
                f"there is no {self._config.path}; correct the name, the project and the zone or region"
            ) from None
        marks = {Capability.OWNER_MARK} if self._config.owner_mark else set()
        return GroupInfo(
            identity=f"googlecloud:{self._config.path}",
            max_size=answers.max_size(group, self._config),
            capabilities=(CAPABILITIES - {Capability.NOTICES} if windows else CAPABILITIES) | marks,
            advice=(
                *([f"a manager would refuse it as it is: {refusal}"] if refusal else []),
                *answers.advice(group, self._config),
                *answers.login_advice(self._config.project, os_login=self._os_login),
            ),
            notice_probe=None if windows else answers.NOTICE_PROBE,
        )

    async def update(self) -> Observation:
        """List the group."""
        listing = await self._list()
        problems = [answers.problem_of(fault, since) for fault, since in self._since.items()]
        return Observation({name: each.observed for name, each in listing.items()}, problems)

    async def increase(self, count: int, *, intent: str) -> int:
        """Ask for instances by name; if Google refuses, they may be there already."""
        self._settings.refuse_if_observing()
        names = answers.names_for(intent, min(count, BATCH))
        key = str(uuid5(NAMESPACE_URL, f"{self._config.path}/{intent}"))
        try:
            await self._change("create_instances", {"instances": [{"name": name} for name in names]}, key=key)
        except Refused:
            there = [name for name in await self._list() if answers.intent_of(name) == intent]
            if not there:
                raise
            return min(count, len(there))
        return len(names)

    async def decrease(self, instances: Sequence[str]) -> Sequence[str]:
        """Delete by URL, and by name what is queued; what is not listed is gone."""
        self._settings.refuse_if_observing()
        if not all(name in self._listing and self._listing[name].url for name in instances):
            await self._list()  # what was queued may have come to a zone meanwhile
        left = [self._listing[name] for name in dict.fromkeys(instances) if name in self._listing]
        queued, skip = [each.name for each in left if not each.url], {"skip_instances_on_validation_error": True}
        try:  # first, lest one that cannot be deleted keeps these waiting, to be made and paid for
            await self._change_each("delete_instances", queued, **skip)
        except Refused as error:  # only the reference of zonal groups says that names are taken
            log.warning("queued_not_deleted", extra={"instances": queued, "error": str(error)})
            instances = [name for name in instances if name not in queued]
        await self._change_each("delete_instances", [each.url for each in left if each.url], **skip)
        return [*instances]

    async def suspend(self, instances: Sequence[str]) -> Sequence[str]:
        """Suspend those that run."""
        return await self._turn("suspend_instances", instances, State.RUNNING, {State.SUSPENDING, State.SUSPENDED})

    async def resume(self, instances: Sequence[str]) -> Sequence[str]:
        """Resume those that are suspended."""
        return await self._turn("resume_instances", instances, State.SUSPENDED, {State.RESUMING, State.RUNNING})

    async def connect_info(self, instance: str) -> ConnectInfo:
        """Find where it is, and make a way in, unless the settings have one or we only look."""
        machine, own = await self._find(instance), self._settings.connector
        system, arch = answers.platform_of(machine)
        inside, outside = answers.addresses(machine)
        protocol = own.protocol or ("winrm+https" if system == "windows" else "ssh")
        info = ConnectInfo(
            id=instance,
            os=system,
            arch=arch,
            protocol=protocol,
            internal_addr=inside,
            external_addr=outside,
            user=own.username or USER,
            host_key=await self._host_key(instance, machine) if protocol == "ssh" else None,
            pin_host_key=True,
        )
        if self._settings.observe_only or self._has_way_in:
            return info
        if protocol != "ssh":
            return evolve(info, password=await self._new_password(info))
        left_alone = answers.is_on(machine, "enable-oslogin", otherwise=bool(self._os_login))
        return info if left_alone else await self._let_in(info)

    async def heartbeat(self, instance: str) -> None:
        """Return if the group lists it as running, and its health check, if it has one, does not fail."""
        listed = (await self._list()).get(instance)
        if listed is None:
            raise InstanceNotFound(instance)
        if listed.state is not State.RUNNING or listed.is_ill:
            what = "fails the group's health check" if listed.is_ill else f"is {listed.state.value}"
            raise ProviderError(f"{instance} {what}")

    async def mark_owner(self, until: float | None) -> None:
        """Put metadata into the group's configuration for all instances, unless somebody changes that meanwhile."""
        self._settings.refuse_if_observing()
        owner, said = self._settings.owner, ""
        for _ in range(METADATA_TRIES):
            group = await self._ask(self._sdk.groups.get, self._where)
            marks = answers.mark_on(group)
            if until is None and owner not in {mark.owner for mark in marks}:
                return None
            if until is not None:
                refuse_if_marked(marks, owner=owner, now=self._clock.now(), group=self._config.name)
            body = answers.marked(group, mark_as_text(owner, until) if until is not None else "")
            request = {**self._where, "instance_group_manager_resource": body, "request_id": str(uuid4())}
            try:
                operation = await self._ask(self._sdk.groups.patch_unary, request, changes=True)
                return await self._finish(self._sdk.operations, operation, self._config.place, "patch")
            except Refused as error:
                if error.status not in (answers.CONFLICT, answers.CHANGED):
                    raise
                said = str(error)
        raise ProviderError(f"somebody else changes {self._config.name} repeatedly: {said}")

    async def read_marks(self) -> Sequence[Mark]:
        """Read the group."""
        return answers.mark_on(await self._ask(self._sdk.groups.get, self._where))

    async def shutdown(self) -> None:
        """Close the SDK's connections."""
        self._sdk.close()

    # --- looking -----------------------------------------------------------------------------------------

    @property
    def _where(self) -> dict[str, str]:
        return {**self._config.place, "instance_group_manager": self._config.name}

    async def _fetch(self) -> Mapping[str, Managed]:
        """List all of the group, and compare it with what was known."""
        now = self._clock.now()
        found = await self._in_thread(self._pages, "listManagedInstances")
        self._listing = {each.name: answers.risen(each, self._numbers) for each in found}
        bearers = {each.name: each.number for each in found if each.state is not State.CREATING}
        numbers = {each.name: self._numbers.get(each.name, bearers.get(each.name, 0)) for each in found}
        self._numbers = {name: number for name, number in numbers.items() if number}
        self._since = {fault: self._since.get(fault, now) for fault in answers.faults_of(found)}
        return self._listing

    def _pages(self) -> list[Managed]:
        """Fetch and read all pages of the listing, in the thread."""
        request, found, tokens = {**self._where, "max_results": PAGE}, list[Managed](), set[str]()
        listing = self._sdk.groups.list_managed_instances(request=request, retry=None, timeout=self._config.timeout)
        for page in listing.pages:
            if page.next_page_token in tokens:
                raise ProviderError("the pages of Google's list form a loop")
            tokens.add(page.next_page_token)
            found += [answers.read_managed(each) for each in page.managed_instances]
        return found

    async def _find(self, instance: str) -> Message:
        """Fetch the machine itself."""
        if instance not in self._listing:
            await self._list()
        try:
            return await self._ask(self._sdk.machines.get, self._at(instance))
        except Refused as error:
            raise InstanceNotFound(instance) if error.status == answers.NOT_FOUND else error from None

    def _at(self, instance: str) -> dict[str, str]:
        """Where the machine is, as requests have it."""
        zone = self._listing[instance].zone if instance in self._listing else None
        if zone is None:
            raise InstanceNotFound(instance)
        return {"project": self._config.project, "zone": zone, "instance": instance}

    async def _host_key(self, instance: str, machine: Message) -> str | None:
        """Learn the host key: from guest attributes where they are switched on, or as cloud-init prints it."""
        at, pause, before = self._at(instance), GUEST_PAUSE, None
        while answers.is_on(machine, "enable-guest-attributes"):
            attributes = await self._glance(self._sdk.machines.get_guest_attributes, {**at, "query_path": "hostkeys/"})
            key = best_host_key({each.key: each.value for each in attributes.query_value.items}) if attributes else None
            booted = self._clock.now() > answers.started_at(machine) + BOOT
            if key and (key.startswith(BEST_KEY) or key == before or booted):
                return key  # the agent writes them one by one, and the first that we report is pinned
            if booted:
                break
            before = key
            await self._clock.sleep_until(self._clock.now() + pause)
            pause *= 2
        printed = await self._glance(self._sdk.machines.get_serial_port_output, at)
        return printed_host_key(printed.contents) if printed else None

    # --- a way in ----------------------------------------------------------------------------------------

    @property
    def _has_way_in(self) -> bool:
        """Whether the settings have credentials, so that none need be made."""
        own = self._settings.connector
        return bool(own.use_static_credentials or own.password or own.key_path)

    async def _let_in(self, info: ConnectInfo) -> ConnectInfo:
        """Give our key to the guest agent, for a while."""
        now, user = self._clock.now(), info.user or USER
        line = partial(answers.with_ssh_key, user=user, public=self._key.public, until=now + KEY_LIFE, now=now)
        await self._write(info.id, "ssh-keys", line)
        return evolve(info, key=self._key.private, expires_at=now + KEY_LIFE - KEY_RESERVE)

    async def _new_password(self, info: ConnectInfo) -> str:
        """Have the guest agent set a password that only a key of the moment can read."""
        now, key = self._clock.now(), await self._offload(rsa.generate_private_key, 65537, 2048)
        end, user = now + PASSWORD_TIMEOUT, info.user or USER
        line = partial(answers.with_windows_key, user=user, key=key, until=end, now=now)
        await self._write(info.id, "windows-keys", line)
        while self._clock.now() < end:
            printed = await self._ask(self._sdk.machines.get_serial_port_output, {**self._at(info.id), "port": 4})
            if password := answers.windows_password(printed.contents, key):
                return password
            await self._clock.sleep_until(self._clock.now() + GUEST_PAUSE)
        raise ProviderError(f"the guest agent of {info.id} has not set a password within {PASSWORD_TIMEOUT:g} s")

    async def _write(self, instance: str, key: str, change: Callable[[str], str]) -> None:
        """Change one value of the metadata; again, if somebody else was faster."""
        said = ""
        for _ in range(METADATA_TRIES):
            metadata = (await self._find(instance)).metadata
            items = {each.key: each.value for each in metadata.items}
            items[key] = change(items.get(key, ""))
            body = {"fingerprint": metadata.fingerprint, "items": [{"key": k, "value": v} for k, v in items.items()]}
            request = {**self._at(instance), "metadata_resource": body}
            try:
                operation = await self._ask(self._sdk.machines.set_metadata_unary, request, changes=True)
                place = {"project": self._config.project, "zone": self._at(instance)["zone"]}
                return await self._finish(self._sdk.machine_operations, operation, place, "setMetadata")
            except Refused as error:
                if error.status not in (answers.CONFLICT, answers.CHANGED):
                    raise
                said = str(error)
        raise ProviderError(f"somebody else changes the metadata of {instance} repeatedly: {said}")

    # --- changing ----------------------------------------------------------------------------------------

    async def _turn(self, verb: str, instances: Sequence[str], of: State, done: set[State]) -> Sequence[str]:
        """Turn those that are in one state; those in others are there, or on the way."""
        self._settings.refuse_if_observing()
        listing = await self._list()
        states = {name: listing[name].state for name in instances if name in listing}
        await self._change_each(verb, [listing[name].url for name, state in states.items() if state is of])
        return [name for name, state in states.items() if state is of or state in done]

    async def _change_each(self, verb: str, instances: Sequence[str], **more: object) -> None:
        """Have the group plan something for instances, all of them named by URL or all by name."""
        for start in range(0, len(instances), BATCH):
            await self._change(verb, {"instances": instances[start : start + BATCH], **more})

    async def _change(self, verb: str, body: Mapping[str, object], *, key: str = "") -> None:
        """Have the group plan something; asked again with the same key, Google does nothing new."""
        region = "region_" if self._config.region else ""
        resource = {f"{region}instance_group_managers_{verb}_request_resource": body}
        request = {**self._where, **resource, "request_id": key or str(uuid4())}
        operation = await self._ask(getattr(self._sdk.groups, f"{verb}_unary"), request, changes=True)
        await self._finish(self._sdk.operations, operation, self._config.place, verb)

    async def _finish(self, client: Message, operation: Message, place: Mapping[str, str], what: str) -> None:
        """Wait until an operation is done; if that cannot be seen, it may be done all the same."""
        pause, end = FIRST_PAUSE, self._clock.now() + OPERATION_TIMEOUT
        request = {**place, "operation": operation.name}
        while operation.status.name != "DONE":
            if self._clock.now() >= end:
                raise OutcomeUnknown(f"Google did not finish {what} within {OPERATION_TIMEOUT:g} s")
            await self._clock.sleep_until(self._clock.now() + pause)
            pause = min(2 * pause, LONGEST_PAUSE)
            try:
                operation = await self._ask(client.get, request)
            except Refused:
                raise OutcomeUnknown(f"Google no longer knows the operation to {what}") from None
            except AuthFailed as error:
                raise OutcomeUnknown(f"the outcome of {what} cannot be read: {error}") from None
            except ProviderError as error:
                log.warning("operation_unseen", extra={"what": what, "error": str(error)})
        if codes := [each.code for each in operation.error.errors]:
            raise answers.error_in(codes, what)

    # --- the SDK -----------------------------------------------------------------------------------------

    async def _glance(self, method: Message, request: Mapping[str, object]) -> Message:
        """Ask for what may not be there, or not for us to see; None: so it is."""
        try:
            return await self._ask(method, request)
        except (Refused, AuthFailed):
            return None

    async def _ask(self, method: Message, request: Mapping[str, object], *, changes: bool = False) -> Message:
        """Call one of the SDK's methods."""
        call = partial(method, request=dict(request), retry=None, timeout=self._config.timeout)
        return await self._in_thread(call, method.__name__.removesuffix("_unary"), changes=changes)

    async def _in_thread(self, call: Callable[[], T], what: str, *, changes: bool = False) -> T:
        """Run a call. The SDK's errors stay in the thread, for they show what was sent and answered."""
        result = await self._offload(_outcome, call, what, changes=changes)
        if isinstance(result, ProviderError):
            raise result
        return result


def _outcome(call: Callable[[], T], what: str, *, changes: bool) -> T | ProviderError:
    """Call; returns what came of it, which may be an error."""
    api, auth = import_module("google.api_core.exceptions"), import_module("google.auth.exceptions")
    parse_error = import_module("google.protobuf.json_format").ParseError
    strange = (AttributeError, LookupError, OSError, TypeError, ValueError, parse_error)
    try:
        return call()
    except ProviderError as error:
        return error
    except api.GoogleAPICallError as error:
        return answers.error_for(error, what, changes=changes)
    except auth.GoogleAuthError as error:
        kind = ProviderError if isinstance(error, auth.TransportError) else AuthFailed
        return kind(f"Google gave no access token for {what}: {type(error).__name__}")
    except strange as error:  # the SDK's own surprise at what is no answer, too
        if _is_unsent(error):
            return ProviderError(f"Google cannot be reached to {what}; check the network and the endpoint")
        said = f"Google gave an invalid answer to {what}"
        return OutcomeUnknown(said) if changes else ProviderError(said)


def _is_unsent(error: Exception) -> bool:
    """Whether nobody was reached who could have done something."""
    unmade = import_module("urllib3.exceptions")
    reason = getattr(error.args[0] if error.args else None, "reason", None)
    return isinstance(reason, (unmade.NewConnectionError, unmade.ConnectTimeoutError))
