"""The simulator: jobs in virtual time on the cores of production; one seed, one result."""

import gc
import os
import subprocess
import sys
from array import array
from functools import partial
from heapq import heappop
from math import inf

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from taskscaler import DecisionEvent, InstanceEvent, LeaseEvent, Policy, ScalerEvent
from taskscaler.config import PoolTable
from taskscaler.simulation import (
    Constant,
    Environment,
    Exponential,
    Fleet,
    Jobs,
    Outcome,
    PoolEnvironment,
    Preemptions,
    SimulationStuck,
    StockOuts,
    Uniform,
    Waits,
    simulate,
)
from taskscaler.simulation._distributions import InOrder
from taskscaler.simulation._engine import Simulation
from taskscaler.simulation._events import SPAN, Events

BEGINS = 1_700_000_000.0
POOL = PoolTable(plugin="any")
FLEET = Fleet(pools=(POOL,), policies=(Policy(idle_time=60.0),))

ROUGH = PoolEnvironment(
    boot=Uniform(30.0, 90.0),
    ready=Exponential(5.0),
    delete=Exponential(20.0),
    answer=Uniform(0.1, 2.0),
    boot_failure=0.1,
    ready_failure=0.1,
    stock_outs=StockOuts(every=Exponential(1800.0), lasts=Exponential(300.0)),
    preemptions=Preemptions(after=Exponential(300.0), notice=30.0),
)
"""A cloud on a bad day."""


def some_jobs(number: int = 200, apart: float = 7.0, lasts: float = 40.0) -> Jobs:
    """A stream of jobs, no two of which are alike."""
    return Jobs.of((BEGINS + each * apart, lasts + each % 17) for each in range(number))


def rough(fleet: Fleet = FLEET, seed: int = 0) -> Outcome:
    """Some jobs on a bad day."""
    return simulate(fleet, some_jobs(), environment=Environment(default=ROUGH), seed=seed)


def test_one_job() -> None:
    """It waits until its instance has booted and been seen; that is paid for until it is removed after it."""
    outcome = simulate(FLEET, Jobs.of([(BEGINS, 100.0)]))
    wait = outcome.waits.max
    assert 60 <= wait <= 62.1  # the cloud is looked at every 2 s
    assert (outcome.done, outcome.waits.count, outcome.bought, outcome.peak_instances) == (1, 1, 1, 1)
    assert outcome.began == BEGINS
    assert outcome.ended == pytest.approx(BEGINS + wait + 100, abs=2.1)
    assert outcome.busy_hours * 3600 == pytest.approx(100)
    assert outcome.instance_hours * 3600 == pytest.approx(wait + 100, abs=0.1)
    assert outcome.utilisation == pytest.approx(100 / (wait + 100), abs=0.01)
    assert {why: each.instances for why, each in outcome.reasons.items()} == {
        "request: jobs wait": 1,
        "remove: shutdown": 1,
    }


def test_reuse_and_idle_time() -> None:
    """Jobs that come within the idle time use the same instance; it goes once that is over."""
    jobs = Jobs.of([(BEGINS, 10.0), (BEGINS + 100, 10.0), (BEGINS + 400, 10.0)])
    outcome = simulate(FLEET, jobs)
    assert outcome.waits.at_once == 1
    assert outcome.bought == 2
    assert outcome.reasons["remove: not needed"].instances == 1


def test_money() -> None:
    """A minimum and an increment of billing are paid for, once for each instance."""
    pool = evolve(POOL, price_per_hour=3.6, currency="EUR", minimum_billing=600.0, billing_increment=60.0)
    outcome = simulate(evolve(FLEET, pools=(pool,)), Jobs.of([(BEGINS, 10.0), (BEGINS + 5000, 900.0)]))
    assert outcome.billed_hours * 3600 == 600 + 17 * 60  # the second ran for some 960 s and was removed at once
    assert outcome.cost == pytest.approx(1.62)
    assert outcome.currency == "EUR"
    assert simulate(FLEET, some_jobs(3)).cost is None


def test_a_ceiling_makes_jobs_wait_in_their_order() -> None:
    """What a queue before so many servers does, as textbooks have it, happens here, too."""
    jobs = Jobs.of((BEGINS + 1000 * (each > 0) + each, 30.0 + each % 5) for each in range(60))
    fleet = Fleet(pools=(evolve(POOL, max_instances=3),), policies=(Policy(idle_count=3, idle_time=9999.0),))
    started: dict[int, float] = {}

    def note(event: ScalerEvent) -> None:
        if isinstance(event, LeaseEvent) and event.what == "acquired":
            started[int(event.key)] = event.at

    outcome = simulate(fleet, jobs, observer=note)
    free = [BEGINS] * 3
    for number, (submit, duration) in enumerate(zip(jobs.submits, jobs.durations, strict=True)):
        start = max(submit, min(free)) if number else started[0]  # the first waits until an instance has booted
        assert started[number] == pytest.approx(start, abs=1e-3)
        free[free.index(min(free))] = start + duration
    assert outcome.waits.waited.tolist() == pytest.approx(
        sorted(started[each] - submit for each, submit in enumerate(jobs.submits) if started[each] > submit)
    )
    assert outcome.peak_instances == 3


def test_a_job_gives_up_in_time() -> None:
    """Where an acquire may wait only so long, it is refused then."""
    outcome = simulate(evolve(FLEET, acquire_timeout=30.0), some_jobs(2, apart=100.0))
    assert (outcome.done, outcome.refused) == (1, 1)


def test_nothing_ever_comes() -> None:
    """A fleet that cannot serve its jobs is an error that says what it last decided."""
    environment = Environment(default=PoolEnvironment(boot_failure=1.0))
    with pytest.raises(
        SimulationStuck, match=r"^no job has ended for 2d of simulated time: 0 run, 1 wait, .*backoff.*check"
    ):
        simulate(FLEET, some_jobs(1), environment=environment)
    with pytest.raises(ValueError, match="found none"):
        simulate(FLEET, Jobs.of([]))


def test_a_bad_day() -> None:
    """Whatever goes wrong, each job is done once, and each instance that was bought is accounted for."""
    outcome = rough()
    (pool,) = outcome.pools
    assert (outcome.done, outcome.waits.count - outcome.interrupted) == (200, 200)
    assert outcome.interrupted > 0
    assert pool.refused > 0
    assert pool.failed > 0
    assert pool.bought == pool.deleted + pool.preempted
    assert outcome.busy_hours * 3600 > some_jobs().work  # tries that were lost were work, too
    assert outcome.busy_hours <= outcome.slot_hours
    assert 0 < outcome.held_back["default: backoff"] < outcome.ended - outcome.began


def test_a_run_leaves_no_cycles() -> None:
    """Whatever goes wrong: so the garbage collector need not look for any while it lasts, and is on again after it."""
    rough()  # what is imported and made only once may leave some
    simulation = Simulation(FLEET, some_jobs(), Environment(default=ROUGH), 1, None, drain=True)
    gc.collect()
    gc.disable()
    try:
        simulation.run()
        assert gc.collect() == 0
    finally:
        gc.enable()
    rough()
    assert gc.isenabled()


def test_announced_preemptions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that would be done in time stays; where it is not announced, it is lost."""
    jobs = Jobs.of([(BEGINS, 100.0)])
    sudden = PoolEnvironment(preemptions=Preemptions(after=Constant(90.0)))
    announced = PoolEnvironment(preemptions=Preemptions(after=Constant(90.0), notice=80.0))
    monkeypatch.setattr("taskscaler.simulation._engine.PATIENCE", 7200.0)
    with pytest.raises(SimulationStuck, match="no job has ended for 2h1m"):  # none lasts that long
        simulate(FLEET, jobs, environment=Environment(default=announced))
    assert simulate(FLEET, Jobs.of([(BEGINS, 20.0)]), environment=Environment(default=announced)).interrupted == 0
    once = Environment(default=evolve(sudden, preemptions=Preemptions(after=Uniform(60.0, 150.0))))
    assert simulate(FLEET, jobs, environment=once).done == 1


def test_suspended_instances_cost_nothing() -> None:
    """What sleeps is not paid for, and wakes faster than another boots."""
    jobs = Jobs.of([(BEGINS, 10.0), (BEGINS + 4000, 10.0)])
    fleet = evolve(FLEET, pools=(evolve(POOL, suspended_count=1),))
    outcome = simulate(fleet, jobs)
    assert outcome.bought == 1
    assert outcome.waits.waited[0] < 15
    assert outcome.instance_hours * 3600 < 200
    assert outcome.reasons["suspend: not needed for now"].instances == 1


def test_several_pools() -> None:
    """The first takes what it may, the next the rest; each has its own cloud, and two currencies are not added up."""
    pools = (
        evolve(POOL, name="spot", max_instances=2, price_per_hour=1.0, currency="EUR"),
        evolve(POOL, name="on-demand", price_per_hour=4.0, currency="EUR"),
    )
    fleet = evolve(FLEET, pools=pools)
    slow = Environment(pools={"spot": PoolEnvironment(boot=Constant(600.0))})
    outcome = simulate(fleet, some_jobs(), environment=slow)
    spot, on_demand = outcome.pools
    assert (spot.name, spot.peak, on_demand.name) == ("spot", 2, "on-demand")
    assert on_demand.bought > 2
    assert outcome.cost == pytest.approx(spot.instance_hours + 4 * on_demand.instance_hours, rel=0.01)
    mixed = evolve(fleet, pools=(pools[0], evolve(pools[1], currency="USD")))
    assert simulate(mixed, some_jobs(5)).cost is None
    small = simulate(evolve(fleet, max_instances=3), some_jobs())
    assert small.peak_instances == 3
    assert list(small.held_back) == ["on-demand: max_instances over all pools", "spot: max_instances"]


def test_events() -> None:
    """An observer hears of instances, leases and decisions in order, and changes nothing."""
    events: list[ScalerEvent] = []
    jobs = some_jobs(20)
    outcome = simulate(FLEET, jobs, observer=events.append)
    assert [each.at for each in events] == sorted(each.at for each in events)
    assert {type(each) for each in events} == {InstanceEvent, LeaseEvent, DecisionEvent}
    done = [each.key for each in events if isinstance(each, LeaseEvent) and each.what == "released"]
    assert sorted(map(int, done)) == list(range(20))
    assert repr(simulate(FLEET, jobs)) == repr(outcome)


def test_series() -> None:
    """What is drawn covers it all in a bounded number of steps, and adds up."""
    for apart in (0.0, 7.0, 3000.0):
        outcome = simulate(evolve(FLEET, pools=(evolve(POOL, max_instances=4),)), some_jobs(200, apart=apart))
        series = outcome.series
        columns = [series.submitted, series.instances, series.busy, series.waiting, series.longest_wait]
        columns += [series.peak_instances, series.peak_busy]
        assert len({*map(len, columns)}) == 1
        assert len(series.instances) < 1000
        assert 0 <= series.begins + series.step * len(series.instances) - outcome.ended < series.step
        assert max(series.peak_instances) == outcome.peak_instances == (4 if apart < 1000 else 1)
        for most, ended in ((series.peak_instances, series.instances), (series.peak_busy, series.busy)):
            assert all(high >= last for high, last in zip(most, ended, strict=True))
        assert sum(series.submitted) == 200
        assert (series.instances[-1], series.busy[-1]) == (0, 0)


def test_a_peak_between_two_steps_is_drawn() -> None:
    """Of two bursts, months apart, each is over long before a step is; no instance is left at its end."""
    jobs = Jobs.of([(at + second, 30.0) for at in (0.0, 1e7) for second in range(4)])
    series = simulate(FLEET, jobs).series
    assert max(series.busy) < 4
    assert [most for most in series.peak_busy if most] == [4, 4]
    assert max(series.peak_instances) == 4


@given(st.lists(st.floats(0, 1000)), st.integers(0, 20), st.floats(0, 1))
def test_quantiles(waited: list[float], at_once: int, share: float) -> None:
    """They are those of all jobs, with those that did not wait."""
    waits = Waits(at_once, array("d", sorted(each for each in waited if each > 0)))
    values = [0.0] * at_once + [*waits.waited]
    if values:
        assert waits.max == values[-1]
        assert waits.mean == pytest.approx(sum(values) / len(values))
        within = waits.quantile(share)
        assert sum(each <= within for each in values) >= share * len(values)
        assert within == 0 or sum(each < within for each in values) < share * len(values)
    else:
        assert waits.max == waits.mean == waits.quantile(share) == 0


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 5000), st.floats(0, 500)), min_size=1, max_size=40),
    st.builds(
        evolve,
        st.just(POOL),
        capacity_per_instance=st.integers(1, 3),
        max_use_count=st.integers(0, 3),
        max_instances=st.integers(1, 6),
    ),
    st.builds(Policy, idle_count=st.integers(0, 3), idle_time=st.floats(0, 300)),
    st.integers(0, 2**64),
)
def test_any_fleet(jobs: list[tuple[float, float]], pool: PoolTable, policy: Policy, seed: int) -> None:
    """Every job is done, none twice; no ceiling is passed; and what is paid for covers what ran."""
    fleet = Fleet(pools=(pool,), policies=(policy,))
    columns = Jobs.of((BEGINS + submit, duration) for submit, duration in jobs)
    boots = Environment(default=PoolEnvironment(boot=Uniform(0.0, 120.0)))
    outcome = simulate(fleet, columns, environment=boots, seed=seed)
    assert outcome.done == outcome.waits.count == len(jobs)
    assert outcome.peak_instances <= pool.max_instances
    assert outcome.busy_hours * 3600 == pytest.approx(columns.work, abs=1e-3)
    assert outcome.busy_hours <= outcome.slot_hours + 1e-6
    assert outcome.instance_hours <= outcome.billed_hours + 1e-6
    assert outcome.bought == outcome.pools[0].deleted
    assert not pool.max_use_count or outcome.bought * pool.max_use_count >= len(jobs)


TIMES = st.sampled_from([Constant(0.0), Constant(5.0), Uniform(0.0, 20.0), Exponential(10.0)])

CLOUDS = st.builds(
    PoolEnvironment,
    boot=TIMES,
    ready=TIMES,
    delete=TIMES,
    suspend=TIMES,
    resume=TIMES,
    clean=TIMES,
    answer=TIMES,
    boot_failure=st.sampled_from([0.0, 0.2]),
    ready_failure=st.sampled_from([0.0, 0.2]),
    stock_outs=st.none() | st.just(StockOuts(every=Exponential(300.0), lasts=Exponential(100.0))),
    preemptions=st.builds(
        Preemptions, after=st.sampled_from([Exponential(100.0), Constant(60.0)]), notice=st.sampled_from([0.0, 5.0])
    ),
)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 600), st.sampled_from([0.0, 10.0, 40.0])), min_size=1, max_size=12),
    st.builds(
        evolve,
        st.just(POOL),
        capacity_per_instance=st.integers(1, 2),
        max_instances=st.integers(0, 2),
        max_use_count=st.integers(0, 2),
        suspended_count=st.integers(0, 1),
        heartbeat_on_acquire=st.booleans(),
        instance_cleanup_command=st.sampled_from([None, "true"]),
    ),
    CLOUDS,
    st.sampled_from([0.0, 1.0, 30.0, inf]),
    st.integers(0, 100),
)
def test_any_cloud(
    jobs: list[tuple[int, float]], pool: PoolTable, cloud: PoolEnvironment, timeout: float, seed: int
) -> None:
    """Each job is done or refused, once, and waits no longer than it may; none is done where there is no instance."""
    events: list[LeaseEvent] = []

    def note(event: ScalerEvent) -> None:
        if isinstance(event, LeaseEvent):
            events.append(event)

    fleet = Fleet(pools=(pool,), policies=(Policy(idle_count=1, idle_time=60.0),), acquire_timeout=timeout)
    columns = Jobs.of((BEGINS + submit, duration) for submit, duration in jobs)
    simulation = Simulation(fleet, columns, Environment(default=cloud), seed, note, drain=True)
    outcome = simulation.run()
    ended = [event for event in events if event.what == "released"]
    lost = sum(event.what == "lost" for event in events)
    taken = simulation.clouds[pool.name].preempted
    assert outcome.done == len(ended) == len({event.key for event in ended}) == len(jobs) - outcome.refused
    assert (outcome.interrupted, outcome.waits.count) == (lost, len(events) - len(ended) - lost)
    assert outcome.waits.max <= timeout + 1e-6
    assert all(event.at <= taken.get(event.instance, inf) for event in ended)
    assert outcome.busy_hours <= outcome.slot_hours + 1e-6
    assert outcome.bought == outcome.pools[0].deleted + len(taken)


def test_an_instance_that_was_taken_before_a_job_came() -> None:
    """The job's connection fails at once: nothing has run on it, and the scaler need not see that it is gone."""
    cloud = PoolEnvironment(
        boot=Constant(0.0), answer=Constant(1.0), preemptions=Preemptions(after=InOrder((30.0,), Constant(1e6)))
    )
    fleet = evolve(FLEET, policies=(Policy(idle_count=1, idle_time=60.0),))
    for duration in (0.0, 100.0):
        events: list[ScalerEvent] = []
        jobs = Jobs.of([(BEGINS, 10.0), (BEGINS + 40, duration)])
        outcome = simulate(fleet, jobs, environment=Environment(default=cloud), observer=events.append)
        assert (outcome.done, outcome.interrupted) == (2, 1)
        assert outcome.busy_hours * 3600 == pytest.approx(10.0 + duration)
        (lost,) = (event.at for event in events if isinstance(event, LeaseEvent) and event.what == "lost")
        assert lost < BEGINS + 45  # while the cloud is looked at once a minute


def test_an_instance_that_is_taken_while_it_is_suspended_does_not_come_back() -> None:
    """Else it could never be deleted, and would keep its place under `max_instances`."""
    cloud = PoolEnvironment(
        boot=Constant(0.0), suspend=Constant(100.0), preemptions=Preemptions(after=InOrder((30.0,), Constant(1e6)))
    )
    fleet = Fleet(pools=(evolve(POOL, suspended_count=1, max_instances=1),), policies=(Policy(),))
    jobs = Jobs.of([(BEGINS, 10.0), (BEGINS + 400, 10.0)])
    outcome = simulate(fleet, jobs, environment=Environment(default=cloud))
    assert (outcome.done, outcome.bought, outcome.pools[0].preempted, outcome.pools[0].deleted) == (2, 2, 1, 1)


@pytest.mark.parametrize("begins", [-1e5, 0.0, 12.5, 86400.0 * 365 * 300])
def test_when_jobs_begin_changes_nothing(begins: float) -> None:
    """Traces of others often begin at nought."""
    jobs = some_jobs(60)
    found = simulate(FLEET, jobs.later(begins - BEGINS))
    expected = simulate(FLEET, jobs)
    assert found.waits.waited.tolist() == pytest.approx(expected.waits.waited.tolist(), abs=1e-3)
    assert found.instance_hours == pytest.approx(expected.instance_hours, abs=1e-4)
    assert (found.began, found.series.begins) == pytest.approx((begins, begins), abs=1e-3)
    assert found.ended - found.began == pytest.approx(expected.ended - expected.began, abs=1e-3)


def test_stock_outs_without_end() -> None:
    """Each takes a second at least, and so does the time between: time goes on."""
    outs = StockOuts(every=Constant(0.0), lasts=Constant(0.0))
    assert simulate(FLEET, some_jobs(3), environment=Environment(default=PoolEnvironment(stock_outs=outs))).done == 3


def test_a_lost_try_and_the_wait_after_it() -> None:
    """What it ran counts as busy, whatever comes after; and its job waits for as long as may be, once more."""
    cloud = PoolEnvironment(
        boot=InOrder((0.0,), Constant(800.0)), preemptions=Preemptions(after=InOrder((30.0,), Constant(1e6)))
    )
    for timeout, refused in ((100.0, 1), (1000.0, 0)):
        fleet = evolve(FLEET, acquire_timeout=timeout)
        outcome = simulate(fleet, Jobs.of([(BEGINS, 600.0)]), environment=Environment(default=cloud))
        assert (outcome.interrupted, outcome.refused) == (1, refused)
        assert outcome.busy_hours * 3600 == pytest.approx(28 if refused else 628, abs=4)
        assert outcome.ended - BEGINS >= (130 if refused else 1400)


def test_a_seed_decides_all() -> None:
    """Equal seeds give equal outcomes, others do not; and neither does the hash seed matter."""
    first = repr(rough())
    assert first == repr(rough())
    assert first != repr(rough(seed=1))
    program = "from tests.taskscaler.test_simulation import rough; print(repr(rough()))"
    for hash_seed in ("1", "2"):
        ran = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        assert ran.stdout.strip() == first


def test_jobs() -> None:
    """They are put in the order in which they come, and cut by time."""
    jobs = Jobs.of([(3.0, 30.0), (1.0, 10.0), (3.0, 31.0), (2.0, 20.0)])
    assert (jobs.submits.tolist(), jobs.durations.tolist()) == ([1, 2, 3, 3], [10, 20, 30, 31])
    columns = Jobs.in_columns(array("d", [3, 1, 3, 2]), array("d", [30, 10, 31, 20]))
    assert columns.durations == jobs.durations
    assert (jobs.begins, jobs.ends, jobs.work, len(jobs)) == (1, 3, 91, 4)
    assert jobs.between(2, 3).durations.tolist() == [20]
    assert len(jobs.between(-inf, inf)) == 4


@given(
    st.lists(
        st.tuples(st.sampled_from([0.0, 0.5, SPAN, 3 * SPAN, 100 * SPAN]) | st.floats(0.0, 1000.0), st.integers(0, 3))
    )
)
def test_events_happen_in_their_order(added: list[tuple[float, int]]) -> None:
    """What is added meanwhile included: the earliest first, and of those at the same time the one first added."""
    events, waiting, happened, now = Events(), list[tuple[float, int]](), list[int](), 0.0

    def happen() -> None:
        nonlocal now
        if not events.soon:
            events.advance()
        now, _, call = heappop(events.soon)
        call()
        first = min(waiting)
        waiting.remove(first)
        assert (now, happened[-1]) == first

    for number, (after, happen_before) in enumerate(added):
        for _ in range(min(happen_before, len(waiting))):
            happen()
        events.add(now + after, partial(happened.append, number))
        waiting.append((now + after, number))
    while waiting:
        happen()
