"""Sources of real repositories on our runner and on the real one: the same files, the same history, no token left."""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from attrs import evolve

from gitlab_jobs import Job
from gitlab_jobs.testing import FakeGitLab
from tests.gitlab_jobs.serving import served
from tests.peers.ours import our_runner
from tests.peers.pipeline import Operator, Planned, job, left, said, text_of
from tests.peers.real import RealRunner
from tests.taskscaler_gitlab.projects import Project, Server

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.real_runner]

LOOK = (
    "git rev-parse HEAD; git log --format=%s | wc -l",
    "git status --short --branch | head -1",
    "find . -path ./.git -prune -o -type f -print | sort; cat file",
    "find . -name config -path '*.git*' -exec grep -l glcbt- {} + || echo no token in a file",
)
"""What a job's script shows of its sources."""


@pytest.fixture
def anyio_backend() -> str:
    """One is enough: what differs is programs of their own."""
    return "asyncio"


@pytest.fixture
def planned(project: Project) -> list[Planned]:
    """A clone, an update of it that has a file to remove, and a clone in its place."""
    first = project.commit({"file": "first\n", "gone": "later"})
    (project.work / "gone").unlink()
    second = project.commit({"file": "second\n"})
    wanted = {"clone": (first, "clone"), "fetch": (second, "fetch"), "clone again": (first, "clone")}
    jobs = [
        with_sources(job(name, *LOOK, "echo left > untracked", artifacts=(left(untracked=True),)), project, *how)
        for name, how in wanted.items()
    ]
    return [Planned(job=each, needs=(jobs[at - 1].job_info.name,) if at else ()) for at, each in enumerate(jobs)]


def with_sources(plain: Job, project: Project, sha: str, strategy: str) -> Job:
    """A job that wants a commit."""
    git = project.job(sha)
    variables = (said("GIT_STRATEGY", strategy),)
    info = evolve(git.job_info, name=plain.job_info.name)
    return evolve(plain, git_info=git.git_info, job_info=info, variables=variables, allow_git_fetch=True)


async def run(
    server: Server, gitlab: FakeGitLab, runner: AbstractAsyncContextManager[object], planned: Sequence[Planned]
) -> Operator:
    """Run all; the git server knows the tokens of the jobs that run."""
    operator = Operator(gitlab, planned)
    operator.handed_out = lambda stored: server.allow(stored.job.token)
    async with runner:
        await operator.see_to_the_end()
    return operator


async def test_the_same_sources(server: Server, planned: list[Planned], tmp_path: Path) -> None:
    """To the file and the commit; what an earlier job left is not there, and what this one leaves goes to GitLab."""
    real = RealRunner(tmp_path / "real")
    for place in ("real", "ours", "theirs"):
        (tmp_path / place).mkdir()
    ours, theirs = FakeGitLab(tmp_path / "ours"), FakeGitLab(tmp_path / "theirs")
    async with served(ours) as url:
        mine = await run(server, ours, our_runner(tmp_path / "runner", url, ours.runner_token), planned)
    async with served(theirs) as url:
        its = await run(server, theirs, real.running(url, theirs.runner_token, concurrent=1), planned)
    for each in planned:
        assert mine.differences(evolve(each, leaves={("archive", "zip"): {"untracked": b"left\n"}})) == []
        *shown, last = script_of(mine, each)
        assert shown == script_of(its, each)[:-1]
        assert last == "no token in a file"  # that of 17.9 has one
        assert mine.artifacts(each.name) == its.artifacts(each.name)


def script_of(operator: Operator, planned: Planned) -> list[str]:
    """What its script prints."""
    lines = text_of(bytes(operator.stored(planned.name).trace)).splitlines()
    begin = next(number for number, line in enumerate(lines) if line.startswith("$ git rev-parse HEAD"))
    return lines[begin : lines.index("$ echo left > untracked")]
