"""The suspended nodes of one pool: which may be resumed, and which go when. Pure.

Each decision asks for both, and may cost no more for many sleepers than for few. So what is known of each is kept in
order of time, and only those are looked at again that have changed since: `PoolSlots` notes which. All are gone through
only where some have to go for there being too many, or are cordoned; and then, too, once until one of them changes.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping, Sequence
from math import inf
from operator import itemgetter

from attrs import define, field, frozen

from fleeting.core import TOO_OLD, Instance, Plan
from taskscaler._types import Policy, PoolSettings
from taskscaler.core._decide import Removal
from taskscaler.core._slots import Node, PoolSlots

OVER = "over the ceiling"
OVER_ALL_CEILINGS = "over the ceiling of all pools"
TOO_LONG = "suspended for longer than suspended_time"
UNRESUMABLE = "it could not be resumed"
"""Why suspended instances are given up that hold no leases."""

CORDONED = "cordoned, and idle"
"""Why idle instances are given up that an operator has cordoned."""


@frozen
class Sleeper:
    """What is known of one."""

    too_old_at: float
    ends_at: float
    """When it is given up if it holds no leases, however many sleepers there may be."""

    why: str
    slots: int
    """Slots for anybody that resuming it brings, but for its age; 0 if it cannot be resumed, or is to be anyhow."""

    free: bool
    """Whether it holds no leases."""

    stopped: bool
    """Whether it may be given up: it is free, and not retained."""

    cordoned: bool


@define
class Sleepers:
    """All of them that are of use."""

    pool: PoolSettings
    plan: Plan
    pool_slots: PoolSlots
    _known: dict[str, Sleeper] = field(factory=dict)
    """By the instances' ids, as of when `changed_sleepers` was last heeded."""

    _slots: int = 0
    _free: int = 0
    _stopped: int = 0
    _cordoned: int = 0
    _ages: list[tuple[float, str]] = field(factory=list)
    """When those that can be resumed are too old for that, sorted."""

    _ends: list[tuple[float, str]] = field(factory=list)
    """When those that may be given up are, sorted."""

    _endings: Mapping[tuple[float, int, str], Sequence[tuple[float, Removal]]] = field(factory=dict)
    """What `_go_through` came to, while nothing has changed; by idle time, places, and why one too many goes."""

    @property
    def any(self) -> bool:
        """Whether there are any. O(1)."""
        return bool(self.pool_slots.lists.sleepers)

    @property
    def free(self) -> int:
        """How many hold no leases."""
        self._catch_up()
        return self._free

    def slots(self, at: float) -> int:
        """Slots for anybody that can be had then by resuming, as far as is known. O(1), but for those too old."""
        if not self.pool_slots.counts.rare.asleep or not self._may_resume(at):
            return 0
        self._catch_up()
        return self._slots - sum(self._known[instance].slots for instance in self._too_old(at))

    def to_resume(self, missing: int, at: float) -> Iterator[Node]:
        """Those that bring so many slots; the last to fall asleep first, which has the best chance to be warm."""
        if missing <= 0 or not self.slots(at):
            return
        too_old = set(self._too_old(at))
        for instance, node in reversed(self.pool_slots.lists.sleepers.items()):
            slots = self._known[instance].slots
            if slots and instance not in too_old:
                yield node
                missing -= slots
                if missing <= 0:
                    return

    def may_wake(self, node: Node, at: float) -> bool:
        """Whether the instance of one can be resumed then, as far as is known."""
        return self._may_resume(at) and self.plan.may_resume(node.instance)

    @property
    def stopped(self) -> int:
        """How many may be given up."""
        self._catch_up()
        return self._stopped

    def endings(
        self, policy: Policy, at: float, *, over: Sequence[str] = (), places: int, too_many: str
    ) -> Iterator[tuple[float, Removal]]:
        """When those without leases are given up, and why; soonest first.

        Args:
            policy: The one that holds then.
            at: Now or later.
            over: Why some go at once, one after the other: there are too many instances here, or in all pools.
            places: How many may sleep.
            too_many: Why others may not.
        """
        self._catch_up()
        if over:
            endings: Sequence[tuple[float, Removal]] = self._go_through(policy, at, over, places, too_many)
        elif self._cordoned or self._stopped > places:
            key = policy.idle_time, places, too_many
            if key not in self._endings:
                self._endings = {key: self._go_through(policy, at, (), places, too_many)}
            endings = self._endings[key]
        else:
            for due, instance in self._ends:
                yield max(at, due), self._removal(instance, self._known[instance].why)
            return
        yield from ((max(at, due), removal) for due, removal in endings)

    def note_change(self, node: Node) -> None:
        """What the plan knows of its instance may have changed."""
        known = self._known.get(node.instance)
        if known is not None and known != self._look_at(node):
            self.pool_slots.changed_sleepers[node.instance] = None

    def _may_resume(self, at: float) -> bool:
        """Whether anything may be resumed."""
        return self.plan.viewed and not (self.plan.disowned or self.plan.resuming.active(at))

    def _too_old(self, at: float) -> Iterator[str]:
        """Those that could be resumed, were they not too old then."""
        for too_old_at, instance in self._ages:
            if too_old_at > at:
                return
            yield instance

    def _catch_up(self) -> None:
        """Look at those again that have changed. O(log n) for each, but for what the lists shift in memory."""
        changed = self.pool_slots.changed_sleepers
        if not changed:
            return
        for instance in changed:
            before = self._known.pop(instance, None)
            if before is not None:
                self._count(instance, before, -1)
            node = self.pool_slots.lists.sleepers.get(instance)
            if node is not None:
                self._known[instance] = after = self._look_at(node)
                self._count(instance, after, 1)
        changed.clear()
        self._endings = {}

    def _look_at(self, node: Node) -> Sleeper:
        known, rare = self.plan.instances[node.instance], node.counts.rare
        can_be_had = not rare.wake_requested and self.plan.may_resume(node.instance)
        ends_at, why = min(self._ends_of(known), key=itemgetter(0))
        free = not node.busy
        return Sleeper(
            too_old_at=self.plan.too_old_at(known),
            ends_at=ends_at,
            why=why,
            slots=rare.asleep if can_be_had else 0,
            free=free,
            stopped=free and not node.retained,
            cordoned=node.cordoned is not None,
        )

    def _ends_of(self, known: Instance) -> Iterator[tuple[float, str]]:
        """When and why one without leases goes."""
        if known.resume_failures > 1:  # once, and it may have been the network
            yield -inf, UNRESUMABLE
        yield self.plan.too_old_at(known), TOO_OLD
        yield _asleep_since(known) + self.pool.suspended_time, TOO_LONG

    def _count(self, instance: str, sleeper: Sleeper, sign: int) -> None:
        """Make it part of the sums and of what is in order, or no longer."""
        change = insort if sign > 0 else _remove
        self._slots += sign * sleeper.slots
        self._free += sign * sleeper.free
        self._stopped += sign * sleeper.stopped
        self._cordoned += sign * sleeper.cordoned
        if sleeper.slots:
            change(self._ages, (sleeper.too_old_at, instance))
        if sleeper.stopped:
            change(self._ends, (sleeper.ends_at, instance))

    def _go_through(
        self, policy: Policy, at: float, over: Sequence[str], places: int, too_many: str
    ) -> list[tuple[float, Removal]]:
        """The same where some go for there being too many, those first that fell asleep first. O(sleepers)."""
        endings = []
        stopped = [instance for instance in self.pool_slots.lists.sleepers if self._known[instance].stopped]
        for number, instance in enumerate(stopped):
            sleeper, idle_until = self._known[instance], self._since(instance) + policy.idle_time
            ends = [(sleeper.ends_at, sleeper.why)]
            if sleeper.cordoned:
                ends.append((idle_until, CORDONED))
            if number < len(over):
                ends.append((at, over[number]))
            elif number < len(stopped) - places:
                ends.append((idle_until, too_many))
            due, why = min(ends, key=itemgetter(0))
            endings.append((due, self._removal(instance, why)))
        return sorted(endings, key=itemgetter(0))

    def _since(self, instance: str) -> float:
        return _asleep_since(self.plan.instances[instance])

    def _removal(self, instance: str, why: str) -> Removal:
        return Removal(self.pool_slots.pool, instance, why)


def _asleep_since(known: Instance) -> float:
    """One of which that is not known sleeps for as long as anybody likes."""
    return inf if known.sleep is None or known.sleep.since is None else known.sleep.since


def _remove(among: list[tuple[float, str]], entry: tuple[float, str]) -> None:
    del among[bisect_left(among, entry)]
