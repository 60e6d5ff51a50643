"""Jobs files: a fleet and what to run on it, in TOML; and jobs that come as a stream."""

from taskscaler._jobsfile._file import JobsFile, Runnable, Source, read_guest_file, read_jobs_file
from taskscaler._jobsfile._records import Format
from taskscaler._jobsfile._stream import StreamJobs, keep
from taskscaler._jobsfile._submitted import SubmittedFile, files_to_submit, read_submitted_file
from taskscaler._jobsfile._tables import Defaults, JobTable, Report, Retention

__all__ = [
    "Defaults",
    "Format",
    "JobTable",
    "JobsFile",
    "Report",
    "Retention",
    "Runnable",
    "Source",
    "StreamJobs",
    "SubmittedFile",
    "files_to_submit",
    "keep",
    "read_guest_file",
    "read_jobs_file",
    "read_submitted_file",
]
