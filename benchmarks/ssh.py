"""The SSH connector beside the OpenSSH client with its control master: same server, same run, by turns.

What both do is to bring a command's output into this process. The server is the one of the tests.
"""

import json
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from time import perf_counter, process_time

sys.path.insert(0, str(Path(__file__).parents[1]))

import anyio
from _figures import report
from _needs import NAMESPACES, SSH, SSHD, run
from attrs import evolve

from fleeting import ConnectInfo, Connection, Unreachable
from fleeting.connectors.ssh import MemoryHostKeys, SshConnector
from tests.fleeting.sshd import Server, configured, private, sshd

ROUNDS = 9
COMMANDS = 20
"""Commands or dials in a round, of which the middle one counts."""

SIZE = 100 << 20
CONNECTIONS = 1000
IDLE = 45.0
"""Seconds that idle connections are watched: each is pinged at least once in them."""

INTERVAL = 2.0
"""Seconds of silence before a ping; the third silence is the last."""

READ = 1 << 16


class Client:
    """The OpenSSH client."""

    def __init__(self, directory: Path, server: Server) -> None:
        """Write the files that it needs; nothing is the user's own."""
        key = private(directory / "user_key", server.user_key.private + "\n")
        known = private(directory / "known_hosts", f"[127.0.0.1]:{server.port} {server.host_key}\n")
        options = ["-F", "none", "-i", str(key), "-p", str(server.port), "-o", f"UserKnownHostsFile={known}"]
        self._fresh = ["ssh", *options, "-o", "LogLevel=ERROR"]
        self._shared = [*self._fresh, "-o", f"ControlPath={directory / 'control'}"]
        self._host = f"{server.info.user}@127.0.0.1"

    @contextmanager
    def master(self) -> Iterator[None]:
        """Keep a connection open for `run`."""
        subprocess.run([*self._shared, "-M", "-N", "-f", self._host], check=True)
        try:
            yield
        finally:
            subprocess.run([*self._shared, "-O", "exit", self._host], check=True, capture_output=True)

    def run(self, command: str) -> int:
        """Run a command on the open connection, and return how many bytes it wrote."""
        return _read([*self._shared, self._host, command])

    def dial(self) -> None:
        """Connect, and run a command."""
        _read([*self._fresh, self._host, "true"])


def _read(command: list[str]) -> int:
    size = 0
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None  # noqa: S101  (for the type checker)
        while data := os.read(process.stdout.fileno(), READ):
            size += len(data)
    assert process.returncode == 0  # noqa: S101  (else there is nothing to compare)
    return size


async def received(connection: Connection, command: str) -> int:
    """Run a command, and return how many bytes it wrote."""
    size = 0

    async def count(chunk: bytes) -> None:
        nonlocal size
        size += len(chunk)

    await connection.run(command, stdout=count, check=True)
    return size


async def seconds(action: Callable[[], Awaitable[object]], times: int) -> float:
    """The middle of several runs."""
    taken = []
    for _ in range(times):
        start = perf_counter()
        await action()
        taken.append(perf_counter() - start)
    return statistics.median(taken)


async def ratio(
    ours: Callable[[], Awaitable[object]], theirs: Callable[[], object], times: int
) -> tuple[float, float, float]:
    """Seconds of ours over theirs, by turns: the middle ratio, and the middle of each."""

    async def wrapped() -> None:
        theirs()

    pairs = [(await seconds(ours, times), await seconds(wrapped, times)) for _ in range(ROUNDS)]
    middle = statistics.median(one / other for one, other in pairs)
    return middle, *(statistics.median(column) for column in zip(*pairs, strict=True))


async def compare(directory: Path) -> None:
    """The three ratios."""
    with sshd(directory) as server:
        client, connector, number = Client(directory, server), SshConnector(MemoryHostKeys(), linger=0.01), 0
        async with connector.dial(server.info, configured()) as connection:
            with client.master():
                latency = await ratio(lambda: connection.run("true"), lambda: client.run("true"), COMMANDS)
                command = f"head -c {SIZE} /dev/zero"
                bulk = await ratio(lambda: received(connection, command), lambda: client.run(command), 1)

        async def dial() -> None:
            nonlocal number
            number += 1
            async with connector.dial(evolve(server.info, id=f"i-{number}"), configured()) as fresh:
                await fresh.run("true")

        dials = await ratio(dial, client.dial, COMMANDS // 4)
    report("ssh_exec_latency_ratio", latency[0], "ratio", 0.7)
    report("ssh_exec_ms", latency[1] * 1e3, "ms", None)
    report("ssh_exec_openssh_ms", latency[2] * 1e3, "ms", None)
    report("ssh_stdout_throughput_ratio", 1 / bulk[0], "ratio", 1.5)
    report("ssh_stdout_mib_per_s", SIZE / bulk[1] / (1 << 20), "MiB/s", None)
    report("ssh_dial_ratio", dials[0], "ratio", 0.5)
    report("ssh_dial_ms", dials[1] * 1e3, "ms", None)


async def idle(directory: Path) -> None:
    """What a thousand connections cost that do nothing, with the pings that are the default."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    connector, connected, all_connected = SshConnector(MemoryHostKeys()), 0, anyio.Event()
    with sshd(directory) as server:

        async def hold(info: ConnectInfo) -> None:
            nonlocal connected
            async with connector.dial(info, configured(timeout=300.0)):
                connected += 1
                if connected == CONNECTIONS:
                    all_connected.set()
                await anyio.sleep_forever()

        async with anyio.create_task_group() as tasks:
            for number in range(CONNECTIONS):
                tasks.start_soon(hold, evolve(server.info, id=f"i-{number}"))
            await all_connected.wait()
            await anyio.sleep(1)
            start, used = perf_counter(), process_time()
            await anyio.sleep(IDLE)
            share = (process_time() - used) / (perf_counter() - start)
            tasks.cancel_scope.cancel()
    report("ssh_idle_1000_cpu_pct", share * 100, "%", 3)


@asynccontextmanager
async def stopped(directory: Path) -> AsyncIterator[tuple[Connection, Server]]:
    """Connect to a server that will be stopped."""
    with sshd(directory) as server:
        async with SshConnector(MemoryHostKeys()).dial(server.info, configured(keepalive=INTERVAL)) as connection:
            await connection.run("true")
            yield connection, server


async def dead_peers(directory: Path) -> None:
    """How long a dead host goes unnoticed: stopped or swallowed, with a command that runs or is new."""
    taken = [await stop(directory, running=True), await stop(directory, running=False)]
    swallow = ["unshare", "-n", sys.executable, "-m", "tests.fleeting.black_hole", "asyncio", str(INTERVAL)]
    root = Path(__file__).parents[1]
    done = await anyio.run_process([*swallow, str(directory)], cwd=root)
    taken += json.loads(done.stdout).values()
    report("ssh_dead_peer_s", max(taken) if min(taken) > 0 else float("inf"), "s", 7)


async def stop(directory: Path, *, running: bool) -> float:
    """Stop the server's process; seconds until a command is given up."""
    start = 0.0
    async with stopped(directory) as (connection, server):

        async def begin(_: bytes = b"") -> None:
            nonlocal start
            server.signal(signal.SIGSTOP)
            start = perf_counter()

        if not running:
            await begin()
        with suppress(Unreachable):
            await connection.run("echo here; exec sleep 1000", stdout=begin if running else None)
            return -1.0
        return perf_counter() - start
    raise AssertionError


async def main() -> None:
    """Measure everything, each with a server of its own."""
    for measure in (compare, dead_peers, idle):
        with tempfile.TemporaryDirectory() as directory:
            await measure(Path(directory))


if __name__ == "__main__":
    run(partial(anyio.run, main), SSH, SSHD, NAMESPACES)
