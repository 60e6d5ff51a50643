"""A scaler here and one at the other end of a socket: the same tests over both, then what only the second can meet."""

import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from inspect import signature
from math import inf
from pathlib import Path
from typing import Any, TypeAlias

import anyio
import pytest
from anyio import to_thread
from attrs import frozen

from fleeting import MemoryJournal, Unreachable
from fleeting.events import LossKind
from fleeting.testing import FakeCloud, virtual_time
from taskscaler import KeyInUse, LeaseLost, NoCapacity, NoSuchInstance, NotSuspended, Taskscaler, remote, sync
from taskscaler._errors import DaemonRefused, NoDaemon, NotHeld
from taskscaler.core._slots import DetachedLease
from taskscaler.remote._link import Link
from tests.taskscaler.daemons import Restarted, client, connected, daemon, restarted
from tests.taskscaler.scaling import scaling

pytestmark = pytest.mark.anyio
anyio_backend = virtual_time

Scaler: TypeAlias = Taskscaler | remote.Taskscaler
Opened: TypeAlias = Callable[..., AbstractAsyncContextManager[Scaler]]


@pytest.fixture(params=["here", "there"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Opened:
    """What opens a scaler on a cloud: our own, or a daemon's."""
    return scaling if request.param == "here" else partial(connected, tmp_path / "s.sock")


@pytest.mark.parametrize("name", ["acquire", "acquire_lease", "attempts", "reattach", "replace", "reserve", "resume"])
def test_the_arguments_are_the_same(name: str) -> None:
    """So that a batch, or a script, changes one line."""
    there, here = (signature(getattr(cls, name)).parameters for cls in (remote.Taskscaler, Taskscaler))
    assert [*there] == [*here]
    assert [each.default for each in there.values()] == [each.default for each in here.values()]


async def test_a_slot_is_held_and_given_back(opened: Opened) -> None:
    """The lease says where it is; the key may be used again at once."""
    async with opened(FakeCloud(), max_instances=1) as scaler:
        for _ in range(2):
            async with scaler.acquire("a") as lease:
                assert (lease.key, lease.pool, lease.slot) == ("a", "default", 0)
                assert [view.slots for view in await scaler.instances()] == [("a",)]
                assert (await scaler.capacity()).acquired == 1
        lease = await scaler.acquire_lease("a")
        lease.release()
        lease.release()
        assert lease.ended
        assert lease.loss is None
        async with scaler.acquire("b", timeout=60):
            assert set(scaler.groups) == {"default"}


async def test_a_key_is_used_once(opened: Opened) -> None:
    """Also while it waits, and while it is reserved."""
    async with opened(FakeCloud()) as scaler, scaler.acquire("a"):
        with pytest.raises(KeyInUse) as error:
            await scaler.acquire_lease("a")
        assert error.value.key == "a"
        await scaler.reserve("b", timeout=60)
        with pytest.raises(KeyInUse):
            await scaler.reserve("b")
        await scaler.unreserve("b")
        await scaler.unreserve("b")
        await scaler.reserve("b", timeout=60)
        async with scaler.acquire("b"):
            assert (await scaler.capacity()).acquired == 2


async def test_who_waits_in_vain_learns_why(opened: Opened) -> None:
    """With the explanation, and whether asking again makes sense."""
    async with opened(FakeCloud(), max_instances=1) as scaler, scaler.acquire("a"):
        with pytest.raises(NoCapacity, match="the limit of 1 instance") as error:
            await scaler.acquire_lease("b", timeout=5)
        assert error.value.possible
        assert "within 5s" in str(error.value)
        assert error.value.capacity is not None
        assert (error.value.capacity.acquired, error.value.capacity.pending) == (1, 1)
        with pytest.raises(NoCapacity) as error:
            await scaler.reserve("b")
        assert error.value.capacity is not None
        assert error.value.capacity.acquired == 1
        assert (await scaler.capacity()).pending == 0


async def test_a_loss_cancels_the_body(opened: Opened) -> None:
    """The error names the cause; an attempt is made on another instance."""
    cloud = FakeCloud()
    async with opened(cloud) as scaler:
        with pytest.raises(LeaseLost) as error:
            async with scaler.acquire("a") as lease:
                cloud.vanish(lease.instance)
                await anyio.sleep_forever()
        assert (error.value.key, error.value.loss.kind) == ("a", LossKind.VANISHED)
        seen = []
        async for attempt in scaler.attempts("a"):
            async with attempt as lease:
                seen.append(lease.instance)
                if len(seen) == 1:
                    cloud.vanish(lease.instance)
                    await anyio.sleep_forever()
        assert len(set(seen)) == 2


async def test_instances_are_dialled(opened: Opened) -> None:
    """A command runs; a connection that dies leads to the verdict on the instance."""
    cloud = FakeCloud()
    async with opened(cloud) as scaler:
        async with scaler.acquire("a") as lease:
            assert (await lease.connect_info()).id == lease.instance
            async with lease.dial() as connection:
                assert (await connection.run("true")).exit_status == 0
        with pytest.raises(LeaseLost):
            async with scaler.acquire("b") as lease, lease.dial() as connection:
                cloud.vanish(lease.instance)
                raise Unreachable(await connection.wait_closed())


async def test_a_lease_sleeps_and_wakes(opened: Opened) -> None:
    """In its own slot; a key under which nothing sleeps is an error."""
    async with opened(FakeCloud()) as scaler:
        lease = await scaler.acquire_lease("a")
        lease.suspend()
        again = await scaler.resume("a", timeout=60)
        assert (again.instance, again.slot) == (lease.instance, lease.slot)
        again.release()
        with pytest.raises(NotSuspended):
            await scaler.resume("a")


async def test_a_lease_is_replaced_by_one_on_another_instance(opened: Opened) -> None:
    """Under the same key; what is not held cannot be. More of this in `test_replace.py`, which runs over both, too."""
    async with opened(FakeCloud()) as scaler:
        old = await scaler.acquire_lease("a")
        new = await scaler.replace("a", why="slow", timeout=60)
        assert old.ended
        assert new.instance != old.instance
        new.release()
        with pytest.raises(NotHeld):
            await scaler.replace("b")


async def test_operators_hold_instances(opened: Opened) -> None:
    """And see it; a wrong name is the same error."""
    async with opened(FakeCloud()) as scaler, scaler.acquire("a") as lease:
        await scaler.cordon(lease.instance, "a disk")
        await scaler.retain(lease.instance)
        [view] = await scaler.instances()
        assert view.holds == "cordoned (a disk), retained"
        await scaler.uncordon(lease.instance)
        await scaler.unretain(lease.instance)
        with pytest.raises(NoSuchInstance) as error:
            await scaler.cordon("nope")
        assert error.value.instance == "nope"


async def test_explanations_are_values(opened: Opened) -> None:
    """Of the whole, an instance and a key: the same classes, with sentences and JSON."""
    async with opened(FakeCloud()) as scaler, scaler.acquire("a") as lease:
        whole = await scaler.explain()
        assert whole.capacity == await scaler.capacity()
        assert whole.answer == "nothing is waiting, and no slot is idle"
        assert whole.as_dict()["about"] == "scaler"
        instance = await scaler.explain(instance=lease.instance)
        assert [job.key for job in instance.jobs] == ["a"]
        key = await scaler.explain(key="a")
        assert (key.state, key.instance) == ("holding", lease.instance)
        assert "has held slot 0" in str(key)


async def test_draining_waits_and_refuses(opened: Opened) -> None:
    """What is held goes on; nobody gets more."""
    async with opened(FakeCloud()) as scaler:
        lease = await scaler.acquire_lease("a")
        assert not await scaler.drain(timeout=1)
        with pytest.raises(NoCapacity, match="draining"):
            await scaler.acquire_lease("b")
        lease.release()
        assert await scaler.drain(timeout=60)


@pytest.mark.parametrize("how", ["drain", "leave"])
async def test_who_waits_to_reserve_is_refused_too(opened: Opened, how: str) -> None:
    """By draining, and by leaving; it keeps no slot."""
    refused: list[str] = []

    async def reserve(scaler: Scaler) -> None:
        with pytest.raises(NoCapacity) as error:
            await scaler.reserve("two", timeout=inf)
        refused.append(str(error.value))

    async with anyio.create_task_group() as waiting, opened(FakeCloud(), max_instances=1) as scaler:
        await scaler.acquire_lease("one")
        waiting.start_soon(reserve, scaler)
        await anyio.sleep(1)
        if how == "drain":
            await scaler.drain(timeout=1)
            assert refused == ["the scaler is draining"]
            assert (await scaler.capacity()).reserved == 0
    assert len(refused) == 1


async def test_stopping_breaks_what_is_held_and_refuses_who_waits(opened: Opened) -> None:
    """At once."""
    async with opened(FakeCloud(), max_instances=1) as scaler:
        lease = await scaler.acquire_lease("a")
        async with anyio.create_task_group() as tasks:

            async def wait() -> None:
                with pytest.raises(NoCapacity, match="stopped"):
                    await scaler.acquire_lease("b")

            tasks.start_soon(wait)
            await anyio.sleep(1)
            await scaler.stop()
        assert (await lease.lost()).kind is LossKind.KILLED


async def test_cancelling_who_waits_leaves_nothing_behind(opened: Opened) -> None:
    """At every moment until the slot is there: it is idle afterwards, and can be had."""
    async with opened(FakeCloud(boot_time=2), max_instances=1) as scaler:
        for delay in (0.0, 0.001, 0.5, 1.0, 2.0, 2.5):
            with anyio.move_on_after(delay) as scope:
                lease = await scaler.acquire_lease("a")
                lease.release()
            assert scope.cancelled_caught or lease.ended
        async with scaler.acquire("a", timeout=60):
            assert (await scaler.capacity()).acquired == 1


# --- what only a daemon's clients meet ----------------------------------------------------------------------


@asynccontextmanager
async def two(path: Path, cloud: FakeCloud, **settings: Any) -> AsyncIterator[tuple[remote.Taskscaler, ...]]:  # noqa: ANN401
    """Two clients of one daemon."""
    async with daemon(path, cloud, **settings), client(path, cloud) as first, client(path, cloud) as second:
        yield first, second


async def test_clients_share_the_fleet_and_see_each_other(tmp_path: Path) -> None:
    """A slot that one gives back is the other's; leaving gives everything back, and disturbs nobody."""
    cloud, path = FakeCloud(), tmp_path / "s.sock"
    async with two(path, cloud, max_instances=1) as (first, second):
        lease = await first.acquire_lease("a")
        with pytest.raises(KeyInUse):
            await second.acquire_lease("a")
        with pytest.raises(NoCapacity):
            await second.acquire_lease("b", timeout=5)
        lease.release()
        async with second.acquire("b", timeout=60):
            async with client(path, cloud) as third:
                await third.reserve("c", timeout=None) if (await third.capacity()).idle else None
            await first.stop()
            assert (await second.capacity()).acquired == 1


async def test_a_daemon_that_is_restarted_gives_the_same_leases_back(tmp_path: Path) -> None:
    """Whoever holds one goes on holding it, whoever waits waits on, and what ended meanwhile is given back."""
    cloud, path = FakeCloud(), tmp_path / "s.sock"
    async with restarted(path, cloud, journal=MemoryJournal(), max_instances=2) as service:
        await service.start()
        async with client(path, cloud) as scaler, anyio.create_task_group() as tasks:
            kept, released = await scaler.acquire_lease("kept"), await scaler.acquire_lease("released")
            got: list[str] = []

            async def wait() -> None:
                async with scaler.acquire("waits", timeout=3600) as lease:
                    got.append(lease.instance)

            tasks.start_soon(wait)
            await anyio.sleep(1)
            await service.stop()
            released.release()
            await anyio.sleep(20)
            assert not kept.ended
            assert not got
            fleet = await service.start("second")
            await anyio.sleep(60)
            assert got == [released.instance]
            assert not kept.ended
            [held] = fleet.holders.held.values()
            assert (held.lease.key, held.lease.instance) == ("kept", kept.instance)
            async with kept.dial() as connection:
                assert (await connection.run("true")).exit_status == 0
            kept.release()
            await anyio.sleep(1)
            assert (await fleet.scaler.capacity()).acquired == 0


@pytest.mark.parametrize("asleep", [False, True])
@pytest.mark.parametrize("granted", [False, True])
async def test_a_lease_is_replaced_over_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, granted: bool, asleep: bool
) -> None:
    """Once, whether or not the daemon that ended had done so already, and its answer was lost; asleep or not."""
    cloud, path = FakeCloud(boot_time=30), tmp_path / "s.sock"
    async with restarted(path, cloud, journal=MemoryJournal()) as service:
        first = await service.start()
        async with client(path, cloud) as scaler, anyio.create_task_group() as tasks:
            old = await scaler.acquire_lease("a")
            got: list[str] = []

            async def replace() -> None:
                got.append((await scaler.replace("a", why="slow", timeout=3600)).instance)

            if asleep:
                old.suspend()
            if granted:
                lose_answer(service, monkeypatch)
            tasks.start_soon(replace)
            await anyio.sleep(1)
            if not granted:
                await service.stop()
            else:
                await service.over.wait()
            assert not got
            fleet = await service.start("second")
            await anyio.sleep(600)
            assert got != [old.instance]
            assert old.ended
            assert old.loss is None
            [held] = fleet.holders.held.values()
            assert (held.lease.key, held.lease.instance) == ("a", got[0])
            assert (await fleet.scaler.capacity()).acquired == 1
            assert first is not fleet


def lose_answer(service: Restarted, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the daemon end before the first answer to a replacement is read."""
    lost: list[str] = []
    once = Link.once

    async def ask(link: Link, method: str, path: str, *args: Any, **settings: Any) -> dict[str, Any]:  # noqa: ANN401  (the same)
        answer = await once(link, method, path, *args, **settings)
        if path == "/replace" and not lost:
            lost.append(path)
            await service.stop()
            raise NoDaemon("gone; wait for the next one")
        return answer

    monkeypatch.setattr(Link, "once", ask)


async def test_a_daemon_that_stays_away_is_given_up(tmp_path: Path) -> None:
    """After `patience`: leases are lost, and who asks learns that nobody answers."""
    cloud, path = FakeCloud(), tmp_path / "s.sock"
    async with restarted(path, cloud) as service:
        await service.start()
        async with client(path, cloud, patience=20) as scaler:
            lease = await scaler.acquire_lease("a")
            await service.stop()
            await anyio.sleep(10)
            assert not lease.ended
            with pytest.raises(NoDaemon, match="for 20s"):
                await scaler.capacity()
            assert (await lease.lost()).kind is LossKind.KILLED


async def test_a_daemon_that_comes_back_is_asked_once_it_knows_what_was_held(tmp_path: Path) -> None:
    """Who dials while the client is known there, and its leases are not yet, waits; a refusal would be no loss."""
    cloud, path = FakeCloud(), tmp_path / "s.sock"
    async with restarted(path, cloud, journal=MemoryJournal()) as service:
        await service.start()
        async with client(path, cloud) as scaler, scaler.acquire("a") as lease, anyio.create_task_group() as tasks:
            said: list[bytes] = []
            come_back, known = anyio.Event(), anyio.Event()
            begin = scaler._link.begin

            async def begin_late() -> None:
                come_back.set()
                await known.wait()
                await begin()

            async def work() -> None:
                async with lease.dial() as connection:
                    said.append((await connection.run("true")).stdout)

            scaler._link.begin = begin_late
            await service.stop()
            await service.start("second")
            await come_back.wait()
            tasks.start_soon(work)
            await anyio.sleep(5)
            assert not said
            known.set()
            await anyio.sleep(20)
            assert len(said) == 1
            assert not lease.ended


async def test_a_daemon_that_ends_while_it_learns_who_asks_is_asked_again(tmp_path: Path) -> None:
    """Killed once more, it fails nobody: who asks goes on once the next one is there."""
    cloud, path = FakeCloud(), tmp_path / "s.sock"
    async with daemon(path, cloud) as fleet, client(path, cloud) as scaler:
        failures, begin = [NoDaemon("it has ended")], scaler._link.begin

        async def begin_badly() -> None:
            for failure in failures:
                failures.clear()
                raise failure
            await begin()

        scaler._link.begin = begin_badly
        fleet.holders.close(fleet.holders.clients.find(scaler._link.id, os.geteuid()))
        async with scaler.acquire("a", timeout=60):
            assert not failures


async def test_where_no_daemon_is_nothing_is_opened(tmp_path: Path) -> None:
    """Entering says so at once; the policies of a daemon are not a client's to change."""
    with pytest.raises(NoDaemon, match="is it running"):
        async with remote.connect(tmp_path / "no.sock"):
            raise AssertionError("nobody is there")
    async with connected(tmp_path / "s.sock", FakeCloud()) as scaler:
        with pytest.raises(DaemonRefused, match="taskscaler reload"):
            await scaler.configure(policies=[])
        with pytest.raises(DaemonRefused, match="taskscaler drain --delete"):
            scaler.delete_instances_on_shutdown = True
        assert not scaler.delete_instances_on_shutdown


async def test_a_client_that_is_gone_loses_what_it_had(tmp_path: Path) -> None:
    """After its bound, as if it had given it back; a persistent lease is kept for who reattaches it."""
    cloud, path = FakeCloud(), tmp_path / "s.sock"
    async with daemon(path, cloud, journal=MemoryJournal()) as fleet:
        async with client(path, cloud, ttl=5) as scaler:
            await scaler.acquire_lease("a")
            await scaler.acquire_lease("b", persistent=True)
            scaler._tasks.cancel_scope.cancel()
            await scaler._link._http.aclose()
            await anyio.sleep(10)
            assert list(fleet.holders.held) == []
            assert [each.key for each in fleet.scaler.detached] == ["b"]
        async with client(path, cloud) as other:
            assert [each.key for each in other.detached] == ["b"]
            lease = await other.reattach("b")
            assert lease.persistent
            lease.release()


@pytest.fixture(params=["coroutines", "threads"])
def program(request: pytest.FixtureRequest) -> Callable[[Path, FakeCloud], AbstractAsyncContextManager[Any]]:
    """A client as coroutines use it, and one as threads do, each of whose calls is made in a thread."""
    return client if request.param == "coroutines" else in_threads


@asynccontextmanager
async def in_threads(path: Path, cloud: FakeCloud) -> AsyncIterator[Any]:
    """A client for threads, whose calls can be awaited."""
    scaler = await to_thread.run_sync(lambda: sync.Taskscaler.of(client(path, cloud)))
    await to_thread.run_sync(scaler.__enter__)
    try:
        yield InThreads(scaler)
    finally:
        await to_thread.run_sync(scaler.__exit__, None, None, None)


@frozen
class InThreads:
    """As much of a client as a test below needs."""

    scaler: sync.Taskscaler

    @property
    def detached(self) -> Sequence[DetachedLease]:
        """As it is."""
        return self.scaler.detached

    async def acquire_lease(self, key: str) -> sync.Lease:
        """In a thread."""
        return await to_thread.run_sync(self.scaler.acquire_lease, key)

    async def reattach(self, key: str) -> sync.Lease:
        """In a thread."""
        return await to_thread.run_sync(self.scaler.reattach, key)

    async def keep(self, lease: sync.Lease, **bounds: float) -> None:
        """In a thread."""
        await to_thread.run_sync(partial(self.scaler.keep, lease, **bounds))


def test_keeping_takes_the_same_arguments() -> None:
    """With or without coroutines."""
    assert [*signature(sync.Taskscaler.keep).parameters] == [*signature(remote.Taskscaler.keep).parameters]


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])  # it writes, which trio's virtual time does not await
async def test_a_program_has_a_lease_outlive_it(
    tmp_path: Path, program: Callable[[Path, FakeCloud], AbstractAsyncContextManager[Any]]
) -> None:
    """For a bound of its own: the daemon lists it, over a restart too, and whoever reattaches it has the same slot."""
    cloud, path = FakeCloud(), tmp_path / "s.sock"
    async with restarted(path, cloud, journal=MemoryJournal(), leases=tmp_path / "leases") as service:
        fleet = await service.start("first")
        async with program(path, cloud) as scaler:
            lease = await scaler.acquire_lease("dev")
            with pytest.raises(ValueError, match="ttl"):
                await scaler.keep(lease, ttl=0)
            await scaler.keep(lease, ttl=500, idle_timeout=60)
            assert lease.persistent
            assert fleet.holders.keeper.kept["dev"].ttl == 500
            await service.stop()
            fleet = await service.start("second")
            await scaler.keep(lease, ttl=600)
            assert lease.loss is None
        await service.stop()
        fleet = await service.start("third")
        assert fleet.holders.keeper.kept["dev"].ttl == 600
        async with program(path, cloud) as other:
            assert [each.key for each in other.detached] == ["dev"]
            again = await other.reattach("dev")
            assert (again.instance, again.slot) == (lease.instance, lease.slot)
            again.release()
            with pytest.raises(DaemonRefused, match="has ended"):
                await other.keep(again)
        assert fleet.holders.keeper.kept == {}


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])  # as above
async def test_connection_lost_during_reattachment_keeps_the_lease(tmp_path: Path) -> None:
    """The client introduces itself again, finds its lease still detached, and must not reattach it twice."""
    cloud, path = FakeCloud(), tmp_path / "s.sock"
    async with restarted(path, cloud, journal=MemoryJournal(), leases=tmp_path / "leases") as service:
        await service.start("first")
        async with client(path, cloud) as scaler:
            lease = await scaler.acquire_lease("dev")
            await scaler.keep(lease, ttl=500)
            await service.stop()
            await service.start("second")
            assert scaler._leases is not None
            for _ in range(3):
                await scaler._leases.begin()
            await scaler.keep(lease, ttl=600)
            assert lease.loss is None


async def test_pools_are_named(opened: Opened) -> None:
    """And those that there are not are refused, with the names of those that there are."""
    async with opened(FakeCloud(), max_instances=1) as scaler:
        async with scaler.acquire("a", pools=["default"]) as lease:
            assert lease.pool == "default"
        with pytest.raises((ValueError, DaemonRefused), match=r"expected names among default, found"):
            await scaler.acquire_lease("b", pools=["spot"])
