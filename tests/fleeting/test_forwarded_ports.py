"""Ports of an instance whose connections come to us: what the conformance suite cannot know, with real peers."""

import errno
import os
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import anyio
import paramiko
import pytest
from anyio.abc import ByteStream, SocketAttribute
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st
from paramiko.common import (
    MSG_CHANNEL_DATA,
    MSG_CHANNEL_OPEN,
    MSG_REQUEST_FAILURE,
    MSG_REQUEST_SUCCESS,
    cMSG_CHANNEL_OPEN_FAILURE,
    cMSG_GLOBAL_REQUEST,
)
from paramiko.packet import Packetizer

from fleeting import ConnectError, Connection, Unreachable, Unsupported
from fleeting.connectors import ForwardsPorts, PortListener, listen_tcp
from fleeting.connectors._listening import MOST_WAITING
from fleeting.connectors.ssh import MemoryHostKeys, SshConnector
from fleeting.connectors.ssh._channel import PROHIBITED, message
from fleeting.connectors.ssh._forward import KIND, Forward
from fleeting.connectors.ssh._listener import _check_place
from fleeting.connectors.ssh._sockets import listens, listens_on_loopback_only
from fleeting.connectors.ssh._transport import SshTransport
from fleeting.errors import PortTaken
from fleeting.testing import FakeConnection
from tests.fleeting.breakable import KINDS, connected
from tests.fleeting.sshd import configured, dialled, free_port, only_root, sshd

pytestmark = pytest.mark.anyio

HOST = "127.0.0.1"
EVERYWHERE = "0.0.0.0"  # noqa: S104  (which is the point)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """Which connector."""
    found: str = request.param
    return found


@asynccontextmanager
async def listening(connection: Connection, port: int = 0) -> AsyncIterator[PortListener]:
    """Listen at a loopback port of the instance."""
    assert isinstance(connection, ForwardsPorts)
    async with connection.listen_tcp(HOST, port) as listener:
        yield listener


async def accepted(listener: PortListener) -> tuple[socket.socket, ByteStream]:
    """Connect as a process on the instance does; both ends."""
    client = socket.create_connection((HOST, listener.port))
    return client, await listener.accept()


async def test_processes_of_the_instance_reach_us(kind: str, tmp_path: Path) -> None:
    """A command there talks to a handler here, many of them at once, each in a connection of its own."""
    ask = (
        "import socket, sys\n"
        "for number in range(20):\n"
        "    with socket.create_connection(('127.0.0.1', int(sys.argv[1]))) as peer:\n"
        "        peer.sendall(b'%d' % number); peer.shutdown(socket.SHUT_WR)\n"
        "        print(b''.join(iter(lambda: peer.recv(100), b'')).decode())\n"
    )

    async def answer(stream: ByteStream) -> None:
        await stream.send(b"heard " + b"".join([chunk async for chunk in stream]))

    async with (
        connected(kind, tmp_path) as there,
        listening(there.connection) as listener,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(listener.serve, answer)
        printed = []

        async def run() -> None:
            command = ["python3", "-c", ask, str(listener.port)]
            printed.append((await there.connection.run(command, check=True)).stdout.decode().splitlines())

        async with anyio.create_task_group() as running:
            for _ in range(3):
                running.start_soon(run)
        tasks.cancel_scope.cancel()
    assert printed == [[f"heard {number}" for number in range(20)]] * 3


async def test_a_lost_connection_is_one_error_that_says_so(kind: str, tmp_path: Path) -> None:
    """Whoever serves learns that nothing listens any more, and why; streams are broken, and the port is free."""
    async with connected(kind, tmp_path) as there, listening(there.connection) as listener:
        client, stream = await accepted(listener)

        async def hold(_: ByteStream) -> None:
            await anyio.sleep_forever()

        async with anyio.create_task_group() as tasks:

            async def serve() -> None:
                with pytest.raises(
                    Unreachable, match=rf"(died|ended) \(.*\); nothing listens at.* port {listener.port}"
                ):
                    await listener.serve(hold)

            tasks.start_soon(serve)
            there.lose()
        with client, pytest.raises((anyio.BrokenResourceError, anyio.ClosedResourceError)):
            await stream.receive()
        with pytest.raises(Unreachable):
            await listener.accept()


async def test_a_connection_that_breaks_ends_its_own_handler(kind: str, tmp_path: Path) -> None:
    """A client that resets its connection is nobody else's trouble; what a handler raises otherwise is raised."""

    async def read(stream: ByteStream) -> None:
        if await stream.receive() == b"fail":
            raise LookupError("no such thing")
        await stream.send(b"\n")
        while True:
            await stream.receive()

    async with (
        connected(kind, tmp_path) as there,
        listening(there.connection) as listener,
        anyio.create_task_group() as tasks,
    ):

        async def serve() -> None:
            with pytest.raises(LookupError, match="no such thing"):
                await listener.serve(read)

        tasks.start_soon(serve)
        for _ in range(3):
            async with await anyio.connect_tcp(HOST, listener.port) as client:
                await client.send(b"hello")
                await client.receive()
                raw = client.extra(SocketAttribute.raw_socket)
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        async with await anyio.connect_tcp(HOST, listener.port) as client:
            await client.send(b"fail")


async def test_so_many_are_served_at_once_and_the_others_wait(kind: str, tmp_path: Path) -> None:
    """What an instance opens costs us nothing beyond the bound, and is served once there is room."""
    open_now, most, served = 0, 0, 0

    async def count(stream: ByteStream) -> None:
        nonlocal open_now, most, served
        open_now += 1
        most = max(most, open_now)
        await stream.receive()
        await stream.send(b".")
        open_now -= 1
        served += 1

    async def ask(port: int) -> None:
        async with await anyio.connect_tcp(HOST, port) as client:
            await client.send(b"?")
            assert await client.receive() == b"."

    async with (
        connected(kind, tmp_path) as there,
        listening(there.connection) as listener,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(partial(listener.serve, count, at_once=2))
        async with anyio.create_task_group() as asking:
            for _ in range(12):
                asking.start_soon(ask, listener.port)
        tasks.cancel_scope.cancel()
    assert (most, served) == (2, 12)


async def test_a_port_that_is_taken_is_refused(kind: str, tmp_path: Path) -> None:
    """The error says what was found and what would do."""
    with socket.create_server((HOST, 0)) as holder:
        port = holder.getsockname()[1]
        async with connected(kind, tmp_path) as there:
            with pytest.raises(PortTaken, match=rf"port {port} on .* is taken; free it, or ask for port 0"):
                async with listening(there.connection, port):
                    pass


class Reluctant(FakeConnection):
    """Its port is taken a few times."""

    asked = 0

    @asynccontextmanager
    async def listen_tcp(self, host: str, port: int) -> AsyncIterator[PortListener]:
        """Listen from the third time on."""
        self.asked += 1
        if self.asked <= 2:
            raise PortTaken("i-1", host, port)
        yield ForNobody()


class ForNobody(PortListener):
    """Nobody connects to it."""

    port = 1234

    async def accept(self) -> ByteStream:
        """Wait."""
        await anyio.sleep_forever()
        raise AssertionError


async def test_whoever_has_patience_asks_again() -> None:
    """A port that a lost connection held is had once it is free; without patience, the first refusal is the last."""
    connection = Reluctant.__new__(Reluctant)
    with pytest.raises(PortTaken):
        async with listen_tcp(connection, HOST, 1234):
            pass
    assert connection.asked == 1
    async with listen_tcp(connection, HOST, 1234, patience=30) as listener:
        assert (connection.asked, listener.port) == (3, 1234)


async def test_a_connection_that_cannot_listen_says_so() -> None:
    """There is one door for all connections, and it names what would do."""
    with pytest.raises(Unsupported, match="the fake protocol cannot forward ports of an instance to here; use SSH"):
        async with listen_tcp(FakeConnection.__new__(FakeConnection), HOST, 0):
            pass


@pytest.mark.parametrize("host", ["", "localhost"])
async def test_each_address_of_a_name_has_the_same_port(tmp_path: Path, host: str) -> None:
    """Where a name means several addresses, all of them lead to us."""
    async with connected("local", tmp_path) as there, listen_tcp(there.connection, host, 0) as listener:
        for address in {
            str(each[4][0]) for each in socket.getaddrinfo(host or "localhost", 0, type=socket.SOCK_STREAM)
        }:
            with socket.create_connection((address, listener.port)) as client:
                client.sendall(b"here")
                assert await (await listener.accept()).receive() == b"here"


async def test_a_shortage_of_files_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that cannot be accepted now is accepted once it can."""
    plain, failures = socket.socket.accept, [OSError(errno.EMFILE, "too many"), OSError(errno.ENETDOWN, "down")]

    def accept(self: socket.socket) -> tuple[socket.socket, object]:
        if failures:
            raise failures.pop()
        return plain(self)

    monkeypatch.setattr(socket.socket, "accept", accept)
    async with connected("local", tmp_path) as there, listening(there.connection) as listener:
        client, stream = await accepted(listener)
        with client:
            client.sendall(b"here")
            assert await stream.receive() == b"here"
    assert failures == []


# --- SSH: what sshd refuses, and why ------------------------------------------------------------------------


@asynccontextmanager
async def refusing(directory: Path, *settings: str) -> AsyncIterator[ForwardsPorts]:
    """Connect to an sshd with these settings."""
    with sshd(directory, *settings) as server:
        async with dialled(server.info) as connection:
            assert isinstance(connection, ForwardsPorts)
            yield connection


@pytest.mark.parametrize("setting", ["AllowTcpForwarding no", "AllowTcpForwarding local", "PermitListen none"])
@pytest.mark.parametrize("port", [0, 12345])
async def test_a_host_that_forwards_nothing_is_explained(tmp_path: Path, setting: str, port: int) -> None:
    """The error names what was asked for and every setting that can forbid it."""
    async with refusing(tmp_path, setting) as connection:
        wanted = rf"not let this user listen at 127\.0\.0\.1 port {port}; set AllowTcpForwarding .* PermitListen"
        with pytest.raises(Unsupported, match=wanted):
            async with connection.listen_tcp(HOST, port):
                pass


async def test_one_permitted_port_is_had_and_others_are_explained(tmp_path: Path) -> None:
    """Where sshd permits one port that is the one; if it is taken that is what the error says."""
    port = free_port()
    async with refusing(tmp_path, f"PermitListen {HOST}:{port}") as connection:
        with pytest.raises(Unsupported, match="PermitListen"):
            async with connection.listen_tcp(HOST, free_port()):
                pass
        with socket.create_server((HOST, port)), pytest.raises(PortTaken):
            async with connection.listen_tcp(HOST, port):
                pass
        async with connection.listen_tcp(HOST, port) as listener:
            assert listener.port == port


async def test_gateway_ports_let_nobody_in_by_surprise(tmp_path: Path) -> None:
    """Where sshd would listen at all addresses though it was asked for loopback that is refused, and undone."""
    async with refusing(tmp_path, "GatewayPorts yes") as connection:
        port = free_port()
        with pytest.raises(Unsupported, match=r"at all of its addresses when asked for 127\.0\.0\.1; set GatewayPorts"):
            async with connection.listen_tcp(HOST, port):
                pass
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((HOST, port))
        async with connection.listen_tcp("", 0) as everywhere:
            assert everywhere.port


async def test_gateway_ports_keep_nobody_out_by_surprise(tmp_path: Path) -> None:
    """Where sshd listens at loopback only though it was asked for all addresses that is refused, and undone."""
    async with refusing(tmp_path, "GatewayPorts no") as connection:
        for host in ("", EVERYWHERE):
            with pytest.raises(Unsupported, match=r"at its loopback address when asked for .*; set GatewayPorts"):
                async with connection.listen_tcp(host, 0):
                    pass
    async with refusing(tmp_path, "GatewayPorts clientspecified") as connection:
        for host in ("", EVERYWHERE, HOST, "localhost"):
            async with connection.listen_tcp(host, 0) as listener:
                assert listener.port


def test_what_linux_shows_of_listening_sockets() -> None:
    """Addresses are read as the kernel writes them; what is no such line is passed over."""
    lines = [
        "  sl  local_address rem_address   st",
        "   0: {}:1F90 00000000:0000 0A 0 0",
        "junk",
        "   0: {}:1F91 0:0 01",
    ]

    def shown(*addresses: str) -> str:
        return "\n".join(line.format(each) for each in addresses for line in lines)

    v6 = "00000000000000000000000001000000"
    assert listens_on_loopback_only(shown("0100007F", v6), 8080)
    assert not listens_on_loopback_only(shown("0100007F", "00000000"), 8080)
    assert not listens_on_loopback_only(shown("7F00000A"), 8080)
    assert not listens_on_loopback_only(shown("0100007F"), 8081)
    assert listens(shown("00000000"), 8080)
    assert not listens(shown("00000000"), 8081)
    assert listens("This account is not available.", 8080) is None


_LINES = st.lists(st.sampled_from(["0:", "0A", "0100007F:1F90", ":", "0A:", "\0"])).map(" ".join)


@given(st.text() | st.lists(_LINES).map("\n".join))
def test_what_a_host_shows_of_its_sockets_may_be_anything(shown: str) -> None:
    """Whatever it is, a port is listened at, or not, or nobody knows."""
    assert listens(shown, 8080) in (True, False, None)
    assert listens_on_loopback_only(shown, 8080) in (True, False)


# --- SSH: one connection, many users ------------------------------------------------------------------------


async def test_ports_of_two_users_of_one_connection_are_their_own(tmp_path: Path) -> None:
    """Slots of an instance share a connection: each gets what comes to its own port, and one who leaves frees his."""
    connector = SshConnector(MemoryHostKeys())
    with sshd(tmp_path) as server:
        async with dialled(server.info, connector) as kept, listening(kept) as mine:
            async with dialled(server.info, connector) as left, listening(left) as other:
                assert len(server.connections) == 1
                for listener, word in ((mine, b"mine"), (other, b"other")):
                    client, stream = await accepted(listener)
                    with client:
                        client.sendall(word)
                        assert await stream.receive() == word
                gone = other.port
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((HOST, gone))
            client, stream = await accepted(mine)
            with client:
                await stream.send(b"still")
                assert client.recv(5) == b"still"


async def test_more_than_may_wait_are_turned_away(tmp_path: Path) -> None:
    """While nobody accepts, connections wait up to a bound, and the ones beyond are closed."""
    async with refusing(tmp_path) as connection, connection.listen_tcp(HOST, 0) as listener:
        clients = [socket.create_connection((HOST, listener.port)) for _ in range(MOST_WAITING + 5)]
        closed, enough = 0, anyio.Event()

        async def watch(client: socket.socket) -> None:
            nonlocal closed
            await anyio.wait_readable(client)
            closed += is_closed(client)
            if closed == 5:
                enough.set()

        async with anyio.create_task_group() as tasks:
            for client in clients:
                tasks.start_soon(watch, client)
            await enough.wait()
            for _ in range(MOST_WAITING):
                await listener.accept()
            tasks.cancel_scope.cancel()
        assert sum(is_closed(client) for client in clients) == 5
        for client in clients:
            client.close()


def is_closed(client: socket.socket) -> bool:
    """Whether the other side has closed it."""
    try:
        return client.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


async def test_a_port_is_had_again_after_its_connection_was_lost(tmp_path: Path) -> None:
    """A new connection listens at the port of the one that died, once sshd has let go of it."""
    connector = SshConnector(MemoryHostKeys())
    with sshd(tmp_path) as server:
        async with dialled(server.info, connector) as connection, listening(connection) as listener:
            port = listener.port
            server.signal(signal.SIGSTOP)  # the host has not noticed: it holds the port
            held = server.connections
            async with dialled(evolve(server.info, id="again"), connector) as again:
                with pytest.raises(PortTaken):
                    async with listen_tcp(again, HOST, port):
                        pass
                async with anyio.create_task_group() as tasks:

                    async def notice() -> None:
                        for pid in held:
                            os.kill(pid, signal.SIGKILL)

                    tasks.start_soon(notice)
                    async with listen_tcp(again, HOST, port, patience=30) as listened:
                        assert listened.port == port


async def test_streams_outlast_new_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys are exchanged many times while streams go both ways, on the wish of either side; nothing is lost."""
    monkeypatch.setattr(Packetizer, "REKEY_BYTES", 1 << 20)
    data = os.urandom(4 << 20)
    got: list[bytes] = []

    async def echo(stream: ByteStream) -> None:
        async for chunk in stream:
            await stream.send(chunk)

    async def ask(port: int) -> None:
        back = bytearray()
        async with await anyio.connect_tcp(HOST, port) as client, anyio.create_task_group() as tasks:
            tasks.start_soon(client.send, data)
            while len(back) < len(data):
                back += await client.receive()
        got.append(bytes(back))

    async with (
        refusing(tmp_path, "RekeyLimit 1M") as connection,
        connection.listen_tcp(HOST, 0) as listener,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(listener.serve, echo)
        async with anyio.create_task_group() as asking:
            for _ in range(4):
                asking.start_soon(ask, listener.port)
        tasks.cancel_scope.cancel()
    assert got == [data] * 4


async def test_a_host_that_falls_silent_ends_the_listener(tmp_path: Path) -> None:
    """Whoever waits for connections learns of it as of a host that hung up, and leaving does not hang."""
    with sshd(tmp_path) as server:
        async with (
            dialled(server.info, keepalive=0.3, keepalive_misses=3) as connection,
            listening(connection) as listener,
        ):
            server.signal(signal.SIGSTOP)
            with pytest.raises(Unreachable, match=r"silent for 0\.9 s\); nothing listens at its port"):
                await listener.accept()


async def test_a_port_beyond_another_host_is_listened_at(tmp_path: Path) -> None:
    """A connection through a jump host forwards ports like any other."""
    connector = SshConnector(MemoryHostKeys())
    with sshd(tmp_path / "outer") as outer, sshd(tmp_path / "inner") as inner:
        async with (
            dialled(outer.info, connector) as over,
            connector.dial(inner.info, configured(), over=over) as connection,
            listening(connection) as listener,
        ):
            client, stream = await accepted(listener)
            with client:
                client.sendall(b"hello")
                assert await stream.receive() == b"hello"


@only_root
async def test_ports_of_root_are_explained(tmp_path: Path) -> None:
    """A user who may listen, but not at a port below 1024, learns which would do, even one who runs no commands."""
    keys = f"AuthorizedKeysCommand /bin/cat {tmp_path}/authorized_keys"
    with sshd(tmp_path, keys, "AuthorizedKeysCommandUser root", "AuthorizedKeysFile none") as server:
        async with dialled(evolve(server.info, user="nobody")) as connection:
            with pytest.raises(ConnectError, match="lets only root listen at port 81; ask for a port above 1023"):
                async with listening(connection, 81):
                    pass
            with pytest.raises(PortTaken):
                async with listening(connection, server.port):
                    pass


# --- SSH: hosts that are not what they should be --------------------------------------------------------------


class Unread(SshTransport):
    """A transport whose thread does not run: messages of the host's are handed to it, and what it sends is kept."""

    def __init__(self, sock: socket.socket) -> None:
        """Take a socket that nobody reads."""
        super().__init__(sock, linger=0.0)
        self.active = True
        self.sent: list[bytes] = []

    def post(self, data: paramiko.Message) -> None:
        """Keep it."""
        self.sent.append(data.asbytes())

    def hear(self, kind: int, *fields: str | int) -> None:
        """Handle a message, of which *fields* are what follows its kind."""
        heard = message(b"", *fields)
        heard.rewind()
        self._handler_table[kind](heard)

    async def listens(self, host: str, port: int, granted: int) -> Forward:
        """Ask for a port, which is granted."""
        forward = Forward(host, port)
        self.ask_for_port(forward)
        self.hear(MSG_REQUEST_SUCCESS, granted)
        await self.port_answered(forward)
        return forward


@pytest.fixture
async def unread() -> AsyncIterator[Unread]:
    """A connection to a host that the test plays."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        transport = Unread(ours)
        yield transport
        transport.active = False


def opening(kind: str, host: str = HOST, port: int = 4000, *, packet: int = 32768) -> tuple[str | int, ...]:
    """What a host sends to open a channel, which it calls 7."""
    return kind, 7, 1 << 21, packet, host, port, "10.0.0.1", 5


REFUSED = message(cMSG_CHANNEL_OPEN_FAILURE, 7, PROHIBITED, "", "en").asbytes()


@pytest.mark.parametrize(
    "opens",
    [
        opening(KIND, port=4001),
        opening(KIND, packet=64),
        opening("x11"),
        opening("auth-agent@openssh.com"),
        opening("session"),
        opening("direct-tcpip"),
        (KIND, 7),
    ],
    ids=["another port", "no room", "x11", "agent", "session", "direct", "cut off"],
)
async def test_what_nobody_asked_for_is_refused(unread: Unread, opens: tuple[str | int, ...]) -> None:
    """A host gets a channel for a connection at a port that it was asked to listen at, and for nothing else."""
    forward = await unread.listens(HOST, 4000, 0)
    unread.hear(MSG_CHANNEL_OPEN, *opens)
    assert (unread.sent[-1], forward.has_waiting, unread.channels) == (REFUSED, False, {})


async def test_nothing_is_opened_before_a_port_was_asked_for_or_once_it_was_left(unread: Unread) -> None:
    """The answer to the request is what makes channels welcome, and leaving is what ends that."""
    unread.hear(MSG_CHANNEL_OPEN, *opening(KIND))
    assert unread.sent == [REFUSED]
    forward = await unread.listens(HOST, 0, 4000)
    unread.hear(MSG_CHANNEL_OPEN, *opening(KIND))
    assert (forward.port, forward.has_waiting) == (4000, True)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(unread.leave_port, forward)
        await anyio.wait_all_tasks_blocked()
        assert unread.sent[-2:] == [
            REFUSED,
            message(cMSG_GLOBAL_REQUEST, "cancel-tcpip-forward", True, HOST, 4000).asbytes(),
        ]
        unread.hear(MSG_REQUEST_SUCCESS)
    unread.hear(MSG_CHANNEL_OPEN, *opening(KIND))
    assert unread.sent[-1] == REFUSED


async def test_a_port_that_nobody_waited_for_is_given_back(unread: Unread) -> None:
    """Whoever is cancelled while the host thinks about it leaves nothing there that listens."""
    forward = Forward(HOST, 0)
    unread.ask_for_port(forward)
    await unread.leave_port(forward)
    unread.hear(MSG_REQUEST_SUCCESS, 4000)
    assert unread.sent[-1] == message(cMSG_GLOBAL_REQUEST, "cancel-tcpip-forward", True, HOST, 4000).asbytes()


async def test_answers_belong_to_requests_in_their_order(unread: Unread) -> None:
    """What answers an earlier sign of life says nothing of a port; more answers than requests say nothing at all."""
    unread.hear(MSG_REQUEST_FAILURE)
    unread.ping()
    forward = Forward(HOST, 0)
    unread.ask_for_port(forward)
    unread.hear(MSG_REQUEST_FAILURE)
    assert forward.port == 0
    unread.hear(MSG_REQUEST_SUCCESS, 4000)
    unread.hear(MSG_REQUEST_SUCCESS, 4001)
    assert (forward.granted, forward.port) == (True, 4000)


async def test_a_host_may_write_an_address_in_its_own_way(unread: Unread) -> None:
    """Where we listen once at a port that is the one; where several addresses are listened at, the address counts."""
    forward = await unread.listens("localhost", 0, 4000)
    unread.hear(MSG_CHANNEL_OPEN, *opening(KIND, host="::1"))
    assert forward.has_waiting
    other = await unread.listens(HOST, 4000, 0)
    unread.hear(MSG_CHANNEL_OPEN, *opening(KIND, host="::1"))
    assert unread.sent[-1] == REFUSED
    unread.hear(MSG_CHANNEL_OPEN, *opening(KIND, host=HOST))
    assert other.has_waiting


async def test_data_on_a_channel_that_was_not_accepted_is_not_kept(unread: Unread) -> None:
    """A connection that waits costs a few numbers, whatever its host sends."""
    forward = await unread.listens(HOST, 0, 4000)
    unread.hear(MSG_CHANNEL_OPEN, *opening(KIND))
    unread.hear(MSG_CHANNEL_DATA, 1, "early")
    channel = unread.accept_at(forward)
    unread.hear(MSG_CHANNEL_DATA, channel.id, "now")
    assert channel.take() == (0, b"now")


@pytest.mark.parametrize("granted", [0, 70000])
async def test_a_port_that_is_none_is_no_port(unread: Unread, granted: int) -> None:
    """What a host says of its ports is looked at before anybody relies on it."""
    forward = await unread.listens(HOST, 0, granted)
    with pytest.raises(ConnectError, match=f"listens at port {granted}; expected a number from 1 to 65535"):
        await _check_place("i-1", FakeConnection.__new__(FakeConnection), forward)
