"""What differs between a jobs file as it was and as it is."""

import json
import tomllib
from collections.abc import Iterator, Mapping

from fleeting import ConfigError
from fleeting.config import parse_duration

RELOADED = "autoscaler.policy"
"""What may change while a batch runs, or between two runs of it."""

_FLEET = "autoscaler"


def changes(before: str, after: str) -> list[str]:
    """What differs between two texts of a file that is right, in whatever runs go by but the policies.

    Settings of the fleet are listed one by one, with their values where these are no secrets for sure; of jobs and
    all else, which table it is.
    """
    old, new = tomllib.loads(before), tomllib.loads(after)
    fleet = _of_the_fleet(old.pop(_FLEET, {}), new.pop(_FLEET, {}))
    return [*fleet, *(f"{key} changed" for key in _differing(old, new))]


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
