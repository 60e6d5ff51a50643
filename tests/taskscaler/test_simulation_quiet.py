"""Views in which nothing can change are skipped by the simulator, and the outcome is the same without that."""

from math import inf

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from taskscaler import Policy
from taskscaler.simulation import (
    Constant,
    Environment,
    Exponential,
    Fleet,
    Jobs,
    PoolEnvironment,
    Preemptions,
    SimulationStuck,
    StockOuts,
    Uniform,
)
from taskscaler.simulation._distributions import InOrder
from taskscaler.simulation._engine import Simulation
from tests.taskscaler.test_simulation import BEGINS, POOL

HOUR = 3600.0
DAY = 24 * HOUR
YEAR = 365 * DAY

POOLS = st.builds(
    evolve,
    st.just(POOL),
    capacity_per_instance=st.integers(1, 2),
    max_instances=st.integers(0, 3),
    max_use_count=st.integers(0, 2),
    max_instance_age=st.sampled_from([0.0, 5000.0, 0.7 * DAY]),
    update_interval=st.sampled_from([60.0, 60.0, 17.3, 1000.1]),
    heartbeat_interval=st.sampled_from([60.0, 7.0]),
    heartbeat_on_acquire=st.booleans(),
    suspended_count=st.sampled_from([0, 0, 1]),
    instance_cleanup_command=st.sampled_from([None, "true"]),
)

POLICIES = st.builds(
    Policy,
    periods=st.sampled_from(
        [("* * * * *",), ("* 8-17 * * mon-fri",), ("30-44 */5 * * *", "0 2 * * *"), ("1 1 1 1 *",)]
    ),
    timezone=st.sampled_from(["", "Europe/Berlin", "Asia/Kathmandu"]),
    idle_count=st.integers(0, 3),
    idle_time=st.sampled_from([1.0, 60.0, 1800.0, 0.3 * DAY]),
    scale_factor=st.sampled_from([0.0, 0.0, 1.5]),
    preemptive_mode=st.sampled_from([None, True]),
    mode=st.sampled_from(["static", "static", "adaptive"]),
)

TIMES = st.sampled_from([Constant(0.0), Constant(31.0), Uniform(0.0, 20.0), Exponential(40.0)])

CLOUDS = st.builds(
    PoolEnvironment,
    boot=TIMES,
    ready=TIMES,
    delete=TIMES,
    answer=st.sampled_from([Constant(0.0), Constant(0.31), Uniform(0.0, 3.0), InOrder((5.0, 1.0), Exponential(9.0))]),
    boot_failure=st.sampled_from([0.0, 0.2]),
    ready_failure=st.sampled_from([0.0, 0.2]),
    stock_outs=st.sampled_from([None, None, StockOuts(every=Exponential(0.2 * DAY), lasts=Exponential(HOUR))]),
    preemptions=st.none()
    | st.builds(
        Preemptions, after=st.sampled_from([Exponential(9000.0), Exponential(DAY)]), notice=st.sampled_from([0.0, 99.0])
    ),
)

BURSTS = st.lists(
    st.tuples(
        st.floats(0.0, 1.5 * DAY) | st.sampled_from([0.0, HOUR, DAY]),
        st.integers(1, 4),
        st.sampled_from([0.0, 30.0, 500.0, 4 * HOUR]),
    ),
    min_size=1,
    max_size=4,
)


def outcome(simulation: Simulation) -> str:
    """All of it, or why there is none."""
    try:
        return repr(simulation.run())
    except SimulationStuck as stuck:
        return repr(stuck)


class Played(Simulation):
    """Skips nothing."""

    def _skip_views(self, until: float) -> None:
        pass


FLEETS = st.builds(
    Fleet,
    pools=st.lists(POOLS, min_size=1, max_size=2).map(
        lambda pools: tuple(evolve(pool, name=f"p{number}") for number, pool in enumerate(pools))
    ),
    policies=st.lists(POLICIES, max_size=3).map(tuple),
    max_instances=st.sampled_from([0, 0, 2]),
    acquire_timeout=st.sampled_from([inf, 600.0]),
)

ENVIRONMENTS = st.builds(Environment, pools=st.fixed_dictionaries({"p0": CLOUDS}), default=CLOUDS)


@settings(max_examples=40, deadline=None)
@given(bursts=BURSTS, fleet=FLEETS, environment=ENVIRONMENTS, seed=st.integers(0, 100), drain=st.booleans())
def test_skipped_views_change_nothing(
    *, bursts: list[tuple[float, int, float]], fleet: Fleet, environment: Environment, seed: int, drain: bool
) -> None:
    """Waits, costs, calls, decisions, their reasons and the series are equal, to the last digit."""
    jobs = Jobs.of((BEGINS + at + each / 7, lasts) for at, number, lasts in bursts for each in range(number))
    skipping, played = (
        outcome(kind(fleet, jobs, environment, seed, None, drain=drain)) for kind in (Simulation, Played)
    )
    assert skipping == played


@pytest.mark.parametrize("idle_count", [0, 3])
def test_a_quiet_year_takes_few_views(idle_count: int) -> None:
    """Also where instances idle all the time. Each step of the series ends with a view that is not skipped."""
    fleet = Fleet(pools=(POOL,), policies=(Policy(idle_count=idle_count, idle_time=60.0),))
    jobs = Jobs.of([(BEGINS + at + second, 30.0) for at in (0.0, YEAR) for second in range(4)])
    simulation = Simulation(fleet, jobs, Environment(), 0, None, drain=True)
    outcome = simulation.run()
    (pool,) = outcome.pools
    (plan,) = simulation.core.plans.values()
    assert pool.calls > YEAR / POOL.update_interval
    assert plan.handled < 5000
    assert outcome.instance_hours == pytest.approx(idle_count * YEAR / HOUR, abs=1.0)


def test_a_schedule_holds_to_the_minute_in_a_quiet_time() -> None:
    """Idle instances are asked for when the period begins, and given up `idle_time` after its end."""
    fleet = Fleet(
        pools=(POOL,), policies=(Policy(idle_time=60.0), Policy(periods=("* 9 * * *",), idle_count=2, idle_time=60.0))
    )
    jobs = Jobs.of([(BEGINS, 1.0), (BEGINS + 10 * DAY, 1.0)])
    simulation = Simulation(fleet, jobs, Environment(), 0, None, drain=True)
    found = simulation.run()
    assert found.instance_hours == pytest.approx(10 * 2 * (1 + 60 / HOUR), abs=0.2)
