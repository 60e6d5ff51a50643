"""How explanations speak: of counts, sizes, names and times."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from math import inf

from fleeting import Usage

MOST_NAMED = 3
"""So many things are named; the rest is counted."""


def counted(number: int, noun: str) -> str:
    """Write ``1 job``, ``2 jobs``, ``2 tries``, ``2 days``."""
    if number == 1:
        return f"{number} {noun}"
    return f"{number} {noun[:-1]}ies" if re.search("[^aeiou]y$", noun) else f"{number} {noun}s"


def enumerated(names: Sequence[str], *, most: int = MOST_NAMED) -> str:
    """Write ``a``, ``a and b``, ``a, b and c``, ``a, b, c and 7 more``."""
    named = [*names[:most], *([f"{len(names) - most} more"] if len(names) > most else [])]
    return " and ".join(part for part in (", ".join(named[:-1]), named[-1]) if part) if named else ""


def used_in_words(cpu_time: float | None, peak_memory: int | None, disk_written: int | None) -> str:
    """Write what a job has used, as far as that is known; empty: nothing is."""
    return Usage(cpu_time=cpu_time, peak_memory=peak_memory, disk_written=disk_written).account


def iso(at: float) -> str:
    """Write a time, given in seconds since the epoch, as ISO 8601 does."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")


def finite(seconds: float) -> float | None:
    """Give a span of time as JSON can hold it; None for one without end."""
    return round(seconds, 3) if seconds < inf else None
