"""Several pools in one fleet: what each takes over from the table ``autoscaler``, before any of it is checked.

A pool has every setting of the fleet that it does not have itself; in a table such as ``connector_config``, every key.
Not taken over are the name, the ceiling, which in ``autoscaler`` is the one over all pools, and the settings of a
plugin where the pool names another.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from attrs import evolve, fields_dict

from fleeting.errors import ConfigProblem
from taskscaler.config._autoscaler import PoolTable

_OWN = frozenset({"name", "max_instances"})
"""Keys that no pool takes over."""

_IN_A_POOL = re.compile(r"pools\[(\d+)\]\.(.+)")


def with_inheritance(fleet: object) -> object:
    """Give each pool of a fleet what it takes over; whatever is no table is left for the schema to refuse."""
    match fleet:
        case {"pools": [*pools], **others} if pools:
            inherited = _inherited(others)
            plugins = [each["plugin"] for each in pools if isinstance(each, Mapping) and "plugin" in each]
            if plugins:
                others.setdefault("plugin", plugins[0])
            return {**others, "pools": [_merged(inherited, each) for each in pools]}
    return fleet


def at_home(problems: Iterable[ConfigProblem], fleet: object, path: str) -> list[ConfigProblem]:
    """Report what a pool has taken over where it stands, and that once.

    Args:
        problems: What is wrong with the fleet that `with_inheritance` gave.
        fleet: As it stands in the file.
        path: Key path of the fleet.
    """
    tables = fleet.get("pools") if isinstance(fleet, Mapping) else None
    reported: dict[tuple[str, str], ConfigProblem] = {}
    for problem in problems:
        found = _IN_A_POOL.fullmatch(problem.path.removeprefix(f"{path}."))
        if found and isinstance(tables, list) and _is_inherited(tables[int(found[1])], re.split(r"[.\[]", found[2])):
            problem = evolve(problem, path=f"{path}.{found[2]}")  # noqa: PLW2901  (it is the same one)
        reported.setdefault((problem.path, problem.found), problem)
    return list(reported.values())


def _inherited(fleet: Mapping[Any, object]) -> dict[str, object]:
    return {key: value for key, value in fleet.items() if key in fields_dict(PoolTable).keys() - _OWN}


def _merged(inherited: Mapping[str, object], pool: object) -> object:
    if not isinstance(pool, Mapping):
        return pool
    if pool.get("plugin", inherited.get("plugin")) != inherited.get("plugin"):
        inherited = {key: value for key, value in inherited.items() if key != "plugin_config"}
    merged = {**inherited, **pool}
    for key, value in inherited.items():
        own = pool.get(key)
        if isinstance(value, Mapping) and isinstance(own, Mapping):
            merged[key] = {**value, **own}
    return merged


def _is_inherited(own: object, keys: list[str]) -> bool:
    """Whether what stands at the end of these keys is not the pool's own; nor is what is missing, but for its name."""
    for key in keys:
        if not isinstance(own, Mapping):
            return False
        if key not in own:
            return key not in _OWN
        own = own[key]
    return False
