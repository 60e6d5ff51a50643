"""Which jobs of a batch are meant: by name, by place, or by a pattern. Pure."""

import re
from collections.abc import Iterable, Sequence
from fnmatch import translate
from itertools import islice

from fleeting.config import did_you_mean
from fleeting.errors import WrongArguments
from taskscaler._wording import counted, enumerated

_WILD = frozenset("*?[")

_COMPARED = 10_000
"""Names among which the nearest is looked for."""


def select(names: Sequence[str], wanted: Iterable[str]) -> list[str]:
    """Find the jobs that are meant, each once, in the order of the batch.

    Args:
        names: Those of all jobs, in the order of the batch.
        wanted: A name, ``#N`` for the job at the Nth place, from 1, or a pattern with ``*``, ``?`` and ``[…]``, which
            may match several.

    Raises:
        WrongArguments: One of them matches no job; names the nearest.
    """
    chosen = [number for each in wanted for number in _matching(names, each)]
    return [names[number] for number in sorted(set(chosen))]


def select_one(names: Sequence[str], wanted: str) -> str:
    """Find the one job that is meant.

    Raises:
        WrongArguments: None is, or several are.
    """
    found = select(names, [wanted])
    if len(found) > 1:
        raise WrongArguments(f"{wanted!r} matches {counted(len(found), 'job')}: {enumerated(found)}; name one of them")
    return found[0]


def is_name(wanted: str) -> bool:
    """Whether what is wanted is a name, and neither a place nor a pattern."""
    return not wanted.startswith("#") and _WILD.isdisjoint(wanted)


def _matching(names: Sequence[str], wanted: str) -> Sequence[int]:
    if wanted.startswith("#"):
        return [_place(names, wanted)]
    if is_name(wanted):
        found = [number for number, name in enumerate(names) if name == wanted]
    else:
        match = re.compile(translate(wanted)).match
        found = [number for number, name in enumerate(names) if match(name)]
    if not found:
        nearest = did_you_mean(wanted, islice(names, _COMPARED)) or f"the first job is `{names[0]}`"
        raise WrongArguments(f"{wanted!r} matches no job; {nearest}")
    return found


def _place(names: Sequence[str], wanted: str) -> int:
    number = wanted.removeprefix("#")
    if not (number.isascii() and number.isdigit() and 1 <= int(number) <= len(names)):
        raise WrongArguments(f"{wanted!r} is the place of no job; the batch has #1 to #{len(names)}")
    return int(number) - 1
