"""Suspended leases beside all else that may happen: given up, cleaned, restarted, retained, stopped."""

from copy import deepcopy
from functools import partial

import anyio
import pytest

from fleeting import Capability, Completed, MemoryJournal, OutcomeUnknown
from fleeting.testing import Command, FakeCloud, IncreaseFault, virtual_time
from taskscaler import LeaseLost, NoCapacity, NotSuspended, Policy
from taskscaler.core._slots import DIRTY, LEASE
from tests.taskscaler.scaling import FullDisk, asked, scaling

pytestmark = pytest.mark.anyio
anyio_backend = virtual_time

KEEP = [Policy(idle_time=3600)]


async def cleans(_: str, __: Command) -> Completed:
    """Do what is asked, whatever it is."""
    return Completed(exit_status=0)


async def test_a_resume_that_is_given_up_before_it_is_durable_harms_nobody() -> None:
    """The lease sleeps on, and can be resumed after that."""
    journal = FullDisk()
    async with scaling(FakeCloud(), policies=KEEP, journal=journal) as scaler:
        (await scaler.acquire_lease("job")).suspend()
        await anyio.sleep(1)
        journal.full = True
        with pytest.raises(NoCapacity, match=r"^the lease 'job' was not resumed within 5s\njob has held "):
            await scaler.resume("job", timeout=5)
        journal.full = False
        await anyio.sleep(5)
        (await scaler.resume("job")).release()


async def test_who_waits_to_resume_is_refused_when_the_scaler_stops() -> None:
    """Its lease sleeps on; nothing is handed out any more."""
    cloud, journal = FakeCloud(), MemoryJournal()
    async with scaling(cloud, policies=KEEP, journal=journal) as scaler:
        (await scaler.acquire_lease("job")).suspend()
        await anyio.sleep(1)
    cloud.latency = {"connect_info": 50}
    async with scaling(cloud, policies=KEEP, journal=journal) as scaler, anyio.create_task_group() as tasks:

        async def resume() -> None:
            with pytest.raises(NoCapacity, match="stopped"):
                await scaler.resume("job")

        tasks.start_soon(resume)
        await anyio.sleep(1)
        await scaler.stop()
    assert set(journal.records[LEASE]) == {"job"}


async def test_a_lease_sleeps_on_beside_a_slot_that_was_not_cleaned() -> None:
    """The instance is not removed under it when the scaler leaves and another comes; the slot is cleaned then."""
    cloud, journal = FakeCloud(on_command=cleans), MemoryJournal()
    pool = {"capacity_per_instance": 2, "instance_cleanup_command": "clean"}
    scaled = partial(scaling, cloud, policies=KEEP, journal=journal, **pool)  # type: ignore[arg-type]
    async with scaled() as scaler:
        asleep, busy = await scaler.acquire_lease("asleep"), await scaler.acquire_lease("busy")
        assert asleep.instance == busy.instance
        asleep.suspend()
        await anyio.sleep(1)
    assert journal.records[DIRTY]
    async with scaled() as scaler:
        assert (await scaler.resume("asleep")).instance == asleep.instance
        await anyio.sleep(60)
        assert not journal.records[DIRTY]


@pytest.mark.parametrize("age", [0.0, 100.0], ids=["vanished", "too old"])
async def test_draining_waits_for_no_clean_up_that_will_not_be(age: float) -> None:
    """An instance that is not there any more, or not to be used, is not cleaned after a restart."""
    cloud, journal = FakeCloud(on_command=cleans), MemoryJournal()
    async with scaling(cloud, policies=KEEP, journal=journal, instance_cleanup_command="clean") as scaler:
        instance = (await scaler.acquire_lease("job")).instance
        await anyio.sleep(1)
    if age:
        await anyio.sleep(200)
    else:
        cloud.vanish(instance)
    cloud.latency = {"update": 5, "connect_info": 5}
    async with scaling(
        cloud,
        policies=KEEP,
        journal=journal,
        keep_used=True,
        instance_cleanup_command="clean",
        max_instance_age=age,
    ) as scaler:
        assert await scaler.drain(timeout=5000)


async def test_a_slot_that_is_no_more_leaves_no_record() -> None:
    """Of two sleepers only one finds its slot where instances have fewer; nobody waits for the other for ever."""
    cloud, journal = FakeCloud(), MemoryJournal()
    async with scaling(cloud, policies=KEEP, journal=journal, capacity_per_instance=2) as scaler:
        for key in ("one", "other"):
            (await scaler.acquire_lease(key)).suspend()
        await anyio.sleep(1)
    async with scaling(cloud, journal=journal, capacity_per_instance=1) as scaler:
        (await scaler.resume("one")).release()
        await anyio.sleep(600)
        assert not cloud.alive
    assert not journal.records[LEASE]


async def test_a_sleeper_on_a_retained_instance_that_is_done_for_is_lost() -> None:
    """Its manager was killed while it was in use: it is kept to be looked at, and not to be resumed."""
    cloud, journal = FakeCloud(), MemoryJournal()
    async with scaling(cloud, policies=KEEP, journal=journal, capacity_per_instance=2) as scaler:
        asleep, _ = await scaler.acquire_lease("asleep"), await scaler.acquire_lease("busy")
        await scaler.retain(asleep.instance, "look at it")
        asleep.suspend()
        await anyio.sleep(1)
        killed = MemoryJournal()
        killed.records = deepcopy(journal.records)
    async with scaling(cloud, policies=KEEP, journal=killed, capacity_per_instance=2) as scaler:
        with pytest.raises((LeaseLost, NotSuspended), match="lost"):
            await scaler.resume("asleep")
        assert cloud.alive == {asleep.instance}


async def test_nothing_is_asked_for_again_on_the_way_out() -> None:
    """A request that was never answered is not repeated while all is being deleted."""
    cloud = FakeCloud(appear_after=60, capabilities=frozenset({Capability.NAMED_CREATE}))
    cloud.faults.increase.once(IncreaseFault(refuse=OutcomeUnknown("no answer")))
    async with scaling(cloud, delete=True, acquire_timeout=2) as scaler:
        with pytest.raises(NoCapacity):
            await scaler.acquire_lease("job")
    await anyio.sleep(600)
    assert asked(cloud) == [1]
    assert not cloud.alive
