"""What hosts, daemons, servers and jobs can do to a manager that send without end: hold its event loop, or fill it.

Each case runs in a process of its own, and is hostile for a few seconds. `flood_loop_lag_ms` is the longest that
another task had to wait for its turn, `hostile_rss_mib` the most memory above what the process had before. Of a case
that is played several times, the least lag counts, since a busy machine only ever adds to it, and the most memory; of
all cases the worst, and the line's conditions have the figures of each. SSH is spoken with OpenSSH's own
server, whose `ForceCommand` is the flood, but for two cases that no OpenSSH server can be had to play: packets of a
byte, which the channel is fed directly, and a greeting without end. Who sends over other sockets is another process.
"""

import json
import logging
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingTCPServer, ThreadingUnixStreamServer
from time import perf_counter

sys.path.insert(0, str(Path(__file__).parents[1]))

import anyio
import paramiko
from _figures import report
from _needs import PROC, SSHD, run
from anyio import to_thread
from attrs import define, field, frozen
from paramiko import common

from fleeting import ConnectError, ConnectInfo, Connection, FleetingError, LoopClock, Settings
from fleeting.archives import ArchiveRefused, unpack
from fleeting.connectors.ssh import MemoryHostKeys, SshConnector, generate_key
from fleeting.connectors.ssh._channel import WINDOW, Channel, message
from fleeting_docker import DockerGroup, DockerGroupConfig
from fleeting_docker_engine import Engine, Listed
from fleeting_docker_engine._answers import MOST_VALUES
from taskscaler._observe import LeaseEvent
from taskscaler.batch._addresses import Addresses
from taskscaler.batch._log import JobLog
from taskscaler.observers.webhook import Webhook, WebhookConfig
from tests.fleeting.sshd import configured, sshd
from tests.fleeting_docker_engine.liars import LISTED

SECONDS = 2.0
"""How long a case is hostile, unless it is over before."""

ROUNDS = 3
"""How often each is played."""

LOOK_EVERY = 0.002
"""Seconds between two turns of the task that measures."""


@define
class Meter:
    """Watches the event loop and the process's memory while a case runs."""

    lag: float = field(default=0.0, init=False)
    """Seconds."""

    _before: int = field(default=0, init=False)

    @asynccontextmanager
    async def measuring(self) -> AsyncIterator[None]:
        """Measure while the body runs."""
        self._before = _forget_the_most()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._watch)
            yield
            tasks.cancel_scope.cancel()

    @property
    def growth(self) -> float:
        """MiB that the process has had at most above what it had before."""
        return (_status("VmHWM") - self._before) / 1024

    async def _watch(self) -> None:
        while True:
            due = perf_counter() + LOOK_EVERY
            await anyio.sleep(LOOK_EVERY)
            self.lag = max(self.lag, perf_counter() - due)


def _forget_the_most() -> int:
    """Have the kernel take what memory there is now for the most so far; returns it, in KiB."""
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def _status(name: str) -> int:
    """A line of what the kernel says of this process, in KiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


async def nothing(_: bytes) -> None:
    """Throw output away."""


# --- SSH ---------------------------------------------------------------------------------------------------

FLOOD = "exec cat /dev/zero"


@asynccontextmanager
async def forced(command: str) -> AsyncIterator[Connection]:
    """Be connected with a host that runs this, whatever it is asked to run."""
    with tempfile.TemporaryDirectory() as directory:
        script = anyio.Path(directory, "flood")
        await script.write_text(f"#!/bin/sh\n{command}\n")
        await script.chmod(0o755)
        settings = ["AllowStreamLocalForwarding no", f"ForceCommand {script}"]
        with sshd(Path(directory, "sshd"), *settings) as server:
            async with SshConnector(MemoryHostKeys()).dial(server.info, configured()) as connection:
                yield connection


async def for_a_while(act: Callable[[], Awaitable[object]]) -> None:
    """Do something again and again until the time is up, whatever becomes of it."""
    with anyio.move_on_after(SECONDS):
        while True:
            with suppress(FleetingError, anyio.EndOfStream):
                await act()


async def ssh_stderr_flood(meter: Meter) -> None:
    """A socket is opened through a command that says something else without end."""
    async with forced(f"{FLOOD} >&2") as connection, meter.measuring():
        await for_a_while(partial(connection.open_unix, "/run/docker.sock"))


async def ssh_channel_receive(meter: Meter) -> None:
    """It says that it is connected, and then fills its error output."""
    async with forced(f"echo fleeting-ready >&2; {FLOOD} >&2") as connection, meter.measuring():
        stream = await connection.open_unix("/run/docker.sock")
        await for_a_while(stream.receive)


async def ssh_pid_wait(meter: Meter) -> None:
    """A command is cancelled that has not told its process id, but prints without end."""
    async with forced(FLOOD) as connection, meter.measuring():
        with anyio.move_on_after(1):
            await connection.run("true", stdout=nothing, stderr=nothing)


async def ssh_job_output(meter: Meter) -> None:
    """A job prints without end, on both outputs, into a log that keeps 4 MiB of it."""
    with tempfile.NamedTemporaryFile() as file:
        async with (
            JobLog.open(Path(file.name), 4 << 20, Addresses()) as log,
            forced(f"cat /dev/zero >&2 & {FLOOD}") as connection,
            meter.measuring(),
        ):
            await for_a_while(partial(connection.run, "true", stdout=log.write, stderr=log.write))


class Carrier:
    """The connection of a channel that is fed directly."""

    def __init__(self) -> None:
        """Begin with no channels."""
        self.channels: dict[int, Channel] = {}

    def post(self, data: paramiko.Message) -> None:
        """Throw it away."""

    async def drained(self) -> None:
        """Nothing is left."""

    def wake_soon(self, wakeup: object) -> None:
        """Nobody waits."""


async def ssh_tiny_packets(meter: Meter) -> None:
    """A whole window of packets of a byte each, by turns on both outputs, that nobody takes."""
    channel = Channel(Carrier(), 1, "session")
    out, err = message(b"", b"x").asbytes(), message(b"", 1, b"x").asbytes()

    def feed() -> None:
        for _ in range(WINDOW // 2):
            channel.handle(common.MSG_CHANNEL_DATA, paramiko.Message(out))
            channel.handle(common.MSG_CHANNEL_EXTENDED_DATA, paramiko.Message(err))

    async with meter.measuring():
        await to_thread.run_sync(feed)


async def ssh_greeting(meter: Meter) -> None:
    """Who answers instead of a host sends a line without end."""
    with hostile(b"", bytes(1 << 16)) as port:
        key = generate_key().private
        info = ConnectInfo(id="i-1", internal_addr="127.0.0.1", port=port, user="nobody", key=key)
        async with meter.measuring():
            with suppress(ConnectError):
                async with SshConnector(MemoryHostKeys()).dial(info, configured(timeout=SECONDS)):
                    pass


# --- HTTP --------------------------------------------------------------------------------------------------


@contextmanager
def hostile(answer: bytes, more: bytes = b"", *, path: str = "") -> Iterator[int]:
    """Start a process that answers every request with this, and then with that for as long as it is received.

    Args:
        answer: Sent once; where it is empty, no request is waited for.
        more: Sent again and again, all of it one byte.
        path: Of the unix socket; empty: a TCP port of this machine, which is yielded.
    """
    with tempfile.NamedTemporaryFile() as file:
        file.write(answer)
        file.flush()
        command = [sys.executable, __file__, "--serve", file.name, more[:1].hex(), str(len(more)), path]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            try:
                assert process.stdout is not None  # noqa: S101  (for mypy)
                yield int(process.stdout.readline())
            finally:
                process.kill()


def serve(answer: str, byte: str, size: str, path: str) -> None:
    """Be that process."""
    head, more = Path(answer).read_bytes(), bytes.fromhex(byte) * int(size)

    class Flood(BaseRequestHandler):
        def handle(self) -> None:
            with suppress(OSError):
                while head and b"/_ping" in self.request.recv(1 << 16):
                    self.request.sendall(b"HTTP/1.1 200 OK\r\nApi-Version: 1.45\r\nContent-Length: 2\r\n\r\nOK")
                self.request.sendall(head)
                while more:
                    self.request.sendall(more)

    server = ThreadingUnixStreamServer(path, Flood) if path else ThreadingTCPServer(("127.0.0.1", 0), Flood)
    print(0 if path else server.socket.getsockname()[1], flush=True)
    server.serve_forever()


async def webhook_endless_answer(meter: Meter) -> None:
    """A webhook's server answers without end."""
    with hostile(b"HTTP/1.1 200 OK\r\n\r\n", bytes(1 << 16)) as port:
        async with Webhook(WebhookConfig(url=f"http://127.0.0.1:{port}/")) as hook, meter.measuring():
            with anyio.move_on_after(SECONDS):
                while True:
                    hook(LeaseEvent(at=1.0, key="job", pool="", instance="i-1", slot=0, what="acquired"))
                    await anyio.sleep(0.1)


@contextmanager
def daemon(answer: bytes, more: bytes = b"") -> Iterator[str]:
    """Run a daemon that answers so; yields its socket."""
    with tempfile.TemporaryDirectory() as directory, hostile(answer, more, path=f"{directory}/sock"):
        yield f"{directory}/sock"


HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 1600000000\r\n\r\n"


async def docker_key_file(meter: Meter) -> None:
    """A job in a docker instance has put 1.5 GB where its key was."""
    member = tarfile.TarInfo("user_key")
    member.size = 1_500_000_000
    with daemon(HEAD + member.tobuf(), bytes(1 << 16)) as path:

        async def read() -> None:
            async with Engine(partial(anyio.connect_unix, path)) as engine:
                assert await engine.read_file("c", "/etc/fleeting/user_key", limit=1 << 14) is None  # noqa: S101

        async with meter.measuring():
            await for_a_while(read)


async def docker_long_message(meter: Meter) -> None:
    """A daemon refuses with a message of any length."""
    head = b'HTTP/1.1 500 Oops\r\nContent-Length: 1600000000\r\n\r\n{"message": "'
    with daemon(head, b"x" * (1 << 16)) as path:
        group = DockerGroup(DockerGroupConfig(socket=path))
        async with meter.measuring():
            await for_a_while(partial(group.init, Settings(owner="me", clock=LoopClock())))


async def docker_many_values(meter: Meter) -> None:
    """It lists containers, of which one has as many labels as an answer may have values."""
    labels = {f"label-{number}": "" for number in range(MOST_VALUES - 100)}
    body = json.dumps([{**LISTED, "Labels": labels}]).encode()
    with daemon(f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body) as path:

        async def ask() -> None:
            async with Engine(partial(anyio.connect_unix, path)) as engine:
                await engine.ask_for(tuple[Listed, ...], "GET", "/containers/json")

        del labels, body
        async with meter.measuring():
            await for_a_while(ask)


# --- archives ----------------------------------------------------------------------------------------------


async def archive_big_name(meter: Meter) -> None:
    """An archive has a member whose name has 500 MB."""
    member = tarfile.TarInfo("././@LongLink")
    member.type, member.size = tarfile.GNUTYPE_LONGNAME, 500_000_000
    with tempfile.TemporaryDirectory() as directory:
        archive, target = anyio.Path(directory, "archive"), anyio.Path(directory, "target")
        await archive.write_bytes(member.tobuf(tarfile.GNU_FORMAT))
        os.truncate(archive, 512 + member.size + 1024)  # as sparse as it is long
        await target.mkdir()
        async with meter.measuring():
            with suppress(ArchiveRefused):
                await to_thread.run_sync(unpack, Path(archive), Path(target))


# --- all of it ---------------------------------------------------------------------------------------------

CASES: Mapping[str, Callable[[Meter], Awaitable[None]]] = {
    case.__name__: case
    for case in (
        ssh_stderr_flood,
        ssh_channel_receive,
        ssh_pid_wait,
        ssh_job_output,
        ssh_tiny_packets,
        ssh_greeting,
        webhook_endless_answer,
        docker_key_file,
        docker_long_message,
        docker_many_values,
        archive_big_name,
    )
}


@frozen
class Result:
    """What came of a case."""

    lag_ms: float
    growth_mib: float


def play(name: str) -> Result:
    """Play a case several times, in a process of its own each time."""
    results = []
    for _ in range(ROUNDS):
        done = subprocess.run([sys.executable, __file__, name], check=True, stdout=subprocess.PIPE)
        results.append(Result(*json.loads(done.stdout)))
    lag = min(result.lag_ms for result in results)
    return Result(lag, max(result.growth_mib for result in results))


async def case(name: str) -> None:
    """Be that process."""
    logging.disable(logging.CRITICAL)
    meter = Meter()
    await CASES[name](meter)
    print(json.dumps([meter.lag * 1e3, meter.growth]), flush=True)


def main() -> None:
    """Play all."""
    results = {name: play(name) for name in CASES}
    lags = {name: result.lag_ms for name, result in results.items()}
    growths = {name: result.growth_mib for name, result in results.items()}
    report("flood_loop_lag_ms", max(lags.values()), "ms", 100, conditions=_each(lags))
    report("hostile_rss_mib", max(growths.values()), "MiB", 64, conditions=_each(growths))


def _each(figures: Mapping[str, float]) -> str:
    return "the worst of " + ", ".join(f"{name} {figure:.3g}" for name, figure in figures.items())


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--serve", *arguments]:
            serve(*arguments)
        case [name]:
            anyio.run(case, name)
        case _:
            run(main, SSHD, PROC)
