"""Patterns of what a job may be called, and whether one leaves anything to another. Pure.

``*`` is any number of characters but slashes, ``**`` any number of all, ``?`` one that is no slash. All else is itself.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Literal, TypeAlias

LONGEST = 255
"""Characters of a pattern."""

LONGEST_TEXT = 4096
"""Characters of a text; one that is longer is matched by ``**`` alone."""

MOST_TRIES = 1_000_000
"""Ways to match a text that an expression may have to try, at the worst."""

MOST_STATES = 20_000
"""States that are looked at to see whether patterns cover one; beyond that, they are said not to."""

_STAR: Final = 0
_ANY: Final = 1
_ONE: Final = 2
Token: TypeAlias = str | Literal[0, 1, 2]

_TOKENS = re.compile(r"\*\*+|\*|\?|[^*?]", re.DOTALL)
_SPECIAL: dict[str, Token] = {"*": _STAR, "**": _ANY, "?": _ONE}
_OTHER = "\0"
"""Stands for every character that no pattern names: names have no NUL."""


def tokens_of(pattern: str) -> tuple[Token, ...]:
    """What a pattern is made of; two stars or more are ``**``."""
    return tuple(_SPECIAL.get(each[:2], each) for each in _TOKENS.findall(pattern))


def is_plain(pattern: str) -> bool:
    """Whether a pattern stands for itself alone."""
    return "*" not in pattern and "?" not in pattern


def matcher(patterns: Iterable[str]) -> Callable[[str], bool]:
    """Make what says whether one of the patterns matches the whole of a text.

    Texts come from whoever may start a pipeline: what would have an expression try too much is walked through instead,
    in as many steps as the text has characters.
    """
    every = [tokens_of(each) for each in patterns]
    written = {_STAR: "[^/]*", _ANY: ".*", _ONE: "[^/]"}
    each = ("".join(written[t] if isinstance(t, int) else re.escape(t) for t in tokens) for tokens in every)
    expression = re.compile("|".join(f"(?:{one})" for one in each), re.DOTALL).fullmatch
    wild = max((sum(t in (_STAR, _ANY) for t in tokens) for tokens in every), default=0)
    takes_all = (_ANY,) in every
    walkers = [walker(tokens) for tokens in every]

    def matches(text: str) -> bool:
        if len(text) > LONGEST_TEXT:
            return takes_all
        if len(text) ** wild <= MOST_TRIES:
            return expression(text) is not None
        return any(walks(text) for walks in walkers)

    return matches


def walker(tokens: Sequence[Token]) -> Callable[[str], bool]:
    """Make what says whether a pattern matches the whole of a text, in O(characters): places are bits of a number."""
    after: Counter[Token] = Counter()
    for at, token in enumerate(tokens):
        after[token] += 1 << at
    everything, stars, one, end = after[_ANY], after[_ANY] | after[_STAR], after[_ONE], 1 << len(tokens)

    def walks(text: str) -> bool:
        places = 1 | (1 & stars) << 1
        for letter in text:
            if letter == "/":
                places = (places & everything) | (places & after[letter]) << 1
            else:
                places = (places & stars) | (places & (after[letter] | one)) << 1
            if not places:
                return False
            places |= (places & stars) << 1  # a star may be nothing, and no two stand next to each other
        return bool(places & end)

    return walks


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
