"""What is watched of growth besides its ceilings: that it is wanted, and that a cloud is left alone if it asks."""

from bisect import bisect_right
from math import ceil, inf

from attrs import Factory, define

from taskscaler import Policy
from taskscaler._types import PoolSettings

COARSE = 1e-3
"""Seconds by which two times may differ that were meant to be the same."""


@define(eq=False)
class Demand:
    """How many jobs there were at what time, from being brought to their ends, over all pools."""

    _changes: list[tuple[float, int]] = Factory(lambda: [(-inf, 0)])
    """The number from each time on; times rise."""

    def change(self, now: float, by: int) -> None:
        """So many more, or fewer, from now on."""
        self._changes.append((now, self._changes[-1][1] + by))

    def peak(self, since: float) -> int:
        """The most that there were at any time since then."""
        begin = bisect_right(self._changes, since, key=lambda change: change[0]) - 1
        return max(number for _, number in self._changes[begin:])


@define(eq=False)
class Growth:
    """What one pool's managers were told."""

    _waits: dict[int, tuple[float, float]] = Factory(dict)
    """By life: when the cloud last told it to wait, and until when."""

    def told_to_wait(self, life: int, now: float, seconds: float) -> None:
        """The cloud asks a manager to leave it alone for so long."""
        _, until = self._waits.get(life, (now, now))
        self._waits[life] = now, max(until, now + seconds)

    def hasty(self, life: int, now: float, late: float) -> float:
        """Until when a manager has still to wait that asks now; 0 if it need not, or may not know yet."""
        ended_at, until = self._waits.get(life, (now, now))
        return until if ended_at + late < now < until - COARSE else 0.0


def most_wanted(policy: Policy, pool: PoolSettings, jobs: int) -> int:
    """Instances that so many jobs and the policy can want at the most, all others of the pool being of no use."""
    slots = min(pool.capacity_per_instance, pool.max_use_count or inf)
    return ceil((jobs + policy.idle_count + policy.scale_factor_limit) / slots)
