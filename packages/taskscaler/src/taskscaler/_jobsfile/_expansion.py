"""Which jobs a table of a jobs file stands for: combinations of a matrix, times files, times copies.

None of them is made before somebody looks at it, so that a million take little more room than their names.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path, PurePosixPath
from typing import TypeVar

from attrs import field, frozen

from fleeting.config import did_you_mean, quoted
from fleeting.errors import ConfigProblem, Mistake
from fleeting.plugins import describe, has_surrogates, one_line
from taskscaler._jobsfile._checks import OUR_VARIABLES
from taskscaler._jobsfile._for_each import MOST_LOOKED_AT, TooManyToLookAt, files_for, short_names
from taskscaler._jobsfile._matrix import (
    MOST_COMPARISONS,
    Combinations,
    Matrix,
    Values,
    filled_in,
    matrix_of,
    references,
)
from taskscaler._jobsfile._tables import MOST_JOBS, Defaults, JobsTables, JobTable
from taskscaler.batch import Job
from taskscaler.batch._names import Names
from taskscaler.executors import JobSpec
from taskscaler.executors._protocol import LONGEST_NAME

T = TypeVar("T")
D = TypeVar("D")

_UNFIT = re.compile(r"[^A-Za-z0-9._-]")

_NO_VALUES: Values = {}


@frozen(kw_only=True)
class Expansion:
    """All jobs of one table, by their numbers from 0; copies are next to each other, then files, then combinations."""

    table: JobTable
    combinations: Sequence[Values] = (_NO_VALUES,)
    files: Sequence[str] = ()
    """What ``for_each`` matches, relative to the jobs file; empty: there is none."""

    numbered: bool = field(init=False)
    """Whether the names have the jobs' numbers, because values would not make names that differ."""

    @numbered.default
    def _is_numbered(self) -> bool:
        if self.table.matrix is None and not self.files:
            return False
        names = Names(self._by_values())
        return any(len(name) > LONGEST_NAME for name in names) or next(names.repeated(), None) is not None

    def __len__(self) -> int:
        """How many there are."""
        return len(self.combinations) * (len(self.files) or 1) * (self.table.copies or 1)

    def names(self) -> Iterator[str]:
        """Give the names of all jobs, in their order; they differ."""
        return self._by_numbers() if self.numbered else self._by_values()

    def job(
        self,
        number: int,
        name: str,
        defaults: Defaults,
        options: Mapping[str, object],
        directory: Path,
        *,
        origin: str = "",
    ) -> Job:
        """Make one of the jobs; copies are runs of the same."""
        place = number // (self.table.copies or 1)
        alike = self.table.name if self.numbered else name.rpartition("-")[0] if self.table.copies else name
        return job_from(
            self.table,
            defaults,
            options,
            directory,
            name=name,
            number=number,
            count=len(self),
            series=series_of(origin, alike),
            file=self.files[place % len(self.files)] if self.files else "",
            values=self.combinations[place // (len(self.files) or 1)],
        )

    def _by_values(self) -> Iterator[str]:
        files = short_names(self.table.for_each or "", self.files) if self.files else [""]
        for number in range(len(self.combinations)):
            for file in files:
                parts = [self.table.name, *self._values_in_name(number), *([file] if file else [])]
                yield from self._copies("-".join(_UNFIT.sub("_", part) or "_" for part in parts))

    def _values_in_name(self, number: int) -> Sequence[str]:
        combinations = self.combinations
        return [*combinations.named_by(number).values()] if isinstance(combinations, Combinations) else ()

    def _copies(self, name: str) -> Iterator[str]:
        if self.table.copies is None:
            return iter((name,))
        width = max(2, len(str(self.table.copies)))
        return (f"{name}-{number:0{width}}" for number in range(1, self.table.copies + 1))

    def _by_numbers(self) -> Iterator[str]:
        width = max(2, len(str(len(self))))
        return (f"{self.table.name}-{number:0{width}}" for number in range(1, len(self) + 1))


def series_of(origin: str, name: str) -> str:
    """Say what a job is known as from run to run: where its file is, and what it is called there."""
    return f"{origin} {name}".encode(errors="backslashreplace").decode() if origin else ""  # a path may be any bytes


def job_from(
    table: JobTable,
    defaults: Defaults,
    options: Mapping[str, object],
    directory: Path,
    *,
    name: str,
    number: int,
    count: int,
    series: str = "",
    file: str = "",
    values: Values = _NO_VALUES,
) -> Job:
    """Make a job of a table.

    Args:
        table: What it says itself.
        defaults: What it has otherwise.
        options: What it wishes of executors, by their names.
        directory: What its files are relative to.
        name: What it is called.
        number: Its number among those that are like it, from 0.
        count: How many these are.
        series: See `JobSpec.series`.
        file: The one that it is for; empty: it is for none.
        values: Its combination of those of a matrix.
    """
    executor = _first(table.executor, defaults.executor)
    files = [*_first(table.files, defaults.files), *([file] if file else [])]
    spec = JobSpec(
        name=name,
        script=filled_in(table.script or "", values) if values else table.script or "",
        env={
            **defaults.env,
            **table.env,
            **values,
            **({f"{OUR_VARIABLES}JOB_FILE": file} if file else {}),
            f"{OUR_VARIABLES}JOB_NAME": name,
            f"{OUR_VARIABLES}JOB_INDEX": str(number),
            f"{OUR_VARIABLES}JOB_COUNT": str(count),
        },
        files={str(PurePosixPath(each)): directory / each for each in files},
        artifacts=_first(table.artifacts, defaults.artifacts),
        timeout=_first(table.timeout, defaults.timeout),
        series=series,
        options=options.get(executor),
    )
    return Job(
        spec=spec,
        executor=executor,
        retries=defaults.retries if table.retries is None else table.retries,
        log_limit=_first(table.log_limit, defaults.log_limit),
        expected_duration=_first(table.expected_duration, defaults.expected_duration),
        detach=_first(table.detach, defaults.detach),
        needs=table.needs,
        when=table.when,
    )


def expansions_of(tables: JobsTables, directory: Path, problems: list[ConfigProblem]) -> Sequence[Expansion]:
    """Return which jobs the tables stand for; none if they would be too many, which is seen before any is made."""
    matrices = [_matrix(index, table, problems) for index, table in enumerate(tables.jobs)]
    try:
        looks = iter(range(1, MOST_LOOKED_AT + 1))
        files = [_files(index, table, directory, looks, problems) for index, table in enumerate(tables.jobs)]
    except TooManyToLookAt:
        return []
    number = sum(
        (matrix.bound if matrix else 1) * (len(matched) or 1) * (table.copies or 1)
        for table, matrix, matched in zip(tables.jobs, matrices, files, strict=True)
    )
    if number > MOST_JOBS:
        expected = f"at most {MOST_JOBS} jobs in all, copies included"
        problems.append(ConfigProblem(path="jobs", found=str(number), expected=expected))
        return []
    if (comparisons := sum(matrix.comparisons for matrix in matrices if matrix)) > MOST_COMPARISONS:
        found = f"{comparisons} comparisons of combinations with tables of include and exclude"
        problems.append(ConfigProblem(path="jobs", found=found, expected=f"at most {MOST_COMPARISONS} in all"))
        return []
    expansions = [
        Expansion(table=table, files=matched, combinations=Combinations(matrix) if matrix else (_NO_VALUES,))
        for table, matrix, matched in zip(tables.jobs, matrices, files, strict=True)
    ]
    for index, (expansion, matrix) in enumerate(zip(expansions, matrices, strict=True)):
        if matrix and matrix.bound and not expansion.combinations:
            found, expected = "exclude leaves no combination", "at least one job"
            problems.append(ConfigProblem(path=f"jobs[{index}].matrix", found=found, expected=expected))
    return expansions


def repeated_names(expansions: Sequence[Expansion]) -> Iterator[ConfigProblem]:
    """Find the first job of each table that has the name of an earlier one."""
    ends = [*accumulate(map(len, expansions))]
    names = Names(name for expansion in expansions for name in expansion.names() if expansion.table.name)
    if len(names) < sum(map(len, expansions)):  # a name is missing, which is said elsewhere
        return
    reported = set[int]()
    for earlier, later in names.repeated():
        index = bisect_right(ends, later)
        if index not in reported:
            reported.add(index)
            found = f"{quoted(names[later])} is also the name of jobs[{bisect_right(ends, earlier)}]"
            yield ConfigProblem(path=f"jobs[{index}].name", found=found, hint="give each job its own name")


def _matrix(index: int, table: JobTable, problems: list[ConfigProblem]) -> Matrix | None:
    path = f"jobs[{index}]"
    matrix = None if table.matrix is None else matrix_of(table.matrix, f"{path}.matrix", problems)
    keys = matrix.keys if matrix else frozenset[str]()
    for key in sorted(keys & table.env.keys()):
        found = f"{quoted(key)} is also a key of the matrix"
        problems.append(ConfigProblem(path=f"{path}.env", found=found, hint="rename one of them"))
    for key in sorted(key for key in keys if key.startswith(OUR_VARIABLES)):
        expected = f"names that do not start with {OUR_VARIABLES}"
        problems.append(ConfigProblem(path=f"{path}.matrix", found=quoted(key), expected=expected))
    for key in dict.fromkeys(references(table.script or "")):
        if key not in keys:
            found = f"{quoted('${{ matrix.' + key + ' }}')} in it, where matrix has no such key"
            problems.append(ConfigProblem(path=f"{path}.script", found=found, hint=did_you_mean(key, keys)))
    return matrix


def _files(
    index: int, table: JobTable, directory: Path, looks: Iterator[object], problems: list[ConfigProblem]
) -> Sequence[str]:
    if not table.for_each:
        return ()
    try:
        files = files_for(table.for_each, directory, most=MOST_JOBS, looks=looks)
    except TooManyToLookAt:
        found = f"{describe(table.for_each)}, with too many files and directories to look at"
        expected = f"at most {MOST_LOOKED_AT} for all patterns together"
        problems.append(ConfigProblem(path=f"jobs[{index}].for_each", found=found, expected=expected))
        raise
    if not files:
        found, expected = f"{describe(table.for_each)}, which matches no file", f"a pattern of files in {directory}"
        path, mistake = f"jobs[{index}].for_each", Mistake.MISSING_FILE
        problems.append(ConfigProblem(path=path, found=found, expected=expected, mistake=mistake))
    if strange := next(filter(has_surrogates, files), None):  # its job finds it in a variable
        found, expected = f"the file {describe(one_line(strange))}", "names that are UTF-8"
        problems.append(ConfigProblem(path=f"jobs[{index}].for_each", found=found, expected=expected))
    return files


def _first(own: T | None, default: D) -> T | D:
    return default if own is None else own
