"""Shrinks a story that fails to what it takes: the fewest troubles, then the fewest jobs, that break the same promise.

What is left is minimal in the sense of delta debugging (Zeller and Hildebrandt, "Simplifying and Isolating
Failure-Inducing Input", 2002): without any one of the troubles the story passes, or breaks another promise.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import TypeVar

from attrs import evolve, frozen

from tests.chaos.play import Result
from tests.chaos.story import Story

TRIES = 400
"""Stories that are played to shrink one, at half a second each."""

NAMES = re.compile(r"<[^>]*>|[\w./-]*\d[\w./-]*")
"""What differs between two stories that break the same promise: numbers, and whatever has one in its name."""

LISTS = re.compile(r"\[[^\]]*\]|\{[^}]*\}")

T = TypeVar("T")

Play = Callable[[Story], Result]


@frozen(kw_only=True)
class Shrunk:
    """What is left of a story."""

    story: Story
    promise: str
    """Which one it breaks, as `promise_of` has it."""

    tries: int
    """How many stories were played for it; if that is ``TRIES``, there may be something left to take away."""


def promise_of(violation: str) -> str:
    """Which promise was broken, whoever it was that broke it, and when.

    Of an exception it is the last line that says so, of anything else the first.
    """
    lines = [line for line in violation.splitlines() if line.strip()]
    line = lines[-1 if "Traceback" in violation else 0] if lines else ""
    return NAMES.sub("#", LISTS.sub("[]", line.strip(" |").partition(": ")[2] if line.startswith("at ") else line))


def ddmin(items: Sequence[T], fails: Callable[[Sequence[T]], bool]) -> list[T]:
    """Leave out what is not needed to fail, in ever smaller parts, until no single one can be left out.

    Args:
        items: What fails as a whole.
        fails: Whether so much of it does, in the same order; asked O(n²) times at the most, mostly far less often.
    """
    left, parts = list(items), 1
    while left:
        rest = next((rest for rest in _without_parts(left, parts) if fails(rest)), None)
        if rest is not None:
            left, parts = rest, max(parts - 1, min(2, len(rest)))
        elif parts == len(left):
            break
        else:
            parts = min(2 * parts, len(left))
    return left


def _without_parts(items: list[T], parts: int) -> Iterator[list[T]]:
    """The items without the first of so many parts of about the same size, without the second, and so on."""
    bounds = [len(items) * number // parts for number in range(parts + 1)]
    for begin, end in pairwise(bounds):
        yield items[:begin] + items[end:]


def shrink(story: Story, play: Play, most: int = TRIES) -> Shrunk | None:
    """Shrink a story that breaks a promise when it is played; None if it breaks none.

    Args:
        story: Which, with all its troubles.
        play: Plays a story to its end, or within bounds of its own.
        most: Stories to play at the most.
    """
    tries = 1
    violations = play(story).violations
    if not violations:
        return None
    promise = promise_of(violations[0])

    def breaks_it(smaller: Story) -> bool:
        nonlocal tries
        if tries >= most:
            return False
        tries += 1
        return any(promise_of(each) == promise for each in play(smaller).violations[:1])

    bare = evolve(story, least_faults=0)  # else others take the place of what is left out
    story = bare if breaks_it(bare) else story
    troubles = ddmin(story.troubles, lambda some: breaks_it(evolve(story, troubles=tuple(some))))
    story = evolve(story, troubles=tuple(troubles))
    jobs = ddmin(story.jobs, lambda some: bool(some) and breaks_it(evolve(story, jobs=tuple(some))))
    return Shrunk(story=evolve(story, jobs=tuple(jobs)), promise=promise, tries=tries)
