"""What a daemon owns: the fleet of a file, ours or GitLab's."""

import os
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Self

from attrs import evolve, field, frozen

from fleeting import Clock, ConfigError, InstanceGroup
from fleeting.config import read_toml
from fleeting.errors import ConfigProblem
from fleeting.plugins import structure
from taskscaler import config
from taskscaler._jobsfile import Retention, read_jobs_file
from taskscaler._jobsfile._tables import ServedTables
from taskscaler._observe import ScalerObserver
from taskscaler._scaler import Taskscaler
from taskscaler._state import default_directory
from taskscaler.cli._changes import changes_beside_jobs, changes_of_table
from taskscaler.config import Autoscaler, StateStorage
from taskscaler.executors import Executor
from taskscaler.observers._finding import with_metrics, with_traces

if TYPE_CHECKING:  # it imports the client library, which need not be there
    from taskscaler.observers.metrics import Metrics
    from taskscaler.observers.traces import Traces

_KEEPS = (
    "delete_instances_on_shutdown does not apply to a daemon: its instances stay when it is restarted;"
    " `taskscaler drain --delete` removes them"
)
_JOURNAL = (
    "state_storage is missing: unlike GitLab Runner, a daemon keeps its state all the same, so that a restart costs no"
    " instance"
)


@frozen(kw_only=True)
class FleetFile:
    """A file that has been read and found to be right; nothing has been connected to."""

    path: Path
    autoscaler: Autoscaler
    """As a daemon needs it: the instances outlive it."""

    groups: Sequence[InstanceGroup]
    """Of the pools, in their order; not opened yet."""

    observers: Sequence[ScalerObserver]
    metrics: "Metrics | None" = None
    """The one among them that shows the fleet to Prometheus, if there is one."""

    traces: "Traces | None" = None
    """The one that follows its jobs, if there is one."""

    executors: Mapping[str, Executor] = field(factory=dict)
    """Those that the file has settings for, by name."""

    retention: Retention = field(factory=Retention)
    """How long it keeps batches."""

    text: str = field(repr=False)
    """The file as it was read."""

    is_ours: bool
    """Whether it is not GitLab's."""

    written: Mapping[str, object] = field(repr=False)
    """The table of the fleet as it stands in the file."""

    notes: Sequence[str]
    """What was accepted but should be written otherwise, or is not as written, one sentence each."""

    def shown(self, listen: str | None, *, traces: bool = False) -> Self:
        """Have metrics shown on an address, and jobs followed, as a command line wants it; else as the file has it.

        Raises:
            WrongArguments: What that needs is not installed.
            ConfigError: The environment asks for something that cannot be had.
        """
        observers, metrics = with_metrics(self.observers, listen)
        observers, followed = with_traces(observers, wanted=traces)
        if followed is not None:
            followed.inherits = False  # what others ask of a daemon is no part of how it was started
        return evolve(self, observers=observers, metrics=metrics, traces=followed)

    @property
    def batches(self) -> Path:
        """Where the batches are that were submitted to this fleet: beside its state.

        Raises:
            JournalError: The user has no home directory to keep them in.
        """
        return self.kept("batches")

    def kept(self, kind: str) -> Path:
        """Where things of a kind are that are kept for this fleet: beside its state. Raises as `batches`."""
        return self._state / kind / self._name

    @property
    def leases(self) -> Path:
        """Where the leases are written down that outlive their clients. Raises as `batches`."""
        return self._state / "leases" / self._name

    @property
    def token(self) -> Path:
        """Where the token is for clients over TCP, unless the user says otherwise. Raises as `batches`."""
        return self.kept("tokens")

    @property
    def _state(self) -> Path:
        given = self.autoscaler.state_storage.dir
        return default_directory() if given is None else Path(given)

    @property
    def _name(self) -> str:
        """Name this fleet among those of the user."""
        place = self.path.absolute()
        return f"{place.stem}-{sha256(os.fsencode(place)).hexdigest()[:12]}"

    def changes(self, later: Self) -> list[str]:
        """Name what differs in the same file later, in anything but the policies."""
        beside = changes_beside_jobs(self.text, later.text) if self.is_ours else []
        return [*changes_of_table(self.written, later.written), *beside]

    def scaler(self, clock: Clock, observers: Sequence[ScalerObserver]) -> Taskscaler:
        """Make a scaler over the fleet; nothing is opened yet. Raises as `Autoscaler.scaler`."""
        return self.autoscaler.scaler(self.groups, clock=clock, observers=[*self.observers, *observers])


def read_fleet_file(path: Path, runner: str | None = None) -> FleetFile:
    """Read and check the file of a fleet: a jobs file without jobs, or a GitLab Runner ``config.toml``.

    Args:
        path: Of the file.
        runner: Which runner, if a ``config.toml`` has several.

    Raises:
        ConfigError: With every mistake.
        PluginNotFound: A plugin is not installed; says what to install.
        OSError: It cannot be read.
    """
    text, data = read_toml(path)
    if "runners" in data and "autoscaler" not in data:
        return _of_gitlab(path, text, runner)
    if runner is not None:
        problem = ConfigProblem(path="", found="a file with [autoscaler]", expected="a config.toml with [[runners]]")
        raise ConfigError([problem], source=str(path))
    file = read_jobs_file(path, schema=ServedTables)
    written = _table(data["autoscaler"])
    return FleetFile(
        path=path,
        autoscaler=evolve(file.autoscaler, delete_instances_on_shutdown=False),
        groups=file.groups,
        observers=file.observers,
        executors=file.executors,
        retention=structure(data.get("retention", {}), Retention),  # found to be right above
        text=text,
        is_ours=True,
        written=written,
        notes=[*file.notes, *([_KEEPS] if written.get("delete_instances_on_shutdown") else [])],
    )


def _of_gitlab(path: Path, text: str, name: str | None) -> FleetFile:
    runner = config.load(path, runner=name)
    written = _table(runner.written)
    notes: list[str] = [*runner.unsupported]
    groups = runner.groups(notes=notes)
    fleet = evolve(runner.autoscaler, delete_instances_on_shutdown=False)
    if "state_storage" not in written:
        fleet = evolve(fleet, state_storage=StateStorage())
        notes.append(_JOURNAL)
    if written.get("delete_instances_on_shutdown"):
        notes.append(_KEEPS)
    return FleetFile(
        path=path,
        autoscaler=fleet,
        groups=groups,
        observers=runner.observers(),
        text=text,
        is_ours=False,
        written=written,
        notes=notes,
    )


def _table(found: object) -> Mapping[str, object]:
    """Give a table that has been found to be one."""
    return found if isinstance(found, Mapping) else {}
