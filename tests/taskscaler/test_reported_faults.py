"""Faults that users of Go's taskscaler and of GitLab Runner have reported: ours has none of them.

One test for each, in virtual time. The names are those under which they were reported.
"""

import anyio
import pytest

from fleeting import Capability, ConnectorConfig, MemoryJournal
from fleeting.testing import FakeCloud, virtual_time
from taskscaler import NoCapacity, Policy, Taskscaler
from tests.taskscaler.scaling import asked, scaling, work

pytestmark = pytest.mark.anyio
anyio_backend = virtual_time


async def poll(scaler: Taskscaler, name: str, *, hold: float = 1.0, pause: float = 3.0) -> None:
    """Reserve a slot and ask for a job, for ever; there is none."""
    number = 0
    while True:
        number += 1
        key = f"{name}-{number}"
        try:
            await scaler.reserve(key)
        except NoCapacity:
            pass
        else:
            await anyio.sleep(hold)
            await scaler.unreserve(key)
        await anyio.sleep(pause)


async def test_demand_runaway() -> None:
    """Ten runners that find no job do not grow the fleet beyond what is kept idle, nor keep more of it."""
    cloud = FakeCloud(boot_time=5)
    policies = [Policy(idle_count=2, idle_time=60)]
    async with scaling(cloud, policies=policies) as scaler, anyio.create_task_group() as runners:
        for number in range(10):
            runners.start_soon(poll, scaler, f"runner{number}")
        await anyio.sleep(600)
        assert len(cloud.alive) == 2
        assert sum(asked(cloud)) == 2
        async with anyio.create_task_group() as jobs:
            for number in range(8):
                jobs.start_soon(work, scaler, f"job-{number}", 10.0)
        assert len(cloud.alive) >= 8
        bought = sum(asked(cloud))
        await anyio.sleep(600)
        assert len(cloud.alive) == 2, "they keep an oversized fleet alive"
        assert sum(asked(cloud)) == bought, "they churn it"
        runners.cancel_scope.cancel()


async def test_demand_runaway_from_nothing() -> None:
    """Where nothing is kept idle, runners that find no job buy nothing."""
    cloud = FakeCloud(boot_time=5)
    async with scaling(cloud, policies=[Policy(idle_time=30)]) as scaler, anyio.create_task_group() as runners:
        for number in range(5):
            runners.start_soon(poll, scaler, f"runner{number}")
        await anyio.sleep(600)
        assert asked(cloud) == []
        await work(scaler, "job", 10.0)
        await anyio.sleep(120)
        assert not cloud.alive
        assert asked(cloud) == [1]
        runners.cancel_scope.cancel()


async def test_viable_instance_deleted() -> None:
    """The one that fails goes, and one that is reserved, in use or kept idle does not, however old."""
    cloud = FakeCloud()
    policies = [Policy(idle_count=1, idle_time=30)]
    async with scaling(cloud, policies=policies, heartbeat_interval=10, update_interval=20) as scaler:
        async with scaler.acquire("job") as lease:
            await anyio.sleep(30)
            await scaler.reserve("next")
            (other,) = cloud.alive - {lease.instance}
            await anyio.sleep(300)
            assert cloud.alive >= {lease.instance, other}
            async with scaler.acquire("next", timeout=0) as reserved:
                assert reserved.instance == other
                lease.mark_suspect("its disk is full")
                await anyio.sleep(100)
                assert cloud.alive >= {lease.instance, other}
        await anyio.sleep(100)
        assert other in cloud.alive
        assert lease.instance not in cloud.alive


@pytest.mark.parametrize("max_instances", [1, 5])
async def test_scaling_above_max(max_instances: int) -> None:
    """Neither those who wait nor those who reserve, resume or replace take the fleet beyond the ceiling."""
    cloud = FakeCloud(boot_time=20, delete_time=30)
    most = 0

    async def watch() -> None:
        nonlocal most
        while True:
            most = max(most, len(cloud.alive))
            await anyio.sleep(1)

    async with (
        scaling(cloud, max_instances=max_instances, max_use_count=1, policies=[Policy(idle_count=3)]) as scaler,
        anyio.create_task_group() as runners,
    ):
        runners.start_soon(watch)
        for number in range(10):
            runners.start_soon(poll, scaler, f"runner{number}")
        async with anyio.create_task_group() as jobs:
            for number in range(12):
                jobs.start_soon(work, scaler, f"job-{number}", 10.0)
            await anyio.sleep(50)
            await scaler.acquire_lease("replaced")
            (await scaler.replace("replaced")).release()
        runners.cancel_scope.cancel()
    assert 1 <= most <= max_instances


async def test_reserving_unready_instances() -> None:
    """Where a reservation is to be of a slot that is ready, one that boots is none, and the refusal counts it."""
    cloud = FakeCloud(boot_time=60)
    async with scaling(cloud, policies=[Policy(idle_count=3)]) as scaler:
        await anyio.sleep(10)
        with pytest.raises(NoCapacity, match=r"no slot is ready \(3 unready\); ask again soon") as refused:
            await scaler.reserve("early")
        capacity = refused.value.capacity
        assert capacity is not None
        assert (capacity.idle, capacity.unready, refused.value.possible) == (0, 3, True)
        await anyio.sleep(120)
        await scaler.reserve("in time")
        async with scaler.acquire("in time", timeout=0):
            pass


async def test_an_active_instance_pruned_after_a_token_rotation() -> None:
    """A manager with other credentials, or under another name, is the same group's manager: what was in use stays."""
    cloud, journal = FakeCloud(), MemoryJournal()
    async with scaling(cloud, journal=journal, connector_config=ConnectorConfig(username="old")) as scaler:
        sleeper = await scaler.acquire_lease("sleeper")
        active = await scaler.acquire_lease("active", persistent=True)
        sleeper.suspend()
        await anyio.sleep(1)
    async with scaling(cloud, journal=journal, connector_config=ConnectorConfig(username="new")) as scaler:
        await anyio.sleep(300)
        assert cloud.alive == {sleeper.instance, active.instance}
        lease = await scaler.reattach("active")
        assert lease.instance == active.instance
        assert (await lease.connect_info()).user == "new"
        lease.release()
        assert (await scaler.resume("sleeper")).instance == sleeper.instance


@pytest.mark.parametrize("ttl", [3600.0, float("inf")])
async def test_suspend_lost_on_restart(ttl: float) -> None:
    """The manager is killed at once, and the next two are, before anybody comes back: the slot is still kept."""
    capabilities = frozenset({Capability.NAMED_CREATE, Capability.SUSPEND_RESUME})
    cloud, journal = FakeCloud(capabilities=capabilities), MemoryJournal()
    async with scaling(cloud, journal=journal) as scaler:
        lease = await scaler.acquire_lease("job")
        lease.suspend(ttl=ttl)
        await anyio.sleep(0.1)
    for _ in range(2):
        async with scaling(cloud, journal=journal) as scaler:
            await anyio.sleep(0.1)
            assert (await scaler.capacity()).suspended == 1
        await anyio.sleep(500)
    async with scaling(cloud, journal=journal) as scaler:
        again = await scaler.resume("job")
        assert (again.instance, again.slot) == (lease.instance, lease.slot)
        again.release()
