"""Timelines and figures: a small run worked out by hand, and what holds of any record whatsoever."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskscaler import Decision, DecisionEvent, InstanceEvent, LeaseEvent
from taskscaler._told import JobTold, Progress, RunTold
from taskscaler.batch import Attempt, JobState, Opened, PoolFacts, RecordedEvent
from taskscaler.core._decide import Demand
from taskscaler.report import Phase, Row, Spread, figure_out, lay_out

START = 1_700_000_000.0


def opened(at: float, *, slots: int = 2) -> Opened:
    """A manager begins."""
    pool = PoolFacts(name="default", plugin="fake", capacity_per_instance=slots, max_instances=0)
    return Opened(at=START + at, pools=(pool,))


def instance(at: float, id_: str, state: str, why: str = "", *, lost: bool = False) -> InstanceEvent:
    """An instance changes."""
    return InstanceEvent(at=START + at, pool="default", instance=id_, state=state, why=why, lost=lost)


def lease(  # noqa: PLR0917  (as the table reads)
    at: float, key: str, what: str, id_: str, slot: int = 0, why: str = ""
) -> LeaseEvent:
    """A job is given a slot, or no longer has it."""
    return LeaseEvent(at=START + at, key=key, pool="default", instance=id_, slot=slot, what=what, why=why)


def waiting(at: float, pending: int) -> DecisionEvent:
    """A decision, while so many jobs wait."""
    demand = Demand(in_use=0, reserved=0, pending=pending)
    decision = Decision(START + at, demand, 0, 0, 0, 0, (), float("inf"))
    return DecisionEvent(at=START + at, decision=decision)


def attempt(id_: str, slot: int, started: float, ended: float | None, state: JobState) -> Attempt:
    """A try, as the history knows it."""
    return Attempt(
        instance=id_, slot=slot, started=START + started, ended=None if ended is None else START + ended, state=state
    )


def job(name: str, *attempts: Attempt) -> JobTold:
    """A job that stands where its last try left it."""
    return JobTold(name=name, state=attempts[-1].state, attempts=attempts)


def run(*events: RecordedEvent, jobs: Sequence[JobTold] = ()) -> RunTold:
    """A run that was begun at the start."""
    return RunTold(
        directory=Path("results"),
        progress=Progress.OVER,
        started=START,
        last=events[-1].at,
        jobs={each.name: each for each in jobs},
        events=events,
    )


# --- by hand ---------------------------------------------------------------------------------------------

SMALL = run(
    opened(0),
    waiting(1, 3),
    instance(10, "i-1", "creating"),
    instance(10, "i-2", "creating"),
    instance(30, "i-1", "pending"),
    instance(40, "i-1", "running"),
    lease(40, "a", "acquired", "i-1", 0),
    lease(40, "b", "acquired", "i-1", 1),
    waiting(40, 1),
    instance(50, "i-2", "running"),
    lease(50, "c", "acquired", "i-2", 0),
    waiting(50, 0),
    lease(70, "b", "released", "i-1", 1),
    instance(80, "i-2", "gone", "the cloud no longer shows it", lost=True),
    lease(81, "c", "lost", "i-2", 0, "the cloud no longer shows it"),
    lease(90, "c", "acquired", "i-1", 1),
    lease(100, "a", "released", "i-1", 0),
    lease(120, "c", "released", "i-1", 1),
    instance(150, "i-1", "deleting", "not needed"),
    instance(160, "i-1", "gone"),
    jobs=[
        job("a", attempt("i-1", 0, 40, 100, JobState.SUCCEEDED)),
        job("b", attempt("i-1", 1, 40, 70, JobState.FAILED)),
        job("c", attempt("i-2", 0, 50, 81, JobState.LOST), attempt("i-1", 1, 90, 120, JobState.SUCCEEDED)),
    ],
)
"""Two instances of two slots, one of which is lost with a job on it, and three jobs, one of which fails.

::

            10        40 50      70 80 90 100 120  150 160
    i-1 0    ░░░░░░░░░ aaaaaaaaaaaaaaaaaaa          ▁▁▁▁
    i-1 1              bbbbbbbbbb     ccccccccc
    i-2 0    ░░░░░░░░░░░░ ccccccccX
"""


def test_the_small_run_is_laid_out() -> None:
    """Spans, bars and the queue are where the events say."""
    timeline = lay_out(SMALL)
    first, second = timeline.rows
    assert (timeline.began, timeline.duration) == (START, 160)
    assert [(span.phase, span.began - START, span.ended - START) for span in first.spans] == [
        (Phase.BOOT, 10, 40),
        (Phase.READY, 40, 150),
        (Phase.LEAVING, 150, 160),
    ]
    assert [(bar.job, bar.slot, bar.began - START, bar.ended - START, bar.number, bar.state) for bar in first.bars] == [
        ("b", 1, 40, 70, 1, JobState.FAILED),
        ("a", 0, 40, 100, 1, JobState.SUCCEEDED),
        ("c", 1, 90, 120, 2, JobState.SUCCEEDED),
    ]
    assert [(bar.job, bar.ended - START, bar.state) for bar in second.bars] == [("c", 80, JobState.LOST)]
    assert (first.lost, first.left, second.lost, second.left) == (False, False, True, False)
    assert [(at - START, number) for at, number in timeline.queue] == [(1, 3), (40, 1), (50, 0)]


def test_the_small_runs_figures_are_those_worked_out_by_hand() -> None:
    """Each is the sum, the share or the quantile that its name says."""
    figures = figure_out(SMALL, lay_out(SMALL), price_per_hour=36.0)
    assert (figures.jobs, figures.states, figures.retried) == (3, {"succeeded": 2, "failed": 1}, 1)
    assert figures.waited == Spread(median=40, p95=50, max=50)
    assert figures.ran == Spread(median=30, p95=60, max=60)
    assert figures.booted == Spread(median=35, p95=40, max=40)
    assert (figures.instances, figures.lost) == (2, 1)
    assert figures.instance_time == 150 + 70
    assert figures.boot_time == 30 + 40
    assert figures.busy_time == 80 + 30  # i-1 from 40 to 120, i-2 from 50 to 80
    assert figures.idle_time == 30 + 0
    assert figures.leaving_time == 10
    assert figures.unwatched_time == 0
    assert figures.slot_time == 60 + 30 + 30 + 30
    assert figures.utilisation == 150 / (2 * 110 + 2 * 30)
    assert figures.utilisation_overall == 150 / (2 * 150 + 2 * 70)
    assert figures.cost == pytest.approx(2.2)  # a cent a second
    assert figures.cost_per_job == pytest.approx(1.1)


def test_without_a_price_there_is_no_cost() -> None:
    """Nor is there a share of nothing, or a quantile of no job."""
    timeline = lay_out(run(opened(0)))
    figures = figure_out(run(opened(0)), timeline)
    assert (figures.cost, figures.cost_per_job, figures.utilisation, figures.waited) == (None, None, None, None)
    assert not timeline.rows
    assert not timeline.queue


@pytest.mark.parametrize(("count", "p95"), [(1, 1), (2, 2), (19, 19), (20, 19), (21, 20), (100, 95)])
def test_of_twenty_durations_the_last_is_above_95_percent(count: int, p95: int) -> None:
    """The quantile is one of the durations: the smallest that 19 of 20 do not exceed."""
    assert Spread.of(range(count, 0, -1)) == Spread(median=(count + 1) / 2, p95=p95, max=count)


# --- managers that were killed ---------------------------------------------------------------------------


def test_an_instance_that_outlived_its_manager_goes_on() -> None:
    """Nobody watched until the next manager saw it again; its job was lost when it was last heard of."""
    timeline = lay_out(
        run(
            opened(0),
            instance(0, "i-1", "running"),
            lease(5, "a", "acquired", "i-1"),
            waiting(10, 4),
            opened(100),
            instance(100, "i-1", "creating", "an earlier manager left it"),
            instance(105, "i-1", "deleting", "it was in use when its manager stopped"),
            instance(110, "i-1", "gone"),
        )
    )
    (row,) = timeline.rows
    assert [(span.phase, span.duration) for span in row.spans] == [
        (Phase.READY, 10),
        (Phase.UNWATCHED, 90),
        (Phase.BOOT, 5),
        (Phase.LEAVING, 5),
    ]
    assert [(bar.ended - START, bar.state, bar.why) for bar in row.bars] == [
        (10, JobState.LOST, "the manager was stopped")
    ]
    assert [(at - START, number) for at, number in timeline.queue] == [(10, 4), (10, 0)]
    assert not row.lost


@pytest.mark.parametrize("seen", [[], [instance(100, "i-1", "creating")]])
@pytest.mark.parametrize("gone", [[], [instance(101, "i-1", "gone", lost=True)]])
def test_of_an_instance_that_nobody_saw_again_the_end_is_not_known(
    seen: list[RecordedEvent], gone: list[RecordedEvent]
) -> None:
    """It ends when it was last heard of, and is not called lost."""
    timeline = lay_out(
        run(opened(0), instance(0, "i-1", "running"), waiting(10, 0), opened(100), *seen, *gone, waiting(200, 0))
    )
    (row,) = timeline.rows
    assert (row.time(), row.ended - START, row.lost, row.left) == (10, 10, False, False)
    assert timeline.duration == 200


def test_what_has_no_end_yet_lasts_to_the_end_of_the_record() -> None:
    """A batch that runs, or was killed and not gone on with."""
    events = opened(0), instance(0, "i-1", "running"), lease(5, "a", "acquired", "i-1"), waiting(30, 0)
    jobs = [job("a", attempt("i-1", 0, 5, None, JobState.RUNNING))]
    timeline = lay_out(run(*events, jobs=jobs))
    (row,) = timeline.rows
    assert (row.time(Phase.READY), row.left) == (30, True)
    assert [(bar.duration, bar.state) for bar in row.bars] == [(25, JobState.RUNNING)]
    figures = figure_out(run(*events, jobs=jobs), timeline)
    assert (figures.ran, figures.waited) == (None, Spread(median=5, p95=5, max=5))


# --- any record ------------------------------------------------------------------------------------------

ids = st.sampled_from(["i-1", "i-2"])
slots = st.integers(0, 2)
keys = st.sampled_from(["a", "b", "c"])
instants = st.integers(0, 50).map(float)
events: st.SearchStrategy[RecordedEvent] = st.one_of(
    st.builds(opened, instants),
    st.builds(
        instance,
        instants,
        ids,
        st.sampled_from(["creating", "pending", "running", "deleting", "unusable", "gone", "of a later release"]),
        lost=st.booleans(),
    ),
    st.builds(
        lease, instants, keys, st.sampled_from(["acquired", "released", "lost", "suspended", "resumed"]), ids, slots
    ),
    st.builds(waiting, instants, st.integers(0, 3)),
)
records = st.lists(events, min_size=1, max_size=30)


@given(records())
def test_spans_and_bars_are_where_they_can_be(told: list[RecordedEvent]) -> None:
    """Whatever was recorded, or was not: nothing overlaps, nothing lies outside, and the times add up."""
    timeline = lay_out(run(*told))
    for row in timeline.rows:
        assert all(span.duration > 0 for span in row.spans)
        assert all(before.ended <= after.began for before, after in pairwise(row.spans))
        assert timeline.began <= row.began <= row.ended <= timeline.ended
        check_bars(row)
        begun = [each for each in told if isinstance(each, LeaseEvent) and each.what in {"acquired", "resumed"}]
        assert len(row.bars) == sum(each.instance == row.instance for each in begun)
        parts = row.busy + row.idle + row.time(*set(Phase) - {Phase.READY})
        assert parts == pytest.approx(row.time())
        assert 0 <= row.busy <= row.slot_time <= row.slots * row.time(Phase.READY)
    assert list(timeline.queue) == sorted(timeline.queue, key=lambda step: step[0])
    assert all(timeline.began <= at <= timeline.ended for at, _ in timeline.queue)


def check_bars(row: Row) -> None:
    """Those of a slot lie one after the other, each within a time at which the instance was ready."""
    for slot in range(row.slots):
        bars = [bar for bar in row.bars if bar.slot == slot]
        assert all(before.ended <= after.began for before, after in pairwise(bars))
    ready = [span for span in row.spans if span.phase is Phase.READY]
    for bar in row.bars:
        assert bar.slot < row.slots
        assert any(span.began <= bar.began <= bar.ended <= span.ended for span in ready) or not bar.duration


@given(records())
def test_the_figures_of_any_record_make_sense(told: list[RecordedEvent]) -> None:
    """Shares are shares, and the parts of the instances' time are the whole."""
    told_run = run(*told)
    figures = figure_out(told_run, lay_out(told_run), price_per_hour=1.0)
    used = figures.boot_time + figures.busy_time + figures.idle_time
    parts = used + figures.leaving_time + figures.held_time + figures.unwatched_time
    assert parts == pytest.approx(figures.instance_time)
    for share in (figures.utilisation, figures.utilisation_overall):
        assert share is None or 0 <= share <= 1 + 1e-9
    assert figures.cost == pytest.approx(figures.instance_hours)
