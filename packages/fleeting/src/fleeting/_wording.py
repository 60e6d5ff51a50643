"""The wording of messages about configuration: what was found, what is allowed, what was probably meant."""

import re
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from os.path import commonprefix
from types import UnionType
from typing import Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin

import attrs

from fleeting._terminal import harmless

Kind: TypeAlias = Any
"""The type of a field: a class, or a form such as ``str | None`` that typing cannot name yet."""

Argv = Annotated[tuple[str, ...], "a program and its arguments"]
"""Run without a shell, each argument a string of its own; one string for all of them is an error that says how."""

_SHELL = re.compile(r"[|&;<>$`*?()]")
"""What only a shell understands."""

_SCALARS = {str: "a string", bool: "true or false", int: "an integer", float: "a number"}
_UNQUOTED = {int: "-?[0-9]+", float: r"-?[0-9]+(\.[0-9]+)?", bool: "true|false"}

_BARE_KEY = re.compile("[A-Za-z0-9_-]+")

_WORDS = re.compile("[ _-]")
"""Between the words of a name."""

_SHORT_WORD = 3
_LONG_WORD = 9
"""Letters from which on a word may have one slip of the hand, and two: `internal` is no slip for `external`."""

_MOST_SLIPS = 2
_LONGEST_NAME = 128

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
        case _ if attrs.has(type(value)):  # a table that was read already
            return "a table"
        case _:
            kind, text = f"a {type(value).__name__}", f"the {type(value).__name__} {value}"
    return kind if secret else text


def expectation(kind: Kind) -> str:
    """Say what a field of type *kind* accepts; an annotated type brings its own words."""
    if len(known := alternatives(kind)) > 1:
        return " or ".join(map(expectation, known))
    if type(None) in get_args(kind):
        kind = next(option for option in get_args(kind) if option is not type(None))
    if origin(kind) is Annotated:
        return str(kind.__metadata__[0])
    if kind in _SCALARS:
        return _SCALARS[kind]
    if is_choice(kind):
        known = [quoted(str(choice)) for choice in choices(kind)]
        return f"one of {', '.join(known)}" if len(known) > 1 else known[0]
    is_table = attrs.has(kind) or issubclass(origin(kind) or kind, Mapping)
    return "a table" if is_table else "an array"


def quoted(text: str) -> str:
    """Quote as TOML does, on one line, cut if it is long."""
    from json import dumps  # only errors need it

    return dumps(_cut(text), ensure_ascii=False).encode(errors="backslashreplace").decode()


def has_surrogates(text: str) -> bool:
    """Whether a text has halves of surrogate pairs in it, as JSON and names of files may: it has no bytes as UTF-8."""
    if text.isascii():
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def in_units(size: int) -> str:
    """Write a number of bytes for people."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1 << 10:
            return f"{size} {unit}"
        size >>= 10
    return f"{size} TiB"


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


def as_arguments(line: str) -> str:
    """Write a command line as an array of its arguments; for a shell, if only a shell can understand it."""
    from shlex import split  # only errors need it

    try:
        arguments = ["sh", "-c", line] if _SHELL.search(line) else split(line)
    except ValueError:  # a quote that is left open
        arguments = ["sh", "-c", line]
    return f"[{', '.join(map(quoted, arguments or ['']))}]"


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """Ask whether the nearest of *known* was meant; empty unless a slip of the hand makes one of the other.

    `idle_time` is no slip for `idle_count`, nor `list_timeout` for `reset_timeout`: each of the words that a name is
    made of has to be near. Else, who wrote the beginning of a name may have meant it. Nothing is asked if several
    names are as near.
    """
    names = list(known)
    distances = {name: distance for name in names if (distance := _slips(str(word), name)) is not None}
    nearest = [name for name, distance in distances.items() if distance == min(distances.values())]
    meant = nearest or [name for name in names if _is_part(str(word).lower(), name.lower())]
    is_clear = len(meant) == 1 and (nearest or meant[0].lower().startswith(str(word).lower()))
    return f"did you mean `{meant[0]}`?" if is_clear else ""


def _is_part(word: str, name: str) -> bool:
    return len(word) >= _SHORT_WORD and (name.startswith(word) or word in _WORDS.split(name))


def _slips(word: str, other: str) -> int | None:
    """Count the slips of the hand between two names: letters wrong, missing, too many or exchanged. None: unrelated."""
    words, others = (_words(name) for name in (word, other))
    if (joined := "".join(words)) == "".join(others):
        return 0
    if len(words) != len(others):
        words, others = [joined], ["".join(others)]
    total = 0
    for one, two in zip(words, others, strict=True):
        slips = _distance(_singular(one), _singular(two))
        if slips > (2 if len(one) >= _LONG_WORD else 1 if len(one) >= _SHORT_WORD else 0):
            return None
        total += slips
    return total if total <= _MOST_SLIPS else None


def _words(name: str) -> list[str]:
    """The words of a name, and its numbers without zeros before them."""
    words = _WORDS.split(name[:_LONGEST_NAME].lower())
    return [word.lstrip("0") or "0" if word.isdecimal() else word for word in words]


def _singular(word: str) -> str:
    return f"{word[:-3]}y" if word.endswith("ies") else word.removesuffix("s")


def _distance(one: str, two: str) -> int:
    """How many letters have to change, come, go, or change places with the next, between two words.

    More than `_MOST_SLIPS` are not counted exactly, so that long words take no long time.
    """
    far = _MOST_SLIPS + 1
    if abs(len(one) - len(two)) >= far:
        return far
    same = len(commonprefix((one, two)))  # noqa: RUF071  (of letters, which are what is counted)
    one, two = one[same:], two[same:]
    before: list[int] = []
    last = list(range(len(two) + 1))
    for row, letter in enumerate(one, 1):
        line = [row, *[far] * len(two)]
        for column in range(max(1, row - _MOST_SLIPS), min(len(two), row + _MOST_SLIPS) + 1):
            other = two[column - 1]
            line[column] = min(last[column] + 1, line[column - 1] + 1, last[column - 1] + (letter != other))
            if row > 1 and column > 1 and letter == two[column - 2] and one[row - 2] == other:
                line[column] = min(line[column], before[column - 2] + (letter != other))
        if min(line) >= far and min(last) >= far:
            return far
        before, last = last, line
    return last[-1]


def quoting_hint(value: object, kind: type) -> str:
    """Say how to write a scalar that has too few or too many quotes; empty if that is not what is wrong."""
    if kind is str and type(value) in (int, float):
        return f'write "{value}"'
    if isinstance(value, str) and re.fullmatch(_UNQUOTED.get(kind, "(?!)"), value):
        return f"write {value} without quotes"
    return ""


def origin(kind: Kind) -> Kind:
    """What a generic type is made from: ``list`` for ``list[str]``, None for a plain class."""
    return get_origin(kind)


def alternatives(kind: Kind) -> Sequence[Kind]:
    """Return the types that a union is made of, None left out; empty if it is none, or only optional."""
    if origin(kind) not in (Union, UnionType):
        return ()
    known = [each for each in get_args(kind) if each is not type(None)]
    return known if len(known) > 1 else ()


def is_choice(kind: Kind) -> bool:
    """Whether *kind* is an enum or a literal, of strings."""
    return origin(kind) is Literal or (isinstance(kind, type) and issubclass(kind, Enum))


def choices(kind: Kind) -> dict[str, object]:
    """Map what data may hold for an enum or literal to what it stands for."""
    if origin(kind) is Literal:
        return {choice: choice for choice in get_args(kind)}
    return {member.value: member for member in kind}
