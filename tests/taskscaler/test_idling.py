"""How long idling pays: what is looked at, what is learned of it, that it is bounded, and what it comes to."""

import json
from copy import deepcopy

import pytest
from cattrs.preconf.json import make_converter
from hypothesis import given, settings
from hypothesis import strategies as st

from fleeting.core import Drop, Put
from fleeting.plugins import span
from taskscaler._types import Policy, PoolSettings
from taskscaler.config import PoolTable
from taskscaler.core._idling import ENOUGH, EVERY, IDLING, MOST, STATIC, WAYS, WIDELY, Idling, LearnedRecord, group_of
from taskscaler.diagnose._explain import explain
from taskscaler.diagnose._snapshot import Snapshot
from taskscaler.simulation import Fleet, Jobs, Outcome, simulate
from taskscaler.simulation._distributions import parse_distribution
from taskscaler.simulation._synthetic import Synthetic
from tests.strategies import NO_THROTTLE
from tests.taskscaler.test_core_machine import World

BEGINS = 1_700_000_000.0
BOOT = 60.0
IDLE_TIME = 600.0
HISTORY = st.lists(st.tuples(st.floats(0.1, 2000), st.integers(0, 8)), min_size=1, max_size=30)
GAPS = st.lists(st.floats(0.1, 2000), max_size=60)


def taught(way: int) -> Idling:
    """One that was taught that this way is best, at any level."""
    costs = tuple(0.0 if each == way else 1e9 for each in range(len(WAYS)))
    record = LearnedRecord((WIDELY,), (1e6,), (costs,))
    return Idling.of([IDLE_TIME], {repr(IDLE_TIME): record})


def after_gaps(gaps: list[float], idling: Idling | None = None) -> tuple[Idling, float]:
    """What is known after a single slot was not needed for so long each, and needed for a second between."""
    idling, now = idling or Idling.of([IDLE_TIME], {}), 0.0
    for gap in gaps:
        idling.note(1, IDLE_TIME, BOOT, now)
        idling.note(0, IDLE_TIME, BOOT, now + 1)
        now += 1 + gap
    idling.note(1, IDLE_TIME, BOOT, now)
    idling.note(1, IDLE_TIME, BOOT, now + 1)
    return idling, now + 1


def idles(idling: Idling, now: float) -> float:
    """For how long a single slot idles that is not needed from now on."""
    idling.note(0, IDLE_TIME, BOOT, now)
    return idling.due(1, IDLE_TIME, now) - now


@given(HISTORY, st.sampled_from(range(len(WAYS))))
def test_the_levels_say_what_the_whole_history_does(history: list[tuple[float, int]], way: int) -> None:
    """Since when each is not needed, by the clock and weighed; when it is due follows from that, and not from now."""
    idling, now = taught(way), 0.0
    since, weighed, needed = dict.fromkeys(range(1, 10), 0.0), dict.fromkeys(range(1, 10), 0.0), 8
    idling.note(8, IDLE_TIME, BOOT, now)
    for seconds, following in history:
        for level in range(needed + 1, 10):
            weighed[level] += seconds * level / (needed + 1)
        now += seconds
        idling.note(following, IDLE_TIME, BOOT, now)
        for level in range(1, 10):
            if needed >= level > following:
                since[level], weighed[level] = now, 0.0
        needed = following
        times = WAYS[way].times * IDLE_TIME
        if idling.way(8, IDLE_TIME) is not WAYS[way]:
            return  # it has learned something else meanwhile
        for level in range(needed + 1, 9):
            due = since[level] + times
            if WAYS[way].weighed:
                due = min(due, now + (times - weighed[level]) * (needed + 1) / level)
            due = max(due, since[level] + BOOT)
            assert idling.due(level, IDLE_TIME, now) == pytest.approx(due)
            assert idling.due(level, IDLE_TIME, now + 5) == idling.due(level, IDLE_TIME, now)
            assert idling.idles(level, IDLE_TIME, now) == pytest.approx(due - since[level])


@given(HISTORY, st.sampled_from([None, 1.0, BOOT, 5000.0]))
def test_what_is_not_needed_idles_at_least_for_a_boot_and_at_most_for_twice_the_time(
    history: list[tuple[float, int]], boot: float | None
) -> None:
    """Whatever was learned, at levels that were once needed and at others; what is needed is not due."""
    idling, now = Idling.of([IDLE_TIME], {}), 0.0
    least = IDLE_TIME if boot is None else min(boot, IDLE_TIME)
    for seconds, needed in history:
        now += seconds
        idling.note(needed, IDLE_TIME, boot, now)
        for level in range(1, 12):
            idled = idling.idles(level, IDLE_TIME, now)
            assert least - 1e-6 <= idled <= 2 * IDLE_TIME + 1e-6
            if level <= needed:
                assert idling.due(level, IDLE_TIME, now) > now


@given(GAPS, st.lists(st.floats(0.1, 2000), max_size=60))
def test_no_history_of_a_level_costs_more_than_twice_what_it_would_by_the_static_policy(
    first: list[float], then: list[float]
) -> None:
    """In time that is paid for, whatever was learned before, and however the gaps were chosen."""
    idling, now = Idling.of([IDLE_TIME], {}), 0.0
    adaptive = static = 0.0
    for gap in [*first, *then, *first]:
        idling.note(1, IDLE_TIME, BOOT, now)
        now += 1
        idled = idles(idling, now)
        adaptive += gap if gap <= idled else idled + BOOT
        static += gap if gap <= IDLE_TIME else IDLE_TIME + BOOT
        now += gap
    assert adaptive <= 2 * static + 1e-6


def test_it_is_static_until_enough_was_seen() -> None:
    """Then what pays clearly more is done, and what pays no more is forgotten again."""
    idling, now = after_gaps([1800.0] * int(ENOUGH - 1))
    assert idling.way(1, IDLE_TIME) is STATIC
    assert not idling.has_seen_enough(1, IDLE_TIME)
    assert idles(idling, now) == IDLE_TIME
    idling, now = after_gaps([1800.0] * 12)
    assert idling.has_seen_enough(1, IDLE_TIME)
    assert idles(idling, now) == BOOT
    idling, now = after_gaps([1800.0] * 12 + [500.0] * 60)
    assert idles(idling, now) > 500.0
    idling, now = after_gaps([700.0] * 50)
    assert idles(idling, now) in {BOOT, 900.0}


def test_a_slot_goes_sooner_the_fewer_are_needed() -> None:
    """Where time is weighed, the last of 8 slots idles shorter if one is needed than if 7 are."""
    idled = []
    for needed in (7, 3, 1):
        idling = taught(0)
        idling.note(8, IDLE_TIME, BOOT, 0.0)
        idling.note(needed, IDLE_TIME, BOOT, 100.0)
        idled.append(idling.idles(8, IDLE_TIME, 100.0))
    assert idled == [IDLE_TIME, IDLE_TIME / 2, IDLE_TIME / 4]


def test_what_is_remembered_is_bounded_and_outlives_a_manager() -> None:
    """So many groups whatever the fleet's size; who begins with the record does the same at each level."""
    idling = Idling.of([IDLE_TIME], {})
    for at in (0.0, 5000.0):
        idling.note(2 * MOST, IDLE_TIME, BOOT, at)
        idling.note(5, IDLE_TIME, BOOT, at + 1000)
    idling.note(6, IDLE_TIME, BOOT, 7000.0)
    assert idling.way(MOST + 1, IDLE_TIME) is STATIC
    assert len(idling._since) <= MOST
    (put,) = idling.writes(1e6)
    assert isinstance(put, Put)
    assert (put.kind, put.key) == (IDLING, repr(IDLE_TIME))
    assert len(put.record.groups) < 130
    later = Idling.of([IDLE_TIME], {put.key: put.record})
    levels = [1, 2, 7, 100, 5000, MOST, MOST + 1]
    assert [later.way(each, IDLE_TIME) for each in levels] == [idling.way(each, IDLE_TIME) for each in levels]
    assert any(later.way(each, IDLE_TIME) is not STATIC for each in levels)


@given(HISTORY, st.lists(st.integers(0, 8), max_size=3))
def test_what_is_so_for_no_time_counts_for_nothing(history: list[tuple[float, int]], moments: list[int]) -> None:
    """Who asks in between has the core look at a state that lasts no time: it learns the same."""
    plain, asked, now = Idling.of([IDLE_TIME], {}), Idling.of([IDLE_TIME], {}), 0.0
    for seconds, needed in history:
        now += seconds
        plain.note(needed, IDLE_TIME, BOOT, now)
        for each in [*moments, needed]:
            asked.note(each, IDLE_TIME, BOOT, now)
    for level in range(1, 9):
        assert asked.due(level, IDLE_TIME, now) == plain.due(level, IDLE_TIME, now)


@given(st.integers(1, MOST), st.integers(1, MOST))
def test_groups_are_in_the_order_of_levels(one: int, other: int) -> None:
    """The lowest are each by themselves, and none is what all levels say together."""
    assert group_of(min(one, other)) <= group_of(max(one, other))
    assert group_of(one) != WIDELY


def test_it_is_written_at_most_once_a_minute_and_dropped_with_its_policy() -> None:
    """What an `idle_time` has taught is of no use under another."""
    idling, now = after_gaps([700.0])
    assert [*idling.writes(now)]
    assert [*idling.writes(now + EVERY)] == []
    assert idling.writes_at > now + EVERY
    idling.note(0, IDLE_TIME, BOOT, now + 1)
    idling.note(1, IDLE_TIME, BOOT, now + 2)
    idling.note(1, IDLE_TIME, BOOT, now + 3)
    assert idling.writes_at == now + EVERY
    assert [*idling.writes(now + EVERY - 1)] == []
    idling.keep([])
    assert [*idling.writes(now + EVERY)] == [Drop(IDLING, repr(IDLE_TIME))]
    others = Idling.of([300.0], {repr(IDLE_TIME): LearnedRecord((), (), ())})
    assert [*others.writes(now)] == [Drop(IDLING, repr(IDLE_TIME))]


def test_a_record_that_does_not_fit_is_left_aside() -> None:
    """One of a release that looked at other ways."""
    idling = Idling.of([IDLE_TIME], {repr(IDLE_TIME): LearnedRecord((WIDELY,), (100.0,), ((1.0, 2.0),))})
    assert idling.way(1, IDLE_TIME) is STATIC


# --- whole fleets ---------------------------------------------------------------------------------------------


def run(jobs: Jobs, mode: str, idle_time: float = IDLE_TIME) -> Outcome:
    """What jobs come to under a policy of that mode."""
    policy = Policy(idle_time=idle_time, mode=mode)
    return simulate(Fleet(pools=(PoolTable(plugin="any"),), policies=(policy,)), jobs)


def price(outcome: Outcome, idle_time: float = IDLE_TIME) -> float:
    """What an outcome costs in hours of an instance, where waiting for a boot is worth the `idle_time`."""
    return outcome.instance_hours + outcome.jobs * outcome.waits.mean * idle_time / BOOT / 3600


@settings(max_examples=12)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([20.0, 55.0, 65.0, 590.0, 610.0, 1190.0, 1300.0]), st.integers(1, 4), st.integers(1, 12)
        ),
        min_size=1,
        max_size=4,
    ),
    st.sampled_from([1.0, 30.0, 300.0]),
)
def test_no_trace_costs_more_than_twice_what_it_would_by_the_static_policy(
    phases: list[tuple[float, int, int]], duration: float
) -> None:
    """Phases that teach one thing, and then the other: peaks of so many jobs, so many times, so far from each other."""
    at, jobs = BEGINS, []
    for gap, peak, times in [*phases, *phases]:
        for _ in range(times):
            jobs += [(at, duration)] * peak
            at += gap + duration
    adaptive, static = run(Jobs.of(jobs), "adaptive"), run(Jobs.of(jobs), "static")
    assert adaptive.instance_hours <= 2 * static.instance_hours
    assert adaptive.done == len(jobs)


@pytest.mark.parametrize(
    "trace",
    [
        Synthetic(jobs=1000, over=6 * 3600.0, duration=parse_distribution("exp(60s)")),
        Synthetic(jobs=1000, over=2 * 86400.0, duration=parse_distribution("exp(200s)"), daily=1.0),
        Synthetic(jobs=300, over=4 * 86400.0, duration=parse_distribution("exp(300s)")),
        Synthetic(jobs=1000, over=86400.0, duration=parse_distribution("30s..90s"), bursts=0.9, burst_jobs=20),
    ],
    ids=["dense", "daily", "sparse", "bursts"],
)
def test_nothing_is_lost_on_other_traces(trace: Synthetic) -> None:
    """Fewer hours, and all in all no dearer, where waiting is worth what the policy says."""
    jobs = trace.make(1)
    adaptive, static = run(jobs, "adaptive"), run(jobs, "static")
    assert adaptive.instance_hours < static.instance_hours
    assert price(adaptive) <= 1.02 * price(static)


def test_a_waiter_is_left_to_a_release_that_comes_sooner_than_an_instance_would_pay_off() -> None:
    """A job of 9.5 s begins each second: who comes on top of them gets a slot soon, and nothing is bought."""
    steady = [(BEGINS + each * 1.0, 9.5) for each in range(2000)]
    more = [(BEGINS + 700.5 + each * 150.0, 10.0) for each in range(8)]
    jobs = Jobs.of(sorted([*steady, *more]))
    adaptive, static = run(jobs, "adaptive", 100.0), run(jobs, "static", 100.0)
    assert adaptive.bought < static.bought
    assert adaptive.waits.quantile(1.0) <= static.waits.quantile(1.0)


def test_a_restart_forgets_nothing() -> None:
    """The next manager begins with what the journal has, and a policy with another `idle_time` without."""
    pool = PoolSettings(name="a", scale_throttle=NO_THROTTLE, heartbeat_interval=1e9, update_interval=1e9)
    world = World([pool], Policy(idle_time=IDLE_TIME, mode="adaptive"), 0)
    for _ in range(12):
        world.submit(1.0)
        world.pass_time(1800.0)
    level = world.core.idling.way(1, IDLE_TIME)
    assert world.core.idling.has_seen_enough(1, IDLE_TIME)
    world.start()
    assert world.core.idling.has_seen_enough(1, IDLE_TIME)
    assert world.core.idling.way(1, IDLE_TIME) == level


def test_another_policy_begins_anew_and_the_first_one_s_lessons_are_dropped() -> None:
    """Policies may change while all goes on; one that is adaptive from then on looks at levels from then on."""
    pool = PoolSettings(name="a", scale_throttle=NO_THROTTLE, heartbeat_interval=1e9, update_interval=1e9)
    world = World([pool], Policy(idle_time=IDLE_TIME, mode="adaptive"), 0)
    for _ in range(12):
        world.submit(1.0)
        world.pass_time(1800.0)
    assert [*world.records[IDLING]] == [repr(IDLE_TIME)]
    world.core.configure([Policy(idle_time=300.0, mode="adaptive")])
    world.pass_time(100.0)
    world.submit(1.0)
    world.pass_time(1800.0)
    world.submit(1.0)
    world.pass_time(1800.0)
    assert not world.core.idling.has_seen_enough(1, 300.0)
    assert [*world.records[IDLING]] == [repr(300.0)]


def test_an_explanation_says_what_was_learned_and_what_comes_of_it() -> None:
    """From the first slot on that is not needed; before, that too little was seen."""
    pool = PoolSettings(name="a", scale_throttle=NO_THROTTLE, heartbeat_interval=1e9, update_interval=1e9)
    world = World([pool], Policy(idle_time=IDLE_TIME, mode="adaptive"), 0)
    world.submit(1.0)
    world.pass_time(60.0)
    first = str(explain(Snapshot(deepcopy(world.core), world.now)))
    assert ", mode adaptive\n" in first
    too_little = f"too little has been seen yet, what is not needed idles for {span(IDLE_TIME)}"
    assert f"mode adaptive: {too_little}" in first
    for _ in range(12):
        world.submit(1.0)
        world.pass_time(1800.0)
    world.submit(1.0)
    world.pass_time(11.0)
    second = str(explain(Snapshot(deepcopy(world.core), world.now)))
    idled = world.core.idling.idles(1, IDLE_TIME, world.now)
    assert idled < BOOT
    assert f"it pays if slot number 1 idles for {span(idled)} while it is not needed" in second
    assert "not needed, and idle for as long as pays (mode adaptive)" in second


def test_a_record_is_stored_as_the_journal_stores_records() -> None:
    """In SQLite, that is as JSON."""
    record = LearnedRecord((0, 3), (1.5, 8.0), ((1.0, 2.0), (0.1, 1e9)))
    converter = make_converter()
    assert converter.structure(json.loads(json.dumps(converter.unstructure(record))), LearnedRecord) == record
