"""Jobs files: a fleet and what to run on it, in TOML.

The fleet stands under ``[autoscaler]``, with the keys that GitLab Runner has under ``[runners.autoscaler]``.
All mistakes of form are reported together; if there are none, all mistakes of meaning.
"""

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from attrs import Attribute, field, fields_dict, frozen, validators

from fleeting import (
    ConfigError,
    ConfigProblem,
    Duration,
    InstanceGroup,
    PluginNotFound,
    load,
    structure,
)
from fleeting.wording import describe, quoted
from taskscaler._types import Policy, Pool, PoolSettings
from taskscaler.batch import Job
from taskscaler.executors import Executor, JobSpec, load_executor

T = TypeVar("T")
D = TypeVar("D")

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""What may name a job, and so a file and an environment variable's value."""

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

RESERVED = frozenset(
    {
        "artifacts",
        "fleet.jsonl",
        "fleet.log",
        "logs",
        "report.txt",
        "results.json",
        "resume",
        "timeline.png",
        "timeline.svg",
    }
)
"""What a batch itself puts into its results."""


def _not_blank(_: object, __: "Attribute[Any]", value: str) -> None:
    if not value.strip():
        raise ValueError("something other than white space")


def _some(expected: str) -> Callable[[object, "Attribute[Any]", Sequence[object]], None]:
    def check(_: object, __: "Attribute[Any]", value: Sequence[object]) -> None:
        if not value:
            raise ValueError(expected)

    return check


def _a_name(_: object, __: "Attribute[Any]", value: str) -> None:
    if not NAME.fullmatch(value):
        raise ValueError("at most 100 letters, digits, dots, hyphens and underscores, a letter or digit first")


def _inside(_: object, __: "Attribute[Any]", value: Sequence[str] | None) -> None:
    for path in value or ():
        parts = PurePosixPath(path).parts
        if not parts or parts[0] == "/" or ".." in parts or not path.isprintable():
            raise ValueError(f"paths inside the directory, relative to it ({path!r} is none)")


def _globs(instance: object, attribute: "Attribute[Any]", value: Sequence[str] | None) -> None:
    _inside(instance, attribute, value)
    if bad := [pattern for pattern in value or () if "**" in pattern]:
        raise ValueError(f"paths or globs without ** ({bad[0]!r} has it); name a directory to take all that is in it")


def _absolute(_: object, __: "Attribute[Any]", value: str | None) -> None:
    if value is not None and not Path(value).is_absolute():
        raise ValueError("an absolute path")


@frozen(kw_only=True)
class StateStorage:
    """``[autoscaler.state_storage]``: what outlives the command."""

    enabled: bool = True
    dir: str | None = field(default=None, validator=_absolute)
    """Made if it does not exist. None: below the user's own directory for state."""

    keep_instance_with_acquisitions: bool = False
    """Whether instances that were in use when an earlier command was killed are used on, not removed."""


@frozen(kw_only=True)
class Autoscaler(PoolSettings):
    """``[autoscaler]``: the fleet. Names, meanings and defaults are GitLab's unless said otherwise."""

    plugin: str
    plugin_config: dict[str, object] = field(factory=dict, repr=False)
    policy: tuple[Policy, ...] = ()
    state_storage: StateStorage = StateStorage()

    instance_acquire_timeout: Duration = 900.0
    """How long nothing may run while jobs wait."""

    delete_instances_on_shutdown: bool = True
    """Unlike GitLab's: a batch leaves nothing running."""


@frozen(kw_only=True)
class Defaults:
    """``[defaults]``: what a job has that does not say otherwise. Variables are added, all else is replaced."""

    executor: str = "instance"
    timeout: Duration | None = field(default=None, validator=validators.optional(validators.gt(0)))
    retries: int = field(default=2, validator=validators.ge(0))
    env: dict[str, str] = field(factory=dict, repr=False)
    files: tuple[str, ...] = field(default=(), validator=_inside)
    artifacts: tuple[str, ...] = field(default=(), validator=_globs)
    expected_duration: Duration | None = None


@frozen(kw_only=True)
class JobTable:
    """``[[jobs]]``: one job, or several alike."""

    name: str = field(validator=_a_name)
    script: str = field(validator=_not_blank)
    copies: int | None = field(default=None, validator=validators.optional(validators.ge(1)))
    """So many jobs, ``name-01`` and so on; each is told its number, from 0, by TASKSCALER_JOB_INDEX."""

    executor: str | None = None
    timeout: Duration | None = field(default=None, validator=validators.optional(validators.gt(0)))
    """How long it may take on the instance; then it is ended."""

    retries: int | None = field(default=None, validator=validators.optional(validators.ge(0)))
    """How often it is tried again when its instance was lost."""

    env: dict[str, str] = field(factory=dict, repr=False)
    files: tuple[str, ...] | None = field(default=None, validator=_inside)
    """Files and directories it needs, relative to the jobs file; they arrive under the same paths."""

    artifacts: tuple[str, ...] | None = field(default=None, validator=_globs)
    """What it leaves; a job that does not leave all of it has failed."""

    expected_duration: Duration | None = None

    @property
    def names(self) -> list[str]:
        """Names of the jobs it stands for."""
        if self.copies is None:
            return [self.name]
        width = max(2, len(str(self.copies)))
        return [f"{self.name}-{number:0{width}}" for number in range(1, self.copies + 1)]


@frozen(kw_only=True)
class Report:
    """``[report]``: a command that is run on this machine, in the results, once all jobs are over."""

    command: tuple[str, ...] = field(validator=_some("a program and its arguments"))
    """A program and its arguments; no shell touches them."""

    files: tuple[str, ...] = field(default=(), validator=_inside)
    """Copied into the results first, relative to the jobs file."""

    timeout: Duration = field(default=600.0, validator=validators.gt(0))

    @files.validator
    def _not_reserved(self, _: object, value: Sequence[str]) -> None:
        if bad := [path for path in value if not RESERVED.isdisjoint(PurePosixPath(path).parts[:1])]:
            raise ValueError(f"names that the results do not have themselves ({bad[0]!r} is one)")


@frozen(kw_only=True)
class _Tables:
    """The file as it stands."""

    autoscaler: Autoscaler
    jobs: tuple[JobTable, ...] = field(validator=_some("at least one job"))
    defaults: Defaults = Defaults()
    executors: dict[str, dict[str, object]] = field(factory=dict, repr=False)
    """Settings of executors, by their names."""

    report: Report | None = None


@frozen(kw_only=True)
class JobsFile:
    """A file that has been read and found to be right; nothing has been connected to."""

    path: Path
    autoscaler: Autoscaler
    pool: Pool
    jobs: Sequence[Job]
    executors: Mapping[str, Executor]
    """By the names that the jobs use."""

    report: Report | None

    text: str = field(repr=False)
    """The file as it was read."""

    notes: Sequence[str]
    """What was accepted but should be written otherwise, one sentence each."""


def read_jobs_file(path: Path) -> JobsFile:
    """Read and check a jobs file.

    Raises:
        ConfigError: With every mistake of form, or else with every mistake of meaning.
        OSError: It cannot be read.
    """
    notes: list[str] = []
    problems: list[ConfigProblem] = []
    text = _read(path)
    tables = structure(_parse(text, path), _Tables, source=str(path), notes=notes)
    group = _group(tables.autoscaler, problems, notes)
    executors = _executors(tables, problems)
    problems += [*_repeated_names(tables), *_bad_variables(tables), *_missing_files(path.parent, tables)]
    if problems or group is None:
        raise ConfigError(problems, source=str(path))
    return JobsFile(
        path=path,
        autoscaler=tables.autoscaler,
        pool=_pool(tables.autoscaler, group),
        jobs=[job for table in tables.jobs for job in _jobs(table, tables.defaults, path.parent)],
        executors=executors,
        report=tables.report,
        text=text,
        notes=notes,
    )


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise _no_toml(path, error) from error


def _parse(text: str, path: Path) -> Mapping[str, object]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _no_toml(path, error) from error


def _no_toml(path: Path, error: ValueError) -> ConfigError:
    return ConfigError([ConfigProblem(path="", found=f"something else: {error}", expected="TOML")], source=str(path))


def _group(autoscaler: Autoscaler, problems: list[ConfigProblem], notes: list[str]) -> InstanceGroup | None:
    try:
        return load(autoscaler.plugin, autoscaler.plugin_config, path="autoscaler.plugin_config", notes=notes)
    except ConfigError as error:
        problems += error.problems
    except PluginNotFound as error:
        problems.append(_not_installed("autoscaler.plugin", error))
    return None


def _executors(tables: _Tables, problems: list[ConfigProblem]) -> Mapping[str, Executor]:
    """Load the executors that jobs use, and those with settings, so that these are checked."""
    executors: dict[str, Executor] = {}
    for name, path in _executors_named(tables).items():
        try:
            executors[name] = load_executor(name, tables.executors.get(name, {}), path=f"executors.{name}")
        except ConfigError as error:
            problems += error.problems
        except PluginNotFound as error:
            problems.append(_not_installed(path, error))
    return executors


def _executors_named(tables: _Tables) -> Mapping[str, str]:
    """Map every executor that is named to the key path that names it first."""
    named = {"defaults.executor": tables.defaults.executor}
    named |= {f"jobs[{index}].executor": table.executor for index, table in enumerate(tables.jobs) if table.executor}
    named |= {f"executors.{name}": name for name in tables.executors}
    first: dict[str, str] = {}
    for path, name in named.items():
        first.setdefault(name, path)
    return first


def _not_installed(path: str, error: PluginNotFound) -> ConfigProblem:
    expected = f"the name of an installed plugin ({', '.join(error.available) or 'there is none'})"
    return ConfigProblem(path=path, found=describe(error.name), expected=expected, hint=error.hint)


def _repeated_names(tables: _Tables) -> Iterator[ConfigProblem]:
    seen: dict[str, int] = {}
    for index, table in enumerate(tables.jobs):
        for name in table.names:
            if name in seen:
                found = f"{describe(name)}, which jobs[{seen[name]}] has too"
                yield ConfigProblem(path=f"jobs[{index}].name", found=found, expected="names that differ")
                break
            seen[name] = index


def _bad_variables(tables: _Tables) -> Iterator[ConfigProblem]:
    named = {"defaults": tables.defaults.env} | {f"jobs[{index}]": table.env for index, table in enumerate(tables.jobs)}
    for path, env in named.items():
        for name in env:
            if not _VARIABLE.fullmatch(name):
                expected = "letters, digits and underscores, no digit first"
                yield ConfigProblem(path=f"{path}.env", found=f"the name {quoted(name)}", expected=expected)


def _missing_files(directory: Path, tables: _Tables) -> Iterator[ConfigProblem]:
    named = {"defaults": tables.defaults.files, "report": tables.report.files if tables.report else ()}
    named |= {f"jobs[{index}]": table.files or () for index, table in enumerate(tables.jobs)}
    for path, files in named.items():
        for index, file in enumerate(files):
            if not (directory / file).exists():
                expected = f"a file or directory in {directory}"
                yield ConfigProblem(path=f"{path}.files[{index}]", found=describe(file), expected=expected)


def _pool(autoscaler: Autoscaler, group: InstanceGroup) -> Pool:
    return Pool(group, **{name: getattr(autoscaler, name) for name in fields_dict(PoolSettings)})


def _jobs(table: JobTable, defaults: Defaults, directory: Path) -> Iterator[Job]:
    names = table.names
    files = defaults.files if table.files is None else table.files
    for index, name in enumerate(names):
        spec = JobSpec(
            name=name,
            script=table.script,
            env={
                **defaults.env,
                **table.env,
                "TASKSCALER_JOB_NAME": name,
                "TASKSCALER_JOB_INDEX": str(index),
                "TASKSCALER_JOB_COUNT": str(len(names)),
            },
            files={str(PurePosixPath(file)): directory / file for file in files},
            artifacts=_first(table.artifacts, defaults.artifacts),
            timeout=_first(table.timeout, defaults.timeout),
        )
        yield Job(
            spec=spec,
            executor=_first(table.executor, defaults.executor),
            retries=_first(table.retries, defaults.retries),
            expected_duration=_first(table.expected_duration, defaults.expected_duration),
        )


def _first(own: T | None, default: D) -> T | D:
    return default if own is None else own
