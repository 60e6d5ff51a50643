"""A batch of very small jobs on instances that are ready, with the records and the display of ``taskscaler run``."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from io import StringIO
from pathlib import Path
from time import perf_counter, process_time

import anyio
from attrs import frozen
from rich.console import Console

import fleeting
from fleeting import LoopClock
from taskscaler import Policy, Pool, Taskscaler
from taskscaler.batch import Batch, EventLog, Job, Results
from taskscaler.cli._progress import Picture, PlainProgress
from taskscaler.executors import JobSpec
from taskscaler.executors.instance import InstanceConfig, InstanceExecutor
from taskscaler.executors.runs import Runs

INSTANCES = 2
SLOTS = 8
POLL = 0.05
"""Seconds between two looks at instances that boot."""


@frozen
class Took:
    """What a batch has taken."""

    seconds: float
    cpu: float
    """Seconds of CPU of this process, which is the manager."""


async def run_jobs(scaler: Taskscaler, directory: Path, number: int) -> Took:
    """Run so many copies of a job of ``true``, and leave their results in a new directory."""
    jobs = [Job(spec=JobSpec(name=f"job-{each}", script="true"), group="job") for each in range(number)]
    executor = InstanceExecutor(InstanceConfig(), Runs("instance", directory.parent / "runs"))
    results, clock, started = Results(directory), LoopClock(), perf_counter()
    results.prepare()

    async def look() -> Picture:
        instances = await scaler.instances()
        return Picture(title="", time=perf_counter() - started, state=batch.state, instances=instances, ceiling=0)

    progress = PlainProgress(Console(file=StringIO()), look, lambda: perf_counter() - started)
    with closing(EventLog(results)) as events:
        batch = Batch(
            scaler, jobs, executors={"instance": executor}, events=events, clock=clock, observer=progress.changed
        )
        started, used = perf_counter(), process_time()
        async with events.writing(), anyio.create_task_group() as display:
            display.start_soon(progress.show)
            state = await batch.run()
            display.cancel_scope.cancel()
        took = Took(perf_counter() - started, process_time() - used)
    assert state.succeeded  # noqa: S101  (else there is nothing to measure)
    return took


@asynccontextmanager
async def local_fleet(directory: Path) -> AsyncIterator[Taskscaler]:
    """Two instances that are ready, with eight slots each."""
    group = fleeting.load("local", {"directory": str(directory)})
    pool = Pool(group, capacity_per_instance=SLOTS, max_instances=INSTANCES, update_interval_when_expecting=POLL)
    policy = Policy(idle_count=INSTANCES * SLOTS, idle_time=3600)
    async with Taskscaler(pool, policies=[policy], delete_instances_on_shutdown=True) as scaler:
        while sum(instance.state == "running" for instance in await scaler.instances()) < INSTANCES:  # noqa: ASYNC110
            await anyio.sleep(POLL)
        yield scaler
