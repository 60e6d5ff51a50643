"""What a manager finds in its journal of leases that an earlier one handed out, and what becomes of them. Pure.

A lease goes on that sleeps, or that is persistent: one that sleeps can be resumed, a persistent one that was awake is
detached until somebody reattaches it. One that sleeps and would have expired while there was no manager does so a
little later: a holder who wanted to resume it in time found nobody to ask. The memory of those that have expired goes
on, too. All others are nobody's any more, and what ran under them may still run: so instances that were in use are
removed, unless they are to be used on.

Where leases sleep, an instance stays, and its dirty slots are cleaned before they are used; where slots are not
cleaned, it goes with all that slept there. Where there are persistent leases, asleep or not, it stays in any case:
where slots are not cleaned, it gets no more work, and goes when it is free.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

from attrs import frozen

from fleeting.core import Drop, Plan, Put, Write
from taskscaler._types import PoolSettings
from taskscaler.core._ledger import WAS_IN_USE, Ledger
from taskscaler.core._slots import (
    CORDON,
    DIRTY,
    EXPIRED,
    LEASE,
    USES,
    DirtyRecord,
    ExpiredRecord,
    LeaseRecord,
    node_id,
)


@frozen
class Left:
    """What an earlier manager left, as far as it concerns slots."""

    uses: Mapping[str, int]
    """How often instances were given work, by node id."""

    cordons: Mapping[str, str]
    """Why instances get no new work, by node id."""

    kept: Mapping[str, LeaseRecord]
    """Leases that go on, by key."""

    dirty: Sequence[DirtyRecord]
    """Slots of nodes that stay, and that were not cleaned since they were used."""

    expired: Mapping[str, ExpiredRecord]
    """Suspended leases that have expired, by key."""

    lost: frozenset[str]
    """Ids of nodes that are not used on."""

    leases: Sequence[str]
    """Keys of all leases in the journal."""

    slots: Sequence[str]
    """Keys of all dirty slots there."""

    @classmethod
    def of(cls, pools: Sequence[PoolSettings], recovered: Mapping[str, Mapping[str, Any]], *, keep_used: bool) -> Self:
        """Look through the journal's records, by kind and key."""
        leases: Mapping[str, LeaseRecord] = recovered.get(LEASE, {})
        slots = {pool.name: pool.capacity_per_instance for pool in pools}
        cleaning = {pool.name for pool in pools if pool.cleans}
        kept = {key: record for key, record in leases.items() if record.suspended}
        kept |= {
            key: record
            for key, record in leases.items()
            if record.persistent and record.slot < slots.get(_pool(record), 0)
        }
        used = [DirtyRecord(record.host, record.slot, key) for key, record in leases.items() if key not in kept]
        used += recovered.get(DIRTY, {}).values()
        held = {record.host for record in kept.values() if record.persistent}
        stay = held | {record.host for record in kept.values() if _pool(record) in cleaning}
        return cls(
            uses={node: record.uses for node, record in recovered.get(USES, {}).items()},
            cordons={node: record.why for node, record in recovered.get(CORDON, {}).items()},
            kept=kept,
            dirty=[record for record in used if (_pool(record) in cleaning if keep_used else record.host in stay)],
            expired=recovered.get(EXPIRED, {}),
            lost=frozenset() if keep_used else frozenset(record.host for record in used) - stay,
            leases=[*leases],
            slots=[*recovered.get(DIRTY, {})],
        )

    def writes(self, ledger: Ledger) -> Iterator[Write]:
        """What brings the journal in line with the ledger that began with this."""
        yield from (Drop(LEASE, key) for key in self.leases if key not in ledger.leases)
        yield from (Drop(DIRTY, key) for key in self.slots)
        yield from (Put(DIRTY, key, record) for key, record in ledger.dirty().items())

    def removals(self, plans: Mapping[str, Plan]) -> Mapping[str, Mapping[str, str]]:
        """Which known instances are to be removed, and why, by pool."""
        return {
            pool: {id_: WAS_IN_USE for id_ in plan.instances if node_id(pool, id_) in self.lost}
            for pool, plan in plans.items()
        }


def _pool(record: LeaseRecord | DirtyRecord) -> str:
    return record.host.partition("/")[0]
