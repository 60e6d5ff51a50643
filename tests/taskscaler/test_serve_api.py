"""The daemon's API, in virtual time: what clients get, what becomes of it when they go, and who may do what."""

from contextlib import AsyncExitStack
from pathlib import Path
from urllib.parse import urlencode

import anyio
import pytest

from fleeting.testing import FakeCloud, virtual_time
from taskscaler.serve._events import MOST_KEPT, Listener
from taskscaler.serve._verbs import PREFIX, VERBS, Verb, openapi
from tests.taskscaler.calling import MEMBER, STRANGER, Caller, called

pytestmark = pytest.mark.anyio
anyio_backend = virtual_time


async def opened(ask: Caller, number: int = 1, **body: object) -> Caller:
    """Be a client that is there."""
    client = ask.called(number)
    assert (await client("POST", "/client", body)).status == 200
    return client


async def test_a_client_gets_a_slot_and_gives_it_back() -> None:
    """It learns where its slot is; giving it back twice, or under another lease's name, does nothing."""
    async with called(FakeCloud(), max_instances=1) as (ask, fleet):
        client = await opened(ask)
        lease = await client("POST", "/acquire", {"key": "a", "request": "1"})
        assert lease.status == 200
        assert (lease.data["key"], lease.data["slot"]) == ("a", 0)
        assert (await fleet.scaler.capacity()).acquired == 1
        named = {"key": "a", "lease": lease.data["lease"]}
        await client("POST", "/release", {**named, "lease": "another"})
        assert (await fleet.scaler.capacity()).acquired == 1
        for _ in range(2):
            assert (await client("POST", "/release", named)).status == 200
        assert (await fleet.scaler.capacity()).acquired == 0


async def test_a_client_that_falls_silent_gives_its_slots_back_after_its_bound() -> None:
    """Not before; what it had reserved goes back too, and what it does afterwards is refused."""
    async with called(FakeCloud(), capacity_per_instance=4) as (ask, fleet):
        client = await opened(ask, ttl=20)
        assert (await client("POST", "/acquire", {"key": "a", "request": "1"})).status == 200
        assert (await client("POST", "/reserve", {"key": "b", "timeout": 60})).status == 200
        await anyio.sleep(19)
        assert (await fleet.scaler.capacity()).acquired == 1
        await anyio.sleep(2)
        capacity = await fleet.scaler.capacity()
        assert (capacity.acquired, capacity.reserved, capacity.promised) == (0, 0, 0)
        refusal = await client("POST", "/acquire", {"key": "c", "request": "2"})
        assert refusal.status == 404
        assert refusal.data["error"]["type"] == "ClientUnknown"


async def test_a_client_lives_while_a_connection_of_its_own_is_open() -> None:
    """However long that is; its bound begins when the connection ends, and any request renews it."""
    async with called(FakeCloud()) as (ask, fleet):
        client = await opened(ask, ttl=5)
        await client("POST", "/acquire", {"key": "a", "request": "1"})
        async with client.stream("/client/events"):
            await anyio.sleep(1000)
            assert (await fleet.scaler.capacity()).acquired == 1
        for _ in range(3):
            await anyio.sleep(4)
            assert (await client("POST", "/client", {"ttl": 5})).status == 200
        assert (await fleet.scaler.capacity()).acquired == 1
        await anyio.sleep(6)
        assert (await fleet.scaler.capacity()).acquired == 0


async def test_who_hangs_up_while_waiting_waits_no_more() -> None:
    """Its place in the queue goes to the next, and no slot is lost on the way."""
    cloud = FakeCloud()
    async with called(cloud, max_instances=1) as (ask, fleet):
        holder, waiter = await opened(ask, 1), await opened(ask, 2)
        lease = await holder("POST", "/acquire", {"key": "a", "request": "1"})
        async with waiter.hung_up("/acquire", {"key": "b", "request": "1"}):
            assert (await fleet.scaler.capacity()).pending == 1
        assert (await fleet.scaler.capacity()).pending == 0
        await holder("POST", "/release", {"key": "a", "lease": lease.data["lease"]})
        assert (await waiter("POST", "/acquire", {"key": "b", "request": "2"})).status == 200


async def test_the_same_request_gives_the_same_lease() -> None:
    """A client whose answer was lost asks again; another request for the key is refused, whoever makes it."""
    async with called(FakeCloud()) as (ask, _):
        client, other = await opened(ask, 1), await opened(ask, 2)
        first = await client("POST", "/acquire", {"key": "a", "request": "1"})
        assert await client("POST", "/acquire", {"key": "a", "request": "1"}) == first
        for asker in (client, other):
            refusal = await asker("POST", "/acquire", {"key": "a", "request": "2"})
            assert (refusal.status, refusal.data["error"]["type"]) == (409, "KeyInUse")
        assert (await other("POST", "/acquire", {"key": "a", "request": "1"})).status == 409


async def test_a_client_learns_what_it_still_has() -> None:
    """One that comes back names its leases, and gets those that are still its own."""
    cloud = FakeCloud()
    async with called(cloud) as (ask, _):
        client, other = await opened(ask, 1), await opened(ask, 2)
        lease = await client("POST", "/acquire", {"key": "a", "request": "1"})
        await other("POST", "/acquire", {"key": "b", "request": "1"})
        again = await client("POST", "/client", {"leases": ["a", "b", "c"]})
        assert again.data["leases"] == [lease.data]


async def test_a_loss_is_news_for_the_holder_alone() -> None:
    """The stream of the client says why; the lease is no longer in the list."""
    cloud = FakeCloud()
    async with called(cloud) as (ask, _):
        client, other = await opened(ask, 1), await opened(ask, 2, ttl=600)
        lease = await client("POST", "/acquire", {"key": "a", "request": "1"})
        await other("POST", "/acquire", {"key": "b", "request": "1"})
        async with client.stream("/client/events") as heard:
            await anyio.wait_all_tasks_blocked()
            cloud.vanish(lease.data["instance"])
            news = await heard.next()
        assert (news["event"], news["lease"], news["loss"]["kind"]) == ("lost", lease.data["lease"], "vanished")
        assert [each["key"] for each in (await ask("GET", "/leases")).data["leases"]] == ["b"]


async def test_leaving_gives_all_back_at_once() -> None:
    """Closing a client needs no bound to pass."""
    async with called(FakeCloud(), capacity_per_instance=3) as (ask, fleet):
        client = await opened(ask)
        for key in "ab":
            await client("POST", "/acquire", {"key": key, "request": key})
        assert (await client("DELETE", "/client")).status == 200
        assert (await fleet.scaler.capacity()).acquired == 0


async def test_a_lease_sleeps_and_is_resumed() -> None:
    """Also by another client of the daemon's own user; the slot is the same."""
    async with called(FakeCloud()) as (ask, fleet):
        client, other = await opened(ask, 1), await opened(ask, 2)
        lease = await client("POST", "/acquire", {"key": "a", "request": "1"})
        await client("POST", "/suspend", {"key": "a", "lease": lease.data["lease"]})
        assert (await fleet.scaler.capacity()).suspended == 1
        again = await other("POST", "/resume", {"key": "a", "request": "1"})
        assert (again.data["instance"], again.data["slot"]) == (lease.data["instance"], lease.data["slot"])
        missing = await other("POST", "/resume", {"key": "z", "request": "2"})
        assert (missing.status, missing.data["error"]["type"]) == (404, "NotSuspended")


async def test_a_member_of_the_group_sees_and_ends_only_what_is_its_own() -> None:
    """It acquires and releases; other users' clients, leases, keys and the operators' verbs are not for it."""
    async with called(FakeCloud(), capacity_per_instance=4) as (ask, _):
        owner = await opened(ask)
        await owner("POST", "/acquire", {"key": "a", "request": "1"})
        member = Caller(ask.app, MEMBER).called(2)
        await member("POST", "/client", {})
        lease = await member("POST", "/acquire", {"key": "m", "request": "1"})
        assert lease.status == 200
        assert [each["key"] for each in (await member("GET", "/leases")).data["leases"]] == ["m"]
        assert (await member("GET", "/explain?key=m")).status == 200
        assert (await member("GET", "/explain?key=a")).data["state"] == "unknown"
        assert (await member("GET", "/explain")).status == 403
        assert (await member("POST", "/dial", {"key": "m", "lease": lease.data["lease"]})).status == 403
        assert (await member("POST", "/drain", {})).status == 403
        assert (await member.called(1)("DELETE", "/client")).status == 404
        stranger = Caller(ask.app, STRANGER).called(2)
        assert (await stranger("POST", "/client", {})).status == 400
        assert (await stranger("POST", "/release", {"key": "m", "lease": lease.data["lease"]})).status == 404
        assert len((await owner("GET", "/leases")).data["leases"]) == 2


@pytest.mark.parametrize("key", ["m", 'it\'s "so" here'], ids=["plain", "quoted"])
async def test_a_member_reads_its_keys_as_it_wrote_them(key: str) -> None:
    """Not as they are told apart from other users'; what a refusal counts, it says to members, too."""
    long = MEMBER.long_key(key)
    async with called(FakeCloud(), max_instances=1) as (ask, _):
        member = Caller(ask.app, MEMBER).called(2)
        await member("POST", "/client", {})
        await member("POST", "/acquire", {"key": key, "request": "1"})
        in_use = await member("POST", "/acquire", {"key": key, "request": "2"})
        unknown = await member("POST", "/reattach", {"key": f"{key}!", "request": "3"})
        for refusal, named in ((in_use, key), (unknown, f"{key}!")):
            assert refusal.data["error"]["key"] == named
            assert repr(named) in refusal.why
        waited = await member("POST", "/acquire", {"key": "n", "request": "4", "timeout": 1})
        assert waited.data["error"]["capacity"]["acquired"] == 1
        explained = await member("GET", f"/explain?{urlencode({'key': key})}")
        assert explained.data["key"] == key
        assert explained.data["answer"].startswith(f"{key} has held")
        for answer in (in_use, unknown, waited, explained):
            assert long not in str(answer.data)
            assert repr(long)[1:-1] not in str(answer.data)


async def test_a_member_who_mistypes_a_key_is_not_shown_other_users() -> None:
    """The owner is: it may see them all."""
    async with called(FakeCloud(), capacity_per_instance=4) as (ask, _):
        owner = await opened(ask)
        stranger = Caller(ask.app, STRANGER).called(2)
        await stranger("POST", "/client", {})
        await stranger("POST", "/acquire", {"key": "nightly-build", "request": "1"})
        member = Caller(ask.app, MEMBER).called(3)
        theirs = STRANGER.long_key("nightly-build")
        assert theirs in str((await owner("GET", f"/explain?{urlencode({'key': theirs[:-1]})}")).data)
        seen = (await member("GET", "/explain?key=nightly-build")).data
        assert seen["state"] == "unknown"
        assert theirs not in str(seen)


async def test_who_waits_is_listed_first_come_first_and_members_see_their_own() -> None:
    """With what it waits for; a reservation that a slot is kept for has no place in the queue."""
    async with called(FakeCloud(), max_instances=1, capacity_per_instance=2) as (ask, _):
        owner, member = await opened(ask), Caller(ask.app, MEMBER).called(2)
        await member("POST", "/client", {})
        assert (await owner("GET", "/waiting")).data == {"waiting": [], "total": 0}
        await owner("POST", "/acquire", {"key": "a", "request": "1"})
        await owner("POST", "/reserve", {"key": "kept", "timeout": 60})
        async with (
            owner.hung_up("/acquire", {"key": "b", "request": "2"}),
            member.hung_up("/acquire", {"key": "m", "request": "3"}),
        ):
            seen = (await owner("GET", "/waiting")).data
            assert [(each["key"], each["place"], each["reserves"]) for each in seen["waiting"]] == [
                ("b", 1, False),
                (MEMBER.long_key("m"), 2, False),
                ("kept", None, True),
            ]
            assert seen["total"] == 3
            assert "the limit of 1 instance (max_instances) is reached" in seen["waiting"][0]["why"]
            assert seen["waiting"][2]["why"] == "a slot is kept for it"
            own = (await member("GET", "/waiting")).data
            assert [(each["key"], each["place"]) for each in own["waiting"]] == [("m", 2)]
            assert own["total"] == 1
            held = (await owner("GET", "/instances")).data["instances"][0]
            assert [since is not None for since in held["held_since"]] == [key is not None for key in held["slots"]]


async def test_of_a_long_queue_the_front_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """And how long it is: whoever asks cannot make the daemon write without bound."""
    monkeypatch.setattr("taskscaler.serve._app.MOST_WAITING", 2)
    async with called(FakeCloud(), max_instances=0) as (ask, _), AsyncExitStack() as stack:
        client = await opened(ask)
        for number in range(3):
            await stack.enter_async_context(client.hung_up("/acquire", {"key": f"k{number}", "request": str(number)}))
        answer = (await client("GET", "/waiting")).data
        assert ([each["key"] for each in answer["waiting"]], answer["total"]) == (["k0", "k1"], 3)


async def test_credentials_are_given_to_who_dials_and_are_nowhere_else() -> None:
    """No other answer has a password or a key."""
    async with called(FakeCloud()) as (ask, _):
        client = await opened(ask)
        lease = await client("POST", "/acquire", {"key": "a", "request": "1"})
        named = {"key": "a", "lease": lease.data["lease"]}
        info = (await client("POST", "/dial", named)).data["info"]
        assert info["id"] == lease.data["instance"]
        assert {"password", "key"} <= info.keys()
        for path in ("/status", "/leases", "/instances", "/explain", "/groups", "/decisions"):
            assert '"password"' not in str((await client("GET", path)).data)


async def test_a_members_program_gets_what_it_asks_for_when_it_begins() -> None:
    """`taskscaler.remote` reads the groups first: what a scaler's `groups` are is no secret of the daemon's user."""
    async with called(FakeCloud()) as (ask, _):
        answer = await Caller(ask.app, MEMBER).called(1)("GET", "/groups")
        assert (answer.status, [*answer.data["groups"]]) == (200, ["default"])


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb.owner], ids=lambda verb: verb.name)
async def test_operators_verbs_are_for_the_daemons_own_user(verb: Verb) -> None:
    """Nobody else may even ask, right or wrong."""
    async with called(FakeCloud()) as (ask, fleet):
        refusal = await Caller(ask.app, MEMBER).called(1)(verb.method, verb.path, {})
        assert refusal.status == 403
        assert verb.name in refusal.why
        assert fleet.drained == []


async def test_an_operator_holds_and_lets_go() -> None:
    """What is cordoned and retained shows as that; a name that nobody has is an error."""
    async with called(FakeCloud()) as (ask, _):
        client = await opened(ask)
        instance = (await client("POST", "/acquire", {"key": "a", "request": "1"})).data["instance"]
        for verb in ("cordon", "retain"):
            assert (await ask("POST", f"/{verb}", {"instance": instance, "why": "a disk"})).status == 200
        [view] = (await ask("GET", "/instances")).data["instances"]
        assert (view["cordoned"], view["retained"]) == ("a disk", "a disk")
        for verb in ("uncordon", "unretain"):
            assert (await ask("POST", f"/{verb}", {"instance": instance})).status == 200
        [view] = (await ask("GET", "/instances")).data["instances"]
        assert (view["cordoned"], view["retained"]) == (None, None)
        missing = await ask("POST", "/cordon", {"instance": "nope"})
        assert (missing.status, missing.data["error"]["type"]) == (404, "NoSuchInstance")


async def test_events_are_streamed_as_observers_get_them() -> None:
    """An operator sees leases come and go."""
    async with called(FakeCloud()) as (ask, _):
        client = await opened(ask)
        async with ask.stream("/events") as heard:
            await anyio.wait_all_tasks_blocked()
            await client("POST", "/acquire", {"key": "a", "request": "1"})
            events = [await heard.next()]
            while events[-1]["event"] != "lease":
                events.append(await heard.next())
        assert (events[-1]["key"], events[-1]["what"]) == ("a", "acquired")


async def test_a_listener_that_does_not_read_misses_what_is_too_much() -> None:
    """It is told how much; nothing is kept without bound."""
    listener = Listener()
    for number in range(MOST_KEPT + 7):
        listener.notify({"event": "lease", "number": number})
    for number in range(MOST_KEPT):
        assert f'"number": {number}}}'.encode() in await listener.next()
    assert b'"count": 7' in await listener.next()


async def test_the_document_describes_every_verb() -> None:
    """Paths, methods, and schemas for all that is sent."""
    async with called(FakeCloud()) as (ask, _):
        document = (await ask("GET", "/openapi.json")).data
    assert document == openapi()
    found = {(path, method.upper()) for path, methods in document["paths"].items() for method in methods}
    assert found == {(f"{PREFIX}{verb.path}", verb.method) for verb in VERBS}
    acquire = document["components"]["schemas"]["Acquire"]
    assert acquire["required"] == ["key", "request"]
    assert acquire["properties"]["timeout"] == {"anyOf": [{"type": "number"}, {"type": "null"}]}


def test_the_page_has_every_verb() -> None:
    """In order, word for word: what it does, what the answer has, and who may ask."""
    page = (Path(__file__).parents[2] / "docs" / "reference" / "daemon-api.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| `") and "/v1/" in line]
    assert rows == [
        f"| `{verb.method} {PREFIX}{verb.path}` | {verb.summary} | {verb.answer} | {_asker(verb)} |" for verb in VERBS
    ]


def _asker(verb: Verb) -> str:
    if verb.owner:
        who = "its own user, as a client" if verb.client else "its own user"
        return f"{who}, on the socket" if verb.local else who
    return "clients" if verb.client else "everybody"
