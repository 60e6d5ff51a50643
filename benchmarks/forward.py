"""Ports of an instance that lead to us, beside a command's own channel: same server, same connection, by turns."""

import sys
import tempfile
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter

sys.path.insert(0, str(Path(__file__).parents[1]))

import anyio
from _figures import report
from _needs import SSHD, run

from fleeting import Connection
from fleeting.connectors import PortListener, listen_tcp
from fleeting.connectors.ssh import MemoryHostKeys, SshConnector
from tests.fleeting.sshd import configured, sshd

HOST = "127.0.0.1"
ROUNDS = 5
SIZE = 256 << 20
STREAMS = 200
_CHUNK = 1 << 18


async def to_us(connection: Connection, listener: PortListener) -> float:
    """How fast bytes come by the port, over how fast a command's output does: both from the same program."""
    write = f"head -c {SIZE} /dev/zero"
    ratios = []
    for _ in range(ROUNDS):
        begin = perf_counter()
        await connection.run(write, stdout=_ignore, check=True)
        bare = perf_counter() - begin
        ratios.append(bare / await _received(connection, listener, f"{write} > /dev/tcp/{HOST}/{listener.port}"))
    return median(ratios)


async def from_us(connection: Connection, listener: PortListener) -> float:
    """The same the other way round, beside a command's input."""
    ratios = []
    for _ in range(ROUNDS):
        begin = perf_counter()
        await connection.run("cat > /dev/null", stdin=_zeros(), check=True)
        bare = perf_counter() - begin
        ratios.append(bare / await _sent(connection, listener, f"cat < /dev/tcp/{HOST}/{listener.port} > /dev/null"))
    return median(ratios)


async def _received(connection: Connection, listener: PortListener, command: str) -> float:
    async with anyio.create_task_group() as tasks:
        begin = perf_counter()
        tasks.start_soon(partial(connection.run, ["bash", "-c", command], check=True))
        got = 0
        async with await listener.accept() as stream:
            async for chunk in stream:
                got += len(chunk)
        took = perf_counter() - begin
    assert got == SIZE  # noqa: S101  (else there is nothing to compare)
    return took


async def _sent(connection: Connection, listener: PortListener, command: str) -> float:
    begin = perf_counter()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(connection.run, ["bash", "-c", command], check=True))
        async with await listener.accept() as stream:
            async for chunk in _zeros():
                await stream.send(chunk)
            await stream.send_eof()
            async for _ in stream:
                pass
    return perf_counter() - begin


async def opening(listener: PortListener) -> float:
    """Milliseconds from a client's connect to its first byte here."""
    taken = []
    for _ in range(STREAMS):
        begin = perf_counter()
        async with await anyio.connect_tcp(HOST, listener.port) as client:
            await client.send(b".")
            async with await listener.accept() as stream:
                await stream.receive()
                taken.append(perf_counter() - begin)
    return median(taken) * 1e3


async def _zeros() -> AsyncIterator[bytes]:
    for _ in range(SIZE // _CHUNK):
        yield bytes(_CHUNK)


async def _ignore(_: bytes) -> None:
    pass


async def main() -> None:
    """Measure all of them."""
    conditions = f"{SIZE >> 20} MiB, loopback, OpenSSH's sshd, asyncio"
    with tempfile.TemporaryDirectory() as directory, sshd(Path(directory) / "sshd") as server:
        connector = SshConnector(MemoryHostKeys())
        async with connector.dial(server.info, configured()) as connection, listen_tcp(connection, HOST, 0) as listener:
            report("forward_stream_open_ms", await opening(listener), "ms", None, conditions="connect to first byte")
            up = await to_us(connection, listener)
            report("forward_throughput_ratio", up, "ratio", 0.7, conditions=f"from the instance; {conditions}")
            down = await from_us(connection, listener)
            report("forward_throughput_back_ratio", down, "ratio", 0.7, conditions=f"to the instance; {conditions}")


if __name__ == "__main__":
    run(partial(anyio.run, main), SSHD)
