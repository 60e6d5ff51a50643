"""What following jobs costs: with every job sampled, and with none.

In-process, with a journal in memory, over the cloud in memory. A job is what a batch makes of it: a slot, a connection,
the variables, three phases, the end; its executor does nothing. Jobs are counted in turn with and without traces, by
the CPU time of the process, all threads and the end included, in which everything that waits is sent: over HTTP to a
receiver that throws it away, a process of its own. The medians say the same on a busy machine.
"""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from statistics import median
from time import process_time

import anyio
from _figures import report

from fleeting import MemoryJournal
from fleeting.testing import FakeCloud, FakeGroup
from taskscaler import Policy, Pool, Taskscaler
from taskscaler._tracer import Tracer, within
from taskscaler.executors import enter_phase
from taskscaler.observers.traces import Traces

JOBS = 1_000
"""In one turn."""

TURNS = 9
"""Of each kind."""

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


async def run_job(scaler: Taskscaler) -> None:
    """Do what a batch does for a job whose executor has nothing to do."""
    lease = await scaler.acquire_lease("job")
    async with lease.dial():
        for phase in ("ready", "run", "collect"):
            enter_phase(phase)
    lease.release()


async def run_followed(scaler: Taskscaler, tracer: Tracer, number: int) -> None:
    """The same, with what following it adds."""
    trace = tracer.begin("job")
    if trace.is_followed:
        trace.note(names_of(number))
    with within(trace):
        if trace.is_followed:
            trace.begin_try(tracer.now())
        _ = trace.env
        await run_job(scaler)
        if trace.is_followed:
            trace.end_try(tracer.now(), "", {"process.exit.code": 0, "taskscaler.cpu_time": 0.1})
    if trace.is_followed:
        trace.end(tracer.now(), "", {"cicd.pipeline.task.run.result": "success", "taskscaler.tries": 1})


def names_of(number: int) -> Mapping[str, str]:
    """What a job is called."""
    return {
        "cicd.pipeline.task.name": "job",
        "cicd.pipeline.task.run.id": f"0123456789ab/job-{number}",
        "cicd.pipeline.run.id": "0123456789ab",
        "cicd.pipeline.name": "benchmark",
    }


async def run_jobs(follower: Traces | None) -> float:
    """CPU seconds of so many jobs on one ready slot, one after the other, and of the end."""
    group = FakeGroup(FakeCloud())
    observers = [] if follower is None else [follower]
    pool = Pool(group, dial=group.dial, update_interval_when_expecting=0.02)
    policies = [Policy(idle_count=1, idle_time=600)]
    async with Taskscaler(pool, policies=policies, observers=observers, journal=MemoryJournal()) as scaler:
        await run_job(scaler)
        start = process_time()
        for number in range(JOBS):
            if follower is None:
                await run_job(scaler)
            else:
                await run_followed(scaler, follower.tracer, number)
    return process_time() - start


def extra_us(sampler: str) -> tuple[float, float, int]:
    """CPU microseconds that a job takes more with such a sampler, those that it takes without, and the spans lost."""
    os.environ["OTEL_TRACES_SAMPLER"] = sampler
    turns, lost = [], 0
    for _ in range(TURNS):
        follower = Traces()
        turns.append([anyio.run(partial(run_jobs, None)), anyio.run(partial(run_jobs, follower))])
        lost += follower.lost
    without, followed = (each / JOBS * 1e6 for each in map(median, zip(*turns, strict=True)))
    return followed - without, without, lost


def main() -> None:
    """Measure."""
    os.environ["OTEL_BSP_MAX_QUEUE_SIZE"] = str(20 * JOBS)  # this machine may be slow, and none is to be left out
    with null_receiver() as url:
        os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = url
        for name, sampler, target in (
            ("tracing_us_per_job", "parentbased_always_on", 300),
            ("tracing_unsampled_us_per_job", "parentbased_always_off", 5),
        ):
            extra, without, lost = extra_us(sampler)
            conditions = (
                f"CPU time, medians of {TURNS} turns of {JOBS} jobs: {without:.0f} us without; {lost} spans lost"
            )
            report(name, extra, "us", target, conditions=conditions)


if __name__ == "__main__":
    main()
