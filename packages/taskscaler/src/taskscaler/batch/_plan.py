"""The jobs of a batch as they are planned, in few bytes each. Pure."""

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, Self, overload

from attrs import asdict, evolve, field, frozen

from taskscaler.batch._names import Names
from taskscaler.batch._retries import Retries, as_retries, retries_from

When = Literal["on_success", "always"]


@frozen(kw_only=True)
class Planned:
    """One job that is to be run."""

    name: str
    """Of the job."""

    retries: Retries = field(converter=as_retries)
    """How often it is tried again, and when."""

    group: str = ""
    """Name of the jobs that it is one of; a job that needs a group needs all of it. Empty: it is in none."""

    needs: tuple[str, ...] = ()
    """Names of the groups and jobs that have to be over before it begins."""

    when: When = "on_success"
    """Whether it begins only if all that it needs has succeeded, or always."""

    max_parallel: int = 0
    """How many of its group may be under way at once; 0: any number."""

    def data(self) -> Mapping[str, object]:
        """Give all but its name as plain data that JSON has words for."""
        known = asdict(self, recurse=False, filter=lambda each, value: value != each.default)
        return {"retries": self.retries.data(), **{key: known[key] for key in known if key not in ("name", "retries")}}

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> Self:
        """Read what `data` has given; keys of later releases are passed over.

        Raises:
            ValueError, TypeError, LookupError: It is not that.
        """
        known = {key: data[key] for key in ("group", "when", "max_parallel") if key in data}
        needs = tuple(data.get("needs", ()))
        return cls(name="", retries=retries_from(data["retries"]), needs=needs, **known)


class Plan(Sequence[Planned]):
    """Jobs in the order of their batch. Neighbours that differ in nothing but their names share what they have."""

    __slots__ = ("likes", "names", "starts")

    def __init__(self, jobs: Iterable[Planned] = ()) -> None:
        """Take jobs over, with names that differ."""
        groups = ((_unnamed(job), (job.name,)) for job in jobs)
        self._fill(groups)

    @classmethod
    def of_groups(cls, groups: Iterable[tuple[Planned, Iterable[str]]]) -> Self:
        """Make a plan of names in groups, each with a job that all of the group are like."""
        plan = cls()
        plan._fill((_unnamed(like), names) for like, names in groups)
        return plan

    def groups(self) -> Iterator[tuple[Planned, Iterator[str]]]:
        """Give the jobs as `of_groups` takes them, to be read in their order."""
        names = iter(self.names)
        for number, like in enumerate(self.likes):
            end = self.starts[number + 1] if number + 1 < len(self.starts) else len(self)
            yield like, (next(names) for _ in range(self.starts[number], end))

    def like(self, number: int) -> Planned:
        """Give what a job has, but for its name."""
        return self.likes[bisect_right(self.starts, number) - 1]

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
        return (self.names, self.starts, self.likes) == (other.names, other.starts, other.likes)

    def __hash__(self) -> int:
        """Of what `__eq__` compares."""
        return hash(self.names)

    def __repr__(self) -> str:
        """Say how many there are, and not each."""
        return f"<{len(self)} jobs>"

    def _fill(self, groups: Iterable[tuple[Planned, Iterable[str]]]) -> None:
        self.starts = array("Q")
        """Numbers of the first jobs of the runs of jobs that differ in their names alone."""

        self.likes: list[Planned] = []
        """What the jobs of each run have, but for their names."""

        self.names = Names(self._named(groups))

    def _named(self, groups: Iterable[tuple[Planned, Iterable[str]]]) -> Iterator[str]:
        number = 0
        for like, names in groups:
            for name in names:
                if not self.likes or self.likes[-1] != like:
                    self.starts.append(number)
                    self.likes.append(like)
                number += 1
                yield name


def plan_of(jobs: Iterable[Planned]) -> Plan:
    """Make a plan of jobs, unless they are one."""
    return jobs if isinstance(jobs, Plan) else Plan(jobs)


def _unnamed(job: Planned) -> Planned:
    return evolve(job, name="") if job.name else job
