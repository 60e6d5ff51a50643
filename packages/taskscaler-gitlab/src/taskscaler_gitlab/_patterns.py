"""Patterns of what a job may be called, and whether one leaves anything to another. Pure.

``*`` is any number of characters but slashes, ``**`` any number of all, ``?`` one that is no slash. All else is itself.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Final, Literal, TypeAlias

LONGEST = 255
"""Characters of a pattern."""

MOST_STATES = 20_000
"""States that are looked at to see whether patterns cover one; beyond that, they are said not to."""

_STAR: Final = 0
_ANY: Final = 1
_ONE: Final = 2
Token: TypeAlias = str | Literal[0, 1, 2]

_TOKENS = re.compile(r"\*\*|\*|\?|[^*?]", re.DOTALL)
_SPECIAL: dict[str, Token] = {"*": _STAR, "**": _ANY, "?": _ONE}
_OTHER = "\0"
"""Stands for every character that no pattern names: names have no NUL."""


def tokens_of(pattern: str) -> tuple[Token, ...]:
    """What a pattern is made of."""
    return tuple(_SPECIAL.get(each, each) for each in _TOKENS.findall(pattern))


def is_plain(pattern: str) -> bool:
    """Whether a pattern stands for itself alone."""
    return "*" not in pattern and "?" not in pattern


def matcher(patterns: Iterable[str]) -> re.Pattern[str]:
    """Make what matches whatever one of the patterns does, as a whole."""
    written = {_STAR: "[^/]*", _ANY: ".*", _ONE: "[^/]"}
    each = ("".join(written[t] if isinstance(t, int) else re.escape(t) for t in tokens_of(p)) for p in patterns)
    return re.compile("|".join(f"(?:{one})" for one in each), re.DOTALL)


def covers(patterns: Sequence[str], other: str) -> bool:
    """Whether whatever *other* matches, one of the patterns matches, too; where that is hard to say, it is not said.

    All texts are tried at once: of characters, those that the patterns name, a slash, and one that stands for the rest.
    """
    broad, narrow = [tokens_of(each) for each in patterns], tokens_of(other)
    letters = {t for tokens in (*broad, narrow) for t in tokens if isinstance(t, str)} | {"/", _OTHER}
    begin = frozenset(_settled((number, 0), broad) for number in range(len(broad)))
    start = (_reach(0, narrow), frozenset(place for places in begin for place in places))
    seen, todo = {start}, [start]
    while todo:
        inside, outside = todo.pop()
        if len(narrow) in inside and not any(at == len(broad[number]) for number, at in outside):
            return False
        for letter in letters:
            after = frozenset(to for at in inside for to in _step(at, narrow, letter))
            if not after:
                continue
            left = frozenset((n, to) for n, at in outside for to in _step(at, broad[n], letter))
            if (state := (after, left)) not in seen:
                if len(seen) >= MOST_STATES:
                    return False
                seen.add(state)
                todo.append(state)
    return True


def _settled(place: tuple[int, int], broad: Sequence[tuple[Token, ...]]) -> frozenset[tuple[int, int]]:
    return frozenset((place[0], at) for at in _reach(place[1], broad[place[0]]))


def _reach(at: int, tokens: Sequence[Token]) -> frozenset[int]:
    """Where in a pattern one may be without another character."""
    places = {at}
    while at < len(tokens) and tokens[at] in (_STAR, _ANY):
        at += 1
        places.add(at)
    return frozenset(places)


def _step(at: int, tokens: Sequence[Token], letter: str) -> frozenset[int]:
    """Where in a pattern one may be after a character."""
    if at >= len(tokens):
        return frozenset()
    match tokens[at]:
        case 0 if letter != "/":
            return _reach(at, tokens)
        case 1:
            return _reach(at, tokens)
        case 2 if letter != "/":
            return _reach(at + 1, tokens)
        case str() as own if own == letter:
            return _reach(at + 1, tokens)
    return frozenset()
