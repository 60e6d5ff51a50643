"""A batch's share of a daemon's fleet, and what a run sees of it."""

import os
from pathlib import Path

import anyio
import pytest

from fleeting import MemoryJournal
from fleeting.testing import FakeCloud, FakeGroup, virtual_time
from taskscaler import InstanceEvent, NoCapacity, ScalerEvent, remote
from taskscaler._errors import DaemonRefused
from taskscaler.batch import EventLog, Results
from taskscaler.batch._share import DRAINING_PAUSE, PAUSE, RunShare
from taskscaler.cli._run_fleet import LOOK_INTERVAL, DaemonFleet
from tests.taskscaler.daemons import client, daemon, restarted
from tests.taskscaler.scaling import virtual_clock

pytestmark = pytest.mark.anyio
anyio_backend = virtual_time


def successor(path: Path, cloud: FakeCloud) -> remote.Taskscaler:
    """A program of a name that one had before it."""
    return remote.Taskscaler(path, client="0" * 32, dial=FakeGroup(cloud).dial)


async def test_observers_hear_what_happens_to_the_fleet(tmp_path: Path) -> None:
    """As those of a scaler in the same process: the same values, again after the daemon was restarted."""
    cloud, heard, journal = FakeCloud(), list[ScalerEvent](), MemoryJournal()
    path = tmp_path / "s.sock"
    async with restarted(path, cloud, journal=journal) as service:
        await service.start()
        async with remote.Taskscaler(path, observers=[heard.append], dial=FakeGroup(cloud).dial) as scaler:
            async with scaler.acquire("a") as lease:
                assert [each.state for each in heard if isinstance(each, InstanceEvent)][-1] == "running"
                assert {type(each).__name__ for each in heard} == {"InstanceEvent", "LeaseEvent", "DecisionEvent"}
            await service.stop()
            await service.start("second")
            await anyio.sleep(10)
            heard.clear()
            async with scaler.acquire("b"):
                pass
            assert "b" in [getattr(each, "key", "") for each in heard], lease


async def test_the_next_of_its_name_has_what_was_kept_at_once(tmp_path: Path) -> None:
    """What a program held that was killed goes back when its successor comes, not when its time is over."""
    cloud, path = FakeCloud(), tmp_path / "s.sock"
    async with daemon(path, cloud, max_instances=2) as fleet:
        killed = successor(path, cloud)
        await killed.__aenter__()
        await killed.acquire_lease("kept", persistent=True)
        await killed.acquire_lease("given back")
        async with successor(path, cloud) as scaler:
            assert [each.key for each in scaler.detached] == ["kept"]
            assert [*fleet.holders.held] == []
            async with (await scaler.reattach("kept")).hold(), scaler.acquire("given back", timeout=60):
                assert (await scaler.capacity()).acquired == 2
        killed._link.id = "1" * 32  # what says farewell is not its successor
        await killed.__aexit__(None, None, None)


async def test_a_share_outlasts_what_its_predecessor_left(tmp_path: Path) -> None:
    """A key in use is waited for; a daemon that stays away has no capacity; others' leases are not seen."""
    cloud, path = FakeCloud(), tmp_path / "s.sock"
    async with restarted(path, cloud, journal=MemoryJournal()) as service:
        await service.start()
        async with client(path, cloud) as other, client(path, cloud, patience=20.0) as scaler:
            share = RunShare.of(scaler, "1")
            lease = await other.acquire_lease("run:1:a")
            async with anyio.create_task_group() as tasks:

                async def release() -> None:
                    await anyio.sleep(3 * PAUSE)
                    assert share.waiting == 1
                    lease.release()

                tasks.start_soon(release)
                async with share.acquire("a") as held:
                    assert (held.key, share.waiting) == ("run:1:a", 0)
            assert not share.detached
            await service.stop()
            with pytest.raises(NoCapacity, match="no daemon has answered"):
                async with share.acquire("b"):
                    raise AssertionError("there is none")
            await service.start("second")


def prepared(path: Path, tmp_path: Path) -> tuple[DaemonFleet, RunShare]:
    """What a run has of the daemon at a path."""
    results = Results(tmp_path / "results")
    results.prepare()
    events = EventLog(results)
    fleet = DaemonFleet.of(path)
    share = fleet.prepare(events, virtual_clock())
    assert isinstance(share, RunShare)
    return fleet, share


async def test_a_daemon_that_drains_and_is_exchanged_is_waited_for(tmp_path: Path) -> None:
    """A restart that lets leases end refuses who waits: jobs do not, and get their slots from the next daemon."""
    cloud, path = FakeCloud(), tmp_path / "s.sock"
    async with restarted(path, cloud, max_instances=1, journal=MemoryJournal()) as service:
        fleet = await service.start()
        async with client(path, cloud) as scaler, anyio.create_task_group() as tasks:
            share, got = RunShare.of(scaler, "1"), list[str]()

            async def work(name: str) -> None:
                async with share.acquire(name):
                    got.append(name)

            async with share.acquire("first"):
                for name in ("second", "third"):
                    tasks.start_soon(work, name)
                await anyio.sleep(1)
                tasks.start_soon(fleet.scaler.drain)
                fleet.draining = True
                await anyio.sleep(5 * DRAINING_PAUSE)
                assert (share.waiting, got) == (2, [])
            await service.stop()
            await anyio.sleep(10)
            await service.start("second")
            await anyio.sleep(60)
            assert sorted(got) == ["second", "third"]
            with pytest.raises(NoCapacity, match="drain"):
                await scaler.drain()
                await share.acquire("fourth").__aenter__()


async def test_a_run_sees_its_own_jobs_first_and_what_a_daemon_says(tmp_path: Path) -> None:
    """Slots have the jobs' names; a daemon that is away is said to be, and looked at again."""
    path = tmp_path / "s.sock"
    async with restarted(path, FakeCloud(), max_instances=2, journal=MemoryJournal()) as service:
        await service.start()
        fleet, share = prepared(path, tmp_path)
        async with fleet.opened():
            assert (fleet.ceiling, await fleet.why()) == (0, "")
            async with fleet.scaler.acquire("other"), share.acquire("mine"):
                await anyio.sleep(LOOK_INTERVAL)
                assert [view.slots for view in await fleet.instances()] == [("mine",), ("other",)]
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(share.acquire("later").__aenter__)
                    await anyio.sleep(2 * LOOK_INTERVAL)
                    assert "limit of 2 instances" in await fleet.why()
                    tasks.cancel_scope.cancel()
                await service.stop()
                await anyio.sleep(LOOK_INTERVAL)
                assert "does not answer; waiting for it" in await fleet.why()
                await service.start("second")
                await anyio.sleep(10)
                assert await fleet.why() == ""
            assert "in its file" in await fleet.reload(fleet)


async def test_others_are_told_to_submit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the daemon's own user may connect to instances, which is better said before a slot is taken."""
    path = tmp_path / "s.sock"
    async with daemon(path, FakeCloud()) as fleet:
        fleet_of_run = prepared(path, tmp_path)[0]
        monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
        with pytest.raises(DaemonRefused, match="taskscaler submit"):
            async with fleet_of_run.opened():
                raise AssertionError("it was let in")
        assert not len(fleet.holders.clients)
