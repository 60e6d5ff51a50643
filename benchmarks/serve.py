"""What a daemon costs: with 1,000 clients that hold leases, and against a scaler in the same process.

``taskscaler serve`` as a user starts it, with its journal, over the `local` group: one instance that has a slot for
everybody, so that nothing is waited for but the daemon. The clients are programs' own (`taskscaler.remote`), all in one
process: what an acquire takes includes what that process needs for it.
"""

import argparse
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from statistics import quantiles
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import anyio
from _figures import report

from fleeting import LoopClock
from taskscaler import remote
from taskscaler.serve._fleet_file import read_fleet_file

ACQUIRES = 500
"""Of one more client, one after the other, while those hold theirs."""

WORKERS = 64
PAIRS = 2_000
"""Of all workers together."""

FLEET = """
[autoscaler]
plugin = "local"
update_interval_when_expecting = "20ms"
capacity_per_instance = {slots}
max_instances = 1
plugin_config = {{ directory = "{here}/fleet" }}
[autoscaler.state_storage]
dir = "{here}/state"
[[autoscaler.policy]]
idle_count = 1
idle_time = "1h"
"""


@contextmanager
def serving(file: Path) -> Iterator[tuple[Path, int]]:
    """Run a daemon; gives its socket and the number of its process."""
    socket = file.with_name("s.sock")
    command = (str(Path(sys.executable).with_name("taskscaler")), "serve", str(file), "--socket", str(socket))
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            for line in process.stdout or ():
                if line.startswith("ready: "):
                    break
            yield socket, process.pid
        finally:
            process.kill()


def memory_of(pid: int) -> float:
    """Resident MiB of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def cpu_of(pid: int) -> float:
    """Seconds of CPU that a process has used."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


async def pairs_per_second(scaler: Any) -> float:  # noqa: ANN401  (one here or there)
    """Acquire and release, with as many keys at a time as there are workers."""
    (await scaler.acquire_lease("warm-up")).release()

    async def work(number: int) -> None:
        for turn in range(PAIRS // WORKERS):
            (await scaler.acquire_lease(f"{number}-{turn}")).release()

    start = perf_counter()
    async with anyio.create_task_group() as workers:
        for number in range(WORKERS):
            workers.start_soon(work, number)
    return PAIRS / (perf_counter() - start)


async def held_by_many(socket: Path, pid: int, holders: int) -> tuple[float, float]:
    """MiB of the daemon, and milliseconds that the slowest acquire but one in a hundred takes, with many clients."""
    async with AsyncExitStack() as stack:
        for number in range(holders):
            client = await stack.enter_async_context(remote.connect(socket, ttl=300))
            await client.acquire_lease(f"held-{number}")
        client = await stack.enter_async_context(remote.connect(socket))
        seconds = []
        for number in range(ACQUIRES):
            start = perf_counter()
            lease = await client.acquire_lease(f"more-{number}")
            seconds.append(perf_counter() - start)
            lease.release()
        return memory_of(pid), quantiles(seconds, n=100)[-1] * 1e3


async def measure(holders: int) -> None:
    """Print all figures."""
    with TemporaryDirectory() as made:
        here = Path(made)
        (here / "fleet.toml").write_text(FLEET.format(here=here, slots=holders + WORKERS))
        async with read_fleet_file(here / "fleet.toml").scaler(LoopClock(), []) as scaler:
            local = await pairs_per_second(scaler)
        with serving(here / "fleet.toml") as (socket, pid):
            there, here_too = cpu_of(pid), cpu_of(os.getpid())
            async with remote.connect(socket) as scaler:
                served = await pairs_per_second(scaler)
            there, here_too = cpu_of(pid) - there, cpu_of(os.getpid()) - here_too
            memory, slowest = await held_by_many(socket, pid, holders)
    conditions = (
        f"{served:.0f} pairs/s over {local:.0f}, {WORKERS} keys at a time; CPU of a pair: "
        f"{there / PAIRS * 1e3:.2f} ms in the daemon, {here_too / PAIRS * 1e3:.2f} ms in the client"
    )
    report("serve_over_local_ratio", served / local, "ratio", None, conditions=conditions)
    report("serve_rss_mib", memory, "MiB", 300, conditions=f"{holders} clients, each with a lease")
    report("serve_acquire_p99_ms", slowest, "ms", 100, conditions=f"{ACQUIRES} acquires beside {holders} clients")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--holders", type=int, default=1_000)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # each client has a connection or two, at both ends
    anyio.run(measure, parser.parse_args().holders)
