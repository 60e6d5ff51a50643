"""What an idle fleet costs: ten thousand instances that answer a heartbeat a minute, and nothing else happens.

Real time and a journal in SQLite; the group is scripted and answers at once, so that all the CPU time is ours. Measured
for five minutes, which is five views and 50,000 heartbeats; ``--seconds 60`` is the shorter way to try it.
"""

import argparse
import gc
import logging
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, process_time

import anyio
from _figures import report

from fleeting import (
    CapacityUnavailable,
    ConnectInfo,
    Connection,
    GroupInfo,
    Observation,
    Settings,
    SqliteJournal,
    State,
    Unreachable,
)
from taskscaler import Policy, Pool, Taskscaler

INSTANCES = 10_000
INTERVAL = 60.0
"""Seconds between two heartbeats of an instance, and between two views."""


class Scripted:
    """A group whose instances are there from the start, and well."""

    def __init__(self) -> None:
        """Ten thousand of them."""
        self.heartbeats = 0
        self.all_answered = anyio.Event()
        """Set with as many heartbeats as there are instances: so each is ready, and has had its first."""

        self._view = Observation.of({f"i-{number:05}": State.RUNNING for number in range(INSTANCES)})

    async def init(self, _: Settings) -> GroupInfo:
        """Say what it is."""
        return GroupInfo(identity="scripted", max_size=INSTANCES)

    async def update(self) -> Observation:
        """The same each time."""
        return self._view

    async def increase(self, count: int, *, intent: str) -> int:
        """It is full."""
        raise CapacityUnavailable(f"there are {INSTANCES} instances, and no {count} more for {intent}")

    async def decrease(self, instances: Sequence[str]) -> Sequence[str]:
        """It keeps all that it has."""
        return [each for each in instances if each not in self._view.instances]

    async def connect_info(self, instance: str) -> ConnectInfo:
        """Nobody connects."""
        return ConnectInfo(id=instance)

    async def heartbeat(self, _: str) -> None:
        """It is well."""
        self.heartbeats += 1
        if self.heartbeats == INSTANCES:
            self.all_answered.set()

    async def shutdown(self) -> None:
        """There is nothing to close."""


def no_connection(info: ConnectInfo, *_: object) -> AbstractAsyncContextManager[Connection]:
    """Nothing is run there, and nothing can be."""
    raise Unreachable(f"nothing listens on {info.id}, which is only scripted")


async def idle(seconds: float, journal: Path) -> tuple[float, float]:
    """Percent of one core, and heartbeats a second, once all instances are ready and have had a heartbeat."""
    group = Scripted()
    pool = Pool(
        group,
        dial=no_connection,
        preexisting="adopt",
        max_instances=INSTANCES,
        heartbeat_interval=INTERVAL,
        update_interval=INTERVAL,
    )
    policy = Policy(idle_count=INSTANCES, idle_time=86_400)
    async with Taskscaler(pool, policies=[policy], journal=SqliteJournal(journal)) as scaler:
        await group.all_answered.wait()
        if (idle := (await scaler.capacity()).idle) < INSTANCES:
            raise AssertionError(f"only {idle} of {INSTANCES} instances are idle")
        gc.collect()
        began, used, answered = perf_counter(), process_time(), group.heartbeats
        await anyio.sleep(seconds)
        wall = perf_counter() - began
        return 100 * (process_time() - used) / wall, (group.heartbeats - answered) / wall


def main(seconds: float) -> None:
    """Measure."""
    logging.disable(logging.INFO)
    with TemporaryDirectory() as directory:
        percent, rate = anyio.run(idle, seconds, Path(directory, "journal.sqlite"))
    conditions = f"mean over {seconds:.0f} s, {rate:.0f} heartbeats a second, a view every {INTERVAL:.0f} s"
    report("idle_10000_cpu_pct", percent, "% of one core", 2, conditions=conditions)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=300.0, help="how long to measure; 300 is five minutes")
    main(parser.parse_args().seconds)
