"""What the ledger's books are made of: nodes and slots, leases, waiters, records, and what is to be done. Pure."""

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from functools import cache
from math import inf
from typing import NamedTuple

from attrs import Factory, define, frozen

from fleeting.events import Loss

LEASE, USES, CORDON, DIRTY, EXPIRED = "lease", "uses", "cordon", "dirty", "expired"
"""The journal's kinds of records that belong to the ledger."""


class LeaseRecord(NamedTuple):
    """A held slot, as the journal keeps it under the lease's key."""

    host: str
    slot: int
    since: float
    suspended: bool = False
    expires_at: float | None = None
    """When it ends if it is still suspended then, in seconds since the epoch; None: never."""

    persistent: bool = False
    """Whether it outlives its manager while it is held, too."""

    pools: tuple[str, ...] = ()
    """Of which pools its slot may be, in order of preference; empty: of any."""


class UsesRecord(NamedTuple):
    """How often an instance was given work, as the journal keeps it under the node's id."""

    uses: int


class CordonRecord(NamedTuple):
    """An instance that gets no new work, as the journal keeps it under the node's id."""

    why: str


class DirtyRecord(NamedTuple):
    """A slot that was used and has not been cleaned since, as the journal keeps it under node and slot."""

    host: str
    slot: int
    key: str
    """Of the lease that used it last."""


class ExpiredRecord(NamedTuple):
    """A suspended lease that has expired, as the journal keeps it under the lease's key for who comes back too late."""

    host: str
    slot: int
    at: float
    """When it expired, in seconds since the epoch."""


LEDGER_RECORDS: Mapping[str, type] = {
    LEASE: LeaseRecord,
    USES: UsesRecord,
    CORDON: CordonRecord,
    DIRTY: DirtyRecord,
    EXPIRED: ExpiredRecord,
}
"""What the ledger keeps in the journal: the records' classes, by kind."""


class Closed(Enum):
    """Why a node takes no new work."""

    PAUSED = "paused"
    """For a moment: one view of the cloud's did not show it."""

    LEAVING = "leaving"
    """The cloud shows it as anything but running; nothing for us to do about it."""

    UNHEALTHY = "unhealthy"
    DRAINING = "draining"
    """It has served its time, or could not be cleaned."""

    DOOMED = "doomed"
    RETURNING = "returning"
    """It holds leases or dirty slots of an earlier manager and is not ready yet."""

    ASLEEP = "asleep"
    """The instance is suspended, or about to be."""

    WAKING = "waking"
    """It was, and is on its way to being ready again."""

    RETIRED = "retired"
    """Given up; its removal is under way."""

    __hash__ = object.__hash__  # Enum's own is Python, and much is asked of a node with each lease


FINAL = frozenset({Closed.UNHEALTHY, Closed.DRAINING, Closed.DOOMED, Closed.RETIRED})
"""What a node never comes back from."""


AWAY = frozenset({Closed.RETURNING, Closed.ASLEEP, Closed.WAKING})
"""What a node comes back from by becoming ready once more."""


class Rarities(NamedTuple):
    """What few nodes count for: see `Counts`, which has the rest."""

    suspended: int = 0
    """Slots held by leases that sleep."""

    cleaning: int = 0
    """Slots that are being cleaned."""

    paused: int = 0
    """Slots that could be handed out, were the node not paused for a moment."""

    unhealthy: int = 0
    """Free slots of an unhealthy node."""

    asleep: int = 0
    """Slots that could be handed out, were the instance not suspended."""

    returning: int = 0
    """Slots that can be handed out once the node is ready again."""

    returners: int = 0
    """1 if the node is on its way there."""

    cordoned: int = 0
    """1 if the node is in that list, as in those below."""

    suspendable: int = 0
    sleepers: int = 0
    wake_requested: int = 0


ORDINARY = Rarities()

LISTED = Rarities._fields.index("cordoned")
"""From here on the fields of `Rarities` say in which `Lists` the node is."""


class Counts(NamedTuple):
    """What a node adds to the counters of its pool; added up, the counters themselves."""

    acquired: int = 0
    """Slots that somebody holds, or that are on their way there."""

    usable: int = 0
    """Slots that may be handed out now."""

    kept: int = 0
    """1 if the node counts as capacity: busy, usable, or paused for a moment."""

    blocked: int = 0
    """Free slots that may not be handed out, while others of the node are in use."""

    to_remove: int = 0
    """1 if the node is in that list."""

    rare: Rarities = ORDINARY
    """Apart, for these change with each job, and those do not."""

    def moved(self, before: "Counts", after: "Counts") -> "Counts":
        """The counters once a node counts for something else than before."""
        acquired, usable, kept, blocked, to_remove, rare = self  # reading them by name would take most of the time
        to_acquired, to_usable, to_kept, to_blocked, to_to_remove, to_rare = after
        from_acquired, from_usable, from_kept, from_blocked, from_to_remove, from_rare = before
        if to_rare is not from_rare:
            changes = zip(rare, to_rare, from_rare, strict=True)
            rare = Rarities(*[total + new - old for total, new, old in changes])
        changed = (
            acquired + to_acquired - from_acquired,
            usable + to_usable - from_usable,
            kept + to_kept - from_kept,
            blocked + to_blocked - from_blocked,
            to_remove + to_to_remove - from_to_remove,
            rare,
        )
        return tuple.__new__(Counts, changed)  # `Counts(…)` would call this; each job changes counters twice and more


NOTHING_COUNTED = Counts()
WORN_OUT = Counts(to_remove=1)
"""What a free node counts for that may not be used any more."""


@cache
def _limited(taken: int, room: int, blocked: int) -> Counts:
    """What a node counts for that nothing is the matter with, where uses are limited."""
    return Counts(taken, room, 1, blocked)


class Lists(NamedTuple):
    """Nodes of a pool that something is to be done with, by the instances' ids; in the order in which they came."""

    cordoned: "OrderedDict[str, Node]"
    """Those that get no new work because an operator wants it so."""

    suspendable: "OrderedDict[str, Node]"
    """Those that are kept only for leases that sleep, and whose instances might as well be suspended."""

    sleepers: "OrderedDict[str, Node]"
    """Those whose instances are suspended or about to be, and that are free or could be used if they were not; the last
    to fall asleep last."""

    wake_requested: "OrderedDict[str, Node]"
    """Those that are away though somebody waits to resume a lease there, or a slot there has to be cleaned."""

    @classmethod
    def empty(cls) -> "Lists":
        """Without any node."""
        return cls(*(OrderedDict() for _ in cls._fields))


@define(eq=False)
class Node:
    """An instance that may be, or was, given work. What it counts for is deduced: see `contribution`."""

    pool_slots: "PoolSlots"
    instance: str
    vacant: list[int]
    """Heap of the free slots' numbers: the lowest is used first."""

    closed: Closed | None = Closed.RETURNING
    why_closed: str = ""
    suspect: str = ""
    """Why it is to be given no work once it is ready again; empty: it may be. Of nodes that are away alone."""

    retained: bool = False
    """Whether it must not be given up.

    The plan owns most of what these three say; the ledger only that a node is returning, was not cleaned, or is given
    up. They are kept here because counters, lists and places are sorted by them: what a node is counted under has to
    stay as it is until `settle` counts it again. Reading the instance costs thirty times as much, too, with each lease.
    """

    idle_since: float = 0.0
    """When its last lease ended or fell asleep, or when it became ready."""

    idle_rank: int = 0
    """Grows with each time that any node falls idle."""

    awake: "dict[int, Assignment]" = Factory(dict)
    """By slot number: the leases that hold one."""

    asleep: "dict[int, Assignment]" = Factory(dict)
    """By slot number: the leases that sleep there."""

    dirty: dict[int, DirtyRecord] = Factory(dict)
    """By slot number: those that were used and not cleaned since."""

    cleaning: "dict[int, Clean]" = Factory(dict)
    """By slot number: the clean-ups that are under way."""

    counts: Counts = NOTHING_COUNTED
    """What of it is in the counters of its pool."""

    place: tuple[int, int] | None = None
    """Where it stands in the pool's `by_busy`, and in its `idle` if that is not 0."""

    @property
    def id(self) -> str:
        """``pool/instance``, unique over all pools."""
        return node_id(self.pool_slots.pool, self.instance)

    @property
    def pool(self) -> str:
        """The pool's name."""
        return self.pool_slots.pool

    @property
    def uses(self) -> int:
        """How often it was given work."""
        return self.pool_slots.uses.get(self.instance, 0)

    @property
    def cordoned(self) -> str | None:
        """Why its operator wants it to get no new work, open or closed; None: no operator does."""
        return self.pool_slots.cordons.get(self.instance)

    @property
    def leases(self) -> "list[Assignment]":
        """Awake or asleep."""
        return [*self.awake.values(), *self.asleep.values()]

    @property
    def busy(self) -> int:
        """How many of its slots are held, awake or asleep, or being cleaned."""
        return self.pool_slots.per_node - len(self.vacant)

    @property
    def usable(self) -> int:
        """How many of its slots may be handed out now."""
        return self.counts.usable

    @property
    def uses_left(self) -> float:
        """How many more leases it may be given in its life; infinite without a limit."""
        most = self.pool_slots.max_uses
        return most - self.uses if most else inf

    @property
    def rests(self) -> bool:
        """Whether nothing runs on it: it is free, or all its leases sleep."""
        return not (self.cleaning or self.awake)

    @property
    def spoiled(self) -> bool:
        """Whether something may still run in a free slot of it: slots are not cleaned, and that one was in use."""
        return bool(self.dirty) and not self.pool_slots.cleans

    @property
    def room(self) -> int:
        """How many of its slots could be handed out, were there nothing against it."""
        free, left = len(self.vacant), self.uses_left
        return free if free <= left else max(0, int(left))


def contribution(node: Node) -> Counts:
    """What a node counts for, and in which lists it is, from what is known of it."""
    pool_slots, taken = node.pool_slots, len(node.awake)
    if node.closed is None and not (node.cleaning or node.asleep or pool_slots.why_blocked or pool_slots.cordons):
        most = pool_slots.max_uses
        if not most:
            return pool_slots.ordinary[taken]
        free, left = len(node.vacant), most - pool_slots.uses.get(node.instance, 0)
        room = free if free <= left else max(0, left)
        if room or taken:  # as nearly always; the rest would come to the same
            return _limited(taken, room, free - room if taken else 0)
    if not (taken or node.cleaning or node.asleep or node.retained or pool_slots.cordons or pool_slots.why_blocked):
        if node.closed is Closed.RETIRED:
            return NOTHING_COUNTED
        if node.closed is None and not (node.dirty or node.suspect):
            return WORN_OUT  # as each in turn, where each is used but a few times
    return _uncommon_contribution(node)


def _uncommon_contribution(node: Node) -> Counts:
    closed, room, free, suspended, cleaning = (
        node.closed,
        node.room,
        len(node.vacant),
        len(node.asleep),
        len(node.cleaning),
    )
    cordoned = node.cordoned is not None
    offered = 0 if cordoned or node.pool_slots.why_blocked or node.spoiled or node.suspect else room
    usable = offered if closed is None else 0
    paused = offered if closed is Closed.PAUSED else 0
    away, asleep = closed in AWAY, closed is Closed.ASLEEP
    kept = not away and bool(node.busy or usable or paused)
    spent = closed in FINAL or not room or bool(node.suspect)
    wears = closed is None or (closed is Closed.DRAINING and not node.dirty)
    rare = Rarities(
        suspended=suspended,
        cleaning=cleaning,
        paused=paused,
        unhealthy=free if closed is Closed.UNHEALTHY else 0,
        asleep=offered if asleep else 0,
        returning=offered if away and not asleep else 0,
        returners=int(away and not asleep),
        cordoned=int(cordoned),
        suspendable=int(suspended > 0 and node.rests and wears and not (cordoned or node.retained)),
        sleepers=int(asleep and not node.suspect and (offered > 0 or not node.busy)),
        wake_requested=int(away and bool(cleaning or any(lease.resuming for lease in node.leases))),
    )
    blocked = 0 if node.rests else free - (offered if away else usable)
    to_remove = int(spent and not (node.busy or kept or node.retained or closed is Closed.RETIRED))
    return Counts(len(node.awake), usable, int(kept), blocked, to_remove, ORDINARY if rare == ORDINARY else rare)


class LeaseId(NamedTuple):
    """Names a lease for good: its key may be used again once it has ended."""

    key: str
    number: int
    """No two leases of a manager have the same."""

    pool: str
    instance: str
    slot: int


@define(eq=False)
class Assignment:
    """A slot in somebody's hands: the ledger's side of a lease."""

    id: LeaseId
    node: Node
    since: float
    ticket: int
    """The place in the queue that it was served from."""

    asked_at: float
    """When it was asked for."""

    ends_by: float
    """When the work will be done, if that was declared; else infinite."""

    checked: bool = False
    """Whether it is handed over as soon as its node gives a sign of life."""

    delivered: bool = False
    """Whether its holder has it. Until then it can be taken back unnoticed."""

    resuming: bool = False
    """Whether somebody waits to be handed it again."""

    expires_at: float = inf
    """When it ends if nobody has resumed it by then; kept while it is awake, for who gives up resuming it."""

    persistent: bool = False
    """Whether it outlives its manager while it is held, too."""

    pools: tuple[str, ...] = ()
    """Of which pools its slot may be, in order of preference; empty: of any."""

    detached: bool = False
    """Whether nobody holds it: its manager has ended, or its holder let go of it."""

    reattach_by: float = inf
    """When it is given up, if it is detached, unless somebody reattaches it."""

    @property
    def key(self) -> str:
        """What it was asked for under."""
        return self.id.key

    @property
    def slot(self) -> int:
        """The slot's number."""
        return self.id.slot

    @property
    def suspended(self) -> bool:
        """Whether it sleeps."""
        return self.node.asleep.get(self.slot) is self

    def record(self) -> LeaseRecord:
        """For the journal."""
        expires_at = self.expires_at if self.suspended and self.expires_at < inf else None
        return LeaseRecord(self.node.id, self.slot, self.since, self.suspended, expires_at, self.persistent, self.pools)


class Deliver(NamedTuple):
    """Give the slot to the acquire that waits for it, if `Ledger.deliver` says that it still stands."""

    lease: LeaseId


class Check(NamedTuple):
    """Ask the slot's node for a sign of life; the slot is delivered when there is one."""

    lease: LeaseId


class Break(NamedTuple):
    """Report to the holder that the slot is lost."""

    lease: LeaseId
    loss: Loss


class Expired(NamedTuple):
    """Nobody has resumed the lease in time; its slot is free."""

    lease: LeaseId


class MarkUnhealthy(NamedTuple):
    """Let the holder know that the instance is unhealthy: no new connection to it is worth waiting for."""

    lease: LeaseId
    why: str


class Clean(NamedTuple):
    """Clean the slot, if `Ledger.wants` that, and report to `Core.cleaned`."""

    pool: str
    instance: str
    slot: int
    key: str
    """Of the lease that used it last."""

    number: int
    """No two clean-ups of a manager have the same."""


class Refuse(NamedTuple):
    """Refuse the acquire that waits under the key."""

    key: str
    why: str


class LostLease(NamedTuple):
    """How a lease was lost, for people to ask about."""

    at: float
    lease: LeaseId
    loss: Loss
    detached: bool = False
    """Whether nobody held it then."""


@define(eq=False)
class Waiter:
    """A place in the queue."""

    key: str
    ticket: int
    asked_at: float
    """When the slot, or the reservation, was asked for."""

    reserves: bool
    """Whether it is a reservation, that wants a slot kept, or an acquire, that wants it now."""

    expected: float
    persistent: bool = False
    pools: tuple[str, ...] = ()
    """Of which pools its slot may be, in order of preference; empty: of any. Reservations are never particular."""


@frozen(kw_only=True)
class DetachedLease:
    """A persistent lease of an earlier manager that nobody has taken up again: see `Taskscaler.reattach`."""

    key: str
    """What it was acquired under."""

    pool: str
    """Name of the pool that its instance belongs to."""

    instance: str
    """The instance's id."""

    slot: int
    """The number of its slot, from 0."""

    since: float
    """When it was acquired, in seconds since the epoch."""

    reattach_by: float
    """When it is given up unless it is reattached, in seconds since the epoch; infinite once the scaler stops."""


@frozen(kw_only=True)
class Capacity:
    """Slots by state, and who waits. The first six add up to all slots there are."""

    idle: int
    """Slots that are free."""

    reserved: int
    """Slots kept for reservations."""

    acquired: int
    """Slots that leases hold, detached ones included."""

    suspended: int
    """Slots kept for suspended leases."""

    unavailable: int
    """Slots that nobody may use now: being cleaned, or free on an instance that is used up, paused, asleep, cordoned or
    leaving."""

    unhealthy: int
    """Slots of unhealthy instances."""

    pending: int
    """Acquires that wait."""

    promised: int
    """Reservations that no slot is kept for yet."""

    unready: int = 0
    """Slots of instances on their way that were never ready: requested, or booting. Not among the six."""


@define(eq=False)
class PoolSlots:
    """The nodes of one pool, and the counters that decisions read."""

    pool: str
    per_node: int
    """Slots per node."""

    max_uses: int
    """Leases per node in its life; 0: no limit."""

    nodes: dict[str, Node]
    """By the instances' ids."""

    by_busy: list[OrderedDict[str, Node]]
    """Nodes with usable slots, by how many of their slots are acquired; each in order of arrival there."""

    idle: dict[int, OrderedDict[str, Node]]
    """Of those of which no slot is acquired, the ones that may be given up, by how many slots that costs."""

    ordinary: Sequence[Counts]
    """What a node counts for that nothing is the matter with, by how many of its slots are acquired; without a limit of
    uses."""

    uses: dict[str, int] = Factory(dict)
    """How often its instances were given work, nodes or not, by id."""

    cordons: dict[str, str] = Factory(dict)
    """Why its operator wants which instances to get no new work, nodes or not, by id."""

    fullest: int = 0
    """No node with usable slots has more acquired ones than this."""

    counts: Counts = NOTHING_COUNTED
    """What all nodes add up to."""

    to_remove: OrderedDict[str, Node] = Factory(OrderedDict)
    """Free nodes that are to be removed whatever the demand, but for retained ones; by the instances' ids."""

    lists: Lists = Factory(Lists.empty)
    version: int = 0
    """Grows with each change of a node, or of what it is used for."""

    changed_sleepers: dict[str, None] = Factory(dict)
    """Of the nodes among `Lists.sleepers`: those that have changed, have come or have gone. `Sleepers` clears it."""

    cleans: bool = False
    """Whether slots are cleaned between jobs."""

    checks: bool = False
    """Whether nodes are asked for a sign of life before a slot is handed over."""

    why_blocked: str = ""
    """Why nothing of it is handed out for the moment; empty: it is."""

    @classmethod
    def empty(cls, pool: str, slots: int, max_uses: int, *, cleans: bool = False, checks: bool = False) -> "PoolSlots":
        """Without nodes."""
        by_busy: list[OrderedDict[str, Node]] = [OrderedDict() for _ in range(slots)]
        ordinary = [Counts(taken, slots - taken, 1) for taken in range(slots + 1)]
        return cls(pool, slots, max_uses, {}, by_busy, {}, ordinary, cleans=cleans, checks=checks)

    fresh: int = Factory(
        lambda self: min(self.per_node, self.max_uses) if self.max_uses else self.per_node, takes_self=True
    )
    """Slots that a new node offers."""

    rearranged: int = 0
    """Grows whenever a node may have come to be idle that had been so before, and was closed or retained meanwhile."""

    _last_rank: int = 0
    """No idle node has a higher `idle_rank`."""

    idle_sorted: bool = True
    """Whether the idle nodes are in the order in which they fell idle; not after one was closed for a while."""

    def settle(self, node: Node) -> None:
        """Bring counters, lists and order up to date with a node that has changed."""
        self.version += 1
        before, after = node.counts, contribution(node)
        node.counts = after
        if after is not before and after != before:
            self.counts = self.counts.moved(before, after)
            if after.to_remove and not before.to_remove:
                self.to_remove[node.instance] = node
            elif before.to_remove and not after.to_remove:
                del self.to_remove[node.instance]
        if after.rare is not before.rare:
            listed = zip(self.lists, before.rare[LISTED:], after.rare[LISTED:], strict=True)
            for nodes, was, is_ in listed:
                if is_ and not was:
                    nodes[node.instance] = node
                elif was and not is_:
                    del nodes[node.instance]
            if before.rare.sleepers or after.rare.sleepers:
                self.changed_sleepers[node.instance] = None
        self._place(node)

    def drop(self, node: Node) -> None:
        """Forget a node, which is closed for good."""
        self.version += 1
        del self.nodes[node.instance]
        if node.counts is NOTHING_COUNTED:  # it was given up before
            return
        self.counts = self.counts.moved(node.counts, NOTHING_COUNTED)
        for nodes in (self.to_remove, *self.lists):
            nodes.pop(node.instance, None)
        if node.counts.rare.sleepers:
            self.changed_sleepers[node.instance] = None

    def _place(self, node: Node) -> None:
        """Move a node to where it is found by how many of its slots are taken, if any other may be handed out."""
        usable, busy, before = node.counts.usable, self.per_node - len(node.vacant), node.place
        place = (busy, 0 if busy or node.retained else usable) if usable else None
        if place == before:
            return
        if before is not None:
            was_busy, cost = before
            del self.by_busy[was_busy][node.instance]
            if cost:
                idle = self.idle[cost]
                del idle[node.instance]
                if not idle:
                    del self.idle[cost]
        node.place = place
        if place is not None:
            self.by_busy[busy][node.instance] = node
            self.fullest = max(self.fullest, busy)
            if busy:
                return
            if place[1]:
                self.idle.setdefault(usable, OrderedDict())[node.instance] = node
            if node.idle_rank >= self._last_rank:
                self._last_rank = node.idle_rank
            else:  # it comes behind some that fell idle later
                self.idle_sorted = False

    def sort_idle(self) -> None:
        """Put the idle nodes in the order in which they fell idle, if they are not."""
        if not self.idle_sorted:
            for among in (self.by_busy[0], *self.idle.values()):
                nodes = sorted(among.items(), key=lambda item: item[1].idle_rank)
                among.clear()
                among.update(nodes)
            self.idle_sorted = True

    def longest_idle(self, most: int) -> Iterator[Node]:
        """Of the idle nodes that cost at most so many slots, and of each cost, the one that fell idle first."""
        self.sort_idle()
        return (next(iter(nodes.values())) for cost, nodes in self.idle.items() if cost <= most)


def node_id(pool: str, instance: str) -> str:
    """The id of an instance over all pools."""
    return f"{pool}/{instance}"
