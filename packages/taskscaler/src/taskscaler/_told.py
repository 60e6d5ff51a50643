"""What the results of a batch tell of it: its jobs and their tries, and its fleet. Only reads, also while it runs.

The history tells of every try as it stands; ``results.json`` of the jobs that were never tried, once a command has
ended; the jobs file, which is kept until the batch is over, of those that may still be.
"""

import fcntl
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Any

from attrs import evolve, frozen

from fleeting.config import did_you_mean
from taskscaler._errors import CannotResume, NothingTold
from taskscaler._jobsfile import retries_by_job
from taskscaler._wording import enumerated
from taskscaler.batch import Attempt, JobState, Past, RecordedEvent, Results, read_record
from taskscaler.batch._history import COPY, FILE

_ABSENT = (FileNotFoundError, NotADirectoryError)

NEWEST = 3
"""So many directories are named that may have been meant."""


class Progress(Enum):
    """How far a batch has come."""

    RUNNING = "running"
    INTERRUPTED = "interrupted"
    """No command runs it, and there is something left to do."""

    OVER = "over"


@frozen(kw_only=True)
class JobTold:
    """One job, as far as is known."""

    name: str
    state: JobState
    attempts: tuple[Attempt, ...] = ()
    why: str = ""
    """Why it stands where it stands, unless it simply waits, runs or succeeded."""


@frozen(kw_only=True)
class RunTold:
    """A batch, as far as is known."""

    directory: Path
    progress: Progress
    started: float
    """Seconds since the epoch."""

    last: float
    """When the last thing happened that is told of, seconds since the epoch."""

    jobs: Mapping[str, JobTold]
    """By name, in the order of the batch."""

    events: Sequence[RecordedEvent]
    """What became of the fleet, in order; empty if that was not recorded."""

    def job(self, name: str) -> JobTold:
        """One job.

        Raises:
            NothingTold: There is none of that name.
        """
        if name not in self.jobs:
            near = self._copies(name) or did_you_mean(name, self.jobs)
            hint = near or f"it has {enumerated(list(self.jobs)) or 'none'}"
            raise NothingTold(f"the batch in {self.directory} has no job {name!r}; {hint}")
        return self.jobs[name]

    def _copies(self, name: str) -> str:
        """Ask which copy was meant, if the jobs file has several under that name."""
        copies = [job for job in self.jobs if job.startswith(f"{name}-")]
        return f"did you mean one of {copies[0]} to {copies[-1]}?" if len(copies) > 1 else ""


def read_run(directory: Path) -> RunTold:
    """Read what the results in a directory tell.

    Raises:
        NothingTold: There are none, or they cannot be understood.
        RecordUnreadable: A later release has recorded the fleet.
        OSError: They cannot be read.
    """
    if not directory.is_dir():
        near = did_you_mean(directory.name, (path.name for path in directory.parent.glob("*") if path.is_dir()))
        raise NothingTold(f"there is no directory {directory}; {near or 'name the one that has the results'}")
    results = Results(directory)
    history = results.history / FILE
    if not (history.exists() or results.summary.exists()):
        raise NothingTold(f"{directory} holds no results of a batch; {_elsewhere(directory)}")
    events = read_record(results.fleet_record) if results.fleet_record.exists() else []
    running = _is_locked(history)
    past = _past(history, running=running)
    summary = _summary(results.summary)
    jobs = _jobs(results, past, summary, running=running)
    tries = [each.ended or each.started for job in jobs.values() for each in job.attempts]
    ended = [summary.ended] if summary else []
    started = past.started if past else summary.started if summary else 0.0
    return RunTold(
        directory=directory,
        progress=_progress(past, jobs.values(), running=running),
        started=started,
        last=max([started, *(event.at for event in events), *tries, *ended]),
        jobs=jobs,
        events=events,
    )


def _elsewhere(directory: Path) -> str:
    """Say where results may have been meant."""
    inside = [path.parent for name in ("resume", "results.json") for path in directory.glob(f"*/{name}")]
    found = sorted(set(inside), key=lambda path: path.stat().st_mtime, reverse=True)[:NEWEST]
    if found:
        return f"did you mean {' or '.join(map(str, found))}?"
    return "name the directory that `taskscaler run` has written them to"


def _is_locked(history: Path) -> bool:
    """Whether a command runs the batch: it holds a lock as long as it lives."""
    with suppress(*_ABSENT), history.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _past(history: Path, *, running: bool) -> Past | None:
    """Read the history; a line without its end was never told."""
    try:
        whole, _, _ = history.read_bytes().rpartition(b"\n")
        return Past.of(whole.splitlines(), running=running)
    except _ABSENT:
        return None
    except (ValueError, CannotResume) as error:
        raise NothingTold(f"{history} cannot be used: {error}") from error


@frozen(kw_only=True)
class _Summary:
    """What ``results.json`` says."""

    started: float
    ended: float
    jobs: Mapping[str, JobTold]


def _summary(path: Path) -> _Summary | None:
    try:
        return _summed_up(json.loads(path.read_bytes()))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, LookupError) as error:
        raise NothingTold(f"{path} cannot be used: it is not what a batch has written") from error


def _summed_up(summary: Mapping[str, Any]) -> _Summary:
    jobs = {job["name"]: _job(job) for job in summary["jobs"]}
    return _Summary(started=_time(summary["started"]), ended=_time(summary["ended"]), jobs=jobs)


def _jobs(results: Results, past: Past | None, summary: _Summary | None, *, running: bool) -> Mapping[str, JobTold]:
    """All jobs that are known of: as the last command that ended left them, and as they were tried since."""
    retries = _retries(results)
    jobs = {name: JobTold(name=name, state=JobState.QUEUED) for name in retries}
    jobs |= summary.jobs if summary else {}
    for name, tries in past.tries.items() if past else ():
        known = jobs.get(name, JobTold(name=name, state=JobState.QUEUED))
        jobs[name] = _tried(known, tuple(tries.attempts))
    if not running:
        return jobs
    return {name: _waiting_again(job, retries.get(name, 0)) for name, job in jobs.items()}


def _retries(results: Results) -> Mapping[str, int]:
    """Tell how often each job may be retried, while the batch is not over; afterwards the file is not kept."""
    try:
        return retries_by_job((results.history / COPY).read_text(encoding="utf-8"))
    except (*_ABSENT, ValueError, TypeError, LookupError):
        return {}


def _job(job: Mapping[str, Any]) -> JobTold:
    attempts = tuple(_attempt(attempt) for attempt in job["attempts"])
    return JobTold(name=job["name"], state=JobState(job["state"]), attempts=attempts, why=job["why"])


def _attempt(attempt: Mapping[str, Any]) -> Attempt:
    return Attempt(
        pool=attempt.get("pool", ""),
        instance=attempt["instance"],
        slot=attempt["slot"],
        started=_time(attempt["started"]),
        ended=None if attempt["ended"] is None else _time(attempt["ended"]),
        state=JobState(attempt["state"]),
        exit_code=attempt["exit_code"],
        why=attempt["why"],
        interrupted=attempt["interrupted"],
        preempted=attempt.get("preempted", False),
    )


def _tried(job: JobTold, attempts: tuple[Attempt, ...]) -> JobTold:
    """Take over what the history tells, which is never behind; why a job stands, ``results.json`` may know better."""
    if len(attempts) == len(job.attempts) and job.state.final:
        return evolve(job, attempts=attempts)
    last = attempts[-1]
    return evolve(job, attempts=attempts, state=last.state, why=last.why)


def _waiting_again(job: JobTold, retries: int) -> JobTold:
    """While a command runs the batch, whatever may be tried (again) waits for its turn."""
    lost = sum(each.state is JobState.LOST and not each.excused for each in job.attempts)
    waits = lost <= retries if job.state is JobState.LOST else job.state.final and not job.state.stands
    return evolve(job, state=JobState.QUEUED) if waits else job


def _progress(past: Past | None, jobs: Iterable[JobTold], *, running: bool) -> Progress:
    if running:
        return Progress.RUNNING
    over = past.over is not None if past else all(job.state.stands for job in jobs)
    return Progress.OVER if over else Progress.INTERRUPTED


def _time(iso: str) -> float:
    return datetime.fromisoformat(iso).timestamp()
