"""When to ask for jobs, one runner at one coordinator, and when to repeat a call: pure."""

import math
import re
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from http import HTTPStatus

from attrs import frozen

CHECK_INTERVAL = 3.0
"""Seconds between an answer without a job and the next request."""

UNHEALTHY_LIMIT = 3
"""So many refusals in a row silence a runner."""

UNHEALTHY_INTERVAL = 3600.0
"""Seconds that it is silent for."""

ATTEMPTS = 5
"""So often a call is made at most, if the answer says that it may be repeated."""

MAX_WAIT = 3600.0
"""Seconds that a coordinator can make us wait before a call is repeated; GitLab Runner has no limit here."""

_FIRST_WAIT, _LONGEST_WAIT = 0.1, 60.0
_RETRIED = frozenset({408, 429, 500, 502, 503, 504})
_OTHERS_FROM = 512
_GROWTH, _DECLINE, _SETBACK = 1.1, 0.95, 0.5
_SECONDS = re.compile("[0-9]{1,18}")


def is_retried(status: int) -> bool:
    """Whether a call with this answer is made again: the coordinator is busy, or something before it is."""
    return status in _RETRIED or status >= _OTHERS_FROM


def seconds_to_wait(attempt: int, headers: Mapping[str, str], *, wall: float, random: float) -> float:
    """How long to wait before a call is made again.

    Args:
        attempt: How often it was made.
        headers: Of the answer. ``RateLimit-ResetTime`` counts before ``Retry-After``. The former is a point in time on
            the coordinator's clock, and so is ``Date``: if both are there, ours does not matter. One that is over does
            not count.
        wall: The time of day in seconds since 1970.
        random: From 0 to 1: who was turned away together does not come back together.
    """
    reset, sent = _date(headers.get("RateLimit-ResetTime")), _date(headers.get("Date"))
    left = 0.0 if reset is None else reset - (wall if sent is None else sent)
    if left > 0:
        return min(left, MAX_WAIT)
    if found := _SECONDS.fullmatch(headers.get("Retry-After", "")):
        return min(float(found[0]), MAX_WAIT)
    return min(_FIRST_WAIT * 2.0 ** (attempt - 1), _LONGEST_WAIT) * (0.5 + random / 2)


def _date(text: str | None) -> float | None:
    try:
        return parsedate_to_datetime(text).timestamp() if text else None
    except (ValueError, OverflowError):
        return None


@frozen(kw_only=True)
class Polled:
    """What came of a request for a job."""

    status: int | None
    """The HTTP status; `None`: no answer, or none that could be read."""

    ticket: str | None = None
    """The header ``X-GitLab-Last-Update``."""

    is_retried: bool = False
    """Whether an answer before this one said that the call might be repeated."""

    wait: float = 0.0
    """Seconds for which the coordinator is busy, by this answer, if the call was not repeated because of it."""


class Polling:
    """When one runner asks one coordinator for jobs.

    Capacity is reserved by the caller before it asks, and given back after an answer without a job.
    """

    def __init__(
        self,
        now: float,
        *,
        request_concurrency: int = 1,
        check_interval: float = CHECK_INTERVAL,
        is_eager: bool = False,
    ) -> None:
        """Ask with at most so many requests at a time; how many there are depends on what comes of them.

        Who is *eager* asks with as many as there may be while the last answer was a job, and counts the interval from
        when a request was made: for one of several coordinators, whose jobs others would overtake.
        """
        self.ticket: str | None = None
        """What to send as ``last_update``: GitLab answers when something has changed since."""

        self._ceiling = request_concurrency
        self._check_interval = check_interval
        self._desired = 1.0
        self.is_eager = is_eager
        """Whether it is one of several coordinators: a call is not repeated then, but asked again in its turn."""

        self._had_job = False
        self._open = 0
        self._next_at = now
        self._refusals = 0

    @property
    def limit(self) -> int:
        """How many requests there may be at a time: more after jobs, fewer after answers without one."""
        if self.is_eager and self._had_job:
            return max(1, self._ceiling)
        return max(1, min(self._ceiling, math.ceil(self._desired)))

    @property
    def wanted(self) -> float:
        """How many requests it pays to have at a time, by what came of the last ones."""
        return self._desired

    @property
    def is_silenced(self) -> bool:
        """Whether the coordinator refused the runner so often that it is asked again only after a long time."""
        return self._refusals >= UNHEALTHY_LIMIT

    @property
    def wake(self) -> float | None:
        """When to ask next; `None` if that depends on an answer."""
        return self._next_at if self._open < self.limit else None

    def may_ask(self, now: float) -> bool:
        """Whether a request may be sent now."""
        return self._open < self.limit and now >= self._next_at

    def asked(self) -> None:
        """A request is under way."""
        self._open += 1

    def cancelled(self) -> None:
        """The request was broken off from our side."""
        self._open -= 1

    def renewed(self, now: float) -> None:
        """The runner has another token: what was said of the old one does not count any more."""
        self._refusals = 0
        self._next_at = now

    def answered(self, polled: Polled, now: float, *, asked_at: float | None = None) -> None:
        """A request is over.

        Args:
            polled: What came of it.
            now: The time.
            asked_at: When it was made, if it could be held; None: it could not, so that one may follow which can.
        """
        self._open -= 1
        self.ticket = polled.ticket or self.ticket
        self._adapt(polled)
        self._had_job = polled.status == HTTPStatus.CREATED and not polled.is_retried
        self._refusals = self._refusals + 1 if polled.status == HTTPStatus.FORBIDDEN else 0
        if self.is_silenced:
            self._next_at = now + UNHEALTHY_INTERVAL
        elif polled.status == HTTPStatus.CREATED:
            self._next_at = min(self._next_at, now)
        elif self.is_eager and polled.status == HTTPStatus.NO_CONTENT:
            self._next_at = now if asked_at is None else max(now, asked_at + self._check_interval)
        else:
            self._next_at = now + max(self._check_interval, polled.wait)

    def _adapt(self, polled: Polled) -> None:
        """Ask more where jobs are, less where none are, and half as much where it is too much; a late job is too."""
        if polled.is_retried or (polled.status is not None and is_retried(polled.status)):
            factor = _SETBACK
        else:
            factor = {201: _GROWTH, 204: _DECLINE}.get(polled.status or 0, 1.0)
        self._desired = min(max(self._desired * factor, 1.0), float(self._ceiling))
