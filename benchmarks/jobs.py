"""What a million jobs cost the manager: memory while all of them run, and how soon a batch of them can be ended.

The jobs come as JSON Lines, as on standard input. Scaler and executor are scripted: a slot is given at once, and a job
is over at once, so that everything measured is the manager's. Event log, logs and results are in memory where the
system has a file system for that, which does not count as the manager's. ``--jobs 50000`` is the shorter way to try
it, and ``--drain`` leaves out the batch that is run to its end.
"""

import argparse
import json
import resource
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from io import BufferedReader, RawIOBase
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, process_time
from typing import Any

import anyio
from _figures import report
from attrs import define, field

from fleeting import ConnectInfo, Connection, LoopClock
from fleeting.connectors import Sink
from taskscaler import NotDetached
from taskscaler._jobsfile import StreamJobs, keep
from taskscaler._jobsfile._tables import Defaults
from taskscaler.batch import Batch, EventLog, Held, JobState, Kept, Results
from taskscaler.executors import JobOutcome, JobSpec, Leased, Verdict

JOBS = 1_000_000
SLOTS = 64
LOOKS = 0.01
"""Seconds between two looks at whether the event loop still answers."""


@define
class Slot:
    """One of a few that never go."""

    instance: str
    slot: int
    pool: str = "default"
    place: int = 0
    persistent: bool = False
    cut_off: bool = False

    async def connect_info(self) -> ConnectInfo:
        """It has no address."""
        return ConnectInfo(id=self.instance)

    def mark_suspect(self, why: str) -> None:
        """It is beyond suspicion."""

    def detach(self) -> None:
        """It is not persistent."""

    def dial(self) -> AbstractAsyncContextManager[Connection]:
        """Nobody asks."""
        raise NotImplementedError


@define
class Scaler:
    """Gives a few slots to who comes first."""

    slots: anyio.Semaphore = field(factory=lambda: anyio.Semaphore(SLOTS))
    detached: Sequence[Kept] = ()

    @asynccontextmanager
    async def acquire(
        self,
        key: str,  # noqa: ARG002  (as a scaler has them)
        *,
        timeout: float | None = None,  # noqa: ARG002
        expected_duration: float = inf,  # noqa: ARG002
        place: int | None = None,  # noqa: ARG002
        persistent: bool = False,  # noqa: ARG002
    ) -> AsyncIterator[Slot]:
        """Wait for a slot."""
        async with self.slots:
            yield Slot("i-1", 0)

    async def reattach(self, key: str) -> Held:
        """Never asked: nothing was left."""
        raise NotDetached(key, "was never left", held=False)

    async def explain(self) -> str:
        """Never asked."""
        return ""

    async def stop(self) -> None:
        """Nothing to do."""


class Trivial:
    """Has done every job before it was asked."""

    async def run(self, job: JobSpec, lease: Leased, *, output: Sink, artifacts: Path) -> JobOutcome:  # noqa: ARG002
        """Succeed."""
        await anyio.lowlevel.checkpoint()
        return JobOutcome(verdict=Verdict.SUCCEEDED, exit_code=0)


class Lines(RawIOBase):
    """What a program would write that has so many jobs, line by line."""

    def __init__(self, jobs: int) -> None:
        """Write nothing yet."""
        self._lines: Iterator[bytes] = (
            json.dumps({"name": f"job-{job}", "command": "true", "env": {"SEED": str(job)}}).encode() + b"\n"
            for job in range(jobs)
        )
        self._rest = b""

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any, /) -> int:  # noqa: ANN401  (what can be written to)
        """Write as much as there is room for."""
        self._rest = self._rest or next(self._lines, b"")
        size = min(len(buffer), len(self._rest))
        buffer[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size


def jobs_in(directory: Path, jobs: int) -> StreamJobs:
    """Read the jobs from a stream."""
    return keep(
        BufferedReader(Lines(jobs)),
        None,
        directory / "jobs.jsonl",
        defaults=Defaults(),
        directory=directory,
        is_executor=lambda _: None,
    )


async def run(directory: Path, jobs: StreamJobs, *, drain_after: float = inf) -> tuple[float, float]:
    """Run a batch, and drain it after so many jobs.

    Returns:
        Seconds from then to its end, and the longest span of these for which the event loop did not answer.
    """
    results = Results(directory / "results")
    results.prepare()
    drained, longest = inf, 0.0
    with closing(EventLog(results, jobs_file=directory / "fleet.toml", streamed=True)) as events:
        batch = Batch(Scaler(), jobs, executors={"instance": Trivial()}, events=events, clock=LoopClock())

        async def watch() -> None:
            nonlocal drained, longest
            while True:
                before = perf_counter()
                if batch.state.count(JobState.SUCCEEDED) >= drain_after and drained == inf:
                    drained = before
                    batch.drain()
                await anyio.sleep(LOOKS)
                longest = max(longest, perf_counter() - before) if drained < inf else longest

        async with anyio.create_task_group() as tasks, events.writing():
            tasks.start_soon(watch)
            await batch.run()
            tasks.cancel_scope.cancel()
        ended = perf_counter()
        if drain_after == inf and not batch.state.succeeded:
            raise SystemExit("not all jobs have succeeded")
    return ended - drained, longest


def scratch() -> "TemporaryDirectory[str]":
    """Make a directory, in memory if that is possible: a million syncs are the disk's, not ours."""
    shared = Path("/dev/shm")  # noqa: S108  (only the place of a directory that is made there)
    return TemporaryDirectory(dir=shared if shared.is_dir() else None)


def peak_mib() -> float:
    """The most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=JOBS)
    parser.add_argument("--drain", action="store_true")
    arguments = parser.parse_args()
    jobs = arguments.jobs
    conditions = f"{jobs} jobs from JSON Lines, {SLOTS} slots, scripted scaler and executor"
    with scratch() as directory:
        began = perf_counter()
        planned = jobs_in(Path(directory), jobs)
        report("jobs_1m_read_s", perf_counter() - began, "s", None, conditions=f"{jobs} jobs from JSON Lines")
        seconds, longest = anyio.run(lambda: run(Path(directory), planned, drain_after=1_000))
    drained = f"{conditions}; drained after 1000"
    report("jobs_1m_drain_s", seconds, "s", None, conditions=f"{drained}, until results.json is there")
    report("jobs_1m_drain_stall_s", longest, "s", 1.0, conditions=f"{drained}; the longest without an event loop")
    if arguments.drain:
        report("jobs_1m_drain_rss_mib", peak_mib(), "MiB", 400.0, conditions=drained)
        return
    with scratch() as directory:
        planned = jobs_in(Path(directory), jobs)
        began = process_time()
        anyio.run(lambda: run(Path(directory), planned))
        cpu = process_time() - began
    report("jobs_1m_cpu_us_per_job", cpu / jobs * 1e6, "us", None, conditions=conditions)
    report("jobs_1m_rss_mib", peak_mib(), "MiB", 400.0, conditions=f"{conditions}; the peak over both batches")


if __name__ == "__main__":
    main()
