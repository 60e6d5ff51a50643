"""How steps went, as parts of a trace."""

import tracemalloc
from itertools import count

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from job_steps import Resources, Status, StepResult
from job_steps._results import LOST, OUT_OF_MEMORY
from job_steps.tracing import LARGEST, parts_of
from taskscaler.tracing import MOST_PARTS

SECRET = "s3cret-of-a-step"

TREE = StepResult(
    status=Status.FAILURE,
    steps=(
        StepResult(
            name="build",
            status=Status.FAILURE,
            reference="https://me:s3cret-of-a-step@gitlab.com/steps/build@v1",
            inputs={"token": SECRET},
            env={"TOKEN": SECRET},
            outputs={"text": SECRET},
            exports={"TEXT": SECRET},
            error=f"{SECRET} is wrong",
            started=10.0,
            ended=14.0,
            resources=Resources(cpu_seconds=1.5, peak_memory=1 << 20, read_bytes=7, written_bytes=8),
            steps=(
                StepResult(name="lint", status=Status.SUCCESS, command=(SECRET,), exit_code=0, started=11, ended=12),
                StepResult(name="link", status=Status.FAILURE, command=("ld",), exit_code=7, started=12, ended=14),
            ),
        ),
        StepResult(name="test", status=Status.CANCELLED, started=14, ended=14),
        StepResult(name="last", status=Status.RUNNING, started=14),
    ),
)


def test_steps_are_parts_of_what_calls_them() -> None:
    """In their order, each with how it ended, and what it has used."""
    parts = parts_of(TREE)
    assert [(each.name, each.parent, each.error) for each in parts] == [
        ("build", -1, "failed"),
        ("test", -1, "cancelled"),
        ("last", -1, "unfinished"),
        ("lint", 0, ""),
        ("link", 0, "failed"),
    ]
    assert [(each.began, each.ended) for each in parts] == [(10, 14), (14, 14), (14, None), (11, 12), (12, 14)]
    assert parts[0].attributes == {
        "taskscaler.step.path": "build",
        "taskscaler.step.function": "https://gitlab.com/steps/build@v1",
        "taskscaler.cpu_time": 1.5,
        "taskscaler.peak_memory": 1 << 20,
        "taskscaler.disk_read": 7,
        "taskscaler.disk_written": 8,
    }
    assert parts[4].attributes == {"taskscaler.step.path": "build/link", "process.exit.code": 7}


@pytest.mark.parametrize(
    ("status", "cause", "error"),
    [
        (Status.FAILURE, OUT_OF_MEMORY, "out_of_memory"),
        (Status.FAILURE, LOST, "lost"),
        (Status.FAILURE, SECRET, "failed"),
        (Status.SUCCESS, None, ""),
    ],
)
def test_a_cause_says_more_than_that_a_step_has_failed(status: Status, cause: str | None, error: str) -> None:
    """If it is one that is known: an instance may say anything."""
    (part,) = parts_of(StepResult(steps=(StepResult(name="a", status=status, cause=cause),)))
    assert part.error == error


def test_nothing_shows_what_a_step_was_given_or_said() -> None:
    """Whether that is masked or not."""
    assert SECRET not in repr(parts_of(TREE))


def test_numbers_that_no_span_can_show_are_left_out() -> None:
    """What an instance says may be any number."""
    used = Resources(cpu_seconds=float("inf"), peak_memory=LARGEST + 1, read_bytes=-1, written_bytes=LARGEST)
    step = StepResult(name="a", exit_code=-LARGEST - 2, resources=used)
    (part,) = parts_of(StepResult(steps=(step,)))
    assert part.attributes == {"taskscaler.step.path": "a", "taskscaler.disk_written": LARGEST}


def test_names_without_end_are_cut_before_they_are_joined() -> None:
    """An instance sends 16 MiB at the most; one long name may stand above a thousand steps."""
    below = StepResult(name="b", steps=(StepResult(name="c", reference="r" * (1 << 20)),))
    tree = StepResult(steps=(StepResult(name="a" * (1 << 20), steps=(below,) * 999),))
    tracemalloc.start()
    try:
        parts = parts_of(tree)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(parts) == MOST_PARTS
    assert max(len(str(text)) for part in parts for text in (part.name, *part.attributes.values())) <= 1024
    assert peak < 32 << 20


def test_of_many_steps_those_are_shown_that_say_most() -> None:
    """Those that lead to the failure, then the outermost; the first says how many are missing."""
    many = tuple(StepResult(name=f"s{number}", status=Status.SUCCESS) for number in range(99_990))
    deep = StepResult(name="fails", status=Status.FAILURE)
    for number in range(8):
        deep = StepResult(name=f"d{number}", status=Status.FAILURE, steps=(deep,))
    build = StepResult(name="build", status=Status.FAILURE, steps=(*many, deep))
    parts = parts_of(StepResult(status=Status.FAILURE, steps=(build,)))
    assert len(parts) == MOST_PARTS
    assert parts[0].attributes["taskscaler.steps_left_out"] == 100_000 - MOST_PARTS
    assert (parts[-1].name, parts[-1].error) == ("fails", "failed")
    above = [part.parent for part in parts[-9:]]
    assert above == [0, *range(MOST_PARTS - 9, MOST_PARTS - 1)]


STATES = st.sampled_from([*Status])
TREES = st.recursive(
    st.builds(StepResult, name=st.text(max_size=3), status=STATES),
    lambda below: st.builds(
        StepResult, name=st.text(max_size=3), status=STATES, steps=st.lists(below, max_size=4).map(tuple)
    ),
    max_leaves=30,
)


@given(TREES, st.integers(8, 20))
def test_whatever_the_tree_each_part_has_its_parent_before_it(tree: StepResult, most: int) -> None:
    """And the failure is among them; of a tree that is small enough, everything is."""
    numbers = count()
    marked = _numbered(tree, numbers)
    parts = parts_of(marked, most=most)
    steps = [each for path, each in marked.walk() if path]
    failed = marked.failed()
    lead = len(_lead(marked))
    assert len(parts) == min(len(steps), max(most, lead))
    assert all(-1 <= part.parent < number for number, part in enumerate(parts))
    if failed is not None and failed is not marked:
        assert failed.started in {part.began for part in parts}
    calls = {below.started: each.started for _, each in marked.walk() for below in each.steps}
    for part in parts:
        expected = marked.started if part.parent < 0 else parts[part.parent].began
        assert calls[part.began] == expected
    left_out = parts[0].attributes.get("taskscaler.steps_left_out", 0) if parts else 0
    assert left_out == len(steps) - len(parts)


def _numbered(step: StepResult, numbers: "count[int]") -> StepResult:
    """The same, in which each has a number of its own where it says when it began."""
    return evolve(step, started=float(next(numbers)), steps=tuple(_numbered(each, numbers) for each in step.steps))


def _lead(tree: StepResult) -> list[StepResult]:
    """The results that lead to the failure."""
    failed = tree.failed()
    return [each for path, each in tree.walk() if path and any(below is failed for _, below in each.walk())]
