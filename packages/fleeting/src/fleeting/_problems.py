"""The one error of a file: its problems in the order of the file, each once, by the name of what is concerned."""

import re
from collections.abc import Iterable, Iterator, Mapping
from json import loads

from attrs import evolve, frozen

from fleeting._errors import ConfigError, ConfigProblem
from fleeting._wording import quoted

_STEP = re.compile(r'\[(?P<index>[0-9]+)\]|(?P<quoted>"(?:[^"\\]|\\.)*")|(?P<key>[^.\[\]]+)')
"""One step of a key path."""

_NAME = "name"


def file_error(problems: Iterable[ConfigProblem], data: object, *, path: str = "", source: str = "") -> ConfigError:
    """Make one error of all that is wrong with a file, whoever has found it.

    Args:
        problems: At least one, in any order; each is reported once.
        data: The file as TOML gives it, or one of its tables.
        path: Key path of *data*.
        source: Name of the file.
    """
    placed = {(problem.path, problem.found): (problem, _look_up(problem.path, path, data)) for problem in problems}
    ordered = sorted(placed.values(), key=lambda found: found[1].order)
    return ConfigError(
        [evolve(problem, owner=place.owner if problem.path != place.name else "") for problem, place in ordered],
        source=source,
    )


@frozen
class _Place:
    """Where a key path leads to."""

    order: tuple[int, ...]
    """Compares as the place in the file does."""

    name: str
    """Key path of the name of the owner, for which it is no news."""

    owner: str
    """As `ConfigProblem.owner`."""


def _look_up(problem: str, path: str, data: object) -> _Place:
    """Follow a key path as far as the data goes; what is missing comes last in its table."""
    order: list[int] = []
    name = owner = array = ""
    at = path
    for step in _steps(problem.removeprefix(path)):
        if isinstance(step, int):
            at = f"{at}[{step}]"
            inside = data[step] if isinstance(data, list | tuple) and step < len(data) else None
            order.append(step)
            match inside:
                case {"name": str(given)} if given:
                    name, owner = f"{at}.{_NAME}", f"{array.removesuffix('s')} {quoted(given)}"
            data = inside
        else:
            at, array = f"{at}.{step}" if at else step, step
            table = data if isinstance(data, Mapping) else {}
            keys = list(table)
            order.append(keys.index(step) if step in table else len(keys))
            data = table.get(step)
    return _Place(tuple(order), name, owner)


def _steps(path: str) -> Iterator[str | int]:
    for step in _STEP.finditer(path):
        index, text, key = step.group("index", "quoted", "key")
        yield int(index) if index else loads(text) if text else key
