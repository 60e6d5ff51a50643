"""How explanations speak: of counts, names and times."""

from collections.abc import Sequence
from datetime import UTC, datetime
from math import inf

MOST_NAMED = 3
"""So many things are named; the rest is counted."""


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
