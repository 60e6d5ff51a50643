"""`heartbeat_on_acquire`: nobody is given an instance that does not answer, and nobody is forgotten over it."""

from typing import Any

import anyio
import pytest

from fleeting import MemoryJournal, ProviderError
from fleeting.events import LossKind
from fleeting.testing import FakeCloud, Fault, virtual_time
from taskscaler import NoCapacity, Policy
from taskscaler.core._slots import LEASE, USES
from tests.taskscaler.scaling import asked, scaling, work

pytestmark = pytest.mark.anyio
anyio_backend = virtual_time

KEEP = [Policy(idle_time=3600)]
SICK = Fault(refuse=ProviderError("no sign of life"))


def beats(cloud: FakeCloud) -> int:
    """How often an instance was asked for a sign of life."""
    return sum(call.method == "heartbeat" for call in cloud.calls)


async def test_each_acquire_asks_once() -> None:
    """A healthy instance is asked before each hand-over, and by default only now and then."""
    for on_acquire, expected in ((True, 5), (False, 0)):
        cloud = FakeCloud()
        settings: dict[str, Any] = {"heartbeat_interval": 3600, "heartbeat_on_acquire": on_acquire}
        async with scaling(cloud, policies=KEEP, **settings) as scaler:
            for number in range(5):
                await work(scaler, f"job-{number}", 1)
        assert beats(cloud) == expected


async def test_those_who_come_at_once_share_a_sign_of_life() -> None:
    """Four slots of one instance are asked for in one moment: one heartbeat is asked for."""
    cloud = FakeCloud(latency={"heartbeat": 1.0})
    settings: dict[str, Any] = {"capacity_per_instance": 4, "heartbeat_interval": 3600, "heartbeat_on_acquire": True}
    async with scaling(cloud, policies=KEEP, **settings) as scaler:
        async with anyio.create_task_group() as jobs:
            for number in range(4):
                jobs.start_soon(work, scaler, f"job-{number}", 5.0)
        assert (beats(cloud), asked(cloud)) == (1, [1])


@pytest.mark.parametrize("fault", [SICK, Fault(slow=100.0)], ids=["refused", "no answer in time"])
async def test_whoever_waits_goes_on_to_another_instance(fault: Fault) -> None:
    """The one that does not answer gets nothing, and its running job is not touched."""
    cloud = FakeCloud()
    settings: dict[str, Any] = {"capacity_per_instance": 2, "heartbeat_on_acquire": True, "heartbeat_interval": 3600}
    async with scaling(cloud, policies=KEEP, **settings) as scaler, scaler.acquire("first") as first:
        cloud.faults.heartbeat.once(fault)
        started = anyio.current_time()
        async with scaler.acquire("second") as second:
            assert (first.instance, second.instance) == ("i-1", "i-2")
            assert anyio.current_time() < started + 15
            assert (await scaler.instances())[0].why == "its last heartbeat failed"
            assert first.loss is None


async def test_an_instance_that_answers_again_is_used_again() -> None:
    """One failure is no verdict: the next heartbeat that passes ends it."""
    cloud = FakeCloud()
    settings: dict[str, Any] = {"max_instances": 1, "heartbeat_on_acquire": True, "heartbeat_interval": 30}
    async with scaling(cloud, policies=KEEP, **settings) as scaler:
        await work(scaler, "first", 1)
        cloud.faults.heartbeat.once(SICK)
        async with scaler.acquire("second") as lease:
            assert lease.instance == "i-1"
        assert (await scaler.instances())[0].why == ""


async def test_an_instance_that_never_answers_again_is_replaced() -> None:
    """After as many failures in a row as anywhere else; whoever waits is served by its successor."""
    cloud = FakeCloud()
    settings: dict[str, Any] = {"max_instances": 1, "heartbeat_on_acquire": True, "heartbeat_interval": 30}
    async with scaling(cloud, policies=KEEP, failure_threshold=3, **settings) as scaler:
        await work(scaler, "first", 1)
        cloud.sicken("i-1")
        async with scaler.acquire("second") as lease:
            assert lease.instance == "i-2"


async def test_who_gives_up_before_the_answer_leaves_nothing_behind() -> None:
    """The slot is free again; the use stays counted."""
    cloud, journal = FakeCloud(latency={"heartbeat": 5.0}), MemoryJournal()
    settings: dict[str, Any] = {"heartbeat_on_acquire": True, "heartbeat_interval": 3600, "max_instances": 1}
    async with scaling(cloud, journal=journal, policies=KEEP, **settings) as scaler:
        await work(scaler, "first", 1)
        with pytest.raises(NoCapacity):
            await scaler.acquire_lease("hasty", timeout=1)
        await anyio.sleep(1)
        assert journal.records[LEASE] == {}
        assert [record.uses for record in journal.records[USES].values()] == [2]
        await work(scaler, "third", 1)


async def test_an_instance_that_is_lost_before_the_answer_is_not_handed_over() -> None:
    """Whoever waited waits on, and gets another; nobody hears of a loss."""
    cloud = FakeCloud(latency={"heartbeat": 5.0})
    settings: dict[str, Any] = {"heartbeat_on_acquire": True, "heartbeat_interval": 3600, "update_interval": 2.0}
    async with scaling(cloud, policies=KEEP, **settings) as scaler:
        await work(scaler, "first", 1)
        async with anyio.create_task_group() as jobs:
            seen: list[str] = []
            jobs.start_soon(work, scaler, "second", 1.0, seen)
            await anyio.sleep(1)
            cloud.vanish("i-1")
        assert seen == ["i-2"]


async def test_an_instance_that_is_cordoned_before_the_answer_is_not_handed_over() -> None:
    """It lives, but by now an operator wants it to get no new work: whoever waits goes on to another one."""
    cloud = FakeCloud(latency={"heartbeat": 5.0})
    settings: dict[str, Any] = {"heartbeat_on_acquire": True, "heartbeat_interval": 3600}
    async with scaling(cloud, policies=KEEP, **settings) as scaler:
        await work(scaler, "first", 1)
        async with anyio.create_task_group() as jobs:
            seen: list[str] = []
            jobs.start_soon(work, scaler, "second", 1.0, seen)
            await anyio.sleep(1)
            await scaler.cordon("i-1")
        assert seen == ["i-2"]


async def test_what_is_resumed_keeps_its_slot_whatever_its_instance_answers() -> None:
    """A suspended lease can go nowhere else; it breaks only if its instance is lost."""
    cloud = FakeCloud()
    settings: dict[str, Any] = {"heartbeat_on_acquire": True, "heartbeat_interval": 3600}
    async with scaling(cloud, policies=KEEP, **settings) as scaler:
        sleeper = await scaler.acquire_lease("sleeper")
        sleeper.suspend()
        cloud.sicken(sleeper.instance)
        again = await scaler.resume("sleeper", timeout=5)
        assert again.instance == sleeper.instance
        cloud.vanish(again.instance)
        assert (await again.lost()).kind is LossKind.VANISHED
