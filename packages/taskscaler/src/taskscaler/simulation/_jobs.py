"""Jobs to simulate: when each is submitted and how long it runs. Columns, since there may be millions."""

from array import array
from bisect import bisect_left
from collections.abc import Iterable
from typing import Self

from attrs import frozen


@frozen(eq=False)
class Jobs:
    """Jobs in the order in which they come."""

    submits: "array[float]"
    """Seconds since the epoch, ascending."""

    durations: "array[float]"
    """Seconds on a slot, at least 0; of the same job as the submit at that place."""

    @classmethod
    def of(cls, jobs: Iterable[tuple[float, float]]) -> Self:
        """Take pairs of submit and duration, in any order; those that come together keep theirs."""
        ordered = sorted(jobs, key=lambda job: job[0])
        return cls(array("d", (submit for submit, _ in ordered)), array("d", (duration for _, duration in ordered)))

    @classmethod
    def in_columns(cls, submits: "array[float]", durations: "array[float]") -> Self:
        """Take columns in any order; those that come together keep theirs."""
        if all(map(float.__le__, submits, submits[1:])):
            return cls(submits, durations)
        order = sorted(range(len(submits)), key=submits.__getitem__)
        return cls(array("d", map(submits.__getitem__, order)), array("d", map(durations.__getitem__, order)))

    def __len__(self) -> int:
        """How many."""
        return len(self.submits)

    @property
    def begins(self) -> float:
        """When the first is submitted. Raises IndexError if there is none."""
        return self.submits[0]

    @property
    def ends(self) -> float:
        """When the last is submitted."""
        return self.submits[-1]

    @property
    def work(self) -> float:
        """Seconds that all of them run."""
        return sum(self.durations)

    def later(self, seconds: float) -> Self:
        """The same, submitted so much later."""
        return type(self)(array("d", (at + seconds for at in self.submits)), self.durations) if seconds else self

    def between(self, since: float, until: float) -> Self:
        """Those that are submitted from then until before then."""
        first, end = bisect_left(self.submits, since), bisect_left(self.submits, until)
        return type(self)(self.submits[first:end], self.durations[first:end])
