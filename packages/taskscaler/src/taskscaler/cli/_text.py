"""Text for people: durations, counts, lists."""

from collections.abc import Iterable

from fleeting.plugins import format_duration

PRECISE_BELOW = 9.95
"""Seconds below which a tenth of one is worth telling."""


def elapsed(seconds: float) -> str:
    """Write a duration as precisely as anybody wants to read it: ``0.4s``, ``12s``, ``1h2m3s``."""
    return f"{seconds:.1f}s" if seconds < PRECISE_BELOW else format_duration(float(round(seconds)))


def listed(parts: Iterable[str]) -> str:
    """Join what stands side by side in a line of the display."""
    return " · ".join(parts)
