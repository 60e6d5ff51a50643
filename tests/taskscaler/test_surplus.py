"""Since when there has been how much to spare: the staircase, against all that was; and fleets that do not flap."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskscaler import Policy
from taskscaler.config import PoolTable
from taskscaler.core._surplus import Surplus
from taskscaler.simulation import Fleet, Jobs, simulate

BEGINS = 1_700_000_000.0


@given(st.lists(st.tuples(st.sampled_from(["note", "note", "give up"]), st.integers(-2, 8)), max_size=40))
def test_the_staircase_says_what_the_whole_history_does(moves: list[tuple[str, int]]) -> None:
    """Since when at least so many were to spare; what is given up is as if it had never been there."""
    surplus, history = Surplus(), [0]
    for now, (what, number) in enumerate(moves, 1):
        if what == "note":
            history.append(number)
            surplus.note(number, now)
        else:
            given_up = max(0, min(number, history[-1]))
            history = [slots - given_up for slots in [*history, history[-1]]]
            surplus.give_up(given_up)
        for slots in range(1, max(0, history[-1]) + 1):
            since = next(at for at in range(now + 1) if min(history[at:]) >= slots)
            assert surplus.since(slots, now) == since
        assert surplus.since(max(0, history[-1]) + 1, now) == now
        assert len(surplus._heights) == len(surplus._since) <= max(0, history[-1])


def test_a_kept_buffer_is_not_churned_by_one_job_at_a_time() -> None:
    """A job of 30 s every 5 minutes, 200 times, leaves 5 idle slots and the instance that it takes as they are."""
    fleet = Fleet(pools=(PoolTable(plugin="any"),), policies=(Policy(idle_count=5, idle_time=1200.0),))
    outcome = simulate(fleet, Jobs.of((BEGINS + 300.0 * each, 30.0) for each in range(200)))
    assert outcome.bought == 6
    assert "remove: not needed" not in outcome.reasons


@pytest.mark.parametrize("peaks", [(3, 3), (3, 1, 3)])
def test_what_each_peak_needs_stays_until_the_next(peaks: tuple[int, ...]) -> None:
    """Peaks that come more often than `idle_time` buy the fleet once, whatever is between them."""
    fleet = Fleet(pools=(PoolTable(plugin="any"),), policies=(Policy(idle_count=1, idle_time=1000.0),))
    jobs = Jobs.of((BEGINS + 400.0 * peak, 100.0) for peak in range(40) for _ in range(peaks[peak % len(peaks)]))
    outcome = simulate(fleet, jobs)
    assert outcome.bought == 4


def test_what_no_peak_has_needed_for_the_idle_time_goes() -> None:
    """One that was needed once goes as soon as that is longer ago; the others stay."""
    fleet = Fleet(pools=(PoolTable(plugin="any"),), policies=(Policy(idle_count=1, idle_time=1000.0),))
    jobs = Jobs.of((BEGINS + 400.0 * peak, 100.0) for peak in range(40) for _ in range(1 if peak else 5))
    outcome = simulate(fleet, jobs)
    assert outcome.bought == 6
    assert outcome.reasons["remove: not needed"].instances == 4
