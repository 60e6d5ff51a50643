"""What `tune` finds is as cheap as what trying everything finds, suffices, and says how sure that is."""

from array import array
from math import inf

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from taskscaler import Policy
from taskscaler.config import PoolTable
from taskscaler.simulation import Environment, Exponential, Fleet, Jobs, PoolEnvironment, Synthetic, Waits, simulate
from taskscaler.simulation._days import DAY, Days, draws, share_met, spread
from taskscaler.simulation._judge import judge, parted
from taskscaler.simulation._targets import Target, parse_target, parse_targets
from taskscaler.simulation._tune import COUNTS, SHORT_LIST, SURE, TIMES, Shape, cost_of, tune

POOL = PoolTable(plugin="any", update_interval=3600.0, update_interval_when_expecting=30.0)
"""Looked at rarely, which is what takes the time of a simulation of few jobs."""

FLEET = Fleet(pools=(POOL,), policies=(Policy(idle_count=2, idle_time=1200.0),))
SLOW = PoolEnvironment(boot=Exponential(90.0))

SOME = Synthetic(jobs=80, over=3 * DAY, duration=Exponential(120.0), daily=0.8, bursts=0.2, burst_jobs=5).make(1)

P90 = Target(90.0, 30.0)


@pytest.mark.parametrize(
    ("text", "means"),
    [("p95=10s", Target(95.0, 10.0)), ("p99.9=1m", Target(99.9, 60.0)), (" mean = 2s ", Target(None, 2.0))],
)
def test_a_target_is_read(text: str, means: Target) -> None:
    """As people write it."""
    assert parse_target(text) == means


@pytest.mark.parametrize(
    "text", ["", "p95", "p95=", "p95=10", "95=10s", "p0=1s", "p101=1s", "pnan=1s", "p95=-1s", "q=1s"]
)
def test_what_is_no_target_is_refused(text: str) -> None:
    """With what may stand there."""
    with pytest.raises(ValueError, match=r"expected a target such as p95=10s"):
        parse_target(text)
    with pytest.raises(ValueError, match="p95 is given twice"):
        parse_targets(["p95=1s", "mean=1s", "p95=2s"])


waits = st.lists(st.tuples(st.integers(1, 20).map(float), st.integers(0, 3)), max_size=30)
targets = st.builds(Target, st.none() | st.sampled_from([50.0, 90.0, 95.0, 100.0]), st.integers(0, 20).map(float))


@given(
    waits,
    st.lists(st.integers(0, 20), min_size=4, max_size=4),
    targets,
    st.lists(st.integers(0, 4), min_size=4, max_size=4),
)
def test_drawn_days_are_as_if_they_had_come_so_often(
    waited: list[tuple[float, int]], at_once: list[int], target: Target, drawn: list[int]
) -> None:
    """A figure of drawn days is that of all their jobs taken together, and met if it is no more than the limit."""
    jobs = [at_once[day] + sum(each == day for _, each in waited) for day in range(4)]
    days = Days(jobs, sorted(waited, reverse=True), [0.0] * 4)
    together = Waits(
        sum(map(int.__mul__, at_once, drawn)),
        array("d", sorted(seconds for seconds, day in waited for _ in range(drawn[day]))),
    )
    assert days.value(target, drawn) == pytest.approx(target.of(together))
    if target.percent is not None:
        assert days.meets(target)(drawn) == (target.of(together) <= target.seconds)


def test_days_take_apart_what_came_of_all() -> None:
    """Each job counts for the day on which it came, and hours add up; jobs may have come before 2001, too."""
    for jobs in (SOME, SOME.later(-SOME.begins // DAY * DAY)):
        outcome = simulate(FLEET, jobs)
        assert sorted(outcome.delays.waited) == [*outcome.waits.waited]
        midnight = jobs.begins // DAY * DAY
        days = Days.of(outcome, jobs, midnight)
        assert sum(days.jobs) == len(jobs)
        assert days.jobs[0] == len(jobs.between(midnight, midnight + DAY))
        assert sum(days.hours) == pytest.approx(outcome.instance_hours)
        assert all(jobs.begins <= came <= jobs.ends for came in outcome.delays.came)
        once = [1] * len(days.jobs)
        for target in (P90, Target(99.0, 1.0), Target(None, 1.0)):
            assert days.value(target, once) == pytest.approx(target.of(outcome.waits))


def test_draws_of_days_that_are_alike_leave_nothing_open() -> None:
    """And of days that differ, something."""
    alike = Days([10, 10, 10], [(5.0, day) for day in (2, 1, 0)], [1.0] * 3)
    differ = Days([10, 10, 10], [(5.0, 0)] * 5, [1.0] * 3)
    drawn = draws(3, 0, "any")
    assert share_met(alike, [Target(90.0, 1.0)], drawn) == 1.0
    assert spread(alike.value(Target(95.0, 0.0), each) for each in drawn) == (5.0, 5.0)
    assert 0.0 < share_met(differ, [Target(80.0, 1.0)], drawn) < 1.0
    assert drawn == draws(3, 0, "any") != draws(3, 1, "any")


def test_it_finds_what_trying_everything_finds() -> None:
    """Within 2 % of the cheapest of a grid that suffices, with a fraction of its simulations."""
    target = P90
    found = tune(FLEET, SOME, [target])
    assert found.best.suffices
    grid = [Shape(count) for count in COUNTS[1:3]]
    costs = []
    for shape in grid:
        for place in range(0, len(TIMES), 4):
            outcome = simulate(evolve(FLEET, policies=(shape.policy(place),)), SOME)
            days = Days.of(outcome, SOME, SOME.begins)
            if share_met(days, [target], draws(3, 0, "fitted")) >= SURE and target.of(outcome.waits) <= target.seconds:
                costs.append(cost_of(outcome))
    assert found.best.cost <= min(costs) * 1.02
    assert found.simulations <= 50
    again = simulate(evolve(FLEET, policies=(found.best.policy,)), SOME)
    assert cost_of(again) == found.best.cost
    assert target.of(again.waits) == found.best.values[0]


def test_of_many_jobs_a_part_shows_what_is_worth_it() -> None:
    """The best of a few shapes is simulated on all of them, and it suffices there."""
    whole, screened = (tune(FLEET, SOME, [P90], screened=screened) for screened in (10_000, 20))
    assert screened.best.suffices
    assert screened.best.cost <= whole.best.cost * 1.1
    assert len({each.shape for each in screened.tried}) <= SHORT_LIST < len({each.shape for each in whole.tried})


def test_one_seed_finds_the_same() -> None:
    """Another may not: boots take what they take."""
    environment, few = Environment(default=SLOW), SOME.between(-inf, SOME.begins + DAY)
    first, second = (tune(FLEET, few, [P90], environment=environment, seed=3) for _ in range(2))
    assert repr(first) == repr(second)


def test_what_nothing_meets_is_missed_by_as_little_as_can_be() -> None:
    """A single instance cannot serve bursts at once; what is found is the best that it can do."""
    tight = evolve(FLEET, pools=(evolve(POOL, max_instances=1),))
    found = tune(tight, SOME, [Target(100.0, 0.0)])
    assert not found.best.is_met
    assert found.best.missed_by == min(each.missed_by for each in found.tried) > 0


def test_who_refuses_jobs_meets_no_target() -> None:
    """Those that would have waited were sent away."""
    found = tune(evolve(FLEET, acquire_timeout=1.0), SOME, [Target(50.0, 3600.0)])
    refused = [each for each in found.tried if not each.is_met]
    assert refused
    assert found.best.policy.idle_count > 0


moments = st.integers(0, 80 * int(DAY)).map(lambda eighths: eighths / 8)
"""Seconds that add up without being rounded."""


@given(st.lists(moments, min_size=2, max_size=20), st.none() | moments)
def test_jobs_are_parted_at_one_time(submits: list[float], cut: float | None) -> None:
    """Every job is in one part, days are counted from the cut, and what cannot be parted is an error."""
    jobs = Jobs.of((at, 1.0) for at in submits)
    try:
        parts = parted(jobs, cut)
    except ValueError as error:
        assert "judge" in str(error)  # noqa: PT017  (it may be raised, and need not)
        return
    assert len(parts.fitted) + len(parts.judged) == len(jobs)
    assert parts.fitted.ends < parts.cut <= parts.judged.begins
    assert parts.begins <= parts.fitted.begins <= parts.begins + DAY
    assert cut is not None or parts.cut % DAY == 0


def test_a_judgement_says_how_sure_it_is_where_days_suffice() -> None:
    """The same fleet takes the same hours, whatever days are drawn; two days say nothing."""
    sure = judge(("a", FLEET), FLEET, SOME, [P90], since=SOME.begins // DAY * DAY, environment=Environment())
    assert sure.certainty is not None
    assert sure.certainty.hours == (1.0, 1.0)
    low, high = sure.certainty.values[0]
    assert low <= sure.values[0] <= high
    two = SOME.between(-inf, SOME.begins // DAY * DAY + 2 * DAY)
    assert judge(("a", FLEET), FLEET, two, [P90], since=two.begins, environment=Environment()).certainty is None
