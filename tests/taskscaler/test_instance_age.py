"""`max_instance_age`: what is too old takes no more work, and is replaced once it is free."""

from typing import Any

import anyio
import pytest

from fleeting import MemoryJournal, Observation, Observed, State
from fleeting.core import messages
from fleeting.testing import FakeCloud, virtual_time
from taskscaler import NoCapacity, Policy
from taskscaler._types import PoolSettings
from taskscaler.core._mediator import Core
from taskscaler.core._slots import Break, Deliver
from tests.strategies import EPOCH, NO_THROTTLE, a_plan, of_type
from tests.taskscaler.scaling import asked, scaling, work

pytestmark = pytest.mark.anyio
anyio_backend = virtual_time

KEEP = [Policy(idle_time=3600)]


async def test_a_job_outlives_the_age_of_its_instance_and_the_next_goes_elsewhere() -> None:
    """The busy instance is not touched; nobody joins the job there; once it is free it goes."""
    cloud = FakeCloud()
    async with scaling(cloud, policies=KEEP, capacity_per_instance=2, max_instance_age=100) as scaler:
        async with scaler.acquire("long") as long:
            await anyio.sleep(150)
            assert long.loss is None
            assert (await scaler.instances())[0].why == "older than max_instance_age"
            async with scaler.acquire("next") as other:
                assert other.instance != long.instance
        await anyio.sleep(5)
        assert cloud.alive == {other.instance}


async def test_an_idle_instance_is_replaced_only_if_it_is_needed() -> None:
    """With a slot to keep idle a successor is asked for, with none nothing is."""
    cloud = FakeCloud()
    async with scaling(cloud, policies=[Policy(idle_count=1)], max_instance_age=100) as scaler:
        await anyio.sleep(110)
        assert cloud.alive == {"i-2"}
        await scaler.configure(policies=KEEP)
        await anyio.sleep(200)
        assert not cloud.alive
    assert asked(cloud) == [1, 1]


async def test_a_fleet_of_one_age_goes_in_one_request() -> None:
    """Idle instances that came together are given up together, and their successors asked for together."""
    cloud = FakeCloud()
    async with scaling(cloud, policies=[Policy(idle_count=4)], max_instance_age=100):
        await anyio.sleep(110)
        assert asked(cloud) == [4, 4]
        assert sum(call.method == "decrease" for call in cloud.calls) == 1


async def test_the_age_counts_over_restarts() -> None:
    """From when the cloud says that it was created, whoever managed it then."""
    cloud, journal = FakeCloud(), MemoryJournal()
    async with scaling(cloud, policies=KEEP, journal=journal, max_instance_age=100) as scaler:
        await work(scaler, "early", 40)
    async with scaling(cloud, policies=KEEP, journal=journal, max_instance_age=100) as scaler:
        seen: list[str] = []
        await work(scaler, "in time", 40, seen)
        assert seen == ["i-1"]
        await anyio.sleep(30)
        assert not cloud.alive
        assert (await scaler.explain()).pools[0].last_failure == ""


async def test_an_instance_that_is_too_old_at_a_restart_gets_no_work() -> None:
    """It is seen, found too old, and removed; that is no failure to grow."""
    cloud, journal = FakeCloud(), MemoryJournal()
    async with scaling(cloud, policies=KEEP, journal=journal, max_instance_age=100) as scaler:
        await work(scaler, "early", 40)
    await anyio.sleep(100)
    async with scaling(cloud, policies=KEEP, journal=journal, max_instance_age=100) as scaler:
        seen: list[str] = []
        await work(scaler, "late", 1, seen)
        assert seen == ["i-2"]
        assert (await scaler.explain()).pools[0].last_failure == ""


async def test_a_suspended_lease_outlives_the_age_of_its_instance_and_a_restart() -> None:
    """The instance waits for it, takes nothing else, and goes when the lease ends."""
    cloud, journal = FakeCloud(), MemoryJournal()
    settings: dict[str, Any] = {"capacity_per_instance": 2, "max_instance_age": 100}
    async with scaling(cloud, policies=KEEP, journal=journal, **settings) as scaler:
        sleeper = await scaler.acquire_lease("sleeper")
        sleeper.suspend()
        await anyio.sleep(150)
    async with scaling(cloud, policies=KEEP, journal=journal, **settings) as scaler:
        async with scaler.acquire("other") as other:
            assert other.instance != sleeper.instance
        again = await scaler.resume("sleeper")
        assert again.instance == sleeper.instance
        again.release()
        await anyio.sleep(5)
        assert sleeper.instance not in cloud.alive


async def test_an_age_below_the_boot_time_is_explained_and_backed_off_from() -> None:
    """No instance is ever young enough: the fleet does not churn at full speed, and `explain` says why."""
    cloud = FakeCloud(boot_time=30)
    async with scaling(cloud, max_instance_age=20) as scaler:
        with pytest.raises(NoCapacity, match="was older than max_instance_age before it was ready"):
            await scaler.acquire_lease("job", timeout=3600)
    assert 5 < len(cloud.billed) < 25


def test_a_slot_on_its_way_while_the_instance_grows_too_old_is_handed_out_elsewhere() -> None:
    """Assigned in time and not delivered in time, for a slow journal: whoever waits goes on waiting."""
    pool = PoolSettings(name="a", scale_throttle=NO_THROTTLE, max_instance_age=100.0)
    core = Core([pool], {"a": a_plan(pool)}, KEEP, {}, EPOCH)
    core.tick(EPOCH)
    core.handle("a", messages.Updated(Observation({})), EPOCH)
    core.acquire("job", EPOCH)
    (increase,) = of_type(messages.Increase, [*core.tick(EPOCH).actions, *core.tick(EPOCH + 1).actions])
    core.handle("a", messages.Increased(increase.intent, 1), EPOCH + 1)
    view = messages.Updated(Observation({"i": Observed(state=State.RUNNING, created_at=EPOCH + 1)}))
    core.handle("a", view, EPOCH + 2)
    (deliver,) = of_type(Deliver, core.handle("a", messages.Prepared("i"), EPOCH + 100.9).actions)
    step = core.tick(EPOCH + 101.1)
    assert not core.ledger.deliver(deliver.lease)
    assert not of_type(Break, step.actions)
    assert [waiter.key for waiter in core.ledger.queue()] == ["job"]
    assert of_type(messages.Decrease, [*step.actions, *core.tick(EPOCH + 101.2).actions])
