"""Persistent leases: their managers end, and they go on; what becomes of those that nobody takes up again.

Over the fake cloud, in virtual time.
"""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import anyio
import pytest

from fleeting import Capability, MemoryJournal
from fleeting.events import LossKind
from fleeting.testing import FakeCloud, virtual_time
from taskscaler import (
    DetachedLease,
    KeyInUse,
    LeaseEvent,
    LeaseLost,
    NoCapacity,
    NotDetached,
    NotSuspended,
    Policy,
    ScalerEvent,
    TaskscalerError,
)
from taskscaler._lease import VERDICT_TIMEOUT
from tests.golden import Golden
from tests.taskscaler.scaling import asked, in_vain, scaling, virtual_clock, work

pytestmark = pytest.mark.anyio
anyio_backend = virtual_time

IDLES = [Policy(idle_time=3600)]
CLEANS: dict[str, Any] = {"instance_cleanup_command": "true"}


async def killed(
    cloud: FakeCloud,
    *keys: str,
    ordinary: Sequence[str] = (),
    asleep: Sequence[str] = (),
    **settings: Any,  # noqa: ANN401  (those of `scaling`)
) -> MemoryJournal:
    """What the journal of a manager held that was killed while it had persistent leases and others."""
    journal = MemoryJournal()
    async with scaling(cloud, journal=journal, policies=IDLES, **settings) as scaler:
        for key in [*keys, *ordinary]:
            lease = await scaler.acquire_lease(key, persistent=key in keys)
            if key in asleep:
                lease.suspend()
        await anyio.sleep(0.01)
        return MemoryJournal(deepcopy(journal.records))


async def test_who_comes_back_to_a_sick_instance_does_not_dial_for_ever() -> None:
    """Its heartbeats had failed before anybody held the lease: they hear of it as those do who held it meanwhile."""
    cloud = FakeCloud()
    journal = await killed(cloud, "job")
    async with scaling(cloud, journal=journal, policies=IDLES, heartbeat_interval=10.0, dial=in_vain) as scaler:
        await anyio.sleep(5)
        cloud.sicken("i-1")
        await anyio.sleep(60)
        (ill,) = await scaler.instances()
        assert ill.why.startswith("its heartbeats fail")
        lease = await scaler.reattach("job")
        began = anyio.current_time()
        with pytest.raises(LeaseLost, match="its heartbeats fail"):
            async with lease.hold(), lease.dial():
                pass
        assert anyio.current_time() - began <= VERDICT_TIMEOUT


async def test_a_lease_outlives_its_manager() -> None:
    """The next manager lists it, hands it over once, and takes its slot back when it is released."""
    cloud = FakeCloud()
    journal = await killed(cloud, "job")
    async with scaling(cloud, journal=journal, policies=IDLES) as scaler:
        (left,) = scaler.detached
        assert left == DetachedLease(
            key="job", pool="default", instance="i-1", slot=0, since=left.since, reattach_by=left.reattach_by
        )
        assert left.reattach_by == pytest.approx(virtual_clock().now() + 600, abs=5)
        assert (await scaler.capacity()).acquired == 1
        lease = await scaler.reattach("job")
        assert (lease.key, lease.instance, lease.slot, lease.persistent) == ("job", "i-1", 0, True)
        assert scaler.detached == []
        await anyio.sleep(700)
        assert not lease.ended
        lease.release()
        assert (await scaler.capacity()).idle == 1
        assert asked(cloud) == [1]


async def test_a_lease_that_is_held_when_its_scaler_is_left_goes_to_the_next() -> None:
    """Its holder hears that the scaler was stopped; one that was released is gone, and so is any other."""
    cloud, journal = FakeCloud(), MemoryJournal()
    async with scaling(cloud, journal=journal) as scaler:
        held = await scaler.acquire_lease("held", persistent=True)
        (await scaler.acquire_lease("released", persistent=True)).release()
        await scaler.acquire_lease("ordinary")
    assert held.loss is not None
    assert held.loss.kind is LossKind.KILLED
    held.release()
    async with scaling(cloud, journal=journal) as scaler:
        assert [each.key for each in scaler.detached] == ["held"]


async def test_a_scaler_that_deletes_its_instances_leaves_no_lease() -> None:
    """Nor does one without a journal: a persistent lease is lost like any other then."""
    cloud, journal = FakeCloud(), MemoryJournal()
    async with scaling(cloud, journal=journal, delete=True) as scaler:
        held = await scaler.acquire_lease("held", persistent=True)
        (await scaler.acquire_lease("let go of", persistent=True)).detach()
    assert held.loss is not None
    assert not cloud.alive
    assert not journal.records["lease"]
    async with scaling(cloud) as scaler:
        await scaler.acquire_lease("held", persistent=True)
        assert scaler.detached == []


async def test_each_restart_gives_the_whole_time_again() -> None:
    """A manager that is killed again and again costs nobody a lease that it comes back for in time."""
    cloud = FakeCloud()
    journal = await killed(cloud, "job")
    for _ in range(3):
        async with scaling(cloud, journal=journal) as scaler:
            await anyio.sleep(500)
            assert [each.key for each in scaler.detached] == ["job"]
    async with scaling(cloud, journal=journal) as scaler:
        (await scaler.reattach("job")).release()


@pytest.mark.parametrize("keep_used", [False, True])
async def test_what_nobody_reattaches_is_given_up(*, keep_used: bool) -> None:
    """After `reattach_timeout` it is as after a restart: the instance goes, unless it is to be used on."""
    cloud = FakeCloud()
    journal = await killed(cloud, "job")
    async with scaling(cloud, journal=journal, policies=IDLES, keep_used=keep_used, reattach_timeout=60) as scaler:
        await anyio.sleep(50)
        assert cloud.alive == {"i-1"}
        await anyio.sleep(20)
        assert scaler.detached == []
        assert cloud.alive == ({"i-1"} if keep_used else set())
        with pytest.raises(LeaseLost, match="nobody reattached"):
            await scaler.reattach("job")
        async with scaler.acquire("job") as lease:
            assert lease.instance == ("i-1" if keep_used else "i-2")


async def test_whoever_waits_for_a_lease_in_time_gets_it() -> None:
    """Its instance may take longer to be ready than the lease would be kept; who gives up leaves it as it was."""
    cloud = FakeCloud()
    journal = await killed(cloud, "job")
    cloud.machines["i-1"].runs_at = cloud.now + 100
    async with scaling(cloud, journal=journal, reattach_timeout=60) as scaler:
        with pytest.raises(NoCapacity) as late:
            await scaler.reattach("job", timeout=10)
        first, held, instance, *_ = str(late.value).splitlines()
        assert first == "the lease 'job' was not reattached within 10s"
        assert held.endswith("is detached: somebody is reattaching it, and waits for its instance to be ready")
        assert instance.startswith("i-1 is booting: ")
        assert [each.key for each in scaler.detached] == ["job"]
        await anyio.sleep(40)
        (await scaler.reattach("job")).release()
    cloud = FakeCloud()
    journal = await killed(cloud, "late")
    cloud.machines["i-1"].runs_at = cloud.now + 100
    async with scaling(cloud, journal=journal, reattach_timeout=60) as scaler:
        with pytest.raises(NoCapacity):
            await scaler.reattach("late", timeout=70)
        await anyio.sleep(0.1)
        assert scaler.detached == []


async def test_its_slot_is_not_handed_out_nor_its_instance_cleaned_or_used_beyond_its_limit() -> None:
    """Beside it, other work runs; its use counts."""
    cloud = FakeCloud()
    journal = await killed(cloud, "job", capacity_per_instance=2, max_use_count=2)
    async with scaling(
        cloud, journal=journal, capacity_per_instance=2, max_use_count=2, policies=IDLES, max_instances=1, **CLEANS
    ) as scaler:
        async with scaler.acquire("beside") as beside:
            assert (beside.instance, beside.slot) == ("i-1", 1)
        await anyio.sleep(100)
        assert cloud.alive == {"i-1"}
        with pytest.raises(NoCapacity):
            await scaler.acquire_lease("third", timeout=10)
        (await scaler.reattach("job")).release()
        await work(scaler, "third", 1.0)
    assert asked(cloud) == [1, 1]


@pytest.mark.parametrize("cleans", [False, True])
async def test_what_else_ran_on_its_instance_costs_it_nothing(*, cleans: bool) -> None:
    """The slot of a lease that was not persistent is cleaned; where none is, the instance gets no more work."""
    cloud = FakeCloud()
    settings: dict[str, Any] = {"capacity_per_instance": 2, **(CLEANS if cleans else {})}
    journal = await killed(cloud, "job", ordinary=["other"], **settings)
    for _ in range(2):
        async with scaling(cloud, journal=journal, policies=IDLES, **settings) as scaler:
            async with scaler.acquire("next") as lease:
                assert lease.instance == ("i-1" if cleans else "i-2")
            assert cloud.alive >= {"i-1"}
            if not cleans:
                assert "in use when its manager stopped" in str(await scaler.explain(instance="i-1"))
    async with scaling(cloud, journal=journal, policies=IDLES, **settings) as scaler:
        (await scaler.reattach("job")).release()
        await anyio.sleep(10)
        assert ("i-1" in cloud.alive) is cleans


async def test_its_instance_may_be_lost_meanwhile() -> None:
    """While the manager was away, or before somebody came for it; whoever waits hears at once."""
    cloud = FakeCloud()
    journal = await killed(cloud, "gone", "goes", "waits")
    cloud.vanish("i-1")
    async with scaling(cloud, journal=journal) as scaler:
        await anyio.sleep(30)
        with pytest.raises(LeaseLost, match="gone lost its slot on i-1"):
            await scaler.reattach("gone")
        cloud.vanish("i-2")
        await anyio.sleep(200)
        with pytest.raises(LeaseLost) as lost:
            await scaler.reattach("goes")
        assert lost.value.loss.kind is LossKind.VANISHED
        assert [each.key for each in scaler.detached] == ["waits"]


async def test_only_what_is_detached_is_reattached() -> None:
    """Each refusal says what there is instead, and whether somebody has the lease."""
    cloud = FakeCloud(capabilities=frozenset({Capability.NAMED_CREATE, Capability.SUSPEND_RESUME}))
    journal = await killed(cloud, "job", "sleeper", asleep=["sleeper"])
    async with scaling(cloud, journal=journal) as scaler:
        with pytest.raises(NotDetached, match="'typo' is not detached") as unknown:
            await scaler.reattach("typo")
        assert not unknown.value.held
        with pytest.raises(KeyInUse):
            await scaler.acquire_lease("job")
        with pytest.raises(NotSuspended):
            await scaler.resume("job")
        lease = await scaler.reattach("job")
        with pytest.raises(NotDetached, match="is held already") as twice:
            await scaler.reattach("job")
        assert twice.value.held
        with pytest.raises(NotDetached, match="is suspended; resume it"):
            await scaler.reattach("sleeper")
        lease.release()
        with pytest.raises(NotDetached):
            await scaler.reattach("job")
        ordinary = await scaler.acquire_lease("ordinary")
        with pytest.raises(TaskscalerError, match="not persistent"):
            ordinary.detach()
        await scaler.stop()
        with pytest.raises((NotDetached, NoCapacity)):
            await scaler.reattach("job")


async def test_two_who_come_for_the_same_lease() -> None:
    """The second hears that the first is there; once that has given up, the lease is there for whoever comes next."""
    cloud = FakeCloud()
    journal = await killed(cloud, "job")
    cloud.machines["i-1"].runs_at = cloud.now + 100
    async with scaling(cloud, journal=journal) as scaler:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(scaler.reattach, "job")
            await anyio.sleep(1)
            with pytest.raises(NotDetached, match="by somebody else"):
                await scaler.reattach("job")
            tasks.cancel_scope.cancel()
        lease = await scaler.reattach("job")
        assert not lease.ended


async def test_a_suspended_lease_sleeps_on_persistent_or_not() -> None:
    """It is resumed, not reattached, and nothing gives it up; resumed, it is persistent again."""
    cloud = FakeCloud(capabilities=frozenset({Capability.NAMED_CREATE, Capability.SUSPEND_RESUME}))
    journal = await killed(cloud, "job", asleep=["job"])
    async with scaling(cloud, journal=journal) as scaler:
        await anyio.sleep(1000)
        assert scaler.detached == []
        lease = await scaler.resume("job")
        assert lease.persistent
    async with scaling(cloud, journal=journal) as scaler:
        assert [each.key for each in scaler.detached] == ["job"]
        lease = await scaler.reattach("job")
        lease.suspend()
        assert (await scaler.resume("job")).persistent


async def test_an_instance_on_which_a_persistent_lease_sleeps_is_not_removed() -> None:
    """Though something else ran there that may still run; it gets no more work."""
    cloud = FakeCloud(capabilities=frozenset({Capability.NAMED_CREATE, Capability.SUSPEND_RESUME}))
    journal = await killed(cloud, "job", asleep=["job"], ordinary=["other"], capacity_per_instance=2)
    async with scaling(cloud, journal=journal, capacity_per_instance=2) as scaler:
        await anyio.sleep(10)
        lease = await scaler.resume("job")
        assert lease.instance == "i-1"
        lease.release()
        await anyio.sleep(10)
        assert not cloud.alive


async def test_whoever_lets_go_of_a_lease_may_take_it_up_again() -> None:
    """In the same process, too; it is kept for as long as after a restart."""
    cloud = FakeCloud()
    async with scaling(cloud, journal=MemoryJournal(), policies=IDLES, reattach_timeout=60) as scaler:
        lease = await scaler.acquire_lease("job", persistent=True)
        lease.detach()
        assert lease.ended
        assert lease.loss is None
        assert not (await scaler.capacity()).idle
        lease = await scaler.reattach("job")
        lease.detach()
        assert await scaler.drain()
        await anyio.sleep(100)
        assert scaler.detached == []


async def test_people_are_told_for_whom_it_waits_and_until_when(golden: Golden, anyio_backend_name: str) -> None:
    """Of the scaler, of the instance and of the key; the sentences are in tests/golden."""
    cloud = FakeCloud()
    journal = await killed(cloud, "job-1", "job-2", capacity_per_instance=2)
    async with scaling(cloud, journal=journal, policies=IDLES, capacity_per_instance=2) as scaler:
        await anyio.sleep(100)
        lease = await scaler.reattach("job-2")
        overall = await scaler.explain()
        assert [(each["key"], each["slot"]) for each in overall.data()["detached"]] == [("job-1", 0)]  # type: ignore[attr-defined]
        of_key, held = await scaler.explain(key="job-1"), await scaler.explain(key="job-2")
        assert (of_key.state, held.state) == ("detached", "holding")
        assert held.reattach_by is None
        (left,) = scaler.detached
        assert of_key.reattach_by == pytest.approx(left.reattach_by, abs=0.001)
        of_instance = await scaler.explain(instance="i-1")
        assert [job.detached for job in of_instance.jobs] == [True, False]
        if anyio_backend_name == "asyncio":
            for name, said in (("scaler", overall), ("key", of_key), ("instance", of_instance)):
                golden(f"persistent/{name}", str(said))
        lease.release()
        await anyio.sleep(600)
        assert "nobody reattached" in str(await scaler.explain(key="job-1"))


def test_the_golden_file_has_nothing_else_of_this(golden: Golden) -> None:
    """What is no longer said is taken out."""
    golden.has_only("persistent/", {"scaler", "key", "instance"})


async def test_observers_hear_what_becomes_of_it() -> None:
    """When it is detached, reattached, and given up."""
    heard: list[tuple[str, str]] = []

    def hear(event: ScalerEvent) -> None:
        if isinstance(event, LeaseEvent):
            heard.append((event.key, event.what))

    cloud, journal = FakeCloud(), MemoryJournal()
    for keys in (["job"], []):
        async with scaling(cloud, journal=journal, policies=IDLES, observers=[hear], reattach_timeout=60) as scaler:
            for key in keys:
                await scaler.acquire_lease(key, persistent=True)
            if not keys:
                (await scaler.reattach("job")).detach()
                await anyio.sleep(100)
    assert [what for _, what in heard] == ["acquired", "detached", "reattached", "detached", "lost"]
