"""What steps have used, as taskscaler takes it."""

from hypothesis import given
from hypothesis import strategies as st

from job_steps import Resources, Status, StepResult
from job_steps.usage import LARGEST, uses_of
from taskscaler.executors import StepUse
from tests.job_steps.test_tracing import SECRET, TREE

SIZES = st.integers(-2, 2**70)


def test_steps_that_ran_something_are_told_with_what_they_used() -> None:
    """By the names that lead to them, in their order; those that only called others are not: it would count twice."""
    assert uses_of(TREE) == (
        StepUse(path="build/lint", ended="succeeded", duration=1.0),
        StepUse(path="build/link", ended="failed", duration=2.0),
        StepUse(path="test", ended="cancelled", duration=0.0),
        StepUse(path="last", ended="unfinished"),
    )
    assert SECRET not in repr(uses_of(TREE))
    assert uses_of(StepResult()) == ()
    causes = {"out_of_memory": "out_of_memory", "lost": "unfinished", "one of a later release": "failed"}
    failed = tuple(StepResult(name="a", status=Status.FAILURE, cause=cause) for cause in causes)
    assert [each.ended for each in uses_of(StepResult(steps=failed))] == [*causes.values()]


@given(st.tuples(st.floats(), SIZES, SIZES, SIZES), st.none() | st.floats(0, 1e9), st.none() | st.floats(0, 1e9))
def test_figures_that_cannot_be_are_not_known(
    said: tuple[float, int, int, int], started: float | None, ended: float | None
) -> None:
    """What an instance says may be any number; a clock that was set back makes no time negative."""
    cpu, peak, read, written = said
    used = Resources(cpu_seconds=cpu, peak_memory=peak, read_bytes=read, written_bytes=written)
    step = StepResult(name="a", status=Status.SUCCESS, started=started, ended=ended, resources=used)
    (found,) = uses_of(StepResult(steps=(step,)))
    figures = (found.cpu_time, found.peak_memory, found.disk_read, found.disk_written)
    assert figures == tuple(each if 0 <= each < LARGEST else None for each in said)
    known = started is not None and ended is not None
    assert found.duration == (max(0.0, (ended or 0) - (started or 0)) if known else None)
