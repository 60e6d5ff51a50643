"""An agent on an instance, over both kinds of connection: placed, started and found again, and what may go wrong."""

import json
import re
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path

import anyio
import pytest

from fleeting.connectors import Collector, PosixConnection
from job_steps import StepResult
from job_steps._agent._job import LOST
from job_steps.client import (
    AgentError,
    CallFailed,
    Cause,
    Code,
    ConnectionLost,
    RunRequest,
    RunState,
    bring_agent,
    place_agent,
    reach,
)
from tests.fleeting import detached_commands
from tests.fleeting.local_agents import POLL
from tests.fleeting.sshd import dialled, sshd
from tests.job_steps.agents import agent, end_agents, log_of, log_until

pytestmark = pytest.mark.anyio

Connect = Callable[[Path], AbstractAsyncContextManager[tuple[PosixConnection, Path]]]


@asynccontextmanager
async def _instance(connect: Connect, directory: Path, placed: Path | None) -> AsyncIterator[PosixConnection]:
    """An instance, with the agent placed there or not; in the end, nothing runs there any more."""
    async with connect(directory) as (connection, kept):
        home = kept.parent if connection.detached_directory else kept.parent.parent
        if placed:
            await anyio.to_thread.run_sync(shutil.copytree, placed, home / ".job-steps")
        try:
            yield connection
        finally:
            await end_agents(connection)


@pytest.fixture(params=[detached_commands.connected, detached_commands.connected_over_ssh], ids=["local", "ssh"])
async def instance(request: pytest.FixtureRequest, tmp_path: Path, placed: Path) -> AsyncIterator[PosixConnection]:
    """An instance, and a connection to it."""
    async with _instance(request.param, tmp_path, placed) as connection:
        yield connection


@pytest.fixture
async def local(tmp_path: Path, placed: Path) -> AsyncIterator[PosixConnection]:
    """An instance of this host."""
    async with _instance(detached_commands.connected, tmp_path, placed) as connection:
        yield connection


@pytest.fixture
async def empty(tmp_path: Path) -> AsyncIterator[PosixConnection]:
    """The same, where no agent ever was."""
    async with _instance(detached_commands.connected, tmp_path, None) as connection:
        yield connection


def _kept(home: Path, job: str, text: bytes) -> bool:
    """Whether an agent's tree of a job is on disk, with a text in it."""
    return any(text in each.read_bytes() for each in home.rglob(f"jobs/{job}/results.json"))


def _mode(path: str) -> int:
    return Path(path).stat().st_mode & 0o777


async def _ended(process: int) -> None:
    """Wait for a process to be gone, or to be a zombie whose parent does not look."""
    status = anyio.Path(f"/proc/{process}/status")
    with suppress(OSError):
        while "State:\tZ" not in await status.read_text():  # noqa: ASYNC110  (it is no child of ours)
            await anyio.sleep(POLL)


def _script(text: str, job: str = "1", *, directory: Path | str, time_limit: float | None = None) -> RunRequest:
    steps = f"{{}}\n---\nrun:\n  - name: only\n    script: {text!r}\n"
    return RunRequest(id=job, steps=steps, work_dir=str(directory), time_limit=time_limit)


async def test_a_job_runs_once_and_is_known_until_it_is_closed(instance: PosixConnection, tmp_path: Path) -> None:
    """Its log can be read again from anywhere, its tree is there, and a repeated request runs nothing."""
    async with bring_agent(instance) as agent:
        client = agent.client
        asked = _script("echo once >> ran; echo hello", directory=tmp_path / "work")
        await client.run(asked)
        await client.run(asked)
        log = await log_of(client, "1")
        assert log.endswith(b"hello\n")
        await client.run(asked)
        assert await log_of(client, "1", 7) == log[7:]
        assert await log_of(client, "1", len(log)) == await log_of(client, "1", 1 << 40) == b""
        assert (tmp_path / "work" / "ran").read_text() == "once\n"
        status = await client.status("1")
        assert (status.id, status.state, status.cause) == ("1", RunState.SUCCESS, Cause.NONE)
        assert status.started_at is not None
        assert status.ended_at is not None
        assert status.ended_at >= status.started_at
        assert await client.statuses() == [status]
        results = await client.results("1")
        assert results is not None
        assert results.is_final
        assert results.tree is not None
        assert [step["status"] for step in results.tree["steps"]] == ["success"]
        await client.close("1")
        await client.close("1")
        assert await client.statuses() == []
        with pytest.raises(CallFailed) as failed:
            await client.status("1")
        assert failed.value.code is Code.NOT_FOUND


async def test_it_is_placed_once_started_once_and_found_again(instance: PosixConnection, tmp_path: Path) -> None:
    """A manager that comes later, or beside, meets the same agent with its jobs; nobody else gets to its socket."""
    async with bring_agent(instance) as agent:
        await agent.client.run(_script("sleep 1000", directory=tmp_path))
        assert _mode(agent.socket) == 0o600
        assert _mode(agent.socket.rpartition("/")[0]) == 0o700
        async with bring_agent(instance) as other:
            assert other.socket == agent.socket
            assert [job.id for job in await other.client.statuses()] == ["1"]
    async with reach(instance, agent.socket) as client:
        assert (await client.status("1")).state is RunState.RUNNING
        await client.close("1")
    assert len(await instance.list_detached()) == 1


async def test_it_is_placed_once(empty: PosixConnection) -> None:
    """Its modules are compiled then; a second call finds all of it, and nobody else may read it."""
    placed = await place_agent(empty)
    directory = Path(placed.path).parent
    names = {path.name: path.stat().st_mtime_ns for path in directory.iterdir()}
    assert set(names) == {"agent.pyz", f"agent.pyz.{sys.implementation.cache_tag}", "python"}
    assert await place_agent(empty) == placed
    assert {path.name: path.stat().st_mtime_ns for path in directory.iterdir()} == names
    assert _mode(str(directory)) == 0o700
    ran = await empty.run((placed.python, placed.path, "--help"), check=True)
    assert b"serve" in ran.stdout


async def test_an_agent_that_was_killed_leaves_its_jobs_defined(local: PosixConnection, tmp_path: Path) -> None:
    """One job killed its parent: it is lost, its processes are ended, and the next agent has what was over by then.

    It also has the tree of the lost one, as far as that had grown.
    """
    async with bring_agent(local) as agent:
        await agent.client.run(_script("echo done", "over", directory=tmp_path))
        over = await log_of(agent.client, "over")
        status = await agent.client.status("over")
        kill = (
            "until [ -e go ]; do sleep 0.05; done; (setsid sleep 1000 & echo $! > left); kill -KILL $PPID; sleep 1000"
        )
        steps = json.dumps([{"name": "first", "script": "true"}, {"name": "second", "script": kill}])
        await agent.client.run(RunRequest(id="killer", steps=steps, work_dir=str(tmp_path)))
        while not _kept(tmp_path, "killer", b"second"):  # noqa: ASYNC110  (it tells nobody)
            await anyio.sleep(POLL)
        (tmp_path / "go").touch()
        with pytest.raises(ConnectionLost, match="the connection to the service has ended"):
            await log_of(agent.client, "killer")
    left = int((tmp_path / "left").read_text())
    async with bring_agent(local) as agent:
        client = agent.client
        assert await client.status("over") == status
        assert await log_of(client, "over") == over
        results = await client.results("over")
        assert results is not None
        assert results.tree is not None
        assert results.tree["status"] == "success"
        lost = await client.status("killer")
        assert (lost.state, lost.cause) == (RunState.FAILURE, Cause.LOST)
        assert "the agent ended while this job ran" in lost.message
        results = await client.results("killer")
        assert results
        assert results.tree
        tree = StepResult.from_dict(results.tree)
        assert [(each.name, each.status.value, each.cause) for _, each in tree.walk()] == [
            ("", "failure", "lost"),
            ("first", "success", None),
            ("second", "failure", "lost"),
        ]
        assert tree.error == tree.steps[1].error == lost.message
        await client.run(_script("echo again > again", "killer", directory=tmp_path))
        assert await log_of(client, "killer") != b""
        assert not (tmp_path / "again").exists()
        await _ended(left)


async def test_a_socket_that_a_step_removes_is_put_up_again(local: PosixConnection, tmp_path: Path) -> None:
    """Whoever is connected notices nothing, and whoever comes gets there."""
    async with bring_agent(local) as agent:
        directory = Path(agent.socket).parent
        await agent.client.run(_script(f"rm -rf {directory}/*; echo gone", directory=tmp_path))
        assert (await log_of(agent.client, "1")).endswith(b"gone\n")
        async with bring_agent(local) as other:
            assert (await other.client.status("1")).state is RunState.SUCCESS
            await other.client.close("1")


async def test_closing_ends_a_job_with_all_that_it_has_started(instance: PosixConnection, tmp_path: Path) -> None:
    """What left its process group and its session, too; and whoever follows sees the end."""
    async with bring_agent(instance) as agent:
        client = agent.client
        script = "setsid sleep 1000 & echo $! > left; echo begun; sleep 1000"
        await client.run(_script(script, directory=tmp_path))
        heard = b""
        async for piece in client.follow_logs("1"):
            heard += piece
            if b"begun" in heard:
                await client.close("1")
        await _ended(int((tmp_path / "left").read_text()))
        assert await client.statuses() == []


async def test_a_connection_that_dies_costs_nothing(tmp_path: Path, placed: Path) -> None:
    """SSH's, and then its server, which is another one on the same port afterwards: the log arrives whole and once."""
    home = tmp_path / "home"
    home.mkdir()
    shutil.copytree(placed, home / ".job-steps")
    setting, script = f"SetEnv HOME={home} SHLVL=5", "echo begun; until [ -e go ]; do sleep 0.05; done; seq 3000"
    with sshd(tmp_path / "sshd", setting) as server:
        async with dialled(server.info) as connection, bring_agent(connection) as agent:
            socket = agent.socket
            await agent.client.run(_script(script, directory=tmp_path))
            heard = await log_until(agent.client, "1", b"begun\n")
            server.signal(signal.SIGKILL)
            with pytest.raises(ConnectionLost):
                await log_of(agent.client, "1", len(heard))
    (tmp_path / "go").touch()
    with sshd(tmp_path / "again", setting, port=server.port, user_key=server.user_key) as server:
        async with dialled(server.info) as connection, reach(connection, socket) as client:
            heard += await log_of(client, "1", len(heard))
            assert heard.partition(b"begun\n")[2] == b"".join(b"%d\n" % each for each in range(1, 3001))
            await client.close("1")
            await end_agents(connection)


async def test_a_time_limit_is_the_agents_to_keep(local: PosixConnection, tmp_path: Path) -> None:
    """The job is cancelled, and says why."""
    async with bring_agent(local) as agent:
        await agent.client.run(_script("sleep 1000", directory=tmp_path, time_limit=0.3))
        await log_of(agent.client, "1")
        status = await agent.client.status("1")
        assert (status.state, status.cause) == (RunState.CANCELLED, Cause.TIMED_OUT)
        assert status.message == "its time limit of 0.3 s was over"


async def test_results_grow_while_a_job_runs(local: PosixConnection, tmp_path: Path) -> None:
    """Whoever follows sees the first step before the second has ended, and the final tree last."""
    steps = "- {name: first, script: 'true'}\n- {name: second, script: 'until [ -e go ]; do sleep 0.05; done'}\n"
    async with bring_agent(local) as agent:
        await agent.client.run(RunRequest(id="1", steps=steps, work_dir=str(tmp_path)))
        seen = []
        async for results in agent.client.follow_results("1"):
            names = [(step["name"], step["status"]) for step in results.tree["steps"]] if results.tree else []
            seen.append(names)
            if names == [("first", "success"), ("second", "running")]:
                (tmp_path / "go").touch()
        assert results.is_final
        assert seen[-1] == [("first", "success"), ("second", "success")]
        assert len(seen) > 1


REFUSED = [
    (RunRequest(id="1", steps="- {name: a, script: x, inptus: {}}", work_dir="/"), Code.INVALID_ARGUMENT, "inputs"),
    (RunRequest(id="1", steps="[" * 100_000, work_dir="/"), Code.INVALID_ARGUMENT, "steps:1"),
    (RunRequest(id="1", steps="[]", work_dir="here"), Code.INVALID_ARGUMENT, "an absolute path, found 'here'"),
    (RunRequest(id="", steps="[]", work_dir="/"), Code.INVALID_ARGUMENT, "1 to 255 characters"),
    (RunRequest(id="1", steps="[]", work_dir="/", env={"A=B": "x"}), Code.INVALID_ARGUMENT, "'A=B' cannot be"),
    (
        RunRequest(id="1", steps="- {name: a, script: x}", work_dir="/dev/null/x"),
        Code.FAILED_PRECONDITION,
        "Not a directory",
    ),
]
"""Requests that cannot be carried out, with what is said of each."""


async def test_a_request_that_cannot_be_carried_out_starts_nothing(local: PosixConnection) -> None:
    """One sentence says why; the id is free."""
    async with bring_agent(local) as agent:
        for request, code, said in REFUSED:
            with pytest.raises(CallFailed, match=re.escape(said)) as failed:
                await agent.client.run(request)
            assert failed.value.code is code
        assert await agent.client.statuses() == []


async def test_an_instance_whose_python_is_too_old_says_so(empty: PosixConnection, tmp_path: Path) -> None:
    """One sentence, with what was found; nothing is started."""
    old = tmp_path / "python3"
    old.write_text("#!/bin/sh\ncase $2 in *exit*) exit 1 ;; esac\necho 3.6.8\n")
    old.chmod(0o755)
    with pytest.raises(AgentError) as error:
        async with bring_agent(empty, pythons=[str(old), "python0"]):
            pass
    assert str(error.value) == (
        "the agent cannot be placed on the instance: the instance has no Python 3.10 or later"
        f" ({old} is 3.6.8); install one"
    )


async def test_two_managers_may_start_one_agent_at_the_same_time(instance: PosixConnection) -> None:
    """Both reach the same one, whoever was first."""
    sockets = []
    both = anyio.Event()

    async def bring() -> None:
        async with bring_agent(instance) as agent:
            sockets.append(agent.socket)
            if len(sockets) == 3:
                both.set()
            await both.wait()

    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(bring)
    assert len(set(sockets)) == 1
    assert len(await instance.list_detached()) == 1


async def test_an_agent_ends_once_nobody_needs_it_and_its_jobs_wait_for_the_next(
    local: PosixConnection, tmp_path: Path
) -> None:
    """Whoever comes then starts another one, which knows what was over."""
    async with bring_agent(local, idle_time=2) as agent:
        await agent.client.run(_script("echo hello", directory=tmp_path))
        log = await log_of(agent.client, "1")
    [started] = await local.list_detached()
    assert (await local.attach(started.name, output=Collector("output"))).ok
    async with bring_agent(local) as agent:
        assert await log_of(agent.client, "1") == log


async def test_a_job_is_found_with_the_agent_of_another_policy(local: PosixConnection, tmp_path: Path) -> None:
    """It is started again with its own policy, which it applies, if it was killed; not with another one."""
    strict, lax = b'{"scripts": false, "allowed_paths": ["*"]}', b'{"timeout": 3600}'
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "step.yml").write_text("{}\n---\nexec: {command: [sleep, '1000']}\n")
    asked = RunRequest(id="a/b", steps="- {name: a, step: ./a}", work_dir=str(tmp_path))
    async with bring_agent(local, policy=strict) as agent:
        await agent.client.run(asked)
    async with bring_agent(local, policy=lax, job="a/b") as found:
        assert (found.socket, (await found.client.status("a/b")).state) == (agent.socket, RunState.RUNNING)
    for policy, job in ((lax, "a"), (b"", "")):
        async with bring_agent(local, policy=policy, job=job) as other:
            assert (other.socket != agent.socket, await other.client.statuses()) == (True, [])
    await end_agents(local)
    async with bring_agent(local, policy=lax, job="a/b") as found:
        assert RunState((await found.client.status("a/b")).state).is_over
        with pytest.raises(CallFailed, match="the policy's `scripts` refuses"):
            await found.client.run(_script("echo", directory=tmp_path))
    await end_agents(local)
    kept = Path(local.detached_directory).parent.glob(".job-steps/*/run-*/policy")
    (written,) = [each for each in kept if each.read_bytes() == strict]
    written.write_bytes(lax)
    with pytest.raises(AgentError, match=r"cannot be started again: .*/policy is not its policy any more"):
        async with bring_agent(local, policy=lax, job="a/b"):
            pass


async def test_an_agent_that_is_told_to_end_loses_its_jobs(placed: Path, tmp_path: Path) -> None:
    """By one of them, or because its instance ends: which is no failure of theirs, so that they run again elsewhere."""
    async with agent(placed, tmp_path / "agent") as (process, client):
        script = "(setsid sleep 1000 & echo $! > left); echo begun; sleep 1000"
        await client.run(_script(script, directory=tmp_path))
        await log_until(client, "1", b"begun\n")
        await client.run(_script("kill $PPID; sleep 1000", "killer", directory=tmp_path))
        assert await process.wait() == 0
    await _ended(int((tmp_path / "left").read_text()))
    async with agent(placed, tmp_path / "agent") as (_, client):
        found = [(status.state, status.cause, status.message) for status in await client.statuses()]
        results = await client.results("1")
    assert found == [(RunState.FAILURE, Cause.LOST, LOST)] * 2
    assert results
    assert results.tree
    tree = StepResult.from_dict(results.tree)
    assert [(each.status.value, each.cause) for _, each in tree.walk()] == [("failure", "lost")] * 2


async def test_an_agent_that_a_job_has_stopped_goes_on_when_a_manager_comes(
    local: PosixConnection, tmp_path: Path
) -> None:
    """It answered nobody, and ended no job whose time was over."""
    async with bring_agent(local) as agent:
        script = "echo $PPID > parent.new; mv parent.new parent; kill -STOP $PPID; echo on"
        await agent.client.run(_script(script, directory=tmp_path))
        while not _is_stopped(tmp_path / "parent"):  # noqa: ASYNC110  (it tells nobody)
            await anyio.sleep(POLL)
        async with bring_agent(local) as again:
            assert again.socket == agent.socket
            assert (await log_of(again.client, "1")).endswith(b"on\n")


def _is_stopped(named: Path) -> bool:
    return named.exists() and "State:\tT" in Path(f"/proc/{named.read_text().strip()}/status").read_text()


async def test_what_a_job_puts_in_the_place_of_an_address_is_not_read_for_ever(
    local: PosixConnection, tmp_path: Path
) -> None:
    """A terabyte without an end of a line, which takes no place on a disk, kept every manager out."""
    async with bring_agent(local) as agent:
        script = (
            f"cd {tmp_path}/*/.job-steps/*/run && for each in socket process; do rm $each && truncate -s 1T $each; done"
        )
        await agent.client.run(_script(script, directory=tmp_path))
        await log_of(agent.client, "1")
    async with bring_agent(local) as again:
        assert again.socket == agent.socket
        assert (await again.client.status("1")).state is RunState.SUCCESS


def _set_python(home: Path, program: Path) -> None:
    """Have agents run by a program that were placed somewhere below."""
    [named] = home.rglob(".job-steps/*/python")
    named.write_text(f"{program}\n")


async def test_what_is_set_up_for_python_is_not_for_the_agent(local: PosixConnection, tmp_path: Path) -> None:
    """In its environment, or in its home, where a job may have left it; a job's own Python has it."""
    note = f"open({str(tmp_path / 'ran')!r}, 'a').write(repr(sys.orig_argv) + chr(10))"
    (tmp_path / "sitecustomize.py").write_text(f"import sys\n{note}\n")
    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\nexport PYTHONPATH={tmp_path}\nexec {sys.executable} "$@"\n')
    program.chmod(0o700)
    _set_python(tmp_path, program)
    async with bring_agent(local) as agent:
        await agent.client.run(_script(f"{sys.executable} -c pass mine", directory=tmp_path))
        await log_of(agent.client, "1")
    ran = (tmp_path / "ran").read_text()
    assert "'mine'" in ran
    assert "agent.pyz" not in ran


async def test_what_is_said_when_the_agent_cannot_be_placed(empty: PosixConnection) -> None:
    """A disk that is full or read-only, for example: the shell's own words."""
    home = Path(empty.detached_directory).parent
    (home / ".job-steps").write_text("in the way")
    with pytest.raises(AgentError, match=r"cannot be placed on the instance: mkdir: .*(File exists|Not a directory)"):
        await place_agent(empty)
