"""The ledger: who holds which slot of which instance, and who waits. Pure.

An instance that may be given work is a `Node` here, and a lease is an `Assignment` of one of its slots. Each slot is in
exactly one state, and the counters of `Capacity` always add up to all slots:

- *acquired*: a lease holds it;
- *suspended*: a lease holds it that sleeps, and is out of the scaling maths until it is resumed;
- *reserved*: free, usable, and kept for a reservation;
- *idle*: free, usable, and for the next acquire;
- *unhealthy*: free, on a node that failed its heartbeats;
- *unavailable*: to be used by nobody: it is being cleaned, or it is free but its node is used up, paused, draining,
  doomed, asleep, cordoned or being removed.

Reservations and acquires wait in one queue, first come, first served. A reservation at its head is given
a slot to keep (it is then *fulfilled*); an acquire under the same key takes over the reservation's place. So
a reservation passes those that came later, and nobody waits behind them for ever.

Where slots are cleaned between jobs, one that was used is *dirty* until its clean-up has ended well. While that runs,
nobody is given the slot, and it counts as in use: it comes back, but not at once. What is dirty stands in the journal,
so that nobody is given it after a crash either. A node whose slot could not be cleaned is closed for good.

An acquire may be *bound*: its slot is to be of certain pools. It waits in a queue of its own with all that are bound to
the same, and those that came later pass it with slots that it cannot use. A slot that it can use goes to it before it
goes to them. Reservations are not bound, as the work that they are for is not known yet: one that turns into an acquire
bound to pools without a slot waits for one at its place, and what was kept for it is for others.

Every change is O(1), or O(log n) where somebody waits: nodes with room stand in `PoolSlots` by how many
of their slots are taken. The fullest are used first, so that others can fall idle; among idle ones the last
to fall idle is used first, so that the first can be given up.

A node whose instance is suspended is *asleep*: a resume of a lease there waits until it is ready again.
A lease that sleeps may expire: then it is as if it had been released, but that the one that comes back learns it.

A persistent lease outlives its manager. Until somebody reattaches it, or the time for that has passed, it is
*detached*: it is acquired like any other, and nobody holds it.

What only the owner of the ledger can know, it passes in: how many slots could still be created, when an
instance is gone, that the journal cannot be written.
"""

import heapq
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from math import inf

from fleeting.core import NOTHING, Drop, Put, Step, Timers, Write
from fleeting.events import Loss, LossKind
from taskscaler._errors import KeyInUse, LeaseExpired, LeaseLost, NoCapacity, NotDetached, NotHeld, NotSuspended
from taskscaler.core._expiries import Expiries
from taskscaler.core._slots import (
    AWAY,
    CORDON,
    DIRTY,
    FINAL,
    LEASE,
    USES,
    Assignment,
    Break,
    Capacity,
    Check,
    Clean,
    Closed,
    CordonRecord,
    Deliver,
    DetachedLease,
    DirtyRecord,
    Expired,
    ExpiredRecord,
    LeaseId,
    LeaseRecord,
    LostLease,
    Node,
    PoolSlots,
    Refuse,
    UsesRecord,
    Waiter,
    node_id,
)

FEW = 64
"""Entries of the queue that are not worth tidying up."""

NOT_READY = "it is not ready yet after a restart"
"""Why a node gets no work that an earlier manager used, or wanted to."""

WAS_IN_USE = "it was in use when its manager stopped"
"""Why instances of an earlier manager are removed."""

NOT_REATTACHED = "nobody reattached its lease in time after its manager stopped"
"""Why a detached lease is given up, and a node with it."""

KEPT_LOSSES = 1000
"""So many of the last lost leases are remembered for `explain`."""


class Ledger:
    """Slots, leases, reservations and waiters of all pools."""

    def __init__(
        self,
        pools: Iterable[PoolSlots],
        uses: Mapping[str, int] | None = None,
        kept: Mapping[str, LeaseRecord] | None = None,
        cordons: Mapping[str, str] | None = None,
        dirty: Iterable[DirtyRecord] = (),
        *,
        expired: Mapping[str, ExpiredRecord] | None = None,
        claim_until: float = -inf,
        reattach_by: float = inf,
        journaled: bool = True,
    ) -> None:
        """Start with no nodes, but those of leases that go on and of slots that have to be cleaned.

        Args:
            pools: The slots of each pool, in order of preference.
            uses: How often instances were given work in earlier lives of the manager, by node id.
            kept: Leases of earlier lives of the manager that go on, by key: suspended and persistent ones.
            cordons: Why instances get no new work, by node id; whether or not they are nodes yet.
            dirty: Slots that were used in earlier lives, of nodes that stay; cleaned when their nodes are ready. Where
                slots are not cleaned, the nodes get no more work.
            expired: Suspended leases that have expired, by key.
            claim_until: Before this moment none of the suspended ones expires: nobody could resume them while there was
                no manager.
            reattach_by: When those leases are given up that were held and that nobody has reattached.
            journaled: Whether anybody keeps a journal; else nothing is written of leases that come and go, of which
                there are many.
        """
        self._journaled = journaled
        self.pools = {pool_slots.pool: pool_slots for pool_slots in pools}
        self.leases: dict[str, Assignment] = {}
        self.detached: dict[str, Assignment] = {}
        """Of the leases, those that nobody holds, by key."""

        self.deadlines: Timers[str] = Timers()
        """When these are to be given up, by key; not those that somebody waits to be handed."""

        self.lost: OrderedDict[str, LostLease] = OrderedDict()
        """The last leases that were lost, by key, oldest first; whatever became of the key since."""

        self.pending = 0
        """Acquires that wait."""

        self.bound: dict[tuple[str, ...], int] = {}
        """How many of them wait for a slot of which pools, where not any will do; none of these is 0."""

        self.shut = ""
        """Why nothing is handed out at all, for now or for ever; empty: it is."""

        self.over = ""
        """Why nothing will ever be handed out again; empty: it will."""

        self._preferred = tuple(self.pools.values())
        for id_, count in (uses or {}).items():
            pool, _, instance = id_.partition("/")
            if pool in self.pools:
                self.pools[pool].uses[instance] = count
        for id_, why in (cordons or {}).items():
            pool, _, instance = id_.partition("/")
            if pool in self.pools:
                self.pools[pool].cordons[instance] = why
        self._fulfilled: dict[str, Waiter] = {}
        self._last_fulfilled: list[tuple[int, str]] = []
        """Heap of the negated tickets of those, and of some that are not among them any more."""

        self._waiters: dict[str, Waiter] = {}
        self._queue: list[tuple[int, str]] = []
        self._bound_queues: dict[tuple[str, ...], list[tuple[int, str]]] = {}
        """The same of acquires that are bound, by the pools to which they are."""

        self._ticket = 0
        self._idle_rank = 0
        self._numbered = 0
        """How many leases and clean-ups were given a number."""

        self.expiries = Expiries.of(expired or {})
        """When leases that sleep expire, and which have."""

        self._restore(kept or {}, claim_until, reattach_by)
        self._restore_dirty(dirty)

    def node(self, pool: str, instance: str) -> Node | None:
        """The instance as a node; None: it is none."""
        return self.pools[pool].nodes.get(instance)

    @property
    def nodes(self) -> dict[str, Node]:
        """All of them, by ``pool/instance``. O(n)."""
        return {node.id: node for pool_slots in self.pools.values() for node in pool_slots.nodes.values()}

    @property
    def to_remove(self) -> list[Node]:
        """Free nodes that are to be removed whatever the demand, but for retained ones; `retire` takes them off."""
        return [node for pool_slots in self.pools.values() for node in pool_slots.to_remove.values()]

    @property
    def suspendable(self) -> list[Node]:
        """Nodes that are kept only for leases that sleep, and whose instances might as well be suspended."""
        return [node for pool_slots in self.pools.values() for node in pool_slots.lists.suspendable.values()]

    @property
    def wake_requested(self) -> list[Node]:
        """Nodes that are away though somebody waits to resume a lease there, or a slot there has to be cleaned."""
        return [node for pool_slots in self.pools.values() for node in pool_slots.lists.wake_requested.values()]

    # --- asking and giving back --------------------------------------------------------------------------

    def acquire(
        self,
        key: str,
        now: float,
        expected: float = inf,
        place: int | None = None,
        *,
        persistent: bool = False,
        pools: tuple[str, ...] = (),
    ) -> Step:
        """Hand out a slot under *key*, or let it wait its turn.

        Args:
            key: Names the work; an earlier reservation under the same key is used up.
            now: Seconds since the epoch.
            expected: How long the work will take at the most, in seconds, if that is known.
            place: The ticket of an earlier lease, whose place in the queue is taken again; None: the last place.
            persistent: Whether the lease outlives its manager.
            pools: Of which pools the slot is to be, in order of preference; empty: of any, as they are preferred.

        Raises:
            KeyInUse: The key holds a slot, or waits for one.
            NoCapacity: Nothing will be handed out any more.
        """
        waiter = self._waiters.get(key)
        if waiter is not None:
            return self._convert(waiter, now, expected, persistent=persistent, pools=pools)
        if key in self.leases:
            raise KeyInUse(key)
        if place is None:
            self._ticket += 1
        ticket = self._ticket if place is None else min(place, self._ticket)
        if self.usable > len(self._fulfilled) and not self.shut and (not pools or self._has_usable(pools)):
            return self._assign(key, ticket, now, now, expected, persistent=persistent, pools=pools)
        if self.over:
            raise NoCapacity(self.over)
        self._wait(Waiter(key, ticket, now, False, expected, persistent, pools))
        if place is None:
            return NOTHING
        self._unfulfil(since=ticket)  # what is kept for a reservation that came later
        return self._serve(now)

    def release(self, key: str, now: float) -> Step:
        """Take a slot back; nothing happens if the key holds none."""
        assignment = self.leases.get(key)
        if assignment is None:
            return NOTHING
        self._end(assignment)
        if assignment.delivered and assignment.node.pool_slots.cleans:
            return self._clean(assignment, now)
        self._vacate(assignment, now)
        if not self._journaled:
            return self._serve(now) if self._queue or self._bound_queues else NOTHING
        if not (self._queue or self._bound_queues):
            return Step((Drop(LEASE, key),))
        served = self._serve(now)
        return Step((Drop(LEASE, key), *served.writes), served.actions)

    def replace(self, key: str, now: float, why: str) -> Step:
        """Give a lease's slot back, and hand one of another node out under its key, at its place in the queue.

        So that it is another one, the node is given no more work.

        Args:
            key: Of a lease that is held, or sleeps.
            now: Seconds since the epoch.
            why: What is wrong with the node.

        Raises:
            NotHeld: There is no such lease, or nobody has it.
            KeyInUse: Somebody waits to resume it.
            NoCapacity: Nothing will be handed out any more; the lease stays.
        """
        assignment = self.leases.get(key)
        if assignment is None or not assignment.delivered or assignment.detached:
            raise NotHeld(key, detached=assignment is not None and assignment.detached)
        if assignment.resuming:
            raise KeyInUse(key)
        if self.over:
            raise NoCapacity(self.over)
        node, expected = assignment.node, assignment.ends_by - assignment.since
        if node.closed in AWAY:
            node.suspect = why
            _stop_cleaning(node)
            node.pool_slots.settle(node)
            self._unfulfil()
        else:
            self.close(node, Closed.UNHEALTHY, why)
        self._end(assignment)
        freed: Step = Step((Drop(LEASE, key),))
        if node.pool_slots.cleans:
            freed = self._clean(assignment, now)
        else:
            self._vacate(assignment, now)
        self._wait(Waiter(key, assignment.ticket, now, False, expected, assignment.persistent, assignment.pools))
        self._unfulfil(since=assignment.ticket)
        served = self.take_back(node, now)
        return Step((*freed.writes, *served.writes), served.actions)

    def cancel(self, key: str, now: float) -> Step:
        """End what waits, has reserved, or is just being handed a slot under *key*."""
        waiter = self._waiters.pop(key, None)
        assignment = self.detached.get(key)
        if assignment is not None:
            self._detach(assignment, assignment.reattach_by)
            return NOTHING
        assignment = self.leases.get(key)
        if assignment is not None and assignment.resuming:
            assignment.resuming = False
            assignment.node.pool_slots.settle(assignment.node)
            self.expiries.expect(assignment)
            return self.suspend(assignment.id, now)
        if waiter is None:
            return self.release(key, now)
        self._fulfilled.pop(key, None)
        self._count_out(waiter)
        return self._serve(now)

    def suspend(self, lease: LeaseId, now: float, expires_at: float | None = None) -> Step:
        """Let a lease sleep: it keeps its slot and its node, and counts as demand no more.

        Args:
            lease: Which.
            now: Seconds since the epoch.
            expires_at: When it ends if nobody has resumed it by then, or infinite. None: as it was when it slept last.
        """
        assignment = self.find(lease)
        if assignment is None or assignment.suspended:
            return NOTHING
        if expires_at is not None:
            assignment.expires_at = expires_at
        self.expiries.expect(assignment)
        if assignment.detached:
            self._attach(assignment)
        assignment.node.asleep[assignment.slot] = assignment.node.awake.pop(assignment.slot)
        assignment.node.pool_slots.settle(assignment.node)
        if assignment.node.rests:
            assignment.node.idle_since = now
        return Step((Put(LEASE, assignment.key, assignment.record()),))

    def resume(self, key: str) -> Step:
        """Wake a suspended lease, as soon as its node is ready.

        Raises:
            LeaseExpired: One did, for too long.
            NotSuspended: No lease sleeps under the key.
        """
        assignment = self.leases.get(key)
        if assignment is None and (late := self.expiries.expired.get(key)) is not None:
            raise LeaseExpired(key, late.at)
        if assignment is None or not assignment.suspended or assignment.resuming:
            raise NotSuspended(key)
        assignment.resuming = True
        self.expiries.cancel(key)
        assignment.node.pool_slots.settle(assignment.node)
        return NOTHING if assignment.node.closed in AWAY else self._wake(assignment)

    def expire(self, now: float) -> Step:
        """Free the slots of those that have slept for too long."""
        writes: list[Write] = []
        actions: list[object] = []
        for key in self.expiries.due(now):
            assignment = self.leases[key]
            freed = self.release(key, now)
            record = ExpiredRecord(assignment.node.id, assignment.slot, assignment.expires_at)
            writes += [*freed.writes, *self.expiries.note(key, record)]
            actions += [Expired(assignment.id), *freed.actions]
        return Step(writes, actions) if actions else NOTHING

    def reattach(self, key: str) -> Step:
        """Hand a detached lease over, as soon as its node is ready.

        Raises:
            NotDetached: No lease is detached under the key, or somebody is being handed it.
            LeaseLost: It was detached, and its instance was lost, or it was given up.
            NoCapacity: Nothing will be handed out any more.
        """
        assignment = self.detached.get(key)
        if assignment is None:
            lost = self.lost.get(key)
            if lost is not None and lost.detached and key not in self.leases:
                raise LeaseLost(key, lost.lease.instance, lost.loss)
            raise NotDetached(key, self._why_not_detached(key), held=key in self.leases)
        if assignment.resuming:
            raise NotDetached(key, "is being reattached by somebody else", held=True)
        if self.over:
            raise NoCapacity(self.over)
        assignment.resuming = True
        self.deadlines.cancel(key)
        assignment.node.pool_slots.settle(assignment.node)
        return NOTHING if assignment.node.closed in AWAY else Step((), (Deliver(assignment.id),))

    def detach(self, lease: LeaseId, by: float) -> None:
        """Keep a persistent lease that its holder lets go of, for somebody to reattach until then."""
        assignment = self.find(lease)
        if assignment is not None and assignment.delivered and not assignment.suspended:
            self._detach(assignment, by)

    def bound_detached(self, key: str, by: float) -> None:
        """Keep a detached lease until then; nothing happens if there is none, or somebody has it by now."""
        assignment = self.detached.get(key)
        if assignment is not None:
            assignment.reattach_by = by
            if not assignment.resuming:
                self.deadlines.set(key, by)

    def detach_all(self, why: str) -> Step:
        """Take persistent leases out of their holders' hands, and keep them for the next manager. O(n)."""
        kept = [each for each in self.leases.values() if each.persistent and each.delivered and not each.suspended]
        actions: list[object] = []
        for assignment in kept:
            if not assignment.detached:
                actions.append(Break(assignment.id, Loss(LossKind.KILLED, why)))
            elif assignment.resuming:
                actions.append(Refuse(assignment.key, why))
            self._detach(assignment, inf)
        return Step((), actions)

    def give_up(self, key: str, now: float, *, used_on: bool) -> Step:
        """End a detached lease that nobody has reattached in time. What ran in its slot may still run.

        So the slot is cleaned, where slots are and the node stays for others; else the node gets no more work.

        Args:
            key: Of the lease.
            now: Seconds since the epoch.
            used_on: Whether the node is used on in any case, the slot being cleaned if slots are.
        """
        assignment = self.detached[key]
        node, loss = assignment.node, Loss(LossKind.KILLED, NOT_REATTACHED)
        self._note_loss(assignment, loss, now, detached=True)
        if used_on or (node.pool_slots.cleans and (len(node.leases) > 1 or node.retained)):
            step = self.release(key, now)
            return Step(step.writes, (Break(assignment.id, loss), *step.actions))
        self._end(assignment)
        dirty = self._mark_dirty(assignment)
        self._vacate(assignment, now)
        if node.closed not in AWAY or not node.leases:  # else once it is ready
            self.close(node, Closed.DRAINING, NOT_REATTACHED)
        return Step((Drop(LEASE, key), dirty), (Break(assignment.id, loss),))

    def reserve(self, key: str, now: float, potential: int) -> Step:
        """Keep a slot for an acquire to come.

        Args:
            key: What the acquire will be made under.
            now: Seconds since the epoch.
            potential: How many slots, beyond those that can be handed out now, count as available; negative where some
                of these do not.

        Raises:
            KeyInUse: The key holds a slot, waits for one, or is reserved.
            NoCapacity: All of that is taken or promised; `possible` is left to the caller.
        """
        if key in self.leases or key in self._waiters:
            raise KeyInUse(key)
        if self.shut:
            raise NoCapacity(self.shut)
        if not self.has_room(potential):
            raise NoCapacity("every possible slot is taken or reserved")
        self._ticket += 1
        self._wait(Waiter(key, self._ticket, now, True, inf))
        return self._serve(now)

    def has_room(self, potential: int) -> bool:
        """Whether there is a slot for one more, if so many come or could be created beyond those that are usable.

        Who is bound, and waits, cannot use those that can be handed out now; what is to come may be for them.
        """
        bound = self.pending - self.pending_for_any
        for_all = min(potential, 0) if potential < bound else potential - bound
        return self.usable + for_all > len(self._waiters) - bound

    def unreserve(self, key: str, now: float) -> Step:
        """Give a reservation up; nothing happens if there is none."""
        waiter = self._waiters.get(key)
        return self.cancel(key, now) if waiter is not None and waiter.reserves else NOTHING

    def find(self, lease: LeaseId) -> Assignment | None:
        """The lease, if it has not ended."""
        assignment = self.leases.get(lease.key)
        return assignment if assignment is not None and assignment.id.number == lease.number else None

    def deliver(self, lease: LeaseId) -> bool:
        """Note that the slot is being handed over. False: it no longer stands, and must not be."""
        assignment = self.find(lease)
        if assignment is None or (assignment.delivered and not assignment.resuming):
            return False
        assignment.delivered, assignment.resuming = True, False
        if assignment.detached:
            self._attach(assignment)
        return True

    def check(self, lease: LeaseId) -> bool:
        """Note that the slot's node is asked for a sign of life. False: it no longer stands, and need not be."""
        assignment = self.find(lease)
        if assignment is not None:
            assignment.checked = True
        return assignment is not None

    # --- nodes come, change and go -----------------------------------------------------------------------

    def add(self, pool: str, instance: str, now: float, *, draining: str = "") -> Step:
        """Take in an instance that became ready; *draining*: why it is given no work even so."""
        node = self.node(pool, instance) or self._make(pool, instance)
        node.idle_since = now
        self._idle_rank += 1
        node.idle_rank = self._idle_rank
        cleaning = tuple(node.cleaning.values())
        spent = draining or node.suspect or (WAS_IN_USE if node.spoiled else "")
        self._reclose(node, Closed.DRAINING if spent else None, spent)
        if not (cleaning or node.asleep or node.awake):  # it is new, as mostly
            return self._serve(now)
        woken = [self._wake(assignment) for assignment in node.leases if assignment.resuming]
        steps = (*woken, Step((), cleaning), self._serve(now))
        return Step([write for step in steps for write in step.writes], [act for step in steps for act in step.actions])

    def sleep(self, pool: str, instance: str, why: str) -> None:
        """The instance, which need not be a node yet, is suspended or about to be; nothing runs there."""
        node = self.node(pool, instance) or self._make(pool, instance)
        self._reclose(node, Closed.ASLEEP, why)
        sleepers = node.pool_slots.lists.sleepers
        if instance in sleepers:
            sleepers.move_to_end(instance)
        self._unfulfil()

    def wake(self, node: Node) -> None:
        """Its instance is on its way to being ready again."""
        self._reclose(node, Closed.WAKING, "it is being resumed")

    def wants(self, clean: Clean) -> bool:
        """Whether the slot waits for that clean-up; not if its node was given up meanwhile."""
        node = self.node(clean.pool, clean.instance)
        return node is not None and node.cleaning.get(clean.slot) == clean

    def cleaned(self, clean: Clean, now: float) -> Step:
        """Take a slot back that is clean again; nothing happens if that is not wanted any more."""
        if not self.wants(clean):
            return NOTHING
        node = self.pools[clean.pool].nodes[clean.instance]
        del node.cleaning[clean.slot], node.dirty[clean.slot]
        self._free(node, clean.slot, now)
        served = self._serve(now)
        return Step((Drop(DIRTY, f"{node.id}/{clean.slot}"), *served.writes), served.actions)

    def close(self, node: Node, closed: Closed, why: str) -> None:
        """Hand out nothing more of the node; what is held there stays held.

        Closed for good, it is not cleaned any more either.
        """
        if node.closed not in FINAL:
            self._reclose(node, closed, why)
            self._unfulfil()

    def reopen(self, node: Node, now: float) -> Step:
        """Hand out its slots again, unless it was closed for good."""
        if node.closed in FINAL:
            return NOTHING
        node.pool_slots.rearranged += 1
        self._reclose(node, None, "")
        return self._serve(now)

    def cordon(self, pool: str, instance: str, why: str) -> Step:
        """Hand out nothing more of the instance, which need not be a node yet, until `uncordon`."""
        self.pools[pool].cordons[instance] = why
        self._settle_if_node(pool, instance)
        self._unfulfil()
        return Step((Put(CORDON, node_id(pool, instance), CordonRecord(why)),))

    def uncordon(self, pool: str, instance: str, now: float) -> Step:
        """Hand out its slots again, unless it is closed for another reason; nothing happens if it is not cordoned."""
        if self.pools[pool].cordons.pop(instance, None) is None:
            return NOTHING
        self.pools[pool].rearranged += 1
        self._settle_if_node(pool, instance)
        served = self._serve(now)
        return Step((Drop(CORDON, node_id(pool, instance)), *served.writes), served.actions)

    def block(self, pool: str, why: str, now: float) -> Step:
        """Hand out nothing more of a whole pool, or do so again if *why* is empty. O(its nodes)."""
        pool_slots = self.pools[pool]
        pool_slots.why_blocked = why
        pool_slots.rearranged += 1
        for node in pool_slots.nodes.values():
            node.pool_slots.settle(node)
        self._unfulfil()
        return self._serve(now)

    def offers(self, node: Node) -> bool:
        """Whether neither its operator nor what has become of its pool keeps a node from being given work."""
        return node.cordoned is None and not node.pool_slots.why_blocked

    def why_cordoned(self, pool: str, instance: str) -> str | None:
        """Why the instance gets no new work, whether or not it is a node yet; None: it is not cordoned."""
        return self.pools[pool].cordons.get(instance)

    def retain(self, node: Node, *, retained: bool) -> None:
        """Keep the node from being given up and from being put to sleep, or no longer."""
        node.retained = retained
        node.pool_slots.rearranged += 1
        node.pool_slots.settle(node)

    def confirm_alive(self, node: Node) -> Step:
        """The node gave a sign of life: hand over those slots for which it was asked."""
        alive = [assignment for assignment in node.leases if assignment.checked]
        for assignment in alive:
            assignment.checked = False  # or the next sign of life would hand it over once more
        return Step((), [Deliver(assignment.id) for assignment in alive])

    def take_back(self, node: Node, now: float) -> Step:
        """Where a node is closed: those who have not been handed their slots of it yet wait again."""
        return self._break([assignment for assignment in node.leases if not assignment.delivered], None, now)

    def break_late(self, node: Node, deadline: float, loss: Loss, now: float) -> Step:
        """Break those leases of the node whose work is not known to be done by the deadline."""
        return self._break([assignment for assignment in node.leases if assignment.ends_by > deadline], loss, now)

    def break_one(self, lease: LeaseId, loss: Loss, now: float) -> Step:
        """Break a single lease of a node that is closed for good, if it has not ended."""
        assignment = self.find(lease)
        return self._break([assignment] if assignment is not None else [], loss, now)

    def break_all(self, node: Node, loss: Loss, now: float, *, all_too: bool = True) -> Step:
        """Break every lease of a node that is closed for good, or at the end; but perhaps those that outlast it."""
        broken = [each for each in node.leases if all_too or not (each.suspended or each.detached)]
        return self._break(broken, loss, now)

    def lose(self, node: Node, loss: Loss, now: float) -> Step:
        """The node is gone, and with it what is held there."""
        if node.closed is Closed.RETIRED and not (node.busy or node.dirty):  # given up before, as mostly
            node.pool_slots.drop(node)
            return NOTHING
        given_up = tuple(node.cleaning.values())
        self._reclose(node, Closed.RETIRED, str(loss))
        self._unfulfil()
        step = self.break_all(node, loss, now)
        step = Step(step.writes, (*step.actions, *given_up))
        node.pool_slots.drop(node)
        if not node.dirty:
            return step
        return Step((*step.writes, *(Drop(DIRTY, f"{node.id}/{slot}") for slot in node.dirty)), step.actions)

    def retire(self, node: Node) -> None:
        """Give a free node up: it is being removed, and must not be handed out on the way."""
        if node.busy or node.retained:
            raise AssertionError(f"{node.id} is {'busy' if node.busy else 'retained'} and may not be removed")
        self._reclose(node, Closed.RETIRED, "given up")
        self._unfulfil()

    def end(self, pool: str, instance: str, now: float) -> Step:
        """The instance is no more, whether or not it ever was ready; nothing need be known of it any longer."""
        pool_slots = self.pools[pool]
        returning = pool_slots.nodes.get(instance)
        broken = NOTHING
        if returning is not None:
            broken = self.lose(returning, Loss(LossKind.VANISHED, "it did not survive its manager"), now)
        writes = [*broken.writes]
        if pool_slots.uses.pop(instance, None) is not None and self._journaled:
            writes.append(Drop(USES, node_id(pool, instance)))
        if pool_slots.cordons.pop(instance, None) is not None:
            writes.append(Drop(CORDON, node_id(pool, instance)))
        return Step(writes, broken.actions) if writes or broken.actions else NOTHING

    def longest_idle(self, pool: str) -> Iterator[Node]:
        """The pool's usable nodes of which no slot is acquired, the one that fell idle first at first."""
        pool_slots = self.pools[pool]
        pool_slots.sort_idle()
        return iter(pool_slots.by_busy[0].values())

    def idle_by_usable(self, pool: str) -> Iterator[Iterator[Node]]:
        """The same, but for retained ones, apart by how many usable slots they have."""
        pool_slots = self.pools[pool]
        pool_slots.sort_idle()
        return (iter(pool_slots.idle[cost].values()) for cost in sorted(pool_slots.idle))

    def idle_cordoned(self, pool: str) -> Iterator[Node]:
        """Those of the pool's cordoned nodes that could be used otherwise, and may be given up. O(cordoned nodes)."""
        for node in self.pools[pool].lists.cordoned.values():
            if not (node.busy or node.closed or node.retained or node.counts.to_remove):
                yield node

    # --- closing for all ---------------------------------------------------------------------------------

    def shut_down(self, why: str) -> Step:
        """Hand out nothing any more, and refuse all that wait."""
        self.shut = self.over = why
        refused = [Refuse(waiter.key, why) for waiter in self._waiters.values() if not waiter.reserves]
        self._waiters.clear()
        self._fulfilled.clear()
        self._last_fulfilled.clear()
        self._queue.clear()
        self._bound_queues.clear()
        self.pending = 0
        self.bound.clear()
        return Step((), refused)

    def hold_back(self, why: str) -> None:
        """Hand out nothing until `hand_out_again`, for this reason from now on; what waits goes on waiting."""
        self.shut = self.over or why

    def hand_out_again(self, why: str, now: float) -> Step:
        """Undo `hold_back` with the same reason."""
        if self.shut == why:
            self.shut = self.over
        return self._serve(now)

    # --- counters ----------------------------------------------------------------------------------------

    @property
    def usable(self) -> int:
        """Slots that can be handed out now, those kept for reservations included."""
        usable = 0
        for pool_slots in self._preferred:
            usable += pool_slots.counts.usable
        return usable

    @property
    def acquired(self) -> int:
        """Slots in somebody's hands, or on their way there."""
        return sum(pool_slots.counts.acquired for pool_slots in self.pools.values())

    @property
    def held(self) -> int:
        """The same without detached leases that nobody waits for. O(detached leases)."""
        return self.acquired - sum(not each.resuming for each in self.detached.values())

    @property
    def cleaning(self) -> int:
        """Slots that are being cleaned."""
        return sum(pool_slots.counts.rare.cleaning for pool_slots in self.pools.values())

    @property
    def reserved(self) -> int:
        """All reservations, whether a slot is kept for them or not."""
        return len(self._waiters) - self.pending

    @property
    def fulfilled(self) -> int:
        """Reservations that a slot is kept for."""
        return len(self._fulfilled)

    @property
    def pending_for_any(self) -> int:
        """Acquires that wait for a slot of any pool. O(sets of pools that others wait for)."""
        return self.pending - sum(self.bound.values()) if self.bound else self.pending

    @property
    def waiting_since(self) -> float | None:
        """When the first of the acquires that wait was asked for; None: nobody waits."""
        return next((each.asked_at for each in self._waiters.values() if not each.reserves), None)

    def waiter(self, key: str) -> Waiter | None:
        """Who waits or has reserved under the key, if anybody does."""
        return self._waiters.get(key)

    def queue(self) -> list[Waiter]:
        """Acquires and reservations that no slot is there for, first come first. O(n log n)."""
        queued = [waiter for waiter in self._waiters.values() if waiter.key not in self._fulfilled]
        return sorted(queued, key=lambda waiter: (waiter.ticket, waiter.key))

    def kept_reservations(self) -> list[Waiter]:
        """Reservations that a slot is kept for, first come first. O(n log n)."""
        return sorted((self._waiters[key] for key in self._fulfilled), key=lambda each: (each.ticket, each.key))

    def list_detached(self) -> list[DetachedLease]:
        """Leases that nobody holds, oldest first. O(n log n)."""
        return [
            DetachedLease(
                key=each.key,
                pool=each.node.pool,
                instance=each.node.instance,
                slot=each.slot,
                since=each.since,
                reattach_by=each.reattach_by,
            )
            for each in sorted(self.detached.values(), key=lambda each: (each.since, each.key))
        ]

    def dirty(self) -> dict[str, DirtyRecord]:
        """Slots that were used and not cleaned since, by their keys in the journal. O(n)."""
        return {f"{node.id}/{slot}": record for node in self.nodes.values() for slot, record in node.dirty.items()}

    def capacity(self) -> Capacity:
        """Count. O(pools)."""
        pools, usable = self.pools.values(), self.usable
        acquired = self.acquired
        suspended = sum(pool_slots.counts.rare.suspended for pool_slots in pools)
        unhealthy = sum(pool_slots.counts.rare.unhealthy for pool_slots in pools)
        every = sum(len(pool_slots.nodes) * pool_slots.per_node for pool_slots in pools)
        return Capacity(
            idle=usable - len(self._fulfilled),
            reserved=len(self._fulfilled),
            acquired=acquired,
            suspended=suspended,
            unavailable=every - acquired - suspended - unhealthy - usable,
            unhealthy=unhealthy,
            pending=self.pending,
            promised=self.reserved - len(self._fulfilled),
        )

    # --- inside ------------------------------------------------------------------------------------------

    def _restore(self, kept: Mapping[str, LeaseRecord], claim_until: float, reattach_by: float) -> None:
        """Take up leases that go on; their nodes are expected back."""
        for key, record in kept.items():
            pool, _, instance = record.host.partition("/")
            if pool not in self.pools:
                continue
            node = self.node(pool, instance) or self._make(pool, instance)
            node.why_closed = NOT_READY
            if record.slot in node.vacant:  # fewer slots than before, and this one is no more
                _take(node, record.slot)
                since = record.since
                expires_at = inf if record.expires_at is None else max(record.expires_at, claim_until)
                self._numbered += 1
                assignment = Assignment(
                    LeaseId(key, self._numbered, pool, instance, record.slot),
                    node,
                    since,
                    0,
                    since,
                    inf,
                    delivered=True,
                    expires_at=expires_at,
                    persistent=record.persistent,
                    pools=tuple(each for each in record.pools if each in self.pools),
                )
                among = node.asleep if record.suspended else node.awake
                among[record.slot] = self.leases[key] = assignment
                if record.suspended:
                    self.expiries.expect(assignment)
                else:
                    self._detach(assignment, reattach_by)
            node.pool_slots.settle(node)

    def _restore_dirty(self, dirty: Iterable[DirtyRecord]) -> None:
        """Take up slots that were not cleaned after their last use; that begins once their nodes are ready."""
        for record in dirty:
            pool, _, instance = record.host.partition("/")
            if pool not in self.pools:
                continue
            node = self.node(pool, instance) or self._make(pool, instance)
            node.why_closed = NOT_READY
            if record.slot in node.vacant:
                node.dirty[record.slot] = record
                if node.pool_slots.cleans:
                    _take(node, record.slot)
                    node.cleaning[record.slot] = self._clean_up(node, record.slot, record.key)
            node.pool_slots.settle(node)

    def _make(self, pool: str, instance: str) -> Node:
        """A node as it is before it is ready."""
        pool_slots = self.pools[pool]
        node = pool_slots.nodes[instance] = Node(pool_slots, instance, list(range(pool_slots.per_node)))
        return node

    def _wake(self, assignment: Assignment) -> Step:
        """Give a lease back to the resume, or reattach, that waits for it."""
        if assignment.detached:
            return Step((), (Deliver(assignment.id),))
        assignment.node.awake[assignment.slot] = assignment.node.asleep.pop(assignment.slot)
        assignment.node.pool_slots.settle(assignment.node)
        return Step((Put(LEASE, assignment.key, assignment.record()),), (Deliver(assignment.id),))

    def _detach(self, assignment: Assignment, by: float) -> None:
        """Nobody holds it, nor waits for it; somebody may reattach it until then."""
        assignment.detached, assignment.reattach_by, assignment.resuming = True, by, False
        self.detached[assignment.key] = assignment
        self.deadlines.set(assignment.key, by)
        assignment.node.pool_slots.settle(assignment.node)

    def _attach(self, assignment: Assignment) -> None:
        """Somebody has it, though it was detached."""
        assignment.detached, assignment.reattach_by = False, inf
        del self.detached[assignment.key]
        self.deadlines.cancel(assignment.key)

    def _end(self, assignment: Assignment) -> None:
        """There is no such lease any more, but for its slot."""
        key = assignment.id.key
        if assignment.detached:
            self._attach(assignment)
        if assignment.expires_at < inf:
            self.expiries.cancel(key)
        del self.leases[key]

    def _why_not_detached(self, key: str) -> str:
        """What there is under a key instead of a detached lease."""
        assignment = self.leases.get(key)
        if assignment is None:
            return "is not detached; `detached` lists the leases that are"
        return "is suspended; resume it instead" if assignment.suspended else "is held already"

    def _convert(
        self, reservation: Waiter, now: float, expected: float, *, persistent: bool, pools: tuple[str, ...]
    ) -> Step:
        """Turn a reservation into an acquire, at its place in the queue."""
        if not reservation.reserves:
            raise KeyInUse(reservation.key)
        del self._waiters[reservation.key]
        key, ticket = reservation.key, reservation.ticket
        was_kept = self._fulfilled.pop(key, None) is not None
        if was_kept and not self.shut and (not pools or self._has_usable(pools)):
            return self._assign(key, ticket, now, now, expected, persistent=persistent, pools=pools)
        self._wait(Waiter(key, ticket, now, False, expected, persistent, pools))
        return self._serve(now) if was_kept else NOTHING

    def _has_usable(self, pools: Iterable[str]) -> bool:
        """Whether any of these pools has a slot that can be handed out, kept or not."""
        return any(self.pools[pool].counts.usable for pool in pools)

    def _wait(self, waiter: Waiter) -> None:
        """Put into the queue, by ticket."""
        self._waiters[waiter.key] = waiter
        self.pending += not waiter.reserves
        if waiter.pools:
            self.bound[waiter.pools] = self.bound.get(waiter.pools, 0) + 1
        self._queue_up(waiter)

    def _count_out(self, waiter: Waiter) -> None:
        """It waits no more."""
        self.pending -= not waiter.reserves
        if waiter.pools:
            self.bound[waiter.pools] -= 1
            if not self.bound[waiter.pools]:
                del self.bound[waiter.pools]

    def _queue_up(self, waiter: Waiter) -> None:
        """Put into the queue, and tidy that up where most have left it without having been served."""
        queue = self._bound_queues.setdefault(waiter.pools, []) if waiter.pools else self._queue
        heapq.heappush(queue, (waiter.ticket, waiter.key))
        if len(queue) > max(FEW, 4 * len(self._waiters)):
            queue[:] = [
                (each.ticket, key)
                for key, each in self._waiters.items()
                if key not in self._fulfilled and each.pools == waiter.pools
            ]
            heapq.heapify(queue)

    def _serve(self, now: float) -> Step:
        """Give what can be handed out to those who have waited longest."""
        writes: list[Write] = []
        actions: list[object] = []
        while (self._queue or self._bound_queues) and self.usable > len(self._fulfilled) and not self.shut:
            waiter = self._next()
            if waiter is None:
                break
            key = waiter.key
            if waiter.reserves:
                self._fulfil(waiter)
                continue
            del self._waiters[key]
            self._count_out(waiter)
            step = self._assign(
                key,
                waiter.ticket,
                now,
                waiter.asked_at,
                waiter.expected,
                persistent=waiter.persistent,
                pools=waiter.pools,
            )
            writes += step.writes
            actions += step.actions
        return Step(writes, actions) if actions else NOTHING

    def _next(self) -> Waiter | None:
        """Take out of the queues who has waited longest of those whom a slot can be given to that is usable now."""
        first = self._head((), self._queue)
        for pools, queue in [*self._bound_queues.items()] if self._bound_queues else ():
            head = self._head(pools, queue)
            if head is None:
                del self._bound_queues[pools]
            elif (first is None or (head.ticket, head.key) < (first.ticket, first.key)) and self._has_usable(pools):
                first = head
        if first is not None:
            heapq.heappop(self._bound_queues[first.pools] if first.pools else self._queue)
        return first

    def _head(self, pools: tuple[str, ...], queue: list[tuple[int, str]]) -> Waiter | None:
        """Who is first in a queue; entries are dropped that were overtaken: cancelled, or put in again elsewhere."""
        while queue:
            ticket, key = queue[0]
            waiter = self._waiters.get(key)
            if waiter is not None and waiter.ticket == ticket and waiter.pools == pools and key not in self._fulfilled:
                return waiter
            heapq.heappop(queue)
        return None

    def _fulfil(self, waiter: Waiter) -> None:
        """Keep a slot for a reservation."""
        self._fulfilled[waiter.key] = waiter
        heapq.heappush(self._last_fulfilled, (-waiter.ticket, waiter.key))
        if len(self._last_fulfilled) > max(FEW, 4 * len(self._fulfilled)):
            self._last_fulfilled = [(-each.ticket, key) for key, each in self._fulfilled.items()]
            heapq.heapify(self._last_fulfilled)

    def _unfulfil(self, since: float = inf) -> None:
        """Where slots went away, reservations lose theirs, the last first, and queue up again.

        So do those that came since somebody who waits again. One with the very same ticket, which a place that was
        taken again after a restart may be, queues up, too: where both wait, the queue says who is first.
        """
        if not self._fulfilled:  # as mostly
            return
        surplus = len(self._fulfilled) - self.usable
        while self._fulfilled and self._last_fulfilled:
            ticket, key = -self._last_fulfilled[0][0], self._last_fulfilled[0][1]
            waiter = self._fulfilled.get(key)
            if waiter is not None and waiter.ticket == ticket:
                if surplus <= 0 and ticket < since:
                    return
                surplus -= 1
                del self._fulfilled[key]
                self._queue_up(waiter)
            heapq.heappop(self._last_fulfilled)

    def _assign(
        self,
        key: str,
        ticket: int,
        now: float,
        asked_at: float,
        expected: float,
        *,
        persistent: bool,
        pools: tuple[str, ...] = (),
    ) -> Step:
        """Hand out a slot; there is one."""
        node = self._pick(pools)
        pool_slots, slot = node.pool_slots, heapq.heappop(node.vacant)
        self._numbered += 1
        lease = LeaseId(key, self._numbered, pool_slots.pool, node.instance, slot)
        node.awake[slot] = self.leases[key] = Assignment(
            lease, node, now, ticket, asked_at, now + expected, persistent=persistent, pools=pools
        )
        uses = pool_slots.uses[node.instance] = pool_slots.uses.get(node.instance, 0) + 1
        pool_slots.settle(node)
        writes: tuple[Write, ...] = ()
        if self._journaled:
            record = LeaseRecord(node.id, slot, now, False, None, persistent, pools)
            writes = Put(LEASE, key, record), Put(USES, node.id, UsesRecord(uses))
        if self.expiries.expired:
            writes = (*writes, *self.expiries.forget(key))
        return Step(writes, (Check(lease) if pool_slots.checks else Deliver(lease),))

    def _pick(self, pools: tuple[str, ...]) -> Node:
        """The fullest node with a usable slot, in the first pool that has one; of these, if there are any."""
        for pool_slots in [self.pools[pool] for pool in pools] if pools else self._preferred:
            if pool_slots.counts.usable:
                break
        if not pool_slots.idle_sorted:
            pool_slots.sort_idle()
        while not pool_slots.by_busy[pool_slots.fullest]:
            pool_slots.fullest -= 1
        return next(reversed(pool_slots.by_busy[pool_slots.fullest].values()))

    def _clean(self, assignment: Assignment, now: float) -> Step:
        """Take back a slot that was used: it is cleaned first, if anybody may be given it after that."""
        node = assignment.node
        writes = (Drop(LEASE, assignment.key), self._mark_dirty(assignment))
        if node.closed in FINAL or node.suspect or node.uses_left <= 0:
            self._vacate(assignment, now)
            return Step(writes)
        _let_go(assignment)
        clean = node.cleaning[assignment.slot] = self._clean_up(node, assignment.slot, assignment.key)
        node.pool_slots.settle(node)
        return Step(writes, () if node.closed in AWAY else (clean,))  # else once it is back

    def _mark_dirty(self, assignment: Assignment) -> Put:
        """Note that the slot was used."""
        record = assignment.node.dirty[assignment.slot] = DirtyRecord(
            assignment.node.id, assignment.slot, assignment.key
        )
        return Put(DIRTY, f"{assignment.node.id}/{assignment.slot}", record)

    def _vacate(self, assignment: Assignment, now: float) -> None:
        """Free the slot. The use stays counted."""
        _let_go(assignment)
        self._free(assignment.node, assignment.id.slot, now)

    def _free(self, node: Node, slot: int, now: float) -> None:
        """Have one more free slot."""
        heapq.heappush(node.vacant, slot)
        if not (node.awake or node.cleaning):
            node.idle_since = now
            if not node.asleep:
                self._idle_rank += 1
                node.idle_rank = self._idle_rank
        node.pool_slots.settle(node)

    def _clean_up(self, node: Node, slot: int, key: str) -> Clean:
        self._numbered += 1
        return Clean(node.pool_slots.pool, node.instance, slot, key, self._numbered)

    def _reclose(self, node: Node, closed: Closed | None, why: str) -> None:
        """Change whether and why the node is closed."""
        node.closed = closed
        node.why_closed = why
        if closed in FINAL:
            _stop_cleaning(node)
        node.pool_slots.settle(node)

    def _settle_if_node(self, pool: str, instance: str) -> None:
        """The same, if the instance is a node."""
        node = self.node(pool, instance)
        if node is not None:
            node.pool_slots.settle(node)

    def _break(self, broken: Iterable[Assignment], loss: Loss | None, now: float) -> Step:
        """Break leases; *loss* may be None where none was delivered.

        An acquire that has not been handed the slot yet notices nothing: it waits again, at its old place.
        """
        writes: list[Write] = []
        actions: list[object] = []
        for assignment in broken:
            detached = assignment.detached
            self._end(assignment)
            self._vacate(assignment, now)
            writes.append(Drop(LEASE, assignment.key))
            if assignment.delivered and assignment.node.pool_slots.cleans:
                writes.append(self._mark_dirty(assignment))
            if assignment.delivered and loss is not None:
                actions.append(Break(assignment.id, loss))
                self._note_loss(assignment, loss, now, detached=detached)
            elif self.over:
                actions.append(Refuse(assignment.key, self.over))
            else:
                self._wait(
                    Waiter(
                        assignment.key,
                        assignment.ticket,
                        assignment.asked_at,
                        False,
                        assignment.ends_by - assignment.since,
                        assignment.persistent,
                        assignment.pools,
                    )
                )
                self._unfulfil(since=assignment.ticket)
        served = self._serve(now)
        return Step((*writes, *served.writes), (*actions, *served.actions))

    def _note_loss(self, assignment: Assignment, loss: Loss, now: float, *, detached: bool) -> None:
        """Remember it for a while."""
        self.lost.pop(assignment.key, None)
        self.lost[assignment.key] = LostLease(now, assignment.id, loss, detached)
        if len(self.lost) > KEPT_LOSSES:
            self.lost.popitem(last=False)


def _take(node: Node, slot: int) -> None:
    """Make sure that nobody else is given the slot."""
    node.vacant.remove(slot)
    heapq.heapify(node.vacant)


def _stop_cleaning(node: Node) -> None:
    """Nobody will be given the slots, so they are free as they are."""
    if node.cleaning:
        node.vacant = sorted([*node.vacant, *node.cleaning])
        node.cleaning.clear()


def _let_go(assignment: Assignment) -> None:
    """Nobody holds the slot any more."""
    node, slot = assignment.node, assignment.id.slot
    del (node.awake if slot in node.awake else node.asleep)[slot]
