"""The `static` group: a fixed list of hosts, taken and given back."""

import socket
from collections import Counter
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from errno import EINVAL
from itertools import islice
from pathlib import Path

import anyio
from anyio.lowlevel import checkpoint
from attrs import define, evolve, field

from fleeting import (
    Capability,
    ConnectError,
    ConnectInfo,
    Connection,
    FleetingError,
    GroupInfo,
    GroupRefused,
    InstanceNotFound,
    LoginRejected,
    Observation,
    Problem,
    ProblemKind,
    ProviderError,
    Settings,
    dial,
)
from fleeting.connectors import Beginning, overridden
from fleeting.groups.static._assignments import Assignments
from fleeting.groups.static._config import Host, StaticConfig
from fleeting.groups.static._store import Store
from fleeting.plugins import Offload, SettingCommand, format_duration, load_connector

CONTACT_TIMEOUT = 8.0
"""Seconds within which a host that is in order lets itself be connected to; less than a heartbeat may take."""

DEFAULT_PORT = 22
"""SSH's; host keys are pinned for a host's address and port, for instances come and go and the host stays."""

ANSWER_TIMEOUT = 8.0
"""The same for its answer to the simplest of commands, over a connection that may have been open before."""


@define(eq=False)
class StaticGroup:
    """Hosts that are always there; what is created and deleted is who has them.

    A host is taken only if it can be connected to. One that is given back is reset first; until that has succeeded
    its instance is shown as being deleted, and whoever manages the group asks for the deletion again.
    """

    _config: StaticConfig
    _hosts: Mapping[str, Host] = field(init=False)
    _offload: Offload = field(factory=lambda: Offload(limit=1), init=False)
    _accepted: Counter[str] = field(factory=Counter, init=False)
    """How many hosts were taken for each intent, since this manager opened the group or before."""

    _troubles: dict[str, Problem] = field(factory=dict, init=False)
    """What keeps a host from being taken, by its name."""

    _resetting: set[str] = field(factory=set, init=False)
    _growing: anyio.Lock = field(factory=anyio.Lock, init=False)
    """Held while hosts are tried and taken, so that no two requests meet at one."""

    _settings: Settings = field(init=False)
    _store: Store = field(init=False)
    _assignments: Assignments = field(init=False)

    @_hosts.default
    def _complete_hosts(self) -> Mapping[str, Host]:
        return {host.id: self._config.complete(host) for host in self._config.hosts}

    async def init(self, settings: Settings) -> GroupInfo:
        """Read which hosts are taken, and keep other managers out; or only read."""
        self._settings = settings
        for host in self._hosts.values():  # what is missing is best reported now
            load_connector(settings.connector.protocol or host.info("").protocol)
            await self._check_key(host)
        root = await self._offload(self._look_in if settings.observe_only else self._take_over, self._now())
        return GroupInfo(  # without another await: cancelled there, the store would stay locked
            identity=f"static:{socket.gethostname()}:{root}",
            max_size=len(self._hosts),
            max_size_is="the number of hosts",
            capabilities=frozenset({Capability.NAMED_CREATE}),
        )

    async def update(self) -> Observation:
        """Who has which host."""
        if self._settings.observe_only:
            await self._offload(self._look_on, self._now())
        await checkpoint()
        return Observation(self._assignments.view, tuple(self._troubles[name] for name in sorted(self._troubles)))

    async def increase(self, count: int, *, intent: str) -> int:
        """Take hosts that are free and can be reached; none for an intent that was carried out before."""
        self._settings.refuse_if_observing()
        async with self._growing:
            if intent not in self._accepted:
                reachable = await self._find_reachable(count)
                await self._offload(self._take, reachable, intent, self._now())
        return min(count, self._accepted[intent])

    async def decrease(self, instances: Sequence[str]) -> Sequence[str]:
        """Give hosts back, each after its reset; those whose reset fails are not accepted yet."""
        self._settings.refuse_if_observing()
        await self._offload(self._give_back, instances, self._now())
        async with anyio.create_task_group() as resets:
            for instance in instances:
                resets.start_soon(self._reset, instance)
        return [instance for instance in instances if self._assignments.host_of(instance) is None]

    async def connect_info(self, instance: str) -> ConnectInfo:
        """What is configured for the instance's host."""
        return await self._info(self._find(instance), instance)

    async def heartbeat(self, instance: str) -> None:
        """Return if the host can be connected to, and answers."""
        name = self._find(instance)
        try:
            await self._contact(name)
        except ConnectError as error:
            raise ProviderError(_about(name, str(error))) from error

    async def hosts(self) -> Sequence[ConnectInfo]:
        """All of them, taken or not."""
        return [await self._info(name, name) for name in self._hosts]

    async def shutdown(self) -> None:
        """Let the next manager have the hosts; those that are taken stay so."""
        await self._offload(self._store.close)

    # --- which host is whose, in a worker thread ---------------------------------------------------------

    def _take_over(self, now: float) -> Path:
        self._name_store()
        assignments = self._store.open().open(self._hosts.values(), now)
        try:
            self._change(assignments)
        except BaseException:
            self._store.close()
            raise
        self._accepted.update(assignments.intents)
        return self._config.root.resolve()

    def _look_in(self, now: float) -> Path:
        self._name_store()
        self._assignments = self._store.look().open(self._hosts.values(), now)
        return self._config.root.resolve()

    def _look_on(self, now: float) -> None:
        try:
            self._assignments = self._store.look().open(self._hosts.values(), now)
        except GroupRefused as error:  # it was in order when it was opened
            raise ProviderError(str(error)) from error

    def _name_store(self) -> None:
        try:
            self._store = Store(self._config.root)
        except RuntimeError as error:
            raise GroupRefused("there is no home directory for the group's state; set state_dir") from error

    def _take(self, names: Sequence[str], intent: str, now: float) -> None:
        if names:
            self._change(self._assignments.take(names, intent, now))
            self._accepted[intent] = len(names)

    def _give_back(self, instances: Sequence[str], now: float) -> None:
        names = {name for name in map(self._assignments.host_of, instances) if name is not None}
        if self._config.reset_command is None:
            self._release(names, now)
        elif names:
            self._change(self._assignments.give_back(names))

    def _release(self, names: Collection[str], now: float) -> None:
        if names:
            self._change(self._assignments.release(names, now))

    def _change(self, assignments: Assignments) -> None:
        """Write it down first: who has heard of an instance never sees its host taken by another."""
        self._store.write(assignments)
        self._assignments = assignments

    # --- reaching hosts ----------------------------------------------------------------------------------

    async def _find_reachable(self, count: int) -> list[str]:
        """Look for as many hosts as are wanted; those that were in trouble last are tried last."""
        free = iter(sorted(self._assignments.free, key=lambda name: name in self._troubles))
        found: list[str] = []
        while batch := list(islice(free, count - len(found))):
            async with anyio.create_task_group() as attempts:
                for name in batch:
                    attempts.start_soon(self._try, name, found)
        return found

    async def _try(self, name: str, found: list[str]) -> None:
        try:
            await self._contact(name)
        except ConnectError as error:
            self._note(name, f"{name} cannot be reached and is not used: {error}", error)
        else:
            self._troubles.pop(name, None)
            found.append(name)

    async def _contact(self, name: str) -> None:
        """Connect, and have it answer: a connection that is kept open does not yet show that the host is there.

        Raises:
            ConnectError: Says what is wrong.
        """
        async with self._connected(name, CONTACT_TIMEOUT) as connection:
            try:
                with anyio.fail_after(ANSWER_TIMEOUT):
                    await connection.run("exit 0", stdout=Beginning(0), stderr=Beginning(0))
            except TimeoutError as error:
                raise ConnectError(f"it did not answer within {format_duration(ANSWER_TIMEOUT)}") from error

    async def _reset(self, instance: str) -> None:
        """Run the command on a host that was given back, and have it free; or note what is wrong."""
        name = self._assignments.host_of(instance)
        if name is None or name in self._resetting:
            return
        self._resetting.add(name)
        try:
            await self._run_reset(name)
            await self._offload(self._release, [name], self._now())
        except (ConnectError, ProviderError) as error:
            self._note(name, f"{name} is not used before it is reset, and that failed: {error}", error)
        else:
            self._troubles.pop(name, None)
        finally:
            self._resetting.discard(name)

    async def _run_reset(self, name: str) -> None:
        command, timeout = SettingCommand("reset_command", self._config.reset_command), self._config.reset_timeout
        try:
            with anyio.fail_after(timeout):
                async with self._connected(name, timeout) as connection:
                    await command.run(connection)
        except TimeoutError as error:
            raise ConnectError(f"it took longer than {format_duration(timeout)}") from error

    @asynccontextmanager
    async def _connected(self, name: str, timeout: float) -> AsyncIterator[Connection]:
        """Connect for our own purposes: as the host, whoever has it."""
        config = self._settings.connector
        try:
            info = await overridden(await self._info(name, name), config)
        except OSError as error:
            raise ConnectError(f"a key cannot be read: {error.filename}: {error.strerror}") from error
        async with dial(info, evolve(config, timeout=min(timeout, config.timeout))) as connection:
            yield connection

    async def _info(self, name: str, instance: str) -> ConnectInfo:
        host = self._hosts[name]
        key = None if host.key_path is None else await self._offload(_read_key, host.key_path)
        port = self._settings.connector.protocol_port or host.port
        return evolve(host.info(instance), key=key, host_key_alias=f"{host.address}:{port or DEFAULT_PORT}")

    async def _check_key(self, host: Host) -> None:
        try:
            await self._info(host.id, host.id)
        except OSError as error:
            raise GroupRefused(
                f"the key of host {host.id} cannot be read: {error.filename}: {error.strerror}; correct key_path"
            ) from error

    def _find(self, instance: str) -> str:
        """Name the host that the instance is."""
        name = self._assignments.host_of(instance)
        if name is None:
            raise InstanceNotFound(instance)
        return name

    def _note(self, name: str, message: str, error: FleetingError) -> None:
        """Remember what keeps the host from being taken, since when it does."""
        kind = ProblemKind.AUTHORISATION if isinstance(error, LoginRejected) else ProblemKind.OTHER
        before = self._troubles.get(name)
        since = before.since if before is not None else self._now()
        self._troubles[name] = Problem(kind=kind, message=message, since=since, offering=name)

    def _now(self) -> float:
        return self._settings.clock.now()


def _about(name: str, trouble: str) -> str:
    """Say which host cannot be reached, unless its connector has; SSH's does."""
    return trouble if trouble.startswith(f"{name} ") else f"{name} cannot be reached: {trouble}"


def _read_key(path: str) -> str:
    try:
        return Path(path).expanduser().absolute().read_text()  # whoever reads the error sees relative to what
    except (UnicodeDecodeError, RuntimeError) as error:  # the latter if there is no such user
        raise OSError(EINVAL, "it is not a text file", path) from error
