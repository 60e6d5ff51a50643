"""Jobs files: a fleet and what to run on it, in TOML."""

from taskscaler._jobsfile._file import JobsFile, read_jobs_file
from taskscaler._jobsfile._tables import Defaults, JobTable, Report

__all__ = ["Defaults", "JobTable", "JobsFile", "Report", "read_jobs_file"]
