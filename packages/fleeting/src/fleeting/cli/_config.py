"""Finds the group in a file: in one of its own, in a jobs file, or in a GitLab Runner's config.toml."""

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import field, fields_dict, frozen

from fleeting._config import BareNumbers, structure
from fleeting._errors import ConfigError, ConfigProblem
from fleeting._plugins import load_group
from fleeting._protocols import InstanceGroup
from fleeting._types import ConnectorConfig
from fleeting.wording import did_you_mean, quoted


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
    where, data = _find(_parse(path), path, runner)
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


def _find(data: Mapping[str, Any], path: Path, runner: str | None) -> tuple[str, Mapping[str, object]]:
    """Tell where in the file the group's table is, and what stands there."""
    if "runners" in data:
        return _find_runner(data["runners"], path, runner)
    if runner is not None:
        raise _wrong(path, "--runner", f"{quoted(runner)}, and no [[runners]] in the file", "a GitLab Runner's file")
    if isinstance(data.get("autoscaler"), Mapping):
        return "autoscaler", data["autoscaler"]
    return "", data


def _find_runner(runners: object, path: Path, wanted: str | None) -> tuple[str, Mapping[str, object]]:
    entries = {
        str(entry.get("name", index)): (f"runners[{index}].autoscaler", entry["autoscaler"])
        for index, entry in enumerate(runners if isinstance(runners, list) else [])
        if isinstance(entry, Mapping) and isinstance(entry.get("autoscaler"), Mapping)
    }
    names = ", ".join(map(quoted, entries))
    if not entries:
        raise _wrong(path, "runners", "none with [runners.autoscaler]", "one that scales")
    if wanted is None and len(entries) > 1:
        raise _wrong(path, "runners", f"{names}", "one", "say which with --runner")
    if wanted is not None and wanted not in entries:
        raise _wrong(path, "--runner", quoted(wanted), f"one of {names}", did_you_mean(wanted, entries))
    return entries[wanted] if wanted is not None else next(iter(entries.values()))


def _parse(path: Path) -> Mapping[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise _wrong(path, "", f"something else: {error}", "TOML") from error


def _wrong(path: Path, key: str, found: str, expected: str, hint: str = "") -> ConfigError:
    return ConfigError([ConfigProblem(path=key, found=found, expected=expected, hint=hint)], source=str(path))
