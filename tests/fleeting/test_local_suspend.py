"""Instances of the `local` group that sleep: directories without agents, until they are resumed."""

from pathlib import Path

import anyio
import pytest

from fleeting import LoopClock, Settings, State, Unreachable
from fleeting.groups.local import LocalConfig, LocalGroup
from tests.fleeting.local_agents import Heard, agent_of, dialled, kill, names, opened, seen, started, watched

pytestmark = pytest.mark.anyio


async def asleep(group: LocalGroup, instance: str) -> None:
    """Wait until it sleeps."""
    await seen(group, lambda view: view[instance].state is State.SUSPENDED)


async def awake(group: LocalGroup, instance: str) -> None:
    """Wait until it runs."""
    await seen(group, lambda view: view[instance].state is State.RUNNING)


async def test_files_stay_and_processes_end(tmp_path: Path) -> None:
    """As on a machine that is stopped and started again: the same id, the same files, nothing that ran."""
    async with opened(tmp_path / "group") as group:
        (instance,) = await started(group)
        heard = Heard()
        async with dialled(group, instance) as connection:
            await connection.run("echo kept >file; echo $$", stdout=heard, check=True)
        agent = agent_of(tmp_path / "group", instance)
        with watched(agent) as (process,):
            assert await group.suspend([instance]) == [instance]
            await process.ended()
        await asleep(group, instance)
        assert names(tmp_path / "group" / instance) == ["agent.log", "instance.json", "suspended", "work"]
        assert await group.resume([instance]) == [instance]
        await awake(group, instance)
        assert agent_of(tmp_path / "group" / instance / "..", instance) != agent
        async with dialled(group, instance) as connection:
            assert (await connection.run("cat file", check=True)).stdout == b"kept\n"


async def test_what_runs_in_it_is_ended(tmp_path: Path) -> None:
    """A command whose instance is suspended under it dies with the agent, and whoever waits for it learns of that."""
    async with opened(tmp_path / "group") as group, anyio.create_task_group() as tasks:
        (instance,) = await started(group)
        heard = Heard()

        async def work() -> None:
            async with dialled(group, instance) as connection:
                with pytest.raises(Unreachable):
                    await connection.run("echo $$; exec sleep 1000", stdout=heard)

        tasks.start_soon(work)
        with watched(*await heard.pids(1)) as (command,):
            await group.suspend([instance])
            await command.ended()


async def test_one_that_sleeps_survives_its_manager_and_counts(tmp_path: Path) -> None:
    """No agent ends by itself where there is none; the next manager finds it, and there is room for no other."""
    async with opened(tmp_path / "group", max_size=1) as group:
        (instance,) = await started(group)
        await group.suspend([instance])
        await asleep(group, instance)
        await group.shutdown()
        other = LocalGroup(LocalConfig(directory=str(tmp_path / "group"), name="test", max_size=1))
        await other.init(Settings(owner="other", clock=LoopClock()))
        assert await other.increase(1, intent="more") == 0
        assert await other.resume([instance]) == [instance]
        await awake(other, instance)
        await other.shutdown()
        await group.init(Settings(owner="test", clock=LoopClock()))


async def test_one_that_is_killed_while_it_wakes_sleeps_on(tmp_path: Path) -> None:
    """Its files are not lost with the agent that never came to listen; it shows as resuming until then."""
    config = LocalConfig(directory=str(tmp_path / "group"), name="test", resume_time=1000)
    async with opened(tmp_path / "group") as group:
        (instance,) = await started(group)
        await group.suspend([instance])
        await asleep(group, instance)
        await group.shutdown()
        slow = LocalGroup(config)
        await slow.init(Settings(owner="slow", clock=LoopClock()))
        await slow.resume([instance])
        pid_file = tmp_path / "group" / instance / "agent.pid"
        view = await seen(slow, lambda _: pid_file.exists() and bool(pid_file.read_text()))
        assert view[instance].state is State.RESUMING
        assert await slow.resume([instance]) == [instance]
        with watched(agent_of(tmp_path / "group", instance)) as (process,):
            kill(agent_of(tmp_path / "group", instance))
            await process.ended()
        await asleep(slow, instance)
        await slow.shutdown()
        await group.init(Settings(owner="test", clock=LoopClock()))
        assert await group.resume([instance]) == [instance]
        await awake(group, instance)


async def test_one_that_is_killed_once_it_has_woken_is_lost(tmp_path: Path) -> None:
    """Like any other: that it slept before does not bring it back."""
    async with opened(tmp_path / "group") as group:
        (instance,) = await started(group)
        await group.suspend([instance])
        await asleep(group, instance)
        await group.resume([instance])
        await awake(group, instance)
        kill(agent_of(tmp_path / "group", instance))
        await seen(group, lambda view: instance not in view)


async def test_only_what_runs_can_be_suspended(tmp_path: Path) -> None:
    """One that boots or ends is not accepted, nor one that is not there; one that sleeps is deleted like any other."""
    async with opened(tmp_path / "group", boot_time=1000) as group:
        await group.increase(1, intent="boots")
        (boots,) = (await group.update()).instances
        assert await group.suspend([boots, "test-000000000000"]) == []
        assert await group.resume([boots, "test-000000000000"]) == []
    async with opened(tmp_path / "group") as group:
        (instance,) = await started(group)
        await group.suspend([instance])
        await asleep(group, instance)
        assert await group.suspend([instance]) == [instance]
        await group.decrease([instance])
        assert await group.resume([instance]) == []
        await seen(group, lambda view: instance not in view)
