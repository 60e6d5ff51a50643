"""When leases that sleep expire because nobody has come back for them, and which have. Pure.

The last that have expired are remembered, in the journal as well: a holder that comes back too late learns that, and
not that the lease never was. Each change is O(log n).
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from math import inf
from typing import Self

from attrs import Factory, define

from fleeting.core import Drop, Put, Timers, Write
from taskscaler.core._slots import EXPIRED, Assignment, ExpiredRecord

KEPT = 1000
"""So many of the last that have expired are remembered."""


@define
class Expiries:
    """Those of all pools."""

    expired: OrderedDict[str, ExpiredRecord] = Factory(OrderedDict)
    """The last that have, by key, oldest first; none whose key holds a slot again."""

    timers: Timers[str] = Factory(Timers)
    """When which leases expire, by key."""

    @classmethod
    def of(cls, expired: Mapping[str, ExpiredRecord]) -> Self:
        """Begin with those that expired in earlier lives of the manager."""
        return cls(OrderedDict(sorted(expired.items(), key=lambda item: (item[1].at, item[0]))))

    def at(self, key: str) -> float | None:
        """When the lease expires; None: it does not."""
        return self.timers.at(key)

    def items(self) -> Iterator[tuple[str, float]]:
        """Keys of leases that will expire, and when, in no order."""
        return iter(self.timers.items())

    def expect(self, assignment: Assignment) -> None:
        """The lease sleeps from now on."""
        if assignment.expires_at < inf:
            self.timers.set(assignment.key, assignment.expires_at)

    def cancel(self, key: str) -> None:
        """It sleeps no more, or somebody waits for it."""
        self.timers.cancel(key)

    def due(self, now: float) -> Iterator[str]:
        """Keys of those that have slept for too long, one by one."""
        return self.timers.due(now)

    def note(self, key: str, record: ExpiredRecord) -> Sequence[Write]:
        """Remember that one has expired, and forget the oldest if there are too many."""
        self.expired.pop(key, None)
        self.expired[key] = record
        writes: list[Write] = [Put(EXPIRED, key, record)]
        while len(self.expired) > KEPT:
            writes.append(Drop(EXPIRED, self.expired.popitem(last=False)[0]))
        return writes

    def forget(self, key: str) -> Sequence[Write]:
        """The key holds a slot again."""
        return () if self.expired.pop(key, None) is None else (Drop(EXPIRED, key),)
