"""Jobs files: a fleet and what to run on it, in TOML.

The fleet stands under ``[autoscaler]``, with the keys that GitLab Runner has under ``[runners.autoscaler]``.
All mistakes of form are reported together, with those of the plugin's settings; if there are none, all mistakes of
meaning.
"""

import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from attrs import Attribute, field, frozen, validators

from fleeting import ConfigError, ConnectorConfig, Duration, InstanceGroup, PluginNotFound, load
from fleeting.config import quoted, read_toml
from fleeting.errors import ConfigProblem, Mistake
from fleeting.plugins import describe, load_connector, structure
from taskscaler._observe import ScalerObserver
from taskscaler.batch import Job
from taskscaler.batch._job import LEAST_LOG_LIMIT, LOG_LIMIT
from taskscaler.config._autoscaler import Autoscaler, some
from taskscaler.config._pools import at_home, with_inheritance
from taskscaler.executors import Executor, JobSpec, find_executor, load_executor
from taskscaler.observers import load_observer

T = TypeVar("T")
D = TypeVar("D")

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""What may name a job, or several alike: with a number behind it, it is still one of `JobSpec`."""

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

OUR_VARIABLES = "TASKSCALER_"
"""What the names of variables begin with that jobs are told about themselves by."""

MOST_JOBS = 1_000_000
"""In one file, copies counted: more are a slip of the hand, and would not fit into memory."""

RESERVED = frozenset(
    {
        "artifacts",
        "events.jsonl",
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
        raise ValueError("more than white space")


def _a_name(_: object, __: "Attribute[Any]", value: str) -> None:
    if not NAME.fullmatch(value):
        raise ValueError("1 to 100 letters, digits, dots, hyphens and underscores, starting with a letter or digit")


def _inside(_: object, __: "Attribute[Any]", value: Sequence[str] | None) -> None:
    for path in value or ():
        parts = PurePosixPath(path).parts
        if not parts or parts[0] == "/" or ".." in parts or not path.isprintable():
            raise ValueError("relative paths inside the directory", path)


def _globs(instance: object, attribute: "Attribute[Any]", value: Sequence[str] | None) -> None:
    _inside(instance, attribute, value)
    if bad := [pattern for pattern in value or () if "**" in pattern]:
        raise ValueError("paths or globs without **", bad[0], "; name a directory to take everything in it")


@frozen(kw_only=True)
class Defaults:
    """``[defaults]``: what a job has that does not say otherwise. Variables are added, all else is replaced."""

    executor: str = "instance"
    timeout: Duration | None = field(default=None, validator=validators.optional(validators.gt(0)))
    retries: int = field(default=2, validator=validators.ge(0))
    env: dict[str, str] = field(factory=dict, repr=False)
    files: tuple[str, ...] = field(default=(), validator=_inside)
    artifacts: tuple[str, ...] = field(default=(), validator=_globs)
    log_limit: int = field(default=LOG_LIMIT, validator=validators.ge(LEAST_LOG_LIMIT))
    """Bytes."""

    expected_duration: Duration | None = None
    options: dict[str, dict[str, object]] = field(factory=dict, repr=False)
    """What jobs wish of executors, by the executors' names; a job's own are added, key by key."""


@frozen(kw_only=True)
class JobTable:
    """``[[jobs]]``: one job, or several alike."""

    name: str = field(validator=_a_name)
    script: str = field(validator=_not_blank)
    copies: int | None = field(
        default=None, validator=validators.optional((validators.ge(1), validators.le(MOST_JOBS)))
    )
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

    log_limit: int | None = field(default=None, validator=validators.optional(validators.ge(LEAST_LOG_LIMIT)))
    """Bytes that its log has at most; of a longer one the beginning and the end are kept."""

    expected_duration: Duration | None = None
    options: dict[str, dict[str, object]] = field(factory=dict, repr=False)

    @property
    def names(self) -> list[str]:
        """Names of the jobs it stands for."""
        if self.copies is None:
            return [self.name]
        width = max(2, len(str(self.copies)))
        return [f"{self.name}-{number:0{width}}" for number in range(1, self.copies + 1)]


def _not_too_many(_: object, __: "Attribute[Any]", value: Sequence[JobTable]) -> None:
    if (number := sum(table.copies or 1 for table in value)) > MOST_JOBS:
        raise ValueError(f"at most {MOST_JOBS} jobs in all, copies included", number)


@frozen(kw_only=True)
class Report:
    """``[report]``: a command that is run on this machine, in the results, once all jobs are over."""

    command: tuple[str, ...] = field(validator=some("a program and its arguments"))
    """A program and its arguments; no shell touches them."""

    files: tuple[str, ...] = field(default=(), validator=_inside)
    """Copied into the results first, relative to the jobs file."""

    timeout: Duration = field(default=600.0, validator=validators.gt(0))

    @files.validator
    def _not_reserved(self, _: object, value: Sequence[str]) -> None:
        if bad := [path for path in value if not RESERVED.isdisjoint(PurePosixPath(path).parts[:1])]:
            raise ValueError("names that the batch's own results do not use", bad[0])


@frozen(kw_only=True)
class _Tables:
    """The file as it stands."""

    autoscaler: Autoscaler
    jobs: tuple[JobTable, ...] = field(validator=(some("at least one job"), _not_too_many))
    defaults: Defaults = Defaults()
    executors: dict[str, dict[str, object]] = field(factory=dict, repr=False)
    """Settings of executors, by their names."""

    report: Report | None = None


@frozen(kw_only=True)
class JobsFile:
    """A file that has been read and found to be right; nothing has been connected to."""

    path: Path
    autoscaler: Autoscaler
    groups: Sequence[InstanceGroup]
    """What the plugins of the fleet's pools made, in their order; not opened yet."""

    observers: Sequence[ScalerObserver]
    """Those that the fleet names; nothing is sent anywhere yet."""

    jobs: Sequence[Job]
    executors: Mapping[str, Executor]
    """By the names that the jobs use."""

    report: Report | None

    text: str = field(repr=False)
    """The file as it was read."""

    notes: Sequence[str]
    """What was accepted but should be written otherwise, one sentence each."""


_GITLABS = ConfigProblem(
    path="",
    found="this is a GitLab Runner config.toml ([[runners]]), not a jobs file with [autoscaler] and [[jobs]]",
    hint="run taskscaler check to see what it means",
)


def read_jobs_file(path: Path) -> JobsFile:
    """Read and check a jobs file.

    Raises:
        ConfigError: With every mistake of form and of the plugin's settings, or else with every mistake of meaning.
        OSError: It cannot be read.
    """
    notes: list[str] = []
    problems: list[ConfigProblem] = []
    text, data = read_toml(path)
    if "runners" in data and "autoscaler" not in data:
        raise ConfigError([_GITLABS], source=str(path))
    fleet = with_inheritance(data.get("autoscaler"))
    tables = _tables({**data, "autoscaler": fleet} if fleet is not None else data, problems, notes)
    groups = _groups(fleet, problems, notes)
    if tables is None:
        raise ConfigError(at_home(problems, data.get("autoscaler"), "autoscaler"), source=str(path))
    executors = _executors(tables, problems)
    options = _options(tables, problems)
    observers = _observers(tables.autoscaler, problems)
    problems += [
        *_unusable_connectors(tables.autoscaler),
        *_repeated_names(tables),
        *_bad_variables(tables),
        *_missing_files(path.parent, tables),
        *_missing_program(path.parent, tables.report),
    ]
    if problems:
        raise ConfigError(at_home(problems, data.get("autoscaler"), "autoscaler"), source=str(path))
    return JobsFile(
        path=path,
        autoscaler=tables.autoscaler,
        groups=groups,
        observers=observers,
        jobs=[
            job
            for table, wishes in zip(tables.jobs, options, strict=True)
            for job in _jobs(table, tables.defaults, wishes, path.parent)
        ],
        executors=executors,
        report=tables.report,
        text=text,
        notes=notes,
    )


def _tables(data: Mapping[str, object], problems: list[ConfigProblem], notes: list[str]) -> _Tables | None:
    try:
        return structure(data, _Tables, notes=notes)
    except ConfigError as error:
        problems += error.problems
        return None


def _groups(fleet: object, problems: list[ConfigProblem], notes: list[str]) -> list[InstanceGroup]:
    """Make the groups from their tables as they stand: a plugin's settings are checked even if other keys are wrong.

    If none of them is, there is one for each pool.
    """
    match fleet:
        case {"pools": [*pools]} if pools:
            tables = {f"autoscaler.pools[{index}]": pool for index, pool in enumerate(pools)}
        case _:
            tables = {"autoscaler": fleet}
    return [group for path, table in tables.items() for group in _group(path, table, problems, notes)]


def _group(path: str, table: object, problems: list[ConfigProblem], notes: list[str]) -> Iterator[InstanceGroup]:
    match table:
        case {"plugin": str(plugin), **others} if plugin:
            config = others.get("plugin_config", {})
        case _:
            return
    try:
        if isinstance(config, Mapping):
            yield load(plugin, config, path=f"{path}.plugin_config", notes=notes)
    except ConfigError as error:
        problems += error.problems
    except PluginNotFound as error:
        problems.append(_not_installed(f"{path}.plugin", error))


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


def _options(tables: _Tables, problems: list[ConfigProblem]) -> Sequence[Mapping[str, object]]:
    """Read what each job wishes of executors, by their names: of those that it does not use too."""
    before = len(problems)
    for name, wishes in tables.defaults.options.items():
        _read_options(name, wishes, f"defaults.options.{name}", problems)
    if len(problems) > before:  # every job would repeat it
        return []
    return [_options_of(index, table, tables.defaults, problems) for index, table in enumerate(tables.jobs)]


def _options_of(index: int, table: JobTable, defaults: Defaults, problems: list[ConfigProblem]) -> Mapping[str, object]:
    named = {**defaults.options, **table.options}
    merged = {name: {**defaults.options.get(name, {}), **table.options.get(name, {})} for name in named}
    return {
        name: _read_options(name, wishes, f"jobs[{index}].options.{name}", problems) for name, wishes in merged.items()
    }


def _read_options(name: str, wishes: Mapping[str, object], path: str, problems: list[ConfigProblem]) -> object:
    try:
        schema = find_executor(name).options
        if schema is not None:
            return structure(wishes, schema, path=path)
        found = f"the executor {quoted(name)} has no options"
        problems.append(ConfigProblem(path=path, found=found, hint="remove this table"))
    except ConfigError as error:
        problems += error.problems
    except PluginNotFound as error:
        problems.append(_not_installed(path, error))
    return None


def _observers(fleet: Autoscaler, problems: list[ConfigProblem]) -> list[ScalerObserver]:
    """Load the observers, so that their settings are checked."""
    observers = []
    for name, settings in fleet.observers.items():
        path = f"autoscaler.observers.{name}"
        try:
            observers.append(load_observer(name, settings, path=path))
        except ConfigError as error:
            problems += error.problems
        except PluginNotFound as error:
            problems.append(_not_installed(path, error))
    return observers


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
    expected = f"an installed plugin (installed: {', '.join(error.available) or 'none'})"
    found = describe(error.name)
    return ConfigProblem(path=path, found=found, expected=expected, hint=error.hint, mistake=Mistake.NOT_INSTALLED)


def _missing(path: str, found: str, expected: str, hint: str = "") -> ConfigProblem:
    return ConfigProblem(path=path, found=found, expected=expected, hint=hint, mistake=Mistake.MISSING_FILE)


def _unusable_connectors(fleet: Autoscaler) -> Iterator[ConfigProblem]:
    """What would show only once there is an instance, which costs money."""
    yield from _unusable_connector(fleet.connector_config, "autoscaler.connector_config")
    for index, pool in enumerate(fleet.pools):
        yield from _unusable_connector(pool.connector_config, f"autoscaler.pools[{index}].connector_config")


def _unusable_connector(connector: ConnectorConfig, path: str) -> Iterator[ConfigProblem]:
    try:
        if connector.protocol:
            load_connector(connector.protocol)
    except PluginNotFound as error:
        yield _not_installed(f"{path}.protocol", error)
    key = connector.key_path
    if key and not (os.path.isfile(key) and os.access(key, os.R_OK)):  # noqa: PTH113  (a Path raises for long names)
        yield _missing(f"{path}.key_path", describe(key), "a private key file that you can read")


def _repeated_names(tables: _Tables) -> Iterator[ConfigProblem]:
    seen: dict[str, int] = {}
    for index, table in enumerate(tables.jobs):
        for name in table.names:
            if name in seen:
                found = f"{quoted(name)} is also the name of jobs[{seen[name]}]"
                yield ConfigProblem(path=f"jobs[{index}].name", found=found, hint="give each job its own name")
                break
            seen[name] = index


def _bad_variables(tables: _Tables) -> Iterator[ConfigProblem]:
    named = {"defaults": tables.defaults.env} | {f"jobs[{index}]": table.env for index, table in enumerate(tables.jobs)}
    for path, env in named.items():
        for name in env:
            if not _VARIABLE.fullmatch(name):
                expected = "names of letters, digits and underscores that do not start with a digit"
                yield ConfigProblem(path=f"{path}.env", found=quoted(name), expected=expected)
            elif name.startswith(OUR_VARIABLES):
                expected = f"names that do not start with {OUR_VARIABLES}"
                yield ConfigProblem(path=f"{path}.env", found=quoted(name), expected=expected)


def _missing_files(directory: Path, tables: _Tables) -> Iterator[ConfigProblem]:
    named = {"defaults": tables.defaults.files, "report": tables.report.files if tables.report else ()}
    named |= {f"jobs[{index}]": table.files or () for index, table in enumerate(tables.jobs)}
    for path, files in named.items():
        for index, file in enumerate(files):
            if not os.path.exists(directory / file):  # noqa: PTH110  (a Path raises for long names)
                yield _missing(f"{path}.files[{index}]", describe(file), f"a file or directory in {directory}")


def _missing_program(directory: Path, report: Report | None) -> Iterator[ConfigProblem]:
    """Whether the report can be made should not show once all jobs are over."""
    if report and not _may_be_run(report.command[0], directory, report.files):
        program = report.command[0]
        hint = "write each argument as its own string" if " " in program else ""
        yield _missing("report.command", quoted(program), "a program that this machine can run", hint)


def _may_be_run(program: str, directory: Path, files: Sequence[str]) -> bool:
    """Tell whether a program can be found; of what is in the results, only what is copied there is known."""
    path = PurePosixPath(program)
    if "/" not in program or path.is_absolute():
        return shutil.which(program) is not None
    if path.parts[0] in RESERVED:
        return True
    return any(path.is_relative_to(file) for file in files) and shutil.which(directory / path) is not None


def _jobs(table: JobTable, defaults: Defaults, options: Mapping[str, object], directory: Path) -> Iterator[Job]:
    names = table.names
    executor = _first(table.executor, defaults.executor)
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
            options=options.get(executor),
        )
        yield Job(
            spec=spec,
            executor=executor,
            retries=_first(table.retries, defaults.retries),
            log_limit=_first(table.log_limit, defaults.log_limit),
            expected_duration=_first(table.expected_duration, defaults.expected_duration),
        )


def _first(own: T | None, default: D) -> T | D:
    return default if own is None else own
