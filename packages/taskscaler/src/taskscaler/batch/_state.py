"""What has become of each job of a batch: what its events come to. Pure.

The command that runs a batch applies the events as they happen; reports, explanations and the command that resumes it
apply the same ones, read from its event log. So all of them agree::

    QUEUED ── started ──► RUNNING ── ended ──► SUCCEEDED, CANCELLED
      ▲  │                   │
      │  └─ given_up ────────┼───────────────► CANCELLED, NO_CAPACITY
      └──── ended badly ─────┴─ ended badly, no retries left ──► FAILED, TIMED_OUT, LOST

    resumed: RUNNING, CANCELLED, NO_CAPACITY ──► QUEUED
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, assert_never

from attrs import define, evolve, field, frozen

from fleeting import PlanConfig
from taskscaler._observe import DecisionEvent, InstanceEvent
from taskscaler.batch._events import Begun, Ended, GivenUp, Over, Planned, RecordedEvent, Resumed, Started
from taskscaler.batch._job_state import JobState
from taskscaler.batch._retries import Retries, as_retries

UNNAMED = frozenset({"", PlanConfig().name})
"""What the pool of a fleet is called that has only one, or was before pools were written down."""

STOPPED = "the manager was stopped"
"""Why tries are lost that had not ended when their command was killed."""


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
    """How this try ended; also if another one followed."""

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

    name: str
    retries: Retries = field(converter=as_retries)
    queued: float
    """Since when it waits, or waited for its first try, in seconds since the epoch."""

    state: JobState = JobState.QUEUED
    attempts: list[Attempt] = field(factory=list)
    why: str = ""
    """Why it stands where it stands, unless it simply waits, runs or succeeded."""

    warnings: tuple[str, ...] = ()
    retry_at: float = 0.0
    """When it may be tried again, in seconds since the epoch, if it has been tried and waits; see `Retries.backoff`."""

    @property
    def exit_code(self) -> int | None:
        """What its script exited with, at the last try."""
        return self.attempts[-1].exit_code if self.attempts else None

    @property
    def waited(self) -> float | None:
        """Seconds until its first try began; None if there was none."""
        return self.attempts[0].started - self.queued if self.attempts else None

    @property
    def interrupted(self) -> bool:
        """Whether it ran when its command was stopped, and has not been tried again."""
        return self.state is JobState.QUEUED and bool(self.attempts) and self.attempts[-1].interrupted

    @property
    def retried_attempts(self) -> list[Attempt]:
        """The tries that another one followed."""
        return self.attempts[:-1]

    @property
    def lost_attempts(self) -> list[Attempt]:
        """The tries that ended because their instance was lost, or the manager was stopped."""
        return [attempt for attempt in self.attempts if attempt.state is JobState.LOST]

    @property
    def backoff(self) -> float | None:
        """Seconds to wait after its last try, which has ended, before the next one; None: there is to be none."""
        *before, last = self.attempts
        if last.excused:
            return 0.0
        earlier = sum(_kind(attempt) is _kind(last) and not attempt.excused for attempt in before)
        return self.retries.wait(last.state, last.exit_code, earlier)


@frozen(kw_only=True)
class JobChanged:
    """A job has just come to stand where it stands now."""

    at: float
    """Seconds since the epoch."""

    record: JobRecord


class BatchState:
    """All jobs of a batch, as far as its events were applied; counts cost nothing."""

    def __init__(self, begun: Begun) -> None:
        """Queue the jobs."""
        self._jobs = {job.name: _waiting(job, begun.at) for job in begun.jobs}
        self._counts = Counter({JobState.QUEUED: len(self._jobs)})
        self._running: dict[str, JobRecord] = {}
        self.started = begun.at
        self.last = begun.at
        """When the last thing happened, in seconds since the epoch; that all was over is none."""

        self.over: Over | None = None
        """How the batch was over; None: there may be something left to do."""

    @property
    def jobs(self) -> Mapping[str, JobRecord]:
        """Every job by its name, in the order of the batch."""
        return MappingProxyType(self._jobs)

    @property
    def records(self) -> Sequence[JobRecord]:
        """Every job, in the order of the batch."""
        return tuple(self._jobs.values())

    @property
    def running(self) -> Mapping[str, JobRecord]:
        """The jobs that run now, by name."""
        return MappingProxyType(self._running)

    def __getitem__(self, name: str) -> JobRecord:
        """One job, by its name."""
        return self._jobs[name]

    def __len__(self) -> int:
        """How many jobs the batch has."""
        return len(self._jobs)

    def count(self, *states: JobState) -> int:
        """How many jobs stand in one of these states."""
        return sum(self._counts[state] for state in states)

    @property
    def done(self) -> int:
        """How many jobs are over for good; not those that a later run would still have to run."""
        return sum(count for state, count in self._counts.items() if state.stands)

    @property
    def all_stand(self) -> bool:
        """Whether no job is left to run, not even for a later command."""
        return all(state.stands for state, count in self._counts.items() if count)

    @property
    def succeeded(self) -> bool:
        """Whether every job has succeeded."""
        return self._counts[JobState.SUCCEEDED] == len(self._jobs)

    def apply(self, event: RecordedEvent) -> Sequence[JobChanged]:
        """Take in the next event; returns which jobs it changed, in their order.

        Raises:
            ValueError: It cannot follow those before.
        """
        if isinstance(event, Over):
            self.over = event
            return ()
        self.last = max(self.last, event.at)  # a clock may be set back
        match event:
            case Started():
                return (self._start(event),)
            case Ended():
                return (self._end(event),)
            case GivenUp():
                return [self._give_up(name, event) for name in event.jobs]
            case Resumed():
                return [*self.interrupt(), *self._queue_again(event.at)]
            case Begun():
                raise ValueError("a batch starts only once")
            case InstanceEvent() | DecisionEvent():
                return ()
        assert_never(event)

    def interrupt(self) -> Sequence[JobChanged]:
        """Have the jobs that run wait again: their command was stopped, after the last that is known of it."""
        changes = []
        for record in list(self._running.values()):
            ended = max(record.attempts[-1].started, self.last)
            self._finish(record, ended=ended, state=JobState.LOST, why=STOPPED, interrupted=True)
            changes.append(self._move(record, JobState.QUEUED, ended, STOPPED))
        return changes

    def _start(self, event: Started) -> JobChanged:
        record = self._in_state(event.job, JobState.QUEUED)
        attempt = Attempt(pool=event.pool, instance=event.instance, slot=event.slot, started=event.at)
        record.attempts.append(attempt)
        self._running[record.name] = record
        return self._move(record, JobState.RUNNING, event.at)

    def _end(self, event: Ended) -> JobChanged:
        record = self._in_state(event.job, JobState.RUNNING)
        record.warnings = event.warnings
        self._finish(
            record,
            ended=event.at,
            state=event.state,
            exit_code=event.exit_code,
            why=event.why,
            cpu_time=event.cpu_time,
            peak_memory=event.peak_memory,
            preempted=event.preempted,
        )
        wait = record.backoff
        if wait is None:
            return self._move(record, event.state, event.at, event.why)
        record.retry_at = event.at + wait
        return self._move(record, JobState.QUEUED, event.at, event.why)

    def _give_up(self, name: str, event: GivenUp) -> JobChanged:
        return self._move(self._in_state(name, JobState.QUEUED), event.state, event.at, event.why)

    def _queue_again(self, at: float) -> list[JobChanged]:
        """Have the jobs wait that were not given their chance."""
        given_up = [record for record in self._jobs.values() if record.state.final and not record.state.stands]
        return [self._move(record, JobState.QUEUED, at) for record in given_up]

    def _in_state(self, name: str, state: JobState) -> JobRecord:
        if name not in self._jobs:
            raise ValueError(f"it has the unknown job {name!r}")
        record = self._jobs[name]
        if record.state is not state:
            raise ValueError(f"the job {name!r} is {record.state.words} where it should be {state.words}")
        return record

    def _finish(self, record: JobRecord, **known: Any) -> None:  # noqa: ANN401  (fields of `Attempt`)
        record.attempts[-1] = evolve(record.attempts[-1], **known)
        del self._running[record.name]

    def _move(self, record: JobRecord, state: JobState, now: float, why: str = "") -> JobChanged:
        self._counts[record.state] -= 1
        self._counts[state] += 1
        record.state, record.why = state, why
        return JobChanged(at=now, record=record)


def fold(events: Iterable[RecordedEvent]) -> BatchState:
    """Make of all events of a batch what has become of its jobs.

    Raises:
        ValueError: They are not those of a batch.
    """
    following = iter(events)
    begun = next(following, None)
    if not isinstance(begun, Begun):
        raise ValueError("its first event is not the start of a batch")
    state = BatchState(begun)
    for event in following:
        state.apply(event)
    return state


def _kind(attempt: Attempt) -> bool:
    """Tell losses from failures, which are counted apart."""
    return attempt.state is JobState.LOST


def _waiting(job: Planned, since: float) -> JobRecord:
    return JobRecord(name=job.name, retries=job.retries, queued=since)
