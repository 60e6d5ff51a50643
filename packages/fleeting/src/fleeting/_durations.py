"""Durations as Go writes them: text such as ``"1h30m"`` in files, float seconds in code."""

import re
from decimal import Decimal
from typing import Annotated

from fleeting._errors import ConfigError, ConfigProblem, Mistake
from fleeting._wording import describe, expectation

Duration = Annotated[float, 'a duration such as "90s" or "1h30m"']
"""Float seconds; where a field has this type, `structure` reads a string such as ``"20m0s"``."""

_NANOSECONDS = {
    "ns": 1,
    "us": 1_000,
    "\N{MICRO SIGN}s": 1_000,
    "\N{GREEK SMALL LETTER MU}s": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
}
_UNITS = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
"""Seconds; days are for reading only."""

_TENTHS_BELOW = 2.95
"""Seconds."""

_LONGEST = 2**63 - 1  # nanoseconds: what Go's time.Duration holds
_TERM = re.compile(rf"([0-9]+\.?[0-9]*|\.[0-9]+)({'|'.join(_NANOSECONDS)})")
_TERMS = re.compile(rf"\+?(?:{_TERM.pattern})+")
_DAYS = re.compile(r"([0-9]+)d")


def parse_duration(text: str) -> float:
    """Read a duration as Go's ``time.ParseDuration`` does, negative ones refused.

    Args:
        text: Numbers with units ``ns``, ``us``, ``ms``, ``s``, ``m``, ``h``, such as ``"2h45m30.5s"``, or ``"0"``.

    Returns:
        Seconds, 0 or more, exact to the nanosecond.

    Raises:
        ConfigError: It is no duration; the message shows what to write.
    """
    if text == "0":
        return 0.0
    nanoseconds = sum(Decimal(number) * _NANOSECONDS[unit] for number, unit in _TERM.findall(text))
    if not _TERMS.fullmatch(text) or nanoseconds > _LONGEST:
        found, expected = describe(text), expectation(Duration)
        problem = ConfigProblem(path="", found=found, expected=expected, hint=_hint(text), mistake=Mistake.DURATION)
        raise ConfigError([problem])
    return int(nanoseconds) / 1e9


def format_duration(seconds: float) -> str:
    """Write a duration that somebody has set, as Go does: ``1h30m0s``, ``1.5s``, ``300ms``; micro is ``us``.

    It is exact to the nanosecond, and fit for a file. For what was measured or is left, see `span`.
    """
    nanoseconds = round(seconds * 1e9)
    if nanoseconds < 0:
        return f"-{format_duration(-seconds)}"
    if nanoseconds == 0:
        return "0s"
    for unit in ("ns", "us", "ms"):
        if nanoseconds < 1000 * _NANOSECONDS[unit]:
            return _in_unit(nanoseconds, unit)
    minutes, rest = divmod(nanoseconds, _NANOSECONDS["m"])
    hours, minutes = divmod(minutes, 60)
    return (f"{hours}h" if hours else "") + (f"{minutes}m" if hours or minutes else "") + _in_unit(rest, "s")


def span(seconds: float) -> str:
    """Write a duration that was measured or is left, rounded: ``0.4s``, ``42s``, ``12m5s``, ``3h20m``, ``2d4h``.

    Tenths are shown below three seconds, else the two largest units, without zeros; below 0 is ``0s``.
    """
    if seconds < _TENTHS_BELOW:
        return f"{max(0.0, seconds):.1f}".removesuffix(".0") + "s"
    left, parts = round(seconds), []
    for unit, size in _UNITS.items():
        number, left = divmod(left, size)
        parts.append(f"{number}{unit}" if number else "")
    first = next(place for place, part in enumerate(parts) if part)
    return "".join(parts[first : first + 2])


def _in_unit(nanoseconds: int, unit: str) -> str:
    """Write whole and fraction without trailing zeros."""
    number = f"{Decimal(nanoseconds) / _NANOSECONDS[unit]:f}"
    return (number.rstrip("0").rstrip(".") if "." in number else number) + unit


def _hint(text: str) -> str:
    """Guess what was meant by something that is no duration."""
    if text.isdecimal():
        return f'write "{text}s"'
    if days := _DAYS.fullmatch(text):
        return f'days are not a unit: write "{int(days[1]) * 24}h"'
    if text.startswith("-") and _TERMS.fullmatch(text[1:]):
        return "a duration cannot be negative"
    return 'the longest duration is "2562047h47m16s"' if _TERMS.fullmatch(text) else ""
