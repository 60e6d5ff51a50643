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
        self.hosts: dict[str, Host] = {}
        self.leases: dict[str, Held] = {}
        self.retirable: dict[str, Host] = {}
        """Free hosts that are to be removed whatever the demand, but for retained ones; `retire` takes them off."""

        self.cordoned: dict[str, Host] = {}
        """Hosts that get no new work because an operator wants it so."""

        self.dormant: dict[str, Host] = {}
        """Hosts that are kept only for leases that sleep, and whose instances might as well be suspended."""

        self.asleep: dict[str, Host] = {}
        """Hosts whose instances are suspended or about to be, and that are free or could be used if they were not; the
        last to fall asleep last."""

        self.called: dict[str, Host] = {}
        """Hosts that are away though somebody waits to resume a lease there, or a slot there has to be cleaned."""

        self.lost: OrderedDict[str, LostLease] = OrderedDict()
        """The last leases that were lost, by key, oldest first; whatever became of the key since."""

        self.pending = 0
        """Acquires that wait."""

        self.shut = ""
        """Why nothing is handed out at all, for now or for ever; empty: it is."""

        self.over = ""
        """Why nothing will ever be handed out again; empty: it will."""

        self._preferred = tuple(self.shelves.values())
        self._uses = dict(uses or {})
        self._cordons = dict(cordons or {})
        self._usable = 0
        self._backed: OrderedDict[str, Waiter] = OrderedDict()
        self._waiters: dict[str, Waiter] = {}
        self._queue: list[tuple[int, str]] = []
        self._ticket = 0
        self._idle_rank = 0
        self._restore(suspended or {})
        self._restore_dirty(dirty)

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
        if self._usable > len(self._backed) and not self.shut:
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
        if held.delivered and self.shelves[held.host.pool].cleans:
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
            self._note_called(held.host)
            return self.suspend(held, now)
        if waiter is None:
            return self.release(key, now)
        self._backed.pop(key, None)
        self.pending -= not waiter.reserves
        return self._serve(now)

    def suspend(self, held: Held, now: float) -> Step:
        """Let a lease sleep: it keeps its slot and its host, and counts as demand no more."""
        if self.leases.get(held.key) is not held or held.suspended:
            return NOTHING
        self._fall_asleep(held, 1)
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
        self._note_called(held.host)
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
        if self._usable + potential <= len(self._waiters):
            raise NoCapacity("every slot that there can be is taken or promised; one has to be given back first")
        self._ticket += 1
        self._wait(Waiter(key, self._ticket, now, True, inf))
        return self._serve(now)

    def unreserve(self, key: str, now: float) -> Step:
        """Give a reservation up; nothing happens if there is none."""
        waiter = self._waiters.get(key)
        return self.cancel(key, now) if waiter is not None and waiter.reserves else NOTHING

    def deliver(self, held: Held) -> bool:
        """Note that the slot is being handed over. False: it no longer stands, and must not be."""
        if self.leases.get(held.key) is not held or (held.delivered and not held.resuming):
            return False
        held.delivered, held.resuming = True, False
        return True

    def check(self, held: Held) -> bool:
        """Note that the slot's host is asked for a sign of life. False: it no longer stands, and need not be."""
        held.checked = self.leases.get(held.key) is held
        return held.checked

    # --- hosts come, change and go -----------------------------------------------------------------------

    def add(self, pool: str, instance: str, now: float, *, draining: str = "") -> Step:
        """Take in an instance that became ready; *draining*: why it is given no work even so."""
        host = self.hosts.get(host_id(pool, instance))
        if host is None:
            host = self._make(pool, instance)
        host.ready_since = host.idle_since = now
        host.idle_rank = self._next_idle_rank()
        cleaning = tuple(host.cleaning.values())
        self._reclose(host, Closed.DRAINING if draining else None, draining)
        woken = [self._wake(held) for held in host.held if held.resuming]
        self._note_called(host)
        steps = (*woken, Step((), cleaning), self._serve(now))
        return Step([write for step in steps for write in step.writes], [act for step in steps for act in step.actions])

    def sleep(self, pool: str, instance: str, why: str) -> None:
        """The instance, which need not be a host yet, is suspended or about to be; nothing runs there."""
        host = self.hosts.get(host_id(pool, instance))
        if host is None:
            host = self._make(pool, instance)
        self.asleep.pop(host.id, None)
        self._reclose(host, Closed.ASLEEP, why)
        self._unback()
        self._note_called(host)

    def wake(self, host: Host) -> None:
        """Its instance is on its way to being ready again."""
        self._reclose(host, Closed.WAKING, "it is being resumed")

    def cleaned(self, clean: Clean, now: float) -> Step:
        """Take a slot back that is clean again; nothing happens if that is not wanted any more."""
        host = clean.host
        if not clean.wanted:
            return NOTHING
        del host.cleaning[clean.slot], host.dirty[clean.slot]
        self.shelves[host.pool].cleaning -= 1
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
        self.shelves[host.pool].idle_sorted = False
        return self._serve(now)

    def cordon(self, id_: str, why: str) -> Step:
        """Hand out nothing more of the instance, which need not be a host yet, until `uncordon`."""
        self._cordons[id_] = why
        self._recordon(id_)
        self._unback()
        return Step((Put(CORDON, id_, CordonRecord(why)),))

    def uncordon(self, id_: str, now: float) -> Step:
        """Hand out its slots again, unless it is closed for another reason; nothing happens if it is not cordoned."""
        if self._cordons.pop(id_, None) is None:
            return NOTHING
        self._recordon(id_)
        served = self._serve(now)
        return Step((Drop(CORDON, id_), *served.writes), served.actions)

    def bar(self, pool: str, why: str, now: float) -> Step:
        """Hand out nothing more of a whole pool, or do so again if *why* is empty. O(its hosts)."""
        shelf = self.shelves[pool]
        shelf.barred = why
        for host in shelf.hosts.values():
            self._reshelve(host)
        self._unback()
        return self._serve(now)

    def offers(self, host: Host) -> bool:
        """Whether neither its operator nor what has become of its pool keeps a host from being given work."""
        return host.cordoned is None and not self.shelves[host.pool].barred

    def why_cordoned(self, id_: str) -> str | None:
        """Why the instance gets no new work, whether or not it is a host yet; None: it is not cordoned."""
        return self._cordons.get(id_)

    def retain(self, host: Host) -> None:
        """Keep the host from being given up, until `unretain`."""
        host.retained = True
        self.retirable.pop(host.id, None)
        self._reshelve(host)  # nor is it put to sleep any more

    def unretain(self, host: Host) -> None:
        """Undo `retain`."""
        host.retained = False
        self._reshelve(host)

    def vouch(self, host: Host) -> Step:
        """The host gave a sign of life: hand over those slots for which it was asked."""
        alive = [held for held in host.held if held.checked]
        for held in alive:
            held.checked = False  # or the next sign of life would hand it over once more
        return Step((), [Deliver(held) for held in alive])

    def take_back(self, host: Host, now: float) -> Step:
        """Where a host is closed: those who have not been handed their slots of it yet wait again."""
        return self._break([held for held in host.held if not held.delivered], None, now)

    def break_late(self, host: Host, deadline: float, loss: Loss, now: float) -> Step:
        """Break those leases of the host whose work is not known to be done by the deadline."""
        return self._break([held for held in host.held if held.ends_by > deadline], loss, now)

    def sever(self, held: Held, loss: Loss, now: float) -> Step:
        """Break a single lease of a host that is closed for good."""
        return self._break([held], loss, now)

    def break_all(self, host: Host, loss: Loss, now: float, *, asleep_too: bool = True) -> Step:
        """Break every lease of a host that is closed for good, or at the end; but perhaps those that are suspended."""
        return self._break([held for held in host.held if asleep_too or not held.suspended], loss, now)

    def lose(self, host: Host, loss: Loss, now: float) -> Step:
        """The host is gone, and with it what is held there."""
        given_up = tuple(host.cleaning.values())
        self._reclose(host, Closed.RETIRED, str(loss))
        self._unback()
        step = self.break_all(host, loss, now)
        step = Step(step.writes, (*step.actions, *given_up))
        for index in (self.retirable, self.cordoned, self.called):
            index.pop(host.id, None)
        del self.hosts[host.id], self.shelves[host.pool].hosts[host.id]
        if not host.dirty:
            return step
        return Step((*step.writes, *(Drop(DIRTY, f"{host.id}/{slot}") for slot in host.dirty)), step.actions)

    def retire(self, host: Host) -> None:
        """Give a free host up: it is being removed, and must not be handed out on the way."""
        if host.busy or host.retained:
            raise AssertionError(f"{host.id} is {'busy' if host.busy else 'retained'} and may not be removed")
        self._reclose(host, Closed.RETIRED, "given up")
        self.retirable.pop(host.id, None)
        self._unback()

    def end(self, host: str, now: float) -> Step:
        """The instance is no more, whether or not it ever was ready; nothing need be known of it any longer."""
        returning = self.hosts.get(host)
        gone = Loss(LossKind.VANISHED, "it did not survive its manager")
        broken = self.lose(returning, gone, now) if returning is not None else NOTHING
        uses = (Drop(USES, host),) if self._uses.pop(host, None) is not None else ()
        cordon = (Drop(CORDON, host),) if self._cordons.pop(host, None) is not None else ()
        return Step((*broken.writes, *uses, *cordon), broken.actions)

    def longest_idle(self, pool: str) -> Iterator[Host]:
        """The pool's usable hosts of which no slot is acquired, the one that fell idle first at first."""
        shelf = self.shelves[pool]
        shelf.sort_idle()
        return iter(shelf.by_busy[0].values())

    def idle_cordoned(self, pool: str) -> Iterator[Host]:
        """Those of the pool's cordoned hosts that could be used otherwise, and may be given up. O(cordoned hosts)."""
        for host in self.cordoned.values():
            kept = host.busy or host.closed or host.retained or host.id in self.retirable
            if host.pool == pool and not kept:
                yield host

    # --- closing for all ---------------------------------------------------------------------------------

    def shut_down(self, why: str) -> Step:
        """Hand out nothing any more, and tell so whoever waits."""
        self.shut = self.over = why
        refused = [Refuse(waiter.key, why) for waiter in self._waiters.values() if not waiter.reserves]
        self._waiters.clear()
        self._backed.clear()
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
        return self._usable

    @property
    def acquired(self) -> int:
        """Slots in somebody's hands, or on their way there."""
        return sum(shelf.acquired for shelf in self.shelves.values())

    @property
    def cleaning(self) -> int:
        """Slots that are being cleaned."""
        return sum(shelf.cleaning for shelf in self.shelves.values())

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
        shelves = self.shelves.values()
        acquired = self.acquired
        suspended = sum(shelf.suspended for shelf in shelves)
        unhealthy = sum(shelf.unhealthy for shelf in shelves)
        every = sum(len(shelf.hosts) * shelf.slots for shelf in shelves)
        return Capacity(
            idle=self._usable - len(self._backed),
            reserved=len(self._backed),
            acquired=acquired,
            suspended=suspended,
            unavailable=every - acquired - suspended - unhealthy - self._usable,
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
            host = self.hosts.get(record.host) or self._make(pool, instance)
            host.closed, host.why_closed = Closed.RETURNING, "it is not ready yet after a restart"
            if record.slot in host.vacant:  # fewer slots than before, and this one is no more
                host.vacant.remove(record.slot)
                heapq.heapify(host.vacant)
                since = record.since
                held = Held(key, host, record.slot, since, 0, since, inf, delivered=True, suspended=True)
                host.slots[record.slot] = self.leases[key] = held
                host.busy += 1
                host.suspended += 1
                self.shelves[pool].suspended += 1
            self._settle(host, self.shelves[pool])

    def _restore_dirty(self, dirty: Iterable[DirtyRecord]) -> None:
        """Take up slots that were not cleaned after their last use; that begins once their hosts are ready."""
        for record in dirty:
            pool, _, instance = record.host.partition("/")
            shelf = self.shelves.get(pool)
            if shelf is None or not shelf.cleans:
                continue
            host = self.hosts.get(record.host) or self._make(pool, instance)
            host.why_closed = "it is not ready yet after a restart"
            if record.slot in host.vacant:
                host.vacant.remove(record.slot)
                heapq.heapify(host.vacant)
                host.dirty[record.slot] = record
                host.cleaning[record.slot] = Clean(host, record.slot, record.key)
                host.busy += 1
                shelf.cleaning += 1
            self._settle(host, shelf)

    def _make(self, pool: str, instance: str) -> Host:
        """A host as it is before it is ready."""
        shelf = self.shelves[pool]
        id_ = host_id(pool, instance)
        uses = self._uses.get(id_, 0)
        host = Host(
            id=id_,
            pool=pool,
            instance=instance,
            slots=[None] * shelf.slots,
            vacant=list(range(shelf.slots)),
            uses=uses,
            uses_left=shelf.max_uses - uses if shelf.max_uses else inf,
            ready_since=0.0,
            idle_since=0.0,
            idle_rank=0,
            closed=Closed.RETURNING,
            cordoned=self._cordons.get(id_),
        )
        if host.cordoned is not None:
            self.cordoned[id_] = host
        self.hosts[id_] = shelf.hosts[id_] = host
        return host

    def _wake(self, held: Held) -> Step:
        """Give a suspended lease back to whoever waits for it."""
        self._fall_asleep(held, -1)
        return Step((Put(LEASE, held.key, held.record()),), (Deliver(held),))

    def _fall_asleep(self, held: Held, by: int) -> None:
        """One lease more that sleeps, or less."""
        host, shelf = held.host, self.shelves[held.host.pool]
        held.suspended = by > 0
        shelf.acquired -= by
        shelf.suspended += by
        if host.usable:
            del shelf.by_busy[host.busy][host.id]
        host.suspended += by
        self._settle(host, shelf)

    def _note_called(self, host: Host) -> None:
        """Somebody waits for a host that is away, or nobody does any more."""
        if host.closed in AWAY and (host.cleaning or any(held.resuming for held in host.held)):
            self.called[host.id] = host
        else:
            self.called.pop(host.id, None)

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
        while self._queue and self._usable > len(self._backed) and not self.shut:
            ticket, key = heapq.heappop(self._queue)
            waiter = self._waiters.get(key)
            if waiter is None or waiter.ticket != ticket or key in self._backed:
                continue  # an entry that was overtaken: cancelled, or put in again
            if waiter.reserves:
                self._backed[key] = waiter
                continue
            del self._waiters[key]
            self.pending -= 1
            step = self._assign(waiter, now)
            writes += step.writes
            actions += step.actions
        return Step(writes, actions) if actions else NOTHING

    def _unback(self, later_than: float = inf) -> None:
        """Where slots went away, reservations lose theirs, the last first, and queue up again.

        So do those that came later than somebody who waits again.
        """
        while len(self._backed) > self._usable:
            self._queue_up(self._backed.popitem()[1])
        for waiter in [waiter for waiter in self._backed.values() if waiter.ticket > later_than]:
            del self._backed[waiter.key]
            self._queue_up(waiter)

    def _assign(self, waiter: Waiter, now: float) -> Step:
        """Hand out a slot; there is one."""
        host, shelf = self._pick()
        key, slot = waiter.key, heapq.heappop(host.vacant)
        held = Held(key, host, slot, now, waiter.ticket, waiter.asked_at, now + waiter.expected)
        host.slots[held.slot] = held
        host.busy += 1
        host.uses += 1
        host.uses_left -= 1
        shelf.acquired += 1
        self.leases[key] = held
        self._uses[host.id] = host.uses
        self._settle(host, shelf)
        return Step(
            (Put(LEASE, key, held.record()), Put(USES, host.id, UsesRecord(host.uses))),
            (Check(held) if shelf.checks else Deliver(held),),
        )

    def _pick(self) -> tuple[Host, Shelf]:
        """Take the fullest host with a usable slot off its shelf, in the first pool that has one."""
        for shelf in self._preferred:
            if shelf.usable:
                break
        shelf.sort_idle()
        while not shelf.by_busy[shelf.fullest]:
            shelf.fullest -= 1
        return shelf.by_busy[shelf.fullest].popitem()[1], shelf

    def _clean(self, held: Held, now: float) -> Step:
        """Take back a slot that was used: it is cleaned first, if anybody may be given it after that."""
        host = held.host
        writes = (Drop(LEASE, held.key), self._soil(held))
        if host.closed in FINAL or host.uses_left <= 0:
            self._vacate(held, now)
            return Step(writes)
        self._let_go(held)
        self.shelves[host.pool].cleaning += 1
        clean = host.cleaning[held.slot] = Clean(host, held.slot, held.key)
        if held.suspended:  # it was given up in its sleep
            self._reclose(host, host.closed, host.why_closed)
            self._note_called(host)
        return Step(writes, () if host.closed in AWAY else (clean,))  # else once it is back

    def _soil(self, held: Held) -> Put:
        """Note that the slot was used."""
        record = held.host.dirty[held.slot] = DirtyRecord(held.host.id, held.slot, held.key)
        return Put(DIRTY, f"{held.host.id}/{held.slot}", record)

    def _vacate(self, held: Held, now: float) -> None:
        """Free the slot. The use stays counted."""
        self._let_go(held)
        self._free(held.host, held.slot, now)

    def _let_go(self, held: Held) -> None:
        """Nobody holds the slot any more."""
        shelf = self.shelves[held.host.pool]
        held.host.slots[held.slot] = None
        if held.suspended:
            shelf.suspended -= 1
            held.host.suspended -= 1
        else:
            shelf.acquired -= 1

    def _free(self, host: Host, slot: int, now: float) -> None:
        """Have one more free slot."""
        shelf = self.shelves[host.pool]
        if host.usable:
            del shelf.by_busy[host.busy][host.id]
        heapq.heappush(host.vacant, slot)
        host.busy -= 1
        if host.rests:
            host.idle_since = now
        if not host.busy:
            host.idle_rank = self._next_idle_rank()
        self._settle(host, shelf)

    def _next_idle_rank(self) -> int:
        self._idle_rank += 1
        return self._idle_rank

    def _reclose(self, host: Host, closed: Closed | None, why: str) -> None:
        """Change whether and why the host is closed."""
        shelf = self.shelves[host.pool]
        if host.usable:
            del shelf.by_busy[host.busy][host.id]
        host.closed = closed
        host.why_closed = why
        if host.cleaning and closed in FINAL:
            shelf.cleaning -= len(host.cleaning)
            host.busy -= len(host.cleaning)
            host.vacant = sorted([*host.vacant, *host.cleaning])
            host.cleaning.clear()
        self._settle(host, shelf)

    def _recordon(self, id_: str) -> None:
        """Bring a host in line with what is known of its cordon."""
        host = self.hosts.get(id_)
        if host is None:
            return
        host.cordoned = self._cordons.get(id_)
        if host.cordoned is None:
            self.cordoned.pop(id_, None)
        else:
            self.cordoned[id_] = host
        self._reshelve(host)

    def _reshelve(self, host: Host) -> None:
        """Bring all that is counted in line with what an operator wants of the host."""
        self._reclose(host, host.closed, host.why_closed)
        self.shelves[host.pool].idle_sorted = False

    def _settle(self, host: Host, shelf: Shelf) -> None:
        """Bring the counters up to date with a host that has been taken off its shelf, and put it back."""
        free = shelf.slots - host.busy
        left = host.uses_left
        room = free if free < left else int(left) if left > 0 else 0
        closed = host.closed
        offered = room if host.cordoned is None and not shelf.barred else 0
        usable = offered if closed is None else 0
        shelf.usable += usable - host.usable
        self._usable += usable - host.usable
        host.usable = usable
        if closed is not None or host.paused or host.unhealthy:
            paused = offered if closed is Closed.PAUSED else 0
            shelf.paused += paused - host.paused
            host.paused = paused
            unhealthy = free if closed is Closed.UNHEALTHY else 0
            shelf.unhealthy += unhealthy - host.unhealthy
            host.unhealthy = unhealthy
        blocked = 0 if host.rests else free - usable
        if blocked != host.blocked:
            shelf.blocked += blocked - host.blocked
            host.blocked = blocked
        kept = bool(host.busy or usable or host.paused) and closed not in AWAY
        if kept is not host.kept:
            shelf.kept += 1 if kept else -1
            host.kept = kept
        if (closed in FINAL or not room) and not (host.busy or kept or host.retained or closed is Closed.RETIRED):
            self.retirable[host.id] = host
        if host.away or host.suspended or closed in AWAY or host.id in self.dormant:
            self._settle_sleep(host, shelf, offered)
        if usable:
            shelf.by_busy[host.busy][host.id] = host
            shelf.fullest = max(shelf.fullest, host.busy)

    def _settle_sleep(self, host: Host, shelf: Shelf, offered: int) -> None:
        """The same for what sleeps, or might."""
        asleep, returning = host.closed is Closed.ASLEEP, host.closed in AWAY - {Closed.ASLEEP}
        shelf.asleep += offered * asleep - host.asleep
        host.asleep = offered * asleep
        shelf.returning += offered * returning - host.returning
        host.returning = offered * returning
        shelf.returners += returning - host.returns
        host.returns, host.away = returning, asleep or returning
        if asleep and (offered or not host.busy):
            self.asleep[host.id] = host
        else:
            self.asleep.pop(host.id, None)
        wears = host.closed is None or (host.closed is Closed.DRAINING and not host.dirty)
        if host.suspended and host.rests and wears and host.cordoned is None and not host.retained:
            self.dormant[host.id] = host
        else:
            self.dormant.pop(host.id, None)

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
            if held.delivered and self.shelves[held.host.pool].cleans:
                writes.append(self._soil(held))
            if held.delivered and loss is not None:
                actions.append(Break(held, loss))
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
        self.lost[held.key] = LostLease(now, held.host, held.slot, loss)
        if len(self.lost) > KEPT_LOSSES:
            self.lost.popitem(last=False)
