"""A job that ends with its manager: its output comes as it is written, and is kept nowhere."""

import anyio

from executor_docker._errors import reported
from executor_docker._script import LARGEST, read_report
from executor_docker._work import Work
from fleeting.connectors import Sink
from fleeting_docker_engine import STDOUT, Demultiplexer
from taskscaler.executors import JobOutcome, enter_phase


async def run_in_time(work: Work, output: Sink) -> JobOutcome:
    """Run a job whose container is made, for as long as it may take."""
    with anyio.move_on_after(work.job.timeout):
        await work.upload()
        return await _run(work, output)
    return await work.time_out()


async def _run(work: Work, output: Sink) -> JobOutcome:
    frames, report = Demultiplexer(), bytearray()
    with reported(work.instance, "the job's container cannot be run"):
        async with work.engine.attached(work.container) as outputs:
            await work.start()
            enter_phase("run")
            while data := await outputs.receive_raw():  # until all that could print has ended
                printed = bytearray()  # in one go: a frame may have no more than a byte
                for source, chunk in frames.feed(data):
                    if source == STDOUT:
                        printed += chunk
                    else:
                        report += chunk[: LARGEST - len(report)]
                if printed:
                    await output(bytes(printed))
        ended = await work.wait()
    return work.outcome(ended, await work.state(), read_report(bytes(report)))
