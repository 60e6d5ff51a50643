"""The jobs of a jobs file, made when somebody looks."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import overload

from taskscaler._jobsfile._expansion import Expansion
from taskscaler._jobsfile._tables import Defaults
from taskscaler.batch import Job, LazyJobs, Plan, Planned


class FileJobs(LazyJobs):
    """All jobs, in the order of the tables."""

    def __init__(
        self,
        expansions: Sequence[Expansion],
        defaults: Defaults,
        options: Sequence[Mapping[str, object]],
        directory: Path,
    ) -> None:
        """Take over what the tables stand for, and what each wishes of executors."""
        self._expansions = expansions
        self._defaults = defaults
        self._options = options
        self._directory = directory
        self._ends = [*accumulate(map(len, expansions))]
        self._plan = Plan.of_groups((self._like(each), each.names()) for each in expansions)

    @property
    def plan(self) -> Plan:
        """What is planned."""
        return self._plan

    @property
    def executors(self) -> frozenset[str]:
        """Names of the executors that the jobs use."""
        return frozenset(each.table.executor or self._defaults.executor for each in self._expansions)

    def __len__(self) -> int:
        """How many there are."""
        return len(self._plan)

    @overload
    def __getitem__(self, number: int) -> Job: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[Job]: ...
    def __getitem__(self, number: int | slice) -> Job | Sequence[Job]:
        """Make the job with a number, from 0."""
        if isinstance(number, slice):
            return [self[each] for each in range(*number.indices(len(self)))]
        number = range(len(self))[number]
        table = bisect_right(self._ends, number)
        expansion, name = self._expansions[table], self._plan.names[number]
        number -= self._ends[table] - len(expansion)
        return expansion.job(number, name, self._defaults, self._options[table], self._directory)

    def _like(self, expansion: Expansion) -> Planned:
        table = expansion.table
        return Planned(
            name="",
            retries=self._defaults.retries if table.retries is None else table.retries,
            group=table.name,
            needs=table.needs,
            when=table.when,
            max_parallel=table.max_parallel or 0,
        )
