"""The jobs of a jobs file, made when somebody looks."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path

from fleeting.errors import ConfigProblem
from taskscaler._jobsfile._checks import bad_variables, missing_files
from taskscaler._jobsfile._expansion import Expansion, expansions_of, repeated_names
from taskscaler._jobsfile._needs import wrong_needs
from taskscaler._jobsfile._plugins import options_of, refused_wishes, wrong_scripts
from taskscaler._jobsfile._tables import Defaults, JobsTables
from taskscaler.batch import Job, Plan, Planned
from taskscaler.batch._job import PlannedJobs
from taskscaler.executors import Executor


class FileJobs(PlannedJobs):
    """All jobs, in the order of the tables."""

    def __init__(
        self,
        expansions: Sequence[Expansion],
        defaults: Defaults,
        options: Sequence[Mapping[str, object]],
        directory: Path,
        origin: str,
    ) -> None:
        """Take over what the tables stand for, what each wishes of executors, and where all are from."""
        self._expansions = expansions
        self._defaults = defaults
        self._options = options
        self._directory = directory
        self._origin = origin
        self._ends = [*accumulate(map(len, expansions))]
        self._plan = Plan.of_groups((self._like(each), each.names()) for each in expansions)

    @property
    def executors(self) -> frozenset[str]:
        """Names of the executors that the jobs use."""
        return frozenset(each.table.executor or self._defaults.executor for each in self._expansions)

    def _make(self, number: int) -> Job:
        table = bisect_right(self._ends, number)
        expansion, name = self._expansions[table], self._plan.names[number]
        number -= self._ends[table] - len(expansion)
        return expansion.job(number, name, self._defaults, self._options[table], self._directory, origin=self._origin)

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


def jobs_of(
    tables: JobsTables, path: Path, executors: Mapping[str, Executor], problems: list[ConfigProblem], *, origin: str
) -> FileJobs:
    """Make the jobs that the tables of a file stand for, and find what is wrong with them.

    Args:
        tables: The file's.
        path: Of the file, beside which all files lie that it names.
        executors: By the names that the jobs use.
        problems: Gets what is wrong.
        origin: What the file is known as from run to run; see `JobSpec.series`.
    """
    directory = path.parent
    expansions = expansions_of(tables, directory, problems)
    options = options_of(tables, directory, problems)
    problems += [
        *refused_wishes(tables, executors, options),
        *wrong_scripts(tables, options, problems),
        *bad_variables(tables),
        *missing_files(directory, tables),
    ]
    jobs = FileJobs(expansions, tables.defaults, options, directory, origin)
    ends = [*accumulate(map(len, expansions))]
    groups = [table.name for table in tables.jobs]
    repeated = [*repeated_names(expansions)]
    problems += repeated or wrong_needs(jobs.plan, lambda job: f"jobs[{bisect_right(ends, job)}].needs", groups)
    return jobs
