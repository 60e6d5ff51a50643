"""Whether the scaler's memory grows with the work it has done: an hour of jobs in virtual time.

Twenty jobs a second come and go, on instances that serve a few hundred each, so that the fleet is replaced all the
time; some are lost, some requests fail, some jobs are cancelled. The fake cloud would remember every call and every
machine for the tests that it is made for; here what is over is taken off its records every minute.
"""

import gc
import logging
import os
from collections import Counter
from pathlib import Path
from random import Random

import anyio
from _figures import report
from _needs import PROC, run
from anyio.abc import TaskGroup

from fleeting import CapacityUnavailable, ScaleThrottle
from fleeting.testing import FakeCloud, FakeGroup, IncreaseFault, virtual_run
from taskscaler import LeaseLost, Policy, Pool, Taskscaler

MINUTE = 60
JOBS_PER_S = 20
WARM_UP = 10
"""Minutes after which memory is first looked at."""

END = 60
"""Minutes after which it is looked at again."""

KEPT_BY_CLOUD = 30.0
"""Seconds for which the cloud remembers a machine that is gone."""


class Soak:
    """A scaler, and the load that it carries."""

    def __init__(self, scaler: Taskscaler, cloud: FakeCloud) -> None:
        """Begin with nothing."""
        self.scaler = scaler
        self.cloud = cloud
        self.random = Random(1)  # noqa: S311  (to be repeatable)
        self.seen: Counter[str] = Counter()
        self._resident: dict[int, float] = {}

    async def run(self) -> None:
        """An hour of it."""
        async with anyio.create_task_group() as jobs:
            for minute in range(1, END + 1):
                await self._load(jobs)
                self._trouble()
                self._trim()
                if minute in {WARM_UP, END}:
                    self._resident[minute] = resident_mib()

    @property
    def growth(self) -> float:
        """Memory after the hour less memory after the warm-up, in MiB."""
        return self._resident[END] - self._resident[WARM_UP]

    async def _load(self, jobs: TaskGroup) -> None:
        """A minute's jobs."""
        for _ in range(MINUTE * JOBS_PER_S):
            jobs.start_soon(self._job, f"job-{self.seen['jobs']}", self.random.uniform(0.2, 3.0))
            self.seen["jobs"] += 1
            await anyio.sleep(1 / JOBS_PER_S)

    async def _job(self, key: str, seconds: float) -> None:
        """One job; one in fifty is cancelled on the way."""
        patience = self.random.uniform(0, 2) if self.random.random() < 1 / 50 else 600.0
        with anyio.move_on_after(patience):
            try:
                async with self.scaler.acquire(key):
                    await anyio.sleep(seconds)
            except LeaseLost:
                self.seen["lost"] += 1
                return
            self.seen["done"] += 1

    def _trouble(self) -> None:
        """One instance a minute vanishes, one request is refused."""
        self.cloud.vanish(self.random.choice(sorted(self.cloud.alive)))
        self.cloud.faults.increase.once(IncreaseFault(refuse=CapacityUnavailable("none left")))

    def _trim(self) -> None:
        """Take what is over off the cloud's records."""
        cloud = self.cloud
        cloud.calls.clear()
        cloud.commands.clear()
        for machine in [each for each in cloud.machines.values() if each.gone_at + KEPT_BY_CLOUD < cloud.now]:
            del cloud.machines[machine.id]
            if machine.intent is not None:
                cloud._answers.pop(machine.intent, None)  # noqa: SLF001  (would grow, and is the cloud's)
            self.seen["instances"] += 1


def resident_mib() -> float:
    """What this process holds of the machine's memory."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


async def soak() -> Soak:
    """Carry the load for an hour."""
    cloud = FakeCloud(boot_time=20.0, appear_after=2.0, delete_time=5.0, linger=10.0)
    cloud.latency = {"update": 0.3, "increase": 1.0, "decrease": 1.0, "heartbeat": 0.1}
    group = FakeGroup(cloud)
    pool = Pool(
        group,
        dial=group.dial,
        capacity_per_instance=4,
        max_use_count=300,
        max_instances=60,
        scale_throttle=ScaleThrottle(limit=-1),
    )
    async with Taskscaler(pool, policies=[Policy(idle_count=10, idle_time=30.0)]) as scaler:
        the_soak = Soak(scaler, cloud)
        await the_soak.run()
    return the_soak


def main() -> None:
    """Measure."""
    logging.disable(logging.CRITICAL)  # of the refusals that we make
    result = anyio.run(soak, **virtual_run("asyncio"))
    assert result.seen["done"] > 0.9 * result.seen["jobs"], result.seen  # noqa: S101  (else it measured nothing)
    report("soak_rss_growth_mib", result.growth, "MiB", 8)


if __name__ == "__main__":
    run(main, PROC)
