"""Suspended leases expire, and whoever comes back too late is told; over the fake cloud, in virtual time."""

import anyio
import pytest

from fleeting import Capability, Completed, MemoryJournal
from fleeting.core import Put
from fleeting.testing import Command, FakeCloud, FakeGroup, virtual_time
from taskscaler import (
    KeyInUse,
    LeaseEvent,
    LeaseExpired,
    NoCapacity,
    NotSuspended,
    Policy,
    Pool,
    ScalerEvent,
    Taskscaler,
)
from taskscaler.core._expiries import KEPT, Expiries
from taskscaler.core._slots import ExpiredRecord
from taskscaler.sync import Taskscaler as SyncTaskscaler
from tests.taskscaler.scaling import EPOCH, FullDisk, scaling, virtual_clock, work

pytestmark = pytest.mark.anyio
anyio_backend = virtual_time


def a_cloud() -> FakeCloud:
    """One that can suspend its instances."""
    return FakeCloud(capabilities=frozenset({Capability.NAMED_CREATE, Capability.SUSPEND_RESUME}))


async def asleep(scaler: Taskscaler, ttl: float, key: str = "job") -> str:
    """Suspend a new lease for so long; returns its instance."""
    lease = await scaler.acquire_lease(key)
    lease.suspend(ttl=ttl)
    await anyio.sleep(1)
    return lease.instance


async def test_nobody_comes_back_in_time_and_the_slot_is_free() -> None:
    """The lease is kept until then and no longer; its instance goes like any that is not needed."""
    cloud = a_cloud()
    async with scaling(cloud) as scaler:
        instance = await asleep(scaler, ttl=100)
        await anyio.sleep(95)
        assert (await scaler.capacity()).suspended == 1
        assert cloud.alive == {instance}
        await anyio.sleep(10)
        assert (await scaler.capacity()).suspended == 0
        assert not cloud.alive
        with pytest.raises(LeaseExpired, match="the suspended lease of the key 'job' expired at 2023-11-14T") as late:
            await scaler.resume("job")
        assert isinstance(late.value, NotSuspended)
        assert late.value.at == pytest.approx(EPOCH + 100, abs=5)


async def test_the_slot_serves_who_waits_at_once() -> None:
    """Freed like any other, on an instance that runs on because the group cannot suspend."""
    async with scaling(FakeCloud(), max_instances=1) as scaler:
        instance = await asleep(scaler, ttl=50)
        begun = anyio.current_time()
        async with scaler.acquire("next") as lease:
            assert lease.instance == instance
            assert anyio.current_time() - begun == pytest.approx(49, abs=0.1)


async def test_a_sleeping_instance_wakes_for_who_waits_once_a_lease_there_has_expired() -> None:
    """It is the quickest slot to be had, and there may be no other instance."""
    cloud = a_cloud()
    async with scaling(cloud, max_instances=1, policies=[Policy(idle_time=300)]) as scaler:
        await asleep(scaler, ttl=50)
        async with scaler.acquire("next", timeout=100) as lease:
            assert lease.instance == "i-1"


async def test_where_slots_are_cleaned_the_freed_one_is_too() -> None:
    """What its holder left there concerns nobody else."""
    cleaned = []

    async def clean(instance: str, command: Command) -> Completed:
        cleaned.append((instance, command.env["TASKSCALER_KEY"]))
        return Completed(exit_status=0)

    cloud = a_cloud()
    cloud.on_command = clean
    keep = [Policy(idle_time=300)]
    async with scaling(cloud, policies=keep, max_instances=1, instance_cleanup_command="clean") as scaler:
        await asleep(scaler, ttl=50)
        assert not cleaned
        async with scaler.acquire("next", timeout=100) as lease:
            assert cleaned == [(lease.instance, "job")]


async def test_who_waits_to_resume_has_come_in_time() -> None:
    """However long the instance takes; who gives up lets it sleep on, and it expires when it would have."""
    cloud = a_cloud()
    cloud.resume_time = 200
    async with scaling(cloud) as scaler:
        await asleep(scaler, ttl=100)
        await anyio.sleep(90)
        with pytest.raises(NoCapacity):
            await scaler.resume("job", timeout=5)
        lease = await scaler.resume("job")
        assert anyio.current_time() > 250
        lease.suspend(ttl=100)
        await anyio.sleep(50)
        with pytest.raises(NoCapacity):
            await scaler.resume("job", timeout=80)
        await anyio.sleep(1)
        with pytest.raises(LeaseExpired):
            await scaler.resume("job")


async def test_a_lease_that_was_resumed_sleeps_for_as_long_as_it_is_told_the_next_time() -> None:
    """`suspend` begins anew, with a limit or without; `suspend_again` keeps the one that there was."""
    async with scaling(a_cloud(), policies=[Policy(idle_count=1)]) as scaler:
        await asleep(scaler, ttl=100)
        (await scaler.resume("job")).suspend(ttl=300)
        await anyio.sleep(200)
        (await scaler.resume("job")).suspend_again()
        await anyio.sleep(50)
        (await scaler.resume("job")).suspend()
        await anyio.sleep(5000)
        lease = await scaler.resume("job")
        lease.suspend(ttl=10)
        lease.suspend_again()
        await anyio.sleep(20)
        with pytest.raises(LeaseExpired):
            await scaler.resume("job")


async def test_an_interrupted_resume_that_had_its_slot_already_leaves_the_expiry_as_it_was() -> None:
    """The lease came at the very moment at which nobody wanted it any more."""
    async with scaling(FakeCloud(), journal=FullDisk(), policies=[Policy(idle_time=1000)]) as scaler:
        await asleep(scaler, ttl=100)
        with anyio.CancelScope() as scope:
            scope.cancel()
            await scaler.resume("job")
        await anyio.sleep(95)
        assert (await scaler.capacity()).suspended == 1
        await anyio.sleep(10)
        assert (await scaler.capacity()).suspended == 0


async def test_the_expiry_survives_a_restart() -> None:
    """It is a moment of the wall clock: a lease expires neither sooner nor later for another manager."""
    cloud, journal = a_cloud(), MemoryJournal()
    async with scaling(cloud, journal=journal) as scaler:
        await asleep(scaler, ttl=1000)
        await asleep(scaler, ttl=1000, key="other")
    async with scaling(cloud, journal=journal) as scaler:
        await anyio.sleep(900)
        (await scaler.resume("other")).release()
        await anyio.sleep(200)
        with pytest.raises(LeaseExpired):
            await scaler.resume("job")
        assert not cloud.alive


async def test_what_expired_without_a_manager_can_be_claimed_for_idle_time_after_the_restart() -> None:
    """Whoever came back in time found nobody to ask; who comes later is told that it was too late."""
    cloud, journal = a_cloud(), MemoryJournal()
    async with scaling(cloud, journal=journal) as scaler:
        for key in ("claimed", "unclaimed"):
            await asleep(scaler, ttl=100, key=key)
    await anyio.sleep(5000)
    async with scaling(cloud, journal=journal, policies=[Policy(idle_time=300)]) as scaler:
        assert "in 5m: claimed on i-1 expires unless resumed" in str(await scaler.explain(key="claimed"))
        await anyio.sleep(200)
        (await scaler.resume("claimed")).release()
        await anyio.sleep(200)
        with pytest.raises(LeaseExpired):
            await scaler.resume("unclaimed")


async def test_without_idle_time_what_expired_without_a_manager_goes_at_once() -> None:
    """Its slot is handed out, and who comes back is told why it is not there; also by the next manager but one."""
    cloud, journal = a_cloud(), MemoryJournal()
    async with scaling(cloud, journal=journal) as scaler:
        await asleep(scaler, ttl=100)
    await anyio.sleep(500)
    for _ in range(2):
        async with scaling(cloud, journal=journal) as scaler:
            await anyio.sleep(60)
            with pytest.raises(LeaseExpired):
                await scaler.resume("job")
            assert not cloud.alive
    assert journal.records["lease"] == {}


async def test_without_a_ttl_an_unclaimed_lease_is_kept_over_restarts() -> None:
    """Only its owner knows what it is worth: a person may take longer than any `idle_time`."""
    cloud, journal = a_cloud(), MemoryJournal()
    async with scaling(cloud, journal=journal) as scaler:
        lease = await scaler.acquire_lease("job")
        lease.suspend()
        await anyio.sleep(1)
    for _ in range(2):
        async with scaling(cloud, journal=journal, policies=[Policy(idle_time=10)]) as scaler:
            await anyio.sleep(10_000)
            assert (await scaler.capacity()).suspended == 1
    async with scaling(cloud, journal=journal) as scaler:
        assert (await scaler.resume("job")).instance == lease.instance


async def test_a_key_that_expired_may_be_used_again_and_is_then_not_late() -> None:
    """What was is over: the new lease is no suspended one, and nothing of the old one stays in the journal."""
    journal = MemoryJournal()
    async with scaling(FakeCloud(), journal=journal, policies=[Policy(idle_time=1000)]) as scaler:
        await asleep(scaler, ttl=10)
        with pytest.raises(KeyInUse):
            await scaler.acquire_lease("job")
        await anyio.sleep(20)
        assert set(journal.records["expired"]) == {"job"}
        await work(scaler, "job", 1.0)
        with pytest.raises(NotSuspended, match="no lease is suspended"):
            await scaler.resume("job")
        await anyio.sleep(1)
        assert journal.records["expired"] == {}


async def test_while_the_journal_fails_nobody_is_given_a_slot_that_expired() -> None:
    """After a crash the lease would still be there; it is handed out once that it is not can be remembered."""
    journal = FullDisk()
    async with scaling(FakeCloud(), journal=journal, max_instances=1) as scaler, anyio.create_task_group() as tasks:
        await asleep(scaler, ttl=50)
        journal.full = True
        seen: list[str] = []
        tasks.start_soon(work, scaler, "next", 1.0, seen)
        await anyio.sleep(100)
        assert not seen
        assert set(journal.records["lease"]) == {"job"}
        journal.full = False


async def test_observers_hear_of_it_and_explain_says_when() -> None:
    """Before, when it will be; afterwards, that it was."""
    events: list[ScalerEvent] = []
    pool = Pool(FakeGroup(a_cloud()))
    async with Taskscaler(pool, observers=[events.append], clock=virtual_clock()) as scaler:
        instance = await asleep(scaler, ttl=3600)
        for said in (await scaler.explain(), await scaler.explain(key="job"), await scaler.explain(instance=instance)):
            assert f"job on {instance} expires unless resumed" in str(said)
        told = (await scaler.explain(key="job")).as_dict()
        assert str(told["expires_at"]).startswith("2023-11-14T23:13:2")
        (job,) = (await scaler.explain(instance=instance)).jobs
        assert job.expires_at == pytest.approx(EPOCH + 3600, abs=5)
        await anyio.sleep(3900)
        explained = await scaler.explain(key="job")
        assert (explained.state, explained.instance, explained.slot) == ("expired", instance, 0)
        assert "job expired 5m1s ago: nobody resumed it in time" in str(explained)
    leases = [(event.what, event.key) for event in events if isinstance(event, LeaseEvent)]
    assert leases == [("acquired", "job"), ("suspended", "job"), ("expired", "job")]


@pytest.mark.parametrize("ttl", [-1.0, float("nan"), "8h", None])
async def test_a_ttl_is_a_number_of_seconds(ttl: object) -> None:
    """Anything else is refused, and the lease stays held."""
    async with scaling(FakeCloud()) as scaler, scaler.acquire("job") as lease:
        with pytest.raises((TypeError, ValueError), match="ttl"):
            lease.suspend(ttl=ttl)  # type: ignore[arg-type]
        assert not lease.ended


@pytest.mark.parametrize("ttl", [1e12, 1e308, 10**400])
async def test_a_ttl_that_no_calendar_has_a_date_for_is_none(ttl: float) -> None:
    """It can be explained, stored and read again."""
    journal = MemoryJournal()
    async with scaling(FakeCloud(), journal=journal) as scaler:
        instance = await asleep(scaler, ttl=ttl)
        assert (await scaler.explain(key="job")).as_dict()["expires_at"] is None
        assert str(await scaler.explain(instance=instance))
        assert journal.records["lease"]["job"].expires_at is None


def test_only_the_last_that_expired_are_remembered() -> None:
    """Neither the memory nor the journal grows for ever."""
    expiries = Expiries()
    kept: dict[str, ExpiredRecord] = {}
    for number in range(KEPT + 10):
        for write in expiries.note(f"job-{number}", ExpiredRecord("p/i", 0, float(number))):
            if isinstance(write, Put):
                kept[write.key] = write.record
            else:
                del kept[write.key]
    assert kept == expiries.expired
    assert list(expiries.expired) == [f"job-{number}" for number in range(10, KEPT + 10)]
    assert list(Expiries.of(dict(reversed(kept.items()))).expired) == list(expiries.expired)


def test_threads_say_for_how_long_too() -> None:
    """The façade's lease takes the same `ttl`, and whoever comes back too late gets the same error."""
    with SyncTaskscaler(Pool(FakeGroup(FakeCloud())), policies=[Policy(idle_count=1)]) as scaler:
        scaler.acquire_lease("job").suspend(ttl=3600)
        lease = scaler.resume("job")
        lease.suspend_again()
        lease.suspend_again()
        scaler.resume("job").suspend(ttl=0)
        while scaler.capacity().suspended:
            scaler.explain()
        with pytest.raises(LeaseExpired):
            scaler.resume("job")
        with pytest.raises(ValueError, match="ttl"), scaler.acquire("job") as lease:
            lease.suspend(ttl=-1)
