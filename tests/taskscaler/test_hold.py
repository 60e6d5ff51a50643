"""Instances that an operator has cordoned or retained, over the fake cloud, in virtual time."""

import anyio
import pytest
from attrs import evolve

from fleeting import Completed, MemoryJournal
from fleeting.testing import Command, FakeCloud, FakeGroup, virtual_time
from taskscaler import LeaseLost, NoSuchInstance, Policy, Pool, Taskscaler, TaskscalerError
from tests.taskscaler.scaling import asked, scaling, virtual_clock, work

pytestmark = pytest.mark.anyio
anyio_backend = virtual_time


# --- cordoned -------------------------------------------------------------------------------------------


async def test_a_cordoned_instance_gets_no_new_work_and_is_replaced() -> None:
    """Its job goes on; the free slot beside it is of no use, so that the next job gets another instance."""
    cloud = FakeCloud()
    async with scaling(cloud, capacity_per_instance=2) as scaler, scaler.acquire("job") as lease:
        await scaler.cordon(lease.instance, "a disk fails")
        capacity = await scaler.capacity()
        assert (capacity.acquired, capacity.unavailable, capacity.idle) == (1, 1, 0)
        async with scaler.acquire("next") as other:
            assert other.instance != lease.instance
        assert lease.loss is None
    assert asked(cloud) == [1, 1]


async def test_an_idle_slot_that_is_cordoned_away_is_replaced_only_if_it_is_needed() -> None:
    """Two idle slots are wanted: a third instance comes for the cordoned one, and only with that wish."""
    cloud = FakeCloud()
    async with scaling(cloud, policies=[Policy(idle_count=2, idle_time=600)]) as scaler:
        await anyio.sleep(10)
        await scaler.cordon("i-1")
        await anyio.sleep(10)
        assert ((await scaler.capacity()).idle, (await scaler.capacity()).unavailable) == (2, 1)
        await scaler.configure(policies=[Policy(idle_count=1, idle_time=600)])
        await scaler.cordon("i-2")
        await anyio.sleep(10)
    assert asked(cloud) == [2, 1]


async def test_uncordoned_it_is_used_again() -> None:
    """Whoever waits for a slot gets its own at once."""
    cloud = FakeCloud()
    async with scaling(cloud, max_instances=1, policies=[Policy(idle_count=1)]) as scaler:
        await anyio.sleep(5)
        await scaler.retain("i-1")
        await scaler.cordon("i-1")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(work, scaler, "job", 1.0)
            await anyio.sleep(100)
            assert (await scaler.capacity()).pending == 1
            await scaler.uncordon("i-1")
            await scaler.uncordon("i-1")
            await anyio.sleep(0.5)
            assert (await scaler.capacity()).acquired == 1


async def test_cordoned_and_idle_it_goes_after_its_idle_time() -> None:
    """It is of no use to anybody, whatever the policy keeps idle; it is not kept for its own sake."""
    cloud = FakeCloud()
    async with scaling(cloud, policies=[Policy(idle_count=1, idle_time=100)]) as scaler:
        await anyio.sleep(5)
        await work(scaler, "job", 10)
        await scaler.cordon("i-1")
        await anyio.sleep(99)
        assert "i-1" in cloud.alive
        await anyio.sleep(2)
        assert cloud.alive == {"i-2"}


# --- retained -------------------------------------------------------------------------------------------


async def test_a_retained_instance_outlasts_its_idle_time_and_still_works() -> None:
    """It is used like any other, and deleted when it is released."""
    cloud = FakeCloud()
    seen: list[str] = []
    async with scaling(cloud, max_instances=1) as scaler:
        async with scaler.acquire("job") as lease:
            await scaler.retain(lease.instance, "to see what it does")
        await anyio.sleep(3600)
        await work(scaler, "another", 1, seen)
        assert seen == ["i-1"] == list(cloud.alive)
        await scaler.unretain("i-1")
        await anyio.sleep(5)
        assert not cloud.alive


async def test_one_that_is_used_up_stays_without_being_replaced() -> None:
    """Nobody needs a slot, so nothing is asked for; whoever does gets a new instance, under the ceiling."""
    cloud = FakeCloud()
    async with scaling(cloud, max_use_count=1, max_instances=2) as scaler:
        async with scaler.acquire("job") as lease:
            await scaler.retain(lease.instance)
        await anyio.sleep(600)
        assert asked(cloud) == [1]
        assert (await scaler.capacity()).unavailable == 1
        async with anyio.create_task_group() as jobs:
            for number in range(2):
                jobs.start_soon(work, scaler, f"job-{number}", 10.0)
            await anyio.sleep(5)
            assert len(cloud.alive) == 2
        assert "i-1" in cloud.alive
        await scaler.unretain("i-1")
        await anyio.sleep(5)
        assert "i-1" not in cloud.alive


async def test_an_unhealthy_one_is_kept_to_look_at() -> None:
    """It gets no more work, and is deleted only when it is released."""
    cloud = FakeCloud()
    async with scaling(cloud, heartbeat_interval=10, policies=[Policy(idle_count=1)]) as scaler:
        await anyio.sleep(5)
        await scaler.retain("i-1")
        cloud.sicken("i-1")
        await anyio.sleep(600)
        assert cloud.alive == {"i-1", "i-2"}
        assert (await scaler.capacity()).unhealthy == 1
        await scaler.unretain("i-1")
        await anyio.sleep(5)
        assert cloud.alive == {"i-2"}


async def test_one_that_does_not_become_ready_is_kept_to_look_at() -> None:
    """Its ready command fails: it counts against the ceiling, is of no use, and is deleted when it is released."""

    async def fail(instance: str, _: Command) -> Completed:
        await anyio.sleep(30)
        return Completed(exit_status=int(instance == "i-1"))

    cloud = FakeCloud(on_command=fail)
    policies = [Policy(idle_count=1)]
    async with scaling(cloud, policies=policies, instance_ready_command="prepare", backoff_initial=1.0) as scaler:
        await anyio.sleep(10)
        await scaler.retain("i-1")
        await anyio.sleep(600)
        assert cloud.alive == {"i-1", "i-2"}
        first, second = await scaler.instances()
        assert (first.state, second.state) == ("unusable", "running")
        assert "did not become ready" in first.why
        await scaler.unretain("i-1")
        await anyio.sleep(3)
        assert cloud.alive == {"i-2"}


async def test_a_retained_instance_may_be_lost() -> None:
    """Nobody but the cloud can keep it: what runs there breaks, and nothing is left of it."""
    cloud = FakeCloud()
    async with scaling(cloud, update_interval=5) as scaler:
        with pytest.raises(LeaseLost):
            async with scaler.acquire("job") as lease:
                await scaler.retain(lease.instance)
                cloud.vanish(lease.instance)
                await anyio.sleep_forever()
        assert not await scaler.instances()


async def test_leaving_spares_what_is_retained(caplog: pytest.LogCaptureFixture) -> None:
    """All others are deleted; that one is left is told, at once, and is no error."""
    cloud = FakeCloud()
    async with scaling(cloud, delete=True, policies=[Policy(idle_count=3)]) as scaler:
        await anyio.sleep(5)
        await scaler.retain("i-2")
        left_at = anyio.current_time()
    assert cloud.alive == {"i-2"}
    assert anyio.current_time() - left_at < 10
    (record,) = [record for record in caplog.records if record.getMessage() == "instances_retained"]
    assert vars(record)["instances"] == ["i-2"]
    assert "instances_left" not in caplog.text


# --- both -----------------------------------------------------------------------------------------------


async def test_both_survive_a_restart() -> None:
    """The next manager neither uses nor deletes what the last one was told to hold, and lets go of it when told so."""
    cloud, journal = FakeCloud(), MemoryJournal()
    policies = [Policy(idle_count=1, idle_time=50)]
    async with scaling(cloud, journal=journal, policies=policies) as scaler:
        await anyio.sleep(5)
        await scaler.cordon("i-1", "a disk fails")
        await scaler.retain("i-1", "see ticket 7")
        await anyio.sleep(5)
    async with scaling(cloud, journal=journal, policies=policies) as scaler:
        await anyio.sleep(600)
        assert cloud.alive == {"i-1", "i-2"}
        assert (await scaler.capacity()).idle == 1
        view = (await scaler.instances())[0]
        assert (view.cordoned, view.retained) == ("a disk fails", "see ticket 7")
        await scaler.unretain("i-1")
        await anyio.sleep(5)
        assert cloud.alive == {"i-2"}
    assert not journal.records["cordon"]


async def test_what_was_in_use_when_its_manager_died_is_kept_if_retained() -> None:
    """It is not used again, for what ran there may still run; but it is there to be looked at."""
    cloud, journal = FakeCloud(), MemoryJournal()
    async with scaling(cloud, journal=journal) as scaler:
        await scaler.acquire_lease("job")
        await scaler.retain("i-1")
        await anyio.sleep(5)
        left = {kind: dict(kept) for kind, kept in journal.records.items()}
    async with scaling(cloud, journal=MemoryJournal(records=left)) as scaler:
        await anyio.sleep(600)
        assert "i-1" in cloud.alive
        assert (await scaler.instances())[0].why == "it was in use when its manager stopped"
        await scaler.unretain("i-1")
        await anyio.sleep(5)
        assert not cloud.alive


async def test_one_that_still_boots_can_be_held() -> None:
    """It becomes ready, gets no work, and stays."""
    cloud = FakeCloud(boot_time=60)
    async with scaling(cloud, policies=[Policy(idle_count=1)], max_instances=1) as scaler:
        await anyio.sleep(10)
        await scaler.cordon("i-1")
        await scaler.retain("i-1")
        await anyio.sleep(600)
        assert cloud.alive == {"i-1"}
        assert (await scaler.capacity()).unavailable == 1


async def test_holds_are_explained() -> None:
    """What an operator wants of an instance is told, with the reason that was given."""
    cloud = FakeCloud()
    async with scaling(cloud, policies=[Policy(idle_count=2)]) as scaler:
        await anyio.sleep(5)
        await scaler.cordon("i-1", "a disk fails")
        await scaler.retain("i-1")
        await scaler.retain("i-2", "see ticket 7")
        explanation = str(await scaler.explain())
        assert "instance i-1 is cordoned (a disk fails), retained\n" in explanation
        assert "instance i-2 is retained (see ticket 7)\n" in explanation


async def test_what_cannot_be_held_is_told() -> None:
    """An instance that is not known, one that is going, and a name that instances of two pools have."""
    groups = FakeGroup(FakeCloud(identity="fake/a", delete_time=100)), FakeGroup(FakeCloud(identity="fake/b"))
    pools = [Pool(group, name=name, dial=group.dial) for name, group in zip("ab", groups, strict=True)]
    pools[0] = evolve(pools[0], max_instances=1)
    async with Taskscaler(pools, clock=virtual_clock(), policies=[Policy(idle_count=2)]) as scaler:
        await anyio.sleep(5)
        for hold in (scaler.cordon, scaler.uncordon, scaler.retain, scaler.unretain):
            with pytest.raises(NoSuchInstance, match="unknown instance 'i-9'"):
                await hold("i-9")
            with pytest.raises(NoSuchInstance, match="several pools have an instance 'i-1'; write a/i-1 or b/i-1"):
                await hold("i-1")
        await scaler.retain("b/i-1")
        await scaler.configure(policies=[])
        await anyio.sleep(5)
        with pytest.raises(NoSuchInstance, match="'a/i-1' is already being removed: not needed"):
            await scaler.retain("a/i-1")
        await anyio.sleep(200)
        await scaler.unretain("i-1")
        await anyio.sleep(5)
        assert not await scaler.instances()


async def test_an_observer_holds_nothing() -> None:
    """What it would be told is for the manager to know."""
    cloud = FakeCloud()
    cloud.launch(1)
    group = FakeGroup(cloud)
    async with Taskscaler(Pool(group, dial=group.dial), observe_only=True, clock=virtual_clock()) as scaler:
        for hold in (scaler.cordon, scaler.uncordon, scaler.retain, scaler.unretain):
            with pytest.raises(TaskscalerError, match="observe_only"):
                await hold("i-1")
