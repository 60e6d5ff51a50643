"""Reads a jobs file.

The fleet stands under ``[autoscaler]``, with the keys that GitLab Runner has under ``[runners.autoscaler]``.
All mistakes are reported together: those of form, of the settings of plugins, and of meaning. For rules over several
tables, what could not be read is empty; each of them passes over that, as `fleeting._structure` says.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from attrs import evolve, field, frozen

from fleeting import ConfigError, InstanceGroup
from fleeting.config import file_error, read_toml
from fleeting.errors import ConfigProblem, Mistake
from fleeting.plugins import structure
from taskscaler._jobsfile._checks import missing_program
from taskscaler._jobsfile._combinations import impossible_combinations, impossible_jobs
from taskscaler._jobsfile._jobs import jobs_of
from taskscaler._jobsfile._plugins import (
    executors_of,
    groups_of,
    load_one,
    observers_of,
    unusable_connectors,
)
from taskscaler._jobsfile._tables import Defaults, FleetTables, GuestDefaultsTables, GuestTables, Report, Tables
from taskscaler._observe import ScalerObserver
from taskscaler.batch import LazyJobs
from taskscaler.config._autoscaler import Autoscaler
from taskscaler.config._pools import at_home, with_inheritance
from taskscaler.executors import Executor


@frozen(kw_only=True)
class Runnable:
    """What a file that has been read, and found to be right, says of jobs; nothing has been connected to."""

    path: Path
    jobs: LazyJobs
    executors: Mapping[str, Executor]
    """By the names that the jobs use."""

    report: Report | None

    text: str = field(repr=False)
    """The file as it was read."""

    notes: Sequence[str]
    """What was accepted but should be written otherwise, or has no effect, one sentence each."""


@frozen(kw_only=True)
class JobsFile(Runnable):
    """A file with a fleet for its jobs."""

    autoscaler: Autoscaler
    groups: Sequence[InstanceGroup]
    """What the plugins of the fleet's pools made, in their order; not opened yet."""

    observers: Sequence[ScalerObserver]
    """Those that the fleet names; nothing is sent anywhere yet."""


_GITLABS = ConfigProblem(
    path="",
    found="this is a GitLab Runner config.toml ([[runners]]), not a jobs file with [autoscaler] and [[jobs]]",
    hint="run taskscaler check to see what it means",
)


def _with_way_out(problem: ConfigProblem) -> ConfigProblem:
    """A file without jobs may be what was meant: then they come from elsewhere."""
    if problem.path == "jobs" and problem.mistake is Mistake.MISSING_KEY:
        return evolve(problem, hint="`taskscaler run FILE -` reads jobs from standard input")
    return problem


Source = Callable[[Defaults, Path, Callable[[str], ConfigProblem | None]], LazyJobs]
"""Gives the jobs of a fleet whose file has none: made from defaults, the directory that files are relative to, and what
says what is wrong with the name of an executor; may raise what `read_jobs_file` does."""


def read_jobs_file(path: Path, source: Source | None = None, *, schema: type[Tables] | None = None) -> JobsFile:
    """Read and check a jobs file.

    Args:
        path: Of the file.
        source: Where the jobs come from, if they are not in the file; asked once all else is right.
        schema: What may be in it. None: that of a file with jobs, or without if there is a source of them.

    Raises:
        ConfigError: With every mistake.
        OSError: It cannot be read.
    """
    notes: list[str] = []
    problems: list[ConfigProblem] = []
    text, data = read_toml(path)
    if "runners" in data and "autoscaler" not in data:
        raise ConfigError([_GITLABS], source=str(path))
    fleet = with_inheritance(data.get("autoscaler"))
    whole = {**data, "autoscaler": fleet} if fleet is not None else data
    tables = structure(whole, schema or (FleetTables if source else Tables), notes=notes, problems=problems)
    problems[:] = map(_with_way_out, problems)
    groups = groups_of(fleet, problems, notes)
    executors = executors_of(tables, problems)
    observers = observers_of(tables.autoscaler, problems)
    problems += [
        *unusable_connectors(tables.autoscaler),
        *impossible_combinations(tables),
        *missing_program(path.parent, tables.report),
    ]
    jobs: LazyJobs = jobs_of(tables, path, executors, problems, origin=str(path.resolve()))
    if problems:
        raise file_error(at_home(problems, data.get("autoscaler"), "autoscaler"), data, source=str(path))
    if source is not None:
        jobs = source(tables.defaults, path.parent, partial(load_one, executors, tables.executors))
    return JobsFile(
        path=path,
        autoscaler=tables.autoscaler,
        groups=groups,
        observers=observers,
        jobs=jobs,
        executors=executors,
        report=tables.report,
        text=text,
        notes=notes,
    )


def read_guest_file(path: Path, source: Source | None = None) -> Runnable:
    """Read and check a jobs file whose jobs run on a daemon's fleet, so that it needs none itself.

    Arguments and errors are those of `read_jobs_file`.
    """
    notes: list[str] = []
    problems: list[ConfigProblem] = []
    text, data = read_toml(path)
    tables = structure(data, GuestDefaultsTables if source else GuestTables, notes=notes, problems=problems)
    problems[:] = map(_with_way_out, problems)
    executors = executors_of(tables, problems)
    problems += [*impossible_jobs(tables), *missing_program(path.parent, tables.report)]
    jobs: LazyJobs = jobs_of(tables, path, executors, problems, origin=str(path.resolve()))
    if problems:
        raise file_error(problems, data, source=str(path))
    if source is not None:
        jobs = source(tables.defaults, path.parent, partial(load_one, executors, tables.executors))
    if tables.autoscaler:
        notes.append("[autoscaler] has no effect: the jobs run on the daemon's fleet")
    return Runnable(path=path, jobs=jobs, executors=executors, report=tables.report, text=text, notes=notes)
