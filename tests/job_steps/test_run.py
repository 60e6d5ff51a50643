"""The core that says how steps go on: for all trees of functions, and whatever happens to their commands."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from attrs import frozen
from hypothesis import given
from hypothesis import strategies as st

from job_steps import Exec, Function, LocalReference, Origin, Parameter, Status, Step, StepResult, Variable
from job_steps._run import Action, Execute, Finish, Load, Run, Settings

SECRET = "sesame-open-up"


@frozen
class Leaf:
    """A function with a command: how that ends, and what it writes."""

    code: int
    outputs: bytes | None
    exports: bytes


@frozen
class Branch:
    """A function with steps."""

    below: "tuple[Leaf | Branch | None, ...]"
    """None is one that cannot be loaded."""


def line(name: str, value: object) -> bytes:
    """Write one line of a file for outputs or exports."""
    return json.dumps({"name": name, "value": value}).encode() + b"\n"


leaves = st.builds(
    Leaf,
    st.sampled_from([0, 0, 0, 0, 0, 3, -9]),
    st.sampled_from([line("v", "x"), line("v", "x"), line("v", SECRET), line("v", 1), b"no", b"", None]),
    st.sampled_from([b"", line("E", "exported"), line("E", f"with {SECRET}"), line("E", [1])]),
)
trees = st.recursive(
    leaves | st.none(), lambda below: st.lists(below, max_size=4).map(lambda each: Branch(tuple(each))), max_leaves=12
)


def function_of(tree: Leaf | Branch) -> Function:
    """Make a function of a tree; each step is given a secret, and all have an output."""
    outputs = {"v": Parameter(kind="string", default="default")}
    inputs = {"token": Parameter(kind="string", is_sensitive=True), "text": Parameter(kind="string", default="")}
    if isinstance(tree, Leaf):
        command = ("run", "${{ inputs.token }} ${{ env.GIVEN }}", "${{ output_file }}")
        return Function(source="f", inputs=inputs, outputs=outputs, exec=Exec(command=command))
    steps = tuple(
        Step(
            name=f"s{number}",
            reference=LocalReference(f"./{number}"),
            inputs={"token": "${{ vars.TOKEN }}", "text": f"{number} ${{{{ vars.TOKEN }}}}"},
            env={"GIVEN": f"${{{{ env.GIVEN }}}}{number}"},
        )
        for number in range(len(tree.below))
    )
    values = {"v": "${{ steps.s0.outputs.v }}"} if steps else {"v": "none"}
    return Function(source="f", inputs=inputs, outputs=outputs, steps=steps, output_values=values)


def started(tree: Branch) -> Run:
    """Make a run of a tree."""
    settings = Settings(
        origin=Origin(kind="job", root="/job", directory="/job"),
        work_dir="/job",
        env={"GIVEN": "g", "PATH": "/bin"},
        variables=[Variable(key="TOKEN", value=SECRET, is_masked=True)],
        inputs={"token": SECRET},
        files="/files",
    )
    return Run(function_of(tree), settings)


def found(tree: Branch, path: Sequence[str]) -> Leaf | Branch | None:
    """Find what a path leads to."""
    here: Leaf | Branch | None = tree
    for name in path:
        assert isinstance(here, Branch)
        here = here.below[int(name[1:])]
    return here


def play(tree: Branch, *, until: int = 1000) -> Iterator[tuple[Run, Action]]:
    """Run a tree, at most so many actions far; gives what is to be done each time."""
    run = started(tree)
    action = run.start(0.0)
    for now in range(1, until + 1):
        yield run, action
        if isinstance(action, Finish):
            return
        what = found(tree, action.path)
        if isinstance(action, Load):
            origin = Origin(kind="job", root="/job", directory=f"/job/{'/'.join(action.path)}")
            action = run.failed("not there", now) if what is None else run.loaded(function_of(what), origin, now)
        else:
            assert isinstance(what, Leaf)
            action = run.executed(what.code, what.outputs, what.exports, now)


def paths(tree: Leaf | Branch | None, here: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Leaf | None]]:
    """Go through the steps of a tree that have a command or cannot be loaded, in the order in which they run."""
    if isinstance(tree, Branch):
        for number, each in enumerate(tree.below):
            yield from paths(each, (*here, f"s{number}"))
    else:
        yield here, tree


def is_well(leaf: Leaf | None) -> bool:
    """Whether a step succeeds, by what the documentation says."""
    if leaf is None or leaf.code or leaf.outputs is None:
        return False
    good_outputs = leaf.outputs in (b"", line("v", "x"), line("v", SECRET))
    return good_outputs and leaf.exports != line("E", [1])


@given(trees.map(lambda tree: tree if isinstance(tree, Branch) else Branch((tree,))))
def test_steps_run_in_order_until_one_fails(tree: Branch) -> None:
    """Each command once, the first that fails is the last, and the tree says so; no step runs after the end."""
    actions = [action for _, action in play(tree)]
    *before, last = actions
    assert isinstance(last, Finish)
    ran = [action.path for action in before if isinstance(action, Execute)]
    expected: list[tuple[str, ...]] = []
    succeeds = True
    for path, leaf in paths(tree):
        expected += [path] if leaf else []
        if not is_well(leaf):
            succeeds = False
            break
    assert ran == expected
    assert (last.result.status is Status.SUCCESS) == succeeds
    statuses = [each.status for _, each in last.result.walk()]
    assert Status.RUNNING not in statuses
    failed = last.result.failed()
    assert (failed is None) == succeeds
    assert all(each.ended is not None for _, each in last.result.walk())


@given(trees.map(lambda tree: tree if isinstance(tree, Branch) else Branch((tree,))), st.integers(1, 20))
def test_the_tree_grows_and_can_be_cut_anywhere(tree: Branch, steps: int) -> None:
    """While it grows, only what leads to the current step is running; a run that is cancelled has nothing running."""
    last: tuple[Run, Action] | None = None
    for run, action in play(tree, until=steps):
        last = run, action
        if not isinstance(action, Finish):
            running = [path for path, each in run.result.walk() if each.status is Status.RUNNING]
            assert running == [action.path[:length] for length in range(len(action.path) + 1)]
    assert last
    run, action = last
    if not isinstance(action, Finish):
        ended = run.cancelled(99.0)
        assert ended.result.status is Status.CANCELLED
        assert all(each.status is not Status.RUNNING for _, each in ended.result.walk())
        assert ended.result == run.result


@given(trees.map(lambda tree: tree if isinstance(tree, Branch) else Branch((tree,))))
def test_results_are_equal_for_equal_facts_and_show_no_secret(tree: Branch) -> None:
    """They survive JSON, and what commands get is whole."""
    ends: list[StepResult] = []
    for _ in range(2):
        for run, action in play(tree):
            if isinstance(action, Execute):
                assert action.command[1].startswith(f"{SECRET} g")
                assert action.env["GIVEN"] == "g" + "".join(name[1:] for name in action.path)
            assert SECRET not in json.dumps(run.result.as_dict()) + run.take_log()
        assert isinstance(action, Finish)
        ends.append(action.result)
    assert ends[0] == ends[1]
    assert StepResult.from_dict(json.loads(json.dumps(ends[0].as_dict()))) == ends[0]


def test_there_is_an_end_to_the_number_of_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions that call two each are many, twenty levels down."""
    monkeypatch.setattr("job_steps._run.MAX_STEPS", 50)
    tree: Any = Leaf(0, b"", b"")
    for _ in range(10):
        tree = Branch((tree, tree))
    *_, (_, last) = play(tree)
    assert isinstance(last, Finish)
    assert last.result.error
    assert last.result.error.endswith("more than 50 steps in one run")
