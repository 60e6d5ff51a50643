"""Instances that sleep with their leases, or instead of being deleted; over the fake cloud, in virtual time.

Explanations are in tests/golden.
"""

import re
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from fleeting import Capability, CapacityUnavailable, MemoryJournal, ProviderError, RateLimited, State
from fleeting.plugins import Mark
from fleeting.testing import FakeCloud, FakeGroup, Fault, SuspendFault, virtual_time
from taskscaler import LeaseLost, NoCapacity, NotSuspended, Policy, Pool, Taskscaler
from tests.golden import Golden
from tests.taskscaler.scaling import asked, scaling, virtual_clock, work

pytestmark = pytest.mark.anyio
anyio_backend = virtual_time


def a_cloud(*, boot_time: float = 0.0, suspend_time: float = 0.0, resume_time: float = 0.0) -> FakeCloud:
    """One that can suspend."""
    capabilities = frozenset({Capability.NAMED_CREATE, Capability.SUSPEND_RESUME})
    return FakeCloud(capabilities=capabilities, boot_time=boot_time, suspend_time=suspend_time, resume_time=resume_time)


def states(cloud: FakeCloud) -> dict[str, State | None]:
    """Of all that exist."""
    return {id_: cloud.machines[id_].state(cloud.now) for id_ in sorted(cloud.alive)}


def called(cloud: FakeCloud, method: str) -> list[object]:
    """For which instances, call by call."""
    return [call.arguments["instances"] for call in cloud.calls if call.method == method]


async def asleep(scaler: Taskscaler, key: str = "job") -> str:
    """Suspend a new lease, and wait a little; returns its instance."""
    lease = await scaler.acquire_lease(key)
    lease.suspend()
    await anyio.sleep(10)
    return lease.instance


Pin = Callable[[str, object], None]


@pytest.fixture
def pin(golden: Golden, anyio_backend_name: str) -> Pin:
    """Compare an explanation with tests/golden, under a name; on asyncio alone, where tasks run in the same order."""

    def pin(name: str, explanation: object) -> None:
        if anyio_backend_name == "asyncio":
            golden(f"suspension/{name}", str(explanation))

    return pin


def test_the_golden_file_has_nothing_else_of_this(golden: Golden) -> None:
    """What is no longer said is taken out."""
    golden.has_only("suspension/", re.findall(r'[^"]\bpin\("([^"]+)"', Path(__file__).read_text()))


# --- with their leases ------------------------------------------------------------------------------------


async def test_an_instance_sleeps_with_its_lease_and_wakes_with_it(pin: Pin) -> None:
    """The same slot; and resuming waits until the instance is ready."""
    cloud = a_cloud(suspend_time=5, resume_time=20)
    async with scaling(cloud) as scaler:
        instance = await asleep(scaler)
        assert states(cloud) == {instance: State.SUSPENDED}
        said = str(await scaler.explain(instance=instance))
        assert "i-1 is suspended" in said
        pin("with its lease: the instance", said)
        held = str(await scaler.explain(key="job"))
        assert all(word in held for word in ("slot 0", "i-1", "10s", "suspended"))
        pin("with its lease: the job", held)
        await anyio.sleep(5000)
        begun = anyio.current_time()
        lease = await scaler.resume("job")
        assert anyio.current_time() - begun >= 20
        assert (lease.instance, lease.slot) == (instance, 0)
        assert states(cloud) == {instance: State.RUNNING}
        lease.release()
    assert called(cloud, "suspend") == called(cloud, "resume") == [("i-1",)]


async def test_without_the_capability_nothing_is_suspended() -> None:
    """The lease keeps its slot, and the instance runs on."""
    cloud = FakeCloud()
    async with scaling(cloud, suspended_count=5) as scaler:
        instance = await asleep(scaler)
        assert states(cloud) == {instance: State.RUNNING}
        (await scaler.resume("job")).release()


async def test_an_instance_with_work_does_not_sleep() -> None:
    """Only once all its leases are suspended or released."""
    cloud = a_cloud()
    async with scaling(cloud, capacity_per_instance=2) as scaler:
        other = await scaler.acquire_lease("other")
        instance = await asleep(scaler)
        assert states(cloud) == {instance: State.RUNNING}
        other.release()
        await anyio.sleep(10)
        assert states(cloud) == {instance: State.SUSPENDED}
        (await scaler.resume("job")).release()


async def test_free_slots_are_kept_awake_while_they_are_wanted() -> None:
    """What is to be kept idle, and idle_time, hold beside a lease that sleeps, too."""
    cloud = a_cloud()
    policies = [Policy(idle_count=1, idle_time=100)]
    async with scaling(cloud, capacity_per_instance=2, policies=policies) as scaler:
        instance = await asleep(scaler)
        await anyio.sleep(500)
        assert states(cloud) == {instance: State.RUNNING}
        await scaler.configure(policies=[Policy(idle_time=100)])
        await anyio.sleep(90)
        assert states(cloud) == {instance: State.RUNNING}
        await anyio.sleep(20)
        assert states(cloud) == {instance: State.SUSPENDED}
        await work(scaler, "another", 1.0)  # there is room beside the lease that sleeps
        assert asked(cloud) == [1]
        (await scaler.resume("job")).release()


async def test_what_sleeps_counts_towards_the_ceiling_and_takes_no_work() -> None:
    """There is no other slot, and there may be no other instance."""
    cloud = a_cloud()
    async with scaling(cloud, max_instances=1) as scaler:
        await asleep(scaler)
        with pytest.raises(NoCapacity, match=r"the limit of 1 instance \(max_instances\) is reached"):
            await scaler.acquire_lease("another", timeout=100)
        (await scaler.resume("job")).release()


async def test_uses_are_kept_over_sleep() -> None:
    """Resuming is no use of its own, and a worn out instance is no fresher for it."""
    cloud = a_cloud()
    async with scaling(cloud, max_use_count=2, policies=[Policy(idle_time=1000)]) as scaler:
        instance = await asleep(scaler)
        (await scaler.resume("job")).release()
        async with scaler.acquire("second") as lease:
            assert lease.instance == instance
        await anyio.sleep(10)
        assert instance not in cloud.alive


async def test_what_cannot_be_suspended_runs_on(pin: Pin) -> None:
    """Its lease is resumed there as if nothing had been tried; later it is tried again."""
    cloud = a_cloud()
    cloud.faults.suspend.once(SuspendFault(refuse=ProviderError("internal error")))
    async with scaling(cloud) as scaler:
        lease = await scaler.acquire_lease("job")
        lease.suspend()
        await anyio.sleep(1)
        said = str(await scaler.explain())
        assert "paused" in said
        pin("suspending failed", said)
        assert states(cloud) == {"i-1": State.RUNNING}
        (await scaler.resume("job")).suspend()
        await anyio.sleep(60)
        assert states(cloud) == {"i-1": State.SUSPENDED}
        (await scaler.resume("job")).release()


async def test_one_that_sleeps_well_does_not_speed_up_those_that_do_not() -> None:
    """Each view shows that it sleeps, which is no reason to try another again at once, and again."""
    cloud = a_cloud(suspend_time=1)
    cloud.latency = {"suspend": 0.1, "update": 0.1, "connect_info": 0.1}
    async with scaling(cloud) as scaler:
        other = await scaler.acquire_lease("other")
        await asleep(scaler)
        cloud.faults.suspend.always(SuspendFault(refuse=ProviderError("internal error")))
        before = len(called(cloud, "suspend"))
        other.suspend()
        await anyio.sleep(600)
        assert 3 <= len(called(cloud, "suspend")) - before <= 12
        cloud.faults.suspend.clear()
        for key in ("job", "other"):
            (await scaler.resume(key)).release()


async def test_what_cannot_be_resumed_sleeps_on_and_others_are_bought(pin: Pin) -> None:
    """It is explained; the job beside gets another instance, and the lease is resumed once that is possible."""
    cloud = a_cloud()
    cloud.faults.resume.always(SuspendFault(refuse=CapacityUnavailable("none of this left")))
    async with scaling(cloud, capacity_per_instance=2) as scaler, anyio.create_task_group() as tasks:
        instance = await asleep(scaler)

        async def resume() -> None:
            (await scaler.resume("job")).release()

        tasks.start_soon(resume)
        await anyio.sleep(100)
        said = str(await scaler.explain(instance=instance))
        assert f"{instance} is suspended" in said
        assert "none of this left" in said
        pin("resuming failed: the instance", said)
        said = str(await scaler.explain())
        assert instance in said
        assert "none of this left" in said
        pin("resuming failed", said)
        async with scaler.acquire("another") as lease:
            assert lease.instance != instance
        cloud.faults.resume.clear()
    assert asked(cloud) == [1, 1]


async def test_what_is_lost_in_its_sleep_is_told() -> None:
    """Whoever waits for it, and whoever comes later."""
    cloud = a_cloud(resume_time=1000)
    async with scaling(cloud) as scaler, anyio.create_task_group() as tasks:
        instance = await asleep(scaler)

        async def resume() -> None:
            with pytest.raises(LeaseLost, match="the cloud no longer shows it"):
                await scaler.resume("job")

        tasks.start_soon(resume)
        await anyio.sleep(50)
        cloud.vanish(instance)
        await anyio.sleep(100)
        with pytest.raises(NotSuspended):
            await scaler.resume("job")


async def test_a_sleeping_instance_outlives_its_manager() -> None:
    """It is not waited for as if it booted; the next manager resumes it when somebody wants it."""
    cloud, journal = a_cloud(), MemoryJournal()
    async with scaling(cloud, journal=journal) as scaler:
        instance = await asleep(scaler)
    async with scaling(cloud, journal=journal) as scaler:
        await anyio.sleep(5000)
        assert states(cloud) == {instance: State.SUSPENDED}
        assert called(cloud, "resume") == []
        lease = await scaler.resume("job")
        assert (lease.instance, lease.slot) == (instance, 0)
        lease.release()


async def test_a_retained_instance_is_kept_awake() -> None:
    """Whoever wants to look at it needs it to run; released, it may sleep."""
    cloud = a_cloud()
    async with scaling(cloud) as scaler:
        lease = await scaler.acquire_lease("job")
        await scaler.retain(lease.instance, "to look at it")
        lease.suspend()
        await anyio.sleep(100)
        assert states(cloud) == {"i-1": State.RUNNING}
        await scaler.unretain(lease.instance)
        await anyio.sleep(100)
        assert states(cloud) == {"i-1": State.SUSPENDED}
        (await scaler.resume("job")).release()


async def test_an_instance_that_is_about_to_sleep_is_kept_awake_once_it_is_retained() -> None:
    """Its lease sleeps already; only its free slots are waited for."""
    cloud = a_cloud()
    async with scaling(cloud, capacity_per_instance=2, policies=[Policy(idle_time=100)]) as scaler:
        await asleep(scaler)
        await scaler.retain("i-1", "to look at it")
        await anyio.sleep(500)
        assert states(cloud) == {"i-1": State.RUNNING}
        await scaler.unretain("i-1")
        await anyio.sleep(10)
        assert states(cloud) == {"i-1": State.SUSPENDED}
        (await scaler.resume("job")).release()


async def test_what_somebody_else_suspends_is_woken_when_it_is_wanted() -> None:
    """Under a running job it is only waited for; one on which nothing runs is taken for asleep, and resumed."""
    cloud = a_cloud()
    async with scaling(cloud, update_interval=10, heartbeat_interval=3600) as scaler:
        lease = await scaler.acquire_lease("job")
        cloud.suspend(["i-1"], SuspendFault())
        await anyio.sleep(30)
        assert called(cloud, "resume") == []
        lease.suspend()
        await anyio.sleep(10)
        (await scaler.resume("job")).release()
    assert called(cloud, "suspend") == []
    assert called(cloud, "resume") == [("i-1",)]


# --- instead of being deleted -----------------------------------------------------------------------------


async def test_idle_instances_sleep_instead_of_being_deleted(pin: Pin) -> None:
    """As many as may; they are resumed before any are asked for, and go when they have slept for long enough."""
    cloud = a_cloud(boot_time=60, resume_time=5)
    async with scaling(cloud, suspended_count=1, suspended_time=600) as scaler:
        async with anyio.create_task_group() as jobs:
            for number in range(2):
                jobs.start_soon(work, scaler, f"job-{number}", 10.0)
        await anyio.sleep(10)
        (sleeper,) = cloud.alive
        assert states(cloud) == {sleeper: State.SUSPENDED}
        said = str(await scaler.explain())
        assert "up to 1 idle instance" in said
        pin("in reserve", said)
        begun = anyio.current_time()
        async with scaler.acquire("next") as lease:
            assert lease.instance == sleeper
            assert anyio.current_time() - begun < 20
        await anyio.sleep(300)
        assert cloud.alive == {sleeper}
        await anyio.sleep(400)
        assert not cloud.alive
    assert asked(cloud) == [1, 1] or asked(cloud) == [2]


async def test_one_that_cannot_be_resumed_is_replaced() -> None:
    """It holds nothing, and must not stand in the way of one that can be had."""
    cloud = a_cloud()
    async with scaling(cloud, suspended_count=1, max_instances=1) as scaler:
        await work(scaler, "job", 10.0)
        await anyio.sleep(10)
        assert set(states(cloud).values()) == {State.SUSPENDED}
        cloud.faults.resume.always(SuspendFault(refuse=ProviderError("the disk is gone")))
        async with scaler.acquire("next", timeout=100) as lease:
            assert lease.instance == "i-2"


async def test_one_failure_costs_no_reserve() -> None:
    """A cloud that was asked too often, or a network that failed, says nothing of the instances."""
    cloud = a_cloud()
    async with scaling(cloud, suspended_count=5) as scaler:
        for keys in ("abcde", "fghij"):
            async with anyio.create_task_group() as jobs:
                for key in keys:
                    jobs.start_soon(work, scaler, key, 10.0)
            await anyio.sleep(10)
            cloud.faults.resume.once(SuspendFault(refuse=RateLimited("slow down")))
        assert set(states(cloud).values()) == {State.SUSPENDED}
        assert {f"i-{number}" for number in range(1, 6)} <= cloud.alive


async def test_as_many_wake_as_are_needed_the_last_to_fall_asleep_first() -> None:
    """The others have the rest of their time, and go in turn."""
    cloud = a_cloud()
    async with scaling(cloud, suspended_count=3) as scaler:
        async with anyio.create_task_group() as jobs:
            for seconds in (10, 30, 20):
                jobs.start_soon(work, scaler, f"job-{seconds}", seconds)
        await anyio.sleep(10)
        last = called(cloud, "suspend")[-1]
        assert len(called(cloud, "suspend")) == 3
        await work(scaler, "next", 1.0)
        assert called(cloud, "resume") == [last]


async def test_no_reserve_is_promised_while_nothing_can_be_resumed() -> None:
    """Later it may be: the refusal says so."""
    cloud = a_cloud()
    async with scaling(cloud, suspended_count=1, max_instances=1) as scaler:
        await work(scaler, "job", 10.0)
        await anyio.sleep(10)
        cloud.faults.resume.once(SuspendFault(refuse=ProviderError("internal error")))
        with pytest.raises(NoCapacity):
            await scaler.acquire_lease("hasty", timeout=1)
        with pytest.raises(NoCapacity) as refused:
            await scaler.reserve("next")
        assert refused.value.possible
        await anyio.sleep(30)
        await work(scaler, "next", 1.0)


async def test_a_cordoned_instance_is_kept_awake_for_its_leases() -> None:
    """Somebody wants to look at it."""
    cloud = a_cloud()
    async with scaling(cloud) as scaler:
        lease = await scaler.acquire_lease("job")
        await scaler.cordon(lease.instance)
        lease.suspend()
        await anyio.sleep(100)
        assert states(cloud) == {"i-1": State.RUNNING}
        await scaler.uncordon(lease.instance)
        await anyio.sleep(10)
        assert states(cloud) == {"i-1": State.SUSPENDED}
        (await scaler.resume("job")).release()


async def test_free_slots_beside_a_sleeper_are_idle_from_when_it_fell_asleep() -> None:
    """However long it was awake before."""
    cloud = a_cloud()
    async with scaling(cloud, capacity_per_instance=2, policies=[Policy(idle_time=100)]) as scaler:
        lease = await scaler.acquire_lease("job")
        await anyio.sleep(300)
        lease.suspend()
        await anyio.sleep(50)
        assert states(cloud) == {"i-1": State.RUNNING}
        await anyio.sleep(60)
        assert states(cloud) == {"i-1": State.SUSPENDED}
        (await scaler.resume("job")).release()


async def test_what_sleeps_can_be_reserved() -> None:
    """Though nothing more may be created: whoever reserves before it looks for work would never look again."""
    cloud = a_cloud()
    async with scaling(cloud, suspended_count=1, max_instances=1) as scaler:
        await work(scaler, "job", 10.0)
        await anyio.sleep(10)
        assert states(cloud) == {"i-1": State.SUSPENDED}
        await scaler.reserve("next")
        with pytest.raises(NoCapacity):
            await scaler.reserve("one too many")
        await work(scaler, "next", 1.0)
        assert asked(cloud) == [1]


async def test_what_wakes_for_a_lease_can_be_reserved_only_beside_it() -> None:
    """The lease's own slot is on its way to nobody else."""
    cloud = a_cloud(resume_time=30)
    async with scaling(cloud, max_instances=1) as scaler, anyio.create_task_group() as tasks:
        await asleep(scaler)

        async def resume() -> None:
            (await scaler.resume("job")).release()

        tasks.start_soon(resume)
        await anyio.sleep(10)
        assert states(cloud) == {"i-1": State.RESUMING}
        with pytest.raises(NoCapacity):
            await scaler.reserve("another")


@pytest.mark.parametrize("why", ["cordoned", "older than max_instance_age"])
async def test_one_of_the_reserve_that_is_of_no_use_goes(why: str) -> None:
    """It sleeps no longer than it would have been idle, or may be used."""
    cloud = a_cloud()
    async with scaling(cloud, suspended_count=1, max_instance_age=100) as scaler:
        await work(scaler, "job", 10.0)
        await anyio.sleep(10)
        assert states(cloud) == {"i-1": State.SUSPENDED}
        if why == "cordoned":
            await scaler.cordon("i-1")
        else:
            await anyio.sleep(60)
            assert cloud.alive
        assert why in str(await scaler.explain(instance="i-1"))
        await anyio.sleep(40)
        assert not cloud.alive
    assert called(cloud, "resume") == []


async def test_the_reserve_of_a_group_that_was_lost_for_a_while_is_kept() -> None:
    """It is neither resumed nor, for that could not be done, deleted; afterwards it serves whoever has waited."""
    cloud = a_cloud()
    cloud.capabilities |= {Capability.OWNER_MARK}
    async with scaling(cloud, suspended_count=1) as scaler:
        await work(scaler, "job", 10.0)
        await anyio.sleep(10)
        cloud.owner_mark = Mark(owner="somebody else", until=cloud.now + 400)
        await anyio.sleep(200)
        async with scaler.acquire("next") as lease:
            assert lease.instance == "i-1"
            assert cloud.owner_mark.owner != "somebody else"


async def test_a_group_that_was_lost_stops_no_other() -> None:
    """Its pool gives nobody anything new; the next one does, and says so."""
    lost, other = a_cloud(), a_cloud()
    other.identity = "fake/other"
    lost.capabilities |= {Capability.OWNER_MARK}
    pools = [
        Pool(group := FakeGroup(cloud), name=name, dial=group.dial)
        for name, cloud in (("lost", lost), ("other", other))
    ]
    async with Taskscaler(pools, policies=[Policy(idle_count=1)], clock=virtual_clock()) as scaler:
        await anyio.sleep(30)
        assert len(lost.alive) == 1
        lost.faults.mark_owner.always(Fault(refuse=ProviderError("internal error")))
        await anyio.sleep(400)
        async with scaler.acquire("job", timeout=60) as lease:
            assert lease.pool == "other"
        assert "internal error" in str(await scaler.explain(instance="lost/i-1"))
        lost.faults.mark_owner.clear()
        await anyio.sleep(100)
        async with scaler.acquire("job", timeout=60) as lease:
            assert lease.pool == "lost"


async def test_the_tier_is_off_where_resuming_does_not_pay(pin: Pin) -> None:
    """Once that was measured often enough; what sleeps goes, too, and explain says why."""
    cloud = a_cloud(boot_time=10, resume_time=30)
    async with scaling(cloud, suspended_count=4) as scaler:
        async with anyio.create_task_group() as jobs:
            for number in range(3):
                jobs.start_soon(work, scaler, f"job-{number}", 10.0)
        for number in range(3):
            await anyio.sleep(60)
            await work(scaler, f"later-{number}", 10.0)
        await anyio.sleep(60)
        assert not cloud.alive
        said = str(await scaler.explain())
        assert "resuming takes 3" in said
        assert "does not pay off" in said
        pin("resuming does not pay", said)
