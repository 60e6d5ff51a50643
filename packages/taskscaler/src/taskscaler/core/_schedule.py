"""Which policy holds now, and for how long that is certain. Pure.

A cron period is a span of time, not an instant: it holds in every minute that its five fields match, read
by the wall clock of the policy's time zone. When a clock is put back, the repeated hour matches twice; when
it is put forward, the skipped hour matches never.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, date, datetime, tzinfo
from functools import lru_cache
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from attrs import frozen

if TYPE_CHECKING:
    from cronsim import CronSim

ALWAYS = "* * * * *"

LOOK_AHEAD = 60
"""Minutes that are searched for the next change; after that one looks again."""

_MINUTE = 60.0
_ANY_TIME = datetime(2000, 1, 1)  # noqa: DTZ001  (cronsim wants one; only its parsed fields are used)


class Periodic(Protocol):
    """What a schedule needs to know of a policy."""

    @property
    def periods(self) -> Sequence[str]:
        """Cron expressions of five fields; the policy holds while any of them matches."""
        ...

    @property
    def timezone(self) -> str:
        """Whose wall clock the periods follow; see `validate_timezone`."""
        ...


P = TypeVar("P", bound=Periodic)


@frozen
class Current(Generic[P]):
    """What a schedule says of one moment."""

    policy: P | None
    """The last policy whose periods match; None if none does."""

    until: float
    """Nothing changes before this, in seconds since the epoch; look again then. Infinite: never changes."""


class Schedule(Generic[P]):
    """Policies, ready to be asked which one holds."""

    def __init__(self, policies: Sequence[P]) -> None:
        """Take the policies; of those that match at the same time, the last one holds.

        Raises:
            ValueError: A period or a time zone is invalid.
        """
        self._spans = [_Span(policy, zone(policy.timezone), _periods(policy)) for policy in reversed(policies)]

    def at(self, now: float) -> Current[P]:
        """What holds at *now*, in seconds since the epoch."""
        span = self._holding(now)
        return Current(span.policy if span else None, self._certain_until(span, now))

    def _holding(self, at: float) -> _Span[P] | None:
        return next((span for span in self._spans if span.holds(at)), None)

    def _certain_until(self, span: _Span[P] | None, now: float) -> float:
        if not self._spans or ALWAYS in self._spans[0].policy.periods:
            return math.inf
        this_minute = now // _MINUTE * _MINUTE
        ahead = (this_minute + minutes * _MINUTE for minutes in range(1, LOOK_AHEAD))
        return next((at for at in ahead if self._holding(at) is not span), this_minute + LOOK_AHEAD * _MINUTE)


@frozen
class _Span(Generic[P]):
    """When one policy holds."""

    policy: P
    zone: tzinfo | None
    periods: tuple[CronSim, ...]

    def holds(self, at: float) -> bool:
        wall = datetime.fromtimestamp(at, self.zone)
        return any(_matches(period, wall) for period in self.periods)


def validate_period(expression: str) -> None:
    """Check a cron expression of five fields: minute, hour, day of month, month, day of week.

    Names such as ``mon-fri`` and ``jan`` are allowed, in any case. As everywhere in Unix, if neither day field
    starts with a star, one of them matching is enough.

    Raises:
        ValueError: Says what may stand there.
    """
    if expression != ALWAYS:  # the default of every policy, for which nothing need be imported
        _period(expression)


def validate_timezone(name: str) -> None:
    """Check the name of a time zone: an IANA name, ``Local`` for the system's own, or empty for UTC, as in Go.

    Raises:
        ValueError: Says what may stand there.
    """
    zone(name)


@lru_cache
def _period(expression: str) -> CronSim:
    from cronsim import CronSim, CronSimError

    fields = len(expression.split())
    if fields != 5:  # noqa: PLR2004  (cronsim would take a sixth, for seconds)
        expected = "cron expressions of five fields, such as * 8-15 * * mon-fri"
        raise ValueError(expected, expression, f", which has {fields}")
    try:
        return CronSim(expression, _ANY_TIME)
    except CronSimError as error:
        what = str(error).lower()
        raise ValueError("cron expressions such as * 8-15 * * mon-fri", expression, f" ({what})") from error


def _periods(policy: Periodic) -> tuple[CronSim, ...]:
    return tuple(_period(expression) for expression in policy.periods)


def zone(name: str) -> tzinfo | None:
    """Find a time zone; None is the system's own, which Python reads without one."""
    if name == "Local":
        return None
    if name in ("", "UTC"):
        return UTC
    try:
        from zoneinfo import ZoneInfo

        return ZoneInfo(name)
    except (ValueError, OSError, LookupError) as error:  # a bad form, a folder, an unknown name
        raise ValueError("the name of a time zone such as UTC or Europe/Berlin") from error


def _matches(period: CronSim, wall: datetime) -> bool:
    return (
        wall.minute in period.minutes
        and wall.hour in period.hours
        and wall.month in period.months
        and period.match_day(date(wall.year, wall.month, wall.day))
    )
