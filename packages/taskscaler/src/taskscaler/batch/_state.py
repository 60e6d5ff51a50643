"""What has become of each job of a batch. Pure: told what happened and when, answers what changed.

::

    QUEUED ── begin ──► RUNNING ── end ──► SUCCEEDED, FAILED, TIMED_OUT
      ▲  │                 │
      │  └─ give up ───────┼────────────► CANCELLED, NO_CAPACITY
      └──── lose ──────────┴── lose, no retries left ──► LOST
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from types import MappingProxyType
from typing import Any

from attrs import define, evolve, field, frozen

from fleeting import PlanConfig
from fleeting.plugins import one_line
from taskscaler.batch._job import Job
from taskscaler.executors import JobOutcome

UNNAMED = frozenset({"", PlanConfig().name})
"""What the pool of a fleet is called that has only one, or was before pools were written down."""


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


@frozen(kw_only=True)
class Attempt:
    """One try at a job on one slot. Times are seconds since the epoch."""

    instance: str
    slot: int
    started: float
    pool: str = ""
    """Of the instance; empty if that was not written down."""

    ended: float | None = None
    state: JobState = JobState.RUNNING
    """How this try ended; `LOST` also if another one followed."""

    exit_code: int | None = None
    why: str = ""
    cpu_time: float | None = None
    """Seconds of CPU that it used; None: its executor does not tell."""

    peak_memory: int | None = None
    """Bytes of memory that it had at the most at once."""

    interrupted: bool = False
    """Whether it is lost because the manager was stopped: nothing that a job has only so many tries for."""

    preempted: bool = False
    """Whether it is lost because the cloud took its instance, as announced: nothing that a job has only so many tries
    for, either."""

    @property
    def excused(self) -> bool:
        """Whether it does not count against the tries that a job has."""
        return self.interrupted or self.preempted

    @property
    def place(self) -> str:
        """The instance, and the pool if it has a name of its own."""
        return self.instance if self.pool in UNNAMED else f"{self.instance} of {self.pool}"

    @property
    def duration(self) -> float:
        """Seconds it took; 0 while it runs."""
        return 0.0 if self.ended is None else self.ended - self.started


@define(kw_only=True)
class JobRecord:
    """One job and all that has happened to it."""

    job: Job
    queued: float
    """Since when it waits, or waited for its first try, in seconds since the epoch."""

    state: JobState = JobState.QUEUED
    attempts: list[Attempt] = field(factory=list)
    why: str = ""
    """Why it stands where it stands, unless it simply waits, runs or succeeded."""

    warnings: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The job's name."""
        return self.job.name

    @property
    def exit_code(self) -> int | None:
        """What its script exited with, at the last try."""
        return self.attempts[-1].exit_code if self.attempts else None

    @property
    def waited(self) -> float | None:
        """Seconds until its first try began; None if there was none."""
        return self.attempts[0].started - self.queued if self.attempts else None

    @property
    def retried_attempts(self) -> list[Attempt]:
        """The tries that another one followed."""
        return self.attempts[:-1]

    @property
    def lost_attempts(self) -> list[Attempt]:
        """The tries that ended because their instance was lost, or the manager was stopped."""
        return [attempt for attempt in self.attempts if attempt.state is JobState.LOST]

    @property
    def may_be_retried(self) -> bool:
        """Whether its instances were lost no more often than it may be tried again, preemptions not counted."""
        return sum(not attempt.excused for attempt in self.lost_attempts) <= self.job.retries


@frozen(kw_only=True)
class JobChanged:
    """A job has just come to stand where it stands now."""

    at: float
    """Seconds since the epoch."""

    record: JobRecord


class BatchState:
    """All jobs of a batch. Every method that changes something returns what changed; counts cost nothing."""

    def __init__(self, jobs: Iterable[Job], *, now: float) -> None:
        """Queue the jobs, whose names must differ, at *now*: when the batch was begun, by whichever run."""
        self._records = {job.name: JobRecord(job=job, queued=now) for job in jobs}
        self._counts = Counter({JobState.QUEUED: len(self._records)})
        self._running: dict[tuple[str, str, int], JobRecord] = {}
        self.started = now

    @property
    def records(self) -> Sequence[JobRecord]:
        """Every job, in the order of the batch."""
        return tuple(self._records.values())

    @property
    def running(self) -> Mapping[tuple[str, str, int], JobRecord]:
        """The jobs that run now, by pool, instance and slot."""
        return MappingProxyType(self._running)

    def __getitem__(self, name: str) -> JobRecord:
        """One job, by its name."""
        return self._records[name]

    def __len__(self) -> int:
        """How many jobs the batch has."""
        return len(self._records)

    def count(self, *states: JobState) -> int:
        """How many jobs stand in one of these states."""
        return sum(self._counts[state] for state in states)

    @property
    def done(self) -> int:
        """How many jobs are over for good; not those that a later run would still have to run."""
        return sum(count for state, count in self._counts.items() if state.stands)

    @property
    def over(self) -> bool:
        """Whether nothing is left to do, not even for a later run."""
        return all(state.stands for state, count in self._counts.items() if count)

    @property
    def succeeded(self) -> bool:
        """Whether every job has succeeded."""
        return self._counts[JobState.SUCCEEDED] == len(self._records)

    def restore(self, name: str, attempts: Sequence[Attempt], warnings: tuple[str, ...] = ()) -> None:
        """Take up what an earlier run tried, all of which has ended: a job that is not over waits again."""
        record = self._records[name]
        record.attempts, record.warnings, last = [*attempts], warnings, attempts[-1]
        if last.state is JobState.LOST and record.may_be_retried:
            self._move(record, JobState.QUEUED, last.started, last.why)
        elif last.state.stands:
            self._move(record, last.state, last.started, last.why)

    def begin(self, name: str, *, pool: str, instance: str, slot: int, now: float) -> JobChanged:
        """The job was given a slot and runs."""
        record = self._records[name]
        record.attempts.append(Attempt(pool=pool, instance=instance, slot=slot, started=now))
        self._running[pool, instance, slot] = record
        return self._move(record, JobState.RUNNING, now)

    def end(self, name: str, outcome: JobOutcome, *, now: float) -> JobChanged:
        """The job ran to its end."""
        record = self._records[name]
        record.warnings = outcome.warnings
        state = JobState(outcome.verdict.value)
        self._end_attempt(
            record,
            state,
            now,
            why=outcome.why,
            exit_code=outcome.exit_code,
            cpu_time=outcome.cpu_time,
            peak_memory=outcome.peak_memory,
        )
        return self._move(record, state, now, outcome.why)

    def fail(self, name: str, why: str, *, now: float) -> JobChanged:
        """The job could not be run where it was, nor could it elsewhere."""
        record, why = self._records[name], one_line(why)
        self._end_attempt(record, JobState.FAILED, now, why=why)
        return self._move(record, JobState.FAILED, now, why)

    def lose(self, name: str, why: str, *, now: float, preempted: bool = False) -> JobChanged:
        """The job's instance was lost: it waits again if it may be retried."""
        record, why = self._records[name], one_line(why)
        self._end_attempt(record, JobState.LOST, now, why=why)
        record.attempts[-1] = evolve(record.attempts[-1], preempted=preempted)
        return self._move(record, JobState.QUEUED if record.may_be_retried else JobState.LOST, now, why)

    def cancel(self, name: str, why: str, *, now: float, state: JobState = JobState.CANCELLED) -> JobChanged:
        """The job is given up, whether it waits or runs."""
        record, why = self._records[name], one_line(why)
        self._end_attempt(record, state, now, why=why)
        return self._move(record, state, now, why)

    def _end_attempt(self, record: JobRecord, state: JobState, now: float, **known: Any) -> None:  # noqa: ANN401  (fields of `Attempt`)
        if record.state is JobState.RUNNING:
            attempt = record.attempts[-1]
            record.attempts[-1] = evolve(attempt, ended=now, state=state, **known)
            del self._running[attempt.pool, attempt.instance, attempt.slot]

    def _move(self, record: JobRecord, state: JobState, now: float, why: str = "") -> JobChanged:
        self._counts[record.state] -= 1
        self._counts[state] += 1
        record.state, record.why = state, why
        return JobChanged(at=now, record=record)
