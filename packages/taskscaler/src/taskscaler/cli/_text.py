"""Text for people: durations, counts, and what jobs print made harmless."""

import re
from collections.abc import Iterable

from fleeting import format_duration

PRECISE_BELOW = 9.95
"""Seconds below which a tenth of one is worth telling."""

# An operating system command (title, clipboard, link) ends with BEL or ST; others are CSI or two characters long.
_ESCAPES = re.compile(
    r"""
    (?:\x1b\]|\x9d) [^\x07\x1b\x9c]* (?:\x07|\x1b\\|\x9c)?
    | (?:\x1b[PX^_]|[\x90\x98\x9e\x9f]) [^\x1b\x9c]* (?:\x1b\\|\x9c)?
    | (?:\x1b\[|\x9b) [0-?]* [ -/]* [@-~]?
    | \x1b [ -/]* [0-~]?
    """,
    re.VERBOSE,
)
_DIRECTION = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
_CONTROLS = re.compile(rf"[\x00-\x08\x0b-\x1f\x7f-\x9f{_DIRECTION}]")


def harmless(text: str) -> str:
    """Take away whatever a terminal would obey: escape sequences, control characters, changes of direction.

    Line feeds and tabs stay. What a carriage return would have overwritten is gone, as on a terminal.
    """
    lines = _ESCAPES.sub("", text).replace("\r\n", "\n").split("\n")
    return _CONTROLS.sub("", "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in lines))


def elapsed(seconds: float) -> str:
    """Write a duration as precisely as anybody wants to read it: ``0.4s``, ``12s``, ``1h2m3s``."""
    return f"{seconds:.1f}s" if seconds < PRECISE_BELOW else format_duration(float(round(seconds)))


def counted(number: int, noun: str) -> str:
    """Write ``1 job``, ``2 jobs``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def listed(parts: Iterable[str]) -> str:
    """Join what stands side by side in a line of the display."""
    return " · ".join(parts)
