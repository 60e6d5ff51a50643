"""GitLab's jobs on an instance that is reached over SSH: a real server, and nothing of ours on it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gitlab_jobs import Cache, Job
from gitlab_jobs.client import Reporting
from taskscaler.executors.instance import InstanceConfig, InstanceExecutor
from taskscaler.executors.runs import Runs
from taskscaler_gitlab import RunnerSettings
from tests.fleeting.sshd import dialled, sshd
from tests.taskscaler.leased import Slot
from tests.taskscaler_gitlab.desks import Desk, Stopped, after, desk_at, leaving, script
from tests.taskscaler_gitlab.test_running_jobs import cancels_at, seen

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    """A GitLab, and an SSH server; jobs have a directory of their own there."""
    settings = RunnerSettings(
        url="https://gitlab.example.com",
        token="glrt-0123456789",
        executor="instance",
        builds_dir=str(tmp_path / "builds"),
        cache_dir=str(tmp_path / "cache"),
    )
    with sshd(tmp_path / "sshd") as server:
        slot = Slot(server.info.id, lambda: dialled(server.info))
        config = InstanceConfig(base=str(tmp_path / "base"))
        async with desk_at(
            tmp_path, slot, lambda: InstanceExecutor(config, Runs("instance", tmp_path / "owner")), settings
        ) as made:
            yield made


async def test_a_job_with_all_that_jobs_have(desk: Desk) -> None:
    """Artifacts, a cache, an after_script, and a second job that gets them."""
    cache = (Cache(key="k", paths=("kept",), policy="pull-push", when="on_success"),)
    lines = ("mkdir -p kept out", "echo 1 >> kept/f; cat kept/f", "cp kept/f out")
    first = await desk.run(
        script(*lines, after=["echo after $CI_JOB_STATUS"], artifacts=(leaving("out"),), cache=cache)
    )
    assert first.state.value == "success", desk.log(first)
    assert "\nafter success\n" in desk.log(first)
    assert desk.archive(first.job.id) == {"out/f": b"1\n"}
    second = await desk.run(script("cat out/f kept/f; exit 3", dependencies=after(first.job), cache=cache))
    assert second.exit_code == 3, desk.log(second)
    assert "\n1\n1\n" in desk.log(second)


def has_ended(shell: Path) -> bool:
    """Whether the shell that wrote its number down is no more."""
    return not Path(f"/proc/{shell.read_text().strip()}").exists()


async def test_a_job_is_canceled_and_outlives_its_manager(desk: Desk, tmp_path: Path) -> None:
    """Its script is stopped, the manager is killed in what comes after it, and the next one has the whole log."""
    begun, late, go, shell = (tmp_path / name for name in ("begun", "late", "go", "shell"))
    wait = f"touch {late}; until [ -e {go} ]; do sleep 0.05; done"
    lines = f"echo script; echo $$ > {shell}; touch {begun}; sleep 1000"
    taken = await desk.take(script(lines, after=["echo after", wait, "echo end"]))

    async def cancel_and_stop(job: Job, report: Reporting) -> None:
        await cancels_at(begun)(job, report)
        await seen(late)
        assert has_ended(shell)
        raise Stopped

    await desk.carry_out(taken, meanwhile=cancel_and_stop)
    go.touch()
    desk.gitlab.cancel(taken.id)
    await desk.carry_out(taken, is_again=True)
    job = await desk.gitlab.ended(taken.id)
    assert [desk.log(job).count(f"\n{word}\n") for word in ("script", "after", "end")] == [1, 1, 1]
