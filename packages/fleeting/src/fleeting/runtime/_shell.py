"""The shell around a core: opens groups and journal, runs the engine, and closes all in order.

What runs in here outlives a cancellation of whoever opened it just long enough to finish what was begun:
changes at the cloud are never abandoned, and their outcomes still reach the core and the journal.
"""

import logging
import math
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar

import anyio

from fleeting._clock import LoopClock
from fleeting._errors import FleetingError, GroupRefused
from fleeting._types import Clock, GroupInfo, Settings
from fleeting.core import messages
from fleeting.core._step import Step
from fleeting.journal._journal import Journal, MemoryJournal, Placed, Recovered
from fleeting.runtime._driver import GroupDriver
from fleeting.runtime._engine import Core, Engine

if TYPE_CHECKING:  # importing anyio.abc costs 20 ms more than all that a bare ``import fleeting`` needs of anyio
    from anyio.abc import TaskStatus

CLOSE_TIMEOUT = 60.0
"""Seconds that changes under way are waited for when closing."""

FIRST_VIEWS = 30.0
"""Seconds that a group's first view is waited for where there are others to work with."""

log = logging.getLogger("fleeting.shell")


class PooledCore(Core, Protocol):
    """A core that takes facts about several groups."""

    def handle(self, pool: str, fact: messages.Fact, now: float) -> Step:
        """Take in what happened to the group of that pool."""
        ...

    @property
    def refusal(self) -> str | None:
        """Why the groups may not be managed as the first view shows them; None if they may."""
        ...


C = TypeVar("C", bound=PooledCore)


class Shell(Generic[C]):
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
        journal: Journal | None = None,
        clock: Clock | None = None,
        observe_only: bool = False,
    ) -> None:
        """Prepare; nothing is opened yet.

        Args:
            drivers: One per group.
            build: Makes the core from what the groups say of themselves, by pool, what the journal
                holds, and the time.
            perform: Performs those actions of the core that are not for a group.
            kinds: The core's records in the journal: their classes, by kind.
            urgent: Which of those actions need not wait for a journal that fails.
            on_end: Called when nothing more will be performed: in the end, or because of an error.
            journal: None: in memory.
            clock: None: the event loop's time.
            observe_only: Whether the groups are opened only to be looked at; the core must ask for nothing but views.
        """
        self.drivers = {driver.pool: driver for driver in drivers}
        self._build = build
        self._perform_other = perform
        self._kinds = kinds
        self._urgent = urgent
        self._on_end = on_end
        self._opened = False
        self.ended = False
        self._journal: Journal = journal if journal is not None else MemoryJournal()
        self._given_clock = clock
        self._observe_only = observe_only
        self.owner = f"{os.uname().nodename}-{_token(self._journal)}"

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
        recovered = await self._journal.open(identities, self.owner, self._kinds)
        stack.push_async_callback(self._close, "the journal", self._journal.close)
        for driver in self.drivers.values():
            stack.push_async_callback(self._close, f"the mark on {driver.info.identity}", driver.unmark)
            await driver.mark()
        self.core = self._build(infos, recovered, self.clock.now())
        self.engine = Engine(self.core, self._journal, self.clock, self._perform, self._is_urgent)
        stack.push_async_callback(self._close, "the engine", self.engine.close)
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

    def take(self, step: Step) -> None:
        """Hand over a step of the core."""
        self.engine.take(step)

    def feed(self, pool: str, fact: messages.Fact) -> None:
        """Tell the core what happened."""
        self.engine.take(self.core.handle(pool, fact, self.clock.now()))
        if isinstance(fact, messages.Updated | messages.UpdateFailed):
            self._seen[pool].set()
            if self._opened and self.core.refusal is not None:  # the first views had failed
                raise GroupRefused(self.core.refusal)

    def start_soon(self, call: Callable[..., Any], *args: object) -> None:
        """Run a task of the owner's for as long as the shell lives."""
        self._inner.start_soon(call, *args)

    async def _live(self, *, task_status: "TaskStatus[None]") -> None:
        """All tasks, kept from outside cancellations, until `_end` ends them, or an error does."""
        try:
            with anyio.CancelScope(shield=True) as self._life:
                async with anyio.create_task_group() as self._inner:
                    for driver in self.drivers.values():
                        driver.start(self._inner, partial(self.feed, driver.pool))
                    self._inner.start_soon(self.engine.run, name="engine")
                    task_status.started()
        finally:
            self.ended = True
            self._on_end()

    async def _end(self) -> None:
        """Let changes at the clouds come to their ends and what they led to be done; then end all tasks."""
        with anyio.CancelScope(shield=True):
            for driver in self.drivers.values():
                await driver.quiesce(CLOSE_TIMEOUT)
            if not self.ended:
                await self.engine.settle(CLOSE_TIMEOUT)
            self._life.cancel()

    def _is_urgent(self, action: Any) -> bool:  # noqa: ANN401  (whatever the core decides)
        """Looking at the cloud changes nothing, so it need not wait until anything is remembered."""
        return isinstance(action, messages.Update | messages.Heartbeat | messages.Forget) or self._urgent(action)

    def _perform(self, action: Any) -> None:  # noqa: ANN401  (whatever the core decides)
        """Give the action to whom it is for."""
        if isinstance(action, messages.Action):
            self.drivers[action.pool].perform(action)
        else:
            self._perform_other(action)

    async def _close(self, what: str, close: Callable[[], Awaitable[None]]) -> None:
        """Close one thing, within a bound; that it fails keeps nothing else from being closed."""
        with anyio.move_on_after(CLOSE_TIMEOUT, shield=True) as scope:
            try:
                await close()
            except (FleetingError, OSError) as error:
                log.error("close_failed", extra={"what": what, "error": str(error)})  # noqa: TRY400  (expected)
        if scope.cancelled_caught:
            log.error("close_timed_out", extra={"what": what})


def _token(journal: Journal) -> str:
    """What tells managers of one host apart: whoever opens the same journal again is the same one."""
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
                f"pools {other} and {pool} are one and the same group, {identity}; give each its own plugin_config"
            )
    return [*pools]


def _first_of(group: ExceptionGroup[Exception]) -> Exception:
    """What a caller is told of several errors, which all came at the same moment."""
    first = group.exceptions[0]
    return _first_of(first) if isinstance(first, ExceptionGroup) else first
