"""Where a job of a batch can stand."""

from enum import Enum


class JobState(Enum):
    """Where a job stands."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    LOST = "lost"
    """Its instance was lost more often than it may be retried."""

    NO_CAPACITY = "no_capacity"
    """The fleet had no slot for it."""

    CANCELLED = "cancelled"
    SKIPPED = "skipped"
    """A job that it needs did not succeed."""

    @property
    def words(self) -> str:
        """The state as people say it."""
        return self.value.replace("_", " ")

    @property
    def said(self) -> str:
        """What happened to a job that is over, as the end of a sentence about it."""
        return _SAID.get(self, self.words)

    @property
    def final(self) -> bool:
        """Whether the job is over."""
        return self not in (JobState.QUEUED, JobState.RUNNING)

    @property
    def stands(self) -> bool:
        """Whether the job is over for good: one that was not given its chance has it when the batch is resumed."""
        return self.final and self not in (JobState.NO_CAPACITY, JobState.CANCELLED)


_SAID = {
    JobState.LOST: "was lost",
    JobState.CANCELLED: "was cancelled",
    JobState.NO_CAPACITY: "got no slot",
    JobState.SKIPPED: "was skipped",
}
