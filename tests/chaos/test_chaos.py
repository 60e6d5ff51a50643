"""Many stories, each with its own cloud, jobs, troubles and deaths of the manager."""

import json
from collections.abc import Callable

import pytest

from tests.chaos.runner import how_to_see, play_seed
from tests.chaos.seeds import regressions
from tests.chaos.tally import STORY

SEEDS = range(100)
"""The suite's, beside those that failed once; ``.ci/run`` plays more of them."""


@pytest.mark.slow
@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("seed", [*SEEDS, *(seed for seed in regressions() if seed not in SEEDS)])
def test_no_story_breaks_a_promise(seed: int, record_property: Callable[[str, object], None]) -> None:
    """None breaks a promise; that together they meet every trouble and every transition is the tally's business.

    If one does, what is printed ends with the commands that show it.
    """
    result = play_seed(seed)
    record_property(STORY, json.dumps({"faults": result.faults, "met": result.met}))
    assert not result.violations, "\n".join([*result.violations, how_to_see(seed)])
