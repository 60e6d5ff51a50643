"""What a container's state means for an instance."""

import pytest

from fleeting import State
from fleeting_docker._container import START_WITHIN, state_of


@pytest.mark.parametrize(
    ("told", "age", "state"),
    [
        ("created", 1.0, State.CREATING),
        ("created", START_WITHIN + 1, State.FAILED),
        ("running", 1.0, State.RUNNING),
        ("restarting", 1.0, State.RUNNING),
        ("paused", 1.0, State.SUSPENDED),
        ("removing", 1.0, State.DELETING),
        ("exited", 1.0, State.FAILED),
        ("dead", 1.0, State.FAILED),
        ("something new", 1.0, State.FAILED),
    ],
)
def test_every_state_of_a_container_means_one_of_an_instance(told: str, age: float, state: State) -> None:
    """One that was made and never started is not waited for for ever."""
    assert state_of(told, age) is state
