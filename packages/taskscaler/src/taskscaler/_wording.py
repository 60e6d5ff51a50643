"""How explanations speak: of spans of time, counts, and names."""

from collections.abc import Sequence
from datetime import UTC, datetime
from math import inf

PRECISE_BELOW = 0.95
"""Seconds up to which a tenth of one is told."""

PLAIN_BELOW = 90
"""Seconds up to which a span of time is told in seconds alone."""

MOST_NAMED = 3
"""So many things are named; the rest is counted."""


def span(seconds: float) -> str:
    """Write a span of time as people say it: ``0.4 s``, ``42 s``, ``12 min 5 s``, ``3 h 20 min``, ``2 d 4 h``."""
    if 0 < seconds < PRECISE_BELOW:
        return f"{seconds:.1f} s"
    whole = round(max(0.0, seconds))
    if whole < PLAIN_BELOW:
        return f"{whole} s"
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if hours == 0:
        return _in_two(minutes, "min", whole % 60, "s")
    if days == 0:
        return _in_two(hours, "h", minutes % 60, "min")
    return _in_two(days, "d", hours % 24, "h")


def _in_two(number: int, unit: str, rest: int, smaller: str) -> str:
    return f"{number} {unit} {rest} {smaller}" if rest else f"{number} {unit}"


def counted(number: int, noun: str) -> str:
    """Write ``1 job``, ``2 jobs``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def enumerated(names: Sequence[str], *, most: int = MOST_NAMED) -> str:
    """Write ``a``, ``a and b``, ``a, b and c``, ``a, b, c and 7 more``."""
    named = [*names[:most], *([f"{len(names) - most} more"] if len(names) > most else [])]
    return " and ".join(part for part in (", ".join(named[:-1]), named[-1]) if part) if named else ""


def iso(at: float) -> str:
    """Write a time, given in seconds since the epoch, as ISO 8601 does."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")


def finite(seconds: float) -> float | None:
    """Give a span of time as JSON can hold it; None for one without end."""
    return round(seconds, 3) if seconds < inf else None
