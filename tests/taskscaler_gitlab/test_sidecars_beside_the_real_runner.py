"""The same jobs on real gitlab-runners that our service starts on its fleet, and on one that asks GitLab itself."""

from pathlib import Path

import pytest

from gitlab_jobs.testing import FakeGitLab
from tests.gitlab_jobs.serving import served
from tests.peers.ours import our_runner
from tests.peers.pipeline import PIPELINE, Operator, Planned, played, sections_of
from tests.peers.real import RealRunner
from tests.taskscaler_gitlab.test_beside_the_real_runner import script_of

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.timeout(400), pytest.mark.real_runner]

SIDECAR = """
[runners.taskscaler]
run_with = "sidecar"
[runners.taskscaler.sidecar]
binary = "{program}"
shell = "bash"
"""

OTHERWISE = {
    "absent command",  # bash says in which line, and there are two variables more before it
    "standard error",  # two streams are read apart
    "cancelled script",  # so many ticks as there was time for
    "cancelled after",
    "cancelled unclaimed",  # it may have begun
    "environment",  # has the directories' names
    "bytes",
}
"""Jobs whose lines are not the same, most of them not even twice at GitLab Runner itself."""


@pytest.fixture
def anyio_backend() -> str:
    """One is enough: what differs is programs of their own."""
    return "asyncio"


def outcome(operator: Operator, planned: Planned) -> tuple[object, ...]:
    """What GitLab has of a job's end."""
    stored = operator.stored(planned.name)
    return stored.state, stored.failure_reason, stored.exit_code, operator.artifacts(planned.name)


async def test_jobs_of_every_kind(tmp_path: Path) -> None:
    """Each ends as it does with the runner alone, and prints and leaves the same."""
    for place in ("real", "ours", "theirs"):
        (tmp_path / place).mkdir()
    real = RealRunner(tmp_path / "real")
    if real.version < (17, 1):
        pytest.skip("sidecars are version 17.1 or later")
    ours, theirs = FakeGitLab(tmp_path / "ours"), FakeGitLab(tmp_path / "theirs")
    more = SIDECAR.format(program=real.program)
    async with served(ours) as url, our_runner(tmp_path / "runner", url, ours.runner_token, more=more):
        through = await played(ours)
    async with served(theirs) as url, real.running(url, theirs.runner_token):
        alone = await played(theirs)
    assert {each.name: outcome(through, each) for each in PIPELINE} == {
        each.name: outcome(alone, each) for each in PIPELINE
    }
    for each in PIPELINE:
        logs = [bytes(operator.stored(each.name).trace) for operator in (through, alone)]
        if each.cancel is None:
            assert sections_of(logs[0]) == sections_of(logs[1]), each.name
        if each.name not in OTHERWISE:
            assert script_of(logs[0]) == script_of(logs[1]), each.name
