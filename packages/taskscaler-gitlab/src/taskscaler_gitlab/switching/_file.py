"""The file of ``taskscaler-gitlab switch``: which two services there are."""

from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path

from attrs import Attribute, field, frozen

from fleeting import Duration
from fleeting.config import file_error, quoted, read_toml
from fleeting.errors import ConfigProblem, Mistake
from fleeting.plugins import is_absolute, state_home, structure
from taskscaler.serve import FleetFile, place_of, read_fleet_file
from taskscaler_gitlab._config import ServiceConfig, read_config
from taskscaler_gitlab.cli._run import directory_of

MOST_WORDS = 64
"""Words of a command."""


def _is_command(_: object, __: "Attribute[tuple[str, ...]]", value: tuple[str, ...]) -> None:
    if len(value) > MOST_WORDS or (value and not value[0]) or any("\0" in each for each in value):
        raise ValueError('a program and its arguments, such as ["systemctl", "--user", "start", "gitlab-green"]')


@frozen(kw_only=True)
class ColourSettings:
    """The tables ``[colours.blue]`` and ``[colours.green]``."""

    config: str
    """The configuration that the colour runs with, a ``config.toml``; beside the file unless it is absolute."""

    runner: str | None = None
    """Which runner of the configuration, if it has several."""

    socket: str | None = field(default=None, validator=is_absolute)
    """Where the colour listens; by default as `taskscaler-gitlab run` has it: its name is that of the configuration."""

    start: tuple[str, ...] = field(default=(), validator=_is_command)
    """A command that has the colour run in the background, and ends; nothing: `taskscaler-gitlab run`, in a session of
    its own, whose output is appended to a file."""


@frozen(kw_only=True)
class Colours:
    """The table ``[colours]``."""

    blue: ColourSettings
    """One of the two."""

    green: ColourSettings
    """The other one."""


@frozen(kw_only=True)
class SwitchSettings:
    """The table ``[switch]``."""

    state_dir: str | None = field(default=None, validator=is_absolute)
    """Where it is kept how far a switch has come, and what colours print; by default in the user's own directory for
    such things."""

    patience: Duration = 1800.0
    """How long to wait for anything but jobs: a colour that starts, a canary, an answer of GitLab."""


@frozen(kw_only=True)
class _Written:
    colours: Colours
    switch: SwitchSettings = SwitchSettings()


@frozen(kw_only=True)
class ColourFile:
    """One of the colours, with all that it reads; nothing has been connected to."""

    name: str
    config: ServiceConfig
    fleet: FleetFile
    socket: Path
    directory: Path
    """Where its jobs are noted down."""

    runner: str | None
    start: tuple[str, ...]

    @property
    def path(self) -> Path:
        """Its configuration; absolute."""
        return self.config.path


@frozen(kw_only=True)
class SwitchFile:
    """The whole file."""

    path: Path
    colours: Mapping[str, ColourFile]
    """Both, by their names."""

    directory: Path
    """Where it is kept how far a switch has come."""

    patience: float
    """Seconds."""

    @property
    def configs(self) -> dict[str, str]:
        """The configurations of both, by their names."""
        return {name: str(each.path) for name, each in self.colours.items()}


def read_switch_file(path: Path) -> SwitchFile:
    """Read and check a file, and both configurations that it names. Nothing is connected to.

    Raises:
        ConfigError: With every mistake in the first of the files that has any.
        PluginNotFound: A plugin is not installed; says what to install.
        JournalError: The user has no home directory.
        OSError: A file cannot be read.
    """
    _, data = read_toml(path)
    problems: list[ConfigProblem] = []
    written = structure(data, _Written, source=str(path), problems=problems)
    if problems:
        raise file_error(problems, data, source=str(path))
    named = {"blue": written.colours.blue, "green": written.colours.green}
    if problems := [*_missing(path.parent, named)]:
        raise file_error(problems, data, source=str(path))
    if written.switch.patience <= 0:
        problem = ConfigProblem(path="switch.patience", found="no time at all", expected="a duration such as 30m")
        raise file_error([problem], data, source=str(path))
    colours = {name: _colour(name, each, path.parent) for name, each in named.items()}
    if problems := [*_shared(colours["blue"], colours["green"])]:
        raise file_error(problems, data, source=str(path))
    return SwitchFile(
        path=path,
        colours=colours,
        directory=_directory(path, written.switch.state_dir),
        patience=written.switch.patience,
    )


def _missing(directory: Path, colours: Mapping[str, ColourSettings]) -> Iterator[ConfigProblem]:
    for name, each in colours.items():
        where = f"colours.{name}.config"
        if not each.config:
            yield ConfigProblem(path=where, found="nothing", expected="a config.toml")
        elif not (directory / each.config).is_file():
            found, kind = quoted(str(directory / each.config)), Mistake.MISSING_FILE
            yield ConfigProblem(path=where, found=found, expected="a file", mistake=kind)


def _colour(name: str, settings: ColourSettings, beside: Path) -> ColourFile:
    path = (beside / settings.config).absolute()
    config = read_config(path, runner=settings.runner)
    fleet = read_fleet_file(path, settings.runner)
    return ColourFile(
        name=name,
        config=config,
        fleet=fleet,
        socket=place_of(path, None if settings.socket is None else Path(settings.socket), None),
        directory=directory_of(config, fleet),
        runner=settings.runner,
        start=settings.start,
    )


def _shared(blue: ColourFile, green: ColourFile) -> Iterator[ConfigProblem]:
    """What both have although each needs its own; whether they have the same fleet, only their clouds know."""
    if blue.path.resolve() == green.path.resolve() and blue.runner == green.runner:
        hint = "give each colour a configuration of its own, with a fleet of its own"
        yield ConfigProblem(path="colours.green.config", found="the runner of [colours.blue] again", hint=hint)
        return
    if blue.socket == green.socket:
        hint = "set `socket` in one of the tables, or give one of the configurations another name"
        yield ConfigProblem(path="colours.green.socket", found=f"{blue.socket}, as for blue", hint=hint)
    if blue.directory == green.directory:
        hint = "set another state_dir in [runners.taskscaler] of one of the configurations"
        found = f"a runner that keeps its jobs in {blue.directory}, as blue does"
        yield ConfigProblem(path="colours.green.config", found=found, hint=hint)
    if (listen := blue.config.top.listen_address) and listen == green.config.top.listen_address:
        hint = "show the metrics of each colour on a port of its own"
        found = f"listen_address = {quoted(listen)} in the configuration, as for blue"
        yield ConfigProblem(path="colours.green.config", found=found, hint=hint)


def _directory(path: Path, given: str | None) -> Path:
    """Where a file's switches are kept: by default for each file another."""
    if given is not None:
        return Path(given)
    whose = sha256(str(path.resolve()).encode()).hexdigest()[:12]
    return state_home() / "taskscaler" / f"switch-{whose}"
