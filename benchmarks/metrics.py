"""What metrics cost: on acquire and release, and at a scrape: of 1,000 instances, and of costs of 10 and 10,000.

In-process, without a journal, over the cloud in memory. Pairs are counted in turn with and without metrics, by the CPU
time of the process, many times: the ratio of the medians says the same on a busy machine.
"""

from collections.abc import Sequence
from functools import partial
from statistics import median
from time import perf_counter, process_time

import anyio
from _figures import report
from prometheus_client import generate_latest

from fleeting import ScaleThrottle
from fleeting.testing import FakeCloud, FakeGroup
from taskscaler import InstanceEvent, Policy, Pool, Taskscaler
from taskscaler._cost import Spending, Tariff
from taskscaler.observers._costs import OfCosts
from taskscaler.observers.metrics import Metrics

PAIRS = 1_000
"""In one turn."""

TURNS = 30
"""Of each kind."""

INSTANCES = 1_000
SCRAPES = 50

FLEETS = (10, 10_000)
"""Instances whose costs are shown."""


async def pairs(metrics: Metrics | None) -> float:
    """CPU seconds of so many acquires and releases of one ready slot, one after the other."""
    group = FakeGroup(FakeCloud())
    observers = [] if metrics is None else [metrics]
    policies = [Policy(idle_count=1, idle_time=600)]
    pool = Pool(group, dial=group.dial, update_interval_when_expecting=0.02)
    async with Taskscaler(pool, policies=policies, observers=observers, delete_instances_on_shutdown=False) as scaler:
        (await scaler.acquire_lease("warm-up")).release()
        start = process_time()
        for _ in range(PAIRS):
            (await scaler.acquire_lease("job")).release()
        return process_time() - start


async def scrapes() -> Sequence[float]:
    """Seconds that each of many scrapes takes, with so many instances of which half are in use."""
    group, metrics = FakeGroup(FakeCloud()), Metrics()
    pool = Pool(group, dial=group.dial, max_instances=INSTANCES, scale_throttle=ScaleThrottle(limit=-1))
    policies = [Policy(idle_count=INSTANCES // 2, idle_time=600)]
    seconds = []
    async with Taskscaler(pool, policies=policies, observers=[metrics], delete_instances_on_shutdown=False) as scaler:
        for number in range(INSTANCES // 2):
            await scaler.acquire_lease(f"job-{number}")
        while True:
            if (await scaler.capacity()).idle >= INSTANCES // 2:
                break
            await anyio.sleep(0.1)
        for _ in range(SCRAPES):
            start = perf_counter()
            generate_latest(metrics.registry)
            seconds.append(perf_counter() - start)
    return seconds


def scrapes_of_costs(instances: int) -> float:
    """Median seconds of a scrape that shows time and costs, half of the instances without a price, 15 s apart."""
    metrics = Metrics()
    tariffs = {"priced": Tariff(price_per_hour=0.1, minimum_billing=60.0), "unpriced": Tariff()}
    spending, now, seconds = Spending.at(tariffs), 1.8e9, list[float]()
    metrics.registry.register(OfCosts(metrics.families, lambda: spending.so_far(now)))
    for number in range(instances):
        pool = "priced" if number % 2 else "unpriced"
        spending.take(InstanceEvent(at=now, pool=pool, instance=f"i-{number}", state="running"))
        now += 0.01
    for _ in range(SCRAPES):
        now += 15
        start = perf_counter()
        generate_latest(metrics.registry)
        seconds.append(perf_counter() - start)
    return median(seconds)


def main() -> None:
    """Measure."""
    few, many = map(scrapes_of_costs, FLEETS)
    conditions = f"time and costs of {FLEETS[1]} instances; with {FLEETS[0]}: {few * 1e3:.2f} ms; medians of {SCRAPES}"
    report("metrics_costs_scrape_ms", many * 1e3, "ms", 5, conditions=conditions)
    turns = [[anyio.run(partial(pairs, metrics)) for metrics in (None, Metrics())] for _ in range(TURNS)]
    without, with_them = map(median, zip(*turns, strict=True))
    conditions = f"acquire and release, CPU time, medians of {TURNS} turns: {without / PAIRS * 1e6:.1f} us without"
    report("metrics_overhead_pct", (with_them / without - 1) * 100, "%", 5, conditions=conditions)
    seconds = anyio.run(scrapes)
    conditions = f"{INSTANCES} instances, half of them in use; the slowest of {SCRAPES} scrapes"
    report("metrics_scrape_ms", max(seconds) * 1e3, "ms", 50, conditions=conditions)


if __name__ == "__main__":
    main()
