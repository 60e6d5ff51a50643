"""Batches: a list of jobs, run to their ends on a scaler's fleet, with results in a directory."""

from taskscaler._errors import CannotResume, RecordUnreadable, ResultsInTheWay
from taskscaler.batch._history import History, Over, Past
from taskscaler.batch._job import Job
from taskscaler.batch._record import FleetRecord, Opened, PoolFacts, RecordedEvent, read_record
from taskscaler.batch._results import Results
from taskscaler.batch._runner import Batch, Observer, Scaler, run_batch
from taskscaler.batch._state import Attempt, BatchState, JobChanged, JobRecord, JobState

__all__ = [
    "Attempt",
    "Batch",
    "BatchState",
    "CannotResume",
    "FleetRecord",
    "History",
    "Job",
    "JobChanged",
    "JobRecord",
    "JobState",
    "Observer",
    "Opened",
    "Over",
    "Past",
    "PoolFacts",
    "RecordUnreadable",
    "RecordedEvent",
    "Results",
    "ResultsInTheWay",
    "Scaler",
    "read_record",
    "run_batch",
]
