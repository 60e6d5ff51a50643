"""The agent for steps: how large it is, how soon it answers, and what calls and steps cost.

Calls go over SSH to OpenSSH's server, by turns with commands that are run there, so their ratio says what a call costs.
The agent runs on this Python. Milliseconds of processor time are those that the agent has used itself, whatever else
the machine does.
"""

import os
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from time import perf_counter

sys.path.insert(0, str(Path(__file__).parents[1]))

import anyio
from _figures import report
from _needs import PROC, SSHD, run
from anyio.abc import Process

from fleeting.connectors import PosixConnection
from job_steps._zipapp import zipapp
from job_steps.client import RunRequest, StepRunnerClient, bring_agent, step_runner
from tests.fleeting.sshd import dialled, sshd
from tests.job_steps.agents import place

STARTS = 10
CALLS = 60
STEPS = 200

CONDITIONS = f"Python {'.'.join(map(str, sys.version_info[:2]))}, on Linux"


@asynccontextmanager
async def started(placed: Path, directory: Path) -> AsyncIterator[tuple[Process, StepRunnerClient]]:
    """Start an agent that was placed; it has answered once."""
    command = (sys.executable, f"{placed}/{zipapp().name}/agent.pyz", "serve", str(directory))
    async with await anyio.open_process(command, stderr=None) as process:
        assert process.stdout is not None  # noqa: S101  (it was asked for)
        said = await process.stdout.receive()
        async with step_runner(await anyio.connect_unix(said.split()[1].decode())) as client:
            await client.statuses()
            yield process, client
        process.terminate()


def cpu_seconds(process: int) -> float:
    """Processor time of a process, without that of its children."""
    user, system = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


async def starts(placed: Path, directory: Path) -> None:
    """From its start to its first answer, placed and compiled; and what a step costs in it."""
    took, used = [], []
    for number in range(STARTS):
        begin = perf_counter()
        async with started(placed, directory / f"start-{number}") as (process, _):
            took.append(perf_counter() - begin)
            used.append(cpu_seconds(process.pid))
    report("agent_start_ms", median(took) * 1e3, "ms", 300, conditions=CONDITIONS)
    report("agent_start_cpu_ms", median(used) * 1e3, "ms", None, conditions=CONDITIONS)


async def steps(placed: Path, directory: Path) -> None:
    """One more step of a job, which does nothing, over the command itself."""
    async with started(placed, directory / "steps") as (process, client):
        seconds, used = [], []
        for count in (1, 1 + STEPS, 1, 1 + STEPS):
            text = "".join(f"- {{name: s{number}, script: ':'}}\n" for number in range(count))
            begin, before = perf_counter(), cpu_seconds(process.pid)
            await client.run(RunRequest(id="steps", steps=text, work_dir=str(directory)))
            async for _ in client.follow_logs("steps"):
                pass
            seconds.append(perf_counter() - begin)
            used.append(cpu_seconds(process.pid) - before)
            await client.close("steps")
        begin = perf_counter()
        for _ in range(STEPS):
            await anyio.run_process(["bash", "-c", ":"])
        command = (perf_counter() - begin) / STEPS
    step = min(seconds[1] - seconds[0], seconds[3] - seconds[2]) / STEPS
    report("step_overhead_ms", (step - command) * 1e3, "ms", 15, conditions=f"a command: {command * 1e3:.3g} ms")
    report("step_cpu_ms", min(used[1] - used[0], used[3] - used[2]) / STEPS * 1e3, "ms", None, conditions="the agent's")


async def calls(connection: PosixConnection, directory: Path) -> None:
    """A call over SSH beside a command over SSH, and how long it takes to bring an agent that is placed."""
    async with bring_agent(connection) as agent:
        ran, called = [], []
        for _ in range(CALLS):
            begin = perf_counter()
            await connection.run("true", check=True)
            middle = perf_counter()
            await agent.client.statuses()
            ran.append(middle - begin)
            called.append(perf_counter() - middle)
        job = RunRequest(id="job", steps="- {name: only, script: ':'}", work_dir=str(directory))
        begin = perf_counter()
        await agent.client.run(job)
        async for _ in agent.client.follow_logs("job"):
            pass
        await agent.client.close("job")
        whole = perf_counter() - begin
    begin = perf_counter()
    async with bring_agent(connection):
        again = perf_counter() - begin
    report(
        "grpc_call_ratio", median(called) / median(ran), "ratio", 2, conditions="over `run` of `true`, both over SSH"
    )
    report("grpc_call_ms", median(called) * 1e3, "ms", None)
    report("agent_job_ms", whole * 1e3, "ms", None, conditions="run, follow and close, over SSH")
    report("agent_again_ms", again * 1e3, "ms", None, conditions="to reach an agent that runs, over SSH")
    for command in await connection.list_detached():
        await connection.kill(command.name)


async def measure(directory: Path, home: Path) -> None:
    """Measure what an agent does that is placed in a home."""
    await starts(home / ".job-steps", directory)
    await steps(home / ".job-steps", directory)
    with sshd(directory / "sshd", f"SetEnv HOME={home} SHLVL=5") as server:
        async with dialled(server.info) as connection:
            assert isinstance(connection, PosixConnection)  # noqa: S101  (what is measured is what it reaches)
            await calls(connection, directory)


def main() -> None:
    """Measure all of it."""
    report("agent_mib", len(zipapp().data) / (1 << 20), "MiB", 40, conditions="uploaded; compiled, it has five there")
    with tempfile.TemporaryDirectory() as directory:
        home = Path(directory) / "home"
        home.mkdir()
        place(home / ".job-steps")
        anyio.run(measure, Path(directory), home)


if __name__ == "__main__":
    run(main, SSHD, PROC)
