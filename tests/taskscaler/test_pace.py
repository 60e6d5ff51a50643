"""How much longer a batch takes: what is estimated, and from what."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskscaler.batch import Begun, Ended, Job, JobState, Started
from taskscaler.batch._pace import Estimate, Pace
from taskscaler.batch._state import BatchState
from taskscaler.executors import JobSpec

ENDS = [JobState.SUCCEEDED, JobState.FAILED, JobState.TIMED_OUT]


def batch(jobs: int, over: list[float], begun: list[float], now: float) -> BatchState:
    """Make a batch of which some jobs took so many seconds, and others run since so many seconds before *now*."""
    made = [Job(spec=JobSpec(name=f"j{number}", script="true")) for number in range(jobs)]
    state = BatchState(Begun.of(made, at=0.0))
    names = (job.name for job in made)
    for number, seconds in enumerate(over):
        name = next(names)
        state.apply(Started(at=0.0, job=name, pool="", instance="i", slot=0))
        state.apply(Ended(at=seconds, job=name, state=ENDS[number % 3]))
    for seconds in begun:
        state.apply(Started(at=now - seconds, job=next(names), pool="", instance="i", slot=0))
    return state


def test_what_is_left_is_divided_among_those_that_run() -> None:
    """Six jobs of 10 s wait and two have run for 4 s: 72 s of work, two at a time."""
    state = batch(11, [5.0, 10.0, 15.0], [4.0, 4.0], now=100.0)
    estimate = Pace.of(state).estimate(state, 100.0)
    assert estimate == Estimate(left=36.0, measured=3, mean=10.0, width=2)
    assert str(estimate) == "about 36s (3 jobs took 10s on average, 2 at a time)"


def test_nothing_is_said_without_anything_to_go_by() -> None:
    """No job is over, or none runs."""
    first = batch(3, [], [4.0], now=100.0)
    still = batch(3, [5.0], [], now=100.0)
    assert Pace.of(first).estimate(first, 100.0) is None
    assert Pace.of(still).estimate(still, 100.0) is None


def test_a_try_whose_instance_was_lost_tells_nothing() -> None:
    """It might have taken much longer."""
    state = batch(2, [], [4.0], now=100.0)
    state.apply(Ended(at=100.0, job="j0", state=JobState.LOST, why="the instance was lost"))
    state.apply(Started(at=101.0, job="j0", pool="", instance="i", slot=0))
    assert Pace.of(state).estimate(state, 102.0) is None


SECONDS = st.integers(0, 1_000_000).map(float)


@given(st.lists(SECONDS, min_size=1, max_size=5), st.lists(SECONDS, min_size=1, max_size=5), st.integers(0, 9))
def test_an_estimate_is_no_less_than_any_running_job_needs_and_no_more_than_one_after_the_other(
    over: list[float], begun: list[float], waiting: int
) -> None:
    """Whatever the jobs did before."""
    state = batch(len(over) + len(begun) + waiting, over, begun, now=2e6)
    estimate = Pace.of(state).estimate(state, 2e6)
    assert estimate is not None
    mean = sum(over) / len(over)
    rest = [max(0.0, mean - seconds) for seconds in begun]
    assert estimate.left >= max(rest) or estimate.left == pytest.approx(max(rest))
    most = sum(rest) + mean * waiting
    assert estimate.left <= most or estimate.left == pytest.approx(most)
