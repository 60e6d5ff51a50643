"""A user who takes all that a daemon has of something leaves the others theirs: over its socket."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.abc import ByteStream, SocketStream
from attrs import define
from hypothesis import given
from hypothesis import strategies as st

from fleeting.testing import FakeCloud
from taskscaler.serve import _batches
from taskscaler.serve._batch_files import BatchFiles, Ticket
from taskscaler.serve._listen import listening
from taskscaler.serve._peers import Peer
from taskscaler.serve._server import MOST_CONNECTIONS, Server, connections_of
from taskscaler.serve._shares import has_room, network_of
from tests.taskscaler.calling import MEMBER, OWNER, STRANGER, called
from tests.taskscaler.test_serve_batches import Obedient, submit

pytestmark = pytest.mark.anyio

REQUEST = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"


async def hello(scope: Any, receive: Any, send: Any) -> None:  # noqa: ANN401  (ASGI's)
    """Answer with nothing."""
    del scope, receive
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


@define
class Comers:
    """Says who has connected, in the order in which they are to come."""

    peers: Iterator[Peer]

    async def admit(self, stream: ByteStream) -> tuple[ByteStream, Peer]:
        """Take the next one."""
        return stream, next(self.peers)


@pytest.mark.parametrize(
    ("open_files", "listeners", "most"),
    [(1 << 20, 1, MOST_CONNECTIONS), (1024, 1, 768), (1024, 3, 256), (4096, 2, 1536), (1, 1, 1)],
)
def test_connections_leave_files_to_open(open_files: int, listeners: int, most: int) -> None:
    """Whoever takes all connections keeps the daemon from no log and no journal, however few files it may open."""
    assert connections_of(open_files, listeners) == most


@pytest.mark.parametrize(
    ("address", "client"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::1", "::/64"),
    ],
)
def test_who_may_choose_among_many_addresses_is_one_client(address: str, client: str) -> None:
    """Else a bound for each address would be none, with IPv6."""
    assert network_of(address) == client


async def test_members_leave_connections_to_each_other_and_to_us(tmp_path: Path) -> None:
    """Of eight, one has four at most, and all of them six; the daemon's own user comes in whatever they do."""
    peers = [MEMBER] * 5 + [STRANGER] * 3 + [OWNER, MEMBER]
    path = tmp_path / "s.sock"
    async with listening(path, None) as listener, anyio.create_task_group() as tasks:
        server = Server(hello, 8, Comers(iter(peers)).admit)
        tasks.start_soon(server.serve, listener)
        streams: list[SocketStream] = []

        async def ask() -> str:
            stream = await anyio.connect_unix(path)
            streams.append(stream)
            await stream.send(REQUEST)
            return (await stream.receive()).split()[1].decode()

        assert [await ask() for _ in peers[1:]] == [*["200"] * 4, "503", "200", "200", "503", "200"]
        await streams[0].aclose()
        while server._users[MEMBER.uid] > 3:  # noqa: ASYNC110  (nobody says when)
            await anyio.sleep(0.01)
        assert await ask() == "200", "there is room again"
        for stream in streams:
            await anyio.aclose_forcefully(stream)
        await server.close()
        tasks.cancel_scope.cancel()


async def test_members_leave_each_other_logs_to_read_and_batches_to_submit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is too much is refused with the reason, and is nobody else's trouble."""
    async with called(FakeCloud(), directory=tmp_path / "b") as (ask, fleet):
        monkeypatch.setattr(_batches, "MOST_UNFINISHED", 4)
        for _ in range(2):
            fleet.batches.known[str(len(fleet.batches.known))] = unfinished(MEMBER)
        member, stranger = ask.called(1, MEMBER), ask.called(2, STRANGER)
        refused = await member("POST", "/batches?name=jobs.toml", raw=b"")
        assert (refused.status, "too many of this user's" in refused.why) == (503, True)
        other = await stranger("POST", "/batches?name=jobs.toml", raw=b"")
        assert other.status == 400, "it was looked at"
        fleet.batches.known.clear()


async def test_members_leave_each_other_jobs_to_submit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many are in one batch: half of all jobs are the most that one member may have unfinished."""
    monkeypatch.setattr(_batches, "MOST_JOBS", 4)
    async with called(FakeCloud(), directory=tmp_path / "b", executors={"instance": Obedient()}) as (ask, fleet):
        fleet.batches.known["1"] = unfinished(MEMBER, jobs=2)
        member, stranger = ask.called(1, MEMBER), ask.called(2, STRANGER)
        for who, scripts in ((member, {"a": "true"}), (stranger, {"a": "true", "b": "true", "c": "true"})):
            refused = await submit(who, None, **scripts)
            assert (refused.status, "too many of this user's" in refused.why) == (503, True), refused
        assert (await submit(stranger, a="true")).status == 200
        del fleet.batches.known["1"]


@given(
    most=st.integers(1, 20),
    taken=st.dictionaries(st.sampled_from([each.uid for each in (OWNER, MEMBER, STRANGER)]), st.integers(0, 20)),
    peer=st.sampled_from([OWNER, MEMBER, STRANGER]),
    wanted=st.integers(1, 20),
)
def test_some_at_once_are_as_many_one_by_one(most: int, taken: dict[int, int], peer: Peer, wanted: int) -> None:
    """Nobody gets more by asking for much."""
    has, each_has = Counter(taken), []
    for _ in range(wanted):
        each_has.append(has_room(most, has, peer))
        has[peer.uid] += 1
    assert has_room(most, taken, peer, wanted) == all(each_has)


def unfinished(peer: Peer, jobs: int = 0) -> Any:  # noqa: ANN401  (as much of a batch as is counted)
    """A batch that is not over."""
    ticket = Ticket(id="0" * 8, uid=peer.uid, name="jobs.toml", submitted=0.0)
    return _batches.OwnedBatch(ticket, BatchFiles(Path("nowhere")), jobs=jobs)
