"""Reads the jobs file of a batch that a daemon is to run: its jobs alone, for the fleet is the daemon's."""

from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from attrs import frozen

from fleeting.config import file_error, read_toml
from fleeting.errors import ConfigProblem
from fleeting.plugins import describe, structure
from taskscaler._jobsfile._checks import missing, missing_files
from taskscaler._jobsfile._combinations import impossible_jobs
from taskscaler._jobsfile._expansion import expansions_of
from taskscaler._jobsfile._jobs import FileJobs, jobs_of
from taskscaler._jobsfile._plugins import executors_of, files_of_options
from taskscaler._jobsfile._tables import SubmittedTables
from taskscaler.executors import Executor


@frozen(kw_only=True)
class SubmittedFile:
    """The jobs of a file that a daemon is to run; nothing has been connected to."""

    jobs: FileJobs
    executors: Mapping[str, Executor]
    """By the names that the jobs use."""


def read_submitted_file(path: Path, executors: Mapping[str, Executor], *, origin: str = "") -> SubmittedFile:
    """Read and check the jobs file of a batch that a daemon is to run, beside which all files lie that it names.

    Args:
        path: Of the file.
        executors: Those of the daemon, by name; of others that are installed, jobs get the defaults.
        origin: What the file is known as from submission to submission; see `JobSpec.series`.

    Raises:
        ConfigError: With every mistake.
        OSError: It cannot be read.
    """
    notes: list[str] = []
    problems: list[ConfigProblem] = []
    _, data = read_toml(path)
    tables = structure(data, SubmittedTables, notes=notes, problems=problems)
    loaded = executors_of(tables, problems, executors)
    problems += impossible_jobs(tables)
    jobs = jobs_of(tables, path, loaded, problems, origin=origin)
    if problems:
        raise file_error(problems, data, source=path.name)
    return SubmittedFile(jobs=jobs, executors=loaded)


def files_to_submit(path: Path) -> Sequence[str]:
    """Name the files and directories that the jobs of a file need, relative to it: a daemon needs them all.

    What is wrong beside that, the daemon finds.

    Raises:
        ConfigError: They cannot be known, or are not there.
        OSError: The file cannot be read.
    """
    problems: list[ConfigProblem] = []
    _, data = read_toml(path)
    tables = structure(data, SubmittedTables, problems=problems)
    expansions = expansions_of(tables, path.parent, problems)
    problems += missing_files(path.parent, tables)
    texts = [*files_of_options(tables)]
    problems += (
        missing(key, describe(file), f"a file in {path.parent}")
        for key, file in texts
        if not (path.parent / file).is_file()
    )
    if problems:
        raise file_error(problems, data, source=str(path))
    named = [tables.defaults.files, *(table.files or () for table in tables.jobs), *(each.files for each in expansions)]
    named.append(tuple(file for _, file in texts))
    return sorted({str(PurePosixPath(file)) for files in named for file in files})
