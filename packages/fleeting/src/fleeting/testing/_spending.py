"""Keeps what the conformance suite does to a real cloud within bounds, and leaves nothing behind there."""

import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
from attrs import define, evolve, field, frozen

from fleeting._clock import LoopClock
from fleeting._errors import OutcomeUnknown, ProviderError
from fleeting._protocols import InstanceGroup
from fleeting._types import GroupInfo, Observation, Settings, State
from fleeting.testing._harness import Harness, NotChecked

NOBODY_KNOWS = ("all instances that exist: the harness cannot list them",)


@frozen
class _Order:
    """What was asked for under one intent."""

    count: int
    until: float
    """When what has not come will not come any more, seconds since the epoch."""


@define(kw_only=True)
class _Account:
    """What is known of one cloud resource."""

    harness: Harness
    found: frozenset[str]
    """The instances that were there first, and stay."""

    orders: dict[str, _Order] = field(factory=dict)
    """By intent."""

    seen: set[str] = field(factory=set)
    """Instances that have come since the first of these."""

    closed: set[str] = field(factory=set)
    """Instances that came of orders that are not waited for any more."""

    def take_in(self, view: Observation) -> int:
        """Look at a view; returns how many of ours exist."""
        ours = {
            instance
            for instance, each in view.instances.items()
            if instance not in self.found and each.state is not State.DELETED
        }
        self.seen |= ours - self.closed
        return len(ours)

    def to_come(self, now: float) -> int:
        """How many may still appear."""
        if all(order.until <= now for order in self.orders.values()):
            self.orders.clear()
            self.closed |= self.seen
            self.seen.clear()
        return max(0, sum(order.count for order in self.orders.values()) - len(self.seen))

    def asked(self, intent: str) -> int:
        """How many were asked for under that intent."""
        return self.orders[intent].count if intent in self.orders else 0


class SpendingGuard:
    """Lets the suite have so many instances at once, and removes all of them in the end."""

    def __init__(self, limit: int) -> None:
        """Allow so many at once, in each cloud resource."""
        self.limit = limit
        self.left: dict[str, Sequence[str]] = {}
        """Instances that could not be removed, by the identity of their group."""

        self._accounts: dict[str, _Account] = {}
        self._open: list[InstanceGroup] = []
        """Groups that were opened and not closed since: a check that is interrupted closes nothing."""

    @asynccontextmanager
    async def watch(self, harness: Harness) -> AsyncIterator[Harness]:
        """Lend the harness of a real cloud to a check, and remove what came meanwhile."""
        try:
            make, make_other = harness.make, harness.make_other or harness.make
            yield evolve(
                harness,
                make=lambda: _GuardedGroup(harness, make(), self),
                make_other=lambda: _GuardedGroup(harness, make_other(), self),
            )
        finally:
            with anyio.CancelScope(shield=True):
                await self.sweep()

    async def sweep(self) -> None:
        """Remove what was not there first, and wait for it; what stays, or was not got to, is in `left`.

        What an interrupted check has left open is closed first: a resource may let one manager in at a time.
        """
        while self._open:
            await _try(self._open.pop().shutdown)
        self.left = dict.fromkeys(self._accounts, NOBODY_KNOWS)
        for identity, account in self._accounts.items():
            if left := await _emptied(account):
                self.left[identity] = left
            else:
                del self.left[identity]

    def opening(self, group: InstanceGroup) -> None:
        """Remember that a group is about to be opened."""
        self._open.append(group)

    def closed(self, group: InstanceGroup) -> None:
        """Forget it; it may have been closed before."""
        self._open = [each for each in self._open if each is not group]

    async def admit(self, group: InstanceGroup, info: GroupInfo, harness: Harness) -> None:
        """Remember what a resource holds before anything is asked of it."""
        if info.identity not in self._accounts:
            found = frozenset((await group.update()).instances)
            self._accounts[info.identity] = _Account(harness=harness, found=found)

    async def increase(self, group: InstanceGroup, identity: str, count: int, intent: str) -> int:
        """Ask for instances, if that keeps within the limit.

        Raises:
            NotChecked: It does not.
        """
        account = self._accounts[identity]
        clock, harness = account.harness.settings.clock, account.harness
        there = account.take_in(await group.update())
        before = account.asked(intent)
        new = max(0, count - before)
        if there + account.to_come(clock.now()) + new > self.limit:
            raise NotChecked(f"allow --live-instances more than {self.limit}, which the check needs at once")
        account.orders[intent] = _Order(before + new, math.inf)
        came: int | None = None
        try:
            came = await group.increase(count, intent=intent)
        except OutcomeUnknown:
            raise
        except ProviderError:
            came = before
            raise
        finally:  # what was cut off shows itself within the time to settle, or never
            patience = harness.settle if came is None else harness.deadline
            asked = before + new if came is None else min(before + new, came)
            account.orders[intent] = _Order(asked, clock.now() + patience)
        return came


class _GuardedGroup:
    """A group whose `increase` asks the guard first; all else is the group's own."""

    def __init__(self, harness: Harness, group: InstanceGroup, guard: SpendingGuard) -> None:
        self._harness = harness
        self._group = group
        self._guard = guard
        self._identity = ""
        for name in dir(group):  # `isinstance` looks for a protocol's methods here, and not in __getattr__
            if not name.startswith("_") and not hasattr(type(self), name):
                setattr(self, name, getattr(group, name))

    async def init(self, settings: Settings) -> GroupInfo:
        self._guard.opening(self._group)
        info = await self._group.init(settings)
        self._identity = info.identity
        if not settings.observe_only:
            try:
                await self._guard.admit(self._group, info, self._harness)
            except BaseException:  # nobody will call shutdown
                with anyio.CancelScope(shield=True):
                    await _try(self.shutdown)
                raise
        return info

    async def shutdown(self) -> None:
        self._guard.closed(self._group)
        await self._group.shutdown()

    async def increase(self, count: int, *, intent: str) -> int:
        return await self._guard.increase(self._group, self._identity, count, intent)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:  # noqa: ANN401  (whatever the group has)
            ...

    def __repr__(self) -> str:
        return repr(self._group)


async def _emptied(account: _Account) -> Sequence[str]:
    """Delete until nothing is left that was not there first; returns what is left after the harness's deadline."""
    harness = account.harness
    settings = evolve(harness.settings, clock=LoopClock(), observe_only=False)
    group = harness.make()
    if await _try(group.init, settings) is None:
        return NOBODY_KNOWS
    left: Sequence[str] = NOBODY_KNOWS
    settled = settings.clock.now() + harness.settle
    try:
        with anyio.move_on_after(harness.deadline + harness.settle):
            while left or (account.to_come(-math.inf) and settings.clock.now() < settled):
                left = await _asked_to_go(group, account, left)
                await anyio.sleep(harness.poll)
    finally:
        await _try(group.shutdown)
    account.orders.clear()
    account.seen.clear()
    account.closed.clear()
    return left


async def _asked_to_go(group: InstanceGroup, account: _Account, left: Sequence[str]) -> Sequence[str]:
    """Delete what was not there first; returns what that was, or *left* if the cloud cannot list it."""
    view = await _try(group.update)
    if view is None:
        return left
    account.take_in(view)
    shown = (instance for instance, each in view.instances.items() if each.state is not State.DELETED)
    if left := [instance for instance in shown if instance not in account.found]:
        await _try(group.decrease, left)
    return left


async def _try(call: Callable[..., Any], *args: object) -> Any:  # noqa: ANN401  (what the call returns)
    """Make a call; None if it fails, if only because the plugin does: there may be others to clear up."""
    try:
        return await call(*args)
    except Exception:  # noqa: BLE001
        return None
