"""The tries at all jobs of a batch, in few bytes each. Pure.

Of each job the last try is kept in columns, 44 bytes a job: for nearly all jobs it is the only one. What tries have in
common, such as where they ran or why they failed, is kept once. The tries before the last one are kept as they are.
"""

from array import array
from collections.abc import Sequence
from math import isfinite, isnan, nan
from typing import Any, Generic, TypeVar

from attrs import fields, frozen

from fleeting import PlanConfig
from taskscaler._uses import MemoryLimit
from taskscaler.batch._job_state import JobState

UNNAMED = frozenset({"", PlanConfig().name})
"""What the pool of a fleet is called that has only one, or was before pools were written down."""


@frozen(kw_only=True)
class Attempt:
    """One try at a job on one slot. Times are seconds since the epoch."""

    instance: str
    """Id of the instance on which it ran."""

    slot: int
    """The number of the slot, from 0."""

    started: float
    """When it began, in seconds since the epoch."""

    run: int = 1
    """Which command made it, of those that ran the batch one after the other, from 1."""

    pool: str = ""
    """Of the instance; empty if that was not written down."""

    ended: float | None = None
    """When it ended; None while it runs."""

    state: JobState = JobState.RUNNING
    """How this try ended; also if another one followed."""

    exit_code: int | None = None
    """What the script exited with; None if it did not get so far."""

    why: str = ""
    """Why it ended as it did, in a few words; empty if there is nothing to say."""

    cpu_time: float | None = None
    """Seconds of CPU that it used; None: its executor does not know."""

    peak_memory: int | None = None
    """Bytes of memory that it had at the most at once, or its largest process had; None: likewise."""

    disk_written: int | None = None
    """Bytes that it has sent towards a disk; None: likewise."""

    memory_limit: MemoryLimit | None = None
    """How much memory it might have; None: there was no limit, or its executor does not know."""

    interrupted: bool = False
    """Whether it is lost because the manager was stopped: nothing that a job has only so many tries for."""

    detached: bool = False
    """Whether it outlives the command that made it, where the instance can do that."""

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


T = TypeVar("T")


class Pooled(Generic[T]):
    """Values by their numbers, equal ones once."""

    __slots__ = ("_numbers", "_values")

    def __init__(self, first: T) -> None:
        """Give a value the number 0."""
        self._values = [first]
        self._numbers = {first: 0}

    def __getitem__(self, number: int) -> T:
        """Give the value with a number."""
        return self._values[number]

    def number(self, value: T) -> int:
        """Give the number of a value, a new one if there is none like it."""
        number = self._numbers.setdefault(value, len(self._values))
        if number == len(self._values):
            self._values.append(value)
        return number


_NUMBERS = ("started", "ended", "cpu_time", "peak_memory", "disk_written")
"""What differs from try to try; all else is pooled."""

_POOLED = tuple(each.name for each in fields(Attempt) if each.name not in _NUMBERS)


class Attempts:
    """The tries at a number of jobs, by the jobs' numbers."""

    __slots__ = ("_columns", "_earlier", "_pool", "_pooled")

    def __init__(self, jobs: int) -> None:
        """Begin with none."""
        self._columns = [array("d", bytes(8 * jobs)) for _ in _NUMBERS]  # not a number: not known, or not yet
        self._pooled = array("I", bytes(4 * jobs))
        self._pool: Pooled[tuple[object, ...]] = Pooled(())
        self._earlier: dict[int, list[Attempt]] = {}

    def of(self, job: int) -> Sequence[Attempt]:
        """Give all tries at a job, in their order."""
        last = self.last(job)
        return (*self.earlier(job), last) if last else ()

    def earlier(self, job: int) -> Sequence[Attempt]:
        """Give the tries at a job that another one followed."""
        return self._earlier.get(job, ())

    def last(self, job: int) -> Attempt | None:
        """Give the last try at a job; None: there was none."""
        pooled = self._pool[self._pooled[job]]
        if not pooled:
            return None
        started, ended, cpu_time, peak_memory, disk_written = (column[job] for column in self._columns)
        known: dict[str, Any] = dict(zip(_POOLED, pooled, strict=True))
        return Attempt(
            started=started,
            ended=None if isnan(ended) else ended,
            cpu_time=None if isnan(cpu_time) else cpu_time,
            peak_memory=None if isnan(peak_memory) else int(peak_memory),
            disk_written=None if isnan(disk_written) else int(disk_written),
            **known,
        )

    def began(self, job: int) -> float | None:
        """When the first try at a job began; None: there was none."""
        if earlier := self._earlier.get(job):
            return earlier[0].started
        return self._columns[0][job] if self._pooled[job] else None

    def add(self, job: int, attempt: Attempt) -> None:
        """Add a try.

        Raises:
            ValueError: Its numbers are none.
        """
        if last := self.last(job):
            self._earlier.setdefault(job, []).append(last)
        self.change_last(job, attempt)

    def change_last(self, job: int, attempt: Attempt) -> None:
        """Have the last try be another.

        Raises:
            ValueError: Its numbers are none.
        """
        for name, column in zip(_NUMBERS, self._columns, strict=True):
            column[job] = _number(name, getattr(attempt, name))
        self._pooled[job] = self._pool.number(tuple(getattr(attempt, name) for name in _POOLED))


def _number(name: str, value: float | None) -> float:
    """Give what stands in a column; what a log says need not be what it should be."""
    if value is None:
        return nan
    try:
        if isfinite(value):
            return float(value)
    except (TypeError, OverflowError):
        pass
    raise ValueError(f"{name} of a try is {value!r}, which is not a number")
