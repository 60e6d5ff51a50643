"""What durability costs: 64 acquirers at once, with the journal in SQLite and in memory, side by side in one run."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

import anyio
from _figures import report

from fleeting import Journal, MemoryJournal, SqliteJournal
from fleeting.core import Write
from fleeting.testing import FakeCloud, FakeGroup
from taskscaler import Policy, Pool, Taskscaler

ACQUIRERS = 64
PAIRS = 100
"""Acquire-and-release pairs that each of them does."""

ROUNDS = 5


class Counting(SqliteJournal):
    """A journal in SQLite that counts its commits."""

    commits = 0

    async def commit(self, writes: Sequence[Write]) -> None:
        """Count, and commit."""
        self.commits += 1
        await super().commit(writes)


async def pairs_per_second(journal: Journal) -> float:
    """Let all of them acquire and release at once, a slot each."""
    group = FakeGroup(FakeCloud())
    policy = Policy(idle_count=ACQUIRERS, idle_time=600)
    pool = Pool(group, dial=group.dial, capacity_per_instance=8)

    async def acquirer(scaler: Taskscaler, number: int) -> None:
        for _ in range(PAIRS):
            (await scaler.acquire_lease(f"job-{number}")).release()

    async with Taskscaler(pool, policies=[policy], journal=journal) as scaler:
        leases = [await scaler.acquire_lease(f"warm-up-{number}") for number in range(ACQUIRERS)]
        for lease in leases:
            lease.release()
        start = perf_counter()
        async with anyio.create_task_group() as acquirers:
            for number in range(ACQUIRERS):
                acquirers.start_soon(acquirer, scaler, number)
        return ACQUIRERS * PAIRS / (perf_counter() - start)


async def main() -> None:
    """Measure in turns, so that both meet the same machine."""
    durable, memory, commits = [], [], []
    with tempfile.TemporaryDirectory() as directory:
        for number in range(ROUNDS):
            journal = Counting(Path(directory, f"{number}.sqlite"))
            durable.append(await pairs_per_second(journal))
            commits.append(journal.commits / (ACQUIRERS * PAIRS))
            memory.append(await pairs_per_second(MemoryJournal()))
    report("commits_per_acquire_64", max(commits), "commits", 0.05)
    ratios = sorted(one / other for one, other in zip(durable, memory, strict=True))
    report("durable_pairs_per_s_64", max(durable), "pairs/s", None)
    report("durable_over_memory_ratio", ratios[ROUNDS // 2], "ratio", 0.5)


if __name__ == "__main__":
    anyio.run(main)
