"""Keys of jobs, said in words where people read them. Pure."""

import re
from collections.abc import Mapping
from typing import Any

from taskscaler.batch._share import RUN, SUBMITTED

_PROSE = frozenset({"answer", "details", "sentence", "why"})
"""What explanations call their sentences; all else is for programs, and keeps its keys."""

_KEY = re.compile(rf"\b({SUBMITTED}|{RUN})([0-9A-Za-z-]+):([A-Za-z0-9][A-Za-z0-9._-]*)")

_WORDS = {SUBMITTED: "batch", RUN: "run"}


def spoken(text: str) -> str:
    """Say which job of which batch is meant wherever a text has a key of one."""
    return _KEY.sub(lambda found: f"job {found[3]} of {_WORDS[found[1]]} {found[2]}", text)


def spoken_in(data: Mapping[str, Any]) -> dict[str, Any]:
    """Say so in all sentences of an answer."""
    return {name: _spoken_below(each, prose=name in _PROSE) for name, each in data.items()}


def _spoken_below(value: Any, *, prose: bool) -> Any:  # noqa: ANN401  (what JSON has)
    match value:
        case str():
            return spoken(value) if prose else value
        case Mapping():
            return spoken_in(value)
        case list() | tuple():
            return [_spoken_below(each, prose=prose) for each in value]
    return value
