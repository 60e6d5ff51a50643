"""The file that a command is about, read as what it is: a jobs file, a fleet without jobs, or GitLab's config.toml."""

from collections.abc import Iterator, Sequence
from itertools import groupby, islice
from pathlib import Path

from attrs import frozen

from fleeting import ConfigError, InstanceGroup, PluginNotFound
from fleeting.config import read_toml
from fleeting.errors import ConfigProblem
from fleeting.plugins import format_duration
from taskscaler import config
from taskscaler._jobsfile import read_jobs_file
from taskscaler._jobsfile._tables import FleetTables
from taskscaler._wording import counted, enumerated
from taskscaler.batch import Job
from taskscaler.cli._paragraphs import Row
from taskscaler.config import Autoscaler

FEW = 10
"""So many kinds of jobs are named."""

MANY = 10_000
"""So many jobs are looked at for that."""


@frozen(kw_only=True)
class Subject:
    """A file that is right."""

    fleet: Autoscaler
    groups: Sequence[InstanceGroup]
    """Of its pools; empty: a plugin is not installed."""

    missing: PluginNotFound | None = None
    rows: list[Row]
    """What the file says beside its fleet."""

    written: object
    """The fleet's table as it stands in the file."""

    meant: object
    """The same, with what GitLab means by keys that are missing, if the file is GitLab's."""

    jobs: int = 0
    """How many the file has."""


def read_subject(path: Path, runner: str | None) -> Subject:
    """Read the file as what it is.

    Raises:
        ConfigError, PluginBroken, InterfaceMismatch, OSError: The file or a plugin is wrong.
        PluginNotFound: Nobody knows the plugin.
    """
    _, data = read_toml(path)
    if "runners" in data:
        return _read_runner(path, runner)
    if runner is not None or data.keys().isdisjoint({"autoscaler", "jobs"}):
        is_jobs_file = "autoscaler" in data or "jobs" in data
        what = "a jobs file" if is_jobs_file else "a file with neither [[runners]] nor [autoscaler]"
        expected = "a GitLab Runner config.toml" + ("" if runner is not None else " or a jobs file")
        raise ConfigError([ConfigProblem(path="", found=what, expected=expected)], source=str(path))
    file = read_jobs_file(path, schema=None if "jobs" in data else FleetTables)
    executors = ", ".join(sorted(file.jobs.executors))
    rows = [
        ("jobs", f"{len(file.jobs)}, by the executor {executors}" if file.jobs else "none in this file"),
        *job_rows(file.jobs),
        *(("note", note) for note in file.notes),
    ]
    written = data.get("autoscaler")
    return Subject(
        fleet=file.autoscaler, groups=file.groups, rows=rows, written=written, meant=written, jobs=len(file.jobs)
    )


def _read_runner(path: Path, name: str | None) -> Subject:
    runner = config.load(path, runner=name)
    notes: list[str] = []
    groups: list[InstanceGroup] = []
    missing = None
    try:
        groups = runner.groups(notes=notes)
        runner.observers()
    except PluginNotFound as error:
        if not error.distribution:
            raise
        missing = error
        notes.append(f"the plugin is not installed here, so plugin_config was not checked: {error.hint}")
    rows = [
        ("runner", f"{runner.name or 'without a name'}, {counted(runner.jobs_at_once, 'job')} at once at most"),
        *(("unsupported", sentence) for sentence in runner.unsupported),
        *(("note", note) for note in (*runner.notes, *notes)),
        *([("ignored", ", ".join(runner.ignored))] if runner.ignored else []),
    ]
    return Subject(
        fleet=runner.autoscaler,
        groups=groups,
        missing=missing,
        rows=rows,
        written=runner.written,
        meant=runner.meant,
    )


def job_rows(jobs: Sequence[Job]) -> Iterator[Row]:
    """Describe what the first jobs need and leave, and how long they may take; of neighbours that are alike, once."""
    shown = 0
    for description, group in islice(groupby(islice(jobs, MANY), _describe_job), FEW):
        names = [job.name for job in group]
        shown += len(names)
        yield "", f"{names[0]}{f' to {names[-1]}' if len(names) > 1 else ''}: {description}"
    if len(jobs) > shown:
        yield "", f"and {counted(len(jobs) - shown, 'more job')}"


def _describe_job(job: Job) -> str:
    spec = job.spec
    parts = [
        f"by {job.executor}",
        *([f"waits for {enumerated(job.needs)}"] if job.needs else []),
        f"at most {format_duration(spec.timeout)}" if spec.timeout is not None else "without a time-out",
        *([f"needs {enumerated(list(spec.files))}"] if spec.files else []),
        *([f"leaves {enumerated(spec.artifacts)}"] if spec.artifacts else []),
    ]
    return ", ".join(parts)
