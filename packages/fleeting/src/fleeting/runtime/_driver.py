"""Performs a plan's actions on one group, and feeds every outcome back as a fact.

Calls that change something run to their end whatever is cancelled around them, within a bound; calls
that only read are cancelled with their task. Only errors that the protocol names are outcomes; any
other is a defect and ends the manager.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

import anyio
from attrs import define, field

from fleeting._errors import InterfaceMismatch, OutcomeUnknown, ProviderError, Unsupported
from fleeting._plugins import check_interface
from fleeting._protocols import GivesNotice, InstanceGroup, MarksOwner, Suspends, Withdraws
from fleeting._types import Capability, ConnectorConfig, GroupInfo, Settings
from fleeting.core import messages
from fleeting.runtime._calls import Calls, OnCall
from fleeting.runtime._instances import Dial, InstanceCalls, Upkeep
from fleeting.runtime._mark import OwnerMark
from fleeting.runtime._outcomes import READ_TIMEOUT, class_of, log, retry_after, words

if TYPE_CHECKING:  # importing anyio.abc costs 20 ms more than all that a bare ``import fleeting`` needs of anyio
    from anyio.abc import TaskGroup

CHANGE_TIMEOUT = 300.0
"""Seconds after which a change that the cloud never answered counts as of unknown outcome."""

NOTICES_RETRY = 10.0
"""Seconds before a stream of notices that broke is opened again."""

_Ids = tuple[str, ...]
_Accepted = Callable[[_Ids, _Ids], messages.Fact]
_Failed = Callable[[_Ids, str, float | None], messages.Fact]
_TO_INSTANCES: Final[Mapping[type, tuple[str, _Accepted, _Failed]]] = {
    messages.Decrease: ("decrease", messages.Decreased, messages.DecreaseFailed),
    messages.Suspend: ("suspend", messages.SuspendAccepted, messages.SuspendFailed),
    messages.Resume: ("resume", messages.ResumeAccepted, messages.ResumeFailed),
}
"""What can be asked for several instances at once: the group's method, and what is fed back."""

_LOGS: Final = {
    "decrease": (partial(log.info, "decreased"), partial(log.warning, "decrease_failed")),
    "suspend": (partial(log.info, "suspended"), partial(log.warning, "suspend_failed")),
    "resume": (partial(log.info, "resumed"), partial(log.warning, "resume_failed")),
}
"""What logs that it was accepted, and that it failed."""


@define(eq=False)
class GroupDriver:
    """The runtime's side of one group; `open` makes its parts."""

    group: InstanceGroup
    pool: str = field(kw_only=True)
    connector: ConnectorConfig = field(kw_only=True)
    _dial: Dial = field(kw_only=True)
    _upkeep: Upkeep = field(factory=Upkeep, kw_only=True)
    _on_call: OnCall | None = field(default=None, kw_only=True)
    """Hears of each call to the group and its instances."""

    info: GroupInfo = field(init=False)
    failures: Counter[tuple[str, str]] = field(factory=Counter, init=False)
    """How many calls to the group and its instances failed, by the call and the error's class."""

    calls: InstanceCalls = field(init=False)
    mark: OwnerMark = field(init=False)
    _calls: Calls = field(init=False)
    _observing: bool = field(init=False)
    _tasks: "TaskGroup" = field(init=False)
    _feed: Callable[[messages.Fact], None] = field(init=False)
    _unchanging: "anyio.Event" = field(init=False)
    _changing: int = field(default=0, init=False)

    async def open(self, settings: Settings) -> GroupInfo:
        """Open the group and check that its plugin fits."""
        self._observing = settings.observe_only
        plugin = type(self.group).__module__.partition(".")[0]
        self._calls = Calls(self.pool, settings.clock, self._on_call, plugin)
        self.calls = InstanceCalls(
            self.group, self.pool, self.connector, self._dial, settings.clock, self._upkeep, self.failures, self._calls
        )
        info = await self.group.init(settings)
        try:
            check_interface(type(self.group).__module__, info.interface_version)
            _check_claims(self.group, info)
        except (InterfaceMismatch, Unsupported):
            await self.group.shutdown()
            raise
        self.info = info
        self._calls.identity = info.identity
        marks = Capability.OWNER_MARK in info.capabilities and not self._observing
        self.mark = OwnerMark(self.group, self.pool, info.identity, settings.clock, marks)
        for advice in info.advice:
            log.warning("group_advice", extra={"group": info.identity, "advice": advice})
        return info

    def start(self, tasks: "TaskGroup", feed: Callable[[messages.Fact], None]) -> None:
        """From now on actions may be performed: in *tasks*, their outcomes given to *feed*."""
        self._tasks = tasks
        self._feed = feed
        self._unchanging = anyio.Event()
        self.calls.start(tasks, feed, None if self._observing else self.info.notice_probe)
        self.mark.start(tasks, feed)
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
            case messages.Decrease() | messages.Suspend() | messages.Resume():
                self._start_change(self._ask_for_instances, action)
            case messages.Withdraw():
                self._start_change(self._withdraw, action)
            case messages.Prepare(_, instance):
                self.calls.prepare(instance)
            case messages.Heartbeat(_, instance):
                self.calls.heartbeat(instance)
            case messages.Forget(_, instance):
                self.calls.forget(instance)

    async def _update(self) -> None:
        """Fetch the view."""
        try:
            with self._calls.made("update") as call, anyio.fail_after(READ_TIMEOUT):
                observation = await self.group.update()
                call.accepted = len(observation.instances)
        except (ProviderError, OSError) as error:
            self.failures["update", class_of(error)] += 1
            log.warning("update_failed", extra={"pool": self.pool, "error": words(error)})
            self._feed(messages.UpdateFailed(words(error), retry_after(error)))
        else:
            self._feed(messages.Updated(observation))

    async def _listen(self) -> None:
        """Pass on notices as they come."""
        group = self.group
        while isinstance(group, GivesNotice):
            try:
                async for notice in group.notices():
                    self._feed(messages.Noticed(notice.instance, notice.deadline, notice.kind))
            except (ProviderError, OSError) as error:
                self.failures["notices", class_of(error)] += 1
                log.warning("notices_failed", extra={"pool": self.pool, "error": words(error)})
            await anyio.sleep(NOTICES_RETRY)

    # --- changing ----------------------------------------------------------------------------------------

    def _start_change(self, change: Callable[..., Awaitable[None]], action: messages.Action) -> None:
        """Run a change to its end in the background, and count it until then; refuse it if the group is not ours."""
        self.mark.heed_expiry()  # a process that was stopped for a while comes to this before it has renewed its mark
        if self.mark.disowned:
            self._feed(_refusal(action, self.mark.disowned))
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
            with self._calls.made("increase", asked=action.count) as call, anyio.fail_after(CHANGE_TIMEOUT):
                call.accepted = accepted = await self.group.increase(action.count, intent=action.intent)
        except (OutcomeUnknown, OSError) as error:
            self._increase_failed(action, error, outcome_known=False)
        except ProviderError as error:
            self._increase_failed(action, error, outcome_known=True)
        else:
            log.info("increased", extra={"pool": self.pool, "asked": action.count, "accepted": accepted})
            self._feed(messages.Increased(action.intent, accepted))

    def _increase_failed(self, action: messages.Increase, error: Exception, *, outcome_known: bool) -> None:
        """Feed the failure back."""
        self.failures["increase", class_of(error)] += 1
        log.warning("increase_failed", extra={"pool": self.pool, "asked": action.count, "error": words(error)})
        self._feed(messages.IncreaseFailed(action.intent, words(error), outcome_known, retry_after(error)))

    async def _ask_for_instances(self, action: messages.Decrease | messages.Suspend | messages.Resume) -> None:
        """Ask to delete instances, to suspend them, or to let them run again; the cloud may accept some of them."""
        method, accepted, failed = _TO_INSTANCES[type(action)]
        log_accepted, log_failed = _LOGS[method]
        asked = action.instances
        try:
            with self._calls.made(method, asked=len(asked)) as call, anyio.fail_after(CHANGE_TIMEOUT):
                taken = await getattr(self.group, method)(asked)
                call.accepted = len(taken)
        except (ProviderError, OSError) as error:
            self.failures[method, class_of(error)] += 1
            log_failed(extra={"pool": self.pool, "instances": asked, "error": words(error)})
            self._feed(failed(asked, words(error), retry_after(error)))
        else:
            log_accepted(extra={"pool": self.pool, "instances": asked, "accepted": list(taken)})
            self._feed(accepted(asked, tuple(taken)))

    async def _withdraw(self, action: messages.Withdraw) -> None:
        """Take back unfilled requests; if that fails they stay counted until they appear or expire."""
        taken, has_failed = 0, False
        group = self.group
        try:
            if isinstance(group, Withdraws):
                with self._calls.made("withdraw", asked=action.count) as call, anyio.fail_after(CHANGE_TIMEOUT):
                    call.accepted = taken = await group.withdraw(action.count)
                log.info("withdrawn", extra={"pool": self.pool, "asked": action.count, "accepted": taken})
        except (ProviderError, OSError) as error:
            self.failures["withdraw", class_of(error)] += 1
            log.warning("withdraw_failed", extra={"pool": self.pool, "error": words(error)})
            has_failed = True
        self._feed(messages.Withdrawn(action.count, taken, has_failed))


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
        case messages.Decrease(_, instances) | messages.Suspend(_, instances) | messages.Resume(_, instances):
            *_, failed = _TO_INSTANCES[type(action)]
            return failed(instances, why, None)
        case messages.Withdraw(_, count):
            return messages.Withdrawn(count, 0, has_failed=True)
    raise AssertionError(f"{action} changes nothing")
