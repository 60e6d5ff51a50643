"""What differs between a jobs file as it was and as it is."""

import json
import tomllib
from collections.abc import Iterator, Mapping

from fleeting import ConfigError
from fleeting.config import parse_duration

RELOADED = "autoscaler.policy"
"""What may change while a batch runs, or between two runs of it."""

_FLEET = "autoscaler"
_JOBS = "jobs"


def changes(before: str, after: str) -> list[str]:
    """What differs between two texts of a file that is right, in whatever runs go by but the policies.

    Settings of the fleet are listed one by one, with their values where these are no secrets for sure; jobs by their
    names; of all else, which table it is.
    """
    return [
        *changes_of_fleet(before, after),
        *(f"{the_job(name)} {what}" for name, what in changes_of_jobs(before, after).items()),
        *changes_beside_jobs(before, after),
    ]


def changes_of_fleet(before: str, after: str) -> list[str]:
    """List what differs in the settings of the fleet, but for its policies."""
    old, new = tomllib.loads(before), tomllib.loads(after)
    return changes_of_table(old.get(_FLEET, {}), new.get(_FLEET, {}))


def changes_of_table(old: Mapping[str, object], new: Mapping[str, object]) -> list[str]:
    """List the same of two tables ``autoscaler``, wherever they stand."""
    return list(_of_the_fleet(old, new))


def changes_beside_jobs(before: str, after: str) -> list[str]:
    """List which tables differ, but for the fleet's and those of jobs."""
    old, new = tomllib.loads(before), tomllib.loads(after)
    return [f"{key} changed" for key in _differing(old, new) if key not in (_FLEET, _JOBS)]


def changes_of_jobs(before: str, after: str) -> Mapping[str, str]:
    """List what became of tables of jobs, by their names: ``changed``, ``is new`` or ``is gone``."""
    old, new = (
        {str(table.get("name", "")): table for table in tomllib.loads(text).get(_JOBS, ())} for text in (before, after)
    )
    return {
        name: "is gone" if name not in new else "is new" if name not in old else "changed"
        for name in _differing(old, new)
    }


def the_job(name: str) -> str:
    """Name a table of jobs."""
    return f"job {name}" if name else "a job without a name"


def _of_the_fleet(old: Mapping[str, object], new: Mapping[str, object]) -> Iterator[str]:
    for key in _differing(old, new):
        path = f"{_FLEET}.{key}"
        if path != RELOADED:
            yield from _of_a_setting(path, old.get(key), new.get(key))


def _of_a_setting(path: str, old: object, new: object) -> Iterator[str]:
    match old, new:
        case (Mapping() | None, Mapping() | None):
            yield from (f"{path}.{key} changed" for key in _differing(old or {}, new or {}))
        case _ if _may_be_shown(old) and _may_be_shown(new):
            yield f"{path} changed from {_written(old)} to {_written(new)}"
        case _:
            yield f"{path} changed"


def _may_be_shown(value: object) -> bool:
    """Numbers and durations; whatever else may hold a password, a command for instance."""
    if isinstance(value, str):
        try:
            parse_duration(value)
        except ConfigError:
            return False
    return not isinstance(value, Mapping | list)


def _written(value: object) -> str:
    return "its default" if value is None else json.dumps(value)


def _differing(old: Mapping[str, object], new: Mapping[str, object]) -> Iterator[str]:
    return (key for key in {**old, **new} if old.get(key) != new.get(key))
