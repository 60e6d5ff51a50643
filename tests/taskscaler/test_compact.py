"""What is kept of a million jobs, in few bytes each, is what would be kept of them otherwise."""

from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskscaler.batch import Attempt, Begun, Ended, JobState, Plan, Planned, Started, fold
from taskscaler.batch._attempts import Attempts
from taskscaler.batch._names import Names
from tests.taskscaler.uses import MEMORY_LIMITS

jobs = st.builds(Planned, name=st.text(max_size=4), retries=st.integers(0, 2))
numbers = st.floats(0, 2e9)
attempts = st.builds(
    Attempt,
    instance=st.sampled_from("ab"),
    slot=st.integers(0, 2),
    started=numbers,
    pool=st.sampled_from(["", "p"]),
    ended=st.none() | numbers,
    state=st.sampled_from(JobState),
    exit_code=st.none() | st.integers(),
    why=st.text(max_size=3),
    cpu_time=st.none() | numbers,
    peak_memory=st.none() | st.integers(0, 2**52),
    disk_written=st.none() | st.integers(0, 2**52),
    memory_limit=st.none() | MEMORY_LIMITS,
    interrupted=st.booleans(),
)


@given(st.lists(st.text(max_size=6), unique=True), st.text(max_size=6))
def test_names_are_a_sequence_and_its_index(names: list[str], other: str) -> None:
    """Each has its number, and what is none of them has none."""
    kept = Names(names)
    assert ([*kept], len(kept), kept[:2]) == (names, len(names), names[:2])
    assert [kept.number(name) for name in names] == [*range(len(names))]
    assert (kept.number(other) is None) == (other not in names)
    assert kept == Names(iter(names))


@given(st.lists(st.text(max_size=3), min_size=1, unique=True), st.data())
def test_a_name_that_comes_twice_is_found(names: list[str], data: st.DataObject) -> None:
    """Two jobs of one name would be one job."""
    twice = data.draw(st.sampled_from(names))
    with pytest.raises(ValueError, match="twice"):
        Names([*names, twice]).number("")


@given(
    st.lists(st.builds(Planned, name=st.text(max_size=4), retries=st.integers(0, 2)), unique_by=lambda job: job.name)
)
def test_a_plan_is_its_jobs(jobs: list[Planned]) -> None:
    """One by one, in groups of those that differ in their names alone, and made of such groups."""
    plan = Plan(jobs)
    assert ([*plan], len(plan), plan[1:]) == (jobs, len(jobs), jobs[1:])
    groups = [(like.retries, [*names]) for like, names in plan.groups()]
    assert groups == [
        (retries, [job.name for job in alike]) for retries, alike in groupby(jobs, lambda job: job.retries)
    ]
    assert Plan.of_groups(plan.groups()) == plan


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans(), attempts), max_size=20))
def test_tries_are_kept_as_they_are(steps: list[tuple[int, bool, Attempt]]) -> None:
    """Whether they are added, or the last one changes."""
    kept, model = Attempts(4), [[] for _ in range(4)]  # type: tuple[Attempts, list[list[Attempt]]]
    for job, add, attempt in steps:
        if add or not model[job]:
            model[job].append(attempt)
            kept.add(job, attempt)
        else:
            model[job][-1] = attempt
            kept.change_last(job, attempt)
    for job, expected in enumerate(model):
        assert ([*kept.of(job)], [*kept.earlier(job)]) == (expected, expected[:-1])
        assert kept.last(job) == (expected[-1] if expected else None)
        assert kept.began(job) == (expected[0].started if expected else None)


@pytest.mark.parametrize("wrong", ["long", float("inf"), 10**400])
def test_what_is_no_number_makes_a_log_wrong(wrong: float) -> None:
    """Whatever a file says that was not ours."""
    begun = Begun(at=0.0, jobs=[Planned(name="a", retries=0)])
    started = Started(at=0.0, job="a", pool="", instance="i", slot=0)
    with pytest.raises(ValueError, match="is not a number"):
        fold([begun, started, Ended(at=1.0, job="a", state=JobState.SUCCEEDED, cpu_time=wrong)])
