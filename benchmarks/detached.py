"""Detached commands beside those that are run: same server, same connection, by turns."""

import sys
import tempfile
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median
from time import perf_counter

sys.path.insert(0, str(Path(__file__).parents[1]))

import anyio
from _figures import report
from _needs import SSHD, run

from fleeting.connectors import PosixConnection
from tests.fleeting.sshd import dialled, sshd

COMMANDS = 30
ROUNDS = 5
SIZE = 100 << 20


async def starts(connection: PosixConnection) -> None:
    """What it costs to start a command, over what it costs to run it."""
    names = (f"bench-{number}" for number in count())
    ran, started = [], []
    for name in (next(names) for _ in range(COMMANDS)):
        begin = perf_counter()
        await connection.run("true", check=True)
        middle = perf_counter()
        await connection.start(name, "true")
        ran.append(middle - begin)
        started.append(perf_counter() - middle)
        await connection.attach(name, output=_ignore)
        await connection.forget(name)
    report("start_detached_ratio", median(started) / median(ran), "ratio", 1.5)
    report("start_detached_ms", median(started) * 1e3, "ms", None)


async def throughput(connection: PosixConnection) -> None:
    """How fast the output that was kept arrives, over how fast a command's does that is run."""
    command = f"head -c {SIZE} /dev/zero"
    await connection.start("bench", command)
    await connection.attach("bench", output=_ignore)
    ratios = []
    for _ in range(ROUNDS):
        begin = perf_counter()
        await connection.run(command, stdout=_ignore, check=True)
        middle = perf_counter()
        await connection.attach("bench", output=_ignore)
        ratios.append((middle - begin) / (perf_counter() - middle))
    await connection.forget("bench")
    report("attach_throughput_ratio", median(ratios), "ratio", 0.7)


async def _ignore(_: bytes) -> None:
    pass


async def main() -> None:
    """Measure both."""
    with tempfile.TemporaryDirectory() as directory:
        home = Path(directory) / "home"
        home.mkdir()
        with sshd(Path(directory) / "sshd", f"SetEnv HOME={home} SHLVL=5") as server:
            async with dialled(server.info) as connection:
                assert isinstance(connection, PosixConnection)  # noqa: S101  (what is measured is what it adds)
                await starts(connection)
                await throughput(connection)


if __name__ == "__main__":
    run(partial(anyio.run, main), SSHD)
