"""What the instances of a fleet have cost so far, from what became of them and from prices in its file. Pure.

An instance is paid for from when it is first seen until it is gone, and not while it is suspended or about to run
again: each time that it runs is billed by itself, as clouds do. What has no price has no known cost, which is not 0.
An instance that an earlier manager left is paid for once something shows that it runs, and only what is billed for it
beyond what was billed already when this manager began.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from heapq import heappop, heappush

from attrs import define, field, frozen

from taskscaler._observe import GONE, InstanceEvent, ScalerEvent

HOUR = 3600.0
"""Seconds."""

_MICRO = 1_000_000
"""Sums are of whole microseconds: they are exact, so that what only grows never falls by rounding."""

_UNPAID = frozenset({GONE, "suspended", "resuming"})
"""States in which an instance is not paid for."""


def _micros(seconds: float) -> int:
    return round(seconds * _MICRO)


@frozen(kw_only=True)
class Tariff:
    """How the instances of a pool are paid for."""

    price_per_hour: float | None = None
    """Of one instance; None: not known."""

    currency: str = ""
    """Of the price; empty: not known."""

    minimum_billing: float = 0.0
    """Seconds that are billed at least each time an instance runs."""

    billing_increment: float = 1.0
    """Seconds, of which a whole number is billed; more than 0."""

    def billed(self, seconds: float) -> float:
        """Seconds that are billed for an instance that ran so long."""
        return self.increments(_micros(seconds)) * self.increment / _MICRO

    @cached_property
    def increment(self) -> int:
        """Of which a whole number is billed, in microseconds; at least 1."""
        return max(1, _micros(self.billing_increment))

    @cached_property
    def minimum(self) -> int:
        """Increments that are billed at least."""
        return -(-_micros(self.minimum_billing) // self.increment)

    def increments(self, micros: int) -> int:
        """So many are billed for an instance that ran for so many microseconds."""
        return max(self.minimum, -(-micros // self.increment))


@frozen(kw_only=True)
class PoolCost:
    """What one pool has come to."""

    tariff: Tariff
    instance_time: float = 0.0
    """Seconds that its instances ran, all added up."""

    billed_time: float = 0.0
    """Seconds that are billed for that."""

    @property
    def cost(self) -> float | None:
        """In the currency of the price; None: there is no price, so nobody knows."""
        price = self.tariff.price_per_hour
        return None if price is None else self.billed_time / HOUR * price

    def with_run(self, seconds: float) -> "PoolCost":
        """Add a time for which an instance ran."""
        return PoolCost(
            tariff=self.tariff,
            instance_time=self.instance_time + seconds,
            billed_time=self.billed_time + self.tariff.billed(seconds),
        )


@frozen
class _Run:
    """A time for which an instance runs, in microseconds since the epoch."""

    began: int
    counted_since: int
    """From when on it is ours to count: before, an earlier manager did."""

    billed_before: int = 0
    """Increments that it had come to by then."""


@define
class _PoolSpending:
    """Adds up the runs of one pool: O(log n) for each that begins or ends, and to say what all have come to.

    A run is young while its minimum covers it. What older ones have come to is, for each, the whole increments between
    its begin and now, counted from the epoch, and one more if now is further into an increment than its begin was.
    """

    _tariff: Tariff
    _over: int = field(default=0, init=False)
    """Microseconds of the runs that are over."""

    _billed: int = field(default=0, init=False)
    """Increments of those; less what was billed before for all."""

    _running: dict[str, _Run] = field(factory=dict, init=False)
    """By instance."""

    _counted: int = field(default=0, init=False)
    """The sum of when those began to be counted."""

    _young: dict[str, _Run] = field(factory=dict, init=False)
    _ripe_at: list[tuple[int, str]] = field(factory=list, init=False)
    """A heap: when the minimum of each of the young no longer covers it."""

    _whole: int = field(default=0, init=False)
    """Of the older: the sum of the whole increments at which they began."""

    _rests: list[int] = field(factory=list, init=False)
    """How far into an increment each of the older began, ascending."""

    _latest: int = field(default=0, init=False)
    """Time does not go back."""

    def begin(self, instance: str, at: float, kept: tuple[float, float] | None = None) -> None:
        """An instance runs; *kept*: since when, and when we took it over, if an earlier manager left it."""
        if instance in self._running:
            return
        now = self._at(at)
        run = _Run(now, now) if kept is None else self._taken_over(*kept)
        self._running[instance] = self._young[instance] = run
        self._counted += run.counted_since
        self._billed -= run.billed_before
        heappush(self._ripe_at, (run.began + self._tariff.minimum * self._tariff.increment, instance))

    def end(self, instance: str, at: float) -> None:
        """It does not, or no more."""
        now = self._at(at)
        self._ripen(now)
        run = self._running.pop(instance, None)
        if run is None:
            return
        self._counted -= run.counted_since
        self._over += now - run.counted_since
        self._billed += self._tariff.increments(now - run.began)
        if self._young.pop(instance, None) is None:
            whole, rest = divmod(run.began, self._tariff.increment)
            self._whole -= whole
            del self._rests[bisect_left(self._rests, rest)]

    def so_far(self, at: float) -> PoolCost:
        """What all has come to."""
        now = self._at(at)
        self._ripen(now)
        whole, rest = divmod(now, self._tariff.increment)
        older = len(self._rests) * whole - self._whole + bisect_left(self._rests, rest)
        increments = self._billed + older + len(self._young) * self._tariff.minimum
        return PoolCost(
            tariff=self._tariff,
            instance_time=(self._over + len(self._running) * now - self._counted) / _MICRO,
            billed_time=increments * self._tariff.increment / _MICRO,
        )

    def _at(self, at: float) -> int:
        self._latest = max(self._latest, _micros(at))
        return self._latest

    def _taken_over(self, since: float, at: float) -> _Run:
        counted = _micros(at)
        began = min(_micros(since), counted)
        return _Run(began, counted, self._tariff.increments(counted - began))

    def _ripen(self, now: int) -> None:
        """Find those that are young no more."""
        while self._ripe_at and self._ripe_at[0][0] <= now:
            ripe_at, instance = heappop(self._ripe_at)
            run = self._young.get(instance)  # it may have ended, and run again
            if run is not None and run.began + self._tariff.minimum * self._tariff.increment == ripe_at:
                del self._young[instance]
                whole, rest = divmod(run.began, self._tariff.increment)
                self._whole += whole
                insort(self._rests, rest)


@define
class Spending:
    """Adds up what becomes of instances; keeps only those that run."""

    _pools: dict[str, _PoolSpending]
    _kept: dict[tuple[str, str], tuple[float, float]] = field(factory=dict, init=False)
    """What an earlier manager left, and nothing was heard of yet: since when, and when we took it over."""

    @classmethod
    def at(cls, tariffs: Mapping[str, Tariff]) -> "Spending":
        """Begin with nothing, at the tariffs of all pools."""
        return cls({pool: _PoolSpending(tariff) for pool, tariff in tariffs.items()})

    def take(self, event: InstanceEvent) -> None:
        """Take in what became of an instance; events come in order."""
        key, pool = (event.pool, event.instance), self._pool(event.pool)
        kept = self._kept.pop(key, None)
        if event.kept_since is not None:
            kept = event.kept_since, event.at
        if event.state in _UNPAID:
            pool.end(event.instance, event.at)
        elif event.kept_since is not None and event.state == "creating":
            self._kept[key] = event.kept_since, event.at  # it may sleep, or be gone
        else:
            pool.begin(event.instance, event.at, kept)

    def hear(self, event: ScalerEvent) -> None:
        """Take in what happens, as an observer does."""
        if isinstance(event, InstanceEvent):
            self.take(event)

    def so_far(self, now: float) -> Mapping[str, PoolCost]:
        """What each pool has come to, with what runs now; in the order of the tariffs. O(pools), with few exceptions.

        An instance whose minimum no longer covers it is looked at once.
        """
        return {name: pool.so_far(now) for name, pool in self._pools.items()}

    def _pool(self, name: str) -> _PoolSpending:
        return self._pools.setdefault(name, _PoolSpending(Tariff()))


def in_all(costs: Iterable[PoolCost]) -> Mapping[str, float] | None:
    """Add up costs, by currency; None if anything that ran has no price, so that the sum would leave it out."""
    totals = dict[str, float]()
    for each in costs:
        if each.cost is not None:
            totals[each.tariff.currency] = totals.get(each.tariff.currency, 0.0) + each.cost
        elif each.instance_time:
            return None
    return totals or None


def cost_as_data(costs: Mapping[str, PoolCost]) -> Mapping[str, object]:
    """Give costs as plain data: hours, and money in full."""
    return {
        "pools": {
            name: {
                "instance_hours": each.instance_time / HOUR,
                "billed_hours": each.billed_time / HOUR,
                "price_per_hour": each.tariff.price_per_hour,
                "currency": each.tariff.currency,
                "cost": each.cost,
            }
            for name, each in costs.items()
        },
        "instance_hours": sum(each.instance_time for each in costs.values()) / HOUR,
        "in_all": in_all(costs.values()),
    }


def cost_of_runs(runs: Iterable[tuple[Tariff, Sequence[tuple[float, float]]]]) -> tuple[float, str] | None:
    """Work out what instances have cost that ran then, and in which currency; None: not all prices are known.

    Args:
        runs: Of each instance its tariff, and from when until when it ran, each time.
    """
    costs = [
        PoolCost(tariff=tariff).with_run(max(0.0, ended - began)) for tariff, times in runs for began, ended in times
    ]
    totals = in_all(costs)
    return next(((cost, currency) for currency, cost in totals.items()), None) if totals and len(totals) == 1 else None
