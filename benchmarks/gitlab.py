"""What GitLab's job protocol costs a runner: a log of 100 MiB end to end, and waiting for a job.

The log goes through masking, a spool on the disk, and patches over a socket to a GitLab in another process; its
checksum there has to be that of what was written. What the runner's process grows by is the figure. Waiting is in
virtual time: an hour of long polls, as GitLab holds them, in which nothing comes.
"""

import json
import random
import resource
import subprocess
import sys
import zlib
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, process_time

import anyio
from _figures import report
from _needs import PROC, run

from fleeting.testing import virtual_run
from gitlab_jobs import End, Outcome, Trace
from gitlab_jobs.client import GitLabClient, Runner, info, reporting
from gitlab_jobs.testing import URL, FakeGitLab

MIB = 1 << 20
LOG = 100 * MIB
PIECE = 32 << 10
"""As a connection brings them."""

VALUES = 20
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
HOUR = 3600.0


def resident() -> int:
    """Bytes of this process that are in memory now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def highest() -> int:
    """The most that there ever were."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


async def log_of(url: str, token: str, spool: Path) -> tuple[int, str, int]:
    """Run a job that prints so much; gives the size of its log, its checksum, and the bytes that the process had."""
    line = b"[1234/9999] cc -O2 -c src/module_17/file_4711.c -o build/4711.o -Wall -Wextra\n"
    piece = (line * (PIECE // len(line) + 1))[:PIECE]
    async with GitLabClient(url) as client:
        job = await Runner(client, token, info=info()).ask()
        if job is None:
            raise AssertionError("there is a job")
        with spool.open("w+b", buffering=0) as file:
            before = resident()
            trace = Trace(limit=2 * LOG, spool=file)
            async with reporting(client, job, info=info(), trace=trace) as reported:
                await reported.claim()
                for _ in range(LOG // PIECE):
                    reported.log(piece)
                    await anyio.lowlevel.checkpoint()
                if await reported.finish(Outcome(is_success=True)) is not End.REPORTED:
                    raise AssertionError("the job should have been reported")
    crc = 0
    for _ in range(LOG // PIECE):
        crc = zlib.crc32(piece, crc)
    if trace.checksum != f"crc32:{crc:08x}":
        raise AssertionError("the log is not what was written")
    return trace.size, trace.checksum, before


def measure_log() -> None:
    """End to end."""
    drawn = random.Random(1)  # noqa: S311  (the same each time)
    values = ["".join(drawn.choices(LETTERS, k=20)) for _ in range(VALUES)]
    with TemporaryDirectory() as directory:
        here = Path(directory)
        (here / "gitlab").mkdir()
        server = Path(__file__).with_name("_gitlab.py")
        command = [sys.executable, str(server), str(here / "gitlab"), str(2 * LOG // MIB), json.dumps(values)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            if process.stdout is None:
                raise AssertionError("it prints")
            told = json.loads(process.stdout.readline())
            start, used = perf_counter(), process_time()
            size, checksum, before = anyio.run(log_of, told["url"], told["token"], here / "spool")
            took, used = perf_counter() - start, process_time() - used
            ended = json.loads(process.stdout.readline())
    if ended != {"state": "success", "size": size, "checksum": checksum}:
        raise AssertionError(f"GitLab has {ended}")
    conditions = f"{size // MIB} MiB, {VALUES} masked values, GitLab in another process"
    report("gitlab_log_100mib_growth_mib", (highest() - before) / MIB, "MiB", 64, conditions=conditions)
    report("gitlab_log_mib_s", size / MIB / took, "MiB/s", None, conditions=f"{conditions}; {used:.1f} s of CPU here")


async def wait(directory: str) -> float:
    """Requests for jobs a minute, while there are none."""
    gitlab = FakeGitLab(Path(directory))
    async with GitLabClient(URL, transport=gitlab.transport()) as client:
        runner = Runner(client, gitlab.runner_token, info=info())
        with anyio.move_on_after(HOUR):
            while await runner.ask() is None:
                pass
    return gitlab.calls["request"] / (HOUR / 60)


def main() -> None:
    """Measure."""
    measure_log()
    with TemporaryDirectory() as directory:
        rate = anyio.run(wait, directory, **virtual_run("asyncio"))
    report("gitlab_idle_requests_per_min", rate, "1/min", 2, conditions="an hour of long polls in virtual time")


if __name__ == "__main__":
    run(main, PROC)
