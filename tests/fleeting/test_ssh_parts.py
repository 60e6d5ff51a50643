"""The parts of the `ssh` connector by themselves, and the private names of paramiko that it leans on."""

import base64
import errno
import hmac
import itertools
import logging
import os
import socket
import stat
import subprocess
import threading
import time
import tracemalloc
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FuturesTimeoutError
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path

import anyio
import paramiko
import pytest
from anyio import to_thread
from anyio.lowlevel import checkpoint
from hypothesis import given
from hypothesis import strategies as st
from paramiko import common
from paramiko.packet import Packetizer

from fleeting import ConnectError, ConnectorConfig
from fleeting.connectors.ssh import FileHostKeys, MemoryHostKeys, generate_key
from fleeting.connectors.ssh._channel import STDERR, STDOUT, WINDOW, Channel, NeverBegun, message
from fleeting.connectors.ssh._command import PidReader, compose, ending
from fleeting.connectors.ssh._host_keys import HostKeys, default_host_keys, fingerprint
from fleeting.connectors.ssh._known_hosts import known_keys
from fleeting.connectors.ssh._run import send
from fleeting.connectors.ssh._transport import SshTransport
from fleeting.connectors.ssh._transport_socket import TransportSocket
from fleeting.connectors.ssh._wakeup import Signal, Wakeup
from fleeting.plugins import structure
from tests.fleeting.sshd import dialled, sshd

# --- commands --------------------------------------------------------------------------------------------


@given(st.binary(), st.binary(), st.integers(1, 9_999_999_999), st.lists(st.integers(min_value=1, max_value=40)))
def test_the_process_id_is_found_however_it_arrives(before: bytes, after: bytes, pid: int, cuts: list[int]) -> None:
    """Whatever surrounds the line, and wherever it is cut, the rest comes out in order and complete."""
    reader = PidReader("mark")
    rest, out = before + b"mark %d\n" % pid + after, b""
    for cut in cuts:
        out += reader.feed(rest[:cut])
        rest = rest[cut:]
    out += reader.feed(rest) + reader.rest()
    assert (reader.pid, out) == (pid, before + after)


@given(st.lists(st.binary(), max_size=8))
def test_without_a_process_id_nothing_is_lost(chunks: list[bytes]) -> None:
    """What never tells its process id is passed on whole."""
    reader = PidReader("mark that nobody makes")
    out = b"".join(map(reader.feed, chunks)) + reader.rest()
    assert (reader.pid, out) == (None, b"".join(chunks))


SHELLS = [["dash"], ["bash", "--posix"], pytest.param(["busybox", "sh"], marks=pytest.mark.needs("busybox"))]

ARGUMENT = st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=20)


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
@given(st.lists(ARGUMENT, max_size=4), st.dictionaries(st.from_regex(r"[A-Z][A-Z0-9]{2,5}", fullmatch=True), ARGUMENT))
def test_any_shell_understands_what_is_sent(shell: Sequence[str], arguments: list[str], env: dict[str, str]) -> None:
    """Arguments and variables come out of a real shell as they went in; what is left is the command's input."""
    env = {f"T_{name}": value for name, value in env.items()}
    names = sorted(env)
    program = "".join(f'printf "%s\\0" "${name}"; ' for name in names) + 'for a; do printf "%s\\0" "$a"; done'
    line, first = compose(["sh", "-c", f"{program}; cat; set", "sh", *arguments], env=env, cwd="/", mark="mark")
    line = line.replace(b"/bin/sh", " ".join(shell).encode())
    done = subprocess.run([*shell, "-c", line], check=True, capture_output=True, input=first + b"its input\n")
    expected = [*(env[name] for name in names), *arguments]
    told = b"".join(value.encode() + b"\0" for value in expected)
    assert done.stdout.startswith(told + b"its input\n")
    assert b"_fleeting_" not in done.stdout.removeprefix(told)
    assert not any(value.encode() in line for value in env.values() if len(value) > 12)
    reader = PidReader("mark")
    assert reader.feed(done.stderr) == b""
    assert reader.pid is not None


def test_a_command_whose_environment_does_not_arrive_is_not_run() -> None:
    """The connection may die in the midst of it."""
    line, first = compose("echo run", env={"A": "a\nb"}, cwd=None, mark="")
    for cut in range(len(first)):
        done = subprocess.run(["/bin/sh", "-c", line], check=False, capture_output=True, input=first[:cut])
        assert (done.returncode, done.stdout) == (127, b"")


def test_an_environment_that_cannot_be_sent_is_refused() -> None:
    """With what to do, and without a value."""
    with pytest.raises(ConnectError, match=r"the command's environment has \d+ bytes, more than the limit of 120000"):
        compose("true", env={"A": "secret" * 20000}, cwd=None, mark="")
    with pytest.raises(ConnectError, match=r"^a command cannot contain NUL characters$"):
        compose("true", env={"A": "secret\0"}, cwd=None, mark="")


def test_ending_a_group_that_has_ended_is_quick_and_quiet() -> None:
    """A process id that is no longer there is no error."""
    over = subprocess.Popen(["/bin/true"])
    over.wait()
    done = subprocess.run(["/bin/sh", "-c", ending(over.pid)], check=True, capture_output=True)
    assert (done.stdout, done.stderr) == (b"", b"")


# --- host keys -------------------------------------------------------------------------------------------

A, B = "ssh-ed25519 AAAA", "ssh-rsa BBBB"


@pytest.mark.parametrize(
    ("line", "host", "port", "known"),
    [
        (f"host {A}", "host", 22, True),
        (f"HOST {A} comment", "Host", 22, True),
        (f"host {A}", "host", 2222, False),
        (f"[host]:2222 {A}", "host", 2222, True),
        (f"[host]:2222 {A}", "host", 22, False),
        (f"*.example,!bad.example {A}", "good.example", 22, True),
        (f"*.example,!bad.example {A}", "bad.example", 22, False),
        (f"10.0.?.1 {A}", "10.0.7.1", 22, True),
        (f"10.0.?.1 {A}", "10.0.77.1", 22, False),
        (f"# host {A}", "host", 22, False),
        (f"@cert-authority host {A}", "host", 22, False),
        ("host ssh-ed25519", "host", 22, False),
        (f"|1|###|=== {A}", "host", 22, False),
        (f"|2|AAAA|AAAA {A}", "host", 22, False),
        (f"h[o]st {A}", "host", 22, False),
    ],
)
def test_known_hosts_are_read_as_openssh_does(line: str, host: str, port: int, known: bool) -> None:  # noqa: FBT001  (an example's outcome)
    """Patterns, ports, negations, comments and what cannot be read."""
    found = known_keys(f"\n{line}\nother {B}\n", host, port)
    assert (found.trusted, found.revoked) == (frozenset({A} if known else ()), frozenset())


@given(st.binary(min_size=20, max_size=20), st.from_regex(r"[a-z0-9.]{1,20}", fullmatch=True), st.integers(1, 65535))
def test_a_hashed_name_is_found_and_only_that(salt: bytes, host: str, port: int) -> None:
    """Hashed entries are compared by hash, and say nothing about other hosts."""
    name = host if port == 22 else f"[{host}]:{port}"
    fields = [base64.b64encode(part).decode() for part in (salt, hmac.digest(salt, name.encode(), "sha1"))]
    text = f"|1|{'|'.join(fields)} {A}\n@revoked {name} {B}"
    assert known_keys(text, host, port).trusted == {A}
    assert known_keys(text, host, port).revoked == {B}
    assert known_keys(text, f"{host}x", port).trusted == set()


@pytest.mark.anyio
@pytest.mark.parametrize("kind", ["memory", "file"])
async def test_the_first_pin_counts(tmp_path: Path, kind: str) -> None:
    """Whoever pins second gets what the first has pinned; ids may be anything."""
    store: HostKeys = MemoryHostKeys() if kind == "memory" else FileHostKeys(tmp_path / "deep" / "pins")
    for instance in ("i-1", "../../etc", ".", "x" * 400, "ünïcode/ with space"):
        assert await store.get(instance) is None
        assert await store.pin(instance, A) == A
        assert await store.pin(instance, B) == A
        assert await store.get(instance) == A


@pytest.mark.anyio
async def test_pins_are_private_and_survive_a_race(tmp_path: Path) -> None:
    """Only we can read the files; of many who pin at once one wins, and all learn who."""
    directory = tmp_path / "pins"
    won: list[str] = []

    async def pin(number: int) -> None:
        won.append(await FileHostKeys(directory).pin("i-1", f"ssh-rsa {number}"))

    async with anyio.create_task_group() as tasks:
        for number in range(20):
            tasks.start_soon(pin, number)
    assert len(set(won)) == 1
    assert won[0] == await FileHostKeys(directory).get("i-1")
    assert len(list(directory.glob("*.key"))) == 1
    assert {stat.S_IMODE(each.stat().st_mode) for each in directory.iterdir()} == {0o600}
    assert not list(directory.glob("*.draft"))
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700


@pytest.mark.anyio
async def test_pins_that_cannot_be_kept_are_an_error(tmp_path: Path) -> None:
    """A first-seen key that cannot be remembered is worth nothing."""
    (tmp_path / "file").touch()
    with pytest.raises(ConnectError, match=r"cannot be pinned in .*: (Not a directory|File exists)"):
        await FileHostKeys(tmp_path / "file").pin("i-1", A)
    (tmp_path / "i-1.key").mkdir()
    with pytest.raises(ConnectError, match="cannot be read"):
        await FileHostKeys(tmp_path).get("i-1")
    (tmp_path / "i-2.key").touch()
    with pytest.raises(ConnectError, match="is empty; "):
        await FileHostKeys(tmp_path).get("i-2")
    with pytest.raises(ConnectError, match="is empty; "):
        await FileHostKeys(tmp_path).pin("i-2", A)


@pytest.mark.anyio
async def test_a_pin_that_cannot_be_linked_leaves_no_draft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not every file system has hard links."""

    def link(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(ConnectError, match=r"cannot be pinned in .*: Operation not permitted"):
        await FileHostKeys(tmp_path).pin("i-1", A)
    assert names(tmp_path) == set()


def names(directory: Path) -> set[str]:
    """What is in a directory."""
    return {file.name for file in directory.iterdir()}


def make_older(directory: Path, seconds: float) -> None:
    """Let time pass for what is in a directory."""
    for file in directory.iterdir():
        times = file.stat()
        os.utime(file, (times.st_atime - seconds, times.st_mtime - seconds))


@pytest.mark.anyio
async def test_pins_that_nobody_looks_at_are_let_go_of(tmp_path: Path) -> None:
    """What was dialled lately stays, and so does all until the next look, a day later; other files are not ours."""
    pins = FileHostKeys(tmp_path)

    async def left_after(days: float) -> set[str]:
        """Let time pass and an instance be pinned."""
        make_older(tmp_path, days * 86400.0)
        assert await pins.get("used") == A
        await pins.pin(f"new-{days}", A)
        return {name for name in names(tmp_path) if not name.startswith((".swept", "new"))}

    await pins.pin("used", A)
    await pins.pin("gone", A)
    await pins.pin("@a fixed host", A)
    (tmp_path / ".killed.draft").touch()
    (tmp_path / "notes.txt").touch()
    assert len(await left_after(89.0)) == 5
    assert len(await left_after(0.9)) == 5
    assert len(await left_after(0.09)) == 5
    assert await left_after(0.02) == {"used.key", "notes.txt", "%40a%20fixed%20host.key"}


@pytest.mark.parametrize("key", ["ssh-ed25519 AAA", "ssh-ed25519 ü", "ssh-rsa !!"])
def test_a_damaged_key_has_a_name_too(key: str) -> None:
    """It stands in a file or comes from a group, and an error must be able to tell it."""
    assert fingerprint(key) == f"{key.partition(' ')[0]} that is not base64"


def test_pins_are_kept_in_the_users_state_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The XDG specification decides where."""
    monkeypatch.setenv("XDG_STATE_HOME", "/somewhere")
    assert default_host_keys().directory == Path("/somewhere/fleeting/host_keys")
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    assert default_host_keys().directory == Path("~/.local/state/fleeting/host_keys").expanduser()


def test_the_settings_of_our_own_are_read_like_gitlabs() -> None:
    """They are keys of ``connector_config``, with limits that make sense."""
    config = structure(
        {"keepalive": "2s", "keepalive_misses": 2, "known_hosts": "f", "use_agent": True}, ConnectorConfig
    )
    assert (config.keepalive, config.keepalive_misses, config.known_hosts, config.use_agent) == (2.0, 2, "f", True)
    with pytest.raises(ValueError, match="keepalive_misses"):
        ConnectorConfig(keepalive_misses=1)


# --- threads and the event loop --------------------------------------------------------------------------


@pytest.mark.anyio
async def test_a_wakeup_wakes_from_any_thread() -> None:
    """Nothing that happened before a wakeup is missed, however fast they follow on each other."""
    wakeup, count = Wakeup(), 0

    def reached(expected: int) -> bool:
        return count == expected

    def wake() -> None:
        nonlocal count
        for _ in range(1000):
            count += 1
            wakeup.wake()

    async with anyio.create_task_group() as tasks:
        for expected in (1000, 2000):
            tasks.start_soon(to_thread.run_sync, wake)
            await wakeup.wait_for(partial(reached, expected))


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_wakeup_outlives_its_loop(backend: str) -> None:
    """A thread that wakes after the loop has ended does no harm."""

    async def make() -> Wakeup:
        return Wakeup()

    wakeup = anyio.run(make, backend=backend)
    wakeup.wake()
    Signal(wakeup).set()


def test_the_socket_takes_all_and_blocks_nobody(socket_and_peer: tuple[TransportSocket, socket.socket]) -> None:
    """What the kernel does not take is kept, and leaves in order as soon as it can."""
    sock, other = socket_and_peer
    data = os.urandom(4 << 20)
    assert sock.send(data) == len(data)
    assert not sock.drained
    got = bytearray()
    while len(got) < len(data):
        got += other.recv(1 << 20)
        sock.flush()
    assert got == data
    assert sock.drained


def test_the_socket_hands_out_what_is_asked_for(socket_and_peer: tuple[TransportSocket, socket.socket]) -> None:
    """However little is asked for at a time, nothing is lost, and the end is an end."""
    sock, other = socket_and_peer
    other.sendall(b"abcdefgh")
    assert [sock.recv(3), sock.recv(3), sock.recv(3)] == [b"abc", b"def", b"gh"]
    other.close()
    assert sock.recv(3) == b""


def test_the_socket_counts_silences(socket_and_peer: tuple[TransportSocket, socket.socket]) -> None:
    """Each time that nothing came it says how often that was, until something comes."""
    sock, other = socket_and_peer
    heard: list[int] = []
    sock.patience, sock.on_silence = (lambda: 0.0), heard.append
    for _ in range(3):
        with suppress(TimeoutError):
            sock.recv(1)
    other.sendall(b"x")
    assert sock.recv(1) == b"x"
    with suppress(TimeoutError):
        sock.recv(1)
    assert heard == [1, 2, 3, 1]


@pytest.mark.anyio
async def test_a_packet_is_not_believed_to_be_of_any_length() -> None:
    """Whoever answers, before it is known who that is, could have us keep gigabytes."""
    ours, theirs = socket.socketpair()
    transport = SshTransport(ours, linger=0.0)
    theirs.sendall(b"SSH-2.0-test\r\n" + (0x7FFFFFFC).to_bytes(4, "big") + bytes(4))
    transport.start_client(event=Signal(transport.wakeup))  # type: ignore[arg-type]  # as good as an Event
    assert await transport.wait_closed() == f"the host announced a packet of {0x7FFFFFFC - 4} bytes"
    theirs.close()


class Wire:
    """The carrier of a channel under test: keeps what is posted."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.channels: dict[int, Channel] = {}
        self.posted: list[paramiko.Message] = []

    def post(self, data: paramiko.Message) -> None:
        """Keep it."""
        self.posted.append(data)

    async def drained(self) -> None:
        """All is kept."""

    def wake_soon(self, wakeup: Wakeup) -> None:
        """Wake at once."""
        wakeup.wake()

    def kinds(self) -> list[int]:
        """What kinds of messages were posted."""
        return [data.asbytes()[0] for data in self.posted]


def opened(room: int = 1 << 20, packet: int = 32768) -> tuple[Wire, Channel]:
    """Make a channel that its host has opened, with so much room and packets of at most so many bytes."""
    wire = Wire()
    channel = Channel(wire, 1, "session")
    wire.channels[1] = channel
    channel.handle(common.MSG_CHANNEL_OPEN_SUCCESS, incoming(7, room, packet))
    return wire, channel


def incoming(*fields: str | bytes | int) -> paramiko.Message:
    """Make what a host sends, behind the channel's number."""
    return paramiko.Message(message(b"", *fields).asbytes())


@pytest.mark.anyio
async def test_a_channel_answers_who_asks_whether_it_is_there() -> None:
    """A server with ClientAliveInterval would hang up on one who does not."""
    wire, channel = opened()
    channel.handle(common.MSG_CHANNEL_REQUEST, incoming("keepalive@openssh.com", True))
    assert wire.kinds() == [common.MSG_CHANNEL_FAILURE]


@pytest.mark.anyio
async def test_a_channel_holds_a_window_and_no_more() -> None:
    """A host that sends more than it may is hung up on; one that waits is told when there is room."""
    wire, channel = opened()
    for _ in range(WINDOW >> 15):
        channel.handle(common.MSG_CHANNEL_DATA, incoming(bytes(1 << 15)))
    with pytest.raises(paramiko.SSHException, match="more data than allowed"):
        channel.handle(common.MSG_CHANNEL_DATA, incoming(b"x"))
    assert wire.posted == []
    taken = 0
    while channel.readable and (received := channel.take()):
        taken += len(received[1])
    assert taken == WINDOW
    assert set(wire.kinds()) == {common.MSG_CHANNEL_WINDOW_ADJUST}


@pytest.mark.anyio
@pytest.mark.parametrize("piece", [b"", b"x", b"ten bytes."])
async def test_what_a_channel_holds_costs_no_more_than_the_window(piece: bytes) -> None:
    """However small the pieces in which it comes; and all of it comes out, in order."""
    _, channel = opened()
    count = 20_000
    tracemalloc.start()
    for _ in range(count):
        channel.handle(common.MSG_CHANNEL_DATA, incoming(piece))
    channel.handle(common.MSG_CHANNEL_EXTENDED_DATA, incoming(1, b"err"))
    channel.handle(common.MSG_CHANNEL_DATA, incoming(b"end"))
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert held < 2 * count * len(piece) + 10_000
    got: list[tuple[int, bytes]] = []
    while received := channel.take():
        got.append(received)
    assert b"".join(data for stream, data in got if stream == STDOUT) == piece * count + b"end"
    assert got[-2:] == [(STDERR, b"err"), (STDOUT, b"end")]


@pytest.mark.anyio
async def test_a_host_that_takes_nothing_is_hung_up_on() -> None:
    """Packets without room for data: whoever sends would try for ever."""
    with pytest.raises(paramiko.SSHException, match="accepts no data"):
        opened(packet=64)


@pytest.mark.anyio
async def test_who_sends_to_a_host_that_takes_all_lets_others_run() -> None:
    """Nothing has to be waited for, yet nobody else is kept waiting."""
    wire, channel = opened(room=1 << 31, packet=1024)
    done = False

    async def feed() -> None:
        nonlocal done
        await send(channel, bytes(1 << 20))
        done = True

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(feed)
        while not wire.posted:
            await checkpoint()
        assert not done


CHANGES: dict[str, Callable[[Channel], object]] = {
    "data": lambda channel: channel.put(memoryview(b"x")),
    "eof": Channel.put_eof,
    "request": lambda channel: channel.request("exec", b"true"),
    "notice": lambda channel: channel.notify("window-change", 80, 25, 0, 0),
    "room": lambda channel: [channel.take() for _ in range(3)],
    "close": Channel.close,
}


@pytest.mark.anyio
@pytest.mark.parametrize("change", CHANGES)
async def test_nothing_is_said_about_a_channel_after_it_was_closed(change: str) -> None:
    """Also if the host closes it just when something is about to be sent: sshd hangs up on who does that."""
    wire, channel = opened()
    for _ in range(WINDOW >> 15):
        channel.handle(common.MSG_CHANNEL_DATA, incoming(bytes(1 << 15)))
    with ThreadPoolExecutor() as reading:
        keep = wire.post

        def post(data: paramiko.Message) -> None:
            wire.post = keep  # type: ignore[method-assign]
            closing = reading.submit(channel.handle, common.MSG_CHANNEL_CLOSE, incoming())
            with suppress(FuturesTimeoutError):  # it has to wait for us
                closing.result(0.05)
            keep(data)

        wire.post = post  # type: ignore[method-assign]
        CHANGES[change](channel)
    with suppress(BrokenPipeError):
        for again in CHANGES.values():
            again(channel)
    assert wire.kinds().index(common.MSG_CHANNEL_CLOSE) == len(wire.posted) - 1


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("said", "never"),
    [
        ([], True),
        ([(common.MSG_CHANNEL_REQUEST, "keepalive@openssh.com", True)], True),
        ([(common.MSG_CHANNEL_SUCCESS,)], False),
        ([(common.MSG_CHANNEL_FAILURE,)], False),
        ([(common.MSG_CHANNEL_DATA, b"x")], False),
        ([(common.MSG_CHANNEL_REQUEST, "exit-status", False, 0)], False),
    ],
)
async def test_a_command_that_may_have_begun_is_not_taken_for_one_that_never_did(
    said: Sequence[tuple[int, *tuple[str | bytes | int, ...]]],
    never: bool,  # noqa: FBT001  (an example's outcome)
) -> None:
    """It would run twice: only a host that closes an idle channel before it says anything has begun nothing."""
    for in_advance, ends in itertools.product((True, False), (Channel.mark_broken, closed_by_host)):
        _, channel = opened()
        channel.in_advance = in_advance
        channel.request("exec", b"true")
        for kind, *fields in said:
            channel.handle(kind, incoming(*fields))
        channel.check_begun()
        ends(channel)
        expected = pytest.raises(NeverBegun) if never and in_advance and not channel.broken else nullcontext()
        with expected:
            channel.check_begun()


def closed_by_host(channel: Channel) -> None:
    """Let the host close it."""
    channel.handle(common.MSG_CHANNEL_CLOSE, incoming())


@pytest.mark.anyio
async def test_a_channel_that_nobody_waited_for_is_closed() -> None:
    """Who gave up before the host answered leaves no session behind."""
    wire = Wire()
    channel = Channel(wire, 1, "session")
    channel.close()
    channel.handle(common.MSG_CHANNEL_OPEN_SUCCESS, incoming(7, 1 << 20, 32768))
    channel.handle(common.MSG_CHANNEL_CLOSE, incoming())
    assert wire.kinds() == [common.MSG_CHANNEL_CLOSE]


# --- what we use of paramiko -----------------------------------------------------------------------------


def main_of(connection: object) -> SshTransport:
    """The transport under a connection."""
    transport: SshTransport = connection._shared.main  # type: ignore[attr-defined]
    return transport


def test_handler_table_has_every_message_of_ours() -> None:
    """`_handler_table`: an entry there is called for its message before paramiko's own channels are looked at."""
    ours, theirs = socket.socketpair()
    plain = paramiko.Transport(ours)
    assert plain._handler_table[common.MSG_NEWKEYS] == plain._parse_newkeys  # type: ignore[attr-defined]
    assert common.MSG_CHANNEL_DATA not in plain._handler_table  # type: ignore[attr-defined]
    assert common.MSG_CHANNEL_DATA in plain._channel_handler_table  # type: ignore[attr-defined]
    ours.close()
    theirs.close()


@pytest.mark.anyio
async def test_log_is_what_paramiko_logs_by(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """`_log`: nothing of paramiko's comes out above the level of debugging, not even when a connection breaks."""
    with caplog.at_level(logging.DEBUG), sshd(tmp_path) as server:
        async with dialled(server.info) as connection:
            await connection.run("true")
            server.signal(9)
            await connection.wait_closed()
    loud = [record for record in caplog.records if record.levelno > logging.DEBUG and "ssh" in record.name]
    assert loud == []
    assert any("Switch to new keys" in getattr(record, "said", "") for record in caplog.records)


@pytest.mark.skipif(not hasattr(socket, "TCP_QUICKACK"), reason="this system acknowledges as it likes")
def test_what_comes_is_acknowledged_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long after connecting too: sshd holds the next small packet back until then where only tunnels are used."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
    sock = TransportSocket(ours)
    start = time.monotonic()
    monkeypatch.setattr("fleeting.connectors.ssh._transport_socket.monotonic", lambda: start + 1000)
    with theirs:
        for _ in range(20):  # the kernel takes it for a conversation, in which answers acknowledge
            theirs.sendall(b"x")
            assert sock.recv(1) == b"x"
            assert ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK)
            sock.send(b"q")
            assert theirs.recv(1) == b"q"
    sock.release()


def test_closed_is_what_paramiko_asks_its_socket_for() -> None:
    """`_closed`: paramiko's `stop_thread` reads it from the socket; its socket has it."""
    ours, theirs = socket.socketpair()
    sock = TransportSocket(ours)
    assert not sock._closed
    sock.close()
    assert sock._closed
    assert "_closed" in paramiko.Transport.stop_thread.__code__.co_names
    sock.release()
    theirs.close()


@pytest.mark.anyio
async def test_keys_are_exchanged_anew_while_data_flows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither side's data suffers when both send as fast as they can."""
    monkeypatch.setattr(Packetizer, "REKEY_BYTES", 1 << 20)
    exchanges = 0
    plain = SshTransport._on_new_keys

    def count(transport: SshTransport, data: paramiko.Message) -> None:
        nonlocal exchanges
        exchanges += 1
        plain(transport, data)

    monkeypatch.setattr(SshTransport, "_on_new_keys", count)
    data = os.urandom(12 << 20)
    with sshd(tmp_path) as server:
        async with dialled(server.info) as connection:
            assert (await connection.run("cat", stdin=data)).stdout == data
    assert exchanges > 5


@pytest.mark.anyio
async def test_what_is_posted_during_an_exchange_of_keys_is_held_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """`clear_to_send`, `MSG_NEWKEYS`: nobody is blocked, and all of it leaves in order when the exchange is over."""
    ours, theirs = socket.socketpair()
    transport = SshTransport(ours, linger=0.0)
    transport._accept_new_keys = lambda _: transport.clear_to_send.set()
    sent: list[bytes] = []
    monkeypatch.setattr(transport.packetizer, "send_message", lambda data: sent.append(data.asbytes()))
    transport.post(message(b"1"))
    transport.post(message(b"2"))
    assert sent == []
    transport._on_new_keys(paramiko.Message())
    transport.post(message(b"3"))
    assert sent == [b"1", b"2", b"3"]
    transport.transport_socket.release()
    theirs.close()


@pytest.mark.anyio
async def test_no_timer_of_paramikos_is_left() -> None:
    """`complete_handshake`: a handshake that failed leaves no thread that would keep the process alive."""
    before = {thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)}
    with socket.create_server(("127.0.0.1", 0)) as server:

        def hang_up() -> None:
            knock, _ = server.accept()
            knock.sendall(b"SSH-2.0-test\r\n")
            knock.close()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(to_thread.run_sync, hang_up)
            sock = socket.create_connection(server.getsockname())
            transport = SshTransport(sock, linger=0.0)
            transport.start_client(event=Signal(transport.wakeup))  # type: ignore[arg-type]  # as good as an Event
            await transport.wait_closed()
        await to_thread.run_sync(transport.join)
    left = {thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)} - before
    assert all(timer.finished.is_set() for timer in left)  # its thread may still be on its way out


@pytest.mark.anyio
async def test_a_connection_uses_what_is_fast(tmp_path: Path) -> None:
    """GCM is agreed upon though paramiko lists it last, and small packets are not held back."""
    with sshd(tmp_path) as server:
        async with dialled(server.info) as connection:
            transport = main_of(connection)
            assert transport.local_cipher == "aes128-gcm@openssh.com"
            assert transport.transport_socket._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.anyio
async def test_there_is_one_thread_for_a_connection_and_none_for_a_command(tmp_path: Path) -> None:
    """Twenty commands that wait cost no thread."""
    with sshd(tmp_path) as server:
        async with dialled(server.info) as connection, anyio.create_task_group() as tasks:
            await connection.run("true")
            before = threading.active_count()
            begun = 0
            all_begun = anyio.Event()

            async def count(_: bytes) -> None:
                nonlocal begun
                begun += 1
                if begun == 20:
                    all_begun.set()

            async def run() -> None:
                await connection.run("echo here; sleep 1000", stdout=count)

            for _ in range(20):
                tasks.start_soon(run)
            await all_begun.wait()
            assert threading.active_count() <= before
            tasks.cancel_scope.cancel()


def test_the_version_that_all_this_is_true_of() -> None:
    """Another major version of paramiko may have changed any of it."""
    assert paramiko.__version__.split(".")[0] == "5"
    assert generate_key().public.startswith("ssh-ed25519 ")
