"""How sure a figure of some days is: what it would be if those days had come more or less often. Pure.

Jobs of one day depend on one another, by its load and by what waits for the same instances; those of different days
much less. So days are drawn, with replacement, as many as there were (a bootstrap of blocks of a day each).
"""

from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from math import ceil
from random import Random

from attrs import field, frozen

from taskscaler.simulation._jobs import Jobs
from taskscaler.simulation._outcome import Outcome
from taskscaler.simulation._targets import Target

DAY = 86400.0

DRAWS = 1000
"""Of days, for each figure."""

FEWEST = 3
"""With fewer days there is nothing to draw from."""

BETWEEN = (0.05, 0.95)
"""Quantiles between which 90 % of what was drawn lies."""

Draw = Sequence[int]
"""How often each day was drawn."""


def days_of(jobs: Jobs, since: float) -> int:
    """How many days the jobs come on, counted from then."""
    return int((jobs.ends - since) // DAY) + 1


def draws(days: int, seed: int, subject: str) -> Sequence[Draw]:
    """Draw days. One seed draws the same, so that what is compared is compared on the same days."""
    random = Random(f"{seed}/{subject}/days")  # noqa: S311  (nothing is secret here)
    return [_draw(days, random) for _ in range(DRAWS)]


def _draw(days: int, random: Random) -> Draw:
    counts = Counter(random.choices(range(days), k=days))
    return [counts[day] for day in range(days)]


@frozen
class Days:
    """What was waited and paid for, day by day; what a job waited counts for the day on which it came."""

    jobs: Sequence[int]
    """How often jobs got a slot."""

    waited: Sequence[tuple[float, int]] = field(repr=False)
    """Seconds and day of each that had to wait, the longest first."""

    hours: Sequence[float]
    """Instance-hours, in proportion to the instances that there were at the ends of the steps of a series."""

    @classmethod
    def of(cls, outcome: Outcome, jobs: Jobs, since: float) -> "Days":
        """Take apart what came of some jobs, the first of which come on the day that begins then."""
        days = days_of(jobs, since)
        came = _per_day(jobs.submits, since, days)
        delayed = [_day(at, since, days) for at in outcome.delays.came]
        late = Counter(delayed)
        series = outcome.series
        hours = [0.0] * days
        for step, instances in enumerate(series.instances):
            hours[_day(series.begins + (step + 0.5) * series.step, since, days)] += instances
        whole = sum(hours)
        scale = outcome.instance_hours / whole if whole else 0.0
        return cls(
            [max(came[day], late[day]) for day in range(days)],
            sorted(zip(outcome.delays.waited, delayed, strict=True), reverse=True),
            [each * scale for each in hours],
        )

    def late(self, seconds: float) -> Sequence[int]:
        """How many waited longer, by day."""
        late = [0] * len(self.jobs)
        for waited, day in self.waited:
            if waited <= seconds:
                break
            late[day] += 1
        return late

    def meets(self, target: Target) -> Callable[[Draw], bool]:
        """Give what says of drawn days whether they meet it."""
        if target.percent is None:
            return lambda drawn: self.value(target, drawn) <= target.seconds
        late, jobs, percent = self.late(target.seconds), self.jobs, target.percent

        def met(drawn: Draw) -> bool:
            return _weighed(drawn, late) <= _may_exceed(percent, _weighed(drawn, jobs))

        return met

    def value(self, target: Target, drawn: Draw) -> float:
        """What it is of drawn days, in seconds."""
        jobs = _weighed(drawn, self.jobs)
        if target.percent is None:
            waited = sum(seconds * drawn[day] for seconds, day in self.waited)
            return waited / jobs if jobs else 0.0
        may = _may_exceed(target.percent, jobs)
        for seconds, day in self.waited:
            may -= drawn[day]
            if may < 0:
                return seconds
        return 0.0


def share_met(days: Days, targets: Sequence[Target], drawn: Sequence[Draw]) -> float:
    """In which share of the draws all are met."""
    tests = [days.meets(target) for target in targets]
    return sum(all(met(each) for met in tests) for each in drawn) / len(drawn)


def spread(values: Iterator[float]) -> tuple[float, float]:
    """Between which two values 90 % of them lie."""
    ordered = sorted(values)
    low, high = (ordered[max(0, ceil(share * len(ordered)) - 1)] for share in BETWEEN)
    return low, high


def saved(days: Days, others: Days, drawn: Sequence[Draw]) -> tuple[float, float]:
    """Which share of the hours of others it takes, on the same days: between which two values 90 % lie."""
    ratios = (_weighed(each, days.hours) / max(_weighed(each, others.hours), 1e-9) for each in drawn)
    return spread(ratios)


def _weighed(drawn: Draw, values: Sequence[float]) -> float:
    return sum(map(float.__mul__, map(float, drawn), map(float, values)))


def _may_exceed(percent: float, jobs: float) -> int:
    """How many of so many may wait longer than the quantile; as `Waits.quantile` has it."""
    return int(jobs) - ceil(percent / 100 * jobs)


def _day(at: float, since: float, days: int) -> int:
    return min(max(0, int((at - since) // DAY)), days - 1)


def _per_day(times: "array[float]", since: float, days: int) -> Sequence[int]:
    counts = [0] * days
    for at in times:
        counts[_day(at, since, days)] += 1
    return counts
