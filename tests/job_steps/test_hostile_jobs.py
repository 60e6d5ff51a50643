"""Jobs and managers that mean no good to the agent: what they take away, put in its way, or never end."""

import json
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import anyio
import pytest
from anyio.abc import ByteStream, SocketAttribute, SocketStream
from attrs import define

from job_steps._agent import _job, _listening, _service
from job_steps._agent._directory import (
    KEPT_FOR,
    MOST_REMOVED,
    UNUSED_FOR,
    Lock,
    remove_old_versions,
    write_whole,
)
from job_steps._agent._job import KeptJob, directory_of
from job_steps._agent._running import Rules
from job_steps._agent._service import Service
from job_steps._grpc_server import Presence
from job_steps._removing import remove_tree
from job_steps.client import CallFailed, Code, ConnectionLost, RunRequest, RunState, StepRunnerClient, step_runner
from tests.fleeting.local_agents import POLL
from tests.job_steps.agents import MemoryStream, agent, log_of, log_until, memory_streams


def _steps(script: str) -> str:
    return json.dumps([{"name": "a", "script": script}])


@asynccontextmanager
async def _clients(directory: Path) -> AsyncIterator[tuple[StepRunnerClient, StepRunnerClient]]:
    """Two managers of a service in this process."""
    (directory / "jobs").mkdir(parents=True, exist_ok=True)
    async with anyio.create_task_group() as tasks, AsyncExitStack() as connected:
        service = Service(directory / "jobs", tasks, Rules())
        await service.take_over()
        clients = []
        for _ in range(2):
            ours, theirs = memory_streams()
            tasks.start_soon(service.serve, theirs)
            clients.append(await connected.enter_async_context(step_runner(ours)))
        yield clients[0], clients[1]
        await connected.aclose()
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def _client(directory: Path) -> AsyncIterator[StepRunnerClient]:
    async with _clients(directory) as (client, _):
        yield client


def _open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


# --- what is on disk ------------------------------------------------------------------------------------------


def _spoil(directory: Path, what: str) -> None:
    """Do something to what is kept of a job."""
    status = directory / "job.json"
    kept = json.loads(status.read_text())
    status.unlink()
    match what:
        case "deep":
            status.write_text("[" * 200_000)
        case "huge":
            status.write_bytes(b" " * (5 << 20))
        case "fifo":
            os.mkfifo(status)
        case "link":
            status.symlink_to("/dev/zero")
        case "directory":
            status.mkdir()
        case "another's":
            status.write_text(json.dumps({**kept, "id": "other"}))


@pytest.mark.anyio
@pytest.mark.parametrize("what", ["deep", "huge", "fifo", "link", "directory", "another's"])
async def test_what_a_job_does_to_others_files_keeps_no_agent_from_starting(tmp_path: Path, what: str) -> None:
    """It is passed over; the other jobs are there."""
    async with _client(tmp_path) as client:
        for job in ("1", "2"):
            await client.run(RunRequest(id=job, steps=_steps("echo"), work_dir=str(tmp_path)))
            await log_of(client, job)
    _spoil(tmp_path / "jobs" / "1", what)
    async with _client(tmp_path) as client:
        assert [status.id for status in await client.statuses()] == ["2"]


@pytest.mark.anyio
async def test_what_is_read_of_a_job_is_what_can_be_said_of_it(tmp_path: Path) -> None:
    """Times without a zone, half characters and endless messages are no reason to say nothing of all jobs."""
    async with _client(tmp_path) as client:
        await client.run(RunRequest(id="1", steps=_steps("echo"), work_dir=str(tmp_path)))
        await log_of(client, "1")
    status = tmp_path / "jobs" / "1" / "job.json"
    spoilt = {"started": "2026-11-27T12:00:00", "message": "\ud800" * 100_000}
    status.write_text(json.dumps({**json.loads(status.read_text()), **spoilt}))
    for name in ("results.json", "log"):
        (status.parent / name).unlink()
        os.mkfifo(status.parent / name)
    async with _client(tmp_path) as client:
        [found] = await client.statuses()
        assert (found.id, len(found.message)) == ("1", 4096)
        assert await log_of(client, "1") == b""
        assert await client.results("1") is not None


@pytest.mark.anyio
async def test_no_job_is_kept_that_the_disk_does_not_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of it stays: no file that is open, and no directory."""

    def full(path: Path, data: bytes) -> None:
        raise OSError(28, "No space left on device", str(path), len(data))

    async with _client(tmp_path) as client:
        await client.statuses()
        before = _open_files()
        with monkeypatch.context() as patched:
            patched.setattr(_job, "write_whole", full)
            for _ in range(5):
                with pytest.raises(CallFailed, match="No space left on device") as failed:
                    await client.run(RunRequest(id="1", steps=_steps("echo"), work_dir=str(tmp_path)))
                assert failed.value.code is Code.RESOURCE_EXHAUSTED
        assert _open_files() <= before, "those of earlier tests may have been closed meanwhile"
        assert list((tmp_path / "jobs").iterdir()) == []
        await client.run(RunRequest(id="1", steps=_steps("echo"), work_dir=str(tmp_path)))


@pytest.mark.anyio
async def test_a_disk_that_is_full_fails_the_job_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says why."""

    async def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(_service, "run", full)
    async with _client(tmp_path) as client:
        await client.run(RunRequest(id="1", steps=_steps("echo"), work_dir=str(tmp_path)))
        await log_of(client, "1")
        assert (await client.status("1")).message == "the job cannot be run there: No space left on device"


def test_a_file_is_put_in_place_whatever_is_there(tmp_path: Path) -> None:
    """A pipe would be waited for, a link would lead elsewhere."""
    path, elsewhere = tmp_path / "socket", tmp_path / "elsewhere"
    elsewhere.write_text("mine")
    for each in (path, tmp_path / "socket.new"):
        os.mkfifo(each)
        write_whole(path, b"data")
        assert path.read_bytes() == b"data"
        path.unlink()
        each.symlink_to(elsewhere)
        write_whole(path, b"data")
        assert (path.read_bytes(), elsewhere.read_text(), path.is_symlink()) == (b"data", "mine", False)


@pytest.mark.anyio
async def test_an_id_is_free_as_soon_as_its_job_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it takes to remove what is left of it: the next job of that name keeps its own."""
    removing, go_on = anyio.Event(), anyio.Event()

    def slowly(path: Path) -> None:
        if path.name.startswith(".old-"):
            anyio.from_thread.run_sync(removing.set)
            anyio.from_thread.run(go_on.wait)
        remove_tree(path)

    monkeypatch.setattr(_service, "remove_tree", slowly)
    async with _client(tmp_path) as client:
        asked = RunRequest(id="1", steps=_steps("echo one"), work_dir=str(tmp_path))
        await client.run(asked)
        await log_of(client, "1")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.close, "1")
            await removing.wait()
            kept = KeptJob.begin(tmp_path / "jobs", "1")
            go_on.set()
        assert (directory_of(tmp_path / "jobs", "1") / "job.json").exists()
        kept.log.close()


@pytest.mark.anyio
async def test_jobs_that_nobody_closes_make_room_after_a_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A manager that is gone for good does not keep an instance from working; one that is late has a day."""
    monkeypatch.setattr(_service, "MOST_JOBS", 2)
    later = _job.now() + timedelta(days=1, minutes=1)
    async with _client(tmp_path) as client:
        for job in ("1", "2"):
            await client.run(RunRequest(id=job, steps=_steps("echo"), work_dir=str(tmp_path)))
            await log_of(client, job)
        asked = RunRequest(id="3", steps=_steps("sleep 1000"), work_dir=str(tmp_path))
        with pytest.raises(CallFailed, match="the agent keeps 2 jobs already; close those that are over"):
            await client.run(asked)
        monkeypatch.setattr(_service, "now", lambda: later)
        await client.run(asked)
        assert sorted(status.id for status in await client.statuses()) == ["2", "3"]
        await client.close("3")


DEEP = f'{sys.executable} -c \'import os; [(os.mkdir("d"), os.chdir("d")) for _ in range(3000)]\''


@pytest.mark.anyio
async def test_directories_deeper_than_python_goes_end_nothing(tmp_path: Path) -> None:
    """Not their job, which has made them where its files are, nor whoever removes what it has left, or starts then."""
    async with _client(tmp_path) as client:
        job = tmp_path / "jobs" / "1"
        for place in (job / "files", job, tmp_path / "jobs" / "2"):
            script = f"mkdir -p {place} && cd {place} && {DEEP}"
            await client.run(RunRequest(id="1", steps=_steps(script), work_dir=str(tmp_path)))
            await log_of(client, "1")
            status = await client.status("1")
            assert (status.state, status.message) == (RunState.SUCCESS, "")
            await client.close("1")
            assert not job.exists()
        await client.run(RunRequest(id="2", steps=_steps("echo"), work_dir=str(tmp_path)))
        await log_of(client, "2")
    (tmp_path / "jobs" / ".old-1").mkdir()
    await anyio.run_process(DEEP, cwd=tmp_path / "jobs" / ".old-1")
    async with _client(tmp_path) as client:
        assert [(status.id, status.state) for status in await client.statuses()] == [("2", RunState.SUCCESS)]
    assert sorted(path.name for path in (tmp_path / "jobs").iterdir()) == ["2"]


def test_directories_that_may_only_be_read_are_removed() -> None:
    """Jobs leave such, and images have them: each time, they took their place on the disk for good."""
    user = os.geteuid()
    os.seteuid(user or 65534)  # who may do anything, would notice nothing
    try:
        directory = Path(tempfile.mkdtemp(dir="/tmp"))
        inner = directory / "a" / "b"
        inner.mkdir(parents=True)
        (inner / "file").touch()
        for path in (inner, inner.parent):
            path.chmod(0o555)
        remove_tree(directory)
        assert not directory.exists()
    finally:
        os.seteuid(user)


@pytest.mark.anyio
@pytest.mark.needs("setsid")
async def test_no_step_takes_away_what_its_processes_are_found_by(tmp_path: Path) -> None:
    """By `env`, or by what an earlier one exports: those that it has left are ended with it."""
    wait = "until [ -p NAME ]; do sleep 0.05; done"  # what just begins has no environment yet
    leave = f"(setsid sh -c 'echo $$ >> left; mkfifo NAME; read line < NAME' &); {wait}"
    export = """echo '{"name": "JOB_STEPS_JOB", "value": "x"}' > ${{ export_file }}"""
    (tmp_path / "export").mkdir()
    body = {"exec": {"command": ["sh", "-c", export]}}
    (tmp_path / "export" / "func.yml").write_text(f"spec:\n---\n{json.dumps(body)}\n")
    steps = [
        {"name": "a", "script": leave.replace("NAME", "first"), "env": {"JOB_STEPS_JOB": "x"}},
        {"name": "b", "func": "./export"},
        {"name": "c", "script": leave.replace("NAME", "second")},
    ]
    async with _client(tmp_path) as client:
        await client.run(RunRequest(id="1", steps=json.dumps(steps), work_dir=str(tmp_path)))
        await log_of(client, "1")
        assert (await client.status("1")).state is RunState.SUCCESS
        await client.close("1")
        for process in map(int, (tmp_path / "left").read_text().split()):
            while _runs(process):  # noqa: ASYNC110  (it tells nobody)
                await anyio.sleep(POLL)


def _runs(process: int) -> bool:
    with suppress(FileNotFoundError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


# --- its socket, its directory and its connections -------------------------------------------------------------

HAVOC = {
    "a pipe": "rm -rf DIR/socket DIR/socket.new DIR/agent.sock; mkfifo DIR/socket DIR/socket.new",
    "directories": "rm -rf DIR/socket DIR/agent.sock; mkdir -p DIR/socket DIR/socket.new/x",
    "all of it": "rm -rf DIR",
    "the lock": "rm -rf DIR/lock DIR/agent.sock; mkfifo DIR/lock",
}


@pytest.mark.anyio
@pytest.mark.parametrize("havoc", HAVOC.values(), ids=HAVOC.keys())
async def test_a_job_that_wrecks_the_agents_directory_ends_nothing(placed: Path, tmp_path: Path, havoc: str) -> None:
    """The other job goes on, and whoever comes gets there."""
    directory = tmp_path / "agent"
    async with agent(placed, directory) as (process, client):
        await client.run(
            RunRequest(id="other", steps=_steps("until [ -e go ]; do sleep 0.05; done; echo x"), work_dir=str(tmp_path))
        )
        await client.run(RunRequest(id="1", steps=_steps(havoc.replace("DIR", str(directory))), work_dir=str(tmp_path)))
        await log_of(client, "1")
        while not (directory / "agent.sock").exists():  # noqa: ASYNC110  (it tells nobody)
            await anyio.sleep(POLL)
        async with step_runner(await anyio.connect_unix(directory / "agent.sock")) as later:
            assert len(await later.statuses()) == 2
        (tmp_path / "go").touch()
        assert (await log_of(client, "other")).endswith(b"x\n")
        assert process.returncode is None


def test_a_directory_is_one_agents_even_if_its_lock_is_taken_away(tmp_path: Path) -> None:
    """Who had it has it again, unless another one was faster."""
    first, second = Lock(tmp_path), Lock(tmp_path)
    assert first.take()
    assert first.take()
    assert not second.take()
    (tmp_path / "lock").unlink()
    assert first.take()
    assert not second.take()
    (tmp_path / "lock").unlink()
    assert second.take()
    assert not first.take()
    second.let_go()
    assert first.take()
    first.let_go()


@define(eq=False)
class _Connected(MemoryStream):
    """One end of a connection that says who has connected."""

    @property
    def extra_attributes(self) -> Mapping[Any, Callable[[], Any]]:
        return {SocketAttribute.raw_socket: lambda: None}


@pytest.mark.anyio
async def test_those_who_say_nothing_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those who wait for an answer stay; if all do, nobody else gets in; and an error of one is nobody else's."""
    monkeypatch.setattr(_listening, "MOST_CONNECTIONS", 3)
    monkeypatch.setattr(_listening, "IDLE_TIME", 0.0)
    monkeypatch.setattr(_listening, "_is_ours", lambda _: True)
    (tmp_path / "jobs").mkdir()

    async def answer(stream: ByteStream, presence: Presence) -> None:
        if is_broken:
            raise RuntimeError("of one connection")
        await service.serve(stream, presence)

    def connect() -> MemoryStream:
        ours, theirs = memory_streams()
        tasks.start_soon(present.answer, cast("SocketStream", _Connected(theirs.incoming, theirs.outgoing)))
        return ours

    present, is_broken = _listening._Present(answer), False
    async with anyio.create_task_group() as tasks:
        service = Service(tmp_path / "jobs", tasks, Rules())
        async with step_runner(connect()) as first, AsyncExitStack() as many:
            await first.run(RunRequest(id="1", steps=_steps("echo begun; sleep 1000"), work_dir=str(tmp_path)))
            following = [first.follow_logs("1")]
            await following[0].__anext__()
            silent = [connect() for _ in range(8)]
            await anyio.wait_all_tasks_blocked()
            others = [await many.enter_async_context(step_runner(connect())) for _ in range(2)]
            for each in others:
                following.append(each.follow_logs("1"))
                await following[-1].__anext__()
            assert present.count == 3
            for stream in silent:
                with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
                    while True:
                        await stream.receive()
                await stream.aclose()
            with pytest.raises(ConnectionLost):
                async with step_runner(connect()) as late:
                    await late.statuses()
            await following.pop().aclose()
            await others[1].statuses()  # the service has heard of that now
            is_broken = True
            with pytest.raises(ConnectionLost):
                async with step_runner(connect()) as late:
                    await late.statuses()
            assert [status.id for status in await first.statuses()] == ["1"]
            await first.close("1")
        tasks.cancel_scope.cancel()


@pytest.mark.anyio
async def test_a_log_can_be_asked_for_from_anywhere(tmp_path: Path) -> None:
    """From beyond what any file can have, too."""
    async with _client(tmp_path) as client:
        await client.run(RunRequest(id="1", steps=_steps("echo"), work_dir=str(tmp_path)))
        await log_of(client, "1")
        assert await log_of(client, "1", (1 << 63) - 1) == b""
        with pytest.raises(CallFailed, match="cannot be read from byte -1"):
            await log_of(client, "1", -1)


@pytest.mark.anyio
async def test_two_managers_share_an_agent(tmp_path: Path) -> None:
    """Each has its own jobs, both see all; what one closes is gone for the other, whose log ends."""
    script = "echo once >> ran; echo begun; sleep 1000"
    request = RunRequest(id="1", steps=_steps(script), work_dir=str(tmp_path))
    async with _clients(tmp_path) as (one, two):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(one.run, request)
            tasks.start_soon(two.run, request)
        heard = await log_until(two, "1", b"begun\n")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(one.close, "1")
            with suppress(CallFailed):  # it may be gone already
                assert await log_of(two, "1", len(heard)) == b""
        with pytest.raises(CallFailed) as failed:
            await two.status("1")
        assert failed.value.code is Code.NOT_FOUND
        await two.close("1")
    assert (tmp_path / "ran").read_text() == "once\n"


# --- versions that nobody uses ----------------------------------------------------------------------------------

NOW = 1_800_000_000.0


def _version(home: Path, name: str, age: float, *, jobs: bool = False) -> Path:
    """Leave a version that was started last so many seconds ago."""
    version = home / name
    (version / "run" / "jobs").mkdir(parents=True)
    if jobs:
        (version / "run" / "jobs" / "1").mkdir()
    for path in (version / "agent.pyz", version / "run" / "lock"):
        path.touch()
    for path in (version / "agent.pyz", version / "run" / "jobs", version / "run" / "lock", version / "run", version):
        os.utime(path, (NOW - age, NOW - age))
    return version


def test_versions_that_nobody_uses_are_removed(tmp_path: Path) -> None:
    """Not the own one, not one that runs, was used of late, or has jobs; and nothing that is no version."""
    home = tmp_path / ".job-steps"
    own = _version(home, "0" * 16, UNUSED_FOR * 9)
    old = _version(home, "1" * 16, UNUSED_FOR + 1)
    new = _version(home, "2" * 16, UNUSED_FOR - 1)
    jobs = _version(home, "3" * 16, UNUSED_FOR + 1, jobs=True)
    lost = _version(home, "4" * 16, KEPT_FOR + 1, jobs=True)
    runs = _version(home, "5" * 16, UNUSED_FOR * 9)
    other = _version(home, "notes", UNUSED_FOR * 9)
    (home / ("6" * 16)).symlink_to(other)
    (home / ".old-1").mkdir()
    lock = Lock(runs / "run")
    assert lock.take()
    assert remove_old_versions(own / "run", NOW) == 2
    lock.let_go()
    assert {path.name for path in home.iterdir()} == {
        *(path.name for path in (own, new, jobs, runs, other)),
        "6" * 16,
    }
    assert other.exists()
    assert not old.exists()
    assert not lost.exists()


def test_no_more_versions_are_removed_at_once_than_is_quick(tmp_path: Path) -> None:
    """And two agents that do so at once do not get in each other's way; elsewhere, nothing is removed."""
    home = tmp_path / ".job-steps"
    own = _version(home, "0" * 16, 0)
    for number in range(1, MOST_REMOVED + 3):
        _version(home, f"{number:016x}", UNUSED_FOR + 1)
    assert remove_old_versions(own / "run", NOW) == MOST_REMOVED
    assert remove_old_versions(own / "run", NOW) == 2
    elsewhere = _version(tmp_path / "elsewhere", "1" * 16, 0)
    _version(tmp_path / "elsewhere", "2" * 16, UNUSED_FOR + 1)
    assert remove_old_versions(elsewhere / "run", NOW) == 0


@pytest.mark.anyio
async def test_an_agent_that_starts_removes_old_versions(placed: Path, tmp_path: Path) -> None:
    """And has been used itself then."""
    home = tmp_path / ".job-steps"
    shutil.copytree(placed, home)
    [own] = home.iterdir()
    os.utime(own / "agent.pyz", (1, 1))
    old = _version(home, "1" * 16, NOW - 1)
    async with agent(home, own / "run") as (_, client):
        await client.statuses()
        while old.exists():  # noqa: ASYNC110  (it tells nobody)
            await anyio.sleep(POLL)
    assert (own / "agent.pyz").stat().st_mtime > 1
