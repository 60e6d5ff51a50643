"""Leases that outlive their clients, over the API, in virtual time: for whom, until when, and what ends them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from fleeting.testing import FakeCloud, virtual_time
from taskscaler._kept_bounds import MOST_TIME
from taskscaler.serve import _keeper
from taskscaler.serve._keeper import END_TIMEOUT
from taskscaler.serve._kept import LOOK_INTERVAL
from tests.taskscaler.calling import MEMBER, STRANGER, Answer, Caller, Fleet, called
from tests.taskscaler.leaving import Left

pytestmark = pytest.mark.anyio
anyio_backend = virtual_time

HOUR = 3600.0


async def opened(ask: Caller, number: int = 1) -> Caller:
    """Be a client that is there."""
    client = ask.called(number)
    assert (await client("POST", "/client", {"ttl": 5})).status == 200
    return client


async def kept(client: Caller, key: str = "dev", **bounds: object) -> Answer:
    """Acquire a lease, and have it kept."""
    lease = await client("POST", "/acquire", {"key": key, "request": "1"})
    assert lease.status == 200, lease.data
    answer = await client("POST", "/keep", {"key": key, "lease": lease.data["lease"], **bounds})
    assert answer.status == 200, answer.data
    return answer


async def held(fleet: Fleet) -> int:
    """How many slots are."""
    return (await fleet.scaler.capacity()).acquired


@asynccontextmanager
async def leaving() -> AsyncIterator[tuple[Caller, Fleet, Left]]:
    """A fleet on whose instances commands can be left."""
    left = Left(FakeCloud())
    async with called(left.cloud, dial=left.dial, capacity_per_instance=2) as (ask, fleet):
        yield ask, fleet, left


async def test_a_lease_is_kept_when_its_client_is_gone_until_its_time_has_come() -> None:
    """The slot stays taken, and explanations say for whom, until when and why; then it goes back, and that is said."""
    async with called(FakeCloud()) as (ask, fleet):
        client = await opened(ask)
        answer = await kept(client, ttl=HOUR)
        assert answer.data == {**answer.data, "ttl": HOUR, "idle_timeout": None, "stays": True, "there": False}
        said = (await ask("GET", "/explain?key=dev")).data["answer"]
        assert "process 1 of user 0 has it, after which it is kept for 1h" in said
        await client("DELETE", "/client")
        await anyio.sleep(HOUR - 60)
        assert await held(fleet) == 1
        explained = (await ask("GET", "/explain?key=dev")).data
        assert "is detached: it is kept for user 0, until somebody attaches to it or stops it" in explained["answer"]
        assert "in 1m: dev on i-1 is given up unless reattached: its ttl is 1h" in str(explained["next"])
        whole = (await ask("GET", "/explain")).data
        assert whole["detached"][0]["reattach_by"] == explained["reattach_by"]
        assert "in 1m: dev on i-1 is given up" in str(whole["next"])
        [lease] = (await ask("GET", "/leases")).data["leases"]
        assert (lease["key"], lease["kept"], lease["pid"], lease["ttl"]) == ("dev", True, None, HOUR)
        await anyio.sleep(61)
        assert await held(fleet) == 0
        assert (await ask("GET", "/leases")).data["leases"] == []
        late = await (await opened(ask, 2))("POST", "/reattach", {"key": "dev", "request": "1"})
        assert (late.status, late.why) == (404, "the lease 'dev' has ended: nobody used it for 1h")


async def test_whoever_comes_back_has_the_same_slot_and_all_the_time_again() -> None:
    """One at a time; while a client has it, no clock runs, and what it lets go of is kept from then."""
    async with called(FakeCloud()) as (ask, fleet):
        first = await opened(ask)
        await kept(first, ttl=100)
        await first("DELETE", "/client")
        await anyio.sleep(90)
        second, third = await opened(ask, 2), await opened(ask, 3)
        lease = await second("POST", "/reattach", {"key": "dev", "request": "1"})
        assert (lease.data["instance"], lease.data["slot"], lease.data["persistent"]) == ("i-1", 0, True)
        async with second.stream("/client/events"):
            await anyio.sleep(1000)
            refusal = await third("POST", "/client", {"ttl": 5})
            refusal = await third("POST", "/reattach", {"key": "dev", "request": "1"})
            assert (refusal.status, refusal.data["error"]["type"]) == (409, "KeyInUse")
            assert await held(fleet) == 1
        await second("POST", "/detach", {"key": "dev", "lease": lease.data["lease"]})
        await anyio.sleep(99)
        assert await held(fleet) == 1
        await anyio.sleep(2)
        assert await held(fleet) == 0


async def test_an_idle_lease_ends_sooner_but_not_under_a_command_that_runs() -> None:
    """The daemon looks at most once a minute; the end of the command begins the time."""
    async with leaving() as (ask, fleet, left):
        client = await opened(ask)
        name = (await kept(client, idle_timeout=120, there=True)).data["name"]
        left.running.add(f"lease-{name}")
        await client("DELETE", "/client")
        await anyio.sleep(10 * HOUR / 2)
        assert await held(fleet) == 1
        assert left.looks <= 5 * HOUR / LOOK_INTERVAL
        await left_running_no_more(left)
        await anyio.sleep(119)
        assert await held(fleet) == 1
        await anyio.sleep(LOOK_INTERVAL + 2)
        assert await held(fleet) == 0
        assert left.forgotten == [f"lease-{name}"]
        late = await (await opened(ask, 2))("POST", "/reattach", {"key": "dev", "request": "1"})
        assert "nobody used it for 2m" in late.why


async def left_running_no_more(left: Left) -> None:
    """All commands end."""
    left.ended |= left.running
    left.running.clear()


async def test_a_command_that_runs_for_too_long_is_ended_with_its_lease() -> None:
    """And all that it has left on the instance; what others have left there stays."""
    async with leaving() as (ask, fleet, left):
        client = await opened(ask)
        name = (await kept(client, ttl=100, there=True)).data["name"]
        left.running |= {f"lease-{name}", "lease-of-another"}
        await client("DELETE", "/client")
        await anyio.sleep(101)
        assert (await held(fleet), left.running, left.forgotten) == (0, {"lease-of-another"}, [f"lease-{name}"])
        assert [name in str(command.command) for _, command in left.cloud.commands] == [True, True]


async def test_who_comes_back_while_the_daemon_is_busy_with_the_lease_waits_for_that() -> None:
    """After a look the lease is theirs, whatever its time was; after its end they learn of that."""
    async with leaving() as (ask, fleet, left):
        client = await opened(ask)
        name = (await kept(client, idle_timeout=60, there=True)).data["name"]
        left.running.add(f"lease-{name}")
        left.look_time = 20
        await client("DELETE", "/client")
        await anyio.sleep(70)
        assert left.looks == 1
        other = await opened(ask, 2)
        lease = await other("POST", "/reattach", {"key": "dev", "request": "1"})
        assert lease.status == 200
        await other("POST", "/detach", {"key": "dev", "lease": lease.data["lease"]})
        await left_running_no_more(left)
        await anyio.sleep(60 + 20 + 60 + 10)
        assert (left.looks, await held(fleet)) == (3, 1)
        late = await (await opened(ask, 3))("POST", "/reattach", {"key": "dev", "request": "1"})
        assert "nobody used it for 1m" in late.why
        assert await held(fleet) == 0


async def test_a_lease_is_stopped_whoever_has_it() -> None:
    """Its client hears of it; what it does afterwards does nothing; stopping twice says that it was stopped."""
    async with leaving() as (ask, fleet, left):
        client = await opened(ask)
        name = (await kept(client, there=True)).data["name"]
        left.running.add(f"lease-{name}")
        async with client.stream("/client/events") as heard:
            await anyio.wait_all_tasks_blocked()
            assert (await ask("POST", "/stop", {"key": "dev"})).data == {"removed": True}
            news = await heard.next()
        assert (news["event"], news["loss"]["detail"]) == ("lost", "it was stopped")
        assert (await held(fleet), left.running) == (0, set())
        again = await ask("POST", "/stop", {"key": "dev"})
        assert (again.status, again.why.partition(";")[0]) == (404, "the lease 'dev' was stopped")


async def test_a_client_that_gives_a_kept_lease_back_leaves_nothing_there() -> None:
    """As whoever stops it does; the key can be used again."""
    async with leaving() as (ask, fleet, left):
        client = await opened(ask)
        lease = await client("POST", "/acquire", {"key": "dev", "request": "1"})
        named = {"key": "dev", "lease": lease.data["lease"]}
        name = (await client("POST", "/keep", {**named, "there": True})).data["name"]
        left.ended.add(f"lease-{name}")
        await client("POST", "/release", named)
        await anyio.wait_all_tasks_blocked()
        assert (await held(fleet), left.forgotten) == (0, [f"lease-{name}"])
        assert (await kept(client)).data["name"] != name


async def test_what_cannot_be_ended_goes_with_its_instance() -> None:
    """Nobody gets a slot in which somebody else's command may still run."""
    async with leaving() as (ask, fleet, left):
        client = await opened(ask)
        await kept(client, ttl=100, there=True)
        await client("DELETE", "/client")

        async def hang(*_: object) -> None:
            await anyio.sleep_forever()

        left.cloud.on_command = hang  # type: ignore[assignment]
        await anyio.sleep(101)
        assert await held(fleet) == 1
        await anyio.sleep(END_TIMEOUT + 5)
        assert await held(fleet) == 0
        assert "i-1" not in {each.id for each in await fleet.scaler.instances() if each.state != "deleting"}


async def test_a_kept_lease_is_lost_with_its_instance() -> None:
    """Whoever comes back learns why; the key is free."""
    cloud = FakeCloud()
    async with called(cloud) as (ask, fleet):
        client = await opened(ask)
        await kept(client)
        await client("DELETE", "/client")
        cloud.vanish("i-1")
        await anyio.sleep(120)
        assert fleet.holders.keeper.kept == {}
        other = await opened(ask, 2)
        late = await other("POST", "/reattach", {"key": "dev", "request": "1"})
        assert (late.status, late.data["error"]["type"]) == (410, "LeaseLost")
        assert (await ask("POST", "/stop", {"key": "dev"})).status == 404
        await kept(other)


async def test_members_keep_and_stop_their_own() -> None:
    """What others keep is unknown to them, by whatever name; nothing that they say leads to another's command."""
    async with called(FakeCloud(), capacity_per_instance=3) as (ask, fleet):
        owner = await opened(ask)
        await kept(owner, "dev")
        member = await opened(ask.called(2, MEMBER), 2)
        await kept(member, "mine", ttl=100)
        await member("DELETE", "/client")
        for key in ("dev", "0:dev", MEMBER.long_key("mine")):
            refusal = await member("POST", "/stop", {"key": key})
            assert (refusal.status, "no lease is kept under the key" in refusal.why) == (404, True)
            assert "4001:" not in refusal.why.replace(key, "")
        assert "did you mean `mine`?" in (await member("POST", "/stop", {"key": "mines"})).why
        stranger = ask.called(3, STRANGER)
        assert (await stranger("POST", "/stop", {"key": "mine"})).status == 404
        assert [each["key"] for each in (await member("GET", "/leases")).data["leases"]] == ["mine"]
        explained = (await member("GET", "/explain?key=mine")).data
        assert "4001:mine" not in str(explained)
        assert "is kept for user 4001" in explained["answer"]
        assert [each["sentence"] for each in explained["next"] if "mine on" in each["sentence"]]
        assert (await member("POST", "/stop", {"key": "mine"})).data == {"removed": True}
        assert await held(fleet) == 1
        assert (await ask("POST", "/stop", {"key": "dev"})).status == 200


async def test_what_is_not_kept_cannot_be_stopped_and_what_is_not_held_not_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each with one sentence; nor are there bounds beyond the bounds, nor too many leases."""
    monkeypatch.setattr(_keeper, "MOST_KEPT", 1)
    async with called(FakeCloud(), capacity_per_instance=2) as (ask, fleet):
        client = await opened(ask)
        lease = (await client("POST", "/acquire", {"key": "a", "request": "1"})).data["lease"]
        refusal = await ask("POST", "/stop", {"key": "a"})
        assert (refusal.status, refusal.why) == (404, "the lease 'a' is not kept: it ends with process 1; end that")
        for body, status in (
            ({"key": "a", "lease": "another"}, 400),
            ({"key": "b", "lease": lease}, 400),
            *(({"key": "a", "lease": lease, "ttl": ttl}, 400) for ttl in (0, 0.5, -1, MOST_TIME + 1, "8h")),
            *(({"key": "a", "lease": lease, "idle_timeout": bound}, 400) for bound in (0, MOST_TIME + 1)),
            ({"key": "a", "lease": lease, "name": "another's"}, 400),
        ):
            answer = await client("POST", "/keep", body)
            assert answer.status == status, (body, answer.data)
        assert fleet.holders.keeper.kept == {}
        await kept(client, "b")
        full = await client("POST", "/keep", {"key": "a", "lease": lease})
        assert (full.status, "1 leases are kept already" in full.why) == (503, True)


async def test_members_leave_each_other_leases_to_keep(monkeypatch: pytest.MonkeyPatch) -> None:
    """One member keeps half of all at most; who keeps one already may keep it otherwise."""
    monkeypatch.setattr(_keeper, "MOST_KEPT", 4)
    async with called(FakeCloud(), capacity_per_instance=8) as (ask, _):
        member, stranger = ask.called(1, MEMBER), ask.called(2, STRANGER)
        for client in (member, stranger):
            assert (await client("POST", "/client", {"ttl": 5})).status == 200
        for key in ("a", "b"):
            await kept(member, key)
        lease = (await member("POST", "/acquire", {"key": "c", "request": "1"})).data["lease"]
        refused = await member("POST", "/keep", {"key": "c", "lease": lease})
        assert (refused.status, "too many of this user's" in refused.why) == (503, True), refused
        await kept(stranger, "a")
        await kept(await opened(ask, 3), "a")


async def test_a_drain_that_deletes_waits_for_what_is_kept_and_another_does_not() -> None:
    """Without it, somebody's command would go without a word; a lease that is left to the next daemon needs no wait."""
    for deletes in (True, False):
        left = Left(FakeCloud())
        async with called(left.cloud, dial=left.dial) as (ask, fleet):
            client = await opened(ask)
            await kept(client, ttl=100, there=True)
            await client("DELETE", "/client")
            if deletes:
                await fleet.holders.keeper.hold_all()
            started = anyio.current_time()
            assert await fleet.scaler.drain(1000)
            assert 90 < anyio.current_time() - started < 110 if deletes else anyio.current_time() == started
            assert (len(fleet.scaler.detached), len(fleet.holders.keeper.kept)) == ((0, 0) if deletes else (1, 1))
            if not deletes:
                refusal = await ask("POST", "/stop", {"key": "dev"})
                assert (refusal.status, "leaves the lease 'dev' to the next one" in refusal.why) == (503, True)


async def test_a_lease_that_sleeps_is_not_kept() -> None:
    """Suspending it is another bound, with another way back."""
    async with called(FakeCloud()) as (ask, fleet):
        client = await opened(ask)
        await kept(client)
        [(_, one)] = fleet.holders.held.items()
        assert (await client("POST", "/suspend", {"key": "dev", "lease": one.name})).status == 200
        await anyio.wait_all_tasks_blocked()
        assert fleet.holders.keeper.kept == {}
        assert (await fleet.scaler.capacity()).suspended == 1
