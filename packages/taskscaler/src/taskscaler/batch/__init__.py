"""Batches: a list of jobs, run to their ends on a scaler's fleet, with results in a directory."""

from taskscaler._errors import CannotResume, RecordUnreadable, ResultsInTheWay
from taskscaler.batch._attempts import Attempt
from taskscaler.batch._event_log import EventLog
from taskscaler.batch._events import (
    BatchEvent,
    Begun,
    Ended,
    GivenUp,
    Joined,
    Over,
    PoolFacts,
    RecordedEvent,
    Replanned,
    Rerun,
    Resumed,
    Started,
    read_events,
)
from taskscaler.batch._history import Observer
from taskscaler.batch._job import Job, LazyJobs
from taskscaler.batch._job_state import JobState
from taskscaler.batch._plan import Plan, Planned
from taskscaler.batch._record import JobRecord
from taskscaler.batch._results import Results
from taskscaler.batch._retries import Retries
from taskscaler.batch._runner import Batch, Held, Kept, Scaler, run_batch
from taskscaler.batch._state import BatchState, JobChanged, fold

__all__ = [
    "Attempt",
    "Batch",
    "BatchEvent",
    "BatchState",
    "Begun",
    "CannotResume",
    "Ended",
    "EventLog",
    "GivenUp",
    "Held",
    "Job",
    "JobChanged",
    "JobRecord",
    "JobState",
    "Joined",
    "Kept",
    "LazyJobs",
    "Observer",
    "Over",
    "Plan",
    "Planned",
    "PoolFacts",
    "RecordUnreadable",
    "RecordedEvent",
    "Replanned",
    "Rerun",
    "Results",
    "ResultsInTheWay",
    "Resumed",
    "Retries",
    "Scaler",
    "Started",
    "fold",
    "read_events",
    "run_batch",
]
