"""Finds the group in a file: in one of its own, in a jobs file, or in a GitLab Runner's config.toml."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from attrs import field, fields_dict, frozen

from fleeting._errors import ConfigError, ConfigProblem, Mistake
from fleeting._files import find_runner, read_toml
from fleeting._plugins import load_group
from fleeting._protocols import InstanceGroup
from fleeting._structure import BareNumbers, structure
from fleeting._types import ConnectorConfig
from fleeting._wording import describe


@frozen(kw_only=True)
class GroupTable:
    """The keys that say what the group is and how to reach its instances."""

    plugin: str
    plugin_config: dict[str, object] = field(factory=dict, repr=False)
    connector_config: ConnectorConfig = field(factory=ConnectorConfig)


@frozen(kw_only=True)
class GroupFile:
    """A group that is not open yet, and how to connect to its instances."""

    group: InstanceGroup
    connector: ConnectorConfig
    notes: Sequence[str]
    """What was accepted but should be written otherwise, one sentence each."""


def read_group_file(path: Path, runner: str | None) -> GroupFile:
    """Read the file; connect to nothing.

    Args:
        path: The file.
        runner: Which of the ``[[runners]]``; None: the only one with an autoscaler.

    Raises:
        ConfigError: With every mistake in what concerns the group; the rest of the file is not looked at.
        FleetingError: The plugin cannot be loaded.
        OSError: The file cannot be read.
    """
    notes: list[str] = []
    _, file = read_toml(path)
    where, data = _find(file, path, runner)
    bare_numbers: BareNumbers = "nanoseconds" if where.startswith("runners") else "refuse"
    known = {key: value for key, value in data.items() if not where or key in fields_dict(GroupTable)}
    table = structure(known, GroupTable, path=where, source=str(path), bare_numbers=bare_numbers, notes=notes)
    group = load_group(
        table.plugin,
        table.plugin_config,
        path=f"{where}.plugin_config".lstrip("."),
        source=str(path),
        bare_numbers=bare_numbers,
        notes=notes,
    )
    return GroupFile(group=group, connector=table.connector_config, notes=notes)


def _find(data: Mapping[str, object], path: Path, runner: str | None) -> tuple[str, Mapping[str, object]]:
    """Where in the file the group's table is, and what stands there."""
    if runner is not None or "runners" in data:
        key, entry = find_runner(data, runner, source=str(path))
        return _table(f"{key}.autoscaler", entry["autoscaler"], path)
    return _table("autoscaler", data["autoscaler"], path) if "autoscaler" in data else ("", data)


def _table(key: str, value: object, path: Path) -> tuple[str, Mapping[str, object]]:
    if not isinstance(value, Mapping):
        problem = ConfigProblem(path=key, found=describe(value), expected="a table", mistake=Mistake.TYPE)
        raise ConfigError([problem], source=str(path))
    return key, value
