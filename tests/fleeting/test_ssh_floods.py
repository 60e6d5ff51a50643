"""Hosts that send without end: whatever the `ssh` connector waits for, others run, and memory stays bounded."""

import re
import socket
import tracemalloc
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import paramiko
import pytest
from anyio.lowlevel import checkpoint
from attrs import define, field
from hypothesis import given
from hypothesis import strategies as st
from paramiko import common

from fleeting import CommandFailed, Completed, ConnectInfo, Unreachable
from fleeting._wording import ONE_LINE
from fleeting.connectors.ssh import MemoryHostKeys, SshConnector, generate_key
from fleeting.connectors.ssh._arrivals import CRUMBS, Arrivals
from fleeting.connectors.ssh._channel import CHUNK, LARGEST_PACKET, STDERR, STDOUT, WINDOW, Channel, message
from fleeting.connectors.ssh._command import PidReader
from fleeting.connectors.ssh._dial import LONGEST_AGENT_ANSWER, _Agent
from fleeting.connectors.ssh._run import Running, send
from fleeting.connectors.ssh._streams import (
    MOST_BEFORE_READY,
    READY,
    ChannelStream,
    NotConnected,
    until_ready,
)
from fleeting.connectors.ssh._terminal import ChannelTerminal
from fleeting.connectors.ssh._transport import MOST_HELD_BACK, SshTransport
from fleeting.connectors.ssh._transport_socket import GREETING, MOST_ANSWERS, TransportSocket
from fleeting.connectors.ssh._wakeup import Signal, Wakeup
from tests.fleeting.sshd import configured, dialled, sshd

TURNS = 20
"""So many turns another task must get during a flood."""

MOST_PER_TURN = 3
"""So often a loop may take something between two of those turns."""


class Carrier:
    """The connection of a channel: takes all."""

    def __init__(self) -> None:
        """Begin with no channels."""
        self.channels: dict[int, Channel] = {}

    def post(self, data: paramiko.Message) -> None:
        """Throw it away."""

    async def drained(self) -> None:
        """Nothing is left."""

    def wake_soon(self, wakeup: Wakeup) -> None:
        """Wake at once."""
        wakeup.wake()


@define(eq=False)
class Firehose(Channel):
    """A channel whose host always has more to say, and takes whatever is sent to it."""

    stream: int = field(default=STDERR, kw_only=True)
    taken: int = field(default=0, init=False)
    """How often something was taken, or put, since another task last ran."""

    @property
    def readable(self) -> bool:
        """Always."""
        return True

    @property
    def writable(self) -> bool:
        """Always."""
        return True

    def take(self) -> tuple[int, bytes]:
        """Give a line, as long as others get their turns."""
        self._count()
        return self.stream, b"noise\n"

    def put(self, data: memoryview) -> int:
        """Take one byte, as long as others get their turns."""
        self._count()
        return min(1, len(data))

    def _count(self) -> None:
        self.taken += 1
        assert self.taken <= MOST_PER_TURN, "nobody else has had a turn"


async def into_nothing(_: bytes) -> None:
    """A sink that never waits."""


async def _ask_nothing(*_: int) -> bool:
    raise AssertionError("no process id has come, and there is always more to read")


def _running(channel: Channel) -> Running:
    return Running(channel, _ask_nothing, _ask_nothing, PidReader("mark"))


async def _receive_for_ever(channel: Channel) -> None:
    terminal = ChannelTerminal(channel, lambda: Completed(exit_status=0))
    while await terminal.receive():
        pass


WAITS: dict[str, tuple[int, Callable[[Channel], Coroutine[Any, Any, object]]]] = {
    "a stream's next bytes": (STDERR, lambda channel: ChannelStream(channel).receive()),
    "a socket behind stdio": (STDERR, until_ready),
    "a process id": (STDOUT, lambda channel: _running(channel).end()),
    "a command's output": (STDOUT, lambda channel: _running(channel).attend(b"", None, into_nothing, into_nothing)),
    "a terminal's output": (STDOUT, _receive_for_ever),
    "room to send": (STDOUT, lambda channel: send(channel, bytes(1 << 16))),
}


@pytest.mark.anyio
@pytest.mark.parametrize("wait", WAITS)
async def test_others_run_while_a_host_floods(wait: str) -> None:
    """Every loop that takes what a host sends lets others run in each of its turns."""
    stream, waiting = WAITS[wait]
    channel = Firehose(Carrier(), 1, "session", stream=stream)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(waiting, channel, name=wait)
        for _ in range(TURNS):
            await checkpoint()
            channel.taken = 0
        tasks.cancel_scope.cancel()


@pytest.mark.anyio
async def test_a_host_that_talks_instead_of_connecting_is_given_up() -> None:
    """Neither a start-up file that prints without end, nor one that says why it ends, gets into an error whole."""
    channel = arriving([(STDERR, b"x" * (1 << 16))] * 20)
    with pytest.raises(NotConnected, match=f"more than {MOST_BEFORE_READY >> 20} MiB"):
        await until_ready(channel)
    channel = arriving([(STDERR, b"Welcome!\n\x1b[31m" + b"no" * 5000 + b"\xff\n")])
    channel.handle(common.MSG_CHANNEL_EOF, paramiko.Message())
    with pytest.raises(NotConnected) as refused:
        await until_ready(channel)
    assert re.fullmatch("[no]+…", str(refused.value))
    assert len(str(refused.value).encode()) <= ONE_LINE


@pytest.mark.anyio
@pytest.mark.parametrize("cut", range(len(READY) + 1))
async def test_what_a_socket_says_at_once_is_not_lost(cut: int) -> None:
    """It may overtake the word that the socket is connected, which may come in pieces."""
    parts = [(STDERR, b"Welcome!\n" + READY[:cut]), (STDOUT, b"220 "), (STDERR, READY[cut:]), (STDOUT, b"hello")]
    channel = arriving(parts)
    stream = ChannelStream(channel, await until_ready(channel))
    got = b""
    while len(got) < len(b"220 hello"):
        got += await stream.receive()
    assert got == b"220 hello"


def arriving(pieces: list[tuple[int, bytes]]) -> Channel:
    """Make a channel to which these pieces have come."""
    channel = Channel(Carrier(), 1, "session")
    channel.handle(common.MSG_CHANNEL_OPEN_SUCCESS, incoming(7, 1 << 20, 32768))
    for stream, data in pieces:
        if stream == STDERR:
            channel.handle(common.MSG_CHANNEL_EXTENDED_DATA, incoming(1, data))
        else:
            channel.handle(common.MSG_CHANNEL_DATA, incoming(data))
    return channel


def incoming(*fields: str | bytes | int) -> paramiko.Message:
    """Make what a host sends, behind the channel's number."""
    return paramiko.Message(message(b"", *fields).asbytes())


# --- what a channel holds --------------------------------------------------------------------------------

PIECES = st.lists(
    st.tuples(st.sampled_from([STDOUT, STDERR]), st.binary(max_size=9) | st.just(b"l" * (CRUMBS + 1))), max_size=40
)


@given(PIECES, st.lists(st.booleans(), max_size=80), st.integers(1, 3 * CRUMBS))
def test_pieces_come_out_as_they_came(pieces: list[tuple[int, bytes]], takes: list[bool], enough: int) -> None:
    """In order, each byte on its stream, whenever they are taken; runs of one stream at once, but not for ever."""
    arrivals, left, expected, got = Arrivals(), list(pieces), b"", b""
    for take in [*takes, *[False] * len(pieces)]:
        if take and arrivals:
            stream, data = arrivals.take(enough)
            assert data
            assert len(data) <= max(enough, 2 * CRUMBS) + WINDOW
            got += bytes((stream,)).join(bytes((byte,)) for byte in b"\0" + data)[1:]
        elif left:
            stream, data = left.pop(0)
            arrivals.put(stream, data)
            expected += bytes((stream,)).join(bytes((byte,)) for byte in b"\0" + data)[1:]
        assert arrivals.held * 2 == len(expected) - len(got)
    while arrivals:
        stream, data = arrivals.take(enough)
        got += bytes((stream,)).join(bytes((byte,)) for byte in b"\0" + data)[1:]
    assert got == expected


@pytest.mark.anyio
@pytest.mark.parametrize("size", [1, 10, CRUMBS, CRUMBS + 1])
def test_pieces_of_both_streams_by_turns_cost_a_few_bytes_each(size: int) -> None:
    """A host that sends two million packets of a byte each costs ten MiB, not 140."""
    arrivals, count = Arrivals(), (WINDOW >> 4) // size
    tracemalloc.start()
    for number in range(count):
        arrivals.put(number % 2, bytes(size))
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert held < 1.25 * count * (size + 4) + 120 * count * (size > CRUMBS) + 10_000


def test_a_take_is_bounded() -> None:
    """What has come in one run is not handed out in one go."""
    arrivals = Arrivals()
    for _ in range(WINDOW >> 15):
        arrivals.put(STDOUT, bytes(1 << 15))
    assert len(arrivals.take(CHUNK)[1]) == CHUNK


@pytest.mark.anyio
async def test_a_host_decides_neither_our_packets_nor_our_words() -> None:
    """It may take packets of any size, and name reasons and signals in any bytes and at any length."""
    channel = Channel(Carrier(), 1, "session")
    channel.handle(common.MSG_CHANNEL_OPEN_SUCCESS, incoming(7, 0xFFFFFFFF, 0xFFFFFFFF))
    assert channel.put(memoryview(bytes(1 << 20))) <= LARGEST_PACKET
    channel.handle(common.MSG_CHANNEL_REQUEST, incoming("exit-signal", False, b"\xff\n" * 9999, False, "", ""))
    assert re.fullmatch(r"SIG.{1,32}…", channel.exit_signal or "")
    refusing = Channel(Carrier(), 2, "session")
    refusing.handle(common.MSG_CHANNEL_OPEN_FAILURE, incoming(1, b"\xff\r\n" * 9999, ""))
    assert len(str(refusing.refused).encode()) <= ONE_LINE
    assert "\n" not in str(refusing.refused)
    channel.handle(common.MSG_CHANNEL_REQUEST, incoming(b"\xfe\xff", True))


def test_a_process_id_has_few_digits() -> None:
    """Python refuses to read a number of thousands of them."""
    reader = PidReader("mark")
    line = b"mark " + b"1" * 5000 + b"\n"
    assert (reader.feed(line) + reader.rest(), reader.pid) == (line, None)


# --- before and beside channels --------------------------------------------------------------------------


def test_a_greeting_has_an_end(socket_and_peer: tuple[TransportSocket, socket.socket]) -> None:
    """Whoever answers may not send lines of any length before the exchange of keys; after that, as much as it likes."""
    sock, theirs = socket_and_peer
    theirs.sendall(bytes(GREETING))
    for _ in range(GREETING >> 10):
        sock.recv(1 << 10)
    theirs.sendall(b"x")
    with pytest.raises(ConnectionAbortedError, match="the host sent more than 64 KiB, but no key"):
        sock.recv(1)
    sock.lift_allowance()
    theirs.sendall(bytes(GREETING))
    assert len(sock.recv(GREETING)) > 0


@pytest.mark.anyio
async def test_a_host_that_greets_without_end_is_hung_up_on() -> None:
    """Its line, which has no end, is not kept."""
    ours, theirs = socket.socketpair()
    transport = SshTransport(ours, linger=0.0)
    transport.start_client(event=Signal(transport.wakeup))  # type: ignore[arg-type]  # as good as an Event
    theirs.setblocking(False)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_talk, theirs)
        assert "the host sent more than 64 KiB, but no key" in await transport.wait_closed()
        tasks.cancel_scope.cancel()
    theirs.close()


async def _talk(sock: socket.socket) -> None:
    """Send for as long as somebody listens, a line that never ends."""
    with suppress(OSError):
        while True:
            await anyio.wait_writable(sock)
            sock.send(bytes(1 << 12))


def test_a_host_that_reads_no_answers_is_hung_up_on(socket_and_peer: tuple[TransportSocket, socket.socket]) -> None:
    """Whether it asks once or without end if we are there; what tasks send waits for it, and does not count."""
    sock, theirs = socket_and_peer
    told: list[str] = []
    sock.on_glut = told.append
    sock.send(bytes(8 << 20))  # a task's: the reading thread has not begun
    theirs.sendall(b"x")
    sock.recv(1)
    for _ in range(MOST_ANSWERS >> 10):
        sock.send(bytes(1 << 10))
    assert (told, sock._closed) == ([], False)
    sock.send(b"x")
    assert told == ["the host does not read the answers that it asks for"]
    assert sock.drained
    assert len(sock._unsent) <= 1


def test_answers_do_not_pile_up_during_an_exchange_of_keys() -> None:
    """A host that never ends the exchange cannot have us keep answers for later."""

    class Asked(SshTransport):
        """Its reading thread does nothing but answer."""

        answered = 0
        error: OSError | None = None

        def run(self) -> None:
            try:
                while self.answered <= MOST_HELD_BACK:
                    self.post(message(b"1"))
                    self.answered += 1
            except OSError as error:
                self.error = error

    async def make(sock: socket.socket) -> Asked:
        return Asked(sock, linger=0.0)

    ours, theirs = socket.socketpair()
    transport = anyio.run(make, ours)
    transport.start()
    transport.join()
    assert transport.answered == MOST_HELD_BACK
    assert "instead of exchanging keys" in str(transport.error)
    transport.transport_socket.release()
    theirs.close()


def test_an_agent_is_not_believed_to_have_any_number_of_keys() -> None:
    """Paramiko would wait for as much as it announces, and keep it."""
    ours, theirs = socket.socketpair()
    agent = _Agent.__new__(_Agent)
    agent._conn = ours  # type: ignore[attr-defined]
    with pytest.raises(paramiko.SSHException, match=f"answer of {LONGEST_AGENT_ANSWER + 1} bytes"):
        agent._read_all(LONGEST_AGENT_ANSWER + 1)
    theirs.sendall(b"yes")
    assert agent._read_all(3) == b"yes"
    ours.close()
    theirs.close()


# --- OpenSSH's own server ---------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_a_real_host_that_floods_is_given_up(tmp_path: Path) -> None:
    """Whatever is asked for, it answers with noise on stderr: a stream is refused, a command ends when we say so."""
    settings = ["AllowStreamLocalForwarding no", "ForceCommand exec yes noise >&2"]
    with sshd(tmp_path, *settings) as server:
        async with dialled(server.info) as connection:
            with pytest.raises(Unreachable, match="the host sent more than 1 MiB instead of connecting"):
                await connection.open_unix("/run/docker.sock")
            turns = 0
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_run, connection.run)
                for turns in range(200):  # noqa: B007  (counts)
                    await checkpoint()
                tasks.cancel_scope.cancel()
            assert turns == 199


async def _run(run: Callable[..., Awaitable[Completed]]) -> None:
    with suppress(CommandFailed):
        await run("true", stderr=into_nothing)


@pytest.mark.anyio
async def test_a_long_farewell_is_one_line() -> None:
    """What somebody says who speaks no SSH stands in the error, but not all of it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        port, key = server.getsockname()[1], generate_key().private
        info = ConnectInfo(id="i-1", internal_addr="127.0.0.1", port=port, user="nobody", key=key)

        async def greet() -> None:
            while True:
                await anyio.wait_readable(server)
                knock, _ = server.accept()
                knock.sendall(b"no\x1b[31m\xc3\xa9" * 5000 + b"\n" * 101)
                knock.close()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(greet)
            with pytest.raises(Unreachable) as error:
                async with SshConnector(MemoryHostKeys()).dial(info, configured(timeout=1.0)):
                    raise AssertionError("it let us in")
            tasks.cancel_scope.cancel()
    assert len(str(error.value).encode()) <= 2 * ONE_LINE
    assert "\x1b" not in str(error.value)
