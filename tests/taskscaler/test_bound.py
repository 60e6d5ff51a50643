"""The clairvoyant fleet: against all fleets that could have been, where these are few."""

from collections.abc import Sequence
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskscaler.simulation import Jobs
from taskscaler.simulation._bound import Bound, always_max, clairvoyant

SOME_JOBS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12)), min_size=1, max_size=7)


def cheapest(jobs: Sequence[tuple[int, int]], boot: int) -> float:
    """Try all ways in which jobs can take over instances from one another; a boot is paid for where they do not."""
    jobs = sorted(jobs)

    @cache
    def rest(number: int, ends: tuple[int, ...]) -> float:
        """What those from that number on cost, if instances are idle or busy that end then."""
        if number == len(jobs):
            return 0
        submit, duration = jobs[number]
        best = boot + duration + rest(number + 1, tuple(sorted((*ends, submit + duration))))
        for place, end in enumerate(ends):
            if end <= submit:
                others = (*ends[:place], *ends[place + 1 :], submit + duration)
                best = min(best, submit - end + duration + rest(number + 1, tuple(sorted(others))))
        return best

    return rest(0, ())


@settings(max_examples=300, deadline=None)
@given(SOME_JOBS, st.integers(0, 10))
def test_no_fleet_that_lets_no_job_wait_is_cheaper(jobs: list[tuple[int, int]], boot: int) -> None:
    """Of all fleets that let no job wait, the clairvoyant's is the cheapest, and could have been."""
    found = clairvoyant(Jobs.of(jobs), boot=boot)
    assert found.instance_hours * 3600 == pytest.approx(cheapest(jobs, boot))


@given(SOME_JOBS, st.integers(0, 10), st.integers(1, 4), st.integers(0, 3))
def test_it_stands_in_order(jobs: list[tuple[int, int]], boot: int, capacity: int, uses: int) -> None:
    """At least the work, at most a boot for each job; a fleet of the peak's size all the time costs no less."""
    some = Jobs.of(jobs)
    found = clairvoyant(some, boot=boot, capacity=capacity)
    limited = clairvoyant(some, boot=boot, capacity=capacity, max_use_count=uses)
    largest = always_max(some, boot=boot, capacity=capacity)
    most = some.work + len(some) * boot
    assert some.work / capacity <= found.instance_hours * 3600 + 1e-6 <= most + 2e-6
    assert found.instance_hours <= limited.instance_hours <= most / 3600 + 1e-9
    assert found.instance_hours <= largest.instance_hours + 1e-9
    assert found.peak == largest.peak
    if capacity == uses == 1:
        assert limited.instance_hours * 3600 == pytest.approx(most)


def test_an_instance_is_kept_over_gaps_that_are_shorter_than_a_boot() -> None:
    """At a boot of 60 s a gap of 50 s is kept and one of 65 s is not; a job that overlaps another has its own."""
    jobs = Jobs.of([(0.0, 10.0), (60.0, 10.0), (65.0, 10.0), (140.0, 10.0), (1000.0, 10.0)])
    seconds = 5 * 10 + 50 + 4 * 60
    assert clairvoyant(jobs, boot=60.0) == Bound(instance_hours=seconds / 3600, bought=4, peak=2)


def test_no_jobs() -> None:
    """They cost nothing."""
    nothing = Bound(instance_hours=0.0, bought=0, peak=0)
    assert clairvoyant(Jobs.of([]), boot=60.0) == always_max(Jobs.of([]), boot=60.0) == nothing
