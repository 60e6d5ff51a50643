"""GitLab's jobs in containers whose memory follows what the same job of the same project needed before."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from executor_docker import DockerConfig, DockerExecutor
from executor_docker._owner import Owner
from fleeting.plugins import structure
from gitlab_jobs import Job, JobInfo
from taskscaler.executors import MemoryLimit
from taskscaler_gitlab import RunnerSettings
from taskscaler_gitlab._settings import OwnSettings, TailorSettings
from taskscaler_gitlab.runner import memory_limit_of
from tests.fleeting_docker_engine.daemons import Daemon
from tests.taskscaler_gitlab.desks import Desk, Stopped, desk_on, script
from tests.taskscaler_gitlab.test_jobs_in_containers import nothing_but_volumes, settings_of, until_logged

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("nothing_but_volumes")]

__all__ = ["nothing_but_volumes"]

MIB = 1 << 20
USUAL, LEAST, MOST = 32, 8, 256
"""In MiB: what the runner gives, and the bounds of what is made of that."""

KILLED = f"twice the {USUAL} MiB at which an earlier run was killed"
CUSTOM: dict[str, Any] = {"name": "a runner", "url": "https://gitlab.example.com", "token": "glrt-0123456789"}


@pytest.fixture
async def desk(docker: Daemon, tmp_path: Path) -> AsyncIterator[Desk]:
    """A GitLab, and an instance with a daemon, whose runner tailors."""
    settings: dict[str, Any] = {
        "executor": "docker-autoscaler",
        "docker": settings_of(memory=f"{USUAL}m"),
        "taskscaler": OwnSettings(tailor_memory=TailorSettings(max=f"{MOST}m", min=f"{LEAST}m")),
    }
    given = {**RunnerSettings(**CUSTOM, **settings).container_settings(), "socket": docker.socket}

    def make() -> DockerExecutor:
        return DockerExecutor(structure({"pull_policy": ["never"], **given}, DockerConfig), Owner(tmp_path / "owner"))

    async with desk_on(tmp_path, make, **settings) as made:
        yield made


def of(job: Job, name: str, project: str = "group/project") -> Job:
    """The same job, by another name or of another project."""
    return evolve(job, job_info=JobInfo(name=name, project_id=7, project_full_path=project))


def needing(mib: int, after: Sequence[str] = ()) -> Job:
    """A job that needs so much memory."""
    return script(f"dd if=/dev/zero of=/dev/null bs={mib}M count=1", "echo has had it", after=after)


async def limit_of(desk: Desk, job: Job) -> MemoryLimit:
    """Run a job; returns what is known of its limit, which its log says too if it is not the usual one."""
    ended = await desk.run(job)
    found, log = memory_limit_of(desk.place(ended.job)), desk.log(ended)
    assert found is not None, log
    assert found.reached == (ended.state.value == "failed"), log
    assert ("Memory limit: " in log) == bool(found.why), log
    assert found.why in log
    return found


async def test_a_job_that_leaks_is_killed_gets_more_and_is_done_on_the_retry(desk: Desk) -> None:
    """GitLab's retry is another job of the same name. Of another project, or another name, nothing is known."""
    leaks = of(needing(USUAL + 8, after=["echo after"]), "leaks")
    ended = await desk.run(leaks)
    log = desk.log(ended)
    assert (ended.state.value, ended.failure_reason) == ("failed", "script_failure"), log
    assert f"needed more memory than its {USUAL} MiB and was killed; its next run gets up to {2 * USUAL} MiB" in log
    assert memory_limit_of(desk.place(ended.job)) == MemoryLimit(size=USUAL * MIB, reached=True)
    assert await limit_of(desk, leaks) == MemoryLimit(size=2 * USUAL * MIB, by="killed", why=KILLED)
    for other in (of(leaks, "other"), of(leaks, "leaks", "group/other")):
        assert await limit_of(desk, other) == MemoryLimit(size=USUAL * MIB, reached=True)


async def test_jobs_that_use_little_get_less(desk: Desk) -> None:
    """Once five runs are known; no less than the operator's least."""
    small = of(script("echo small"), "small")
    sizes = [(await limit_of(desk, small)) for _ in range(6)]
    assert [(each.size, each.by) for each in sizes[:5]] == [(USUAL * MIB, "usual")] * 5
    assert sizes[5].by == "measured"
    assert LEAST * MIB <= sizes[5].size < USUAL * MIB
    assert "that 95% of the last 5 runs needed" in sizes[5].why


async def test_what_set_the_limit_is_known_after_a_restart(desk: Desk) -> None:
    """By the manager that goes on with the job; and what it needed counts for the next one, once."""
    waits = of(script("echo begun; sleep 2; dd if=/dev/zero of=/dev/null bs=40M count=1"), "waits")
    assert (await limit_of(desk, of(needing(USUAL + 8), "waits"))).reached

    async def stop(job: Job, _: object) -> None:
        await until_logged(desk, job, "\nbegun")
        raise Stopped

    taken = await desk.take(waits)
    await desk.carry_out(taken, meanwhile=stop)
    await desk.carry_out(taken, is_again=True)
    assert (await desk.gitlab.ended(taken.id)).state.value == "success", desk.log(taken)
    assert memory_limit_of(desk.place(taken)) == MemoryLimit(size=2 * USUAL * MIB, by="killed", why=KILLED)
