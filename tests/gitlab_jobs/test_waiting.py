"""What a runner costs its GitLab while there is nothing to do; in virtual time."""

from pathlib import Path

import anyio
import pytest

from fleeting.testing import virtual_time
from gitlab_jobs import Job
from gitlab_jobs.client import GitLabClient, Runner, info
from gitlab_jobs.testing import URL, FakeGitLab

anyio_backend = virtual_time
pytestmark = pytest.mark.anyio


async def test_an_idle_runner_asks_at_most_twice_a_minute(tmp_path: Path) -> None:
    """GitLab holds its requests, and answers at once when there is a job."""
    gitlab = FakeGitLab(tmp_path)
    async with GitLabClient(URL, transport=gitlab.transport()) as client:
        runner = Runner(client, gitlab.runner_token, info=info())
        with anyio.move_on_after(3600):
            while await runner.ask() is None:
                pass
        assert 60 <= gitlab.calls["request"] <= 120
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(runner.ask)
            await anyio.sleep(20)
            assert gitlab.held == 1
            began = anyio.current_time()
            gitlab.enqueue(Job(id=0, token=""))
        assert anyio.current_time() - began < 1


async def test_a_runner_that_waits_gets_a_job_that_another_one_has_left(tmp_path: Path) -> None:
    """As soon as the time is over in which it is to be acknowledged, not with the next request."""
    gitlab = FakeGitLab(tmp_path, acknowledgement=20.0)
    gitlab.enqueue(Job(id=0, token=""))
    features = info("two_phase_job_commit")
    async with GitLabClient(URL, transport=gitlab.transport()) as client:
        dead, runner = (Runner(client, gitlab.runner_token, info=features) for _ in range(2))
        assert await dead.ask() is not None
        assert await runner.ask() is None
        job = await runner.ask()
        assert job is not None
        assert job.id == 2
        assert 20.0 <= anyio.current_time() < 30.0
