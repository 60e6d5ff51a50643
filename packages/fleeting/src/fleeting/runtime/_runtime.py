"""Runs a core over some groups: opens them, commits and performs what the core decides, and closes all in order.

Everything flows one way: a message goes to the core, and the core's step to `Runtime.take`. What must be durable is
committed first. One task commits all that has piled up in a single transaction, so a burst costs one commit, and no
action precedes its writes. Where no write is waited for, actions are performed at once.

The tasks outlive a cancellation of the caller just long enough to finish what was begun: changes at the cloud are
never abandoned, and their outcomes still reach the core and the journal.
"""

import logging
import math
import os
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar

import anyio

from fleeting._clock import LoopClock
from fleeting._errors import FleetingError, GroupRefused, JournalError
from fleeting._types import Clock, GroupInfo, Settings
from fleeting.core import messages
from fleeting.core._step import Step, Write
from fleeting.journal._journal import Journal, Placed, Recovered
from fleeting.runtime._driver import GroupDriver

if TYPE_CHECKING:  # importing anyio.abc costs 20 ms more than all that a bare ``import fleeting`` needs of anyio
    from anyio.abc import TaskStatus

CLOSE_TIMEOUT = 60.0
"""Seconds that changes under way are waited for when closing."""

FIRST_VIEWS = 30.0
"""Seconds that a group's first view is waited for where there are others to work with."""

RETRY_COMMIT = 1.0
"""Seconds between attempts while the journal cannot be written."""

CLOSING_TRIES = 3
"""How often the last writes are tried when the journal fails at the very end."""

SOON = 0.006
"""Seconds: a core that is due within them is not woken earlier for what it has just decided. Taskscaler's waits a
little less for what else comes with a burst, so under load it is woken once for each burst, and not for each acquire.
A little less, because seconds since the epoch are rounded: 0.005 of them from now are somewhat more."""

log = logging.getLogger("fleeting.runtime")


class Core(Protocol):
    """What the runtime needs of a pure core."""

    @property
    def wake_at(self) -> float | None:
        """When `tick` has something to do, if nothing else happens; right after `tick` or `heed`."""
        ...

    @property
    def refusal(self) -> str | None:
        """Why the groups may not be managed as the first view shows them; None if they may."""
        ...

    def handle(self, pool: str, fact: messages.Fact, now: float) -> Step:
        """Take in what happened to the group of that pool."""
        ...

    def heed(self, now: float) -> None:
        """Let `wake_at` say when `tick` has something to do, now that something was taken in."""
        ...

    def tick(self, now: float) -> Step:
        """Do what is due."""
        ...

    def journal_failed(self, error: str, now: float) -> Step:
        """The last writes are not durable yet and are being tried again; nothing may be handed out."""
        ...

    def journal_recovered(self, now: float) -> Step:
        """All is durable again."""
        ...


C = TypeVar("C", bound=Core)


class Runtime(Generic[C]):
    """Drives one core over some groups. An async context manager; entered once."""

    core: C
    """Built on entering."""

    def __init__(
        self,
        drivers: Sequence[GroupDriver],
        build: Callable[[Mapping[str, GroupInfo], Recovered, float], C],
        perform: Callable[[Any], None],
        *,
        kinds: Mapping[str, type],
        urgent: Callable[[Any], bool] = lambda _: False,
        on_end: Callable[[], None] = lambda: None,
        on_commit: Callable[[float], None] | None = None,
        on_owned: Callable[[AsyncExitStack], Awaitable[None]] | None = None,
        journal: Journal | None = None,
        clock: Clock | None = None,
        observe_only: bool = False,
    ) -> None:
        """Prepare; nothing is opened yet.

        Args:
            drivers: One per group.
            build: Makes the core from what the groups say of themselves, by pool, what the journal
                holds, and the time.
            perform: Performs those actions of the core that are not for a group; returns at once.
            kinds: The core's records in the journal: their classes, by kind.
            urgent: Which of those actions need not wait for a journal that fails.
            on_end: Called when nothing more will be performed: in the end, or because of an error.
            on_commit: Called with how many seconds each commit took that succeeded.
            on_owned: Called once journal and groups are ours, before anything is asked of them; what it raises ends
                the opening, and what it enters into the stack is left when all tasks have ended.
            journal: None: nothing outlives this object, so nothing is committed, and no action waits.
            clock: None: the event loop's time.
            observe_only: Whether the groups are opened only to be looked at; the core must ask for nothing but views.
        """
        self.drivers = {driver.pool: driver for driver in drivers}
        self._build = build
        self._perform_other = perform
        self._kinds = kinds
        self._urgent = urgent
        self._on_end = on_end
        self._on_commit = on_commit
        self._on_owned = on_owned
        self.written = 0
        """Records that were made durable, or dropped for good, so far."""

        self.commit_failures = 0
        """Attempts to commit that failed so far."""

        self._opened = False
        self.ended = False
        self._journal = journal
        self._given_clock = clock
        self._observe_only = observe_only
        self.owner = owner_of(self._journal)

        self._writes: list[Write] = []
        """Not durable yet."""

        self._waiting: list[Any] = []
        """Actions that wait for those writes."""

        self._ready: deque[Any] = deque()
        """Actions that wait for nothing, but for those before them."""

        self._performing = False
        self._change: anyio.Event | None = None
        """Made by those who wait for a change, which hardly anybody does."""

        self._defect: Exception | None = None
        self._changed = False
        """Whether the core has changed since its last tick."""

        self._soon = False
        """Whether the core is due soon anyway."""

        self._alarm = math.inf
        """When the task wakes if nothing happens, while it sleeps."""

        self._wakeup: anyio.Event | None = None
        """What the task waits for, while it does."""

        self._settled: anyio.Event | None = None
        self._failing = False
        self._retry_at = -math.inf

    # --- opening and closing -----------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Open the groups, lock and read the journal, mark the groups, build the core, start, and see each group once.

        Raises:
            GroupRefused: Somebody else manages the group, or what it holds may be neither used nor removed; nothing
                was changed.
        """
        self._stack = AsyncExitStack()
        try:
            await self._open(self._stack)
        except BaseException as error:
            await self.__aexit__(type(error), error, error.__traceback__)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        """Finish what is under way, then close everything. Never leaves earlier, whatever is cancelled."""
        if isinstance(error, Exception):  # the body's own, which a task group would wrap
            await self._stack.__aexit__(None, None, None)
            return False
        return await self._stack.__aexit__(kind, error, trace)

    async def _open(self, stack: AsyncExitStack) -> None:
        """Open everything; what was opened is closed by the stack, in the opposite order."""
        self.clock: Clock = self._given_clock if self._given_clock is not None else LoopClock()
        self._seen = {pool: anyio.Event() for pool in self.drivers}
        infos = await self._open_groups(stack)
        identities = _distinct({pool: info.identity for pool, info in infos.items()})
        recovered = Recovered(epoch=1)
        if self._journal is not None:
            recovered = await self._journal.open(identities, self.owner, self._kinds)
            stack.push_async_callback(self._close, "the journal", self._journal.close)
        for driver in self.drivers.values():
            stack.push_async_callback(self._close, f"the mark on {driver.info.identity}", driver.mark.remove)
            await driver.mark.put()
        if self._on_owned is not None:
            await self._on_owned(stack)
        self.core = self._build(infos, recovered, self.clock.now())
        stack.push_async_callback(self._close, "what was decided last", self._commit_last)
        tasks = await stack.enter_async_context(anyio.create_task_group())
        with anyio.CancelScope(shield=True):  # a cancellation in here would never see the tasks end
            await tasks.start(self._live)
        stack.push_async_callback(self._end)
        await self._see_each()
        if self.core.refusal is not None:
            raise GroupRefused(self.core.refusal)
        self._opened = True

    async def _open_groups(self, stack: AsyncExitStack) -> Mapping[str, GroupInfo]:
        """Open all groups at once, so that none has to wait for another; raises what the first that fails raises."""
        infos: dict[str, GroupInfo] = {}

        async def open_one(driver: GroupDriver) -> None:
            settings = Settings(
                owner=self.owner, clock=self.clock, connector=driver.connector, observe_only=self._observe_only
            )
            infos[driver.pool] = await driver.open(settings)
            stack.push_async_callback(self._close, driver.info.identity, driver.close)

        try:
            async with anyio.create_task_group() as tasks:
                for driver in self.drivers.values():
                    tasks.start_soon(open_one, driver, name=f"open {driver.pool}")
        except ExceptionGroup as group:
            raise _first_of(group) from None
        return {pool: infos[pool] for pool in self.drivers}

    async def _see_each(self) -> None:
        """Wait for each group's first view; where there are several, for one that hangs not for long."""
        alone = len(self._seen) == 1
        with anyio.move_on_after(math.inf if alone else FIRST_VIEWS):
            for seen in self._seen.values():
                await seen.wait()

    async def _live(self, *, task_status: "TaskStatus[None]") -> None:
        """All tasks, kept from outside cancellations, until `_end` ends them, or an error does."""
        try:
            async with anyio.create_task_group() as self._tasks:
                self._tasks.cancel_scope.shield = True
                for driver in self.drivers.values():
                    driver.start(self._tasks, partial(self.feed, driver.pool))
                self._tasks.start_soon(self._run, name="runtime")
                task_status.started()
        finally:
            self.ended = True
            self._on_end()
            self._note_change()

    async def _end(self) -> None:
        """Let changes at the clouds come to their ends and what they led to be done; then end all tasks."""
        with anyio.CancelScope(shield=True):
            for driver in self.drivers.values():
                await driver.quiesce(CLOSE_TIMEOUT)
            if not self.ended:
                await self._settle(CLOSE_TIMEOUT)
            self._tasks.cancel_scope.cancel()

    async def _settle(self, timeout: float) -> None:
        """Wait until everything is durable, at most *timeout* seconds."""
        with anyio.move_on_after(timeout):
            while self._writes:
                self._settled = self._settled or anyio.Event()
                await self._settled.wait()

    async def _commit_last(self) -> None:
        """Make durable what is left once the tasks have ended. What it would have led to is not begun."""
        for _ in range(CLOSING_TRIES):
            if not self._writes or await self._commit(self._writes):
                return
            await anyio.sleep(RETRY_COMMIT)
        log.error("journal_behind", extra={"writes": len(self._writes)})

    async def _close(self, what: str, close: Callable[[], Awaitable[None]]) -> None:
        """Close one thing, within a bound; that it fails keeps nothing else from being closed."""
        with anyio.move_on_after(CLOSE_TIMEOUT, shield=True) as scope:
            try:
                await close()
            except (FleetingError, OSError) as error:
                log.error("close_failed", extra={"what": what, "error": str(error)})  # noqa: TRY400  (expected)
        if scope.cancelled_caught:
            log.error("close_timed_out", extra={"what": what})

    @property
    def has_journal(self) -> bool:
        """Whether anything outlives this object."""
        return self._journal is not None

    @property
    def is_failing(self) -> bool:
        """Whether the journal cannot be written at the moment."""
        return self._failing

    # --- taking steps ------------------------------------------------------------------------------------

    def feed(self, pool: str, fact: messages.Fact) -> None:
        """Give the core a message."""
        self.take(self.core.handle(pool, fact, self.clock.now()))
        if isinstance(fact, messages.Updated | messages.UpdateFailed):
            self._seen[pool].set()
            if self._opened and self.core.refusal is not None:  # the first views had failed
                raise GroupRefused(self.core.refusal)

    def take(self, step: Step) -> None:
        """Commit and perform a step of the core, now or soon."""
        self._changed = True
        self._enqueue(step)
        if self._wakeup is not None:
            self._hasten(self._wakeup)

    async def wait_for_change(self) -> None:
        """Wait until the core has heard or decided something, or nothing more will happen."""
        if not self.ended:
            self._change = self._change or anyio.Event()
            await self._change.wait()

    def _note_change(self) -> None:
        if self._change is not None:
            self._change.set()
            self._change = None

    def start_soon(self, call: Callable[..., Any], *args: object) -> None:
        """Run a task of the owner's for as long as the runtime lives."""
        self._tasks.start_soon(call, *args)

    async def _run(self) -> None:
        """Tick and commit until cancelled."""
        while True:
            self._changed = False
            self._enqueue(self.core.tick(self.clock.now()))
            if self._writes and self.clock.now() >= self._retry_at:
                await self._commit_queued()
            if self._settled is not None and not self._writes:
                self._settled.set()
                self._settled = None
            await self._sleep()
            if self._defect is not None:
                raise self._defect

    async def _sleep(self) -> None:
        """Wait until there is something to do: at once, at the core's own time, or to try the journal again."""
        now = self.clock.now()
        if self._changed:
            self.core.heed(now)
        wake_at = math.inf if self.core.wake_at is None else self.core.wake_at
        self._set_alarm(min(wake_at, self._retry_at if self._failing else math.inf), now)
        if self._alarm <= now or self._is_due:
            await anyio.lowlevel.checkpoint()
            return
        self._wakeup = anyio.Event()
        with anyio.move_on_after(self._alarm - now) as self._nap:
            await self._wakeup.wait()
        self._wakeup = None

    def _set_alarm(self, at: float, now: float) -> None:
        self._alarm, self._soon = at, at <= now + SOON

    def _hasten(self, wakeup: anyio.Event) -> None:
        """Let the task wake in time for what was just taken in, and no earlier: mostly that changes nothing for it."""
        if self._is_due:
            wakeup.set()
        elif not self._soon:
            now = self.clock.now()
            self.core.heed(now)
            at = self.core.wake_at
            if at is not None and at < self._alarm:
                self._set_alarm(at, now)
                self._nap.deadline = anyio.current_time() + max(0.0, at - now)

    @property
    def _is_due(self) -> bool:
        """Whether the task has something to do that does not wait for a time."""
        return (bool(self._writes) and not self._failing) or self._defect is not None

    def _enqueue(self, step: Step) -> None:
        """Add to what is to be committed and performed, and perform what waits for nothing."""
        if self._journal is not None:
            self._writes += step.writes
        for action in step.actions:
            waits = self._writes and not (self._failing and self._is_urgent(action))
            (self._waiting if waits else self._ready).append(action)
        if self._ready:
            self._perform_ready()
        self._note_change()

    # --- committing --------------------------------------------------------------------------------------

    async def _commit_queued(self) -> None:
        """Make what is queued durable, then perform what waited for it."""
        writes, actions, failing = len(self._writes), len(self._waiting), self._failing
        if not await self._commit(self._writes[:writes]):
            self._retry_at = self.clock.now() + RETRY_COMMIT
            urgent, self._waiting = _parted(self._waiting, self._is_urgent)
            self._ready += urgent
        else:
            del self._writes[:writes]  # not before they are durable: a cancellation must not lose them
            durable = actions if self._writes else len(self._waiting)
            performed, self._waiting = self._waiting[:durable], self._waiting[durable:]
            stale, fresh = _parted(performed, lambda each: failing and isinstance(each, messages.Increase))
            self._ready += fresh
            for increase in stale:  # since it was decided, what it would be too many for may have appeared
                self.feed(increase.pool, messages.NotAsked(increase.intent))
        self._perform_ready()

    async def _commit(self, writes: Sequence[Write]) -> bool:
        """Try once, and let the core know when that starts to fail or to succeed again."""
        if self._journal is None:
            return True
        begun = self.clock.now()
        try:
            await self._journal.commit(writes)
        except JournalError as error:
            self.commit_failures += 1
            if not self._failing:
                self._failing = True
                log.error("journal_failed", extra={"error": str(error)})  # noqa: TRY400  (expected; no traceback)
                self.take(self.core.journal_failed(str(error), self.clock.now()))
            return False
        self.written += len(writes)
        if self._on_commit is not None:
            self._on_commit(max(0.0, self.clock.now() - begun))
        if self._failing:
            self._failing = False
            log.warning("journal_recovered")
            self.take(self.core.journal_recovered(self.clock.now()))
        return True

    # --- performing --------------------------------------------------------------------------------------

    def _perform_ready(self) -> None:
        """Perform what waits for nothing, in order; what an action leads to comes after those that are there."""
        if self._performing:
            return
        self._performing = True
        try:
            while self._ready and self._defect is None and not self._tasks.cancel_scope.cancel_called:
                self._perform(self._ready.popleft())
        except Exception as error:  # noqa: BLE001  (a defect, raised by `_run`: it ends the manager, not who came here)
            self._defect = error
        finally:
            self._performing = False

    def _perform(self, action: Any) -> None:  # noqa: ANN401  (whatever the core decides)
        if isinstance(action, messages.Action):
            self.drivers[action.pool].perform(action)
        else:
            self._perform_other(action)

    def _is_urgent(self, action: Any) -> bool:  # noqa: ANN401  (whatever the core decides)
        """Looking at the cloud changes nothing, so it need not wait until anything is remembered."""
        return isinstance(action, messages.Update | messages.Heartbeat | messages.Forget) or self._urgent(action)


def _parted(actions: Iterable[Any], apart: Callable[[Any], bool]) -> tuple[list[Any], list[Any]]:
    """The actions for which *apart* holds, and the others; both in their order."""
    parts: tuple[list[Any], list[Any]] = ([], [])
    for action in actions:
        parts[not apart(action)].append(action)
    return parts


def owner_of(journal: Journal | None) -> str:
    """As whom a manager opens its groups: the one that opens the same journal again, on the same host, is the same."""
    return f"{os.uname().nodename}-{_token(journal)}"


def _token(journal: Journal | None) -> str:
    if not isinstance(journal, Placed):
        return os.urandom(4).hex()
    from hashlib import sha256  # that a bare ``import fleeting`` need not pay for

    return sha256(journal.place.encode()).hexdigest()[:8]


def _distinct(identities: Mapping[str, str]) -> Sequence[str]:
    """Give the groups' identities, unless one group is there under two names: its instances would count twice."""
    pools: dict[str, str] = {}
    for pool, identity in identities.items():
        other = pools.setdefault(identity, pool)
        if other != pool:
            raise GroupRefused(
                f"pools {other} and {pool} are the same group, {identity}; give each its own plugin_config"
            )
    return [*pools]


def _first_of(group: ExceptionGroup[Exception]) -> Exception:
    """The one that a caller gets of several errors, which all came at the same moment."""
    first = group.exceptions[0]
    return _first_of(first) if isinstance(first, ExceptionGroup) else first
