"""Breakpoints: at which moments of which steps a run waits for somebody, and what that somebody is shown."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import Enum
from fnmatch import fnmatchcase
from typing import TypeAlias

from attrs import field, frozen

from job_steps._results import StepResult


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
        names = ("/".join(path), path[-1] if path else "")
        return when in self.moments and any(fnmatchcase(name, self.pattern) for name in names)


def parse_breakpoint(text: str) -> Breakpoint:
    """Read a breakpoint: `STEP` (before it, and if it fails), or `STEP:before`, `STEP:after`, `STEP:failure`.

    Raises:
        ValueError: It is something else; the message says what was expected.
    """
    pattern, colon, moment = text.partition(":")
    known = {each.value: each for each in When}
    if not pattern or (colon and moment not in known):
        raise ValueError(f"{text}; expected STEP, or STEP with {', '.join(f'`:{each}`' for each in known)} behind it")
    return Breakpoint(pattern, frozenset({known[moment]} if colon else {When.BEFORE, When.FAILURE}))
