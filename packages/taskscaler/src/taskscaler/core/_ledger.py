"""The ledger: who holds which slot of which instance, and who waits. Pure.

An instance that may be given work is a `Host` here. Each of its slots is in exactly one state, and the
counters of `Capacity` always add up to all slots:

- *acquired*: a lease holds it;
- *suspended*: a lease holds it that sleeps, and is out of the scaling maths until it is resumed;
- *reserved*: free, usable, and kept for a reservation;
- *idle*: free, usable, and for whoever comes;
- *unhealthy*: free, on a host that failed its heartbeats;
- *unavailable*: to be used by nobody: it is being cleaned, or it is free but its host is used up, paused, draining,
  doomed, asleep, cordoned or being removed.

Reservations and acquires wait in one queue, first come, first served. A reservation at its head is given
a slot to keep (it is then *backed*); an acquire under the same key takes over the reservation's place. So
whoever reserved passes those who came later, and nobody waits behind them for ever.

Where slots are cleaned between jobs, one that was used is *dirty* until its clean-up has ended well. While that runs,
nobody is given the slot, and it counts as in use: it comes back, but not at once. What is dirty stands in the journal,
so that nobody is given it after a crash either. A host whose slot could not be cleaned is closed for good.

Every change is O(1), or O(log n) where somebody waits: hosts with room stand on shelves by how many of
their slots are taken. The fullest are used first, so that others can fall idle; among idle ones the last
to fall idle is used first, so that the first can be given up.

A host whose instance is suspended is *asleep*: whoever wants to resume a lease there waits until it is ready again.

What only the owner of the ledger can know, it is told: how many slots could still be created, when an
instance is gone, that the journal cannot be written.
"""

import heapq
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from math import inf

from fleeting.core import NOTHING, Drop, Put, Step, Write
from fleeting.events import Loss, LossKind
from taskscaler._errors import KeyInUse, NoCapacity, NotSuspended
from taskscaler.core._slots import (
    AWAY,
    CORDON,
    DIRTY,
    FINAL,
    LEASE,
    USES,
    Break,
    Capacity,
    Check,
    Clean,
    Closed,
    CordonRecord,
    Deliver,
    DirtyRecord,
    Held,
    Host,
    LeaseId,
    LeaseRecord,
    LostLease,
    Refuse,
    Shelf,
    UsesRecord,
    Waiter,
    host_id,
)

FEW = 64
"""Entries of the queue that are not worth tidying up."""

NOT_READY = "it is not ready yet after a restart"
"""Why a host gets no work that an earlier manager used, or wanted to."""

KEPT_LOSSES = 1000
"""So many of the last lost leases are remembered for `explain`."""


class Ledger:
    """Slots, leases, reservations and waiters of all pools."""

    def __init__(
        self,
        shelves: Iterable[Shelf],
        uses: Mapping[str, int] | None = None,
        suspended: Mapping[str, LeaseRecord] | None = None,
        cordons: Mapping[str, str] | None = None,
        dirty: Iterable[DirtyRecord] = (),
    ) -> None:
        """Start with no hosts, but those of suspended leases and of slots that have to be cleaned.

        Args:
            shelves: One per pool, in order of preference.
            uses: How often instances were given work in earlier lives of the manager, by host id.
            suspended: Suspended leases of earlier lives of the manager, by key.
            cordons: Why instances get no new work, by host id; whether or not they are hosts yet.
            dirty: Slots that were used in earlier lives, of hosts that are used on; cleaned when their hosts are ready.
        """
        self.shelves = {shelf.pool: shelf for shelf in shelves}
        self.leases: dict[str, Held] = {}
        self.lost: OrderedDict[str, LostLease] = OrderedDict()
        """The last leases that were lost, by key, oldest first; whatever became of the key since."""

        self.pending = 0
        """Acquires that wait."""

        self.shut = ""
        """Why nothing is handed out at all, for now or for ever; empty: it is."""

        self.over = ""
        """Why nothing will ever be handed out again; empty: it will."""

        self._preferred = tuple(self.shelves.values())
        for id_, count in (uses or {}).items():
            pool, _, instance = id_.partition("/")
            if pool in self.shelves:
                self.shelves[pool].uses[instance] = count
        for id_, why in (cordons or {}).items():
            pool, _, instance = id_.partition("/")
            if pool in self.shelves:
                self.shelves[pool].cordons[instance] = why
        self._backed: dict[str, Waiter] = {}
        self._last_backed: list[tuple[int, str]] = []
        """Heap of the negated tickets of those, and of some that are not among them any more."""

        self._waiters: dict[str, Waiter] = {}
        self._queue: list[tuple[int, str]] = []
        self._ticket = 0
        self._idle_rank = 0
        self._numbered = 0
        """How many leases and clean-ups were given a number."""

        self._restore(suspended or {})
        self._restore_dirty(dirty)

    def host(self, pool: str, instance: str) -> Host | None:
        """The instance as a host; None: it is none."""
        return self.shelves[pool].hosts.get(instance)

    @property
    def hosts(self) -> dict[str, Host]:
        """All of them, by ``pool/instance``. O(n)."""
        return {host.id: host for shelf in self.shelves.values() for host in shelf.hosts.values()}

    @property
    def to_remove(self) -> list[Host]:
        """Free hosts that are to be removed whatever the demand, but for retained ones; `retire` takes them off."""
        return [host for shelf in self.shelves.values() for host in shelf.lists.to_remove.values()]

    @property
    def suspendable(self) -> list[Host]:
        """Hosts that are kept only for leases that sleep, and whose instances might as well be suspended."""
        return [host for shelf in self.shelves.values() for host in shelf.lists.suspendable.values()]

    @property
    def wake_requested(self) -> list[Host]:
        """Hosts that are away though somebody waits to resume a lease there, or a slot there has to be cleaned."""
        return [host for shelf in self.shelves.values() for host in shelf.lists.wake_requested.values()]

    # --- asking and giving back --------------------------------------------------------------------------

    def acquire(self, key: str, now: float, expected: float = inf) -> Step:
        """Hand out a slot under *key*, or let it wait its turn.

        Args:
            key: Names the work; an earlier reservation under the same key is used up.
            now: Seconds since the epoch.
            expected: How long the work will take at the most, in seconds, if that is known.

        Raises:
            KeyInUse: The key holds a slot, or waits for one.
            NoCapacity: Nothing will be handed out any more.
        """
        waiter = self._waiters.get(key)
        if waiter is not None:
            return self._convert(waiter, now, expected)
        if key in self.leases:
            raise KeyInUse(key)
        self._ticket += 1
        if self.usable > len(self._backed) and not self.shut:
            return self._assign(Waiter(key, self._ticket, now, False, expected), now)
        if self.over:
            raise NoCapacity(self.over)
        self._wait(Waiter(key, self._ticket, now, False, expected))
        return NOTHING

    def release(self, key: str, now: float) -> Step:
        """Take a slot back; nothing happens if the key holds none."""
        held = self.leases.pop(key, None)
        if held is None:
            return NOTHING
        if held.delivered and held.host.shelf.cleans:
            return self._clean(held, now)
        self._vacate(held, now)
        if not self._queue:
            return Step((Drop(LEASE, key),))
        served = self._serve(now)
        return Step((Drop(LEASE, key), *served.writes), served.actions)

    def cancel(self, key: str, now: float) -> Step:
        """Whoever waits, has reserved, or is just being handed a slot under *key* wants it no more."""
        waiter = self._waiters.pop(key, None)
        held = self.leases.get(key)
        if held is not None and held.resuming:
            held.resuming = False
            held.host.shelf.settle(held.host)
            return self.suspend(held.id, now)
        if waiter is None:
            return self.release(key, now)
        self._backed.pop(key, None)
        self.pending -= not waiter.reserves
        return self._serve(now)

    def suspend(self, lease: LeaseId, now: float) -> Step:
        """Let a lease sleep: it keeps its slot and its host, and counts as demand no more."""
        held = self.find(lease)
        if held is None or held.suspended:
            return NOTHING
        held.host.asleep[held.slot] = held.host.awake.pop(held.slot)
        held.host.shelf.settle(held.host)
        if held.host.rests:
            held.host.idle_since = now
        return Step((Put(LEASE, held.key, held.record()),))

    def resume(self, key: str) -> Step:
        """Wake a suspended lease, as soon as its host is ready.

        Raises:
            NotSuspended: No lease sleeps under the key.
        """
        held = self.leases.get(key)
        if held is None or not held.suspended or held.resuming:
            raise NotSuspended(key)
        held.resuming = True
        held.host.shelf.settle(held.host)
        return NOTHING if held.host.closed in AWAY else self._wake(held)

    def reserve(self, key: str, now: float, potential: int) -> Step:
        """Keep a slot for an acquire to come.

        Args:
            key: What the acquire will be made under.
            now: Seconds since the epoch.
            potential: How many slots, beyond those that can be handed out now, count as available.

        Raises:
            KeyInUse: The key holds a slot, waits for one, or is reserved.
            NoCapacity: All of that is taken or promised; `possible` is left to the caller.
        """
        if key in self.leases or key in self._waiters:
            raise KeyInUse(key)
        if self.shut:
            raise NoCapacity(self.shut)
        if self.usable + potential <= len(self._waiters):
            raise NoCapacity("every possible slot is taken or reserved; release one first")
        self._ticket += 1
        self._wait(Waiter(key, self._ticket, now, True, inf))
        return self._serve(now)

    def unreserve(self, key: str, now: float) -> Step:
        """Give a reservation up; nothing happens if there is none."""
        waiter = self._waiters.get(key)
        return self.cancel(key, now) if waiter is not None and waiter.reserves else NOTHING

    def find(self, lease: LeaseId) -> Held | None:
        """The lease, if it has not ended."""
        held = self.leases.get(lease.key)
        return held if held is not None and held.id.number == lease.number else None

    def deliver(self, lease: LeaseId) -> bool:
        """Note that the slot is being handed over. False: it no longer stands, and must not be."""
        held = self.find(lease)
        if held is None or (held.delivered and not held.resuming):
            return False
        held.delivered, held.resuming = True, False
        return True

    def check(self, lease: LeaseId) -> bool:
        """Note that the slot's host is asked for a sign of life. False: it no longer stands, and need not be."""
        held = self.find(lease)
        if held is not None:
            held.checked = True
        return held is not None

    # --- hosts come, change and go -----------------------------------------------------------------------

    def add(self, pool: str, instance: str, now: float, *, draining: str = "") -> Step:
        """Take in an instance that became ready; *draining*: why it is given no work even so."""
        host = self.host(pool, instance) or self._make(pool, instance)
        host.idle_since = now
        host.idle_rank = self._next_idle_rank()
        cleaning = tuple(host.cleaning.values())
        self._reclose(host, Closed.DRAINING if draining else None, draining)
        woken = [self._wake(held) for held in host.leases if held.resuming]
        steps = (*woken, Step((), cleaning), self._serve(now))
        return Step([write for step in steps for write in step.writes], [act for step in steps for act in step.actions])

    def sleep(self, pool: str, instance: str, why: str) -> None:
        """The instance, which need not be a host yet, is suspended or about to be; nothing runs there."""
        host = self.host(pool, instance) or self._make(pool, instance)
        self._reclose(host, Closed.ASLEEP, why)
        sleepers = host.shelf.lists.sleepers
        if instance in sleepers:
            sleepers.move_to_end(instance)
        self._unback()

    def wake(self, host: Host) -> None:
        """Its instance is on its way to being ready again."""
        self._reclose(host, Closed.WAKING, "it is being resumed")

    def wants(self, clean: Clean) -> bool:
        """Whether the slot waits for that clean-up; not if its host was given up meanwhile."""
        host = self.host(clean.pool, clean.instance)
        return host is not None and host.cleaning.get(clean.slot) == clean

    def cleaned(self, clean: Clean, now: float) -> Step:
        """Take a slot back that is clean again; nothing happens if that is not wanted any more."""
        if not self.wants(clean):
            return NOTHING
        host = self.shelves[clean.pool].hosts[clean.instance]
        del host.cleaning[clean.slot], host.dirty[clean.slot]
        self._free(host, clean.slot, now)
        served = self._serve(now)
        return Step((Drop(DIRTY, f"{host.id}/{clean.slot}"), *served.writes), served.actions)

    def close(self, host: Host, closed: Closed, why: str) -> None:
        """Hand out nothing more of the host; what is held there stays held.

        Closed for good, it is not cleaned any more either.
        """
        if host.closed not in FINAL:
            self._reclose(host, closed, why)
            self._unback()

    def reopen(self, host: Host, now: float) -> Step:
        """Hand out its slots again, unless it was closed for good."""
        if host.closed in FINAL:
            return NOTHING
        self._reclose(host, None, "")
        return self._serve(now)

    def cordon(self, pool: str, instance: str, why: str) -> Step:
        """Hand out nothing more of the instance, which need not be a host yet, until `uncordon`."""
        self.shelves[pool].cordons[instance] = why
        self._settle_if_host(pool, instance)
        self._unback()
        return Step((Put(CORDON, host_id(pool, instance), CordonRecord(why)),))

    def uncordon(self, pool: str, instance: str, now: float) -> Step:
        """Hand out its slots again, unless it is closed for another reason; nothing happens if it is not cordoned."""
        if self.shelves[pool].cordons.pop(instance, None) is None:
            return NOTHING
        self._settle_if_host(pool, instance)
        served = self._serve(now)
        return Step((Drop(CORDON, host_id(pool, instance)), *served.writes), served.actions)

    def bar(self, pool: str, why: str, now: float) -> Step:
        """Hand out nothing more of a whole pool, or do so again if *why* is empty. O(its hosts)."""
        shelf = self.shelves[pool]
        shelf.barred = why
        for host in shelf.hosts.values():
            host.shelf.settle(host)
        self._unback()
        return self._serve(now)

    def offers(self, host: Host) -> bool:
        """Whether neither its operator nor what has become of its pool keeps a host from being given work."""
        return host.cordoned is None and not host.shelf.barred

    def why_cordoned(self, pool: str, instance: str) -> str | None:
        """Why the instance gets no new work, whether or not it is a host yet; None: it is not cordoned."""
        return self.shelves[pool].cordons.get(instance)

    def retain(self, host: Host, *, retained: bool) -> None:
        """Keep the host from being given up and from being put to sleep, or no longer."""
        host.retained = retained
        host.shelf.settle(host)

    def vouch(self, host: Host) -> Step:
        """The host gave a sign of life: hand over those slots for which it was asked."""
        alive = [held for held in host.leases if held.checked]
        for held in alive:
            held.checked = False  # or the next sign of life would hand it over once more
        return Step((), [Deliver(held.id) for held in alive])

    def take_back(self, host: Host, now: float) -> Step:
        """Where a host is closed: those who have not been handed their slots of it yet wait again."""
        return self._break([held for held in host.leases if not held.delivered], None, now)

    def break_late(self, host: Host, deadline: float, loss: Loss, now: float) -> Step:
        """Break those leases of the host whose work is not known to be done by the deadline."""
        return self._break([held for held in host.leases if held.ends_by > deadline], loss, now)

    def sever(self, lease: LeaseId, loss: Loss, now: float) -> Step:
        """Break a single lease of a host that is closed for good, if it has not ended."""
        held = self.find(lease)
        return self._break([held] if held is not None else [], loss, now)

    def break_all(self, host: Host, loss: Loss, now: float, *, asleep_too: bool = True) -> Step:
        """Break every lease of a host that is closed for good, or at the end; but perhaps those that are suspended."""
        return self._break([held for held in host.leases if asleep_too or not held.suspended], loss, now)

    def lose(self, host: Host, loss: Loss, now: float) -> Step:
        """The host is gone, and with it what is held there."""
        given_up = tuple(host.cleaning.values())
        self._reclose(host, Closed.RETIRED, str(loss))
        self._unback()
        step = self.break_all(host, loss, now)
        step = Step(step.writes, (*step.actions, *given_up))
        host.shelf.drop(host)
        if not host.dirty:
            return step
        return Step((*step.writes, *(Drop(DIRTY, f"{host.id}/{slot}") for slot in host.dirty)), step.actions)

    def retire(self, host: Host) -> None:
        """Give a free host up: it is being removed, and must not be handed out on the way."""
        if host.busy or host.retained:
            raise AssertionError(f"{host.id} is {'busy' if host.busy else 'retained'} and may not be removed")
        self._reclose(host, Closed.RETIRED, "given up")
        self._unback()

    def end(self, pool: str, instance: str, now: float) -> Step:
        """The instance is no more, whether or not it ever was ready; nothing need be known of it any longer."""
        shelf, id_ = self.shelves[pool], host_id(pool, instance)
        returning = shelf.hosts.get(instance)
        gone = Loss(LossKind.VANISHED, "it did not survive its manager")
        broken = self.lose(returning, gone, now) if returning is not None else NOTHING
        uses = (Drop(USES, id_),) if shelf.uses.pop(instance, None) is not None else ()
        cordon = (Drop(CORDON, id_),) if shelf.cordons.pop(instance, None) is not None else ()
        return Step((*broken.writes, *uses, *cordon), broken.actions)

    def longest_idle(self, pool: str) -> Iterator[Host]:
        """The pool's usable hosts of which no slot is acquired, the one that fell idle first at first."""
        shelf = self.shelves[pool]
        shelf.sort_idle()
        return iter(shelf.by_busy[0].values())

    def idle_by_usable(self, pool: str) -> Iterator[Iterator[Host]]:
        """The same, but for retained ones, apart by how many usable slots they have."""
        shelf = self.shelves[pool]
        shelf.sort_idle()
        return (iter(hosts.values()) for hosts in shelf.idle if hosts)

    def idle_cordoned(self, pool: str) -> Iterator[Host]:
        """Those of the pool's cordoned hosts that could be used otherwise, and may be given up. O(cordoned hosts)."""
        for host in self.shelves[pool].lists.cordoned.values():
            if not (host.busy or host.closed or host.retained or host.counts.rare.to_remove):
                yield host

    # --- closing for all ---------------------------------------------------------------------------------

    def shut_down(self, why: str) -> Step:
        """Hand out nothing any more, and tell so whoever waits."""
        self.shut = self.over = why
        refused = [Refuse(waiter.key, why) for waiter in self._waiters.values() if not waiter.reserves]
        self._waiters.clear()
        self._backed.clear()
        self._last_backed.clear()
        self._queue.clear()
        self.pending = 0
        return Step((), refused)

    def hold_back(self, why: str) -> None:
        """Hand out nothing until `hand_out_again`, for this reason from now on; whoever waits goes on waiting."""
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
        for shelf in self._preferred:
            usable += shelf.counts.usable
        return usable

    @property
    def acquired(self) -> int:
        """Slots in somebody's hands, or on their way there."""
        return sum(shelf.counts.acquired for shelf in self.shelves.values())

    @property
    def cleaning(self) -> int:
        """Slots that are being cleaned."""
        return sum(shelf.counts.rare.cleaning for shelf in self.shelves.values())

    @property
    def reserved(self) -> int:
        """All reservations, whether a slot is kept for them or not."""
        return len(self._waiters) - self.pending

    def waiter(self, key: str) -> Waiter | None:
        """Who waits or has reserved under the key, if anybody does."""
        return self._waiters.get(key)

    def queue(self) -> list[Waiter]:
        """Acquires and reservations that no slot is there for, first come first. O(n log n)."""
        queued = [waiter for waiter in self._waiters.values() if waiter.key not in self._backed]
        return sorted(queued, key=lambda waiter: waiter.ticket)

    def dirty(self) -> dict[str, DirtyRecord]:
        """Slots that were used and not cleaned since, by their keys in the journal. O(n)."""
        return {f"{host.id}/{slot}": record for host in self.hosts.values() for slot, record in host.dirty.items()}

    def capacity(self) -> Capacity:
        """Count. O(pools)."""
        shelves, usable = self.shelves.values(), self.usable
        acquired = self.acquired
        suspended = sum(shelf.counts.rare.suspended for shelf in shelves)
        unhealthy = sum(shelf.counts.rare.unhealthy for shelf in shelves)
        every = sum(len(shelf.hosts) * shelf.slots for shelf in shelves)
        return Capacity(
            idle=usable - len(self._backed),
            reserved=len(self._backed),
            acquired=acquired,
            suspended=suspended,
            unavailable=every - acquired - suspended - unhealthy - usable,
            unhealthy=unhealthy,
            pending=self.pending,
            promised=self.reserved - len(self._backed),
        )

    # --- inside ------------------------------------------------------------------------------------------

    def _restore(self, suspended: Mapping[str, LeaseRecord]) -> None:
        """Take up suspended leases; their hosts are expected back."""
        for key, record in suspended.items():
            pool, _, instance = record.host.partition("/")
            if pool not in self.shelves:
                continue
            host = self.host(pool, instance) or self._make(pool, instance)
            host.why_closed = NOT_READY
            if record.slot in host.vacant:  # fewer slots than before, and this one is no more
                _take(host, record.slot)
                since = record.since
                held = Held(self._lease_id(key, host, record.slot), host, since, 0, since, inf, delivered=True)
                host.asleep[record.slot] = self.leases[key] = held
            host.shelf.settle(host)

    def _restore_dirty(self, dirty: Iterable[DirtyRecord]) -> None:
        """Take up slots that were not cleaned after their last use; that begins once their hosts are ready."""
        for record in dirty:
            pool, _, instance = record.host.partition("/")
            if pool not in self.shelves or not self.shelves[pool].cleans:
                continue
            host = self.host(pool, instance) or self._make(pool, instance)
            host.why_closed = NOT_READY
            if record.slot in host.vacant:
                _take(host, record.slot)
                host.dirty[record.slot] = record
                host.cleaning[record.slot] = self._clean_up(host, record.slot, record.key)
            host.shelf.settle(host)

    def _make(self, pool: str, instance: str) -> Host:
        """A host as it is before it is ready."""
        shelf = self.shelves[pool]
        host = shelf.hosts[instance] = Host(shelf, instance, list(range(shelf.slots)))
        return host

    def _wake(self, held: Held) -> Step:
        """Give a suspended lease back to whoever waits for it."""
        held.host.awake[held.slot] = held.host.asleep.pop(held.slot)
        held.host.shelf.settle(held.host)
        return Step((Put(LEASE, held.key, held.record()),), (Deliver(held.id),))

    def _convert(self, reservation: Waiter, now: float, expected: float) -> Step:
        """Turn a reservation into an acquire, at its place in the queue."""
        if not reservation.reserves:
            raise KeyInUse(reservation.key)
        del self._waiters[reservation.key]
        waiter = Waiter(reservation.key, reservation.ticket, now, False, expected)
        if self._backed.pop(waiter.key, None) is not None and not self.shut:
            return self._assign(waiter, now)
        self._wait(waiter)
        return NOTHING

    def _wait(self, waiter: Waiter) -> None:
        """Put into the queue, by ticket."""
        self._waiters[waiter.key] = waiter
        self.pending += not waiter.reserves
        self._queue_up(waiter)

    def _queue_up(self, waiter: Waiter) -> None:
        """Put into the queue, and tidy that up where most have left it without having been served."""
        heapq.heappush(self._queue, (waiter.ticket, waiter.key))
        if len(self._queue) > max(FEW, 4 * len(self._waiters)):
            self._queue = [(each.ticket, key) for key, each in self._waiters.items() if key not in self._backed]
            heapq.heapify(self._queue)

    def _serve(self, now: float) -> Step:
        """Give what can be handed out to those who have waited longest."""
        writes: list[Write] = []
        actions: list[object] = []
        while self._queue and self.usable > len(self._backed) and not self.shut:
            ticket, key = heapq.heappop(self._queue)
            waiter = self._waiters.get(key)
            if waiter is None or waiter.ticket != ticket or key in self._backed:
                continue  # an entry that was overtaken: cancelled, or put in again
            if waiter.reserves:
                self._back(waiter)
                continue
            del self._waiters[key]
            self.pending -= 1
            step = self._assign(waiter, now)
            writes += step.writes
            actions += step.actions
        return Step(writes, actions) if actions else NOTHING

    def _back(self, waiter: Waiter) -> None:
        """Keep a slot for a reservation."""
        self._backed[waiter.key] = waiter
        heapq.heappush(self._last_backed, (-waiter.ticket, waiter.key))
        if len(self._last_backed) > max(FEW, 4 * len(self._backed)):
            self._last_backed = [(-each.ticket, key) for key, each in self._backed.items()]
            heapq.heapify(self._last_backed)

    def _unback(self, later_than: float = inf) -> None:
        """Where slots went away, reservations lose theirs, the last first, and queue up again.

        So do those that came later than somebody who waits again.
        """
        surplus = len(self._backed) - self.usable
        while self._backed and self._last_backed:
            ticket, key = -self._last_backed[0][0], self._last_backed[0][1]
            waiter = self._backed.get(key)
            if waiter is not None and waiter.ticket == ticket:
                if surplus <= 0 and ticket <= later_than:
                    return
                surplus -= 1
                del self._backed[key]
                self._queue_up(waiter)
            heapq.heappop(self._last_backed)

    def _assign(self, waiter: Waiter, now: float) -> Step:
        """Hand out a slot; there is one."""
        host = self._pick()
        shelf, id_ = host.shelf, host.id
        key, slot = waiter.key, heapq.heappop(host.vacant)
        lease = self._lease_id(key, host, slot)
        held = Held(lease, host, now, waiter.ticket, waiter.asked_at, now + waiter.expected)
        host.awake[slot] = self.leases[key] = held
        uses = shelf.uses[host.instance] = host.uses + 1
        host.shelf.settle(host)
        return Step(
            (Put(LEASE, key, LeaseRecord(id_, slot, now)), Put(USES, id_, UsesRecord(uses))),
            (Check(lease) if shelf.checks else Deliver(lease),),
        )

    def _pick(self) -> Host:
        """The fullest host with a usable slot, in the first pool that has one."""
        for shelf in self._preferred:
            if shelf.counts.usable:
                break
        shelf.sort_idle()
        while not shelf.by_busy[shelf.fullest]:
            shelf.fullest -= 1
        return next(reversed(shelf.by_busy[shelf.fullest].values()))

    def _clean(self, held: Held, now: float) -> Step:
        """Take back a slot that was used: it is cleaned first, if anybody may be given it after that."""
        host = held.host
        writes = (Drop(LEASE, held.key), self._soil(held))
        if host.closed in FINAL or host.uses_left <= 0:
            self._vacate(held, now)
            return Step(writes)
        _let_go(held)
        clean = host.cleaning[held.slot] = self._clean_up(host, held.slot, held.key)
        host.shelf.settle(host)
        return Step(writes, () if host.closed in AWAY else (clean,))  # else once it is back

    def _soil(self, held: Held) -> Put:
        """Note that the slot was used."""
        record = held.host.dirty[held.slot] = DirtyRecord(held.host.id, held.slot, held.key)
        return Put(DIRTY, f"{held.host.id}/{held.slot}", record)

    def _vacate(self, held: Held, now: float) -> None:
        """Free the slot. The use stays counted."""
        _let_go(held)
        self._free(held.host, held.slot, now)

    def _free(self, host: Host, slot: int, now: float) -> None:
        """Have one more free slot."""
        heapq.heappush(host.vacant, slot)
        if host.rests:
            host.idle_since = now
        if not host.busy:
            host.idle_rank = self._next_idle_rank()
        host.shelf.settle(host)

    def _lease_id(self, key: str, host: Host, slot: int) -> LeaseId:
        self._numbered += 1
        return LeaseId(key, self._numbered, host.shelf.pool, host.instance, slot)

    def _clean_up(self, host: Host, slot: int, key: str) -> Clean:
        self._numbered += 1
        return Clean(host.shelf.pool, host.instance, slot, key, self._numbered)

    def _next_idle_rank(self) -> int:
        self._idle_rank += 1
        return self._idle_rank

    def _reclose(self, host: Host, closed: Closed | None, why: str) -> None:
        """Change whether and why the host is closed."""
        host.closed = closed
        host.why_closed = why
        if host.cleaning and closed in FINAL:
            host.vacant = sorted([*host.vacant, *host.cleaning])
            host.cleaning.clear()
        host.shelf.settle(host)

    def _settle_if_host(self, pool: str, instance: str) -> None:
        """The same, if the instance is a host."""
        host = self.host(pool, instance)
        if host is not None:
            host.shelf.settle(host)

    def _break(self, broken: Iterable[Held], loss: Loss | None, now: float) -> Step:
        """Break leases; *loss* may be None where none was delivered.

        Whoever has not been handed the slot yet notices nothing: it waits again, at its old place.
        """
        writes: list[Write] = []
        actions: list[object] = []
        for held in broken:
            del self.leases[held.key]
            self._vacate(held, now)
            writes.append(Drop(LEASE, held.key))
            if held.delivered and held.host.shelf.cleans:
                writes.append(self._soil(held))
            if held.delivered and loss is not None:
                actions.append(Break(held.id, loss))
                self._note_loss(held, loss, now)
            elif self.over:
                actions.append(Refuse(held.key, self.over))
            else:
                self._wait(Waiter(held.key, held.ticket, held.asked_at, False, held.ends_by - held.since))
                self._unback(later_than=held.ticket)
        served = self._serve(now)
        return Step((*writes, *served.writes), (*actions, *served.actions))

    def _note_loss(self, held: Held, loss: Loss, now: float) -> None:
        """Remember it for a while."""
        self.lost.pop(held.key, None)
        self.lost[held.key] = LostLease(now, held.id, loss)
        if len(self.lost) > KEPT_LOSSES:
            self.lost.popitem(last=False)


def _take(host: Host, slot: int) -> None:
    """Make sure that nobody else is given the slot."""
    host.vacant.remove(slot)
    heapq.heapify(host.vacant)


def _let_go(held: Held) -> None:
    """Nobody holds the slot any more."""
    among = held.host.asleep if held.suspended else held.host.awake
    del among[held.slot]
