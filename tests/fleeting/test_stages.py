"""The table of an instance's stages, and the page that draws it."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleeting import State
from fleeting.core import Instance, Origin, Stage
from fleeting.core._stages import (
    TRANSITIONS,
    Asleep,
    Boot,
    Held,
    IllegalMove,
    Phase,
    Preparing,
    Ready,
    Removing,
    Sleep,
    Unhealthy,
    Waiting,
    diagram,
)
from tests.strategies import EPOCH

PAGE = Path(__file__).parents[2] / "docs/explanation/architecture.md"
PHASES: dict[Stage, Phase] = {
    Stage.WAITING: Waiting(Boot()),
    Stage.PREPARING: Preparing(Boot()),
    Stage.READY: Ready(Boot()),
    Stage.UNHEALTHY: Unhealthy("no answer"),
    Stage.ASLEEP: Asleep(Sleep("not needed", EPOCH)),
    Stage.REMOVING: Removing("not needed"),
    Stage.HELD: Held("not needed"),
}


@given(st.sampled_from(Stage), st.sampled_from(Stage))
def test_a_move_that_the_table_does_not_have_is_refused_and_changes_nothing(before: Stage, after: Stage) -> None:
    """All others are made."""
    instance = Instance("i", Origin.REQUESTED, EPOCH, State.RUNNING, PHASES[before])
    if after in TRANSITIONS[before]:
        instance.move(PHASES[after])
        assert instance.stage is after
    else:
        with pytest.raises(IllegalMove, match=f"{after.value} may not follow {before.value}"):
            instance.move(PHASES[after])
        assert instance.stage is before


def test_every_stage_can_be_reached_and_left_for_good() -> None:
    """Whatever befalls an instance, it can be removed."""
    for stage in Stage:
        reached, left = {stage}, {Stage.WAITING}
        for _ in Stage:
            reached |= {after for each in reached for after in TRANSITIONS[each]}
            left |= {after for each in left for after in TRANSITIONS[each]}
        assert Stage.REMOVING in reached
        assert stage in left


def test_the_page_draws_the_table() -> None:
    """In a Mermaid diagram of its own."""
    expected = f"```mermaid\n{diagram()}\n```"
    assert expected in PAGE.read_text(), f"docs/explanation/architecture.md should have:\n{expected}"
