"""What came of a simulation, as values."""

from array import array
from collections.abc import Mapping, Sequence
from math import ceil

from attrs import evolve, field, frozen

HOUR = 3600.0
"""Seconds."""


@frozen
class Waits:
    """For how long jobs waited for a slot; exact. Most wait not at all, and are only counted.

    A job that has lost its instance waits once more: both waits count.
    """

    at_once: int
    """Jobs that got a slot in the moment in which they came."""

    waited: "array[float]" = field(repr=False)
    """Seconds of each of the others, ascending."""

    @property
    def count(self) -> int:
        """How often a job got a slot."""
        return self.at_once + len(self.waited)

    @property
    def mean(self) -> float:
        """Seconds; 0 if no job got a slot."""
        return sum(self.waited) / self.count if self.count else 0.0

    @property
    def max(self) -> float:
        """Seconds of the one that waited longest."""
        return self.waited[-1] if self.waited else 0.0

    def quantile(self, share: float) -> float:
        """Seconds that so large a share of the jobs did not exceed: the smallest such wait of a job.

        Args:
            share: From 0 to 1.
        """
        place = ceil(share * self.count) - 1 - self.at_once
        return self.waited[place] if self.waited and place >= 0 else 0.0


@frozen
class Delays:
    """The jobs that waited, one by one, in the order in which they got a slot."""

    came: "array[float]" = field(repr=False)
    """When each began to wait, in seconds since the epoch."""

    waited: "array[float]" = field(repr=False)
    """Seconds of each."""

    def earlier(self, seconds: float) -> "Delays":
        """The same, so much earlier."""
        return Delays(array("d", (at - seconds for at in self.came)), self.waited) if seconds else self


@frozen(kw_only=True)
class Reason:
    """What decisions did for one reason."""

    decisions: int
    instances: int
    """That were asked for, removed, suspended or resumed, all together."""


@frozen(kw_only=True)
class PoolOutcome:
    """What one pool has come to."""

    name: str
    bought: int
    """Instances that the cloud accepted."""

    deleted: int
    """Instances that were deleted because we asked for it."""

    failed: int
    """Instances that never came to take jobs."""

    preempted: int
    """Instances that the cloud took back."""

    refused: int
    """Instances that were asked for in vain during stock-outs."""

    peak: int
    """The most instances that existed at once."""

    calls: int
    """Calls to the cloud."""

    instance_hours: float
    billed_hours: float
    """With the minimum and the increment of the tariff."""

    cost: float | None
    """None: its price is not known."""

    currency: str


@frozen(kw_only=True)
class Series:
    """How it went, in equal steps from the first submit on; the last may be shorter. All columns are of one length."""

    begins: float
    """When the first step begins, in seconds since the epoch."""

    step: float
    """Seconds."""

    submitted: Sequence[int]
    """Jobs that came in each step."""

    instances: Sequence[int]
    """That existed at the end of each."""

    busy: Sequence[int]
    """Slots on which jobs ran then."""

    waiting: Sequence[int]
    """The most jobs that waited at once in each."""

    peak_instances: Sequence[int]
    """The most that existed at once in each."""

    peak_busy: Sequence[int]
    """The most slots on which jobs ran at once in each."""

    mean_wait: Sequence[float]
    """Seconds, of the jobs that got their slot in each step."""

    longest_wait: Sequence[float]
    """Likewise."""


@frozen(kw_only=True)
class Outcome:
    """What came of a simulation."""

    seed: int
    jobs: int
    done: int
    refused: int
    """Jobs that got no slot within the acquire timeout."""

    interrupted: int
    """Tries that were lost with their instances; those jobs ran again."""

    waits: Waits
    delays: Delays
    """Which jobs `waits` is made of that waited."""

    began: float
    """The first submit, in seconds since the epoch."""

    ended: float
    """When the last job was done and, unless it was to stay, the fleet gone."""

    busy_hours: float
    """That slots were in use, all together."""

    slot_hours: float
    """That instances existed, times what each offers."""

    peak_instances: int
    """The most instances that existed at once, over all pools."""

    peak_waiting: int
    """The most jobs that waited at once."""

    idle_removed: int
    """Idle instances that were removed because nothing needed them."""

    undone: int
    """How many of them the pool asked for again within a minute: each that is asked for undoes one removal."""

    decisions: int
    """Scaling decisions that changed something."""

    reasons: Mapping[str, Reason]
    """What those did that did something, by why; the most frequent first."""

    held_back: Mapping[str, float]
    """For how many seconds a pool needed more than could be asked for, by ``pool: why``; longest first.

    As it stood at the end of each step of `series`, so to within that.
    """

    pools: Sequence[PoolOutcome]
    """In the fleet's order."""

    series: Series

    def earlier(self, seconds: float) -> "Outcome":
        """The same, so much earlier."""
        series = evolve(self.series, begins=self.series.begins - seconds)
        delays = self.delays.earlier(seconds)
        return evolve(self, began=self.began - seconds, ended=self.ended - seconds, series=series, delays=delays)

    @property
    def instance_hours(self) -> float:
        """Over all pools."""
        return sum(pool.instance_hours for pool in self.pools)

    @property
    def billed_hours(self) -> float:
        """Over all pools."""
        return sum(pool.billed_hours for pool in self.pools)

    @property
    def bought(self) -> int:
        """Over all pools."""
        return sum(pool.bought for pool in self.pools)

    @property
    def undone_share(self) -> float | None:
        """The share of the idle instances removed that were asked for again within a minute; None: none was removed."""
        return self.undone / self.idle_removed if self.idle_removed else None

    @property
    def cost(self) -> float | None:
        """In `currency`; None: not all prices are known, or they are in several currencies."""
        costs = [pool.cost for pool in self.pools if pool.cost is not None]
        return sum(costs) if len(costs) == len(self.pools) and self.currency is not None else None

    @property
    def currency(self) -> str | None:
        """Of all prices; None: there are several."""
        currencies = {pool.currency for pool in self.pools}
        return currencies.pop() if len(currencies) == 1 else None

    @property
    def utilisation(self) -> float:
        """The share of the time of all slots in which jobs ran, from 0 to 1; booting counts as idle."""
        return self.busy_hours / self.slot_hours if self.slot_hours else 0.0
