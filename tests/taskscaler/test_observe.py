"""What observers are told, in virtual time: every change of the fleet and of leases, in order, and nothing twice."""

import logging
from collections.abc import Sequence

import anyio
import pytest
from attrs import evolve

from fleeting import LoopClock, MemoryJournal
from fleeting.testing import FakeCloud, FakeGroup, virtual_time
from taskscaler import (
    DecisionEvent,
    InstanceEvent,
    LeaseEvent,
    LeaseLost,
    Policy,
    Pool,
    ScalerEvent,
    ScalerObserver,
    Taskscaler,
)
from taskscaler._observe import event_as_data, event_from_data

pytestmark = pytest.mark.anyio
anyio_backend = virtual_time


def scaler_over(cloud: FakeCloud, *observers: ScalerObserver, policies: Sequence[Policy] = ()) -> Taskscaler:
    """A scaler with one pool, one slot an instance, and observers."""
    group = FakeGroup(cloud)
    pool = Pool(group, dial=group.dial, max_instances=1)
    return Taskscaler(pool, policies=policies, observers=observers, delete_instances_on_shutdown=True)


def states(events: Sequence[ScalerEvent]) -> list[str]:
    """What the instances went through."""
    return [event.state for event in events if isinstance(event, InstanceEvent)]


def lives(events: Sequence[ScalerEvent]) -> list[tuple[str, str]]:
    """What the leases went through."""
    return [(event.key, event.what) for event in events if isinstance(event, LeaseEvent)]


def first_lease(events: Sequence[ScalerEvent]) -> LeaseEvent:
    """Where the first lease began."""
    return next(event for event in events if isinstance(event, LeaseEvent))


async def test_the_way_of_an_instance_and_of_its_leases_is_told() -> None:
    """From creation to the end, with times that never go back; a slot is told free before it is told taken again."""
    events: list[ScalerEvent] = []
    async with scaler_over(FakeCloud(boot_time=30), events.append) as scaler:

        async def job(key: str) -> None:
            async with scaler.acquire(key):
                await anyio.sleep(10)

        async with anyio.create_task_group() as jobs:
            jobs.start_soon(job, "first")
            await anyio.sleep(1)
            jobs.start_soon(job, "second")
        await anyio.sleep(60)
    assert states(events) == ["creating", "pending", "running", "deleting", "gone"]
    assert states(events[: events.index(first_lease(events))]) == ["creating", "pending", "running"]
    assert lives(events) == [
        ("first", "acquired"),
        ("first", "released"),
        ("second", "acquired"),
        ("second", "released"),
    ]
    assert [event.at for event in events] == sorted(event.at for event in events)
    instances = [event for event in events if isinstance(event, InstanceEvent)]
    assert [event.why for event in instances] == ["it was requested", "", "", "not needed", ""]
    assert not any(event.lost for event in instances)


async def test_each_decision_is_told_once() -> None:
    """What an observer hears is what `explain` keeps, but for the times of those that were taken again."""
    events: list[ScalerEvent] = []
    async with scaler_over(FakeCloud(), events.append) as scaler:
        async with scaler.acquire("job"):
            await anyio.sleep(600)
        await anyio.sleep(600)
        kept = (await scaler.explain()).decisions
        told = [event for event in events if isinstance(event, DecisionEvent)]
    assert [event.decision for event in told] == list(kept)
    assert all(event.at == event.decision.at for event in told)


async def test_a_loss_is_told_with_its_cause() -> None:
    """The instance first, which is lost, then the lease."""
    events: list[ScalerEvent] = []
    cloud = FakeCloud()
    async with scaler_over(cloud, events.append) as scaler:
        with pytest.raises(LeaseLost):
            async with scaler.acquire("job") as lease:
                cloud.vanish(lease.instance)
                await anyio.sleep_forever()
        lost = [event for event in events if isinstance(event, LeaseEvent)][-1]
        gone = [event for event in events if isinstance(event, InstanceEvent)][-1]
    assert (lost.what, lost.why) == ("lost", "the cloud no longer shows it")
    assert (gone.state, gone.why, gone.lost) == ("gone", "the cloud no longer shows it", True)
    assert events.index(gone) < events.index(lost)


async def test_a_lease_that_sleeps_is_told_of() -> None:
    """Suspended, resumed, released; a lease that is still held when the scaler is left is lost."""
    events: list[ScalerEvent] = []
    async with scaler_over(FakeCloud(), events.append) as scaler:
        (await scaler.acquire_lease("job")).suspend()
        (await scaler.resume("job")).release()
        await scaler.acquire_lease("kept")
    assert lives(events) == [
        ("job", "acquired"),
        ("job", "suspended"),
        ("job", "resumed"),
        ("job", "released"),
        ("kept", "acquired"),
        ("kept", "lost"),
    ]


async def test_an_observer_that_fails_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """The scaler goes on, the next observer is told, and each kind of trouble is logged once."""
    events: list[ScalerEvent] = []

    def broken(event: ScalerEvent) -> None:
        raise LookupError if isinstance(event, InstanceEvent) else ZeroDivisionError

    with caplog.at_level(logging.WARNING, "taskscaler.observers"):
        async with scaler_over(FakeCloud(), broken, events.append) as scaler, scaler.acquire("job"):
            pass
    assert states(events)[-1] == "gone"
    troubles = [record.exc_info[0] for record in caplog.records if record.exc_info]
    assert sorted(str(kind) for kind in troubles) == ["<class 'LookupError'>", "<class 'ZeroDivisionError'>"]


async def test_an_instance_that_an_earlier_manager_left_is_told_of() -> None:
    """It is told as on its way again, with where it comes from."""
    cloud, journal, events = FakeCloud(), MemoryJournal(), list[ScalerEvent]()
    for observers in ([], [events.append]):
        group = FakeGroup(cloud)
        pool = Pool(group, dial=group.dial)
        kept = Policy(idle_count=1, idle_time=600)
        clock = LoopClock(epoch=anyio.current_time())  # goes on where that of the first manager was
        async with Taskscaler(pool, policies=[kept], journal=journal, clock=clock, observers=observers):
            await anyio.sleep(10)
    first = events[0]
    assert isinstance(first, InstanceEvent)
    assert evolve(first, at=0.0, kept_since=None) == InstanceEvent(
        at=0.0, pool="default", instance=first.instance, state="creating", why="an earlier manager left it"
    )
    assert first.kept_since is not None
    assert first.kept_since < 10 <= first.at
    assert event_as_data(first)["kept_since"] == first.kept_since
    assert event_from_data(event_as_data(first)) == first
    assert all("kept_since" not in event_as_data(each) for each in events[1:])
    assert states(events) == ["creating", "pending", "running"]
