"""Timelines and figures: a small run worked out by hand, and what holds of any record whatsoever."""

from itertools import pairwise

import pytest
from hypothesis import given

from taskscaler.batch import (
    JobState,
    RecordedEvent,
    Started,
)
from taskscaler.cli._summary import time_taken
from taskscaler.report import Phase, Row, Spread, figure_out, lay_out
from tests.taskscaler.recorded import START, begun, ends, instance, records, resumed, run, starts, waiting

# --- by hand ---------------------------------------------------------------------------------------------

SMALL = run(
    begun("a", "b", "c"),
    waiting(1, 3),
    instance(10, "i-1", "creating"),
    instance(10, "i-2", "creating"),
    instance(30, "i-1", "pending"),
    instance(40, "i-1", "running"),
    starts(40, "a", "i-1", 0),
    starts(40, "b", "i-1", 1),
    waiting(40, 1),
    instance(50, "i-2", "running"),
    starts(50, "c", "i-2", 0),
    waiting(50, 0),
    ends(70, "b", JobState.FAILED),
    instance(80, "i-2", "gone", "the cloud no longer shows it", lost=True),
    ends(81, "c", JobState.LOST, "the cloud no longer shows it"),
    starts(90, "c", "i-1", 1),
    ends(100, "a"),
    ends(120, "c"),
    instance(150, "i-1", "deleting", "not needed"),
    instance(160, "i-1", "gone"),
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


def test_the_time_between_two_commands_is_no_work() -> None:
    """It was killed at 20 s, and resumed half a minute later."""
    told_run = run(begun("a"), starts(10, "a", "i-1", 0), waiting(20, 0), resumed(50), starts(60, "a", "i-1", 0))
    figures = figure_out(told_run, lay_out(told_run))
    assert (figures.duration, figures.paused) == (60, 30)
    assert time_taken(figures.duration, figures.paused) == "1m in all, 30s of it at work"
    assert figure_out(SMALL, lay_out(SMALL)).paused == 0
    assert time_taken(60, 0) == "1m in all"


def test_without_a_price_there_is_no_cost() -> None:
    """Nor is there a share of nothing, or a quantile of no job."""
    timeline = lay_out(run(begun()))
    figures = figure_out(run(begun()), timeline)
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
            begun("a"),
            instance(0, "i-1", "running"),
            starts(5, "a", "i-1"),
            waiting(10, 4),
            resumed(100),
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
        run(begun(), instance(0, "i-1", "running"), waiting(10, 0), resumed(100), *seen, *gone, waiting(200, 0))
    )
    (row,) = timeline.rows
    assert (row.time(), row.ended - START, row.lost, row.left) == (10, 10, False, False)
    assert timeline.duration == 200


def test_what_has_no_end_yet_lasts_to_the_end_of_the_record() -> None:
    """A batch that runs, or was killed and not gone on with."""
    events = begun("a"), instance(0, "i-1", "running"), starts(5, "a", "i-1"), waiting(30, 0)
    running = run(*events, running=True)
    timeline = lay_out(running)
    (row,) = timeline.rows
    assert (row.time(Phase.READY), row.left) == (30, True)
    assert [(bar.duration, bar.state) for bar in row.bars] == [(25, JobState.RUNNING)]
    figures = figure_out(running, timeline)
    assert (figures.ran, figures.waited) == (None, Spread(median=5, p95=5, max=5))
    (killed,) = lay_out(run(*events)).rows
    assert [(bar.duration, bar.state, bar.why) for bar in killed.bars] == [
        (25, JobState.LOST, "the manager was stopped")
    ]


# --- any record ------------------------------------------------------------------------------------------


@given(records())
def test_spans_and_bars_are_where_they_can_be(told: list[RecordedEvent]) -> None:
    """Whatever was recorded, or was not: nothing overlaps, nothing lies outside, and the times add up."""
    timeline = lay_out(run(*told))
    for row in timeline.rows:
        assert all(span.duration > 0 for span in row.spans)
        assert all(before.ended <= after.began for before, after in pairwise(row.spans))
        assert timeline.began <= row.began <= row.ended <= timeline.ended
        check_bars(row)
        assert len(row.bars) == sum(isinstance(each, Started) and each.instance == row.instance for each in told)
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
