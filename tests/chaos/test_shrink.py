"""A story that fails is shrunk to what it takes."""

from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.chaos.play import Result, play
from tests.chaos.runner import story_of_seed
from tests.chaos.shrink import TRIES, ddmin, promise_of, shrink
from tests.chaos.story import Story

NUMBERS = st.lists(st.integers(0, 40), unique=True, max_size=40)


@given(NUMBERS, st.data())
def test_what_it_takes_is_found(items: list[int], data: st.DataObject) -> None:
    """Where some items together fail whatever else is there, exactly those are left, in their order."""
    needed = data.draw(st.lists(st.sampled_from(items), unique=True)) if items else []
    asked: list[Sequence[int]] = []

    def fails(some: Sequence[int]) -> bool:
        asked.append(some)
        return set(needed) <= set(some)

    assert ddmin(items, fails) == [item for item in items if item in needed]
    assert len(asked) <= (len(items) + 2) ** 2


@given(NUMBERS, st.randoms(use_true_random=False))
def test_what_is_left_fails_and_is_minimal(items: list[int], random: Random) -> None:
    """Whatever fails: what is left does, and does not without any one of its items."""
    verdicts: dict[tuple[int, ...], bool] = {tuple(items): True}

    def fails(some: Sequence[int]) -> bool:
        return verdicts.setdefault(tuple(some), random.random() < 0.3)

    left = ddmin(items, fails)
    assert fails(left)
    assert not any(fails([item for item in left if item != without]) for without in left)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("at 149.96: increase(2) by process 1 makes 6, above 4", "at 3.00: increase(1) by process 12 makes 9, above 8"),
        ("at 9.00: ['job-1', 'job-7'] never ended\nnothing waits", "at 1.00: ['job-2'] never ended\n3 wait"),
        ("at 1.00: exist: ['i-1'], known: []", "at 1.00: exist: ['second-i-3', 'i-4'], known: ['i-4']"),
        ("at 1.00: job-1 starts on i-1 slot 0, in use", "at 2.00: job-2 starts on third-i-4 slot 1, in use"),
        (
            "Traceback (most recent call last):\n  File 'a.py', line 3\nKeyError: 'i-3'",
            "Traceback (most recent call last):\n  File 'a.py', line 9\nKeyError: 'i-12'",
        ),
    ],
)
def test_a_promise_is_known_by_its_words(one: str, other: str) -> None:
    """It is the same one, whichever instance or job broke it, and when."""
    assert promise_of(one) == promise_of(other) != ""


def test_promises_are_told_apart() -> None:
    """Else shrinking would end at another defect."""
    said = [
        "at 1.00: job-1 starts on i-1 slot 0, which is in use",
        "at 1.00: job-1 starts on i-1 slot 0, whose deletion was asked for",
        "at 1.00: i-1 is deleted",
        "Traceback (most recent call last):\nKeyError: 'i-3'",
    ]
    assert len({promise_of(each) for each in said}) == len(said)


@pytest.mark.slow
@pytest.mark.usefixtures("quiet")
def test_a_planted_fault_is_shrunk_to_its_trouble() -> None:
    """Where one kind of trouble breaks a promise, one of that kind is left of a story that has 40 troubles."""
    story = story_of_seed(131)
    kind = "crash at rest"  # which needs nothing else to be met, whatever the cores of the day make of the story

    def play_with_fault(story: Story) -> Result:
        result = play(story)
        if result.faults[kind]:
            result.violations.append(f"at {1 / len(story.troubles):.2f}: job-{len(story.jobs)} is lost")
        return result

    assert not shrink(story, play)
    shrunk = shrink(story, play_with_fault)
    assert shrunk
    assert shrunk.tries < TRIES
    assert shrunk.promise == promise_of("at 1.00: job-1 is lost")
    assert [trouble.kind for trouble in shrunk.story.troubles] == [kind]
    assert len(shrunk.story.jobs) <= 1
