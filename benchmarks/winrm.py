"""The WinRM connector against the server of the tests, which runs in a process of its own.

As Windows is set up by default: HTTP, NTLM, every message encrypted. The server is Python too, and shares the machine,
so these figures are as much its own as the connector's.
"""

import resource
import statistics
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from time import perf_counter

from _figures import report
from _needs import run

sys.path[0] = str(Path(__file__).parents[1])  # here, this script would be taken for pywinrm, which has the same name

import anyio

from fleeting import Connection, ConnectorConfig
from fleeting.connectors.winrm import WinrmConnector
from tests.fleeting.winrm_host import winrm_host

COMMANDS = 100
MIB = 1 << 20
SIZE = 100 * MIB
WARM_UP = 4 * MIB
ROUNDS = 3


@asynccontextmanager
async def connected(directory: Path) -> AsyncIterator[Connection]:
    """Connect to a server of one's own."""
    with winrm_host(directory) as host:
        async with WinrmConnector().dial(host.info, ConnectorConfig(timeout=30.0)) as connection:
            await connection.run("true")
            yield connection


async def latency(connection: Connection) -> float:
    """Seconds for a command that does nothing, in a shell that is there: the middle one of many."""
    taken = []
    for _ in range(COMMANDS):
        start = perf_counter()
        await connection.run("true", check=True)
        taken.append(perf_counter() - start)
    return statistics.median(taken)


async def seconds(connection: Connection, size: int) -> float:
    """Seconds for so many bytes of output, which nobody keeps."""
    received = 0

    async def count(chunk: bytes) -> None:
        nonlocal received
        received += len(chunk)

    start = perf_counter()
    await connection.run(f"head -c {size} /dev/zero", stdout=count, check=True)
    assert received == size  # noqa: S101  (else there is nothing to tell)
    return perf_counter() - start


def peak() -> float:
    """MiB that this process has had at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


async def main() -> None:
    """Measure everything over one connection."""
    with tempfile.TemporaryDirectory() as directory:
        async with connected(Path(directory)) as connection:
            report("winrm_exec_ms", await latency(connection) * 1e3, "ms", None)
            await seconds(connection, WARM_UP)
            before = peak()
            taken = min([await seconds(connection, SIZE) for _ in range(ROUNDS)])
            report("winrm_stdout_mib_per_s", SIZE / MIB / taken, "MiB/s", None)
            report("winrm_peak_rss_mib_100mib", peak() - before, "MiB", 16)


if __name__ == "__main__":
    run(partial(anyio.run, main))
