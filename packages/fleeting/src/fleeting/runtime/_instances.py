"""What is done on single instances: connecting, the readiness steps, heartbeats, clean-ups, looks for notices."""

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING

import anyio
from attrs import define, field, frozen

from fleeting._durations import format_duration
from fleeting._errors import FleetingError, LoginRejected, ProviderError, Unreachable
from fleeting._protocols import Connection, InstanceGroup
from fleeting._setting_command import SettingCommand
from fleeting._types import Clock, ConnectInfo, ConnectorConfig
from fleeting.connectors import overridden
from fleeting.core import messages
from fleeting.runtime._bounded import Bounded
from fleeting.runtime._calls import Calls
from fleeting.runtime._outcomes import READ_TIMEOUT, class_of, log, retry_after, words
from fleeting.runtime._probes import NoticeProbes

if TYPE_CHECKING:  # importing anyio.abc costs 20 ms more than all that a bare ``import fleeting`` needs of anyio
    from anyio.abc import TaskGroup

PREPARES = 200
"""Instances of a pool that are made ready at once. Each holds a connection, with a thread for some connectors; more at
once make all of them slower, and let each run into its time limits."""

HEARTBEATS = 200
"""Heartbeats of a pool at once: enough for 10,000 instances a minute while every tenth does not answer for 10 s."""

CLEAN_UPS = 200
"""Slots of a pool that are cleaned at once, each over a connection."""

Dial = Callable[[ConnectInfo, ConnectorConfig], AbstractAsyncContextManager[Connection]]
ReadyHook = Callable[[ConnectInfo], Awaitable[None]]
"""The caller's own last readiness step; raising `ConnectError` replaces the instance, but for `LoginRejected`, after
which all steps are tried again until ``instance_ready_timeout`` is over."""


@frozen(kw_only=True)
class Upkeep:
    """How instances are made ready and looked after."""

    ready_command: str | None = None
    ready_hook: ReadyHook | None = None
    heartbeat_command: str | None = None
    heartbeat_timeout: float = 10.0
    """Seconds, the command included."""

    notice_interval: float = 10.0
    """Seconds between two looks for notices on an instance."""


@define(eq=False)
class InstanceCalls:
    """What is asked of the instances of one group; each kind of call for so many of them at once."""

    _group: InstanceGroup
    _pool: str
    _connector: ConnectorConfig
    _dial: Dial
    _clock: Clock
    _upkeep: Upkeep = field(factory=Upkeep)
    _failures: Counter[tuple[str, str]] = field(factory=Counter)
    """Of the group's driver, see there."""

    _given_calls: Calls | None = None
    """None: nobody wants to know of them."""

    _calls: Calls = field(init=False)

    _feed: Callable[[messages.Fact], None] = field(init=False)
    _prepares: Bounded = field(init=False)
    _heartbeats: Bounded = field(init=False)
    _probes: NoticeProbes | None = field(default=None, init=False)
    _cleaning: "anyio.CapacityLimiter" = field(init=False)
    _cleanings: dict[str, set["anyio.CancelScope"]] = field(factory=dict, init=False)
    """The clean-ups under way, by instance."""

    _infos: dict[str, ConnectInfo] = field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        """Report calls to nobody, if that is so."""
        self._calls = self._given_calls or Calls(self._pool, self._clock)

    def start(self, tasks: "TaskGroup", feed: Callable[[messages.Fact], None], notice_probe: str | None) -> None:
        """From now on calls are made: in *tasks*, their outcomes given to *feed*. None: no notices are looked for."""
        self._feed = feed
        self._cleaning = anyio.CapacityLimiter(CLEAN_UPS)
        self._prepares = Bounded(self._prepare, PREPARES, tasks, self._note_prepare, f"prepare {self._pool}")
        self._heartbeats = Bounded(
            self._heartbeat,
            HEARTBEATS,
            tasks,
            feed,
            f"heartbeats of {self._pool}",
            timeout=self._upkeep.heartbeat_timeout,
            late=self._heartbeat_late,
        )
        if notice_probe is not None:
            interval = self._upkeep.notice_interval
            self._probes = NoticeProbes(self._connected, notice_probe, interval, self._pool, self._clock, feed)
            self._probes.start(tasks)

    def prepare(self, instance: str) -> None:
        """Have it made ready."""
        self._prepares.add(instance)

    def heartbeat(self, instance: str) -> None:
        """Have it looked at."""
        self._heartbeats.add(instance)

    def forget(self, instance: str) -> None:
        """Stop what is under way for the instance."""
        self._infos.pop(instance, None)
        self._prepares.forget(instance)
        self._heartbeats.forget(instance)
        if self._probes is not None:
            self._probes.forget(instance)
        for scope in self._cleanings.pop(instance, set()):
            scope.cancel()

    # --- connecting --------------------------------------------------------------------------------------

    async def connect_info(self, instance: str) -> ConnectInfo:
        """How to connect, fetched once and again when it has expired, with the user's overrides."""
        info = self._infos.get(instance)
        if info is None or (info.expires_at is not None and info.expires_at <= self._clock.now()):
            with self._calls.made("connect_info", instance=instance), anyio.fail_after(READ_TIMEOUT):
                info = await overridden(await self._group.connect_info(instance), self._connector)
            self._infos[instance] = info
        return info

    def dial(self, info: ConnectInfo) -> AbstractAsyncContextManager[Connection]:
        """Connect to the instance whose `connect_info` this is."""
        return self._dial(info, self._connector)

    @asynccontextmanager
    async def _connected(self, instance: str) -> AsyncIterator[Connection]:
        async with self.dial(await self.connect_info(instance)) as connection:
            yield connection

    # --- cleaning ----------------------------------------------------------------------------------------

    async def clean(
        self,
        instance: str,
        command: str | None,
        hook: ReadyHook | None,
        *,
        env: Mapping[str, str],
        timeout: float,
    ) -> str:
        """Run a command on an instance and then a step of the caller's own, within so many seconds.

        Returns:
            What went wrong; empty if nothing did.
        """
        failure = "the instance is being removed"
        with anyio.CancelScope() as scope:
            self._cleanings.setdefault(instance, set()).add(scope)
            try:
                async with self._cleaning:
                    failure = f"it took longer than {format_duration(timeout)}"
                    with anyio.move_on_after(timeout):
                        failure = await self._clean(instance, command, hook, env)
            finally:
                scopes = self._cleanings.get(instance, set())
                scopes.discard(scope)
                if not scopes:
                    self._cleanings.pop(instance, None)
        return failure

    async def _clean(self, instance: str, command: str | None, hook: ReadyHook | None, env: Mapping[str, str]) -> str:
        """Take both steps; returns what went wrong. An instance that cannot be reached is looked for at once."""
        try:
            with self._calls.made("clean", instance=instance):
                await self._carry_out(instance, SettingCommand("instance_cleanup_command", command), hook, env)
        except (FleetingError, OSError) as error:
            self._failures["clean", class_of(error)] += 1
            log.warning("clean_failed", extra={"pool": self._pool, "instance": instance, "error": words(error)})
            if isinstance(error, Unreachable):
                self._feed(messages.ConnectionDied(instance, words(error)))
            return words(error)
        return ""

    # --- what is fed back --------------------------------------------------------------------------------

    async def _prepare(self, instance: str) -> messages.Fact:
        """Run the readiness steps in their order."""
        try:
            command = SettingCommand("instance_ready_command", self._upkeep.ready_command)
            with self._calls.made("prepare", instance=instance):
                await self._carry_out(instance, command, self._upkeep.ready_hook)
        except (FleetingError, OSError) as error:
            final = isinstance(error, FleetingError) and not isinstance(error, ProviderError | LoginRejected)
            self._failures["prepare", class_of(error)] += 1
            log.warning("prepare_failed", extra={"pool": self._pool, "instance": instance, "error": words(error)})
            return messages.PrepareFailed(instance, words(error), final, retry_after(error))
        return messages.Prepared(instance)

    def _note_prepare(self, outcome: messages.Fact) -> None:
        """Feed it back; not called for an instance that was forgotten meanwhile, which must not be probed either."""
        if self._probes is not None and isinstance(outcome, messages.Prepared):
            self._probes.add(outcome.instance)
        self._feed(outcome)

    async def _heartbeat(self, instance: str) -> messages.Fact:
        """Ask the group, then the instance itself, whether it is healthy."""
        failure = await self._find_ill(instance)
        return self._heartbeat_failed(instance, failure) if failure else messages.HeartbeatPassed(instance)

    def _heartbeat_late(self, instance: str) -> messages.Fact:
        self._failures["heartbeat", TimeoutError.__name__] += 1
        return self._heartbeat_failed(instance, f"no answer within {format_duration(self._upkeep.heartbeat_timeout)}")

    def _heartbeat_failed(self, instance: str, failure: str) -> messages.Fact:
        log.warning("heartbeat_failed", extra={"pool": self._pool, "instance": instance, "error": failure})
        return messages.HeartbeatFailed(instance, failure)

    async def _find_ill(self, instance: str) -> str:
        """Say what is wrong with the instance; empty if nothing is."""
        try:
            with self._calls.made("heartbeat", instance=instance):
                await self._group.heartbeat(instance)
                if self._upkeep.heartbeat_command is not None:
                    command = SettingCommand("instance_heartbeat_command", self._upkeep.heartbeat_command)
                    async with self._connected(instance) as connection:
                        await command.run(connection)
        except (FleetingError, OSError) as error:
            self._failures["heartbeat", class_of(error)] += 1
            return words(error)
        return ""

    async def _carry_out(
        self, instance: str, command: SettingCommand, hook: ReadyHook | None, env: Mapping[str, str] | None = None
    ) -> None:
        """Run a command on an instance, then a step of the caller's own."""
        info = await self.connect_info(instance)
        if command.line is not None:
            async with self.dial(info) as connection:
                await command.run(connection, env)
        if hook is not None:
            await hook(info)
