"""What the async runtime costs: acquire and release, how soon a waiter is acted upon, and waiting in vain.

Real time and the real event loops; the cloud is the one in memory, in which nothing takes time.

With the path of another checkout (``--against ../old``), pairs are also counted there, in turn with those here, by the
CPU time of a process of their own: their ratio says the same on a busy machine.
"""

import argparse
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from time import perf_counter, process_time
from typing import Literal

import anyio
from _figures import best_of, report

from fleeting import ScaleThrottle
from fleeting.testing import FakeCloud, FakeGroup
from taskscaler import NoCapacity, Policy, Pool, Taskscaler

PAIRS = 3_000
WAITERS = 300
IMPATIENT = 1_000
"""Acquires that time out together."""

FLEET = 500
"""Instances, all in use, while they do."""

ROUNDS = 5
"""How often each of two checkouts has its turn."""

BACKENDS: tuple[Literal["asyncio", "trio"], ...] = ("asyncio", "trio")


class Stopwatch(FakeGroup):
    """A group that notes when it is asked for instances, and gives none."""

    def __init__(self) -> None:
        """Over an empty cloud."""
        super().__init__(FakeCloud())
        self.asked = anyio.Event()
        self.asked_at = 0.0

    async def increase(self, count: int, *, intent: str) -> int:
        """Note the time."""
        self.asked_at = perf_counter()
        self.asked.set()
        return await super().increase(count, intent=intent)


async def pairs_per_second(timer: Callable[[], float] = perf_counter) -> float:
    """Acquire and release one ready slot, one after the other."""
    group = FakeGroup(FakeCloud())
    async with Taskscaler(Pool(group, dial=group.dial), policies=[Policy(idle_count=1, idle_time=600)]) as scaler:
        (await scaler.acquire_lease("warm-up")).release()
        start = timer()
        for _ in range(PAIRS):
            (await scaler.acquire_lease("job")).release()
        return PAIRS / (timer() - start)


def pairs_per_cpu_second(backend: str, checkout: Path | None) -> float:
    """The same by CPU time, in a process that runs the sources of a checkout; None: this one."""
    sources = [] if checkout is None else sorted(map(str, checkout.glob("packages/*/src")))
    environment = os.environ | ({"PYTHONPATH": os.pathsep.join(sources)} if sources else {})
    command = [sys.executable, __file__, "--pairs", backend]
    return float(subprocess.run(command, env=environment, check=True, capture_output=True).stdout)


async def waiter_to_increase() -> Sequence[float]:
    """Seconds from an acquire that finds no slot to the call that asks the cloud for one; many times."""
    seconds = []
    for _ in range(WAITERS):
        group = Stopwatch()
        scaler = Taskscaler(Pool(group, dial=group.dial), delete_instances_on_shutdown=False)  # the cloud goes, too
        async with scaler, anyio.create_task_group() as tasks:
            start = perf_counter()
            tasks.start_soon(scaler.acquire_lease, "job")
            await group.asked.wait()
            seconds.append(group.asked_at - start)
            tasks.cancel_scope.cancel()
    return seconds


async def giving_up() -> float:
    """CPU seconds in which all who wait in vain give up."""
    group = FakeGroup(FakeCloud())
    pool = Pool(group, dial=group.dial, max_instances=FLEET, scale_throttle=ScaleThrottle(limit=-1))
    policies = [Policy(idle_count=FLEET, idle_time=600)]

    async def wait(scaler: Taskscaler, key: str) -> None:
        with suppress(NoCapacity):
            await scaler.acquire_lease(key, timeout=2)

    async with Taskscaler(pool, policies=policies, delete_instances_on_shutdown=False) as scaler:
        for number in range(FLEET):
            await scaler.acquire_lease(f"job-{number}")
        async with anyio.create_task_group() as tasks:
            for number in range(IMPATIENT):
                tasks.start_soon(wait, scaler, f"impatient-{number}")
            await anyio.sleep(1)
            start = process_time()
        return process_time() - start


def main(against: Path | None) -> None:
    """Measure."""
    for backend in BACKENDS:
        rate = best_of(3, partial(anyio.run, pairs_per_second, backend=backend))
        report(f"async_pairs_per_s_{backend}", rate, "pairs/s", None)
        if against is not None:
            turns = [[pairs_per_cpu_second(backend, each) for each in (None, against)] for _ in range(ROUNDS)]
            here, there = map(max, zip(*turns, strict=True))
            conditions = f"by CPU time, best of {ROUNDS}: {here:.0f} here, {there:.0f} in {against.name}"
            report(f"async_pairs_ratio_{backend}", here / there, "", 2, conditions=conditions)
    waited = [seconds for backend in BACKENDS for seconds in anyio.run(waiter_to_increase, backend=backend)]
    conditions = f"CPU time; {IMPATIENT} acquires time out at once, {FLEET} instances"
    report("giving_up_ms", anyio.run(giving_up) * 1e3, "ms", 200, conditions=conditions)
    report("waiter_to_increase_p99_ms", statistics.quantiles(waited, n=100)[98] * 1e3, "ms", 10)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", type=Path, help="another checkout, to compare with")
    parser.add_argument("--pairs", choices=BACKENDS, help="print only pairs a second of CPU time")
    arguments = parser.parse_args()
    if arguments.pairs:
        print(anyio.run(pairs_per_second, process_time, backend=arguments.pairs))
    else:
        main(arguments.against)
