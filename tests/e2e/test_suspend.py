"""A job that sleeps on a real instance, which sleeps with it, over a restart of the manager."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from fleeting import SqliteJournal
from fleeting.groups.local import LocalConfig, LocalGroup
from taskscaler import InstanceEvent, Pool, ScalerEvent, Taskscaler
from tests.fleeting.local_agents import agent_of, watched

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def scaling(tmp_path: Path, told: list[str], *, delete: bool = False) -> AsyncIterator[Taskscaler]:
    """A scaler over local instances, that remembers."""
    group = LocalGroup(LocalConfig(directory=str(tmp_path / "group"), name="test"))

    def note(event: ScalerEvent) -> None:
        if isinstance(event, InstanceEvent):
            told.append(event.state)

    async with Taskscaler(
        Pool(group, update_interval_when_expecting=0.05),
        journal=SqliteJournal(tmp_path / "journal.sqlite"),
        delete_instances_on_shutdown=delete,
        observers=[note],
    ) as scaler:
        yield scaler


async def test_a_suspended_job_finds_its_files_after_a_restart(tmp_path: Path) -> None:
    """No process is left of its instance while it sleeps; the next manager resumes it, with its slot and its files."""
    told: list[str] = []
    async with scaling(tmp_path, told) as scaler:
        lease = await scaler.acquire_lease("job")
        async with lease.dial() as connection:
            await connection.run("echo half done >work", check=True)
        with watched(agent_of(tmp_path / "group", lease.instance)) as (agent,):
            lease.suspend()
            await agent.ended()
        assert "suspended" in told
        assert "is suspended" in str(await scaler.explain(instance=lease.instance))
    told.clear()
    async with scaling(tmp_path, told, delete=True) as scaler:
        again = await scaler.resume("job")
        assert (again.instance, again.slot) == (lease.instance, lease.slot)
        async with again.dial() as connection:
            assert (await connection.run("cat work", check=True)).stdout == b"half done\n"
        again.release()
    assert "resuming" in told
    assert not (tmp_path / "group").exists()
