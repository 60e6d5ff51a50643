"""What steps of jobs have used: few of many, in words, and counted."""

from math import isclose

import pytest
from attrs import asdict, evolve
from hypothesis import given
from hypothesis import strategies as st

from fleeting import Usage
from taskscaler._use_meter import OTHER, UseMeter
from taskscaler._uses import (
    LARGEST,
    LIMITED_BY,
    MOST_CPUS,
    MOST_MEMORY,
    MOST_STEPS,
    OUT_OF_MEMORY,
    STEP_ENDS,
    by_path,
    dearest,
    in_words,
    possible_steps,
    possible_usage,
    together,
)
from taskscaler.executors import JobOutcome, MemoryLimit, StepUse, Verdict
from tests.taskscaler.uses import MEMORY_LIMITS, STEP_USES

MIB = 1 << 20
FIGURES = ("duration", "cpu_time", "peak_memory", "disk_read", "disk_written")


def are_alike(first: StepUse, second: StepUse) -> bool:
    """Whether two sums are the same, but for the order in which floats were added."""
    pairs = [(getattr(first, name), getattr(second, name)) for name in ("count", *FIGURES)]
    return all(a == b or (a is not None and b is not None and isclose(a, b, abs_tol=1e-6)) for a, b in pairs)


@given(st.lists(STEP_USES, max_size=40), st.integers(2, 12))
def test_the_dearest_are_few_and_lose_nothing(steps: list[StepUse], most: int) -> None:
    """All together have used as much; each that is named was there, in the order of before; others are the last."""
    kept = dearest(steps, most)
    assert len(kept) <= most
    assert are_alike(together(kept), together(steps))
    named = [step for step in kept if step.path]
    assert all(not step.path for step in kept[len(named) :])
    assert len(kept) - len(named) <= 1
    places = iter(steps)
    assert all(any(step is each for each in places) for step in named)
    assert dearest(kept, most) == kept


@given(st.lists(STEP_USES, min_size=1, max_size=40))
def test_whatever_used_most_of_anything_is_named(steps: list[StepUse]) -> None:
    """Time, CPU, memory, bytes read and bytes written."""
    kept = dearest(steps)
    for name in FIGURES:
        most = max((getattr(step, name) or 0 for step in steps if step.path), default=0)
        assert most == 0 or most in [getattr(step, name) for step in kept if step.path]


@given(st.lists(STEP_USES, max_size=40))
def test_steps_of_one_name_are_one(steps: list[StepUse]) -> None:
    """Of however many jobs, with all that they used."""
    found = by_path(steps)
    assert [step.path for step in found] == [*dict.fromkeys(step.path for step in steps)]
    assert are_alike(together(found), together(steps))


@given(STEP_USES, MEMORY_LIMITS)
def test_what_was_written_down_is_read(step: StepUse, limit: MemoryLimit) -> None:
    """With keys of a later release."""
    assert StepUse.read({**asdict(step), "later": 1}) == step
    assert MemoryLimit.read({**asdict(limit), "later": 1}) == limit
    assert MemoryLimit.read(None) is None


@given(st.lists(STEP_USES, max_size=40), st.floats(0, 1e7))
def test_what_cannot_be_is_not_known(steps: list[StepUse], seconds: float) -> None:
    """Of all steps, if it cannot be of them together; what can be stays as it is, and so do names and ends."""
    found = possible_steps(steps, seconds)
    assert [(each.path, each.ended, each.count) for each in found] == [(s.path, s.ended, s.count) for s in steps]
    for name in FIGURES:
        before, after = [getattr(step, name) for step in steps], [getattr(step, name) for step in found]
        assert after in (before, [None] * len(steps))
    whole = together(found)
    assert (whole.duration or 0) <= seconds + 60
    assert (whole.cpu_time or 0) <= (seconds + 60) * MOST_CPUS
    assert (whole.peak_memory or 0) <= MOST_MEMORY
    usage = possible_usage(Usage(cpu_time=whole.cpu_time, disk_written=1 << 62, peak_memory=1), seconds)
    assert (usage.cpu_time, usage.disk_written, usage.peak_memory) == (whole.cpu_time, None, 1)


@pytest.mark.parametrize("name", FIGURES)
@pytest.mark.parametrize("wrong", [-1, float("nan"), float("inf"), LARGEST, "1", [1], 1.5, True])
def test_what_is_no_figure_is_refused(name: str, wrong: object) -> None:
    """It would be added up, and written."""
    if isinstance(wrong, int | float) and 0 <= wrong < LARGEST and (name in FIGURES[:2] or wrong is True):
        StepUse.read({name: wrong})
        return
    with pytest.raises((ValueError, TypeError)):
        StepUse.read({name: wrong})


@pytest.mark.parametrize("wrong", [{}, {"size": None}, {"size": 1, "by": "x"}, {"size": 1, "reached": 1}])
def test_what_is_no_limit_is_refused(wrong: dict[str, object]) -> None:
    """Neither is one without its size."""
    with pytest.raises((ValueError, TypeError)):
        MemoryLimit.read(wrong)


def test_where_the_time_and_the_memory_went_is_told_in_words() -> None:
    """First all of it, then each step with its shares; what others of very many had, in one line."""
    build = StepUse(
        path="build/compile",
        ended="succeeded",
        duration=200.0,
        cpu_time=312.0,
        peak_memory=1200 * MIB,
        disk_read=3 * MIB,
        disk_written=0,
    )
    test = StepUse(path="test", ended="out_of_memory", duration=40.0, cpu_time=2.0)
    rest = StepUse(count=10, duration=10.0)
    assert in_words([test, build, rest]) == (
        "12 in all: 4m10s, 5m14s of CPU, 1 GiB of memory at most, 3 MiB read",
        "build/compile: 3m20s (80%), 5m12s of CPU (99%), 1 GiB of memory at most, 3 MiB read",
        "test (out of memory): 40s (16%), 2s of CPU (1%)",
        "10 others: 10s (4%)",
    )
    assert in_words([StepUse(path="script")]) == ["script: nothing is known"]
    (several,) = by_path([test, evolve(test, duration=20.0)])
    assert in_words([several])[0] == "test (2 times): 1m, 4s of CPU"
    assert in_words([]) == []


def test_steps_are_counted_by_the_names_that_the_operator_has_listed() -> None:
    """Each with the steps that it called, unless one of these is listed, too; all others are one."""
    meter = UseMeter(["build", "build/link"])
    paths = ["build", "build/compile/cc", "build/link", "build/link/ld", "builder", "test", "", "x/build"]
    for path in paths:
        meter.ended(Usage(), steps=[StepUse(path=path, ended="succeeded", duration=1.0, peak_memory=32 * MIB)])
    assert meter.step_seconds == {"build": 2.0, "build/link": 2.0, OTHER: 4.0}
    assert meter.steps["build", "succeeded"] == 2
    assert meter.step_peaks["build/link"].counts[:3] == [0, 2, 0]


@given(st.lists(STEP_USES, max_size=9), st.lists(MEMORY_LIMITS, max_size=5), st.text(max_size=20))
def test_no_job_makes_a_series(steps: list[StepUse], limits: list[MemoryLimit], name: str) -> None:
    """Whatever its steps are called, and however they ended."""
    meter = UseMeter(["build"])
    before = (set(meter.steps), set(meter.step_seconds), set(meter.step_peaks), set(meter.limits))
    names = {"build", OTHER}
    assert before == ({(each, end) for each in names for end in STEP_ENDS}, names, names, {*LIMITED_BY})
    for limit in limits:
        meter.ended(Usage(cpu_time=1.0, peak_memory=MIB, disk_written=1), limit=limit, steps=[])
    meter.ended(Usage(), steps=[*steps, StepUse(path=name)])
    assert before == (set(meter.steps), set(meter.step_seconds), set(meter.step_peaks), set(meter.limits))
    assert (meter.cpu_seconds, meter.written, sum(meter.peaks.counts)) == (len(limits), len(limits), len(limits))
    assert meter.kills == sum(limit.reached for limit in limits) + any(s.ended == OUT_OF_MEMORY for s in steps)
    assert sum(sum(each.counts) for each in meter.limits.values()) == len(limits)


def test_an_executor_may_give_any_number_of_steps() -> None:
    """What is told one by one is bounded, whatever it gives."""
    many = [StepUse(path=f"step{number}", ended="succeeded", duration=1.0) for number in range(5000)]
    outcome = JobOutcome(verdict=Verdict.SUCCEEDED, steps=many)
    assert len(outcome.steps) == 5000
    kept = dearest(outcome.steps)
    assert len(kept) == MOST_STEPS
    assert (kept[-1].path, kept[-1].count) == ("", 5000 - MOST_STEPS + 1)
