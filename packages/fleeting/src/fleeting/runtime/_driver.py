"""Performs a plan's actions on one group, and feeds every outcome back as a fact.

Calls that change something run to their end whatever is cancelled around them, within a bound; calls
that only read are cancelled with their task. Only errors that the protocol names are outcomes; any
other is a defect and ends the manager.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from math import inf
from typing import TYPE_CHECKING, cast

import anyio
from attrs import define, evolve

from fleeting._durations import format_duration
from fleeting._errors import (
    CommandFailed,
    FleetingError,
    GroupRefused,
    InterfaceMismatch,
    LoginRejected,
    OutcomeUnknown,
    ProviderError,
    RateLimited,
    Unreachable,
    Unsupported,
)
from fleeting._plugins import check_interface
from fleeting._protocols import Connection, GivesNotice, InstanceGroup, MarksOwner, Suspends, Withdraws
from fleeting._setting_command import KEPT, SettingCommand
from fleeting._types import Capability, ConnectInfo, ConnectorConfig, GroupInfo, Settings
from fleeting._wording import one_line
from fleeting.connectors import overridden
from fleeting.connectors._collect import Beginning, Ending
from fleeting.core import messages
from fleeting.runtime._bounded import Bounded
from fleeting.runtime._notices import READ, ProbeOutput, parse_notices

if TYPE_CHECKING:  # importing anyio.abc costs 20 ms more than all that a bare ``import fleeting`` needs of anyio
    from anyio.abc import TaskGroup

CHANGE_TIMEOUT = 300.0
"""Seconds after which a change that the cloud never answered counts as of unknown outcome."""

READ_TIMEOUT = 120.0
"""Seconds that fetching the view or connection details may take."""

MARK_LASTS = 300.0
"""Seconds after which the mark of a manager that has died is no obstacle to another any more; renewed at half of it."""

MARK_RETRY = 10.0
"""Seconds before a mark is tried to be renewed once more that could not be."""

NOTICES_RETRY = 10.0
"""Seconds before a stream of notices that broke is opened again."""

PROBE_TIMEOUT = 10.0
"""Seconds after which a probe for notices, which ends by itself within 5, counts as failed."""

SAME_NOTICE = 1.0
"""Seconds by which two probes may differ on the end of an instance and still mean the same notice."""

LONGEST_WAIT = 3600.0
"""Seconds for which a cloud is left alone at the most, whatever it asks for: nothing else would end a wait of years."""

LOGIN_RETRY = 30.0
"""Seconds before a new instance that refused the login is tried again: its user or key may be set up late in the boot,
and a host may lock out who tries too often."""

PREPARES = 200
"""Instances of a pool that are made ready at once. Each holds a connection, with a thread for some connectors; more at
once make all of them slower, and let each run into its time limits."""

HEARTBEATS = 200
"""Heartbeats of a pool at once: enough for 10,000 instances a minute while every tenth does not answer for 10 s."""

PROBES = 50
"""Looks for notices at once in a pool: each makes a connection for a command of a second or less."""

CLEAN_UPS = 200
"""Slots of a pool that are cleaned at once, each over a connection."""

Dial = Callable[[ConnectInfo, ConnectorConfig], AbstractAsyncContextManager[Connection]]
ReadyHook = Callable[[ConnectInfo], Awaitable[None]]
"""The caller's own last readiness step; raising `ConnectError` replaces the instance, but for `LoginRejected`, after
which all steps are tried again until ``instance_ready_timeout`` is over."""

log = logging.getLogger("fleeting.provisioner")


@define
class _Probed:
    """What was heard of notices on an instance."""

    passed_on: float = inf
    """The soonest end that was passed on."""

    failing: bool = False
    """Whether the last look failed."""


class GroupDriver:
    """The shell around one group."""

    def __init__(
        self,
        group: InstanceGroup,
        *,
        pool: str,
        connector: ConnectorConfig,
        dial: Dial,
        ready_command: str | None = None,
        ready_hook: ReadyHook | None = None,
        heartbeat_command: str | None = None,
        heartbeat_timeout: float = 10.0,
        notice_interval: float = 10.0,
    ) -> None:
        """Prepare; nothing is called yet."""
        self._notice_interval = notice_interval
        self.group = group
        self.pool = pool
        self.connector = connector
        self.dial = dial
        self._ready_command = ready_command
        self._ready_hook = ready_hook
        self._heartbeat_command = heartbeat_command
        self._heartbeat_timeout = heartbeat_timeout
        self._infos: dict[str, ConnectInfo] = {}
        self._prepares = Bounded(self._prepare, PREPARES)
        self._heartbeats = Bounded(self._heartbeat, HEARTBEATS, timeout=heartbeat_timeout, late=self._heartbeat_late)
        self._probes = Bounded(self._probe, PROBES)
        self._probed: dict[str, _Probed] = {}
        """What was heard of the instances on which notices are looked for."""

        self._cleanings: dict[str, set[anyio.CancelScope]] = {}
        """The clean-ups under way, by instance."""

        self._changing = 0
        self._disowned = ""
        """Why nothing is changed: the group is not known to be ours."""

        self._marked_until = -inf

    async def open(self, settings: Settings) -> GroupInfo:
        """Open the group and check that its plugin fits."""
        self._clock = settings.clock
        self._observing = settings.observe_only
        info = await self.group.init(settings)
        try:
            check_interface(type(self.group).__module__, info.interface_version)
            _check_claims(self.group, info)
        except (InterfaceMismatch, Unsupported):
            await self.group.shutdown()
            raise
        self.info = info
        for advice in info.advice:
            log.warning("group_advice", extra={"group": info.identity, "advice": advice})
        return info

    @property
    def _marks(self) -> bool:
        """Whether the group carries a mark of ours."""
        return Capability.OWNER_MARK in self.info.capabilities and not self._observing

    async def mark(self) -> None:
        """Put our mark on the group, where that is possible.

        Raises:
            GroupRefused: Somebody else manages it.
            ProviderError: Whether it is ours cannot be found out.
        """
        if self._marks:
            now = self._clock.now()
            left = self._marked_until - now if self._is_marked else READ_TIMEOUT
            try:
                with anyio.fail_after(min(left, READ_TIMEOUT)):
                    await cast("MarksOwner", self.group).mark_owner(now + MARK_LASTS)
            except OSError as error:
                why = "it did not answer" if isinstance(error, TimeoutError) else _words(error)
                raise ProviderError(f"{self.info.identity} could not be marked as ours: {why}") from error
            self._marked_until = now + MARK_LASTS

    @property
    def _is_marked(self) -> bool:
        """Whether a mark of ours that was put on the group has not expired."""
        return self._clock.now() < self._marked_until

    async def unmark(self) -> None:
        """Take our mark away, if it is there."""
        if self._marks:
            await cast("MarksOwner", self.group).mark_owner(None)

    def start(self, tasks: "TaskGroup", feed: Callable[[messages.Fact], None]) -> None:
        """From now on actions may be performed: in *tasks*, their outcomes given to *feed*."""
        self._tasks = tasks
        self._feed = feed
        self._unchanging = anyio.Event()
        self._cleaning = anyio.CapacityLimiter(CLEAN_UPS)
        self._prepares.start(tasks, feed, f"prepare {self.pool}")
        self._heartbeats.start(tasks, feed, f"heartbeats of {self.pool}")
        self._probes.start(tasks, feed, f"notices of {self.pool}")
        if self.info.notice_probe is not None and not self._observing:
            tasks.start_soon(self._probe_in_rounds, name=f"rounds of {self.pool}")
        if self._marks:
            tasks.start_soon(self._keep_marked, name=f"mark on {self.pool}")
        gives_notice = Capability.NOTICES in self.info.capabilities and isinstance(self.group, GivesNotice)
        if gives_notice and not self._observing:  # the cloud may give each notice only once
            tasks.start_soon(self._listen, name=f"notices of {self.pool}")

    async def quiesce(self, timeout: float) -> None:
        """Wait until no change is under way, at most *timeout* seconds."""
        with anyio.move_on_after(timeout):
            while self._changing:
                await self._unchanging.wait()

    async def close(self) -> None:
        """Release what `open` took."""
        await self.group.shutdown()

    def perform(self, action: messages.Action) -> None:
        """Start the action and return; its outcome comes as a fact."""
        match action:
            case messages.Update():
                self._tasks.start_soon(self._update, name=f"update {self.pool}")
            case messages.Increase():
                self._start_change(self._increase, action)
            case messages.Decrease():
                self._start_change(self._decrease, action)
            case messages.Withdraw():
                self._start_change(self._withdraw, action)
            case messages.Suspend():
                self._start_change(self._suspend, action)
            case messages.Resume():
                self._start_change(self._resume, action)
            case messages.Prepare(_, instance):
                self._prepares.add(instance)
            case messages.Heartbeat(_, instance):
                self._heartbeats.add(instance)
            case messages.Forget(_, instance):
                self._forget(instance)

    async def connect_info(self, instance: str) -> ConnectInfo:
        """How to connect, fetched once and again when it has expired, with the user's overrides."""
        info = self._infos.get(instance)
        if info is None or (info.expires_at is not None and info.expires_at <= self._clock.now()):
            with anyio.fail_after(READ_TIMEOUT):
                info = await overridden(await self.group.connect_info(instance), self.connector)
            self._infos[instance] = info
        return info

    # --- reading -----------------------------------------------------------------------------------------

    async def _update(self) -> None:
        """Fetch the view."""
        try:
            with anyio.fail_after(READ_TIMEOUT):
                observation = await self.group.update()
        except (ProviderError, OSError) as error:
            log.warning("update_failed", extra={"pool": self.pool, "error": _words(error)})
            self._feed(messages.UpdateFailed(_words(error), _retry_after(error)))
        else:
            self._feed(messages.Updated(observation))

    async def _prepare(self, instance: str) -> messages.Fact:
        """Run the readiness steps in their order."""
        try:
            command = SettingCommand("instance_ready_command", self._ready_command)
            await self._carry_out(instance, command, self._ready_hook)
        except (FleetingError, OSError) as error:
            final = isinstance(error, FleetingError) and not isinstance(error, ProviderError | LoginRejected)
            log.warning("prepare_failed", extra={"pool": self.pool, "instance": instance, "error": _words(error)})
            return messages.PrepareFailed(instance, _words(error), final, _retry_after(error))
        if self.info.notice_probe is not None:
            self._probed[instance] = _Probed()
            self._probes.add(instance)
        return messages.Prepared(instance)

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
            await self._carry_out(instance, SettingCommand("instance_cleanup_command", command), hook, env)
        except (FleetingError, OSError) as error:
            log.warning("clean_failed", extra={"pool": self.pool, "instance": instance, "error": _words(error)})
            if isinstance(error, Unreachable):
                self._feed(messages.ConnectionDied(instance, _words(error)))
            return _words(error)
        return ""

    async def _carry_out(
        self, instance: str, command: SettingCommand, hook: ReadyHook | None, env: Mapping[str, str] | None = None
    ) -> None:
        """Run a command on an instance, then a step of the caller's own."""
        info = await self.connect_info(instance)
        if command.line is not None:
            async with self.dial(info, self.connector) as connection:
                await command.run(connection, env)
        if hook is not None:
            await hook(info)

    async def _heartbeat(self, instance: str) -> messages.Fact:
        """Ask the group, then the instance itself, whether it is healthy."""
        failure = await self._find_ill(instance)
        return self._heartbeat_failed(instance, failure) if failure else messages.HeartbeatPassed(instance)

    def _heartbeat_late(self, instance: str) -> messages.Fact:
        return self._heartbeat_failed(instance, f"no answer within {format_duration(self._heartbeat_timeout)}")

    def _heartbeat_failed(self, instance: str, failure: str) -> messages.Fact:
        log.warning("heartbeat_failed", extra={"pool": self.pool, "instance": instance, "error": failure})
        return messages.HeartbeatFailed(instance, failure)

    async def _find_ill(self, instance: str) -> str:
        """Say what is wrong with the instance; empty if nothing is."""
        try:
            await self.group.heartbeat(instance)
            if self._heartbeat_command is not None:
                command = SettingCommand("instance_heartbeat_command", self._heartbeat_command)
                async with self.dial(await self.connect_info(instance), self.connector) as connection:
                    await command.run(connection)
        except (FleetingError, OSError) as error:
            return _words(error)
        return ""

    async def _probe_in_rounds(self) -> None:
        """Look for notices on every instance that is ready, again and again."""
        while True:
            await anyio.sleep(self._notice_interval)
            for instance in self._probed:
                self._probes.add(instance)

    async def _probe(self, instance: str) -> None:
        """Look for notices on the instance, over a connection for just that; that this fails is no news of it."""
        probed = self._probed[instance]
        try:
            async with self.dial(await self.connect_info(instance), self.connector) as connection:
                heard = await self._run_probe(connection)
            probed.passed_on = self._pass_on(instance, heard, probed.passed_on)
            if heard.strange:
                raise ProviderError(f"the probe printed {heard.strange[0][:100]!r}, not KIND SECONDS")
        except (FleetingError, OSError) as error:
            if not probed.failing:
                extra = {"pool": self.pool, "instance": instance, "error": _words(error)}
                log.warning("notice_probe_failed", extra=extra)
            probed.failing = True
        else:
            probed.failing = False

    async def _run_probe(self, connection: Connection) -> ProbeOutput:
        """Run the probe once."""
        said, printed = Ending(KEPT), Beginning(READ + 1)
        with anyio.fail_after(PROBE_TIMEOUT):
            completed = await connection.run(self.info.notice_probe or "", stdout=printed, stderr=said)
        if not completed.ok:
            raise CommandFailed("notice_probe", evolve(completed, stderr=bytes(said.data)))
        return parse_notices(bytes(printed.data))

    def _pass_on(self, instance: str, heard: ProbeOutput, before: float) -> float:
        """Pass on the soonest end that was heard of, if it comes before *before*; returns the soonest passed on."""
        if not heard.notices:
            return before
        kind, seconds = min(heard.notices, key=lambda each: each.seconds)
        deadline = self._clock.now() + seconds
        if deadline >= before - SAME_NOTICE:
            return before
        self._feed(messages.Noticed(instance, deadline, kind))
        return deadline

    async def _keep_marked(self) -> None:
        """Renew our mark. When it is lost, or may be, nothing is changed until we have it again."""
        wait = MARK_LASTS / 2
        while True:
            await anyio.sleep(wait)
            wait = MARK_LASTS / 2
            self._heed_expiry()
            try:
                await self.mark()
            except GroupRefused as error:
                self._disown(f"the group is not ours any more: {error}")
            except ProviderError as error:
                log.warning("mark_failed", extra={"pool": self.pool, "error": _words(error)})
                left = self._marked_until - self._clock.now()
                wait = min(MARK_RETRY, left) if left > 0 else MARK_RETRY
                if left <= 0:
                    self._disown(f"nobody knows whether the group is still ours: {_words(error)}")
            else:
                self._disown("")

    def _heed_expiry(self) -> None:
        """See that nothing is changed once our mark has expired: others may have come."""
        if self._marks and not (self._disowned or self._is_marked):
            self._disown("nobody knows whether the group is still ours: our mark on it has expired")

    def _disown(self, error: str) -> None:
        """Note whether the group is ours, and report a change."""
        if error != self._disowned:
            self._disowned = error
            if error:
                log.error("group_lost", extra={"pool": self.pool, "error": error})
            else:
                log.warning("group_regained", extra={"pool": self.pool})
            self._feed(messages.Disowned(error))

    async def _listen(self) -> None:
        """Pass on notices as they come."""
        group = self.group
        while isinstance(group, GivesNotice):
            try:
                async for notice in group.notices():
                    self._feed(messages.Noticed(notice.instance, notice.deadline, notice.kind))
            except (ProviderError, OSError) as error:
                log.warning("notices_failed", extra={"pool": self.pool, "error": _words(error)})
            await anyio.sleep(NOTICES_RETRY)

    def _forget(self, instance: str) -> None:
        """Stop what is under way for the instance."""
        self._infos.pop(instance, None)
        self._probed.pop(instance, None)
        for calls in (self._prepares, self._heartbeats, self._probes):
            calls.forget(instance)
        for scope in self._cleanings.pop(instance, set()):
            scope.cancel()

    # --- changing ----------------------------------------------------------------------------------------

    def _start_change(self, change: Callable[..., Awaitable[None]], action: messages.Action) -> None:
        """Run a change to its end in the background, and count it until then; refuse it if the group is not ours."""
        self._heed_expiry()  # a process that was stopped for a while comes to this before it has renewed its mark
        if self._disowned:
            self._feed(_refusal(action, self._disowned))
            return
        self._changing += 1
        self._tasks.start_soon(self._run_change, change, action, name=f"{type(action).__name__} {self.pool}")

    async def _run_change(self, change: Callable[..., Awaitable[None]], action: messages.Action) -> None:
        """No cancellation ends a change half-way; only its bound does."""
        try:
            with anyio.CancelScope(shield=True):
                await change(action)
        finally:
            self._changing -= 1
            if not self._changing:
                self._unchanging.set()
                self._unchanging = anyio.Event()

    async def _increase(self, action: messages.Increase) -> None:
        """Ask for more."""
        try:
            with anyio.fail_after(CHANGE_TIMEOUT):
                accepted = await self.group.increase(action.count, intent=action.intent)
        except (OutcomeUnknown, OSError) as error:
            self._increase_failed(action, error, outcome_known=False)
        except ProviderError as error:
            self._increase_failed(action, error, outcome_known=True)
        else:
            log.info("increased", extra={"pool": self.pool, "asked": action.count, "accepted": accepted})
            self._feed(messages.Increased(action.intent, accepted))

    def _increase_failed(self, action: messages.Increase, error: Exception, *, outcome_known: bool) -> None:
        """Feed the failure back."""
        log.warning("increase_failed", extra={"pool": self.pool, "asked": action.count, "error": _words(error)})
        self._feed(messages.IncreaseFailed(action.intent, _words(error), outcome_known, _retry_after(error)))

    async def _decrease(self, action: messages.Decrease) -> None:
        """Ask for deletions."""
        asked = action.instances
        try:
            with anyio.fail_after(CHANGE_TIMEOUT):
                accepted = await self.group.decrease(asked)
        except (ProviderError, OSError) as error:
            log.warning("decrease_failed", extra={"pool": self.pool, "instances": asked, "error": _words(error)})
            self._feed(messages.DecreaseFailed(asked, _words(error), _retry_after(error)))
        else:
            log.info("decreased", extra={"pool": self.pool, "instances": asked, "accepted": list(accepted)})
            self._feed(messages.Decreased(asked, tuple(accepted)))

    async def _withdraw(self, action: messages.Withdraw) -> None:
        """Take back unfilled requests; if that fails they stay counted until they appear or expire."""
        taken = 0
        group = self.group
        try:
            if isinstance(group, Withdraws):
                with anyio.fail_after(CHANGE_TIMEOUT):
                    taken = await group.withdraw(action.count)
        except (ProviderError, OSError) as error:
            log.warning("withdraw_failed", extra={"pool": self.pool, "error": _words(error)})
        self._feed(messages.Withdrawn(action.count, taken))

    async def _suspend(self, action: messages.Suspend) -> None:
        """Have instances suspended."""
        asked = action.instances
        try:
            with anyio.fail_after(CHANGE_TIMEOUT):
                accepted = await cast("Suspends", self.group).suspend(asked)
        except (ProviderError, OSError) as error:
            log.warning("suspend_failed", extra={"pool": self.pool, "instances": asked, "error": _words(error)})
            self._feed(messages.SuspendFailed(asked, _words(error), _retry_after(error)))
        else:
            log.info("suspended", extra={"pool": self.pool, "instances": asked, "accepted": list(accepted)})
            self._feed(messages.SuspendAccepted(asked, tuple(accepted)))

    async def _resume(self, action: messages.Resume) -> None:
        """Have suspended instances run again."""
        asked = action.instances
        try:
            with anyio.fail_after(CHANGE_TIMEOUT):
                accepted = await cast("Suspends", self.group).resume(asked)
        except (ProviderError, OSError) as error:
            log.warning("resume_failed", extra={"pool": self.pool, "instances": asked, "error": _words(error)})
            self._feed(messages.ResumeFailed(asked, _words(error), _retry_after(error)))
        else:
            log.info("resumed", extra={"pool": self.pool, "instances": asked, "accepted": list(accepted)})
            self._feed(messages.ResumeAccepted(asked, tuple(accepted)))


def _check_claims(group: InstanceGroup, info: GroupInfo) -> None:
    """See that the group has what it says it can do.

    Raises:
        Unsupported: It has not.
    """
    needs = {Capability.SUSPEND_RESUME: Suspends, Capability.OWNER_MARK: MarksOwner, Capability.NOTICES: GivesNotice}
    for capability in info.capabilities & needs.keys():
        probed = capability is Capability.NOTICES and info.notice_probe is not None
        if not (probed or isinstance(group, needs[capability])):
            raise Unsupported(
                f"{info.identity} claims {capability} but lacks the methods of {needs[capability].__name__}"
            )


def _refusal(action: messages.Action, why: str) -> messages.Fact:
    """What becomes of a change that is not begun."""
    match action:
        case messages.Increase(_, intent):
            return messages.IncreaseFailed(intent, why)
        case messages.Decrease(_, instances):
            return messages.DecreaseFailed(instances, why)
        case messages.Suspend(_, instances):
            return messages.SuspendFailed(instances, why)
        case messages.Resume(_, instances):
            return messages.ResumeFailed(instances, why)
        case messages.Withdraw(_, count):
            return messages.Withdrawn(count, 0)
    raise AssertionError(f"{action} changes nothing")


def _words(error: Exception) -> str:
    """What went wrong, in one line, whatever a plugin quotes; some errors say nothing but their names."""
    return one_line(str(error)) or type(error).__name__


def _retry_after(error: Exception) -> float | None:
    """The cloud's own advice, if it gave any that can be taken; ours for a login that may be let in later."""
    if isinstance(error, LoginRejected):
        return LOGIN_RETRY
    advice = error.retry_after if isinstance(error, RateLimited) else None
    return min(advice, LONGEST_WAIT) if advice is not None and advice >= 0 else None  # what is no number is not
