"""What the async shell costs: acquire and release through `Taskscaler`, and how soon a waiter is acted upon.

Real time and the real event loops; the cloud is the one in memory, in which nothing takes time.
"""

import statistics
from collections.abc import Sequence
from time import perf_counter
from typing import Literal

import anyio
from _figures import best_of, report

from fleeting.testing import FakeCloud, FakeGroup
from taskscaler import Policy, Pool, Taskscaler

PAIRS = 3_000
WAITERS = 300
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


async def pairs_per_second() -> float:
    """Acquire and release one ready slot, one after the other."""
    group = FakeGroup(FakeCloud())
    async with Taskscaler(Pool(group, dial=group.dial), policies=[Policy(idle_count=1, idle_time=600)]) as scaler:
        (await scaler.acquire_lease("warm-up")).release()
        start = perf_counter()
        for _ in range(PAIRS):
            (await scaler.acquire_lease("job")).release()
        return PAIRS / (perf_counter() - start)


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


if __name__ == "__main__":
    for backend in BACKENDS:
        rate = best_of(3, lambda name=backend: anyio.run(pairs_per_second, backend=name))
        report(f"async_pairs_per_s_{backend}", rate, "pairs/s", None)
    waited = [seconds for backend in BACKENDS for seconds in anyio.run(waiter_to_increase, backend=backend)]
    report("waiter_to_increase_p99_ms", statistics.quantiles(waited, n=100)[98] * 1e3, "ms", 10)
