"""Every setting of a fleet, with where it comes from."""

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any, get_args

import attrs

from fleeting import Duration
from fleeting.config import quoted
from fleeting.plugins import format_duration
from taskscaler._wording import counted
from taskscaler.cli._paragraphs import Row
from taskscaler.config import Autoscaler

Table = Mapping[str, object]

_FILE, _FLEET, _GITLABS, _DEFAULT = "in the file", "of the fleet", "as in GitLab", "by default"
"""Where a setting comes from; the order in which they are shown."""

_HIDDEN = "(not shown)"


def settings_rows(fleet: Autoscaler, written: object, meant: object, *, defaults: bool) -> Iterator[Row]:
    """Report every setting that the fleet has, those of one origin together.

    Args:
        fleet: As it was understood.
        written: Its table as it stands in the file.
        meant: The same with what GitLab means by keys that are missing, if it is GitLab's file; else as written.
        defaults: Whether those are shown that have their defaults; else they are counted.
    """
    origins: dict[str, list[str]] = {_FILE: [], _FLEET: [], _GITLABS: [], _DEFAULT: []}
    for path, text, origin in _settings(fleet, _table(written), _table(meant), {}, ""):
        origins[origin].append(f"{path} = {text}")
    for origin, settings in origins.items():
        if origin == _DEFAULT and not defaults:
            yield origin, f"{counted(len(settings), 'more setting')}; --settings shows them"
        else:
            yield from ((origin, setting) for setting in settings)


def _settings(
    value: Any,  # noqa: ANN401  (of any attrs class)
    written: Table,
    meant: Table,
    above: Table,
    path: str,
) -> Iterator[tuple[str, str, str]]:
    """Walk over a table: the path of each setting, what it is, and where that comes from."""
    for attribute in attrs.fields(attrs.resolve_types(type(value))):
        key, item = attribute.alias, getattr(value, attribute.name)
        here = f"{path}{key}"
        origin = _FILE if key in written else _FLEET if key in above else _GITLABS if key in meant else _DEFAULT
        if attrs.has(type(item)):
            inner = _table(written.get(key)), _table(meant.get(key)), _table(above.get(key))
            yield from _settings(item, *inner, f"{here}.")
        elif isinstance(item, tuple) and item and attrs.has(type(item[0])):
            rows, implied = (_tables(source.get(key), len(item)) for source in (written, meant))
            inherited = {name: each for name, each in written.items() if name not in _OWN} if key == "pools" else {}
            for index, each in enumerate(item):
                yield from _settings(each, rows[index], implied[index], inherited, f"{here}[{index}].")
        else:
            yield here, _written(item, attribute), origin


_OWN = frozenset({"name", "max_instances", "pools", "policy"})
"""What a pool does not take over."""


def _written(value: object, attribute: "attrs.Attribute[Any]") -> str:
    """Write a value as the file would have it; of what may be secret, only whether it is there."""
    if not attribute.repr or attribute.name.endswith("_command"):  # people put secrets into commands, too
        return _HIDDEN if value else "none"
    if value is None or (isinstance(value, tuple | Mapping) and not value):
        return "none"
    if isinstance(value, tuple):
        return f"[{', '.join(quoted(str(item)) for item in value)}]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        is_duration = Duration in (attribute.type, *get_args(attribute.type))
        return quoted(format_duration(value)) if is_duration else f"{value:g}"
    return quoted(str(value.value if isinstance(value, Enum) else value))


def _table(value: object) -> Table:
    return value if isinstance(value, Mapping) else {}


def _tables(value: object, count: int) -> list[Table]:
    """The tables of an array, at least so many; beyond its end, empty ones."""
    tables = [_table(each) for each in value] if isinstance(value, list | tuple) else []
    return [*tables, *[{}] * (count - len(tables))]
