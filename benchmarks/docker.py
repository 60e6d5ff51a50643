"""Jobs in containers: what the tunnel costs them, how many a second one daemon starts, and what fifty that stream need.

Each figure is taken beside the same client on the daemon's own socket, by turns: what the daemon takes, it takes for
both. The daemon is the one of the tests.
"""

import resource
import statistics
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import anyio
from _figures import report
from _needs import DOCKER, PROC, SSHD, run
from attrs import frozen

from executor_docker import DockerConfig, DockerExecutor
from executor_docker._owner import Owner
from fleeting import Connection
from fleeting.connectors.ssh import MemoryHostKeys, SshConnector
from taskscaler.executors import JobSpec, Verdict
from tests.fleeting.sshd import Server, configured, sshd
from tests.fleeting_docker_engine.daemons import IMAGE, Daemon, daemon

JOBS = 15
"""Pairs of jobs, one through the tunnel and one without; the middle ratio counts."""

AT_ONCE = 16
MANY = 64
STREAMS = 50
PAGE = resource.getpagesize()
STREAMED = 4 << 20
"""Bytes that each of the jobs prints that stream at the same time."""


class Here:
    """A connection to this machine, without any tunnel."""

    async def open_unix(self, path: str) -> anyio.abc.ByteStream:
        """Connect to a socket."""
        return await anyio.connect_unix(path)


@frozen
class Slot:
    """A lease, as far as an executor sees it."""

    instance: str
    slot: int
    dial: Callable[[], AbstractAsyncContextManager[Connection]]


@asynccontextmanager
async def here() -> AsyncIterator[Connection]:
    """Be connected without SSH."""
    connection: Any = Here()  # all that the executor asks of it
    yield connection


async def run_job(executor: DockerExecutor, slot: Slot, script: str = "true") -> int:
    """Run a job; returns how many bytes it has printed."""
    size = 0

    async def count(chunk: bytes) -> None:
        nonlocal size
        size += len(chunk)

    job = JobSpec(name=f"job-{slot.slot}", script=script)
    outcome = await executor.run(job, slot, output=count, artifacts=Path("nowhere"))
    assert outcome.verdict is Verdict.SUCCEEDED, outcome  # noqa: S101  (else there is nothing to measure)
    return size


async def seconds(executor: DockerExecutor, slot: Slot) -> float:
    """How long one job takes."""
    start = perf_counter()
    await run_job(executor, slot)
    return perf_counter() - start


async def compare(executor: DockerExecutor, tunnel: Slot, direct: Slot) -> None:
    """What the tunnel costs a job."""
    await run_job(executor, tunnel)
    pairs = [(await seconds(executor, tunnel), await seconds(executor, direct)) for _ in range(JOBS)]
    ratio = statistics.median(one for one, _ in pairs) / statistics.median(other for _, other in pairs)
    report("docker_tunnel_job_ratio", ratio, "ratio", 1.2)
    report("docker_job_ms", statistics.median(one for one, _ in pairs) * 1e3, "ms", None)


async def crowd(executor: DockerExecutor, make: Callable[[int], Slot]) -> None:
    """How many jobs a second, sixteen at a time, through the tunnel."""
    left = iter(range(MANY))

    async def work(slot: Slot) -> None:
        for _ in left:
            await run_job(executor, slot)

    start = perf_counter()
    async with anyio.create_task_group() as tasks:
        for number in range(AT_ONCE):
            tasks.start_soon(work, make(number))
    report("docker_jobs_per_s_16", MANY / (perf_counter() - start), "1/s", None)


async def stream(executor: DockerExecutor, make: Callable[[int], Slot]) -> None:
    """What the manager's memory grows by while fifty jobs print as fast as they can."""
    script = f"sleep 15; head -c {STREAMED} /dev/zero"  # all are there before the first begins
    before, most, received = resident(), 0, 0

    async def one(slot: Slot) -> None:
        nonlocal received
        size = await run_job(executor, slot, script)
        received += size

    async def watch() -> None:
        nonlocal most
        while True:
            most = max(most, resident())
            await anyio.sleep(0.05)

    async with anyio.create_task_group() as watching:
        watching.start_soon(watch)
        async with anyio.create_task_group() as tasks:
            for number in range(STREAMS):
                tasks.start_soon(one, make(number))
        watching.cancel_scope.cancel()
    assert received == STREAMS * STREAMED  # noqa: S101  (nothing may be lost)
    report("docker_50_streams_mib", (most - before) / (1 << 20), "MiB", None)


def resident() -> int:
    """Bytes of memory that this process has now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


async def measure(docker: Daemon, server: Server, directory: Path) -> None:
    """Measure everything."""
    connector = SshConnector(MemoryHostKeys())
    config = DockerConfig(socket=docker.socket, image=IMAGE, network="none")
    executor = DockerExecutor(config, Owner(directory / "owner"))
    dial = partial(connector.dial, server.info, configured(timeout=60.0))
    async with dial():  # as a scaler does, it stays connected
        await compare(executor, Slot("i-1", 0, dial), Slot("i-2", 0, here))
        await crowd(executor, lambda number: Slot("i-1", number, dial))
        await stream(executor, lambda number: Slot("i-1", number, dial))


def main() -> None:
    """Start what is needed, and measure."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        docker = stack.enter_context(daemon())
        server = stack.enter_context(sshd(directory / "sshd"))
        anyio.run(measure, docker, server, directory)


if __name__ == "__main__":
    run(main, DOCKER, SSHD, PROC)
