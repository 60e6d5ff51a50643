"""What a batch is given by a program, looked at before anything is done with it."""

from collections import Counter
from collections.abc import Mapping, Sequence

from fleeting import Duration
from fleeting.config import all_are, as_given, check, quoted
from taskscaler.batch._job import Job, LazyJobs, executors_of
from taskscaler.executors import Executor


def check_batch(jobs: Sequence[Job], executors: Mapping[str, Executor], patience: float) -> None:
    """See that a batch can be made of this.

    Raises:
        TypeError: It is of another kind.
        ValueError: Two jobs have one name, or a job names an executor that is not among these.
    """
    if not isinstance(jobs, LazyJobs):  # those are made from what was checked
        names = Counter(job.name for job in all_are(Job, jobs, "jobs"))
        if twice := [name for name, times in names.items() if times > 1]:
            raise ValueError(f"jobs: expected names that differ, found {quoted(twice[0])} twice")
    if not isinstance(executors, Mapping):
        raise TypeError(f"executors: expected a mapping, found {as_given(executors)}")
    if unknown := executors_of(jobs) - executors.keys():
        known = ", ".join(map(quoted, sorted(executors))) or "none"
        raise ValueError(f"jobs: expected executors among {known}, found {quoted(min(unknown))}")
    check("patience", patience, Duration, least=0, endless=True)
