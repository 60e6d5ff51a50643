"""The table of GitLab's behaviours, run by our runner, and by GitLab's where there is one."""

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from attrs import frozen

from job_steps import JobStepsError, Status, Variable
from tests.job_steps.behaviours import CASES, ECHO, Case
from tests.job_steps.running import Project


@frozen
class Outcome:
    """What can be compared between runners."""

    succeeded: bool
    outputs: Mapping[str, Mapping[str, Any]]
    """Of the steps that succeeded, by path; the last of a name."""
    exports: Mapping[str, Mapping[str, str]]
    """The same, of those that exported something."""
    failing: str
    """The step that failed, by path: as far as its name is reported."""
    log: list[str]


def expected(case: Case, project: Project) -> Outcome:
    """What has to come out."""
    log = case.log.replace("DIR", str(project.directory))
    is_failing = bool(case.failing) or case in REFUSED
    return Outcome(not is_failing, case.succeed, case.exports, case.failing, log.splitlines())


REFUSED = tuple(each for each in CASES if not each.failing and not each.succeed and each.steps != "[]")
"""Cases that are refused as a whole, before any step."""


def prepare(case: Case, project: Project) -> str:
    """Write the functions of a case; returns its steps."""
    for name, text in {"echo": ECHO, **case.functions}.items():
        directory, _, file = name.rpartition("/")
        is_file = "." in file
        project.add(directory if is_file else name, text, file=file if is_file else "step.yml")
    return case.steps.replace("DIR", str(project.directory))


@pytest.mark.anyio
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_a_behaviour_is_ours(case: Case, project: Project) -> None:
    """Same status, outputs, exports and lines of the log."""
    steps = prepare(case, project)
    variables = [Variable(key=key, value=value) for key, value in case.variables.items()]
    try:
        result = await project.run(steps, env=case.env, variables=variables)
    except JobStepsError:
        assert case in REFUSED
        return
    done = {"/".join(path): each for path, each in result.walk() if path and each.status is Status.SUCCESS}
    failing = [("/".join(path)) for path, each in result.walk() if each.status is Status.FAILURE]
    found = Outcome(
        result.status is Status.SUCCESS,
        {path: each.outputs for path, each in done.items()},
        {path: each.exports for path, each in done.items() if each.exports},
        failing[-1] if failing else "",
        project.lines,
    )
    assert found == expected(case, project)


@pytest.mark.step_runner
@pytest.mark.parametrize("case", [each for each in CASES if not each.differs], ids=lambda case: case.name)
def test_a_behaviour_is_gitlabs(case: Case, project: Project) -> None:
    """The step runner does the same: the table is not only ours."""
    steps = prepare(case, project)
    done = subprocess.run(
        [os.environ["STEP_RUNNER"], "ci", "--write-steps-results"],
        cwd=project.directory,
        env={"PATH": os.environ["PATH"], **case.env, **case.variables, "STEPS": steps},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    log, error = said(done.stdout)
    results = project.directory / "step-results.json"
    whole = json.loads(results.read_text()) if results.exists() else {}
    tree = dict(walk(whole, ())) if whole else {}
    outcome = expected(case, project)
    assert (done.returncode == 0, log) == (outcome.succeeded, outcome.log), done.stdout
    assert {path: each.get("outputs", {}) for path, each in tree.items()} == outcome.outputs
    assert {path: each["exports"] for path, each in tree.items() if each.get("exports")} == outcome.exports
    assert all(f'step "{name}"' in error for name in filter(None, outcome.failing.split("/")))


def said(output: str) -> tuple[list[str], str]:
    """Divide what the step runner prints into the log and the error."""
    _, _, log = output.partition("***** END WARNING *****\n")
    log, _, error = f"\n{log}".partition("\nError: ")
    return log.removeprefix("\n").splitlines(), error


def walk(result: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Go through a tree of its results: those that succeeded."""
    for each in result.get("subStepResults", []):
        below = (*path, each.get("step", {}).get("name", ""))
        yield from walk(each, below)
        if each["status"] == "success":
            yield "/".join(below), each


def test_the_table_is_big_enough() -> None:
    """Eighty cases or more that GitLab's runner can be compared with, no two the same."""
    assert len({each.name for each in CASES}) == len(CASES)
    assert sum(not each.differs for each in CASES) >= 80
    assert all(each.source for each in CASES)
    assert Path(__file__).with_name("behaviours.py").exists()
