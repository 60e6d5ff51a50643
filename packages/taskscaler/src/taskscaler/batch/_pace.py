"""How much longer a batch takes, as far as the jobs that are over show it. Pure."""

from typing import Self

from attrs import define, frozen

from fleeting.plugins import span
from taskscaler._wording import counted
from taskscaler.batch._attempts import Attempt
from taskscaler.batch._job_state import JobState
from taskscaler.batch._state import BatchState

_MEASURED = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.TIMED_OUT})
"""Ends that show how long jobs take; whoever lost its instance has only begun."""


@frozen(kw_only=True)
class Estimate:
    """The time left, and what it rests on."""

    left: float
    """Seconds."""

    measured: int
    """Tries that have run to their end."""

    mean: float
    """Seconds that these took."""

    width: int
    """Jobs that run at a time."""

    def __str__(self) -> str:
        """Write it with what it rests on."""
        took = f"{counted(self.measured, 'job')} took {span(self.mean)} on average"
        return f"about {span(self.left)} ({took}, {self.width} at a time)"


@define
class Pace:
    """How long jobs take; what is asked of it costs as much as there are jobs that run."""

    _measured: int = 0
    _seconds: float = 0.0

    @classmethod
    def of(cls, state: BatchState) -> Self:
        """Learn from all that has happened so far, which a batch that is resumed has done before."""
        pace = cls()
        for record in state.records:
            for attempt in record.attempts:
                pace.learn(attempt)
        return pace

    def learn(self, attempt: Attempt) -> None:
        """Learn from a try, if it has run to its end."""
        if attempt.state in _MEASURED:
            self._measured += 1
            self._seconds += attempt.duration

    def estimate(self, state: BatchState, now: float) -> Estimate | None:
        """How long the jobs that wait or run will take if as many run at a time as do at *now*.

        Returns:
            None as long as no job has run to its end, or none runs: there is nothing to go by.
        """
        running = state.running.values()
        if not self._measured or not running:
            return None
        mean = self._seconds / self._measured
        # One that runs for longer than most may end at any time.
        rest = [max(0.0, mean - (now - record.attempts[-1].started)) for record in running]
        work = sum(rest) + mean * state.count(JobState.QUEUED)
        left = max(work / len(rest), *rest, 0.0)
        return Estimate(left=left, measured=self._measured, mean=mean, width=len(rest))
