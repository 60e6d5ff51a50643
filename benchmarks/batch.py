"""Small jobs: how many a second, what each costs the manager, and how they do beside HyperQueue.

500 jobs of ``true`` on two local instances with eight slots each, with the records and the display of ``taskscaler
run``. HyperQueue has two workers of eight cores, and takes its turn in a process of its own.
"""

import subprocess
import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import anyio
from _batches import Took, local_fleet, run_jobs
from _figures import report
from _needs import HYPERQUEUE, run

JOBS = 500
ROUNDS = 3

HYPERQUEUE_JOBS = f"""
from time import perf_counter
from hyperqueue import Job, LocalCluster
from hyperqueue.cluster import WorkerConfig

def run(client, number):
    job = Job()
    for each in range(number):
        job.program(["true"], stdout=f"job-{{each}}.log", stderr=f"job-{{each}}.err")
    client.wait_for_jobs([client.submit(job)])

with LocalCluster() as cluster:
    for _ in range(2):
        cluster.start_worker(WorkerConfig(cores=8))
    client = cluster.client()
    run(client, 1)
    start = perf_counter()
    run(client, {JOBS})
    print(perf_counter() - start)
"""


def hyperqueue_seconds(directory: Path) -> float:
    """The same jobs there, once its workers are ready."""
    directory.mkdir()
    command = [sys.executable, "-c", HYPERQUEUE_JOBS]
    done = subprocess.run(command, cwd=directory, check=True, capture_output=True, text=True)
    return float(done.stdout.split()[-1])


async def our_rounds(directory: Path) -> list[tuple[Took, float]]:
    """What batches of ours took, and the seconds of HyperQueue's, by turns."""
    rounds = []
    for number in range(ROUNDS):
        async with local_fleet(directory / f"fleet-{number}") as scaler:
            ours = await run_jobs(scaler, directory / f"results-{number}", JOBS)
        rounds.append((ours, await anyio.to_thread.run_sync(hyperqueue_seconds, directory / f"hyperqueue-{number}")))
    return rounds


def main() -> None:
    """Measure all three."""
    with TemporaryDirectory() as directory:
        rounds = anyio.run(our_rounds, Path(directory))
    report("batch_jobs_per_s", median(JOBS / ours.seconds for ours, _ in rounds), "1/s", 150)
    report("batch_over_hyperqueue_ratio", median(theirs / ours.seconds for ours, theirs in rounds), "ratio", 1)
    report("batch_manager_cpu_ms_per_job", median(ours.cpu / JOBS for ours, _ in rounds) * 1e3, "ms", 4)


if __name__ == "__main__":
    run(main, HYPERQUEUE)
