"""The real gitlab-runner at our GitLab: whatever ``GITLAB_RUNNER`` names, with its shell executor."""

from pathlib import Path

import pytest
from attrs import evolve

from gitlab_jobs.testing import FakeGitLab, State
from tests.gitlab_jobs.serving import served
from tests.peers.pipeline import PIPELINE, Planned, job, played
from tests.peers.real import RealRunner

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.timeout(400), pytest.mark.real_runner]


@pytest.fixture
def real(tmp_path: Path) -> RealRunner:
    """It, in a directory of its own."""
    (tmp_path / "real").mkdir()
    return RealRunner(tmp_path / "real")


@pytest.fixture
def gitlab(tmp_path: Path) -> FakeGitLab:
    """One that accepts each final call once before it is done."""
    (tmp_path / "gitlab").mkdir()
    return FakeGitLab(tmp_path / "gitlab")


@pytest.mark.parametrize("reason", [None, "script_failure"])
async def test_a_job_that_it_runs_alone(real: RealRunner, gitlab: FakeGitLab, reason: str | None) -> None:
    """Asked for, claimed, logged and ended; its checksum is that of what we keep, else it would come again."""
    number = gitlab.enqueue(job("real", f"echo hello from the job; exit {3 if reason else 0}"))
    async with served(gitlab) as url:
        await real.once(url, gitlab.runner_token)
    stored = gitlab.server.jobs[number]
    assert stored.state is (State.FAILED if reason else State.SUCCESS), gitlab.log(number)
    assert (stored.failure_reason, stored.exit_code) == (reason, 3 if reason else None)
    assert b"hello from the job\n" in gitlab.log(number)


@pytest.mark.parametrize("how", ["run", "run-single"])
async def test_jobs_of_every_kind(real: RealRunner, gitlab: FakeGitLab, how: str) -> None:
    """Artifacts up and down, caches, failures, a large log, a cancellation in each state: each as it is to end."""
    planned = [real_end(each, real) for each in PIPELINE]
    run = real.running if how == "run" else real.alone
    async with served(gitlab) as url, run(url, gitlab.runner_token):
        operator = await played(gitlab, planned)
    assert {each.name: found for each in planned if (found := operator.differences(each))} == {}
    assert len(gitlab.log(operator.numbers["large"])) > 20 << 20


def real_end(planned: Planned, real: RealRunner) -> Planned:
    """How a job ends at the real runner, where that is another end than at ours."""
    match planned.name:
        case "killed":  # Go has no exit code for a process that was killed
            return evolve(planned, code=-1)
        case "absent command":  # the shell executor's own shell says so
            return evolve(planned, code=1)
        case "cancelled unclaimed" if not real.claims:  # it learns that with the first of its log
            return evolve(planned, never="")
        case "cancelled script" if not real.is_graceful:
            return evolve(planned, prints=("begins",), leaves={})
    return planned
