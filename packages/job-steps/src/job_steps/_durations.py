"""Lengths of time: as people write them, and for people."""

import re
from typing import Final

_UNITS: Final = {"": 1, "s": 1, "m": 60, "h": 3600}
_TIME: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)([smh]?)")


def parse_time(text: str) -> float:
    """Read a number of seconds, or one with s, m or h behind it; 0 if it is neither, or no time at all."""
    found = _TIME.fullmatch(text.strip())
    return float(found[1]) * _UNITS[found[2]] if found else 0.0


def in_words(seconds: float) -> str:
    """Write seconds as `90 s`, `10 min` or `2 h`, in the biggest unit that leaves no rest, rounded to seconds."""
    whole = max(1, round(seconds))
    for unit, length in (("h", 3600), ("min", 60)):
        if whole % length == 0:
            return f"{whole // length} {unit}"
    return f"{whole} s" if whole < 600 else f"{round(whole / 60)} min"  # noqa: PLR2004  (ten minutes)
