"""GitLab Runner's ``config.toml``, as it is.

What it says of autoscaling is checked as strictly as a file of our own, since a key that is not obeyed costs
machines. What it says of anything else is GitLab Runner's business: listed as ignored, never judged, never kept.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, Final, TypeVar

from attrs import field, fields_dict, frozen
from attrs.validators import ge

from fleeting import Clock, ConfigError, FleetingError, InstanceGroup
from fleeting import load as load_group
from fleeting.config import file_error, find_runner, read_toml
from fleeting.errors import ConfigProblem
from fleeting.plugins import structure
from taskscaler._meter import MOST_BUCKETS, usable_bounds
from taskscaler._observe import ScalerObserver
from taskscaler._scaler import Taskscaler
from taskscaler.config._autoscaler import Autoscaler
from taskscaler.config._pools import at_home, with_inheritance
from taskscaler.observers import load_observer

T = TypeVar("T")
Table = Mapping[str, object]

_GITLABS = (
    "instance_creation_time_buckets",
    "instance_deletion_time_buckets",
    "instance_is_running_time_buckets",
    "instance_life_duration_buckets",
    "instance_operation_time_buckets",
    "instance_readiness_time_buckets",
    "vm_isolation",
)
_BUCKETS: Final = tuple(key for key in _GITLABS if key.endswith("_buckets"))
_NOT_OURS: Final = frozenset(_GITLABS) - fields_dict(Autoscaler).keys()
"""GitLab's keys of the autoscaler that mean nothing here."""

_NO_STATE = (
    "state_storage is missing: as in GitLab Runner, nothing outlives a restart;"
    " set enabled to true in [runners.autoscaler.state_storage] to change that"
)
_REMOVES = (
    "preexisting is missing: as in GitLab Runner, unknown instances are removed at the start;"
    ' set it to "refuse" or "adopt" to change that'
)
_NO_ISOLATION = "vm_isolation: there are no nested virtual machines here, jobs share the instance itself"

_LARGEST_BOUND: Final = 1e12
"""Seconds; TOML's whole numbers may be larger than any float."""

log = logging.getLogger("taskscaler.config")


@frozen(kw_only=True)
class RunnerConfig:
    """One ``[[runners]]`` entry that has been read and found to be right; its plugin has not been asked."""

    path: Path
    """The file."""

    key: str
    """Key path of the entry in the file, such as ``runners[0]``."""

    name: str = ""
    """The runner's name."""

    executor: str = ""
    """What GitLab Runner would run jobs with: ``docker-autoscaler`` or ``instance``."""

    concurrent: int = 1
    """Jobs at once over all runners of the file."""

    limit: int = 0
    """Jobs at once of this runner; 0: any number."""

    autoscaler: Autoscaler
    """Its fleet."""

    written: object = field(default=None, repr=False, eq=False)
    """The table ``autoscaler`` as it stands in the file; may hold secrets."""

    meant: object = field(default=None, repr=False, eq=False)
    """The same, with what GitLab means by keys that are missing."""

    notes: tuple[str, ...] = ()
    """What the file leaves unsaid, and what GitLab means by that, one sentence each."""

    ignored: tuple[str, ...] = ()
    """Key paths that mean nothing here, in the order of the file."""

    unsupported: tuple[str, ...] = ()
    """What the file asks for and will not get, one sentence each."""

    @property
    def jobs_at_once(self) -> int:
        """How many jobs the file lets this runner have at a time, however large its fleet: at least 1."""
        return min(self.concurrent, self.limit or self.concurrent)

    def groups(self, *, notes: list[str] | None = None) -> list[InstanceGroup]:
        """Make the instance group of each pool, in their order; nothing is connected yet.

        Args:
            notes: Gets one sentence for each thing that is accepted but not as written.

        Raises:
            PluginNotFound: Says what to install.
            ConfigError: The plugin refuses its settings.
        """
        several = len(self.autoscaler.pools)
        return [
            load_group(
                pool.plugin,
                pool.plugin_config,
                path=f"{self.key}.autoscaler.{f'pools[{index}].' if several else ''}plugin_config",
                source=str(self.path),
                bare_numbers="nanoseconds",
                notes=notes,
            )
            for index, pool in enumerate(self.autoscaler.all_pools)
        ]

    def observers(self) -> list[ScalerObserver]:
        """Make the observers that the file names; nothing is sent anywhere yet.

        Raises:
            PluginNotFound: Says what to install.
            ConfigError: An observer refuses its settings.
        """
        return [
            load_observer(
                name,
                settings,
                path=f"{self.key}.autoscaler.observers.{name}",
                source=str(self.path),
                bare_numbers="nanoseconds",
            )
            for name, settings in self.autoscaler.observers.items()
        ]

    def scaler(
        self, *, clock: Clock | None = None, observe_only: bool = False, observers: Sequence[ScalerObserver] = ()
    ) -> Taskscaler:
        """Make a scaler over the instance groups, with everything the file says; nothing is opened yet.

        Args:
            clock: None: the event loop's time.
            observe_only: As in `Taskscaler`.
            observers: As in `Taskscaler`; besides those that the file names, unless this only observes.

        Raises:
            PluginNotFound: Says what to install.
            ConfigError: The plugin refuses its settings.
            JournalError: The user has no home directory to keep state in.
        """
        for sentence in self.unsupported:
            log.warning("unsupported_setting", extra={"runner": self.name, "what": sentence})
        named = [] if observe_only else self.observers()
        return self.autoscaler.scaler(
            self.groups(), clock=clock, observe_only=observe_only, observers=[*named, *observers]
        )


@frozen(kw_only=True)
class _File:
    """What the top of the file says that matters here."""

    concurrent: int = field(default=1, validator=ge(1))


@frozen(kw_only=True)
class _Runner:
    """What an entry says that matters here."""

    name: str = ""
    executor: str = ""
    limit: int = field(default=0, validator=ge(0))
    autoscaler: Autoscaler


def load(path: str | PathLike[str], *, runner: str | None = None) -> RunnerConfig:
    """Read and check one runner of a ``config.toml``. Nothing is connected to, and no plugin is needed.

    As Go reads it: a number without a unit is in nanoseconds where a duration belongs, and a zero or an empty string
    is as good as no key.

    Args:
        path: The file.
        runner: The ``name`` of the entry. None: the only one with ``[runners.autoscaler]``.

    Raises:
        ConfigError: With every mistake, those in the settings of plugins that are installed included; or the file
            leaves open which runner is meant, with the names there are. A file whose only mistakes are a plugin's is
            loaded: `RunnerConfig.groups` and `RunnerConfig.observers` refuse these.
        OSError: It cannot be read.
    """
    path = Path(path)
    _, file = read_toml(path)
    key, entry = find_runner(file, runner, source=str(path))
    fleet = entry["autoscaler"]
    problems: list[ConfigProblem] = []
    top = _read(_File, _known(file, _File), "", problems, zero_is_default=False)
    meant = _as_meant(fleet, path)
    entries = {**_known(entry, _Runner), "autoscaler": with_inheritance(meant)}
    own = _read(_Runner, entries, key, problems, zero_is_default=True)
    if top is None or own is None:
        problems += _plugin_problems(entries["autoscaler"], f"{key}.autoscaler")
        raise file_error(at_home(problems, meant, f"{key}.autoscaler"), file, source=str(path))
    return RunnerConfig(
        path=path,
        key=key,
        name=own.name,
        executor=own.executor,
        concurrent=top.concurrent,
        limit=own.limit,
        autoscaler=own.autoscaler,
        written=fleet,
        meant=meant,
        notes=tuple(_notes(fleet)),
        ignored=tuple(_ignored(file, entry, fleet)),
        unsupported=(_NO_ISOLATION,) if _isolates(fleet) else (),
    )


def _known(table: Table, cls: type[Any]) -> Table:
    return {key: value for key, value in table.items() if key in fields_dict(cls)}


def _read(cls: type[T], table: Table, path: str, problems: list[ConfigProblem], *, zero_is_default: bool) -> T | None:
    try:
        return structure(table, cls, path=path, bare_numbers="nanoseconds", zero_is_default=zero_is_default)
    except ConfigError as error:
        problems += error.problems
        return None


def _plugin_problems(fleet: object, path: str) -> Iterator[ConfigProblem]:
    """Find what plugins say of their settings, whatever else is wrong; those that cannot be loaded say nothing."""
    table = fleet if isinstance(fleet, Mapping) else {}
    pools = table.get("pools")
    tables = {f"{path}.pools[{index}]": pool for index, pool in enumerate(pools)} if isinstance(pools, list) else {}
    for where, each in (tables or {path: table}).items():
        match each:
            case {"plugin": str(plugin), "plugin_config": Mapping() as settings}:
                make = partial(load_group, plugin, settings, path=f"{where}.plugin_config")
                yield from _problems_of(make)
    match table.get("observers"):
        case Mapping() as observers:
            for name, settings in observers.items():
                if isinstance(settings, Mapping):
                    yield from _problems_of(partial(load_observer, name, settings, path=f"{path}.observers.{name}"))


def _problems_of(make: Callable[..., object]) -> Sequence[ConfigProblem]:
    try:
        make(bare_numbers="nanoseconds")
    except ConfigError as error:
        return error.problems
    except FleetingError:  # it is not installed, or broken: another mistake than those of the file
        return ()
    return ()


def _as_meant(fleet: object, path: Path) -> object:
    """Add to the table ``autoscaler`` what GitLab means by a key that is missing, where we would mean something else.

    Whatever is no table or of the wrong kind stays as it is, for the schema to refuse.
    """
    if not isinstance(fleet, Mapping):
        return fleet
    known = {key: value for key, value in fleet.items() if key not in _NOT_OURS}
    meant = _with(known, delete_instances_on_shutdown=False, preexisting="remove", state_storage={})
    if isinstance(storage := meant["state_storage"], Mapping):
        storage = _with(storage, enabled=False, dir=".taskscaler")
        if isinstance(where := storage["dir"], str):
            storage["dir"] = str(path.resolve().parent / where)
        meant["state_storage"] = storage
    if isinstance(policies := meant.get("policy"), list):
        meant["policy"] = [_with(each, timezone="Local") if isinstance(each, Mapping) else each for each in policies]
    return _with_buckets(meant)


def _with_buckets(meant: Table) -> Table:
    """Leave of the bounds of buckets what metrics can use: GitLab Runner takes more, and no job depends on them."""
    found = {key: _bounds(meant[key]) for key in _BUCKETS if key in meant}
    return {key: value for key, value in {**meant, **found}.items() if key not in found or value}


def _bounds(value: object) -> list[float]:
    """Read the bounds of buckets as far as they can be used."""
    items = value if isinstance(value, list) else []
    return list(usable_bounds([each for each in items if isinstance(each, int | float) and _is_number(each)]))


def _is_number(value: float) -> bool:
    return not isinstance(value, bool) and abs(value) <= _LARGEST_BOUND


def _with(table: Table, **implied: object) -> dict[str, object]:
    return {**table, **{key: value for key, value in implied.items() if table.get(key) in (None, "")}}


def _notes(fleet: object) -> Iterator[str]:
    said = fleet if isinstance(fleet, Mapping) else {}
    if "state_storage" not in said:
        yield _NO_STATE
    if "preexisting" not in said:
        yield _REMOVES
    for key in _BUCKETS:
        if key in said and said[key] != (used := _bounds(said[key])):
            yield f"{key}: metrics have {used or 'their own bounds'}: 1 to {MOST_BUCKETS}, above 0 and ascending"


def _ignored(file: Table, entry: Table, fleet: object) -> Iterator[str]:
    yield from (key for key in file if key not in {"runners", *fields_dict(_File)})
    yield from (f"runners.{key}" for key in entry if key not in fields_dict(_Runner))
    ours = {"vm_isolation"} if _isolates(fleet) else set()  # reported as unsupported
    keys = fleet if isinstance(fleet, Mapping) else {}
    yield from (f"runners.autoscaler.{key}" for key in keys if key in _NOT_OURS - ours)


def _isolates(fleet: object) -> bool:
    match fleet:
        case {"vm_isolation": {"enabled": True}}:
            return True
    return False
