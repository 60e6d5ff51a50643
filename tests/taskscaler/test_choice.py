"""Which jobs a command runs, as a function of its arguments and of what became of the jobs so far."""

import pytest
from click.testing import CliRunner

from taskscaler.batch import BatchState, Begun, Ended, GivenUp, JobState, Plan, Planned, Retries, Started
from taskscaler.cli import main
from taskscaler.cli._changes import changes_of_jobs
from taskscaler.cli._choice import Choice, Wishes, choose
from taskscaler.cli._since_begun import depends_on_disk, sayings

ENDS = {
    "good": JobState.SUCCEEDED,
    "bad": JobState.FAILED,
    "late": JobState.TIMED_OUT,
    "lost": JobState.LOST,
    "skipped": JobState.SKIPPED,
    "given-up": JobState.NO_CAPACITY,
}
JOBS = Plan(
    Planned(name=name, retries=0, needs=("given-up", "good") if name == "new" else ()) for name in [*ENDS, "new"]
)


@pytest.fixture
def past() -> BatchState:
    """A batch in which everything has happened."""
    state = BatchState(Begun(at=1.0, jobs=tuple(Planned(name=name, retries=Retries(lost=0)) for name in ENDS)))
    for name, end in ENDS.items():
        if end in (JobState.NO_CAPACITY, JobState.SKIPPED):
            state.apply(GivenUp(at=2.0, jobs=(name,), state=end, why="full"))
        else:
            state.apply(Started(at=2.0, job=name, pool="", instance="i", slot=0))
            state.apply(Ended(at=3.0, job=name, state=end))
    return state


@pytest.mark.parametrize(
    ("rerun", "expected"),
    [
        ((), ()),
        (("failed",), ("bad", "late", "skipped")),
        (("lost",), ("lost", "skipped")),
        (("lost", "failed"), ("bad", "late", "lost", "skipped")),
        (("all",), ("good", "bad", "late", "lost", "skipped")),
    ],
)
def test_what_is_run_again_is_what_ended_so(
    past: BatchState, rerun: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    """And what never ran is run in any case, and said."""
    choice = choose(Wishes(rerun=rerun), JOBS, past)
    assert (choice.rerun, choice.only, choice.left) == (expected, None, True)
    assert ("running, too: 2 jobs that never ran" in choice.notes) == bool(rerun)


def test_only_some_are_run_again(past: BatchState) -> None:
    """Those that are chosen and ended so."""
    choice = choose(Wishes(rerun=("failed",), only=("b*", "good")), JOBS, past)
    assert (choice.rerun, choice.only) == (("bad",), frozenset({"bad", "good"}))
    assert choice.notes == (
        "2 of 7 jobs selected; the others wait until the batch is resumed without --only",
        "running again: 1 job (--rerun failed)",
    )


def test_what_is_chosen_brings_what_it_needs(past: BatchState) -> None:
    """Unless that is over."""
    choice = choose(Wishes(only=("new",)), JOBS, past)
    assert choice.only == frozenset({"new", "given-up"})
    (note,) = choice.notes
    assert note.startswith("1 of 7 jobs selected, and 1 job that they need; ")


def test_what_is_over_is_not_left(past: BatchState) -> None:
    """Unless it is to be run again."""
    assert not choose(Wishes(only=("good", "bad")), JOBS, past).left
    assert choose(Wishes(only=("good", "bad"), rerun=("failed",)), JOBS, past).left
    assert choose(Wishes(only=("given-up",)), JOBS, past).left


def test_who_chose_some_is_content_with_them(past: BatchState) -> None:
    """The exit status is about the jobs that were chosen."""
    assert Choice(only=frozenset({"good"})).content(past)
    assert not Choice(only=frozenset({"good", "bad"})).content(past)
    assert not Choice().content(past)


BEFORE = """
[[jobs]]
name = "good"
script = "one"
[[jobs]]
name = "given-up"
script = "two"
[[jobs]]
name = "bad"
script = "three"
"""


def test_what_changed_is_said_and_where_it_comes_too_late(past: BatchState) -> None:
    """Jobs are named; at most ten."""
    after = BEFORE.replace("one", "1").replace("two", "2").replace("bad", "new")
    plan = past.plan
    assert changes_of_jobs(BEFORE, after) == {
        "good": "changed",
        "given-up": "changed",
        "bad": "is gone",
        "new": "is new",
    }
    assert [*sayings(BEFORE, after + "[defaults]\nretries = 1\n", plan, past, frozenset())] == [
        "the jobs file: job good changed, but is over and stays as it is",
        "the jobs file: job given-up changed",
        "the jobs file: job bad is gone, but is over and stays as it is",
        "the jobs file: job new is new",
        "the jobs file: defaults changed",
    ]
    assert next(sayings(BEFORE, after, plan, past, {"good"})) == "the jobs file: job good changed"
    many = "".join(f"[[jobs]]\nname = 'job-{number}'\n" for number in range(12))
    assert [*sayings("[autoscaler]", many, plan, past, frozenset())][-1] == "the jobs file: 2 more jobs differ"


def test_what_no_text_tells_is_counted(past: BatchState) -> None:
    """The directory of `for_each` has other files, or the batch is over and its text was not kept."""
    plan = Plan(Planned(name=name, retries=0) for name in ("good", "new", "newer"))
    text = "[[jobs]]\nname = 'x'\nfor_each = '*'\n"
    told = ["the jobs file: 2 jobs are new", "the jobs file: 1 job is gone"]
    assert [*sayings(text, text, plan, past, frozenset())] == [*sayings("", text, plan, past, frozenset())] == told
    assert [*sayings(text, text, past.plan, past, frozenset())] == []
    assert depends_on_disk(text)
    assert not depends_on_disk(BEFORE)


def test_failing_fast_takes_a_number_or_none() -> None:
    """The name of a file that follows is no number."""
    for arguments in (["--fail-fast", "nowhere.toml"], ["--fail-fast", "2", "nowhere.toml"], ["--fail-fast=x"]):
        result = CliRunner().invoke(main, ["run", *arguments])
        assert ("nowhere.toml" in result.stderr) == (arguments != ["--fail-fast=x"])
