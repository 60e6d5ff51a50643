"""What may be wrong with the meaning of a jobs file: names, variables, files and programs."""

import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

from fleeting.config import quoted
from fleeting.errors import ConfigProblem, Mistake
from fleeting.plugins import describe
from taskscaler._jobsfile._tables import RESERVED, JobsTables, Report

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

OUR_VARIABLES = "TASKSCALER_"
"""What the names of variables begin with by which jobs learn about themselves."""


def bad_variables(tables: JobsTables) -> Iterator[ConfigProblem]:
    yield from wrong_variables(tables.defaults.env, "defaults.")
    for index, table in enumerate(tables.jobs):
        yield from wrong_variables(table.env, f"jobs[{index}].")


def wrong_variables(env: Mapping[str, str], path: str) -> Iterator[ConfigProblem]:
    for name in env:
        if not _VARIABLE.fullmatch(name):
            expected = "names of letters, digits and underscores that do not start with a digit"
            yield ConfigProblem(path=f"{path}env", found=quoted(name), expected=expected)
        elif name.startswith(OUR_VARIABLES):
            expected = f"names that do not start with {OUR_VARIABLES}"
            yield ConfigProblem(path=f"{path}env", found=quoted(name), expected=expected)


def missing_files(directory: Path, tables: JobsTables) -> Iterator[ConfigProblem]:
    yield from absent_files(tables.defaults.files, "defaults.", directory)
    yield from absent_files(tables.report.files if tables.report else (), "report.", directory)
    for index, table in enumerate(tables.jobs):
        yield from absent_files(table.files or (), f"jobs[{index}].", directory)


def absent_files(files: Sequence[str], path: str, directory: Path) -> Iterator[ConfigProblem]:
    for index, file in enumerate(files):
        if not os.path.exists(directory / file):  # noqa: PTH110  (a Path raises for long names)
            yield missing(f"{path}files[{index}]", describe(file), f"a file or directory in {directory}")


def missing_program(directory: Path, report: Report | None) -> Iterator[ConfigProblem]:
    """Whether the report can be made should not show once all jobs are over."""
    if report and report.command and not _may_be_run(report.command[0], directory, report.files):
        yield missing("report.command", quoted(report.command[0]), "a program that this machine can run")


def _may_be_run(program: str, directory: Path, files: Sequence[str]) -> bool:
    """Whether a program can be found; of what is in the results, only what is copied there is known."""
    path = PurePosixPath(program)
    if "/" not in program or path.is_absolute():
        return shutil.which(program) is not None
    if path.parts[0] in RESERVED:
        return True
    return any(path.is_relative_to(file) for file in files) and shutil.which(directory / path) is not None


def missing(path: str, found: str, expected: str, hint: str = "") -> ConfigProblem:
    return ConfigProblem(path=path, found=found, expected=expected, hint=hint, mistake=Mistake.MISSING_FILE)
