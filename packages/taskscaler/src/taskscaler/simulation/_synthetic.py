"""Jobs that never were: arrivals at random, by day and week, with bursts. Pure."""

import re
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from itertools import accumulate
from math import ceil, cos, isfinite, nan, pi
from random import Random
from typing import Any

from attrs import evolve, field, frozen
from attrs.validators import ge, gt, le

from fleeting import ConfigError
from fleeting.config import did_you_mean, parse_duration
from fleeting.plugins import span
from taskscaler.simulation._cells import LATEST, LONGEST_JOB
from taskscaler.simulation._distributions import Constant, Distribution, parse_distribution
from taskscaler.simulation._jobs import Jobs

MOST_JOBS = 20_000_000
"""That are made up, or read: 16 bytes each."""

LONGEST = 5 * 366 * 86400.0
"""Seconds over which they may come."""

DAY = 86400.0
BUSIEST = 15 * 3600.0
"""Seconds of the day at which most come; fewest come twelve hours from then."""

SATURDAY = 5

SLICE = 60.0
"""Seconds in which the rate does not change."""

FIVE_MINUTES = Constant(300.0)

_COMMA = re.compile(r",(?![^()]*\))")


@frozen(kw_only=True)
class Synthetic:
    """What jobs are like that are made up."""

    jobs: int = field(default=10_000, validator=[ge(1), le(MOST_JOBS)])
    """How many, bursts included."""

    over: float = field(default=7 * DAY, validator=[gt(0), le(LONGEST)])
    """Seconds in which they come."""

    duration: Distribution = FIVE_MINUTES
    """Seconds that each runs."""

    daily: float = field(default=0.0, validator=[ge(0), le(1)])
    """How much more than the mean come at 15:00 UTC, and how much fewer at 03:00: 0 is level, 1 is twice, and none."""

    weekend: float = field(default=1.0, validator=ge(0))
    """What share of a workday's jobs come on a Saturday or Sunday, UTC."""

    bursts: float = field(default=0.0, validator=[ge(0), le(1)])
    """The share of all jobs that come many at once."""

    burst_jobs: int = field(default=50, validator=ge(1))
    """How many come at once then."""

    begins: float = 1_704_067_200.0
    """Seconds since the epoch: a Monday in January 2024, at 00:00 UTC."""

    def make(self, seed: int) -> Jobs:
        """Make them up; one seed makes the same. Raises ValueError if a job would run for longer than a year."""
        arrivals, sizes = _stream(seed, "arrivals"), _stream(seed, "durations")
        at_once = int(self.jobs * self.bursts) // self.burst_jobs
        weights = [*accumulate(self.weights())]
        alone = self.jobs - at_once * self.burst_jobs
        submits = array("d", (self._draw(weights, arrivals) for _ in range(alone)))
        for _ in range(at_once):
            submits.extend([self._draw(weights, arrivals)] * self.burst_jobs)
        submits = array("d", sorted(submits))
        durations = array("d", (self.duration.sample(sizes) for _ in range(self.jobs)))
        if max(durations) > LONGEST_JOB:
            raise ValueError(f"duration: a job would run for {span(max(durations))}, expected at most a year")
        return Jobs(submits, durations)

    def weights(self) -> Iterator[float]:
        """How many come in each minute, in proportion."""
        return (self._weight(number * SLICE) for number in range(ceil(self.over / SLICE)))

    def _weight(self, seconds: float) -> float:
        """How many come at that time, in proportion; rounded, so that no machine's mathematics shows."""
        at = self.begins + seconds
        by_day = 1 + self.daily * cos(2 * pi * (at % DAY - BUSIEST) / DAY)
        is_weekend = datetime.fromtimestamp(at, UTC).weekday() >= SATURDAY
        return round(by_day * (self.weekend if is_weekend else 1.0), 9)

    def _draw(self, weights: list[float], random: Random) -> float:
        """One time, as likely as its weight is large. Of a Poisson process, given their number, all are drawn so."""
        at = random.random() * weights[-1]
        place = min(bisect_right(weights, at), len(weights) - 1)
        below = weights[place - 1] if place else 0.0
        share = (at - below) / (weights[place] - below) if weights[place] > below else 0.0
        return round(self.begins + min((place + share) * SLICE, self.over), 6)


def _stream(seed: int, subject: str) -> Random:
    return Random(f"{seed}/synthetic/{subject}")  # noqa: S311  (nothing is secret here)


def parse_synthetic(text: str) -> Synthetic:
    """Read what somebody writes: ``jobs=100000,over=168h,duration=exp(6m),daily=0.8``; all that is left out is usual.

    Raises:
        ValueError: Says what may stand there.
    """
    given: dict[str, Any] = {}
    for part in _COMMA.split(text):
        key, is_there, value = (each.strip() for each in part.partition("="))
        if not is_there or key not in _READERS:
            hint = did_you_mean(key, _READERS) or f"the keys are {', '.join(_READERS)}"
            raise ValueError(f"expected {EXAMPLE}, found {part.strip()!r}; {hint}")
        try:
            given[key] = _READERS[key](value)
        except (ConfigError, ValueError) as error:
            raise ValueError(f"{key}: {error}") from error
    try:
        synthetic = evolve(Synthetic(), **given)
    except ValueError as error:
        raise ValueError(f"{text!r}: {error.args[0]}") from error
    if not synthetic.weekend and not any(synthetic.weights()):
        raise ValueError(f"{text!r}: no job comes at a weekend, and there is nothing else")
    return synthetic


EXAMPLE = "key=value pairs such as jobs=100000,over=168h,duration=exp(6m),daily=0.8,weekend=0.3"


def _whole_number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"expected a whole number, found {text!r}") from None


def _share(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = nan
    if not isfinite(number):
        raise ValueError(f"expected a number such as 0.5, found {text!r}")
    return number


def _time(text: str) -> float:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"expected a time such as 2026-01-05T00:00:00Z, found {text!r}") from None
    begins = (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
    if not -LATEST <= begins <= LATEST:
        raise ValueError(f"expected a time between 1843 and 2096, found {text!r}")
    return begins


_READERS: Mapping[str, Callable[[str], object]] = {
    "jobs": _whole_number,
    "over": parse_duration,
    "duration": parse_distribution,
    "daily": _share,
    "weekend": _share,
    "bursts": _share,
    "burst_jobs": _whole_number,
    "begins": _time,
}
