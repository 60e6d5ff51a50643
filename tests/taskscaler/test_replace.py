"""A lease's slot is swapped for one on another instance; over the fake cloud, in virtual time."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import TypeAlias, cast

import anyio
import pytest

from fleeting import Capability, CapacityUnavailable, MemoryJournal
from fleeting.testing import FakeCloud, FakeGroup, SuspendFault, virtual_time
from taskscaler import KeyInUse, LeaseEvent, NoCapacity, NotHeld, Policy, Pool, ScalerEvent, Taskscaler
from taskscaler.sync import Taskscaler as SyncTaskscaler
from tests.taskscaler.daemons import connected
from tests.taskscaler.scaling import scaling as scaling_here
from tests.taskscaler.scaling import virtual_clock, work

pytestmark = pytest.mark.anyio
anyio_backend = virtual_time

Opened: TypeAlias = Callable[..., AbstractAsyncContextManager[Taskscaler]]


@pytest.fixture(params=["here", "there"])
def scaling(request: pytest.FixtureRequest, tmp_path: Path) -> Opened:
    """What opens a scaler on a cloud: our own, or a daemon's."""
    return scaling_here if request.param == "here" else cast("Opened", partial(connected, tmp_path / "s.sock"))


KEEP = [Policy(idle_time=3600)]


def a_cloud() -> FakeCloud:
    """One that can suspend its instances."""
    return FakeCloud(capabilities=frozenset({Capability.NAMED_CREATE, Capability.SUSPEND_RESUME}))


async def test_the_work_gets_another_instance_and_the_old_one_goes_once_it_is_free(scaling: Opened) -> None:
    """Though it had another slot free; what others run there goes on."""
    cloud = FakeCloud()
    async with scaling(cloud, capacity_per_instance=3, policies=KEEP) as scaler:
        other = await scaler.acquire_lease("other")
        old = await scaler.acquire_lease("job")
        assert old.instance == other.instance
        new = await scaler.replace("job", why="its disk is slow")
        assert new.instance != old.instance
        assert (old.ended, old.loss, other.loss) == (True, None, None)
        old.release()
        assert (await scaler.capacity()).acquired == 2
        said = str(await scaler.explain(instance=other.instance))
        assert "it gets no more work: its disk is slow" in said
        await work(scaler, "third", 1.0)
        assert other.instance in cloud.alive
        other.release()
        await anyio.sleep(60)
        assert cloud.alive == {new.instance}
        new.release()


async def test_it_keeps_its_place_in_the_queue(scaling: Opened) -> None:
    """Whoever came later goes on waiting, also with a reservation."""
    cloud = FakeCloud()
    served: list[str] = []
    async with scaling(cloud, max_instances=1) as scaler, anyio.create_task_group() as tasks:
        await scaler.acquire_lease("job")

        async def replace() -> None:
            lease = await scaler.replace("job")
            served.append("job")
            await anyio.sleep(5)
            lease.release()

        tasks.start_soon(work, scaler, "later", 5.0, served)
        await anyio.sleep(10)
        assert not served
        tasks.start_soon(replace)
    assert served == ["job", "i-2"]
    assert cloud.alive <= {"i-2"}


async def test_a_suspended_lease_whose_instance_does_not_come_back_is_replaced(scaling: Opened) -> None:
    """Its work begins anew elsewhere; the instance, with nothing else on it, is given up in its sleep."""
    cloud, journal = a_cloud(), MemoryJournal()
    async with scaling(cloud, journal=journal, policies=KEEP, capacity_per_instance=2) as scaler:
        lease = await scaler.acquire_lease("job")
        lease.suspend(ttl=100)
        await anyio.sleep(4000)
        lease = await scaler.acquire_lease("job")
        lease.suspend()
        await anyio.sleep(4000)
        cloud.faults.resume.always(SuspendFault(refuse=CapacityUnavailable("none of this left")))
        with pytest.raises(NoCapacity):
            await scaler.resume("job", timeout=30)
        new = await scaler.replace("job")
        assert new.instance != lease.instance
        await anyio.sleep(60)
        assert cloud.alive == {new.instance}
        assert (await scaler.capacity()).suspended == 0
        new.release()


async def test_what_sleeps_beside_a_lease_that_was_replaced_can_be_resumed_there(scaling: Opened) -> None:
    """The instance gets no new work then either, and goes once that is done."""
    cloud = a_cloud()
    async with scaling(cloud, policies=[Policy(idle_time=10)], capacity_per_instance=3) as scaler:
        leases = [await scaler.acquire_lease(key) for key in ("job", "beside")]
        (old,) = {lease.instance for lease in leases}
        for lease in leases:
            lease.suspend()
        await anyio.sleep(60)
        new = await scaler.replace("job")
        assert new.instance != old
        beside = await scaler.resume("beside")
        assert beside.instance == old
        new.release()
        async with scaler.acquire("third") as third:
            assert third.instance != old
        beside.release()
        await anyio.sleep(20)
        assert old not in cloud.alive


async def test_who_gives_up_waiting_for_another_has_none(scaling: Opened) -> None:
    """The old slot was given back at once."""
    async with scaling(FakeCloud(), max_instances=1) as scaler:
        await scaler.acquire_lease("job")
        with pytest.raises(NoCapacity, match="no slot became free within 0s"):
            await scaler.replace("job", timeout=0)
        with pytest.raises(NotHeld, match="no lease is held under the key 'job'"):
            await scaler.replace("job")
        capacity = await scaler.capacity()
        assert (capacity.acquired, capacity.pending) == (0, 0)


async def test_only_what_is_held_can_be_replaced(scaling: Opened) -> None:
    """Not what waits, what is reserved or what somebody waits to resume; and not once nothing is handed out."""
    cloud = a_cloud()
    cloud.resume_time = 1000
    async with scaling(cloud, max_instances=2) as scaler, anyio.create_task_group() as tasks:
        lease = await scaler.acquire_lease("sleeper")
        lease.suspend()
        await anyio.sleep(5)
        tasks.start_soon(scaler.resume, "sleeper")
        held = await scaler.acquire_lease("job")
        tasks.start_soon(work, scaler, "waits", 1.0)
        await anyio.sleep(5)
        with pytest.raises(KeyInUse):
            await scaler.replace("sleeper")
        for key in ("waits", "nobody"):
            with pytest.raises(NotHeld):
                await scaler.replace(key)
        tasks.cancel_scope.cancel()
        with anyio.CancelScope(shield=True):
            await scaler.drain(timeout=0)
            with pytest.raises(NoCapacity, match="draining"):
                await scaler.replace("job")
            assert not held.ended
            held.release()


async def test_a_detached_lease_is_reattached_first(scaling: Opened) -> None:
    """What runs there may still run; whoever replaces it has to know."""
    cloud, journal = FakeCloud(), MemoryJournal()
    async with scaling(cloud, journal=journal) as scaler:
        await scaler.acquire_lease("job", persistent=True)
        await anyio.sleep(1)
    async with scaling(cloud, journal=journal) as scaler:
        with pytest.raises(NotHeld, match="the lease 'job' is detached; reattach it first"):
            await scaler.replace("job")
        old = await scaler.reattach("job")
        new = await scaler.replace("job")
        assert new.instance != old.instance
        await anyio.sleep(1)
        assert journal.records["lease"]["job"].persistent
        new.release()


async def test_observers_hear_why() -> None:
    """After it comes the acquisition that it leads to."""
    events: list[ScalerEvent] = []
    pool = Pool(FakeGroup(FakeCloud()))
    async with Taskscaler(pool, observers=[events.append], clock=virtual_clock()) as scaler:
        await scaler.acquire_lease("job")
        (await scaler.replace("job", why="its disk is slow")).release()
        await anyio.sleep(1)
    leases = [(event.what, event.why) for event in events if isinstance(event, LeaseEvent)]
    assert leases == [("acquired", ""), ("replaced", "its disk is slow"), ("acquired", ""), ("released", "")]


def test_threads_replace_leases_too() -> None:
    """The façade has the same call."""
    with SyncTaskscaler(Pool(FakeGroup(FakeCloud()))) as scaler:
        old = scaler.acquire_lease("job")
        new = scaler.replace("job", why="its disk is slow")
        assert new.instance != old.instance
        new.release()
        with pytest.raises(NotHeld):
            scaler.replace("job")
