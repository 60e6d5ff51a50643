"""At which breakpoint a run is held, and what a decision does: pure. Times are seconds of any one clock that goes on.

A run is held at one breakpoint at a time. Each time has a number, from 1 on, and a decision names it: so one that comes
twice, or too late, never lets go of another step than the one that was looked at. All times together are bounded; when
they are used up, the run goes on, and is not held again.
"""

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Final

from attrs import evolve, frozen

from job_steps._breakpoints import TIMEOUT, Breakpoint, Decision, When


class Ended(Enum):
    """How a hold ended."""

    CONTINUED = "continued"
    ABORTED = "aborted"
    TIMED_OUT = "timed out"
    """Nobody decided within the time; the run went on."""

    @property
    def decision(self) -> Decision:
        """What the run does."""
        return Decision.ABORT if self is Ended.ABORTED else Decision.CONTINUE


class Answer(Enum):
    """What came of a decision."""

    TAKEN = "taken"
    """It counts."""
    REPEATED = "repeated"
    """The same was decided before: nothing changes."""
    TOO_LATE = "too late"
    """Something else was decided before: nothing changes."""
    UNKNOWN = "unknown"
    """The run was not held so often."""


ENDED_BY: Final = {Decision.CONTINUE: Ended.CONTINUED, Decision.ABORT: Ended.ABORTED}
"""How a hold ends by a decision."""


@frozen(kw_only=True)
class Hold:
    """A run that waits."""

    number: int
    """How many times it has waited, this one counted."""
    path: tuple[str, ...]
    """The names that lead to the step."""
    when: When
    since: float
    until: float
    """When it goes on by itself."""


@frozen(kw_only=True)
class Holds:
    """The breakpoints of one run, and what has become of them."""

    points: tuple[Breakpoint, ...] = ()
    left: float = TIMEOUT
    """Seconds for which it may be held yet, counted from the beginning of the present hold."""
    held: Hold | None = None
    """Where it is held now."""
    ended: tuple[Ended, ...] = ()
    """How each hold before ended, in the order of their numbers."""
    spent: float = 0.0
    """Seconds that those took."""

    def with_points(self, points: Iterable[Breakpoint]) -> "Holds":
        """Add breakpoints, for steps that come yet; those that are there stay, and none is there twice."""
        return evolve(self, points=tuple(dict.fromkeys((*self.points, *points))))

    def reached(self, path: Sequence[str], when: When, now: float) -> "Holds":
        """Take that a step has come to a moment: the run is held if there is a breakpoint, and time."""
        if self.held is not None:
            raise RuntimeError("a run that is held has gone on")
        if self.left <= 0 or not any(each.matches(path, when) for each in self.points):
            return self
        number = len(self.ended) + 1
        return evolve(self, held=Hold(number=number, path=tuple(path), when=when, since=now, until=now + self.left))

    def passed(self, now: float) -> "Holds":
        """Take that time has passed."""
        if self.held is None or now < self.held.until:
            return self
        return self._end(Ended.TIMED_OUT, self.held.until)

    def decided(self, number: int, decision: Decision, now: float) -> "tuple[Holds, Answer]":
        """Take what somebody has decided about a hold, by its number."""
        current = self.passed(now)
        if current.held is not None and current.held.number == number:
            return current._end(ENDED_BY[decision], now), Answer.TAKEN  # noqa: SLF001  (of the same class)
        before = current.how(number)
        if before is None:
            return current, Answer.UNKNOWN
        return current, Answer.REPEATED if before.decision is decision else Answer.TOO_LATE

    def how(self, number: int) -> Ended | None:
        """How a hold ended; None if it has not, or never was."""
        return self.ended[number - 1] if 0 < number <= len(self.ended) else None

    def held_time(self, now: float) -> float:
        """Seconds for which the run has been held so far, the present hold counted."""
        if self.held is None:
            return self.spent
        return self.spent + max(0.0, min(now, self.held.until) - self.held.since)

    def _end(self, how: Ended, now: float) -> "Holds":
        held = self.held
        if held is None:
            return self
        took = max(0.0, now - held.since)
        left = 0.0 if how is Ended.TIMED_OUT else max(0.0, self.left - took)
        return evolve(self, held=None, left=left, spent=self.spent + took, ended=(*self.ended, how))
