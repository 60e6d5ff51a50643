"""What the ledger's books are made of: hosts and slots, leases, waiters, records, and what is to be done. Pure."""

from collections import OrderedDict
from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

from attrs import Factory, define, frozen

from fleeting.events import Loss

LEASE, USES, CORDON, DIRTY = "lease", "uses", "cordon", "dirty"
"""The journal's kinds of records that belong to the ledger."""


class LeaseRecord(NamedTuple):
    """A held slot, as the journal keeps it under the lease's key."""

    host: str
    slot: int
    since: float
    suspended: bool = False


class UsesRecord(NamedTuple):
    """How often an instance was given work, as the journal keeps it under the host's id."""

    uses: int


class CordonRecord(NamedTuple):
    """An instance that gets no new work, as the journal keeps it under the host's id."""

    why: str


class DirtyRecord(NamedTuple):
    """A slot that was used and has not been cleaned since, as the journal keeps it under host and slot."""

    host: str
    slot: int
    key: str
    """Of the lease that used it last."""


LEDGER_RECORDS: Mapping[str, type] = {
    LEASE: LeaseRecord,
    USES: UsesRecord,
    CORDON: CordonRecord,
    DIRTY: DirtyRecord,
}
"""What the ledger keeps in the journal: the records' classes, by kind."""


class Closed(Enum):
    """Why a host takes no new work."""

    PAUSED = "paused"
    """For a moment: one view of the cloud's did not show it."""

    LEAVING = "leaving"
    """The cloud shows it as anything but running; nothing for us to do about it."""

    UNHEALTHY = "unhealthy"
    DRAINING = "draining"
    """It has served its time, or could not be cleaned."""

    DOOMED = "doomed"
    RETURNING = "returning"
    """It holds suspended leases or dirty slots of an earlier manager and is not ready yet."""

    ASLEEP = "asleep"
    """The instance is suspended, or about to be."""

    WAKING = "waking"
    """It was, and is on its way to being ready again."""

    RETIRED = "retired"
    """Given up; its removal is under way."""


FINAL = frozenset({Closed.UNHEALTHY, Closed.DRAINING, Closed.DOOMED, Closed.RETIRED})
"""What a host never comes back from."""


AWAY = frozenset({Closed.RETURNING, Closed.ASLEEP, Closed.WAKING})
"""What a host comes back from by becoming ready once more."""


@define(eq=False)
class Host:
    """An instance that may be, or was, given work."""

    id: str
    """``pool/instance``, unique over all pools."""

    pool: str
    instance: str
    slots: list["Held | None"]
    """By slot number."""

    vacant: list[int]
    """Heap of the free slots' numbers: the lowest is used first."""

    uses: int
    uses_left: float
    """How many more leases it may be given in its life; infinite without a limit."""

    ready_since: float
    idle_since: float
    """When its last lease ended or fell asleep, or when it became ready."""

    idle_rank: int
    """Grows with each time that any host falls idle."""

    closed: Closed | None = None
    why_closed: str = ""
    cordoned: str | None = None
    """Why its operator wants it to get no new work, open or closed; None: no operator does."""

    retained: bool = False
    """Whether it must not be given up."""

    busy: int = 0
    """How many of its slots are held, awake or asleep, or being cleaned."""

    suspended: int = 0
    """How many of its slots are held by leases that sleep."""

    usable: int = 0
    """How many of its slots may be handed out now."""

    asleep: int = 0
    """How many could be, were the instance not suspended."""

    returning: int = 0
    """How many can be, once it is ready again."""

    returns: bool = False
    """Whether it is on its way there."""

    away: bool = False
    """Whether it is, or sleeps."""

    paused: int = 0
    """How many could be, were it not paused for a moment."""

    unhealthy: int = 0
    """How many are free, on an unhealthy host."""

    blocked: int = 0
    """How many are free and may not be handed out, while others are in use."""

    kept: bool = False
    """Whether it counts as capacity: busy, usable, or paused for a moment."""

    dirty: dict[int, DirtyRecord] = Factory(dict)
    """By slot number: those that were used and not cleaned since."""

    cleaning: "dict[int, Clean]" = Factory(dict)
    """By slot number: the clean-ups that are under way."""

    @property
    def rests(self) -> bool:
        """Whether nothing runs on it: it is free, or all its leases sleep."""
        return self.busy == self.suspended

    @property
    def held(self) -> "list[Held]":
        """Its leases, awake or asleep."""
        return [held for held in self.slots if held is not None]


@define(eq=False)
class Held:
    """A slot in somebody's hands: the ledger's side of a lease."""

    key: str
    host: Host
    slot: int
    since: float
    ticket: int
    """The place in the queue that it was served from."""

    asked_at: float
    """When it was asked for."""

    ends_by: float
    """When the work will be done, if that was declared; else infinite."""

    checked: bool = False
    """Whether it is handed over as soon as its host gives a sign of life."""

    delivered: bool = False
    """Whether whoever asked has it. Until then it can be taken back unnoticed."""

    suspended: bool = False
    resuming: bool = False
    """Whether somebody waits to be handed it again."""

    def record(self) -> LeaseRecord:
        """For the journal."""
        return LeaseRecord(self.host.id, self.slot, self.since, self.suspended)


class Deliver(NamedTuple):
    """Give the slot to whoever waits for it, if it still stands."""

    held: Held


class Check(NamedTuple):
    """Ask the slot's host for a sign of life; the slot is delivered when there is one."""

    held: Held


class Break(NamedTuple):
    """Tell the holder that the slot is lost."""

    held: Held
    loss: Loss


@frozen(eq=False)
class Clean:
    """Clean the slot, if that is still wanted, and tell `Ledger.cleaned`."""

    host: Host
    slot: int
    key: str
    """Of the lease that used it last."""

    @property
    def wanted(self) -> bool:
        """Whether the slot waits for it; not if the host was given up meanwhile."""
        return self.host.cleaning.get(self.slot) is self


class Refuse(NamedTuple):
    """Tell whoever waits under the key that it will get nothing."""

    key: str
    why: str


class LostLease(NamedTuple):
    """How a lease was lost, for people to ask about."""

    at: float
    host: Host
    slot: int
    loss: Loss


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


@frozen(kw_only=True)
class Capacity:
    """Slots by state, and who waits. The first six add up to all slots there are."""

    idle: int
    reserved: int
    """Slots kept for reservations."""

    acquired: int
    suspended: int
    unavailable: int
    unhealthy: int

    pending: int
    """Acquires that wait."""

    promised: int
    """Reservations that no slot is kept for yet."""


@define(eq=False)
class Shelf:
    """The hosts of one pool, and the counters that decisions read."""

    pool: str
    slots: int
    """Slots per host."""

    max_uses: int
    """Leases per host in its life; 0: no limit."""

    hosts: dict[str, Host]
    by_busy: list[OrderedDict[str, Host]]
    """Hosts with usable slots, by how many of their slots are acquired; each in order of arrival there."""

    fullest: int = 0
    """No host with usable slots has more acquired ones than this."""

    usable: int = 0
    acquired: int = 0
    suspended: int = 0
    paused: int = 0
    kept: int = 0
    unhealthy: int = 0
    """Free slots of unhealthy hosts."""

    blocked: int = 0
    """Free slots of busy hosts that may not be handed out."""

    asleep: int = 0
    """Slots that could be handed out, were their instances not suspended."""

    returning: int = 0
    """Slots of hosts that are on their way back to being ready."""

    returners: int = 0
    """How many these are."""

    cleans: bool = False
    """Whether slots are cleaned between jobs."""

    cleaning: int = 0
    """Slots that are being cleaned."""

    checks: bool = False
    """Whether hosts are asked for a sign of life before a slot is handed over."""

    barred: str = ""
    """Why nothing of it is handed out for the moment; empty: it is."""

    @classmethod
    def empty(cls, pool: str, slots: int, max_uses: int, *, cleans: bool = False, checks: bool = False) -> "Shelf":
        """A shelf without hosts."""
        by_busy: list[OrderedDict[str, Host]] = [OrderedDict() for _ in range(slots)]
        return cls(pool, slots, max_uses, {}, by_busy, cleans=cleans, checks=checks)

    idle_sorted: bool = True
    """Whether the idle hosts are in the order in which they fell idle; not after one was closed for a while."""

    def sort_idle(self) -> None:
        """Put the idle hosts in the order in which they fell idle, if they are not."""
        if not self.idle_sorted:
            self.by_busy[0] = OrderedDict(sorted(self.by_busy[0].items(), key=lambda item: item[1].idle_rank))
            self.idle_sorted = True

    @property
    def fresh(self) -> int:
        """Slots that a new host offers."""
        return min(self.slots, self.max_uses) if self.max_uses else self.slots


def host_id(pool: str, instance: str) -> str:
    """The id of an instance over all pools."""
    return f"{pool}/{instance}"
