"""What following jobs costs: with every job sampled, and with none.

In-process, with a journal in memory, over the cloud in memory. A job is what a batch makes of it: a slot, a connection,
the variables, three phases, the end; its executor does nothing. Two scalers in one process take turns of a few jobs,
one without traces and one with, so that both find the same machine: what counts is the median difference, by the CPU
time of the process, all threads included. The one with traces sends all that waits at the end of its turn, over HTTP,
to a receiver that throws it away, a process of its own.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from statistics import median
from time import process_time

import anyio
from _figures import report

from fleeting import LoopClock, MemoryJournal
from fleeting.testing import FakeCloud, FakeGroup
from taskscaler import Policy, Pool, Taskscaler
from taskscaler.batch import Job
from taskscaler.batch._events import Begun, Ended, Started
from taskscaler.batch._followed import Following, followed_try, traced
from taskscaler.batch._job_state import JobState
from taskscaler.batch._state import BatchState
from taskscaler.executors import JobSpec, enter_phase
from taskscaler.observers.traces import Traces

JOBS = 100
"""In one turn."""

TURNS = 80
"""Of each kind."""

VARIABLES = {"TASKSCALER_JOB_NAME": "job", "TASKSCALER_JOB_INDEX": "0", "TASKSCALER_JOB_COUNT": "1"}
"""That a job has anyhow."""

RECEIVER = """
from http.server import BaseHTTPRequestHandler, HTTPServer
class Null(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()
    def log_message(self, *_):
        pass
server = HTTPServer(("127.0.0.1", 0), Null)
print(server.server_port, flush=True)
server.serve_forever()
"""


@contextmanager
def null_receiver() -> Iterator[str]:
    """Have a receiver that throws everything away; gives its address."""
    with subprocess.Popen([sys.executable, "-c", RECEIVER], stdout=subprocess.PIPE, text=True) as process:
        try:
            port = "" if process.stdout is None else process.stdout.readline().strip()
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()


def fleet(*observers: Traces) -> Taskscaler:
    """A scaler with one slot that is always ready."""
    group = FakeGroup(FakeCloud())
    pool = Pool(group, dial=group.dial, update_interval_when_expecting=0.02)
    policies = [Policy(idle_count=1, idle_time=600)]
    return Taskscaler(pool, policies=policies, observers=observers, journal=MemoryJournal())


async def run_job(scaler: Taskscaler, job: Job, state: BatchState, clock: LoopClock) -> None:
    """Do what a batch does for a job whose executor has nothing to do."""
    with followed_try(job, state, clock):
        lease = await scaler.acquire_lease("job")
        async with lease.dial():
            at = clock.now()
            state.apply(Started(at=at, job=job.name, pool=lease.pool, instance=lease.instance, slot=lease.slot))
            traced(job.spec)
            for phase in ("ready", "run", "collect"):
                enter_phase(phase)
        state.apply(Ended(at=clock.now(), job=job.name, state=JobState.SUCCEEDED, exit_code=0))
        lease.release()


async def take_turn(scaler: Taskscaler, follower: Traces | None) -> float:
    """CPU microseconds of a job, in a batch of a few."""
    jobs = [Job(spec=JobSpec(name=f"job-{number}", script=":", env=VARIABLES)) for number in range(JOBS)]
    clock = LoopClock()
    state = BatchState(Begun.of(jobs, at=clock.now(), id="0123456789ab"))
    following = None if follower is None else Following(tracer=follower.tracer, pipeline="benchmark")
    start = process_time()
    for job in jobs:
        with nullcontext() if following is None else following.job(job, state, clock):
            await run_job(scaler, job, state, clock)
    if follower is not None and follower._processor is not None:  # noqa: SLF001  (nobody else has to wait for it)
        follower._processor.force_flush()  # noqa: SLF001
    return (process_time() - start) / JOBS * 1e6


async def take_turns(follower: Traces) -> tuple[float, float]:
    """CPU microseconds that a job takes more with traces, and those that it takes without; each goes first in turn."""
    less, more = list[float](), list[float]()
    async with fleet() as plain, fleet(follower) as followed:
        for turn in range(TURNS):
            for is_followed in (False, True) if turn % 2 else (True, False):
                if is_followed:
                    more.append(await take_turn(followed, follower))
                else:
                    less.append(await take_turn(plain, None))
    return median(with_ - without for with_, without in zip(more, less, strict=True)), median(less)


def main() -> None:
    """Measure."""
    with null_receiver() as url:
        os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = url
        for name, sampler, target in (
            ("tracing_us_per_job", "parentbased_always_on", 300),
            ("tracing_unsampled_us_per_job", "parentbased_always_off", 5),
        ):
            os.environ["OTEL_TRACES_SAMPLER"] = sampler
            follower = Traces()
            extra, without = anyio.run(partial(take_turns, follower))
            conditions = (
                f"CPU time, median difference of {TURNS} turns of {JOBS} jobs: {without:.0f} us without; "
                f"{follower.lost} spans lost"
            )
            report(name, extra, "us", target, conditions=conditions)


if __name__ == "__main__":
    main()
