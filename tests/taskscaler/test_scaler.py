"""The scaler over the fake cloud, in virtual time: what a job, an operator and a bill see."""

import math
import traceback
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import pytest

from fleeting import (
    Capability,
    CapacityUnavailable,
    Completed,
    ConnectInfo,
    Connection,
    ConnectorConfig,
    GroupRefused,
    JournalError,
    MemoryJournal,
    Preexisting,
    ProviderError,
    Unreachable,
)
from fleeting.core import Write
from fleeting.events import LossKind
from fleeting.runtime._runtime import SOON
from fleeting.testing import (
    Command,
    FakeCloud,
    FakeGroup,
    Fault,
    IncreaseFault,
    OnCommand,
    UpdateFault,
    virtual_time,
)
from taskscaler import KeyInUse, LeaseLost, NoCapacity, NotSuspended, Policy, Pool, Taskscaler
from taskscaler._kept import KEPT
from taskscaler._lease import VERDICT_TIMEOUT
from taskscaler.core._mediator import COALESCE
from tests.taskscaler.scaling import FullDisk, asked, in_vain, scaling, virtual_clock, work

pytestmark = pytest.mark.anyio
anyio_backend = virtual_time


# --- growing and shrinking ------------------------------------------------------------------------------


async def test_jobs_get_slots_on_as_few_instances_as_it_takes() -> None:
    """Five jobs at two an instance ask for three instances, in one request, and all run."""
    cloud = FakeCloud(boot_time=30)
    async with scaling(cloud, capacity_per_instance=2) as scaler:
        async with anyio.create_task_group() as jobs:
            for number in range(5):
                jobs.start_soon(work, scaler, f"job-{number}", 10.0)
        assert asked(cloud) == [3]
        assert anyio.current_time() < 60


async def test_the_ceiling_holds_and_waiters_are_served_in_order() -> None:
    """Ten jobs on at most two instances run two at a time, first come first served."""
    cloud = FakeCloud(boot_time=5)
    order: list[str] = []

    async def job(scaler: Taskscaler, key: str) -> None:
        async with scaler.acquire(key):
            order.append(key)
            await anyio.sleep(10)

    keys = [f"job-{number}" for number in range(10)]
    async with scaling(cloud, max_instances=2) as scaler, anyio.create_task_group() as jobs:
        for key in keys:
            jobs.start_soon(job, scaler, key)
            await anyio.wait_all_tasks_blocked()
    assert sum(asked(cloud)) == 2
    assert sorted(order[:2]) == keys[:2]
    assert [sorted(order[at : at + 2]) for at in range(0, 10, 2)] == [keys[at : at + 2] for at in range(0, 10, 2)]


async def test_an_instance_that_is_not_needed_goes_after_its_idle_time() -> None:
    """It is there just before the idle time has passed, and gone just after."""
    cloud = FakeCloud()
    async with scaling(cloud, policies=[Policy(idle_time=100)]) as scaler:
        await work(scaler, "job", 10)
        await anyio.sleep(99)
        assert len(cloud.alive) == 1
        await anyio.sleep(2)
        assert not cloud.alive


async def test_idle_slots_are_kept_without_churn() -> None:
    """With idle_count slots to keep and nothing to do, the fleet settles at just that, for good."""
    cloud = FakeCloud(boot_time=20)
    async with scaling(cloud, policies=[Policy(idle_count=5, idle_time=30)], capacity_per_instance=2) as scaler:
        await anyio.sleep(100)
        before = len(cloud.calls)
        assert (await scaler.capacity()).idle == 6
        await anyio.sleep(3600)
        changes = [call for call in cloud.calls[before:] if call.method in {"increase", "decrease"}]
        assert changes == []


async def test_the_policy_of_the_hour_holds() -> None:
    """A span of a cron period keeps instances ready; when it ends they go."""
    cloud = FakeCloud()
    busy = Policy(periods=("30-59 * * * *",), idle_count=3)
    async with scaling(cloud, policies=[Policy(), busy]) as scaler:
        await anyio.sleep(3 * 3600)
        seconds = (await scaler.explain()).at % 3600
        await anyio.sleep(3600 - seconds + 60)
        assert not cloud.alive
        await anyio.sleep(1800)
        assert len(cloud.alive) == 3
        await anyio.sleep(1800)
        assert not cloud.alive


async def test_a_used_up_instance_is_replaced() -> None:
    """After max_use_count jobs an instance takes no more and is removed as soon as it is free."""
    cloud = FakeCloud()
    seen: list[str] = []
    async with scaling(cloud, max_use_count=2, max_instances=1, policies=[Policy(idle_time=600)]) as scaler:
        for number in range(5):
            await work(scaler, f"job-{number}", 1, seen)
    assert [seen.count(instance) for instance in dict.fromkeys(seen)] == [2, 2, 1]


async def test_an_instance_nobody_asked_for_is_removed() -> None:
    """Somebody launches one into the group; it is deleted and never given work."""
    cloud = FakeCloud()
    async with scaling(cloud, update_interval=60) as scaler:
        (stranger,) = cloud.launch()
        await anyio.sleep(70)
        assert stranger not in cloud.alive
        assert (await scaler.capacity()).idle == 0


# --- leases ---------------------------------------------------------------------------------------------


async def test_a_lost_instance_breaks_its_lease_and_the_retry_goes_elsewhere() -> None:
    """The body is cancelled, the exit raises LeaseLost with the cause, another instance takes the retry."""
    cloud = FakeCloud()
    async with scaling(cloud, max_instances=2) as scaler:
        with pytest.raises(LeaseLost) as caught:
            async with scaler.acquire("job") as lease:
                cloud.vanish(lease.instance)
                await anyio.sleep_forever()
        assert caught.value.loss.kind is LossKind.VANISHED
        async with scaler.acquire("job") as retry:
            assert retry.instance != caught.value.instance


@pytest.mark.parametrize("beside", [False, True])
async def test_a_clean_up_that_fails_hides_no_loss(beside: bool) -> None:  # noqa: FBT001
    """Whether it fails in the body or in a task beside it, the loss is what the caller learns, and why, the cause."""

    async def clean_up() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            raise OSError("the disk is full")

    cloud = FakeCloud()
    async with scaling(cloud) as scaler:
        with pytest.raises(LeaseLost) as caught:
            async with scaler.acquire("job") as lease, anyio.create_task_group() as tasks:
                cloud.vanish(lease.instance)
                if beside:
                    tasks.start_soon(clean_up)
                    await anyio.sleep_forever()
                await clean_up()
        assert caught.value.loss.kind is LossKind.VANISHED
        assert "the disk is full" in "".join(traceback.format_exception(caught.value))


async def test_a_dead_connection_finds_the_loss_at_once() -> None:
    """Long before the next update is due, an open connection tells that the instance is gone."""
    cloud = FakeCloud()
    async with scaling(cloud, update_interval=3600, update_interval_when_expecting=5) as scaler:
        with pytest.raises(LeaseLost):
            async with scaler.acquire("job") as lease, lease.dial():
                started = anyio.current_time()
                cloud.vanish(lease.instance)
                await anyio.sleep_forever()
        assert anyio.current_time() - started < 1


async def test_a_body_that_fails_for_a_dead_connection_learns_of_the_loss() -> None:
    """A command that meets a dead instance ends in LeaseLost, with the connection's error as its cause."""
    cloud = FakeCloud()
    async with scaling(cloud) as scaler:
        with pytest.raises(LeaseLost) as caught:
            async with scaler.acquire("job") as lease:
                cloud.vanish(lease.instance)
                async with lease.dial() as connection:
                    await connection.run("true")
        assert isinstance(caught.value.__cause__, Unreachable)


async def test_a_dead_connection_to_a_sick_instance_is_not_waited_for() -> None:
    """The cloud shows it running for ever, but its heartbeat fails: the lease is lost at once, and says so."""
    cloud = FakeCloud()
    async with scaling(cloud, max_instances=2) as scaler:
        with pytest.raises(LeaseLost, match="its heartbeats fail") as caught:
            async with scaler.acquire("job") as lease, lease.dial() as connection:
                cloud.sicken(lease.instance)
                cloud.cut(lease.instance)
                broken, started = lease.instance, anyio.current_time()
                await connection.run("true")
        assert anyio.current_time() - started < 5
        assert caught.value.loss.kind is LossKind.UNHEALTHY
        assert isinstance(caught.value.__cause__, Unreachable)
        assert "its heartbeats fail" in (await scaler.explain(key="job")).lost
        async with scaler.acquire("job") as retry:
            assert retry.instance != broken
        await anyio.sleep(60)
        assert broken not in cloud.alive


async def test_a_connection_that_lives_is_no_matter_of_heartbeats() -> None:
    """Work goes on over the connection that it has, and may open another, on an instance that fails its heartbeats."""
    cloud = FakeCloud()
    async with (
        scaling(cloud, heartbeat_interval=10.0) as scaler,
        scaler.acquire("job") as lease,
        lease.dial() as connection,
    ):
        cloud.sicken(lease.instance)
        await anyio.sleep(300)
        (ill,) = await scaler.instances()
        assert ill.why == "its heartbeats fail: instance i-1 is not healthy: it does not answer"
        assert (await connection.run("true")).ok
        async with lease.dial() as another:
            assert (await another.run("true")).ok


@pytest.mark.parametrize("before", [False, True], ids=["while it dials", "before it dials"])
async def test_dialling_a_sick_instance_is_given_up(*, before: bool) -> None:
    """Who waits for a connection to an instance whose heartbeats fail hears of it long before dialling times out."""
    cloud = FakeCloud()

    async with scaling(cloud, dial=in_vain, max_instances=1, heartbeat_interval=10.0) as scaler:
        with pytest.raises(LeaseLost, match="its heartbeats fail") as caught:
            async with scaler.acquire("job") as lease:
                started = anyio.current_time()
                cloud.sicken("i-1")
                if before:
                    await anyio.sleep(60)
                async with lease.dial():
                    pass
        assert anyio.current_time() - started < 100
        assert str(caught.value.__cause__) == "i-1 is unhealthy and cannot be reached"
        assert (await scaler.capacity()).acquired == 0


async def test_dialling_again_what_could_not_be_reached_is_given_up_at_once() -> None:
    """Who tries a few times, as those do whose jobs may run on, hears of it once and for all."""
    cloud, took = FakeCloud(), []

    async with scaling(cloud, dial=in_vain, max_instances=1, heartbeat_interval=10.0) as scaler:
        with pytest.raises(LeaseLost, match="its heartbeats fail"):
            async with scaler.acquire("job") as lease:
                cloud.sicken("i-1")
                await anyio.sleep(60)
                for _ in range(3):
                    started = anyio.current_time()
                    with pytest.raises(Unreachable, match="is unhealthy and cannot be reached"):
                        async with lease.dial():
                            pass
                    took.append(anyio.current_time() - started)
                raise Unreachable("the job cannot be followed")
    assert took == [VERDICT_TIMEOUT, 0, 0]


async def test_a_connection_is_kept_from_one_job_to_the_next() -> None:
    """Connectors share it, so all that follow each other closely are quick; a while after the last it is closed."""
    cloud = FakeCloud()
    group, connected, changes = FakeGroup(cloud), 0, []

    @asynccontextmanager
    async def dial(info: ConnectInfo, config: ConnectorConfig) -> AsyncIterator[Connection]:
        nonlocal connected
        async with group.dial(info, config) as connection:
            connected += 1
            try:
                yield connection
            finally:
                connected -= 1
                changes.append((anyio.current_time(), connected))

    async with scaling(cloud, dial=dial, max_instances=1, policies=[Policy(idle_time=100 * KEPT)]) as scaler:
        for number in range(3):
            async with scaler.acquire(f"job-{number}") as lease, lease.dial():
                await anyio.sleep(KEPT / 2)
                assert connected == 2
            await anyio.sleep(KEPT / 2)
            assert connected == 1
        ended = anyio.current_time() - KEPT / 2
        await anyio.sleep(KEPT)
        assert changes[-1] == (ended + KEPT, 0)
        assert [left for _, left in changes] == [1, 1, 1, 0]


async def test_a_connection_that_cannot_be_kept_is_no_loss() -> None:
    """Whatever the connector raises, who uses the instance does so over a connection of their own."""
    cloud = FakeCloud()
    group, dialled = FakeGroup(cloud), 0

    @asynccontextmanager
    async def dial(info: ConnectInfo, config: ConnectorConfig) -> AsyncIterator[Connection]:
        nonlocal dialled
        dialled += 1
        if dialled > 1:
            raise ZeroDivisionError
        async with group.dial(info, config) as connection:
            yield connection

    async with scaling(cloud, dial=dial) as scaler, scaler.acquire("job") as lease, lease.dial() as connection:
        await anyio.sleep(10 * KEPT)
        assert (await connection.run("true")).ok
        assert dialled == 2


async def test_a_cancellation_from_outside_stays_one() -> None:
    """Even if the instance is lost at the same moment, the outer cancellation is what is seen."""
    cloud = FakeCloud()
    async with scaling(cloud) as scaler:
        with anyio.CancelScope() as outer:
            async with scaler.acquire("job") as lease:
                cloud.vanish(lease.instance)
                outer.cancel()
                await anyio.sleep_forever()
        assert outer.cancelled_caught
        assert (await scaler.capacity()).acquired == 0


async def test_one_bad_view_breaks_nothing() -> None:
    """An instance that is missing from one view gets no new work for a moment, and keeps its lease."""
    cloud = FakeCloud()
    async with scaling(cloud, update_interval=10) as scaler, scaler.acquire("job") as lease:
        cloud.faults.update.once(UpdateFault(hide=[lease.instance]))
        await anyio.sleep(60)
        assert lease.loss is None
        assert (await scaler.instances())[0].why == ""
        assert asked(cloud) == [1]


async def test_who_gives_up_waiting_leaves_nothing_behind() -> None:
    """Neither a time-out nor a cancellation keeps a slot or a place in the queue."""
    cloud = FakeCloud(boot_time=50)
    async with scaling(cloud, max_instances=1) as scaler:
        with pytest.raises(NoCapacity, match=r"^no slot became free within 10s\n") as caught:
            await scaler.acquire_lease("hasty", timeout=10)
        assert caught.value.possible
        with anyio.move_on_after(10):
            await scaler.acquire_lease("cancelled")
        assert (await scaler.capacity()).pending == 0
        lease = await scaler.acquire_lease("hasty")
        with pytest.raises(KeyInUse):
            await scaler.acquire_lease("hasty")
        lease.release()
        lease.release()
        assert (await scaler.capacity()).acquired == 0


async def test_an_acquire_waits_as_long_as_it_may() -> None:
    """For `acquire_timeout` unless it says otherwise, reserved or not; the refusal names what it waited for."""
    cloud = FakeCloud(boot_time=10_000)
    async with scaling(cloud, acquire_timeout=1200, max_instances=2) as scaler:
        await scaler.reserve("reserved")
        for key in ("reserved", "not reserved"):
            began = anyio.current_time()
            with pytest.raises(NoCapacity, match=r"^no slot became free within 20m0s \(instance_acquire_timeout\)\n"):
                await scaler.acquire_lease(key)
            assert anyio.current_time() == pytest.approx(began + 1200)
        with pytest.raises(NoCapacity, match=r"^no slot became free within 1s\n"):
            await scaler.acquire_lease("hasty", timeout=1)
    async with scaling(FakeCloud(boot_time=10_000)) as scaler:
        with pytest.raises(NoCapacity, match=r"within 15m0s \(instance_acquire_timeout\)"):
            await scaler.acquire_lease("job")
    async with (
        scaling(FakeCloud(boot_time=10_000), instance_ready_timeout=20_000.0) as scaler,
        scaler.acquire("patient", timeout=math.inf),
    ):
        pass


async def test_those_who_wait_in_vain_together_share_one_explanation() -> None:
    """It costs as much as there are instances, and becomes text only where somebody reads it."""
    whys: list[object] = []

    async def wait(scaler: Taskscaler, key: str) -> None:
        with pytest.raises(NoCapacity, match="2 jobs are waiting") as caught:
            await scaler.acquire_lease(key, timeout=60)
        whys.append(caught.value.args[0].explanations[0])

    async with scaling(FakeCloud(boot_time=10_000)) as scaler, anyio.create_task_group() as tasks:
        tasks.start_soon(wait, scaler, "one")
        tasks.start_soon(wait, scaler, "two")
    assert len(whys) == 2
    assert whys[0] is whys[1]


async def test_a_slot_that_comes_with_the_cancellation_goes_back() -> None:
    """Cancelled in the very moment of the hand-over, the caller holds nothing and nothing is lost."""
    cloud = FakeCloud()
    async with scaling(cloud, max_instances=1) as scaler:
        first = await scaler.acquire_lease("first")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(scaler.acquire_lease, "second")
            await anyio.wait_all_tasks_blocked()
            first.release()
            tasks.cancel_scope.cancel()
        async with scaler.acquire("third", timeout=5):
            pass
        assert (await scaler.capacity()).acquired == 0


async def test_a_notice_ends_assignment_and_spares_short_work() -> None:
    """Work that declared to be done in time stays; the rest is broken as preempted; the instance goes."""
    cloud = FakeCloud(capabilities=frozenset({Capability.NAMED_CREATE, Capability.NOTICES}))
    async with scaling(cloud, capacity_per_instance=2, max_instances=1) as scaler:
        short = await scaler.acquire_lease("short", expected_duration=60)
        long = await scaler.acquire_lease("long")
        cloud.notice(short.instance, in_seconds=120)
        assert (await long.lost()).kind is LossKind.PREEMPTED
        assert short.loss is None
        assert (await scaler.capacity()).idle == 0
        short.release()
        await anyio.sleep(10)
        assert short.instance not in cloud.alive


class SlowJournal(MemoryJournal):
    """A journal whose commits take a moment, as those to a disk do."""

    async def commit(self, writes: Sequence[Write]) -> None:
        """Take ten milliseconds."""
        await anyio.sleep(0.01)
        await super().commit(writes)


@pytest.mark.parametrize("journal", [MemoryJournal, SlowJournal])
async def test_a_break_may_meet_a_release(journal: type[MemoryJournal]) -> None:
    """The instance vanishes and its lease is released in the same moment; the scaler goes on."""
    cloud = FakeCloud()
    async with scaling(cloud, journal=journal(), update_interval=10) as scaler:
        lease = await scaler.acquire_lease("job")
        cloud.vanish(lease.instance)
        for _ in range(2000):
            if lease.instance not in {view.id for view in await scaler.instances()}:
                break
            await anyio.sleep(0.01)
        lease.release()
        async with scaler.acquire("job", timeout=60) as again:
            lease.release()
            assert (await scaler.capacity()).acquired == 1
            assert again.loss is None


@pytest.mark.parametrize("journal", [MemoryJournal, SlowJournal])
async def test_stop_may_meet_those_who_give_up(journal: type[MemoryJournal]) -> None:
    """Waiters are cancelled, leases released, and the scaler stopped, all at once."""
    async with scaling(FakeCloud(), journal=journal(), max_instances=1) as scaler:
        async with anyio.create_task_group() as tasks:
            lease = await scaler.acquire_lease("holder")
            for number in range(3):
                tasks.start_soon(work, scaler, f"waiter-{number}", 1.0)
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
            await scaler.stop()
            lease.release()
        assert (await scaler.capacity()).acquired == 0


@pytest.mark.parametrize("journal", [MemoryJournal, SlowJournal])
async def test_leaving_breaks_what_is_still_held(journal: type[MemoryJournal]) -> None:
    """A body in another task is cancelled, and a waiter refused, however slow the journal is."""
    ends: list[str] = []

    async def holder(scaler: Taskscaler, key: str) -> None:
        try:
            async with scaler.acquire(key):
                await anyio.sleep_forever()
        except (LeaseLost, NoCapacity) as error:
            ends.append(type(error).__name__)

    async with (
        anyio.create_task_group() as tasks,
        scaling(FakeCloud(), journal=journal(), max_instances=1) as scaler,
    ):
        tasks.start_soon(holder, scaler, "first")
        await anyio.sleep(10)
        tasks.start_soon(holder, scaler, "second")
        await anyio.wait_all_tasks_blocked()
    assert sorted(ends) == ["LeaseLost", "NoCapacity"]


async def test_a_dead_scaler_leaves_nobody_waiting() -> None:
    """A plugin's defect ends it: who holds or waits in other tasks hears of it at once, and leaving is quick."""
    cloud = FakeCloud()
    ends: list[str] = []

    async def user(scaler: Taskscaler, key: str) -> None:
        try:
            async with scaler.acquire(key, timeout=10_000):
                await anyio.sleep_forever()
        except (LeaseLost, NoCapacity) as error:
            ends.append(str(error))

    async with anyio.create_task_group() as tasks:
        with pytest.raises(ExceptionGroup) as caught:
            async with scaling(cloud, delete=True, max_instances=1, update_interval=10) as scaler:
                tasks.start_soon(user, scaler, "first")
                await anyio.sleep(5)
                tasks.start_soon(user, scaler, "second")
                cloud.faults.update.always(UpdateFault(refuse=KeyError("a plugin's defect")))
                await anyio.sleep(1000)
    assert caught.group_contains(KeyError)
    assert anyio.current_time() < 30
    assert len(ends) == 2
    assert all("the scaler has ended" in end for end in ends)


async def test_an_error_while_closing_one_group_closes_the_rest() -> None:
    """The other groups and the journal are closed all the same, and the body's error is what is seen."""
    bad, good, journal = FakeCloud(identity="bad"), FakeCloud(identity="good"), MemoryJournal()
    bad.faults.shutdown.always(Fault(refuse=ProviderError("cannot let go")))
    pools = [Pool(FakeGroup(cloud), name=cloud.identity) for cloud in (bad, good)]
    with pytest.raises(LookupError):
        async with Taskscaler(pools, journal=journal):
            raise LookupError
    assert [cloud.calls[-1].method for cloud in (bad, good)] == ["shutdown", "shutdown"]
    await journal.open(["bad"], "the next", {})


async def test_a_refused_manager_does_not_open_the_door_for_a_third() -> None:
    """The second is refused; the first still holds the journal."""
    journal = MemoryJournal()
    async with scaling(FakeCloud(), journal=journal):
        for _ in range(2):
            with pytest.raises(JournalError, match="already managed by"):
                async with scaling(FakeCloud(), journal=journal):
                    pass


async def test_a_refusal_that_comes_late_ends_the_scaler() -> None:
    """The first view failed; the second shows instances that may be neither used nor removed."""
    cloud = FakeCloud()
    cloud.launch()
    cloud.faults.update.once(UpdateFault(refuse=ProviderError("not now")))
    with pytest.raises(ExceptionGroup) as caught:
        async with scaling(cloud, update_interval=5):
            await anyio.sleep(100)
    assert caught.group_contains(GroupRefused, match="already holds 1 instance")
    assert len(cloud.alive) == 1


async def test_decisions_go_on_under_constant_churn() -> None:
    """With a slow journal something is always queued; views, heartbeats and growth must not starve."""
    cloud = FakeCloud()

    async def churn(scaler: Taskscaler, number: int) -> None:
        while anyio.current_time() < 14:
            await work(scaler, f"churn-{number}", 0.005)

    async with (
        scaling(cloud, journal=SlowJournal(), capacity_per_instance=8, update_interval=2) as scaler,
        anyio.create_task_group() as jobs,
    ):
        for number in range(20):
            jobs.start_soon(churn, scaler, number)
        await anyio.sleep(5)
        before = sum(call.method == "update" for call in cloud.calls)
        await anyio.sleep(8)
        assert sum(call.method == "update" for call in cloud.calls) - before >= 3


async def test_the_cloud_is_watched_while_the_journal_fails() -> None:
    """Nothing is handed out, but views and heartbeats go on, and who holds what is lost is told."""
    cloud, journal = FakeCloud(), FullDisk()
    keep = [Policy(idle_count=1)]
    async with scaling(cloud, journal=journal, policies=keep, update_interval=10, heartbeat_interval=20) as scaler:
        lease = await scaler.acquire_lease("job")
        journal.full = True
        cloud.vanish(lease.instance)
        assert (await lease.lost()).kind is LossKind.VANISHED
        before = len(cloud.calls)
        await anyio.sleep(120)
        assert sum(call.method == "update" for call in cloud.calls[before:]) >= 3
        journal.full = False


async def test_an_instance_that_cannot_be_reached_is_not_used_again() -> None:
    """The cloud calls it running, but no connection gets through: it gets no new work and is replaced."""
    cloud = FakeCloud()
    cloud.faults.dial.always(Fault(refuse=Unreachable("no route")))
    async with scaling(cloud, policies=[Policy(idle_time=3600)]) as scaler:
        with pytest.raises(Unreachable):
            async with scaler.acquire("job") as first, first.dial():
                pass
        cloud.faults.clear()
        async with scaler.acquire("job") as second, second.dial():
            assert second.instance != first.instance
        assert first.instance not in cloud.alive


async def test_leaving_a_connection_is_not_its_death() -> None:
    """A connection that its user closed raises no alarm."""
    cloud = FakeCloud()
    async with scaling(cloud, update_interval=600) as scaler, scaler.acquire("job") as lease:
        await anyio.sleep(30)
        before = len(cloud.calls)
        for _ in range(3):
            async with lease.dial() as connection:
                await connection.run("true")
        assert {call.method for call in cloud.calls[before:]} <= {"dial"}


async def test_an_error_of_another_instances_connection_is_not_blamed_on_this_one() -> None:
    """An inner lease's instance dies; the outer one neither waits for a verdict nor loses its trust."""
    cloud = FakeCloud()
    async with scaling(cloud, max_instances=2, update_interval=600) as scaler:
        with pytest.raises(LeaseLost) as caught:
            async with scaler.acquire("outer") as outer, outer.dial(), scaler.acquire("inner") as inner:
                cloud.vanish(inner.instance)
                async with inner.dial() as connection:
                    await connection.run("true")
        assert caught.value.instance == inner.instance
        assert not outer._state.cut_off
        assert outer.instance in cloud.alive


async def test_announced_far_ahead_work_goes_on_for_a_while() -> None:
    """A maintenance in two hours breaks work half a minute before it begins, not at once."""
    cloud = FakeCloud(capabilities=frozenset({Capability.NAMED_CREATE, Capability.NOTICES}))
    async with scaling(cloud) as scaler:
        lease = await scaler.acquire_lease("job")
        announced = anyio.current_time()
        cloud.notice(lease.instance, in_seconds=7200)
        await lease.lost()
        assert anyio.current_time() - announced == pytest.approx(7170, abs=1)


async def test_what_is_over_the_ceiling_goes_though_the_policy_would_keep_it() -> None:
    """Adopted instances beyond max_instances are removed, idle first, whatever idle_count says."""
    cloud = FakeCloud()
    cloud.launch(5)
    keep = [Policy(idle_count=6, idle_time=3600)]
    async with scaling(cloud, max_instances=2, preexisting=Preexisting.ADOPT, policies=keep):
        await anyio.sleep(60)
        assert len(cloud.alive) == 2


async def test_why_an_instance_is_not_ready_is_told() -> None:
    """The reason that keeps it from being prepared is in its view while it lasts."""
    cloud = FakeCloud()
    cloud.faults.connect_info.always(Fault(refuse=ProviderError("no address assigned")))
    async with scaling(cloud, policies=[Policy(idle_count=1)], instance_ready_timeout=60) as scaler:
        await anyio.sleep(20)
        assert (await scaler.instances())[0].why == "no address assigned"
        await anyio.sleep(43)
        assert "not ready within 60 s: no address assigned" in str(await scaler.explain())


# --- suspension -----------------------------------------------------------------------------------------


async def test_a_suspended_lease_leaves_the_maths_and_keeps_its_slot() -> None:
    """Demand falls by one, its instance stays, nobody else gets the slot, and resuming gives it back."""
    cloud = FakeCloud()
    async with scaling(cloud, max_instances=2, policies=[Policy(idle_time=10)]) as scaler:
        lease = await scaler.acquire_lease("sleeper")
        lease.suspend()
        lease.release()
        capacity = await scaler.capacity()
        assert (capacity.acquired, capacity.suspended) == (0, 1)
        with pytest.raises(KeyInUse):
            await scaler.acquire_lease("sleeper")
        async with scaler.acquire("other") as other:
            assert other.instance != lease.instance
        await anyio.sleep(60)
        assert cloud.alive == {lease.instance}
        assert await scaler.drain(timeout=1)
        again = await scaler.resume("sleeper")
        assert (again.instance, again.slot) == (lease.instance, lease.slot)
        with pytest.raises(NotSuspended):
            await scaler.resume("sleeper")
        again.release()


async def test_a_suspended_lease_survives_its_manager() -> None:
    """Also one that was killed: the instance is used on, and the lease resumed once it is ready again."""
    cloud, journal = FakeCloud(), MemoryJournal()
    keep = [Policy(idle_time=600)]
    async with scaling(cloud, journal=journal, capacity_per_instance=2, policies=keep) as scaler:
        lease = await scaler.acquire_lease("sleeper")
        lease.suspend()
        await anyio.sleep(1)
    cloud.latency = {"connect_info": 5}
    async with scaling(cloud, journal=journal, capacity_per_instance=2, policies=keep) as scaler:
        with pytest.raises(NoCapacity):
            await scaler.resume("sleeper", timeout=1)
        again = await scaler.resume("sleeper")
        assert (again.instance, again.slot) == (lease.instance, lease.slot)
        async with scaler.acquire("other") as other:
            assert (other.instance, other.slot) == (lease.instance, 1 - lease.slot)
        again.release()
        assert (await scaler.capacity()).suspended == 0


async def test_a_suspended_lease_whose_instance_is_gone_is_lost() -> None:
    """Whoever waits to resume it hears so; afterwards nobody knows the key."""
    cloud, journal = FakeCloud(), MemoryJournal()
    async with scaling(cloud, journal=journal) as scaler:
        lease = await scaler.acquire_lease("sleeper")
        lease.suspend()
        await anyio.sleep(1)
    cloud.vanish(lease.instance)
    cloud.latency = {"update": 5}
    async with scaling(cloud, journal=journal) as scaler:
        with pytest.raises(LeaseLost, match="did not survive its manager"):
            await scaler.resume("sleeper")
        with pytest.raises(NotSuspended):
            await scaler.resume("sleeper")
        async with scaler.acquire("sleeper"):
            pass
    assert journal.records["lease"] == {}


async def test_deleting_on_the_way_out_takes_suspended_leases_along() -> None:
    """Whoever asks for everything to be removed gets that."""
    cloud, journal = FakeCloud(), MemoryJournal()
    async with scaling(cloud, journal=journal, delete=True) as scaler:
        (await scaler.acquire_lease("sleeper")).suspend()
        await anyio.sleep(1)
    assert not cloud.alive
    assert journal.records["lease"] == {}


# --- reservations ---------------------------------------------------------------------------------------


async def test_reservations_against_what_could_be_created() -> None:
    """Without idle slots to keep, a reservation counts on growth, and its acquire is served by it."""
    cloud = FakeCloud(boot_time=10)
    async with scaling(cloud, max_instances=1) as scaler:
        await scaler.reserve("one")
        with pytest.raises(NoCapacity) as refused:
            await scaler.reserve("two")
        assert not refused.value.possible
        async with scaler.acquire("one"):
            assert (await scaler.capacity()).acquired == 1
        await scaler.reserve("two")
        await scaler.unreserve("two")
        assert (await scaler.capacity()).reserved == 0


async def test_reservations_in_preemptive_mode_need_a_ready_slot() -> None:
    """What could be created does not count, and the refusal says that asking again makes sense."""
    cloud = FakeCloud(boot_time=10)
    async with scaling(cloud, policies=[Policy(idle_count=1)]) as scaler:
        with pytest.raises(NoCapacity) as refused:
            await scaler.reserve("early")
        assert refused.value.possible
        await anyio.sleep(20)
        await scaler.reserve("in time")
        async with scaler.acquire("in time"):
            pass


async def test_a_reservation_waits_for_a_slot_as_long_as_it_is_asked_to() -> None:
    """Until a slot is given back; a refusal comes when the time is up, with why."""
    cloud = FakeCloud(boot_time=10)
    async with scaling(cloud, max_instances=1) as scaler:
        lease = await scaler.acquire_lease("one")
        began = anyio.current_time()
        with pytest.raises(NoCapacity, match="no slot could be reserved within 30s: every possible slot") as refused:
            await scaler.reserve("two", timeout=30)
        assert anyio.current_time() == began + 30
        assert not refused.value.possible
        async with anyio.create_task_group() as waiting:
            waiting.start_soon(partial(scaler.reserve, "two", timeout=math.inf))
            await anyio.sleep(5)
            assert (await scaler.capacity()).promised == 0
            lease.release()
        assert (await scaler.capacity()).reserved == 1
        async with scaler.acquire("two", timeout=0):
            pass


async def test_a_reservation_in_preemptive_mode_waits_until_a_slot_is_ready() -> None:
    """Nobody gives a slot back; an instance that boots is enough."""
    cloud = FakeCloud(boot_time=10)
    async with scaling(cloud, policies=[Policy(idle_count=1)]) as scaler:
        await scaler.reserve("early", timeout=60)
        assert 10 <= anyio.current_time() < 30
        assert (await scaler.capacity()).reserved == 1


@pytest.mark.parametrize("how", ["drain", "leave"])
async def test_a_reservation_does_not_wait_for_what_cannot_come(how: str) -> None:
    """A scaler that drains or is left hands nothing out any more."""
    cloud = FakeCloud()
    refused: list[str] = []

    async def reserve(scaler: Taskscaler) -> None:
        with pytest.raises(NoCapacity) as error:
            await scaler.reserve("two", timeout=math.inf)
        refused.append(str(error.value))

    async with anyio.create_task_group() as waiting, scaling(cloud, max_instances=1) as scaler:
        await scaler.acquire_lease("one")
        waiting.start_soon(reserve, scaler)
        await anyio.sleep(1)
        if how == "drain":
            await scaler.drain(timeout=1)
            assert refused == ["the scaler is draining"]
    assert len(refused) == 1


# --- tries ----------------------------------------------------------------------------------------------


async def test_a_body_is_tried_again_on_another_instance() -> None:
    """Each time that its instance is lost, as often as allowed; the loop ends with the try that succeeds."""
    cloud, seen = FakeCloud(), []
    async with scaling(cloud) as scaler:
        async for attempt in scaler.attempts("job"):
            async with attempt as lease:
                seen.append((attempt.number, lease.instance))
                if attempt.number < 3:
                    cloud.vanish(lease.instance)
                    await anyio.sleep_forever()
        assert [number for number, _ in seen] == [1, 2, 3]
        assert len({instance for _, instance in seen}) == 3
        assert (await scaler.capacity()).acquired == 0


async def test_the_last_loss_is_raised_and_so_is_any_other_error_at_once() -> None:
    """No try follows that nobody has asked for."""
    cloud, tries = FakeCloud(), 0
    async with scaling(cloud) as scaler:
        with pytest.raises(LeaseLost):
            async for attempt in scaler.attempts("job", tries=2):
                async with attempt as lease:
                    tries += 1
                    cloud.vanish(lease.instance)
                    await anyio.sleep_forever()
        assert tries == 2
        with pytest.raises(KeyError):
            async for attempt in scaler.attempts("job"):
                async with attempt:
                    tries += 1
                    raise KeyError
        assert tries == 3
        with pytest.raises(LeaseLost, match="other"):  # which is for the body to deal with
            async for attempt in scaler.attempts("job"):
                async with attempt, scaler.acquire("other") as lease:
                    tries += 1
                    cloud.vanish(lease.instance)
                    await anyio.sleep_forever()
        assert tries == 4
        with pytest.raises(ValueError, match="tries: expected at least 1, found 0"):
            scaler.attempts("job", tries=0)


async def test_a_try_that_is_left_out_or_ended_early_is_the_last() -> None:
    """Who does not enter it, or breaks the loop off, has what was wanted."""
    async with scaling(FakeCloud()) as scaler:
        assert [attempt.number async for attempt in scaler.attempts("job")] == [1]
        async for attempt in scaler.attempts("job"):
            async with attempt:
                break
        assert (await scaler.capacity()).acquired == 0


# --- trouble --------------------------------------------------------------------------------------------


async def test_a_stock_out_backs_off_and_is_explained() -> None:
    """While the cloud has nothing the requests thin out; `explain` names the reason; then work goes on."""
    cloud = FakeCloud()
    cloud.faults.increase.always(IncreaseFault(refuse=CapacityUnavailable("none left in zone-a")))
    async with scaling(cloud) as scaler, anyio.create_task_group() as jobs:
        jobs.start_soon(work, scaler, "job", 1.0)
        await anyio.sleep(600)
        assert 3 <= len(asked(cloud)) <= 12
        assert "none left in zone-a" in str(await scaler.explain())
        cloud.faults.clear()
    assert len(cloud.billed) == 1


async def test_an_unknown_outcome_is_counted_and_asked_again_under_the_same_intent() -> None:
    """The answer is lost although the instance comes: it is matched, and no second one is bought."""
    cloud = FakeCloud(appear_after=30)
    cloud.faults.increase.once(IncreaseFault(lose=True))
    async with scaling(cloud, max_instances=5) as scaler:
        await work(scaler, "job", 1)
    assert len(cloud.billed) == 1
    intents = {call.arguments["intent"] for call in cloud.calls if call.method == "increase"}
    assert len(intents) == 1


async def test_an_instance_that_does_not_become_ready_is_replaced() -> None:
    """The ready command fails on the first instance; the job runs on the second."""

    async def on_command(instance: str, _: Command) -> Completed:
        return Completed(exit_status=1 if instance == "i-1" else 0, stderr=b"disk missing")

    cloud = FakeCloud(on_command=on_command)
    seen: list[str] = []
    async with scaling(cloud, instance_ready_command="check") as scaler:
        await work(scaler, "job", 1, seen)
        assert seen == ["i-2"]
        assert "i-1" not in cloud.alive


async def test_an_unhealthy_instance_is_replaced_once_free() -> None:
    """Its job goes on; nothing new is put there; when the job ends it is removed."""
    cloud = FakeCloud()
    async with scaling(cloud, heartbeat_interval=10, policies=[Policy(idle_time=3600)]) as scaler:
        async with scaler.acquire("job") as lease:
            cloud.faults.heartbeat.always(Fault(refuse=ProviderError("no sign of life")))
            await anyio.sleep(60)
            assert lease.loss is None
            assert (await scaler.instances())[0].why == "its heartbeats fail: no sign of life"
        cloud.faults.clear()
        async with scaler.acquire("next") as lease:
            assert lease.instance == "i-2"


@pytest.mark.parametrize("trouble", ["it fails", "it hangs", "it cannot be reached", "it loses its connection"])
async def test_a_heartbeat_command_that_fails_makes_an_instance_unhealthy(trouble: str) -> None:
    """Whatever is wrong with it counts as a failed heartbeat, and the instance is replaced once it is free."""
    cloud = FakeCloud(on_command=ill_on_the_first(trouble))
    group = FakeGroup(cloud)

    @asynccontextmanager
    async def dial(info: ConnectInfo, config: ConnectorConfig) -> AsyncIterator[Connection]:
        if trouble == "it cannot be reached" and info.id == "i-1":
            raise Unreachable("nobody answers")
        async with group.dial(info, config) as connection:
            yield connection

    command = "check --token hunter2"
    async with scaling(cloud, dial=dial, instance_heartbeat_command=command, heartbeat_interval=10) as scaler:
        async with scaler.acquire("job") as lease:
            await anyio.sleep(100)
            assert lease.loss is None
            why = (await scaler.instances())[0].why
            assert why.startswith("its heartbeats fail: ")
            assert WHY[trouble] in why
            assert "hunter2" not in why
        async with scaler.acquire("next") as lease:
            assert lease.instance == "i-2"
            await anyio.sleep(100)
            assert cloud.alive == {"i-2"}
        assert {command.command for _, command in cloud.commands} <= {"check --token hunter2"}


WHY = {
    "it fails": "'instance_heartbeat_command' exited with 3: no disk",
    "it hangs": "no answer within 10s",
    "it cannot be reached": "nobody answers",
    "it loses its connection": "reset by peer",
}


def ill_on_the_first(trouble: str) -> OnCommand:
    """Make every command on the first instance go wrong in this way."""

    async def on_command(instance: str, _: Command) -> Completed:
        if instance == "i-1" and trouble == "it hangs":
            await anyio.sleep(3600)
        if instance == "i-1" and trouble == "it loses its connection":
            raise Unreachable("reset by peer")
        return Completed(exit_status=3 if instance == "i-1" else 0, stderr=b"no disk")

    return on_command


async def test_the_group_is_asked_first_and_either_failure_counts() -> None:
    """A sick instance is not even connected to; one that is healthy to the group must pass the command too."""
    cloud = FakeCloud()
    keep = [Policy(idle_count=1)]
    async with scaling(
        cloud, policies=keep, instance_heartbeat_command="check", heartbeat_interval=10, failure_threshold=5
    ) as scaler:
        await anyio.sleep(25)
        passed = len(cloud.commands)
        assert passed >= 2
        cloud.sicken("i-1")
        await anyio.sleep(35)
        assert len(cloud.commands) == passed
        cloud.heal("i-1")
        await anyio.sleep(100)
        assert len(cloud.commands) > passed
        assert (await scaler.instances())[0].why == ""


async def test_nothing_is_handed_out_that_would_not_be_remembered() -> None:
    """While the journal cannot be written acquires wait, and `explain` says why; then they are served."""
    cloud, journal = FakeCloud(), FullDisk()
    async with scaling(cloud, journal=journal, policies=[Policy(idle_count=2)]) as scaler:
        await anyio.sleep(10)
        journal.full = True
        with pytest.raises(NoCapacity, match="no space left on device"):
            await scaler.acquire_lease("job", timeout=30)
        journal.full = False
        async with scaler.acquire("job", timeout=30):
            assert set(journal.records["lease"]) == {"job"}
        assert (await scaler.explain()).shut == ""


# --- beginning and ending -------------------------------------------------------------------------------


async def test_a_group_that_is_not_empty_is_refused_adopted_or_cleared() -> None:
    """With an empty journal, what stands in the group is handled as `preexisting` says."""
    cloud = FakeCloud()
    cloud.launch(2)
    with pytest.raises(GroupRefused, match="already holds 2 instances"):
        async with scaling(cloud):
            pass
    assert len(cloud.alive) == 2
    async with scaling(cloud, preexisting=Preexisting.ADOPT, policies=[Policy(idle_count=2)]) as scaler:
        await anyio.sleep(5)
        assert (await scaler.capacity()).idle == 2
    async with scaling(cloud, preexisting=Preexisting.REMOVE):
        await anyio.sleep(5)
    assert not cloud.alive


async def test_a_restart_knows_uses_and_trusts_no_interrupted_work() -> None:
    """An instance that held a lease is removed; a free one is used on, up to its limit."""
    cloud, journal = FakeCloud(), MemoryJournal()
    keep = [Policy(idle_count=2, idle_time=600)]
    async with scaling(cloud, journal=journal, max_use_count=2, policies=keep) as scaler:
        await work(scaler, "done", 1)
        used = await scaler.acquire_lease("interrupted")
        await anyio.sleep(10)
        records = {kind: dict(kept) for kind, kept in journal.records.items()}
    crashed = MemoryJournal(records)
    async with scaling(cloud, journal=crashed, max_use_count=2, policies=keep) as scaler:
        await anyio.sleep(10)
        assert used.instance not in cloud.alive
        assert crashed.records["lease"] == {}
        assert all(view.id != used.instance for view in await scaler.instances())


async def test_an_instance_that_was_in_use_is_kept_if_told_to() -> None:
    """Its leases are released all the same, and its uses still count."""
    cloud, journal = FakeCloud(), MemoryJournal()
    keep = [Policy(idle_time=600)]
    async with scaling(cloud, journal=journal, max_use_count=2, policies=keep) as scaler:
        lease = await scaler.acquire_lease("interrupted")
        crashed = MemoryJournal({kind: dict(kept) for kind, kept in journal.records.items()})
    group = FakeGroup(cloud)
    pool = Pool(group, dial=group.dial, max_use_count=2)
    async with Taskscaler(
        pool, policies=keep, journal=crashed, clock=virtual_clock(), keep_instance_with_acquisitions=True
    ) as scaler:
        async with scaler.acquire("next") as again:
            assert again.instance == lease.instance
            assert [view.uses for view in await scaler.instances() if view.id == lease.instance] == [2]
        async with scaler.acquire("one more") as other:
            assert other.instance != lease.instance


async def test_policies_can_be_changed_while_running() -> None:
    """A new policy holds at once, both ways."""
    cloud = FakeCloud()
    async with scaling(cloud) as scaler:
        await anyio.sleep(10)
        assert not cloud.alive
        await scaler.configure(policies=[Policy(idle_count=3)])
        await anyio.sleep(10)
        assert len(cloud.alive) == 3
        await scaler.configure(policies=[])
        await anyio.sleep(10)
        assert not cloud.alive


async def test_a_second_manager_is_refused() -> None:
    """The journal is held by one; the other is told by whom, and its group is closed again."""
    journal = MemoryJournal()
    async with scaling(FakeCloud(), journal=journal):
        second = FakeCloud()
        with pytest.raises(JournalError, match="already managed by"):
            async with scaling(second, journal=journal):
                pass
        assert second.calls[-1].method == "shutdown"


async def test_drain_lets_work_end_and_refuses_the_rest() -> None:
    """Those who wait are refused, those who hold a slot keep it, and drain returns when they are done."""
    cloud = FakeCloud()
    async with scaling(cloud, max_instances=1) as scaler, anyio.create_task_group() as jobs:
        jobs.start_soon(work, scaler, "running", 50.0)
        await anyio.sleep(5)

        async def refused() -> None:
            with pytest.raises(NoCapacity, match="draining") as caught:
                await scaler.acquire_lease("waiting")
            assert not caught.value.possible

        jobs.start_soon(refused)
        await anyio.wait_all_tasks_blocked()
        assert not await scaler.drain(timeout=10)
        assert await scaler.drain()
        assert anyio.current_time() == pytest.approx(50, abs=5)
        with pytest.raises(NoCapacity):
            await scaler.acquire_lease("late")


@pytest.mark.parametrize("how", ["at the end", "by an error", "by a cancellation"])
async def test_leaving_deletes_everything_if_told_to(how: str) -> None:
    """Also what was asked for and has not appeared yet; however the scaler is left."""
    cloud = FakeCloud(boot_time=30, appear_after=10, delete_time=5)
    with anyio.CancelScope() as scope:
        try:
            async with scaling(cloud, delete=True, policies=[Policy(idle_count=3)]) as scaler:
                await anyio.sleep(45)
                await scaler.acquire_lease("one more")
                await anyio.sleep(1)
                assert len(cloud.alive) == 4
                if how == "by an error":
                    raise LookupError
                if how == "by a cancellation":
                    scope.cancel()
                    await anyio.sleep_forever()
        except LookupError:
            pass
    assert not cloud.alive
    assert len(cloud.billed) == 4


async def test_leaving_keeps_instances_otherwise() -> None:
    """By default the instances stay for the next manager, and the group is closed."""
    cloud = FakeCloud()
    async with scaling(cloud, policies=[Policy(idle_count=1)]):
        await anyio.sleep(10)
    assert len(cloud.alive) == 1
    assert cloud.calls[-1].method == "shutdown"


async def test_no_pool_or_two_of_one_name_are_refused() -> None:
    """A scaler needs pools that can be told apart."""
    with pytest.raises(ValueError, match="each with its own name"):
        Taskscaler([])
    group = FakeGroup(FakeCloud())
    with pytest.raises(ValueError, match="each with its own name"):
        Taskscaler([Pool(group), Pool(group)])


@pytest.mark.parametrize(
    ("settings", "error", "says"),
    [
        ({"idle_time": "5m"}, TypeError, 'idle_time: expected a number of seconds, found "5m"'),
        ({"idle_count": "5"}, TypeError, 'idle_count: expected an integer, found "5"'),
        ({"idle_count": -1}, ValueError, "idle_count: expected at least 0, found -1"),
        (
            {"timezone": "Berlin"},
            ValueError,
            'timezone: expected the name of a time zone such as UTC or .*, found "Berlin"',
        ),
        ({"periods": "* * * * *"}, TypeError, r"periods: expected a sequence of strings, found \"\* .*\""),
        ({"periods": ["* *"]}, ValueError, r"periods: expected cron expressions .*, found \"\* \*\", which has 2"),
    ],
)
async def test_a_wrong_setting_is_told_in_words(settings: dict[str, Any], error: type[Exception], says: str) -> None:
    """Which one, what may stand there and what was found: in a program as in a file, where a string has its place."""
    with pytest.raises(error, match=f"^{says}$"):
        Policy(**settings)


@pytest.mark.parametrize("word", list(Preexisting), ids=str)
async def test_what_is_to_become_of_instances_may_be_said_as_in_a_file(word: Preexisting) -> None:
    """The error that asks for it names the word; one that is no such word must not pass for one of them."""
    group = FakeGroup(FakeCloud())
    assert Pool(group, preexisting=word.value).preexisting is word
    with pytest.raises(ValueError, match='preexisting: expected one of "refuse", "remove", "adopt", found "adpot"'):
        Pool(group, preexisting="adpot")


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"pools": FakeGroup(FakeCloud())}, "pools: expected a sequence of Pool, found a FakeGroup"),
        ({"pools": "local"}, 'pools: expected a sequence of Pool, found "local"'),
        ({"pools": ["local"]}, r'pools\[0\]: expected a Pool, found "local"'),
        ({"policies": Policy()}, "policies: expected a sequence of Policy, found a Policy"),
    ],
)
async def test_a_scaler_of_something_else_is_refused_at_once(wrong: dict[str, Any], says: str) -> None:
    """By the constructor, not by an AttributeError when it is running."""
    with pytest.raises(TypeError, match=f"^{says}$"):
        Taskscaler(**{"pools": Pool(FakeGroup(FakeCloud())), **wrong})


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"connector_config": {"password": "s3cret"}}, "connector_config: expected a ConnectorConfig, found a dict"),
        ({"scale_throttle": 5}, "scale_throttle: expected a ScaleThrottle, found 5"),
    ],
)
async def test_a_table_of_a_pool_is_a_value_of_its_class(wrong: dict[str, Any], says: str) -> None:
    """A dict as in a file is refused before there are instances, and what it holds is not shown."""
    with pytest.raises(TypeError, match=f"^{says}$"):
        Pool(FakeGroup(FakeCloud()), **wrong)


async def test_the_name_of_a_plugin_is_no_group() -> None:
    """It is in a file, so it will be tried; the mistake is found where it was made."""
    with pytest.raises(
        TypeError, match=r'^group: expected an instance group, such as fleeting.load returns, found "local"'
    ):
        Pool("local")  # type: ignore[arg-type]  # on purpose
    with pytest.raises(TypeError, match=r"^heartbeat_interval: expected a number of seconds, found \"1m\"$"):
        Pool(FakeGroup(FakeCloud()), heartbeat_interval="1m")  # type: ignore[arg-type]  # on purpose


async def test_demand_flows_to_the_second_pool_when_the_first_is_full() -> None:
    """Pools are used in order of preference, each up to its ceiling."""
    cheap, dear = FakeCloud(identity="cheap"), FakeCloud(identity="dear")
    groups = FakeGroup(cheap), FakeGroup(dear)
    pools = [Pool(group, name=group.cloud.identity, dial=group.dial, max_instances=2) for group in groups]
    async with Taskscaler(pools) as scaler:
        leases = [await scaler.acquire_lease(f"job-{number}") for number in range(3)]
        assert [lease.pool for lease in leases] == ["cheap", "cheap", "dear"]


def test_a_decision_that_waits_for_a_burst_is_due_soon_at_any_time() -> None:
    """However the time is rounded, or the runtime is woken for each acquire all the same."""
    for number in range(1000):
        now = 1.75e9 + number * 0.0137
        assert now + COALESCE - now <= SOON
