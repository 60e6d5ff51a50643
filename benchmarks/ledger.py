"""How many acquire-and-release pairs the pure ledger does in a second of CPU time, with 1 to 10,000 nodes.

Each pair hands out a slot, notes its delivery and takes it back, with every record for the journal made and
every counter kept. Half of the instances are in use throughout, so that there are free nodes and full ones.
"""

from functools import partial
from time import process_time

from _figures import best_of, report

from taskscaler.core._ledger import Ledger
from taskscaler.core._slots import PoolSlots

PAIRS = 30_000
TARGETS = {1: 150_000, 100: None, 1_000: None, 10_000: 75_000}
"""Pairs a second; at 10,000 instances at least half of the target at 1."""


def pairs_per_second(instances: int) -> float:
    """Time the pairs once."""
    ledger = Ledger([PoolSlots.empty("pool", slots=1, max_uses=0)])
    for number in range(instances):
        ledger.add("pool", f"i-{number}", now=0.0)
    for number in range(instances // 2):
        ledger.acquire(f"held-{number}", now=0.0)
    start = process_time()
    for number in range(PAIRS):
        (delivery,) = ledger.acquire("job", now=float(number)).actions
        ledger.deliver(delivery.lease)
        ledger.release("job", now=float(number))
    return PAIRS / (process_time() - start)


if __name__ == "__main__":
    for instances, target in TARGETS.items():
        rate = best_of(5, partial(pairs_per_second, instances))
        report(f"ledger_pairs_per_s_{instances}", rate, "pairs/s", target, conditions="CPU time, best of 5")
