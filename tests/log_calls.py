"""Every call in the packages that logs an event, as the source has it: its name, level and fields."""

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Final

from attrs import frozen

PACKAGES: Final = Path(__file__).parents[1] / "packages"
LOGGERS: Final = frozenset({"log", "_log", "units"})
"""What loggers are called in a module."""

_LEVELS: Final[Mapping[str, str]] = {
    "debug": "debug",
    "info": "info",
    "warning": "warning",
    "error": "error",
    "exception": "error",
    "critical": "critical",
}
_CONTAINED: Final = {"contained": 0, "log_unforeseen": 1}
"""Methods that log an event for who calls them, and which argument is its name; other arguments are its fields."""

IN_PARTIALS: Final = {
    "info": frozenset({"pool", "instances", "accepted"}),
    "warning": frozenset({"pool", "instances", "error"}),
}
"""Fields of what is logged through a `partial`, by its level: all such are in the driver of groups."""


@frozen
class LogCall:
    """One call that logs."""

    where: str
    event: str | None
    """None: it is not written out."""

    level: str
    """``varies``: it depends."""

    fields: frozenset[str] | None
    """None: they are not written out."""


@cache
def log_calls() -> list[LogCall]:
    """Find them all."""
    return [call for path in sorted(PACKAGES.glob("*/src/**/*.py")) for call in _calls_in(path)]


def _calls_in(path: Path) -> Iterator[LogCall]:
    tree = ast.parse(path.read_text())
    functions = [each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
    for function in [tree, *functions]:
        for node in _walk(function):
            if isinstance(node, ast.Call):
                yield from _read(node, function, f"{path.relative_to(PACKAGES)}:{node.lineno}")


def _walk(root: ast.AST) -> Iterator[ast.AST]:
    """Go through a function or module, but for the functions in it."""
    for child in ast.iter_child_nodes(root):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield child
            yield from _walk(child)


def _read(call: ast.Call, function: ast.AST, where: str) -> Iterator[LogCall]:
    found, arguments = call.func, call.args
    if isinstance(found, ast.Name) and found.id == "partial" and arguments:
        found, arguments = arguments[0], arguments[1:]
    if not isinstance(found, ast.Attribute):
        return
    keywords = {each.arg: each.value for each in call.keywords}
    if found.attr in _CONTAINED:
        name = _text(arguments[_CONTAINED[found.attr]])
        if name is not None:
            yield LogCall(where, name, "error", frozenset(str(each) for each in keywords))
    elif isinstance(found.value, ast.Name) and found.value.id in LOGGERS:
        if found.attr == "log":
            yield LogCall(where, _text(arguments[1]), "varies", _fields(keywords.get("extra"), function))
        elif found.attr in _LEVELS:
            name = _text(arguments[0]) if len(arguments) == 1 else None
            fields = _fields(keywords.get("extra"), function)
            if isinstance(call.func, ast.Name):
                fields = IN_PARTIALS[found.attr]
            yield LogCall(where, name, _LEVELS[found.attr], fields)


def _text(node: ast.AST) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _fields(extra: ast.AST | None, function: ast.AST) -> frozenset[str] | None:
    """Read the keys of a dictionary that is written out in the call, or given a name in the same function."""
    if extra is None:
        return frozenset()
    if isinstance(extra, ast.Name):
        extra = next((each.value for each in _walk(function) if _gives(each, extra.id)), None)  # type: ignore[attr-defined]
    if not isinstance(extra, ast.Dict):
        return None
    keys: set[str] = set()
    for key, value in zip(extra.keys, extra.values, strict=True):
        some = frozenset({text}) if key and (text := _text(key)) else None if key else _fields(value, function)
        if some is None:
            return None
        keys |= some
    return frozenset(keys)


def _gives(node: ast.AST, name: str) -> bool:
    """Whether a node gives a value that name."""
    if not isinstance(node, ast.Assign):
        return False
    return any(isinstance(target, ast.Name) and target.id == name for target in node.targets)
