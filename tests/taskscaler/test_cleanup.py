"""Cleaning a slot between two jobs: on the instance by a command, and by the caller's own hook."""

from typing import Any

import anyio
import pytest
from attrs import define, field

from fleeting import Completed, ConnectError, ConnectInfo, FleetingError, MemoryJournal
from fleeting.testing import Command, FakeCloud, Fault, virtual_time
from taskscaler import Policy
from taskscaler.core._slots import DIRTY
from tests.taskscaler.scaling import FullDisk, asked, scaling, work

pytestmark = pytest.mark.anyio
anyio_backend = virtual_time

CLEAN = "clean up"
KEEP = [Policy(idle_time=3600)]


@define
class Cleaner:
    """Plays the clean-up on all instances, and the caller's hook."""

    takes: float = 10.0
    """Seconds."""

    exit_status: int = 0
    error: FleetingError | None = None
    """What the hook meets."""

    done: list[str] = field(factory=list)
    """What was cleaned: ``instance/slot key``."""

    begun: int = 0

    async def run(self, instance: str, command: Command) -> Completed:
        """Take some time."""
        self.begun += 1
        await anyio.sleep(self.takes)
        env = command.env
        assert (command.command, env["TASKSCALER_INSTANCE"]) == (CLEAN, instance)
        if not self.exit_status:
            self.done.append(f"{instance}/{env['TASKSCALER_SLOT']} {env['TASKSCALER_KEY']}")
        return Completed(exit_status=self.exit_status, stderr=b"disk is full")

    async def hook(self, info: ConnectInfo, *, slot: int, key: str) -> None:
        """Take as long."""
        await anyio.sleep(self.takes)
        if self.error:
            raise self.error
        self.done.append(f"{info.id}/{slot} {key} by hook")


async def test_a_slot_is_cleaned_before_the_next_job_gets_it() -> None:
    """The command runs on the instance after the job and is told which slot of it; the next job waits for its end."""
    cleaner = Cleaner()
    cloud = FakeCloud(on_command=cleaner.run)
    async with scaling(cloud, max_instances=1, policies=KEEP, instance_cleanup_command=CLEAN) as scaler:
        await work(scaler, "first", 5)
        released = anyio.current_time()
        async with scaler.acquire("second") as lease:
            assert anyio.current_time() >= released + 10
            assert (lease.instance, cleaner.done) == ("i-1", ["i-1/0 first"])


async def test_the_callers_own_step_comes_after_the_command() -> None:
    """Both are given, both are done, in this order."""
    cleaner = Cleaner()
    cloud = FakeCloud(on_command=cleaner.run)
    settings: dict[str, Any] = {"instance_cleanup_command": CLEAN, "cleanup_hook": cleaner.hook}
    async with scaling(cloud, max_instances=1, policies=KEEP, **settings) as scaler:
        await work(scaler, "first", 5)
        await work(scaler, "second", 5)
        assert cleaner.done == ["i-1/0 first", "i-1/0 first by hook"]


async def test_a_hook_by_itself_is_enough() -> None:
    """No command is run on the instance then."""
    cleaner = Cleaner()
    cloud = FakeCloud()
    async with scaling(cloud, max_instances=1, policies=KEEP, cleanup_hook=cleaner.hook) as scaler:
        await work(scaler, "first", 5)
        await work(scaler, "second", 5)
        assert cleaner.done == ["i-1/0 first by hook"]
        assert not cloud.commands


async def test_while_it_is_cleaned_a_slot_is_unavailable_and_counts_as_in_use() -> None:
    """It is in no other state, nothing is requested in its place, and what is said of the fleet tells so."""
    cloud = FakeCloud(on_command=Cleaner().run)
    policies = [Policy(idle_count=1, idle_time=3600)]
    settings: dict[str, Any] = {"capacity_per_instance": 2, "instance_cleanup_command": CLEAN}
    async with scaling(cloud, policies=policies, **settings) as scaler:
        await work(scaler, "job", 5)
        capacity = await scaler.capacity()
        assert (capacity.unavailable, capacity.idle, capacity.acquired) == (1, 1, 0)
        assert (await scaler.instances())[0].cleaning == {0}
        assert "1 slot is being cleaned after a job" in str(await scaler.explain())
        assert "1 slot is being cleaned" in str(await scaler.explain(instance="i-1"))
        await anyio.sleep(1)
        assert (await scaler.explain()).decisions[-1].demand.in_use == 1
        await anyio.sleep(10)
        assert (await scaler.capacity()).idle == 2
    assert asked(cloud) == [1]


@pytest.mark.parametrize("how", ["fails", "takes too long", "is not reached", "fails in the hook"])
async def test_an_instance_that_cannot_be_cleaned_is_replaced_once_it_is_free(how: str) -> None:
    """Its other job goes on; nothing new is put there; `explain` says why."""
    cleaner = Cleaner()
    cloud = FakeCloud(on_command=cleaner.run)
    settings: dict[str, Any] = {
        "capacity_per_instance": 2,
        "instance_cleanup_command": CLEAN,
        "cleanup_hook": cleaner.hook,
    }
    async with scaling(cloud, policies=KEEP, **settings) as scaler:
        other = await scaler.acquire_lease("other")
        lease = await scaler.acquire_lease("job")
        assert lease.instance == other.instance
        match how:
            case "fails":
                cleaner.exit_status = 3
            case "takes too long":
                cleaner.takes = 1000
            case "is not reached":
                cloud.faults.dial.once(Fault(refuse=ConnectError("connection refused")))
            case _:
                cleaner.error = ConnectError("the registry does not answer")
        lease.release()
        await anyio.sleep(70)
        why = {"fails": "disk is full", "takes too long": "longer than 1m0s", "is not reached": "connection refused"}
        assert "slot 1 could not be cleaned" in (await scaler.instances())[0].why
        assert why.get(how, "the registry does not answer") in (await scaler.instances())[0].why
        assert other.loss is None
        async with scaler.acquire("next") as elsewhere:
            assert elsewhere.instance != other.instance
            other.release()
            await anyio.sleep(5)
            assert cloud.alive == {elsewhere.instance}


async def test_what_goes_anyway_is_not_cleaned() -> None:
    """An instance at its use limit, one that is too old, and one whose slot was never handed over."""
    cleaner = Cleaner()
    cloud = FakeCloud(on_command=cleaner.run)
    async with scaling(cloud, max_use_count=1, instance_cleanup_command=CLEAN) as scaler:
        await work(scaler, "only", 5)
        await anyio.sleep(20)
    async with scaling(cloud, max_instance_age=3, instance_cleanup_command=CLEAN) as scaler:
        await work(scaler, "late", 5)
        await anyio.sleep(20)
    assert not cloud.alive
    assert not cleaner.begun


async def test_an_instance_that_is_lost_takes_its_cleanup_along() -> None:
    """The clean-up ends, the next job goes elsewhere, and nothing is left in the journal."""
    cloud, journal = FakeCloud(on_command=Cleaner(takes=50).run), MemoryJournal()
    settings: dict[str, Any] = {"update_interval": 5.0, "instance_cleanup_command": CLEAN}
    async with scaling(cloud, journal=journal, policies=KEEP, **settings) as scaler:
        await work(scaler, "job", 5)
        cloud.vanish("i-1")
        async with scaler.acquire("next", timeout=30) as lease:
            assert lease.instance == "i-2"
            assert journal.records[DIRTY] == {}


async def test_a_cleanup_that_meets_a_dead_instance_has_it_looked_for_at_once() -> None:
    """Long before the next view is due the other job there hears that it is lost."""
    cloud = FakeCloud(on_command=Cleaner().run)
    settings: dict[str, Any] = {"capacity_per_instance": 2, "instance_cleanup_command": CLEAN}
    async with scaling(cloud, update_interval=3600, policies=KEEP, **settings) as scaler:
        other = await scaler.acquire_lease("other")
        lease = await scaler.acquire_lease("job")
        await anyio.sleep(30)
        cloud.vanish("i-1")
        lease.release()
        with anyio.fail_after(60):
            await other.lost()


@pytest.mark.parametrize("keep_used", [False, True])
async def test_a_crash_in_the_middle_of_a_cleanup_leaves_no_dirty_slot(keep_used: bool) -> None:  # noqa: FBT001
    """The instance is replaced; or, where used ones are kept, cleaned before anything is put there."""
    cleaner = Cleaner()
    cloud, journal = FakeCloud(on_command=cleaner.run), MemoryJournal()
    settings: dict[str, Any] = {"capacity_per_instance": 2, "max_instances": 1, "instance_cleanup_command": CLEAN}
    async with scaling(cloud, journal=journal, policies=KEEP, **settings) as scaler:
        running = await scaler.acquire_lease("running")
        await work(scaler, "ended", 5)
        await anyio.sleep(1)
        records = {kind: dict(kept) for kind, kept in journal.records.items()}
    crashed = MemoryJournal(records)
    cleaner.done.clear()
    async with scaling(cloud, journal=crashed, policies=KEEP, keep_used=keep_used, **settings) as scaler:
        leases = [await scaler.acquire_lease(f"next-{number}") for number in range(2)]
        if keep_used:
            assert {lease.instance for lease in leases} == {running.instance}
            assert sorted(cleaner.done) == ["i-1/0 running", "i-1/1 ended"]
        else:
            assert running.instance not in cloud.alive
            assert not cleaner.done
        assert crashed.records[DIRTY] == {}


async def test_a_drain_waits_until_what_stays_is_clean() -> None:
    """So the next manager uses all of it on."""
    cleaner = Cleaner()
    cloud, journal = FakeCloud(on_command=cleaner.run), MemoryJournal()
    async with scaling(cloud, journal=journal, policies=KEEP, instance_cleanup_command=CLEAN) as scaler:
        await work(scaler, "job", 5)
        assert await scaler.drain()
        assert cleaner.done == ["i-1/0 job"]
    assert journal.records[DIRTY] == {}
    async with (
        scaling(cloud, journal=journal, policies=KEEP, instance_cleanup_command=CLEAN) as scaler,
        scaler.acquire("next") as lease,
    ):
        assert lease.instance == "i-1"


async def test_leaving_does_not_wait_for_the_cleaning_of_what_is_deleted() -> None:
    """Neither a drain nor the deletion of all instances does."""
    cloud = FakeCloud(on_command=Cleaner(takes=50).run)
    async with scaling(cloud, delete=True, policies=KEEP, instance_cleanup_command=CLEAN) as scaler:
        await work(scaler, "job", 5)
        ended = anyio.current_time()
        assert await scaler.drain()
    assert anyio.current_time() < ended + 10
    assert not cloud.alive


async def test_a_key_may_be_used_again_while_its_slot_is_cleaned() -> None:
    """The dirt is remembered by slot: another lease under the same key has its own record."""
    cloud, journal = FakeCloud(on_command=Cleaner().run), MemoryJournal()
    async with scaling(cloud, journal=journal, policies=KEEP, instance_cleanup_command=CLEAN) as scaler:
        for _ in range(3):
            await work(scaler, "job", 5)
        await anyio.sleep(20)
        assert (journal.records["lease"], journal.records[DIRTY]) == ({}, {})


async def test_a_cleanup_begins_once_the_end_of_the_lease_is_durable() -> None:
    """A slot whose use may still be found in the journal is not clean yet, whatever was done there."""
    cleaner, journal = Cleaner(), FullDisk()
    cloud = FakeCloud(on_command=cleaner.run)
    async with scaling(cloud, journal=journal, policies=KEEP, instance_cleanup_command=CLEAN) as scaler:
        lease = await scaler.acquire_lease("job")
        journal.full = True
        lease.release()
        await anyio.sleep(30)
        assert not cleaner.begun
        journal.full = False
        await anyio.sleep(30)
        assert cleaner.done == ["i-1/0 job"]


async def test_a_cleanup_that_was_put_off_until_nobody_wants_it_is_not_begun() -> None:
    """The instance grew too old before the journal could be written again."""
    cleaner, journal = Cleaner(), FullDisk()
    cloud = FakeCloud(on_command=cleaner.run)
    settings: dict[str, Any] = {"capacity_per_instance": 2, "max_instance_age": 20, "instance_cleanup_command": CLEAN}
    async with scaling(cloud, journal=journal, policies=KEEP, **settings) as scaler:
        lease, other = [await scaler.acquire_lease(key) for key in ("job", "other")]
        journal.full = True
        lease.release()
        await anyio.sleep(30)
        journal.full = False
        await anyio.sleep(30)
        assert not cleaner.begun
        assert other.loss is None
