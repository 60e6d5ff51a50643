"""The wording of messages about configuration: what was found, what is allowed, what was probably meant."""

import re
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Annotated, Any, Literal, TypeAlias, get_args, get_origin

import attrs

from fleeting._terminal import harmless

Kind: TypeAlias = Any
"""The type of a field: a class, or a form such as ``str | None`` that typing cannot name yet."""

_SCALARS = {str: "a string", bool: "true or false", int: "an integer", float: "a number"}
_UNQUOTED = {int: "-?[0-9]+", float: r"-?[0-9]+(\.[0-9]+)?", bool: "true|false"}

_BARE_KEY = re.compile("[A-Za-z0-9_-]+")

_LONGEST_VALUE = 60
"""So many characters of a found value are shown."""

ONE_LINE = 1024
"""Bytes, in UTF-8, that a reason takes at most."""

_READ_PER_BYTE = 16
"""Characters that are read for each byte that may stay: room for escape sequences and blank lines, which go."""

_LINE_BREAKS = dict.fromkeys(map(ord, "\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"), "\n")
_ELLIPSIS = "…"


def describe(value: object, *, secret: bool = False) -> str:
    """Write *value* as TOML does: ``"x"``, ``3``, ``a table``, ``the date 2026-01-31``; of a secret only its type."""
    match value:
        case None:
            return "nothing"
        case Mapping():
            return "a table" if value else "an empty table"
        case list() | tuple() | frozenset():
            return "an array" if value else "an empty array"
        case bool():
            kind, text = "a boolean", str(value).lower()
        case int():
            kind, text = "an integer", _cut(str(value))
        case float():
            kind, text = "a float", str(value)
        case str():
            kind, text = "a string", quoted(value)
        case _:
            kind, text = f"a {type(value).__name__}", f"the {type(value).__name__} {value}"
    return kind if secret else text


def expectation(kind: Kind) -> str:
    """Say what a field of type *kind* accepts; an annotated type brings its own words."""
    if type(None) in get_args(kind):
        kind = next(option for option in get_args(kind) if option is not type(None))
    if origin(kind) is Annotated:
        return str(kind.__metadata__[0])
    if kind in _SCALARS:
        return _SCALARS[kind]
    if is_choice(kind):
        return f"one of {', '.join(quoted(str(choice)) for choice in choices(kind))}"
    is_table = attrs.has(kind) or issubclass(origin(kind) or kind, Mapping)
    return "a table" if is_table else "an array"


def quoted(text: str) -> str:
    """Quote as TOML does, on one line, cut if it is long."""
    from json import dumps  # only errors need it

    return dumps(_cut(text), ensure_ascii=False)


def one_line(text: str, limit: int = ONE_LINE) -> str:
    """Write text from outside as one line: a reason, a name, the message of an error.

    Line breaks and tabs become spaces; escape sequences and control characters are removed; a lone surrogate becomes
    a question mark. A long text is cut, and ends with an ellipsis.

    Args:
        text: Of any length; the work does not grow with what is cut off.
        limit: The most bytes that the result has in UTF-8, at least 3.
    """
    if 4 * len(text) <= limit and text.isprintable() and text == text.strip():  # as nearly all are
        return text
    read = text[: _READ_PER_BYTE * limit]
    lines = harmless(read.translate(_LINE_BREAKS)).replace("\t", " ").split("\n")
    line = " ".join(filter(None, map(str.strip, lines))).encode(errors="replace")
    if len(line) <= limit and len(read) == len(text):
        return line.decode()
    return line[: limit - len(_ELLIPSIS.encode())].decode(errors="ignore").rstrip() + _ELLIPSIS


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}…"


def dotted(path: str, key: str) -> str:
    """Name a key of the table at *path* as TOML does: quoted if it has to be."""
    name = key if _BARE_KEY.fullmatch(key) else quoted(key)
    return f"{path}.{name}" if path else name


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """Ask whether the nearest of *known* was meant; empty if none is near."""
    from difflib import get_close_matches  # only errors need it

    by_lower = {choice.lower(): choice for choice in known}
    nearest = get_close_matches(str(word).lower(), by_lower, n=1)
    return f"did you mean `{by_lower[nearest[0]]}`?" if nearest else ""


def quoting_hint(value: object, kind: type) -> str:
    """Say how to write a scalar that has too few or too many quotes; empty if that is not what is wrong."""
    if kind is str and type(value) in (int, float):
        return f'write "{value}"'
    if isinstance(value, str) and re.fullmatch(_UNQUOTED.get(kind, "(?!)"), value):
        return f"write {value} without quotes"
    return ""


def origin(kind: Kind) -> Kind:
    """Tell what a generic type is made from: ``list`` for ``list[str]``, None for a plain class."""
    return get_origin(kind)


def is_choice(kind: Kind) -> bool:
    """Whether *kind* is an enum or a literal, of strings."""
    return origin(kind) is Literal or (isinstance(kind, type) and issubclass(kind, Enum))


def choices(kind: Kind) -> dict[str, object]:
    """Map what data may hold for an enum or literal to what it stands for."""
    if origin(kind) is Literal:
        return {choice: choice for choice in get_args(kind)}
    return {member.value: member for member in kind}
