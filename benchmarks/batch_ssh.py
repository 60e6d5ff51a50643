"""Small jobs over SSH: how many round trips each costs beyond its own time, on a connection that takes its time.

A relay between the connector and OpenSSH's server lets all that passes wait, each way. The jobs follow each other in
one slot, so what they take longer than through a relay that does not is what they wait for the network.
"""

import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parents[1]))

import anyio
from _batches import run_jobs
from _figures import report
from _needs import SSHD, run
from anyio.abc import ByteStream, SocketAttribute
from attrs import evolve

from fleeting import ConnectInfo, Connection, ConnectorConfig
from fleeting.connectors.ssh import MemoryHostKeys, SshConnector
from fleeting.testing import FakeCloud, FakeGroup
from taskscaler import Policy, Pool, Taskscaler
from tests.fleeting.sshd import sshd

JOBS = 20
DELAY = 0.05
"""Seconds that are added to each round trip, half of them each way."""

MOST_HELD = 1 << 16
"""Pieces that are under way at once; what is sent fits in many times over."""


@asynccontextmanager
async def relay(port: int, delay: float) -> AsyncIterator[int]:
    """Pass on what comes to a port to another one, both ways, each piece so many seconds later; yields the port."""

    async def serve(near: ByteStream) -> None:
        async with near:
            with suppress(OSError):  # the server is about to start; the connector tries again
                async with await anyio.connect_tcp("127.0.0.1", port) as far, anyio.create_task_group() as ways:
                    ways.start_soon(_delayed, near, far, delay)
                    ways.start_soon(_delayed, far, near, delay)

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, serve)
        yield listener.extra(SocketAttribute.local_port)
        tasks.cancel_scope.cancel()


async def _delayed(source: ByteStream, target: ByteStream, delay: float) -> None:
    pieces, arrivals = anyio.create_memory_object_stream[tuple[float, bytes]](MOST_HELD)

    async def send() -> None:
        async for due, piece in arrivals:
            await anyio.sleep_until(due)
            await target.send(piece)
        await target.send_eof()

    async with anyio.create_task_group() as tasks, arrivals:
        tasks.start_soon(send)
        async with pieces:
            async for piece in source:
                await pieces.send((anyio.current_time() + delay, piece))


async def seconds_per_job(directory: Path, info: ConnectInfo, delay: float) -> float:
    """Run jobs on a host, one after the other, over a connection that is there."""
    connector = SshConnector(MemoryHostKeys())
    async with relay(info.port or 0, delay) as port:
        reached = evolve(info, port=port, id=f"at-{port}")

        def dial(_: ConnectInfo, config: ConnectorConfig) -> AbstractAsyncContextManager[Connection]:
            return connector.dial(reached, config)

        pool = Pool(FakeGroup(FakeCloud()), dial=dial, max_instances=1)
        async with Taskscaler(pool, policies=[Policy(idle_count=1, idle_time=3600)]) as scaler:
            await run_jobs(scaler, directory / "first", 1)
            return (await run_jobs(scaler, directory / "results", JOBS)).seconds / JOBS


async def main() -> None:
    """Compare both."""
    with TemporaryDirectory() as name, sshd(Path(name, "sshd")) as server:
        quick, slow = Path(name, "quick"), Path(name, "slow")
        for directory in (quick, slow):
            directory.mkdir()
        own = await seconds_per_job(quick, server.info, 0.0)
        waiting = await seconds_per_job(slow, server.info, DELAY / 2) - own
    report("ssh_batch_round_trips_per_job", waiting / DELAY, "round trips", 3, conditions=f"{DELAY:g} s each")


if __name__ == "__main__":
    run(partial(anyio.run, main), SSHD)
