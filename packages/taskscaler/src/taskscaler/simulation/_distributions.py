"""How long something takes, as distributions: numbers in, numbers out. Pure.

Samples are whole microseconds: what the mathematics library of one machine rounds otherwise than that of another does
not reach a result.
"""

import re
from collections.abc import Iterable
from math import ceil, exp, log
from random import Random
from typing import Protocol

from attrs import frozen

from fleeting import ConfigError
from fleeting.config import parse_duration
from fleeting.plugins import format_duration

Z95 = 1.6448536269514722
"""The 95th percentile of the standard normal distribution."""

LONGEST = 10 * 365 * 86400.0
"""Seconds; no sample is longer, whatever its distribution says."""

FORMS = "60s, 40s..90s (any time between), exp(60s) (its mean) or lognormal(60s, 2m0s) (median and 95th percentile)"
"""How a distribution is written, for errors and help."""

_CALL = re.compile(r"(\w+)\((.*)\)")


class Distribution(Protocol):
    """Gives times in seconds, at least 0."""

    def sample(self, random: Random) -> float:
        """Draw one."""
        ...


def whole(seconds: float) -> float:
    """Round to whole microseconds, within bounds."""
    return round(min(max(seconds, 0.0), LONGEST), 6)


@frozen
class Constant:
    """Always the same."""

    seconds: float

    def sample(self, random: Random) -> float:  # noqa: ARG002  (it need not be asked)
        """Draw one."""
        return self.seconds

    def __str__(self) -> str:
        """As it is written."""
        return format_duration(self.seconds)


@frozen
class Uniform:
    """Any time from *low* to *high*."""

    low: float
    high: float

    def sample(self, random: Random) -> float:
        """Draw one."""
        return whole(self.low + (self.high - self.low) * random.random())

    def __str__(self) -> str:
        """As it is written."""
        return f"{format_duration(self.low)}..{format_duration(self.high)}"


@frozen
class Exponential:
    """What comes at random: most are short, few are long."""

    mean: float

    def sample(self, random: Random) -> float:
        """Draw one."""
        return whole(-self.mean * log(1.0 - random.random()))

    def __str__(self) -> str:
        """As it is written."""
        return f"exp({format_duration(self.mean)})"


@frozen
class LogNormal:
    """Skewed to the right, as boot times are."""

    median: float
    p95: float
    """The 95th percentile; not below the median."""

    def sample(self, random: Random) -> float:
        """Draw one."""
        spread = log(self.p95 / self.median) / Z95
        return whole(self.median * exp(spread * random.gauss(0.0, 1.0)))

    def __str__(self) -> str:
        """As it is written."""
        return f"lognormal({format_duration(self.median)}, {format_duration(self.p95)})"


@frozen
class Empirical:
    """As was measured: between two neighbouring values any is as likely."""

    values: tuple[float, ...]
    """Ascending, at least one."""

    @classmethod
    def of(cls, values: Iterable[float], *, most: int = 1000) -> "Empirical":
        """Take measured seconds; of more than *most*, so many quantiles."""
        found = sorted(whole(each) for each in values)
        if len(found) > most:
            found = [found[round(at * (len(found) - 1) / (most - 1))] for at in range(most)]
        return cls(tuple(found))

    def sample(self, random: Random) -> float:
        """Draw one."""
        at = random.random() * (len(self.values) - 1)
        below = int(at)
        low = self.values[below]
        high = self.values[min(below + 1, len(self.values) - 1)]
        return whole(low + (high - low) * (at - below))

    def quantile(self, share: float) -> float:
        """The value that so large a share is not above."""
        return self.values[max(0, ceil(share * len(self.values)) - 1)]

    def __str__(self) -> str:
        """In words: it is not written anywhere."""
        median, p95 = self.quantile(0.5), self.quantile(0.95)
        return f"as measured {len(self.values)} times (median {median:.3g} s, p95 {p95:.3g} s)"


@frozen
class InOrder:
    """As was measured, one after the other; what draws them keeps the place."""

    values: tuple[float, ...]
    then: Distribution
    """Once they are used up."""

    def sample(self, random: Random) -> float:
        """Draw one of those that come then."""
        return self.then.sample(random)

    def __str__(self) -> str:
        """In words."""
        return str(self.then)


def parse_distribution(text: str) -> Distribution:
    """Read a distribution as people write it.

    Raises:
        ValueError: It is none; says what may stand there.
    """
    text = text.strip()
    try:
        if ".." in text:
            low, _, high = text.partition("..")
            return _checked(Uniform(parse_duration(low.strip()), parse_duration(high.strip())))
        found = _CALL.fullmatch(text)
        if found is None:
            return Constant(parse_duration(text))
        name, given = found[1], [parse_duration(each.strip()) for each in found[2].split(",")]
        match name, given:
            case "exp", [mean]:
                return Exponential(mean)
            case "lognormal", [median, p95]:
                return _checked(LogNormal(median, p95))
    except (ConfigError, ValueError):
        pass
    raise ValueError(f"expected {FORMS}, found {text!r}")


def _checked(distribution: Uniform | LogNormal) -> Uniform | LogNormal:
    match distribution:
        case Uniform(low, high) if low <= high:
            return distribution
        case LogNormal(median, p95) if 0 < median <= p95:
            return distribution
    raise ValueError
