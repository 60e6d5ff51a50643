"""What an idle fleet costs: ten thousand instances that answer a heartbeat a minute, and nothing else happens.

Real time and a journal in SQLite; the group is scripted and answers at once, so that all the CPU time is ours. Measured
for five minutes, which is five views and 50,000 heartbeats; ``--seconds 60`` is the shorter way to try it.
"""

import argparse
import gc
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, process_time

import anyio
from _figures import report

from fleeting import ConnectInfo, Connection, GroupInfo, Observation, Settings, SqliteJournal, State
from taskscaler import Policy, Pool, Taskscaler

INSTANCES = 10_000
INTERVAL = 60.0
"""Seconds between two heartbeats of an instance, and between two views."""


class Scripted:
    """A group whose instances are there from the start, and well."""

    def __init__(self) -> None:
        """Ten thousand of them."""
        self.heartbeats = 0
        self._view = Observation.of({f"i-{number:05}": State.RUNNING for number in range(INSTANCES)})

    async def init(self, _: Settings) -> GroupInfo:
        """Say what it is."""
        return GroupInfo(identity="scripted", max_size=INSTANCES)

    async def update(self) -> Observation:
        """The same each time."""
        return self._view

    async def increase(self, count: int, *, intent: str) -> int:
        """None is needed."""
        raise NotImplementedError

    async def decrease(self, instances: Sequence[str]) -> Sequence[str]:
        """None is to go."""
        raise NotImplementedError

    async def connect_info(self, instance: str) -> ConnectInfo:
        """Nobody connects."""
        return ConnectInfo(id=instance)

    async def heartbeat(self, _: str) -> None:
        """It is well."""
        self.heartbeats += 1

    async def shutdown(self) -> None:
        """There is nothing to close."""


@asynccontextmanager
async def no_connection(*_: object) -> AsyncIterator[Connection]:
    """Nothing is run there."""
    raise NotImplementedError
    yield


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
        while (await scaler.capacity()).idle < INSTANCES or group.heartbeats < INSTANCES:  # noqa: ASYNC110  (nobody says so)
            await anyio.sleep(1)
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
