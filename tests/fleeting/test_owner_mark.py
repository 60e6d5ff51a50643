"""The mark of its manager on a group: put there, renewed, lost, regained, and taken away."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import anyio
import pytest

from fleeting import (
    Capability,
    ConnectorConfig,
    GroupRefused,
    MemoryJournal,
    ProviderError,
    Provisioner,
    Settings,
    SqliteJournal,
)
from fleeting.core import messages
from fleeting.plugins import Mark
from fleeting.runtime import GroupDriver
from fleeting.runtime._mark import MARK_LASTS
from fleeting.testing import FakeCloud, FakeGroup, Fault, virtual_time
from taskscaler import NoCapacity, Pool, Taskscaler
from tests.taskscaler.scaling import virtual_clock

pytestmark = pytest.mark.anyio
anyio_backend = virtual_time


def a_cloud() -> FakeCloud:
    """One whose group can be marked."""
    return FakeCloud(capabilities=frozenset({Capability.NAMED_CREATE, Capability.OWNER_MARK}))


@asynccontextmanager
async def managing(cloud: FakeCloud, told: list[messages.Event] | None = None) -> AsyncIterator[Provisioner]:
    """A manager of the cloud's group."""
    group = FakeGroup(cloud)
    on_event = told.append if told is not None else lambda _: None
    async with Provisioner(
        group, dial=group.dial, on_event=on_event, random=Random(1).random, clock=virtual_clock()
    ) as provisioner:
        yield provisioner


async def test_the_mark_is_there_as_long_as_its_manager() -> None:
    """Before anything else is asked for, renewed long before it expires, and gone when the manager is."""
    cloud = a_cloud()
    async with managing(cloud) as provisioner:
        provisioner.request(1)
        for _ in range(20):
            await anyio.sleep(100)
            assert cloud.owner_mark is not None
            assert cloud.owner_mark.until > cloud.now
    assert cloud.owner_mark is None
    methods = [call.method for call in cloud.calls]
    assert methods.index("mark_owner") < min(methods.index(method) for method in ("increase", "update"))
    assert methods.count("mark_owner") == pytest.approx(2000 / (MARK_LASTS / 2), abs=3)


async def test_a_second_manager_is_refused() -> None:
    """It is told who was first, has changed nothing, and leaves the mark where it is."""
    cloud = a_cloud()
    async with managing(cloud):
        assert cloud.owner_mark is not None
        owner = cloud.owner_mark.owner
        with pytest.raises(GroupRefused, match=owner):
            async with managing(cloud):
                pass
        assert cloud.owner_mark.owner == owner


async def test_a_manager_that_died_keeps_nobody_out_for_long() -> None:
    """Its mark expires."""
    cloud = a_cloud()
    cloud.clock = virtual_clock()
    cloud.owner_mark = Mark(owner="a dead one", until=cloud.now + 100)
    with pytest.raises(GroupRefused, match="a dead one"):
        async with managing(cloud):
            pass
    await anyio.sleep(100)
    async with managing(cloud):
        assert cloud.owner_mark.owner != "a dead one"


async def test_who_only_observes_marks_nothing() -> None:
    """It may look on beside the manager."""
    cloud = a_cloud()
    group = FakeGroup(cloud)
    async with managing(cloud), Taskscaler(Pool(group, dial=group.dial), observe_only=True):
        pass
    assert len([call for call in cloud.calls if call.method == "mark_owner"]) == 2


async def test_nothing_is_changed_in_a_group_that_was_lost() -> None:
    """Somebody has taken it: that is told, and changes begin again when the other is gone."""
    cloud, told = a_cloud(), list[messages.Event]()
    async with managing(cloud, told) as provisioner:
        provisioner.request(1)
        await anyio.sleep(10)
        cloud.owner_mark = Mark(owner="somebody else", until=cloud.now + 400)
        await anyio.sleep(200)
        (lost,) = [event for event in told if isinstance(event, messages.Disowned)]
        assert "somebody else" in lost.error
        before = len(cloud.calls)
        provisioner.request(1)
        provisioner.remove(["i-1"], "not needed")
        await anyio.sleep(100)
        assert "somebody else" in provisioner.plan.limits(provisioner.now()).blocked_why
        assert {call.method for call in cloud.calls[before:]} <= {"update", "heartbeat", "mark_owner"}
        await anyio.sleep(500)
        assert told[-1] != lost
        assert not provisioner.plan.disowned
        assert not cloud.alive


async def test_a_mark_that_cannot_be_renewed_is_lost_once_it_has_expired() -> None:
    """Until then the group is ours; after that nobody knows."""
    cloud = a_cloud()
    async with managing(cloud) as provisioner:
        cloud.faults.mark_owner.always(Fault(refuse=ProviderError("internal error")))
        await anyio.sleep(MARK_LASTS - 10)
        assert not provisioner.plan.disowned
        await anyio.sleep(30)
        assert "internal error" in provisioner.plan.disowned
        cloud.faults.mark_owner.clear()
        await anyio.sleep(30)
        assert not provisioner.plan.disowned


async def test_a_mark_that_expires_before_the_first_change_is_heeded() -> None:
    """The process was stopped while it started, or other groups took long: that is told, and nothing is changed."""
    group, told, clock = FakeGroup(a_cloud()), list[messages.Fact](), virtual_clock()
    driver = GroupDriver(group, pool="default", connector=ConnectorConfig(), dial=group.dial)
    await driver.open(Settings(owner="us", clock=clock))
    await driver.mark.put()
    await anyio.sleep(MARK_LASTS + 1)
    async with anyio.create_task_group() as tasks:
        driver.start(tasks, told.append)
        driver.perform(messages.Decrease("default", ("i-1",)))
        tasks.cancel_scope.cancel()
    assert [type(each) for each in told] == [messages.Disowned, messages.DecreaseFailed]


async def test_a_scaler_hands_out_nothing_in_a_group_that_was_lost() -> None:
    """Its jobs go on; whoever waits goes on waiting, and explain says why."""
    cloud = a_cloud()
    group = FakeGroup(cloud)
    pool = Pool(group, dial=group.dial, capacity_per_instance=2)
    async with Taskscaler(pool, clock=virtual_clock()) as scaler:
        lease = await scaler.acquire_lease("job")
        cloud.owner_mark = Mark(owner="somebody else", until=cloud.now + 500)
        await anyio.sleep(200)
        with pytest.raises(NoCapacity, match="somebody else"):
            await scaler.acquire_lease("next", timeout=10)
        assert lease.loss is None
        await anyio.sleep(500)
        (await scaler.acquire_lease("next", timeout=10)).release()
        lease.release()


async def test_whoever_opens_a_journal_again_is_the_same_manager(tmp_path: Path) -> None:
    """So a manager that was killed need not wait until its mark expires; where nothing is kept, each is another."""

    def owner(journal: SqliteJournal | MemoryJournal) -> str:
        return Provisioner(FakeGroup(), dial=FakeGroup().dial, on_event=print, journal=journal)._runtime.owner

    assert owner(SqliteJournal(tmp_path / "a")) == owner(SqliteJournal(tmp_path / "a"))
    assert owner(SqliteJournal(tmp_path / "a")) != owner(SqliteJournal(tmp_path / "b"))
    assert owner(MemoryJournal()) != owner(MemoryJournal())
