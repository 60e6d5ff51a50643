"""The jobs of a batch as they are planned, in few bytes each. Pure."""

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Self, overload

from attrs import evolve, field, frozen

from taskscaler.batch._names import Names
from taskscaler.batch._retries import Retries, as_retries


@frozen(kw_only=True)
class Planned:
    """One job that is to be run."""

    name: str
    """Of the job."""

    retries: Retries = field(converter=as_retries)
    """How often it is tried again, and when."""


class Plan(Sequence[Planned]):
    """Jobs in the order of their batch. Neighbours that differ in nothing but their names share what they have."""

    __slots__ = ("_alike", "_starts", "names")

    def __init__(self, jobs: Iterable[Planned] = ()) -> None:
        """Take jobs over, with names that differ."""
        groups = ((evolve(job, name=""), (job.name,)) for job in jobs)
        self._fill(groups)

    @classmethod
    def of_groups(cls, groups: Iterable[tuple[Planned, Iterable[str]]]) -> Self:
        """Make a plan of names in groups, each with a job that all of the group are like."""
        plan = cls()
        plan._fill((evolve(like, name=""), names) for like, names in groups)
        return plan

    def groups(self) -> Iterator[tuple[Planned, Iterator[str]]]:
        """Give the jobs as `of_groups` takes them, to be read in their order."""
        names = iter(self.names)
        for number, like in enumerate(self._alike):
            end = self._starts[number + 1] if number + 1 < len(self._starts) else len(self)
            yield like, (next(names) for _ in range(self._starts[number], end))

    def like(self, number: int) -> Planned:
        """Give what a job has, but for its name."""
        return self._alike[bisect_right(self._starts, number) - 1]

    def __len__(self) -> int:
        """How many jobs there are."""
        return len(self.names)

    @overload
    def __getitem__(self, number: int) -> Planned: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[Planned]: ...
    def __getitem__(self, number: int | slice) -> Planned | Sequence[Planned]:
        """Give the job with a number, from 0."""
        if isinstance(number, slice):
            return [self[each] for each in range(*number.indices(len(self)))]
        return evolve(self.like(range(len(self))[number]), name=self.names[number])

    def __eq__(self, other: object) -> bool:
        """Whether the others are the same, in the same order."""
        if not isinstance(other, Plan):
            return NotImplemented
        return (self.names, self._starts, self._alike) == (other.names, other._starts, other._alike)

    def __hash__(self) -> int:
        """Of what `__eq__` compares."""
        return hash(self.names)

    def __repr__(self) -> str:
        """Say how many there are, and not each."""
        return f"<{len(self)} jobs>"

    def _fill(self, groups: Iterable[tuple[Planned, Iterable[str]]]) -> None:
        self._starts = array("Q")
        self._alike: list[Planned] = []
        self.names = Names(self._named(groups))

    def _named(self, groups: Iterable[tuple[Planned, Iterable[str]]]) -> Iterator[str]:
        number = 0
        for like, names in groups:
            for name in names:
                if not self._alike or self._alike[-1] != like:
                    self._starts.append(number)
                    self._alike.append(like)
                number += 1
                yield name


def plan_of(jobs: Iterable[Planned]) -> Plan:
    """Make a plan of jobs, unless they are one."""
    return jobs if isinstance(jobs, Plan) else Plan(jobs)
