"""Breakpoints: at which moments of which steps a run waits for somebody, and what that somebody is shown."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from enum import Enum
from fnmatch import fnmatchcase
from typing import Final, TypeAlias

from attrs import field, frozen

from job_steps._definitions import Function
from job_steps._durations import parse_time
from job_steps._nearest import nearest
from job_steps._references import SCRIPT
from job_steps._results import StepResult

VARIABLE: Final = "JOB_STEPS_BREAKPOINTS"
"""The variable of a job that has breakpoints, with commas between them."""

TIMEOUT_VARIABLE: Final = "JOB_STEPS_BREAKPOINT_TIMEOUT"
"""The variable of a job that says how long it may be held, such as ``10m``."""

TIMEOUT: Final = 3600.0
"""Seconds that a run may be held at all its breakpoints together, unless somebody says otherwise."""

LONGEST_TIMEOUT: Final = 86400.0
"""Seconds that anybody can ask for."""

MOST: Final = 100
"""Breakpoints of one run."""

LONGEST: Final = 1000
"""Characters of one."""


class When(Enum):
    """A moment of a step that has a command."""

    BEFORE = "before"
    """Its command is about to run."""
    AFTER = "after"
    """It has succeeded, and its outputs are known."""
    FAILURE = "failure"
    """Its command has ended without success; what it has left is still there."""


class Decision(Enum):
    """What a run does next."""

    CONTINUE = "continue"
    """As if nothing had been; a step that has failed stays so."""
    ABORT = "abort"
    """It is cancelled."""


@frozen(kw_only=True)
class Moment:
    """What there is to see when a run waits."""

    path: tuple[str, ...]
    """The names that lead to the step."""
    when: When
    """Which moment it is."""
    result: StepResult
    """The step's, as far as it has come, with secrets masked."""
    work_dir: str
    """Where its command runs."""
    env: Mapping[str, str] = field(repr=False)
    """The whole environment of its command, with nothing masked: for shells, not for eyes."""


At: TypeAlias = Callable[[Moment], Awaitable[Decision]]
"""Asked at each moment of each step that has a command."""


@frozen
class Breakpoint:
    """Where to wait."""

    pattern: str
    """A step by its path, such as `build/lint`, or its name alone; `*` and `?` stand for other characters."""
    moments: frozenset[When]

    def matches(self, path: Sequence[str], when: When) -> bool:
        """Whether it is meant for this moment."""
        return when in self.moments and self.names(path)

    def names(self, path: Sequence[str]) -> bool:
        """Whether it is meant for this step."""
        return any(fnmatchcase(name, self.pattern) for name in _names(path))


def _names(path: Sequence[str]) -> tuple[str, str]:
    return "/".join(path), path[-1] if path else ""


def parse_breakpoint(text: str) -> Breakpoint:
    """Read a breakpoint: `STEP` (before it, and if it fails), or `STEP:before`, `STEP:after`, `STEP:failure`.

    Raises:
        ValueError: It is something else; the message says what was expected.
    """
    pattern, colon, moment = text.partition(":")
    known = {each.value: each for each in When}
    if not pattern or len(text) > LONGEST or (colon and moment not in known):
        *others, last = (f"STEP:{each}" for each in known)
        raise ValueError(f"`{text[:100]}`; expected STEP, {', '.join(others)} or {last}")
    return Breakpoint(pattern, frozenset({known[moment]} if colon else {When.BEFORE, When.FAILURE}))


def parse_breakpoints(texts: Iterable[str]) -> tuple[Breakpoint, ...]:
    """Read the breakpoints of a run, of which each may come several times.

    Raises:
        ValueError: One is none, or they are too many.
    """
    wanted = tuple(dict.fromkeys(texts))
    check_number(wanted)
    return tuple(parse_breakpoint(text) for text in wanted)


def check_number(points: Sequence[object]) -> None:
    """Raises ValueError if there are too many."""
    if len(points) > MOST:
        raise ValueError(f"{len(points)} breakpoints; at most {MOST} can be in one run")


def in_variable(text: str) -> tuple[str, ...]:
    """Divide the breakpoints that a variable has."""
    return tuple(each.strip() for each in text.split(",") if each.strip())


def of_variables(variables: Mapping[str, str]) -> "tuple[tuple[str, ...], float | None]":
    """Read the breakpoints that a job's variables have, and for how many seconds it may be held; None: they do not say.

    Raises:
        ValueError: The time is none.
    """
    texts = in_variable(variables.get(VARIABLE, ""))
    timeout = variables.get(TIMEOUT_VARIABLE, "").strip()
    return texts, seconds_of(timeout) if texts and timeout else None


def seconds_of(text: str) -> float:
    """Read how long a run may be held: a number of seconds, or one with s, m or h behind it.

    Raises:
        ValueError: It is something else, or longer than `LONGEST_TIMEOUT`.
    """
    seconds = parse_time(text)
    if not 0 < seconds <= LONGEST_TIMEOUT:
        raise ValueError(f"{text[:40]}; expected a time such as 30s, 10m or 2h, at most 24 hours")
    return seconds


def check_steps(points: Iterable[Breakpoint], function: Function) -> None:
    """See that each breakpoint can be met; steps of functions that are not loaded yet may have any name.

    Raises:
        ValueError: One names no step; the message has the nearest name.
    """
    steps = function.steps
    are_scripts = all(each.reference == SCRIPT for each in steps)
    known = [each.name for each in steps]
    for point in points:
        first, slash, _ = point.pattern.partition("/")
        is_open = not slash and not are_scripts  # it may be the name of a step that is further down
        if not is_open and function.exec is None and not any(fnmatchcase(name, first) for name in known):
            raise ValueError(unknown_step(first, known))


def unknown_step(pattern: str, known: Sequence[str]) -> str:
    """Say that no step has a name, and which one somebody may have meant."""
    near = nearest(pattern, known)
    shown = ", ".join(f"`{each}`" for each in known[:10]) + (" and others" if known[10:] else "")
    return f"there is no step `{pattern[:100]}`; " + (f"did you mean `{near}`?" if near else f"the steps are {shown}")


def unmet(points: Iterable[Breakpoint], paths: Sequence[Sequence[str]]) -> list[str]:
    """Say which breakpoints named no step of a run that is over.

    Args:
        points: The breakpoints.
        paths: The names that lead to each step that was met, and to those of the list; none for a command that has no
            step around it.
    """
    known = list(dict.fromkeys(name for path in paths for name in _names(path) if name))
    missed = [point.pattern for point in points if paths and not any(point.names(path) for path in paths)]
    return [unknown_step(each, known) if known else _no_steps(each) for each in missed]


def _no_steps(pattern: str) -> str:
    return f"there is no step `{pattern[:100]}`; the function is one command, and `*` stops at that"
