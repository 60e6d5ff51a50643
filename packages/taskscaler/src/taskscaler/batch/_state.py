"""What has become of each job of a batch: what its events come to. Pure.

The command that runs a batch applies the events as they happen; reports, explanations and the command that resumes it
apply the same ones, read from its event log. So all of them agree::

    QUEUED ── started ──► RUNNING ── ended ──► SUCCEEDED, CANCELLED
      ▲  │                   │
      │  └─ given_up ────────┼───────────────► CANCELLED, NO_CAPACITY, SKIPPED
      └──── ended badly ─────┴─ ended badly, no retries left ──► FAILED, TIMED_OUT, LOST

    resumed: RUNNING, CANCELLED, NO_CAPACITY ──► QUEUED; rerun: SUCCEEDED, FAILED, TIMED_OUT, LOST ──► QUEUED
    joined: what was RUNNING before ──► RUNNING, the same try
"""

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Generic, TypeVar, assert_never, overload

from attrs import evolve, frozen

from taskscaler._observe import DecisionEvent, InstanceEvent
from taskscaler.batch._attempts import Attempt
from taskscaler.batch._events import (
    Begun,
    Ended,
    GivenUp,
    Joined,
    Over,
    RecordedEvent,
    Replanned,
    Rerun,
    Resumed,
    Started,
)
from taskscaler.batch._job_state import JobState
from taskscaler.batch._names import Names
from taskscaler.batch._plan import Plan
from taskscaler.batch._record import CODES, STATES, JobRecord, Known

T_co = TypeVar("T_co", covariant=True)

STOPPED = "the manager was stopped"
"""Why tries are lost that had not ended when their command was killed."""


@frozen(kw_only=True)
class JobChanged:
    """A job has just come to stand where it stands now."""

    at: float
    """Seconds since the epoch."""

    record: JobRecord
    """How it stands now."""


class _Made(Sequence[T_co], Generic[T_co]):
    """A sequence of what is made when somebody looks: of a million jobs, nobody keeps all."""

    def __init__(self, numbers: Sequence[int], make: Callable[[int], T_co]) -> None:
        self._numbers = numbers
        self._make = make

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, place: int) -> T_co: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[T_co]: ...
    def __getitem__(self, place: int | slice) -> T_co | Sequence[T_co]:
        if isinstance(place, slice):
            return _Made(self._numbers[place], self._make)
        return self._make(self._numbers[place])


class _Jobs(Mapping[str, JobRecord]):
    """Every job by its name, in the order of the batch."""

    def __init__(self, names: Names, look: Callable[[int], JobRecord]) -> None:
        self._names = names
        self._look = look

    def __getitem__(self, name: str) -> JobRecord:
        if (number := self._names.number(name)) is None:
            raise KeyError(name)
        return self._look(number)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class BatchState:
    """All jobs of a batch, as far as its events were applied; counts cost nothing."""

    def __init__(self, begun: Begun) -> None:
        """Queue the jobs."""
        self._known = Known(begun.jobs, begun.at)
        self._counts = Counter({JobState.QUEUED: len(begun.jobs)})
        self._running: dict[str, JobRecord] = {}
        self.id = begun.id
        """Begins the names of tries that outlive a command; see `try_name`."""

        self.run = 1
        """Which command runs the batch, or ran it last, from 1."""

        self.started = begun.at
        self.last = begun.at
        """When the last thing happened, in seconds since the epoch; that all was over is none."""

        self.paused = 0.0
        """Seconds between the commands that ran it: from the last thing that happened in one until the next began."""

        self.over: Over | None = None
        """How the batch was over; None: there may be something left to do."""

    @property
    def plan(self) -> Plan:
        """The jobs as they are planned, in the order of the batch."""
        return self._known.plan

    @property
    def jobs(self) -> Mapping[str, JobRecord]:
        """Every job by its name, in the order of the batch."""
        return _Jobs(self.plan.names, self._look)

    @property
    def records(self) -> Sequence[JobRecord]:
        """Every job, in the order of the batch."""
        return _Made(range(len(self.plan)), self._look)

    def numbers(self, *states: JobState) -> Sequence[int]:
        """Give the numbers of the jobs that stand in one of these states, in their order."""
        codes = bytes(CODES[state] for state in states)
        return array("I", (number for number, code in enumerate(self._known.states) if code in codes))

    def is_over(self, number: int) -> bool:
        """Whether the job with a number has nothing left to do for this command."""
        return STATES[self._known.states[number]].final

    @property
    def running(self) -> Mapping[str, JobRecord]:
        """The jobs that run now, by name."""
        return MappingProxyType(self._running)

    def __getitem__(self, name: str) -> JobRecord:
        """One job, by its name."""
        return self.jobs[name]

    def __len__(self) -> int:
        """How many jobs the batch has."""
        return len(self.plan)

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
        return self._counts[JobState.SUCCEEDED] == len(self)

    def apply(self, event: RecordedEvent) -> Sequence[JobChanged]:
        """Take in the next event; returns which jobs it changed, in their order.

        Raises:
            ValueError: It cannot follow those before.
        """
        if isinstance(event, Over):
            self.over = event
            return ()
        before, self.last = self.last, max(self.last, event.at)  # a clock may be set back
        match event:
            case InstanceEvent() | DecisionEvent():
                changes: Sequence[JobChanged] = ()
            case Started() | Joined() | Ended():
                changes = (self._take_try(event),)
            case GivenUp():
                changes = self._give_up(event)
            case Resumed():
                self.run += 1
                self.paused += self.last - before
                self.over = None
                changes = self._queue_again(event.at)
            case Replanned():
                changes = self._replan(event)
            case Rerun():
                changes = self._rerun(event)
            case Begun():
                raise ValueError("a batch starts only once")
            case _:
                assert_never(event)
        return changes

    def interrupt(self) -> Sequence[JobChanged]:
        """Have the jobs that run wait again: their command was stopped, after the last that is known of it."""
        changes = []
        for record in list(self._running.values()):
            ended = max(self._last(record.number).started, self.last)
            self._finish(record, ended=ended, state=JobState.LOST, why=STOPPED, interrupted=True)
            changes.append(self._move(record.number, JobState.QUEUED, ended, STOPPED))
        return changes

    def _replan(self, event: Replanned) -> Sequence[JobChanged]:
        """Have other jobs; of those that were there before is known what was known."""
        if self._running:
            raise ValueError("its jobs change while some run")
        before, self._known = self._known, Known(event.jobs, self._known.queued)
        for number, name in enumerate(event.jobs.names):
            earlier = before.plan.names.number(name)
            if earlier is None:
                self._known.late[number] = event.at
            else:
                self._known.take(number, before, earlier)
        self._counts = Counter(STATES[code] for code in self._known.states)
        return ()

    def _rerun(self, event: Rerun) -> Sequence[JobChanged]:
        numbers = array("I")
        for name in event.jobs:
            number = self._number(name)
            if not (state := STATES[self._known.states[number]]).stands:
                raise ValueError(f"the job {name!r} is {state.words} where it should be over")
            numbers.append(number)
            self._known.since[number] = self.run
            self._known.again[number] = event.at
            self._move(number, JobState.QUEUED, event.at)
        return _Made(numbers, lambda number: self._change(number, event.at))

    def _take_try(self, event: Started | Joined | Ended) -> JobChanged:
        match event:
            case Started():
                return self._start(event)
            case Joined():
                return self._join(event)
            case Ended():
                return self._end(event)

    def _start(self, event: Started) -> JobChanged:
        number = self._in_state(event.job, JobState.QUEUED)
        attempt = Attempt(
            run=self.run,
            pool=event.pool,
            instance=event.instance,
            slot=event.slot,
            started=event.at,
            detached=event.detached,
        )
        self._known.attempts.add(number, attempt)
        self._known.logged.pop(number, None)
        if event.logged:
            self._known.logged[number] = event.logged
        self._known.retry_at.pop(number, None)
        self._running[event.job] = self._look(number)
        return self._move(number, JobState.RUNNING, event.at)

    def _join(self, event: Joined) -> JobChanged:
        number = self._in_state(event.job, JobState.QUEUED)
        record = self._look(number)
        if not record.interrupted or not self._last(number).detached:
            raise ValueError(f"the job {event.job!r} is joined, which did not run on")
        again = evolve(self._last(number), ended=None, state=JobState.RUNNING, why="", interrupted=False)
        self._known.attempts.change_last(number, again)
        self._running[event.job] = record
        return self._move(number, JobState.RUNNING, event.at)

    def _end(self, event: Ended) -> JobChanged:
        number = self._in_state(event.job, JobState.RUNNING)
        record = self._running[event.job]
        self._known.warnings.pop(number, None)
        if event.warnings:
            self._known.warnings[number] = event.warnings
        self._finish(
            record,
            ended=event.at,
            state=event.state,
            exit_code=event.exit_code,
            why=event.why,
            cpu_time=event.cpu_time,
            peak_memory=event.peak_memory,
            disk_written=event.disk_written,
            memory_limit=event.memory_limit,
            preempted=event.preempted,
            interrupted=event.interrupted,
        )
        wait = record.backoff
        if wait is None:
            return self._move(number, event.state, event.at, event.why)
        self._known.retry_at[number] = event.at + wait
        return self._move(number, JobState.QUEUED, event.at, event.why)

    def _give_up(self, event: GivenUp) -> Sequence[JobChanged]:
        numbers = array("I")
        for name in event.jobs:
            numbers.append(number := self._in_state(name, JobState.QUEUED))
            self._move(number, event.state, event.at, event.why)
        return _Made(numbers, lambda number: self._change(number, event.at))

    def _queue_again(self, at: float) -> Sequence[JobChanged]:
        """Have the jobs wait that ran, or were not given their chance."""
        interrupted = {change.record.number: change.at for change in self.interrupt()}
        given_up = self.numbers(*(state for state in STATES if state.final and not state.stands))
        for number in given_up:
            self._known.again[number] = at
            self._move(number, JobState.QUEUED, at)
        numbers = array("I", [*interrupted, *given_up])
        return _Made(numbers, lambda number: self._change(number, interrupted.get(number, at)))

    def _look(self, number: int) -> JobRecord:
        return JobRecord(self._known, number)

    def _change(self, number: int, at: float) -> JobChanged:
        return JobChanged(at=at, record=self._look(number))

    def _in_state(self, name: str, state: JobState) -> int:
        """Give the number of a job that is to stand somewhere."""
        number = self._number(name)
        if (actual := STATES[self._known.states[number]]) is not state:
            raise ValueError(f"the job {name!r} is {actual.words} where it should be {state.words}")
        return number

    def _number(self, name: str) -> int:
        if (number := self.plan.names.number(name)) is None:
            raise ValueError(f"it has the unknown job {name!r}")
        return number

    def _last(self, number: int) -> Attempt:
        """Give the last try at a job that runs."""
        return self._known.attempts.of(number)[-1]

    def _finish(self, record: JobRecord, **known: Any) -> None:  # noqa: ANN401  (fields of `Attempt`)
        self._known.attempts.change_last(record.number, evolve(self._last(record.number), **known))
        del self._running[record.name]

    def _move(self, number: int, state: JobState, at: float, why: str = "") -> JobChanged:
        self._counts[STATES[self._known.states[number]]] -= 1
        self._counts[state] += 1
        self._known.move(number, state, why)
        return self._change(number, at)


def fold(events: Iterable[RecordedEvent]) -> BatchState:
    """Make of all events of a batch what has become of its jobs; they are taken one by one.

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
