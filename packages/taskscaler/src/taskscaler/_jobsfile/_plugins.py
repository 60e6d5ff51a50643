"""What a jobs file names that is a plugin's: groups, executors and their options, observers, connectors."""

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath

from attrs import evolve

from fleeting import ConfigError, ConnectorConfig, InstanceGroup, PluginNotFound, load
from fleeting.config import quoted
from fleeting.errors import ConfigProblem, Mistake
from fleeting.plugins import describe, load_connector, structure
from taskscaler._jobsfile._checks import missing
from taskscaler._jobsfile._tables import Defaults, JobsTables, JobTable
from taskscaler._observe import ScalerObserver
from taskscaler.config._autoscaler import Autoscaler
from taskscaler.executors import (
    Executor,
    ForeseesRefusal,
    StandsForScript,
    TakesFile,
    find_executor,
    load_executor,
)
from taskscaler.executors._protocol import LARGEST_FILE
from taskscaler.observers import load_observer


def groups_of(fleet: object, problems: list[ConfigProblem], notes: list[str]) -> list[InstanceGroup]:
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
        problems.append(not_installed(f"{path}.plugin", error))


def executors_of(
    tables: JobsTables, problems: list[ConfigProblem], loaded: Mapping[str, Executor] | None = None
) -> dict[str, Executor]:
    """Load the executors that jobs use, and those with settings, so that these are checked; but for those loaded."""
    executors = dict(loaded or {})
    for name, path in _executors_named(tables).items():
        problems += _loaded(executors, tables.executors, name, path)
    return executors


def load_one(
    executors: dict[str, Executor], settings: Mapping[str, Mapping[str, object]], name: str
) -> ConfigProblem | None:
    """Load one more executor, unless it is there; returns what is wrong with its name."""
    return next(iter(_loaded(executors, settings, name, "executor")), None)


def _loaded(
    executors: dict[str, Executor], settings: Mapping[str, Mapping[str, object]], name: str, path: str
) -> Sequence[ConfigProblem]:
    try:
        if name not in executors:
            executors[name] = load_executor(name, settings.get(name, {}), path=f"executors.{name}")
    except ConfigError as error:
        return error.problems
    except PluginNotFound as error:
        return [not_installed(path, error)]
    return ()


def options_of(tables: JobsTables, directory: Path, problems: list[ConfigProblem]) -> Sequence[Mapping[str, object]]:
    """Read what each job wishes of executors, by their names: of those that it does not use too."""
    before = len(problems)
    for name, wishes in tables.defaults.options.items():
        _read_options(name, wishes, f"defaults.options.{name}", directory, problems)
    if len(problems) > before:  # every job would repeat it
        return []
    return [
        options_of_job(f"jobs[{index}].", table, tables.defaults, directory, problems)
        for index, table in enumerate(tables.jobs)
    ]


def options_of_job(
    path: str, table: JobTable, defaults: Defaults, directory: Path | None, problems: list[ConfigProblem]
) -> Mapping[str, object]:
    """Read what a job wishes of executors.

    Args:
        path: What stands before the key.
        table: The job's.
        defaults: What it has that does not say otherwise.
        directory: What files are relative to; None: it can name none, for nobody would keep it as it is now.
        problems: Gets what is wrong.
    """
    merged = _merged(table, defaults)
    return {
        name: _read_options(name, wishes, f"{path}options.{name}", directory, problems)
        for name, wishes in merged.items()
    }


def files_of_options(tables: JobsTables) -> Iterator[tuple[str, str]]:
    """Name the keys and the files that are a part of what jobs wish, as far as the executors are installed here."""
    for index, table in enumerate(tables.jobs):
        for name, wishes in _merged(table, tables.defaults).items():
            with suppress(ConfigError, PluginNotFound):  # which are somebody else's to report
                schema = find_executor(name).options
                options = None if schema is None else structure(wishes, schema)
                if isinstance(options, TakesFile) and options.file is not None:
                    yield f"jobs[{index}].options.{name}.file", options.file


def _merged(table: JobTable, defaults: Defaults) -> Mapping[str, Mapping[str, object]]:
    named = {**defaults.options, **table.options}
    return {name: {**defaults.options.get(name, {}), **table.options.get(name, {})} for name in named}


def _read_options(
    name: str, wishes: Mapping[str, object], path: str, directory: Path | None, problems: list[ConfigProblem]
) -> object:
    try:
        schema = find_executor(name).options
        if schema is not None:
            options = structure(wishes, schema, path=path)
            if isinstance(options, TakesFile) and options.file is not None:
                return _with_file(options, options.file, f"{path}.file", directory, problems)
            return options
        found = f"the executor {quoted(name)} has no options"
        problems.append(ConfigProblem(path=path, found=found, hint="remove this table"))
    except ConfigError as error:
        problems += error.problems
    except PluginNotFound as error:
        problems.append(not_installed(path, error))
    return None


def _with_file(
    options: TakesFile, file: str, path: str, directory: Path | None, problems: list[ConfigProblem]
) -> object:
    """Read the file that a job's wishes name; None: it cannot be."""
    if directory is None:
        found, hint = describe(file), "a job on standard input has its steps in its own line"
        problems.append(ConfigProblem(path=path, found=found, hint=hint))
        return None
    try:
        return options.with_text(_text_of(directory, file))
    except OSError:
        problems.append(missing(path, describe(file), f"a readable file in {directory}"))
    except ValueError as error:
        found, _, hint = str(error).partition("; ")
        problems.append(ConfigProblem(path=path, found=found, hint=hint))
    return None


def _text_of(directory: Path, file: str) -> str:
    """Read a file that cannot be elsewhere, by a link: of a submitted batch, somebody else has made the directory.

    Raises:
        OSError: It cannot be read.
        ValueError: It is none that may be read.
    """
    parts = PurePosixPath(file).parts
    path = os.path.realpath(directory / file)
    if ".." in parts or not Path(path).is_relative_to(os.path.realpath(directory)):
        raise ValueError(f"{describe(file)}, which is outside {directory}; name a file below it")
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as opened:
        if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
            raise ValueError(f"{describe(file)}, which is not a file")
        data = opened.read(LARGEST_FILE + 1)
    if len(data) > LARGEST_FILE:
        raise ValueError(f"{describe(file)}, which has more than {LARGEST_FILE:,} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{describe(file)}, which is not text in UTF-8 (byte {error.start})") from error


def refused_wishes(
    tables: JobsTables, executors: Mapping[str, Executor], options: Sequence[Mapping[str, object]]
) -> Iterator[ConfigProblem]:
    """What an executor would refuse once there is an instance for it, which costs money."""
    for index, (table, wishes) in enumerate(zip(tables.jobs, options, strict=False)):  # none if defaults are wrong
        name = table.executor or tables.defaults.executor
        executor = executors.get(name)
        if name in wishes and wishes[name] is None:  # which is reported already
            continue
        if isinstance(executor, ForeseesRefusal) and (why := executor.refusal(wishes.get(name))):
            found, _, hint = why.partition("; ")
            key = f"options.{name}" if name in table.options else "executor"
            yield ConfigProblem(path=f"jobs[{index}].{key}", found=found, hint=hint)


def wrong_scripts(
    tables: JobsTables, options: Sequence[Mapping[str, object]], known: Sequence[ConfigProblem]
) -> Iterator[ConfigProblem]:
    """Find jobs that have nothing to run, unless what they say of that is known to be wrong."""
    paths = {each.path for each in known}
    for index, (table, wishes) in enumerate(zip(tables.jobs, options, strict=False)):  # none if defaults are wrong
        name = table.executor or tables.defaults.executor
        if not paths.isdisjoint((f"jobs[{index}]", f"jobs[{index}].script")) or wishes.get(name, "") is None:
            continue
        if (problem := wrong_script(table, wishes.get(name))) is not None:
            yield evolve(problem, path=f"jobs[{index}].{problem.path}")


def wrong_script(table: JobTable, wishes: object) -> ConfigProblem | None:
    """Say what is wrong with what a job is to run; None: nothing is."""
    is_said = isinstance(wishes, StandsForScript) and wishes.stands_for_script
    if table.script is None and not is_said:
        return ConfigProblem(path="script", found="", expected="a string", mistake=Mistake.MISSING_KEY)
    if table.script is not None and is_said:
        found = "a script beside options that say what to run"
        return ConfigProblem(path="script", found=found, hint="remove one of them")
    return None


def observers_of(fleet: Autoscaler, problems: list[ConfigProblem]) -> list[ScalerObserver]:
    """Load the observers, so that their settings are checked."""
    observers = []
    for name, settings in fleet.observers.items():
        path = f"autoscaler.observers.{name}"
        if any(problem.path == path for problem in problems):  # it is no table
            continue
        try:
            observers.append(load_observer(name, settings, path=path))
        except ConfigError as error:
            problems += error.problems
        except PluginNotFound as error:
            problems.append(not_installed(path, error))
    return observers


def _executors_named(tables: JobsTables) -> Mapping[str, str]:
    """Map every executor that is named to the key path that names it first."""
    named = {"defaults.executor": tables.defaults.executor}
    named |= {f"jobs[{index}].executor": table.executor for index, table in enumerate(tables.jobs) if table.executor}
    named |= {f"executors.{name}": name for name in tables.executors}
    first: dict[str, str] = {}
    for path, name in named.items():
        first.setdefault(name, path)
    return first


def not_installed(path: str, error: PluginNotFound) -> ConfigProblem:
    expected = f"an installed plugin (installed: {', '.join(error.available) or 'none'})"
    found = describe(error.name)
    return ConfigProblem(path=path, found=found, expected=expected, hint=error.hint, mistake=Mistake.NOT_INSTALLED)


def unusable_connectors(fleet: Autoscaler) -> Iterator[ConfigProblem]:
    """What would show only once there is an instance, which costs money."""
    yield from _unusable_connector(fleet.connector_config, "autoscaler.connector_config")
    for index, pool in enumerate(fleet.pools):
        yield from _unusable_connector(pool.connector_config, f"autoscaler.pools[{index}].connector_config")


def _unusable_connector(connector: ConnectorConfig, path: str) -> Iterator[ConfigProblem]:
    try:
        if connector.protocol:
            load_connector(connector.protocol)
    except PluginNotFound as error:
        yield not_installed(f"{path}.protocol", error)
    key = connector.key_path
    if key and not (os.path.isfile(key) and os.access(key, os.R_OK)):  # noqa: PTH113  (a Path raises for long names)
        yield missing(f"{path}.key_path", describe(key), "a private key file that you can read")
