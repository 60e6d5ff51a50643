"""Jobs on a fixed list of hosts, managed by a scaler with a journal, over a restart."""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from fleeting import SqliteJournal
from fleeting.groups.static import StaticGroup
from taskscaler import Policy, Pool, Taskscaler
from tests.fleeting import static_hosts
from tests.fleeting.static_hosts import Hosts

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def scaling(hosts: Hosts, *, delete: bool = False) -> AsyncIterator[Taskscaler]:
    """A scaler over the hosts, that remembers."""
    group = StaticGroup(hosts.config(reset_command="rm -rf *; touch clean"))
    pool = Pool(group, max_use_count=1, update_interval_when_expecting=0.05)
    async with Taskscaler(
        pool,
        policies=[Policy(idle_time=1000)],
        journal=SqliteJournal(hosts.directory / "journal.sqlite"),
        delete_instances_on_shutdown=delete,
    ) as scaler:
        yield scaler


async def test_every_job_finds_a_host_as_the_reset_left_it(tmp_path: Path) -> None:
    """Seven jobs on two hosts that are reset after each: hosts take turns, and a restart keeps who has which."""
    seen: list[str] = []

    async def job(scaler: Taskscaler, number: int) -> None:
        async with scaler.acquire(f"job-{number}") as lease, lease.dial() as connection:
            seen.append(lease.instance)
            found = await connection.run("ls; touch dirt", check=True)
            assert found.stdout.decode().split() in (["clean"], [])

    async with static_hosts.running(tmp_path, 2) as hosts:
        async with scaling(hosts) as scaler, anyio.create_task_group() as jobs:
            for number in range(7):
                jobs.start_soon(job, scaler, number)
        async with scaling(hosts) as scaler:
            await job(scaler, 7)
        async with scaling(hosts, delete=True):
            pass
        async with hosts.opened() as group:
            assert not (await group.update()).instances
    assert len(set(seen)) == len(seen)
    assert set(Counter(instance.rpartition(".")[0] for instance in seen)) == {"host-1", "host-2"}
