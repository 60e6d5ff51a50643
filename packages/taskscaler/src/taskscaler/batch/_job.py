"""One job of a batch, and where it can stand."""

from enum import Enum

from attrs import field, frozen, validators

from taskscaler.executors import JobSpec

LOG_LIMIT = 64 << 20
"""Bytes that a job's log has at most, unless the job says otherwise."""

LEAST_LOG_LIMIT = 4096
"""Bytes: room for the beginning, the end, and what stands between them."""


@frozen(kw_only=True)
class Job:
    """What to run, and how."""

    spec: JobSpec
    executor: str = "instance"
    """Name of the executor that runs it."""

    retries: int = 2
    """How often it is tried again when its instance was lost; not counted is what the cloud took as announced. A job
    that fails by itself is not."""

    expected_duration: float | None = None
    """Seconds it is expected to take, so that it is not begun where it could not end."""

    log_limit: int = field(default=LOG_LIMIT, validator=validators.ge(LEAST_LOG_LIMIT))
    """Bytes that its log has at most, in all tries; of a longer one the beginning and the end are kept."""

    @property
    def name(self) -> str:
        """Its name, unique in the batch."""
        return self.spec.name


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

    @property
    def words(self) -> str:
        """The state as people say it."""
        return self.value.replace("_", " ")

    @property
    def final(self) -> bool:
        """Whether the job is over."""
        return self not in (JobState.QUEUED, JobState.RUNNING)

    @property
    def stands(self) -> bool:
        """Whether the job is over for good: one that was not given its chance has it when the batch is resumed."""
        return self.final and self not in (JobState.NO_CAPACITY, JobState.CANCELLED)
