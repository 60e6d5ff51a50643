"""The `exec` group: instances that the user's own executables make, list and destroy."""

import logging
import os
import shutil
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
from anyio.lowlevel import checkpoint
from attrs import define, field

from fleeting import (
    Capability,
    Clock,
    ConnectInfo,
    GroupInfo,
    GroupRefused,
    InstanceNotFound,
    Observation,
    Problem,
    ProblemKind,
    ProviderError,
    Settings,
    State,
)
from fleeting.plugins import Mark, Offload, SharedCall, accepted, put_mark
from fleeting_exec._config import ExecConfig
from fleeting_exec._contract import Listed, Listing, is_name, kind_of, plain, read_instance, read_listing, read_marks
from fleeting_exec._program import NoSuchCommand, NoSuchThing, Program, environment, secrets_in
from fleeting_exec._requests import UNSETTLED, Fate, Request, Requests
from fleeting_exec._store import Store

INTERFACE = "1"
"""The version of the contract with executables, passed to them as ``FLEETING_INTERFACE``."""

FRESH = 1.0
"""Seconds for which one ``list`` answers all who ask about single instances."""

APPEAR_WITHIN = 900.0
"""Seconds after which an instance that was made and is still not listed takes no room any more; as the manager's
`intent_timeout`."""

log = logging.getLogger("fleeting.exec")


@define(eq=False)
class ExecGroup:
    """Gives names, has executables make and destroy what bears them, and believes what ``list`` shows.

    What changes something runs to its end or its time limit, whatever is cancelled; what only looks is killed when it
    is cancelled. A ``create`` that fails is followed by ``destroy``, so nothing is left of what it had begun.
    """

    _config: ExecConfig
    _program: Program = field(init=False)
    _store: Store = field(init=False)
    _requests: Requests = field(init=False)
    _clock: Clock = field(init=False)
    _settings: Settings = field(init=False)
    _offload: Offload = field(factory=lambda: Offload(limit=1), init=False)
    _limiter: anyio.CapacityLimiter = field(init=False)
    _asking: dict[str, anyio.Lock] = field(factory=dict, init=False)
    """Held while instances are made for an intent, by intent."""

    _list: SharedCall[Listing] = field(init=False, repr=False)
    _listing: Listing = field(default=Listing({}), init=False)
    _listed_at: float = field(default=0.0, init=False)
    _states: dict[str, State] = field(factory=dict, init=False)
    """The last that was shown of each instance."""

    _expected: dict[str, float] = field(factory=dict, init=False)
    """Names that are being made or are made, and were not listed yet, with when they were given."""

    _destroying: set[str] = field(factory=set, init=False)
    _problems: tuple[Problem, ...] = field(default=(), init=False)
    """Why the last request brought less than was asked for."""

    _has_status: bool = field(default=True, init=False)

    @_list.default
    def _shared(self) -> SharedCall[Listing]:
        return SharedCall(self._fetch)

    async def init(self, settings: Settings) -> GroupInfo:
        """Find the program, read what was asked for before, keep other managers out, and look once."""
        self._clock = settings.clock
        self._settings = settings
        self._limiter = anyio.CapacityLimiter(self._config.concurrency)
        self._program = self._find_program(settings.owner)
        self._store = self._find_store()
        here = f"exec:{socket.gethostname()}:{await self._offload(self._store.root.resolve)}"
        try:
            await self._offload(self._store.check if self._settings.observe_only else self._store.open)
            await self._begin()
        except BaseException:
            self._store.close()
            raise
        return GroupInfo(
            identity=self._config.identity or here,
            max_size=self._config.max_size,
            max_size_is="max_size in plugin_config",
            capabilities=frozenset(
                {
                    Capability.NAMED_CREATE,
                    *([Capability.OWNER_MARK] if self._config.owner_mark else []),
                }
            ),
        )

    async def update(self) -> Observation:
        """Have everything listed."""
        if self._settings.observe_only:
            self._requests = await self._offload(self._store.read, self._config.name)
        listing = await self._list()
        if not self._settings.observe_only:
            await self._replace(self._requests.forgetting(listing.instances, self._clock.now()))
        view = self._requests.view(listing.instances.values(), self._states)
        self._states = {name: seen.state for name, seen in view.items()}
        return Observation(view, (*listing.problems, *self._problems))

    async def increase(self, count: int, *, intent: str) -> int:
        """Have instances made, as many as there is room for; none for an intent that has brought some before."""
        self._settings.refuse_if_observing()
        await checkpoint()
        with anyio.CancelScope(shield=True):
            async with self._one_at_a_time(intent):
                if not self._made(intent):
                    await self._make(count, intent)
        return min(count, self._made(intent))

    async def decrease(self, instances: Sequence[str]) -> Sequence[str]:
        """Have instances destroyed; one that is still being made goes as soon as it is made."""
        self._settings.refuse_if_observing()
        await checkpoint()
        errors: dict[str, ProviderError] = {}
        with anyio.CancelScope(shield=True):
            async with anyio.create_task_group() as tasks:
                for name in instances:
                    tasks.start_soon(self._remove, name, errors)
        return accepted(instances, errors)

    async def connect_info(self, instance: str) -> ConnectInfo:
        """How to connect: as ``list`` has it if that says enough, else as ``status`` does."""
        listed = self._listing.instances.get(instance)
        if listed is None or not listed.is_reachable or self._is_over(listed):
            listed = await self._look_at(instance)
        if not listed.is_reachable:
            what = f"neither internal_addr nor external_addr of {instance}"
            raise ProviderError(f"{self._program.describe()} prints {what}; list or status must print one of them")
        return ConnectInfo(
            id=instance,
            os=listed.os,
            arch=listed.arch,
            protocol=listed.protocol,
            internal_addr=listed.internal_addr,
            external_addr=listed.external_addr,
            port=listed.port,
            user=listed.user,
            password=listed.password,
            key=None if listed.key_path is None else await self._offload(_read_key, listed.key_path),
            host_key=listed.host_key,
            pin_host_key=True,  # programs read consoles, too
            expires_at=listed.expires_at,
        )

    async def heartbeat(self, instance: str) -> None:
        """Return if ``status``, or ``list`` where there is none, says that it runs."""
        listed = await self._look_at(instance)
        if listed.state.state is not State.RUNNING:
            raise ProviderError(f"{instance} is not running: its state is {listed.state.value}")

    async def mark_owner(self, until: float | None) -> None:
        """Have the mark written, and look once more after that: of two at once, both may be refused."""
        self._settings.refuse_if_observing()
        await put_mark(
            until,
            owner=self._settings.owner,
            clock=self._clock,
            group=self._config.identity or self._config.name,
            read=self.read_marks,
            write=self._write_mark,
            erase=self._erase_marks,
        )

    async def read_marks(self) -> Sequence[Mark]:
        """Have the marks printed."""
        output = await self._program.run("marks", limit=self._config.list_timeout)
        return await self._offload(read_marks, output, self._program.describe("marks"))

    async def shutdown(self) -> None:
        """Let the next manager in."""
        self._store.close()

    # --- opening -----------------------------------------------------------------------------------------

    def _find_program(self, owner: str) -> Program:
        config = self._config
        found = shutil.which(config.command[0])
        if found is None:
            raise GroupRefused(
                f"there is no executable program {config.command[0]} {_where(config.command[0])}; correct the"
                " first part of plugin_config.command, or make the file executable"
            )
        env = environment(config.pass_env, config.env)
        identity = {"FLEETING_INTERFACE": INTERFACE, "FLEETING_GROUP": config.name, "FLEETING_OWNER": owner}
        allowed = (os.environ[name] for name in config.pass_env if name in os.environ)
        command = (str(Path(found).absolute()), *config.command[1:])
        secrets = frozenset((*config.env.values(), *allowed, *secrets_in(config.command[1:])))
        return Program(command=command, env={**env, **identity}, secrets=secrets)

    def _find_store(self) -> Store:
        try:
            return Store(self._config.root)
        except RuntimeError as error:
            raise GroupRefused("there is no home directory for the group's state; set state_dir") from error

    async def _begin(self) -> None:
        """Read the requests and look once; what an earlier manager had not finished is taken for failed."""
        self._requests = await self._offload(self._store.read, self._config.name)
        listing = await self._list()
        if not self._settings.observe_only:
            await self._replace(self._requests.taken_over().forgetting(listing.instances, self._clock.now()))

    # --- looking -----------------------------------------------------------------------------------------

    async def _fetch(self) -> Listing:
        """Have everything listed, and remember it."""
        begun = self._clock.now()
        output = await self._program.run("list", limit=self._config.list_timeout)
        self._listing = await self._offload(read_listing, output, self._program.describe("list"))
        self._listed_at = begun
        for name in [*self._expected]:
            if name in self._listing.instances or self._expected[name] + APPEAR_WITHIN < begun:
                del self._expected[name]
        return self._listing

    async def _look_at(self, name: str) -> Listed:
        """Ask for one instance's status."""
        if not is_name(name):
            raise InstanceNotFound(name)
        listed = await self._ask_status(name) if self._has_status else None
        if listed is None:
            listed = await self._find_listed(name)
        if listed is None or listed.state.state is State.DELETED:
            raise InstanceNotFound(name)
        return listed

    async def _ask_status(self, name: str) -> Listed | None:
        """Run ``status``; None if the program has no such thing."""
        try:
            output = await self._program.run("status", name, limit=self._config.list_timeout)
        except NoSuchCommand:
            self._has_status = False
            return None
        except NoSuchThing as error:
            raise InstanceNotFound(name) from error
        return await self._offload(read_instance, output, self._program.describe("status"), name)

    async def _find_listed(self, name: str) -> Listed | None:
        """Look it up in a listing that is fresh; one does for all who ask at the same time."""
        if self._clock.now() - self._listed_at >= FRESH:
            await self._list()
        return self._listing.instances.get(name)

    def _is_over(self, listed: Listed) -> bool:
        return listed.expires_at is not None and listed.expires_at <= self._clock.now()

    # --- making ------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _one_at_a_time(self, intent: str) -> AsyncIterator[None]:
        """Wait until nobody else has instances made for the intent."""
        lock = self._asking.setdefault(intent, anyio.Lock())
        async with lock:
            yield
        if not lock.locked():
            self._asking.pop(intent, None)

    def _made(self, intent: str) -> int:
        return self._requests.of(intent, self._clock.now()).made

    async def _make(self, count: int, intent: str) -> None:
        """Give names, write them down, and have instances made; raise why if there comes none."""
        names = await self._give_names(self._room(count), intent)
        errors: list[ProviderError] = []
        async with anyio.create_task_group() as tasks:
            for name in names:
                tasks.start_soon(self._create, name, intent, errors)
        self._note(errors)
        if errors and not self._made(intent):
            raise errors[0]

    async def _give_names(self, count: int, intent: str) -> list[str]:
        """Take names that were never used, and write them down before anything bears them."""
        now = self._clock.now()
        requests, names = self._requests.name(count, intent, now)
        self._expected.update(dict.fromkeys(names, now))
        if names:
            try:
                await self._put(requests.of(intent, now))
            except ProviderError:
                for name in names:
                    del self._expected[name]
                    await self._settle(name, Fate.FAILED)
                raise
        return names

    def _room(self, count: int) -> int:
        if self._config.max_size is None:
            return count
        present = {name for name, each in self._listing.instances.items() if each.state.state is not State.DELETED}
        return max(0, min(count, self._config.max_size - len(present | self._expected.keys())))

    async def _create(self, name: str, intent: str, errors: list[ProviderError]) -> None:
        """Have one instance made; what comes of it is known in the end, and nothing is left of a failure."""
        async with self._limiter:
            try:
                env = {"FLEETING_INTENT": intent}
                await self._program.run("create", name, limit=self._config.create_timeout, env=env)
            except ProviderError as error:
                log.warning("create_failed", extra={"instance": name, "error": str(error)})
                errors.append(error)
                await self._clear_away(name, Fate.FAILED)
            else:
                if self._requests.fate(name) is Fate.DOOMED:
                    await self._clear_away(name, Fate.GONE)
                else:
                    await self._settle(name, Fate.MADE)

    async def _clear_away(self, name: str, fate: Fate) -> None:
        """Destroy what was only half made, or is not wanted any more; if that fails, it is shown as failed."""
        try:
            await self._destroy(name, fate)
        except ProviderError as error:
            log.warning("destroy_failed", extra={"instance": name, "error": str(error)})
            await self._settle(name, Fate.LEFT)

    def _note(self, errors: Sequence[ProviderError]) -> None:
        """Remember why less came than was asked for, each kind of reason once, with when it was first met."""
        since = {problem.kind: problem.since for problem in self._problems}
        messages: dict[ProblemKind, str] = {}
        for error in errors:
            messages.setdefault(kind_of(error), str(error))
        now = self._clock.now()
        self._problems = tuple(
            Problem(kind=kind, message=message, since=since.get(kind, now)) for kind, message in messages.items()
        )

    # --- destroying --------------------------------------------------------------------------------------

    async def _remove(self, name: str, errors: dict[str, ProviderError]) -> None:
        """Have one instance destroyed, now or once it is made."""
        try:
            if self._requests.fate(name) in UNSETTLED:
                await self._settle(name, Fate.DOOMED)
            elif name in self._destroying:
                raise ProviderError(f"{name} is already being destroyed")
            elif is_name(name):
                async with self._limiter:
                    was_made = self._requests.fate(name) in (Fate.MADE, Fate.GONE)
                    await self._destroy(name, Fate.GONE if was_made else Fate.FAILED)
        except ProviderError as error:
            log.warning("destroy_failed", extra={"instance": name, "error": str(error)})
            errors[name] = error

    async def _destroy(self, name: str, fate: Fate) -> None:
        """Run ``destroy``; that there is no such instance is what was asked for."""
        self._destroying.add(name)
        try:
            await self._program.run("destroy", name, limit=self._config.destroy_timeout)
        except NoSuchThing:
            pass
        finally:
            self._destroying.discard(name)
        self._expected.pop(name, None)
        await self._settle(name, fate)

    # --- marking -----------------------------------------------------------------------------------------

    async def _write_mark(self, until: float) -> None:
        await self._program.run("mark", str(max(0, round(until))), limit=self._config.list_timeout)

    async def _erase_marks(self, owners: Sequence[str]) -> None:
        for owner in owners:
            with suppress(NoSuchThing):
                await self._program.run("unmark", owner, limit=self._config.list_timeout)

    # --- remembering -------------------------------------------------------------------------------------

    async def _settle(self, name: str, fate: Fate) -> None:
        """Note what became of a name; if it cannot be written, the next manager takes it for unfinished."""
        found = self._requests.find(name)
        if found is None:
            return
        request, number = found
        try:
            await self._put(request.settle(number, fate))
        except ProviderError as error:
            log.error("record_failed", extra={"instance": name, "error": str(error)})  # noqa: TRY400  (expected)

    async def _replace(self, requests: Requests) -> None:
        old, self._requests = self._requests, requests
        if requests != old:
            await self._offload(self._store.replace, old, requests)

    async def _put(self, request: Request) -> None:
        self._requests = self._requests.put(request)
        await self._offload(self._store.write, request)


def _where(program: str) -> str:
    """Say where a program was looked for."""
    if "/" not in program:
        return "on the PATH"
    return "here" if Path(program).is_absolute() else f"in {Path.cwd()}"


def _read_key(path: str) -> str:
    try:
        file = Path(path).expanduser()
        if not file.is_file() and file.exists():  # a pipe or a device might never come to an end
            raise ProviderError(plain(f"key_path {path} is not a file"))
        return file.read_text()
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: no such user; ValueError: it is no text
        why = getattr(error, "strerror", None) or "it is not a text file"
        raise ProviderError(plain(f"key_path {path} cannot be read: {why}")) from error
