"""Which removals of idle instances count as undone: against the slow and obvious count, and in a simulation."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleeting import ScaleThrottle
from taskscaler import Policy
from taskscaler.config import PoolTable
from taskscaler.simulation import Constant, Environment, Fleet, Jobs, PoolEnvironment, simulate
from taskscaler.simulation._churn import SOON, Churn

EPOCH = 1_700_000_000.0


@given(st.lists(st.tuples(st.integers(0, 50), st.booleans(), st.integers(1, 3), st.sampled_from("ab")), max_size=30))
def test_each_request_undoes_one_removal_of_its_pool_in_the_minute_before(
    happened: list[tuple[int, bool, int, str]],
) -> None:
    """The oldest that counts; none is undone twice, nor by what another pool asks for."""
    churn = Churn()
    now, removed, undone = 0.0, list[tuple[str, float]](), 0
    for passed, asks, instances, pool in happened:
        now += passed
        (churn.ask if asks else churn.give_up)(pool, instances, now)
        for _ in range(instances):
            found = next((each for each in removed if each[0] == pool and each[1] >= now - SOON), None)
            if not asks:
                removed.append((pool, now))
            elif found is not None:
                removed.remove(found)
                undone += 1
    assert churn.undone == undone
    assert churn.removed == undone + len(removed)


@pytest.mark.parametrize(("pause", "undone"), [(29.0, 3), (200.0, 0)])
def test_a_simulation_says_how_many_removals_were_undone(pause: float, undone: int) -> None:
    """Jobs that come again soon after their instance has gone, or not."""
    pool = PoolTable(name="a", plugin="local", scale_throttle=ScaleThrottle(limit=-1))
    fleet = Fleet(pools=(pool,), policies=(Policy(idle_time=20.0),))
    cloud = Environment(default=PoolEnvironment(boot=Constant(10.0)))
    jobs = Jobs.of([(EPOCH + number * (60.0 + pause), 10.0) for number in range(4)])
    outcome = simulate(fleet, jobs, environment=cloud)
    assert (outcome.idle_removed, outcome.undone) == (3, undone)
    assert outcome.undone_share == undone / 3
    never = simulate(fleet, Jobs.of([(EPOCH, 10.0)]), environment=cloud)
    assert (never.idle_removed, never.undone_share) == (0, None)
