"""The agent and GitLab's ``step-runner serve``, which can stand in for each other: the same calls, the same answers."""

import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from job_steps import Variable
from job_steps.client import CallFailed, Code, RunRequest, RunState, StepRunnerClient, step_runner
from tests.fleeting.local_agents import POLL
from tests.job_steps.agents import agent, log_of, log_until

pytestmark = pytest.mark.anyio

Connect = Callable[[], AbstractAsyncContextManager[StepRunnerClient]]


@pytest.fixture
async def ours(placed: Path, tmp_path: Path) -> AsyncIterator[Connect]:
    """Our agent, and what connects to it."""
    async with agent(placed, tmp_path / "agent"):
        yield lambda: _connected(tmp_path / "agent" / "agent.sock")


@pytest.fixture
async def theirs(tmp_path: Path) -> AsyncIterator[Connect]:
    """GitLab's, the same."""
    directory = tmp_path / "service"
    directory.mkdir()
    command = (os.environ["STEP_RUNNER"], "serve", str(directory))
    env = {**os.environ, "TMPDIR": str(directory)}  # where it keeps logs, and adds to those of earlier jobs
    async with await anyio.open_process(command, stdout=None, stderr=None, env=env) as process:
        socket = directory / "step-runner.sock"
        while not socket.exists():  # noqa: ASYNC110  (it tells nobody)
            await anyio.sleep(POLL)
        yield lambda: _connected(socket)
        process.kill()  # to be told to end, it would wait for those who follow a job


@asynccontextmanager
async def _connected(socket: Path) -> AsyncIterator[StepRunnerClient]:
    async with step_runner(await anyio.connect_unix(socket)) as client:
        yield client


@pytest.fixture(params=["ours", pytest.param("theirs", marks=pytest.mark.step_runner)])
def connect(request: pytest.FixtureRequest) -> Connect:
    """What connects to the one or the other."""
    found: Connect = request.getfixturevalue(request.param)
    return found


def _request(directory: Path, script: str, job: str = "1", **more: Any) -> RunRequest:  # noqa: ANN401  (its fields)
    """A job of one step that both have: GitLab's 0.11 knows no ``script``."""
    step = directory / "step"
    step.mkdir(parents=True, exist_ok=True)
    (step / "step.yml").write_text(f"spec: {{}}\n---\nexec:\n  command: [sh, -c, {script!r}]\n")
    steps = "spec: {}\n---\nrun:\n  - name: only\n    step: ./step\n"
    return RunRequest(id=job, steps=steps, work_dir=str(directory), **more)


async def test_a_job_runs_once_and_its_log_can_be_read_from_anywhere(connect: Connect, tmp_path: Path) -> None:
    """It has its own environment; variables are none of it."""
    asked = _request(
        tmp_path,
        "echo once >> ran; echo $FROM_REQUEST-$FROM_JOB-$PWD",
        env={"FROM_REQUEST": "yes"},
        variables=[Variable(key="FROM_JOB", value="no"), Variable(key="FILE", value="x", is_file=True)],
    )
    async with connect() as client:
        await client.run(asked)
        await client.run(asked)
        log = await log_of(client, "1")
        assert log.endswith(f"\nyes--{tmp_path}\n".encode())
        assert await log_of(client, "1", 5) == log[5:]
        await client.run(asked)
        assert (tmp_path / "ran").read_text() == "once\n"
        status = await client.status("1")
        assert (status.state, status.message) == (RunState.SUCCESS, "")
        assert status.started_at is not None
        assert status.ended_at is not None
        assert await client.statuses() == [status]
        await client.close("1")
        assert await client.statuses() == []


async def test_a_job_that_fails_says_so(connect: Connect, tmp_path: Path) -> None:
    """Its log is whole all the same."""
    async with connect() as client:
        await client.run(_request(tmp_path, "echo before; exit 3"))
        assert b"before\n" in await log_of(client, "1")
        status = await client.status("1")
        assert status.state is RunState.FAILURE
        assert "exit status 3" in status.message


async def test_a_job_outlives_the_connection_that_started_it(connect: Connect, tmp_path: Path) -> None:
    """Another one follows it from where the first was."""
    async with connect() as client:
        await client.run(_request(tmp_path, "echo begun; until [ -e go ]; do sleep 0.05; done; seq 20000"))
        heard = await log_until(client, "1", b"begun\n")
    (tmp_path / "go").touch()
    async with connect() as client:
        heard += await log_of(client, "1", len(heard))
        assert heard.partition(b"begun\n")[2].split() == [b"%d" % each for each in range(1, 20001)]


async def test_closing_ends_a_job(connect: Connect, tmp_path: Path) -> None:
    """Nothing is known of it afterwards, and its id is free."""
    async with connect() as client:
        await client.run(_request(tmp_path, "echo begun; exec sleep 1000"))
        await log_until(client, "1", b"begun\n")
        await client.close("1")
        await client.close("1")
        with pytest.raises(CallFailed, match="no job with id"):
            await client.status("1")
        await client.run(_request(tmp_path, "echo again"))
        assert (await log_of(client, "1")).endswith(b"again\n")


async def test_many_jobs_at_one_time_are_kept_apart(connect: Connect, tmp_path: Path) -> None:
    """Each has its own log; one connection follows all of them."""
    logs: dict[str, bytes] = {}

    async def see_through(client: StepRunnerClient, job: str) -> None:
        await client.run(_request(tmp_path / job, f"seq 500; echo {job}", job))
        logs[job] = await log_of(client, job)

    async with connect() as client:
        async with anyio.create_task_group() as tasks:
            for number in range(8):
                tasks.start_soon(see_through, client, f"job-{number}")
        assert {job: log.splitlines()[-1].decode() for job, log in logs.items()} == {job: job for job in logs}
        assert {job.state for job in await client.statuses()} == {RunState.SUCCESS}


@pytest.mark.parametrize("steps", ["nonsense", "spec: {}\n---\nrun: 5\n", "spec: {}\n---\nrun: [{name: a}]\n", ""])
async def test_steps_that_cannot_be_read_are_refused_at_once(connect: Connect, tmp_path: Path, steps: str) -> None:
    """No job comes of it."""
    async with connect() as client:
        with pytest.raises(CallFailed) as failed:
            await client.run(RunRequest(id="1", steps=steps, work_dir=str(tmp_path)))
        assert failed.value.code in {Code.INVALID_ARGUMENT, Code.UNKNOWN}
        assert str(failed.value)
        assert await client.statuses() == []


@pytest.mark.step_runner
async def test_theirs_has_no_results(theirs: Connect, tmp_path: Path) -> None:
    """A manager learns so from the first call."""
    async with theirs() as client:
        await client.run(_request(tmp_path, "true"))
        assert await client.results("1") is None
        with pytest.raises(CallFailed) as failed:
            async for _ in client.follow_results("1"):
                pass
        assert failed.value.code is Code.UNIMPLEMENTED
