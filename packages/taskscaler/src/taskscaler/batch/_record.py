"""What is known of each job of a batch, and how one job looks.

A batch may have a million jobs. What is known of them is in columns, some 75 bytes a job that succeeded at its first
try, names and tries included; a record is a look at them, made when somebody looks.
"""

from array import array
from collections.abc import Mapping
from typing import TypeVar

from attrs import define, field

from taskscaler.batch._attempts import Attempt, Attempts, Pooled
from taskscaler.batch._job_state import JobState
from taskscaler.batch._plan import Plan
from taskscaler.batch._retries import Retries

T = TypeVar("T")

STATES = tuple(JobState)
"""By the numbers that stand in columns."""

CODES = {state: number for number, state in enumerate(STATES)}


@define(eq=False)
class Known:
    """All jobs of a batch, by their numbers."""

    plan: Plan
    queued: float
    """Since when they wait that were there from the beginning, in seconds since the epoch."""

    states: bytearray = field(init=False)
    """Numbers of `STATES`."""

    attempts: Attempts = field(init=False)
    warnings: dict[int, tuple[str, ...]] = field(factory=dict, init=False)
    retry_at: dict[int, float] = field(factory=dict, init=False)
    """When jobs may be tried again that wait and have been tried; see `Retries.backoff`."""

    since: dict[int, int] = field(factory=dict, init=False)
    """Of jobs that were over and run again: the run in which that was asked for. Earlier tries use up no retries."""

    again: dict[int, float] = field(factory=dict, init=False)
    """Of jobs that were over, or given up, and wait again: since when, in seconds since the epoch."""

    logged: dict[int, int] = field(factory=dict, init=False)
    """Bytes that the logs of jobs had before their last tries, where that is not none."""

    late: dict[int, float] = field(factory=dict, init=False)
    """Of jobs that came later: since when they wait, in seconds since the epoch."""

    _whys: "array[int]" = field(init=False)
    _pool: Pooled[str] = field(factory=lambda: Pooled(""), init=False)

    def __attrs_post_init__(self) -> None:
        """Have all jobs wait."""
        self.states = bytearray([CODES[JobState.QUEUED]]) * len(self.plan)
        self.attempts = Attempts(len(self.plan))
        self._whys = array("I", bytes(4 * len(self.plan)))

    def why(self, job: int) -> str:
        """Why a job stands where it stands."""
        return self._pool[self._whys[job]]

    def take(self, job: int, other: "Known", number: int) -> None:
        """Know of a job what is known elsewhere, where it has another number."""
        self.move(job, STATES[other.states[number]], other.why(number))
        for attempt in other.attempts.of(number):
            self.attempts.add(job, attempt)
        _take(self.warnings, job, other.warnings, number)
        _take(self.retry_at, job, other.retry_at, number)
        _take(self.since, job, other.since, number)
        _take(self.again, job, other.again, number)
        _take(self.late, job, other.late, number)
        _take(self.logged, job, other.logged, number)

    def move(self, job: int, state: JobState, why: str) -> None:
        """Have a job stand elsewhere."""
        self.states[job] = CODES[state]
        self._whys[job] = self._pool.number(why)


class JobRecord:
    """One job and all that has happened to it, as it stands at the moment of looking."""

    __slots__ = ("_known", "number")

    def __init__(self, known: Known, number: int) -> None:
        """Look at a job."""
        self._known = known
        self.number = number
        """Its place in the batch, from 0."""

    def __eq__(self, other: object) -> bool:
        """Whether the same has happened to the same job."""
        return self._all == other._all if isinstance(other, JobRecord) else NotImplemented

    def __hash__(self) -> int:
        """Of its name."""
        return hash(self.name)

    def __repr__(self) -> str:
        """Show all that is known."""
        return f"JobRecord{self._all}"

    @property
    def _all(self) -> tuple[object, ...]:
        return (self.name, self.retries, self.queued, self.state, self.attempts, self.why, self.warnings)

    @property
    def name(self) -> str:
        """Its name, unique in the batch."""
        return self._known.plan.names[self.number]

    @property
    def retries(self) -> Retries:
        """How often it is tried again, and when."""
        return self._known.plan.like(self.number).retries

    @property
    def queued(self) -> float:
        """Since when it waits, or waited for its first try, in seconds since the epoch."""
        return self._known.late.get(self.number, self._known.queued)

    @property
    def asked(self) -> float:
        """Since when it is to be run, whatever was before that, in seconds since the epoch."""
        return self._known.again.get(self.number, self.queued)

    @property
    def state(self) -> JobState:
        """Where it stands."""
        return STATES[self._known.states[self.number]]

    @property
    def attempts(self) -> list[Attempt]:
        """All tries at it, in their order."""
        return [*self._known.attempts.of(self.number)]

    @property
    def last_attempt(self) -> Attempt | None:
        """The last try at it; None: there was none."""
        return self._known.attempts.last(self.number)

    @property
    def why(self) -> str:
        """Why it stands where it stands, unless it simply waits, runs or succeeded."""
        return self._known.why(self.number)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What went wrong at its last try without changing how that ended."""
        return self._known.warnings.get(self.number, ())

    @property
    def exit_code(self) -> int | None:
        """What its script exited with, at the last try."""
        last = self.last_attempt
        return last.exit_code if last else None

    @property
    def waited(self) -> float | None:
        """Seconds until its first try began; None if there was none."""
        began = self._known.attempts.began(self.number)
        return None if began is None else began - self.queued

    @property
    def interrupted(self) -> bool:
        """Whether it ran when its command was stopped, and has not been tried again."""
        if self.state is not JobState.QUEUED:
            return False
        last = self.last_attempt
        return last is not None and last.interrupted

    @property
    def logged(self) -> int:
        """Bytes that its log had before its last try."""
        return self._known.logged.get(self.number, 0)

    @property
    def retried_attempts(self) -> list[Attempt]:
        """The tries that another one followed."""
        return [*self._known.attempts.earlier(self.number)]

    @property
    def lost_attempts(self) -> list[Attempt]:
        """The tries that ended because their instance was lost, or the manager was stopped."""
        return [attempt for attempt in self.attempts if attempt.state is JobState.LOST]

    @property
    def retry_at(self) -> float:
        """When it may be tried again, in seconds since the epoch, if it has been tried and waits."""
        return self._known.retry_at.get(self.number, 0.0)

    @property
    def backoff(self) -> float | None:
        """Seconds to wait after its last try, which has ended, before the next one; None: there is to be none."""
        *before, last = self.attempts
        if last.excused:
            return 0.0
        since = self._known.since.get(self.number, 0)
        counting = (attempt for attempt in before if attempt.run >= since and not attempt.excused)
        earlier = sum(_kind(attempt) is _kind(last) for attempt in counting)
        return self.retries.wait(last.state, last.exit_code, earlier)


def _take(mine: dict[int, T], job: int, others: Mapping[int, T], number: int) -> None:
    if number in others:
        mine[job] = others[number]


def _kind(attempt: Attempt) -> bool:
    """Distinguish losses from failures, which are counted apart."""
    return attempt.state is JobState.LOST
