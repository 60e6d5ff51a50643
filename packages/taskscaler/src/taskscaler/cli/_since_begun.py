"""What to say when a batch is resumed whose jobs file is another one than when it was begun. Pure."""

import tomllib
from collections.abc import Container, Iterator
from itertools import islice

from taskscaler._wording import counted
from taskscaler.batch import BatchState, Plan
from taskscaler.cli._changes import changes_beside_jobs, changes_of_jobs, the_job

MOST_CHANGES = 10
"""So many jobs are named that differ from what a batch was begun with."""


def depends_on_disk(text: str) -> bool:
    """Whether a jobs file may stand for other jobs though it has not changed."""
    return any("for_each" in table for table in tomllib.loads(text).get("jobs", ()))


def sayings(before: str, after: str, plan: Plan, past: BatchState, rerun: Container[str]) -> Iterator[str]:
    """Say what became of the jobs of a file, and where that comes too late.

    Args:
        before: The file as it was; empty: that is not known any more.
        after: The file as it is.
        plan: The jobs that it stands for now.
        past: What earlier commands left.
        rerun: Names of jobs that are over, and run again.
    """
    said = [*_of_tables(before, after, past, rerun)] if before else []
    yield from (f"the jobs file: {each}" for each in said or _of_names(plan, past))


def _of_tables(before: str, after: str, past: BatchState, rerun: Container[str]) -> Iterator[str]:
    changed = changes_of_jobs(before, after)
    for name in islice(changed, MOST_CHANGES):
        mine = [record for job, record in past.jobs.items() if job == name or job.startswith(f"{name}-")]
        too_late = mine and all(record.state.stands and record.name not in rerun for record in mine)
        what = f"{changed[name]}, but is over and stays as it is" if too_late else changed[name]
        yield f"{the_job(name)} {what}"
    if (more := len(changed) - MOST_CHANGES) > 0:
        yield f"{counted(more, 'more job')} differ"
    yield from changes_beside_jobs(before, after)


def _of_names(plan: Plan, past: BatchState) -> Iterator[str]:
    """Count what has come and gone where no text says so: a directory has other files, or the text was not kept."""
    if plan.names == past.plan.names:
        return
    new = sum(name not in past.jobs for name in plan.names)
    gone = sum(record.name not in plan.names and not record.state.stands for record in past.records)
    for number, what in ((new, "new"), (gone, "gone")):
        if number:
            yield f"{counted(number, 'job')} {'is' if number == 1 else 'are'} {what}"
