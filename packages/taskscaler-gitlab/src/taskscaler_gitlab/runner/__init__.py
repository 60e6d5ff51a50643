"""What becomes of a job: its stages, its sources, its variables, its end."""

from taskscaler_gitlab.runner._errors import RecordUnreadable
from taskscaler_gitlab.runner._features import features
from taskscaler_gitlab.runner._record import has_begun, kept_log, memory_limit_of, stages_of, usage_of
from taskscaler_gitlab.runner._run import abandon, run_job

__all__ = [
    "RecordUnreadable",
    "abandon",
    "features",
    "has_begun",
    "kept_log",
    "memory_limit_of",
    "run_job",
    "stages_of",
    "usage_of",
]
