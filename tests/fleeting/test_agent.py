"""The agent of the `local` group: what it does with requests, garbage, strangers, and without a manager."""

import json
import os
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import anyio
import pytest
from anyio.abc import UNIXSocketStream
from anyio.streams.buffered import BufferedByteReceiveStream

from fleeting import State, Unreachable
from fleeting.groups.local import _agent
from tests.fleeting.local_agents import (
    DETACHED,
    Heard,
    agent_of,
    dialled,
    kill,
    names,
    open_descriptors,
    opened,
    pipe,
    seen,
    settled,
    started,
    watched,
)

pytestmark = pytest.mark.anyio

MANAGER = """
import anyio, fleeting, os, sys
from fleeting.groups.local import LocalConfig, LocalGroup

async def main():
    group = LocalGroup(LocalConfig(directory=sys.argv[1], orphan_ttl=0.05))
    await group.init(fleeting.Settings(owner="test", clock=fleeting.LoopClock()))
    await group.increase(2, intent="job")
    while any(each.state is not fleeting.State.RUNNING for each in (await group.update()).instances.values()):
        await anyio.sleep(0.01)
    print("running", flush=True)
    await anyio.sleep_forever()

anyio.run(main)
"""


@asynccontextmanager
async def talking(directory: Path) -> AsyncIterator[tuple[UNIXSocketStream, int]]:
    """Start an agent and connect to it as anybody may; gives its process id too."""
    async with opened(directory) as group:
        (instance,) = await started(group)
        async with await anyio.connect_unix(directory / instance / "agent.sock") as stream:
            await settled(stream)
            yield stream, agent_of(directory, instance)
        await group.heartbeat(instance)


async def everything(stream: UNIXSocketStream) -> bytes:
    """Hear the other side out until it hangs up."""
    heard = b""
    try:
        while True:
            heard += await stream.receive()
    except (anyio.EndOfStream, anyio.BrokenResourceError):
        return heard


@pytest.mark.parametrize(
    ("request_line", "complaint"),
    [
        (b"GET / HTTP/1.1", "Expecting value"),
        (b"", "Expecting value"),
        (b"\xff\xfe\x00", "codec can't decode"),
        (b"[]", "a request must be an object"),
        (b"[" * 100_000, "recursion"),
        (b"{}", "op must be ping, attach, run or launch, not None"),
        (b'{"op": "explode"}', "op must be ping, attach, run or launch, not 'explode'"),
        (b'{"op": "run"}', "argv must be a list of strings"),
        (b'{"op": "run", "argv": []}', "argv must be a list of strings"),
        (b'{"op": "run", "argv": "ls"}', "argv must be a list of strings"),
        (b'{"op": "run", "argv": [1]}', "argv must be a list of strings"),
        (b'{"op": "run", "argv": ["ls"], "env": ["A=b"]}', "env must be an object of strings"),
        (b'{"op": "run", "argv": ["ls"], "env": {"A": 1}}', "env must be an object of strings"),
        (b'{"op": "run", "argv": ["ls"], "cwd": 1}', "cwd must be a string"),
        (b'{"op": "run", "argv": ["ls"]}', "a command needs stdin, stdout and stderr"),
    ],
)
async def test_garbage_gets_one_line_and_harms_nobody(tmp_path: Path, request_line: bytes, complaint: str) -> None:
    """A request that cannot be understood is answered with the reason, then the agent hangs up and lives on."""
    async with talking(tmp_path) as (stream, _):
        await stream.send(request_line + b"\n")
        (answer,) = (await everything(stream)).splitlines()
        assert complaint in json.loads(answer)["error"]


async def test_a_request_has_a_limit(tmp_path: Path) -> None:
    """Who sends more than any request can be is cut off."""
    async with talking(tmp_path) as (stream, _):
        with pytest.raises(anyio.BrokenResourceError):
            await stream.send(bytes(100 * 65536))


async def test_half_a_request_is_forgotten(tmp_path: Path) -> None:
    """Who hangs up in the middle of a request leaves nothing open in the agent."""
    async with talking(tmp_path) as (stream, agent):
        before = open_descriptors(agent)
        async with await anyio.connect_unix(f"/proc/{agent}/cwd/agent.sock") as other:
            await other.send_fds(b'{"op": "run", ', [0, 1, 2])
            await settled(stream)
            assert open_descriptors(agent) == before + 4
        await settled(stream)
        assert open_descriptors(agent) == before


async def test_too_many_descriptors_are_refused(tmp_path: Path) -> None:
    """Descriptors that no request can use are closed, not collected."""
    async with talking(tmp_path) as (stream, agent):
        before = open_descriptors(agent)
        async with await anyio.connect_unix(f"/proc/{agent}/cwd/agent.sock") as other:
            for _ in range(2):
                await other.send_fds(b" ", [0, 1, 2])
                await settled(stream)
            assert b"the request is too large" in await everything(other)
        assert open_descriptors(agent) == before


async def test_requests_may_come_in_a_row_or_in_pieces(tmp_path: Path) -> None:
    """Lines make requests, not packets."""
    async with talking(tmp_path) as (stream, _):
        await stream.send(b'{"op": "ping"}\n{"op": "ping"}\n{"op":')
        await stream.send(b' "ping"}\n')
        answers = b""
        while answers.count(b"\n") < 3:
            answers += await stream.receive()
        assert answers == b'{"ok": true}\n' * 3


async def test_nothing_follows_a_run(tmp_path: Path) -> None:
    """What a client sends after a command ends that command; it is no request."""
    with pipe() as (stdin, stdout):
        async with talking(tmp_path) as (stream, _):
            await stream.send_fds(b'{"op": "run", "argv": ["sleep", "1000"]}\n', [stdin, stdout, stdout])
            await stream.send(b'{"op": "attach"}\n')
            assert json.loads(await everything(stream)) == {"exit_status": None, "signal": "SIGTERM"}


async def test_a_run_may_follow_once_there_is_an_answer(tmp_path: Path) -> None:
    """Whatever else comes then is refused."""
    request = b'{"op": "run", "argv": ["sh", "-c", "exit 3"]}\n'
    with pipe() as (stdin, stdout):
        async with talking(tmp_path) as (stream, _):
            for _ in range(2):
                await stream.send_fds(request, [stdin, stdout, stdout])
                assert json.loads(await stream.receive()) == {"exit_status": 3, "signal": None}
            await stream.send(b'{"op": "attach"}\n')
            assert json.loads(await everything(stream)) == {"error": "op must be run after a run, not 'attach'"}


async def test_an_environment_that_is_refused_half_way_leaves_nothing(tmp_path: Path) -> None:
    """The next command may be of another job, and what was taken before the refusal is perhaps a secret."""
    with pipe() as (stdin, stdout):
        async with talking(tmp_path) as (stream, _):
            for refused in ("A=B", "A\0", "\ud800", ""):
                for env, status in (({"SECRET": "hush", refused: ""}, 126), ({}, 0)):
                    request = json.dumps({"op": "run", "argv": ["env"], "env": env}).encode()
                    await stream.send_fds(request + b"\n", [stdin, stdout, stdout])
                    assert json.loads(await stream.receive()) == {"exit_status": status, "signal": None}
                written = os.read(stdin.fileno(), 65536)
                assert written.startswith(b"cannot start env: ")
                assert b"PATH=" in written
                assert b"SECRET" not in written


@pytest.fixture
def public_directory() -> Iterator[Path]:
    """A directory that every user of this machine can reach."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o711)
        yield Path(directory)


@contextmanager
def somebody_else() -> Iterator[None]:
    """Be another user for a moment."""
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
async def test_other_users_get_no_answer(public_directory: Path) -> None:
    """Even if they can reach the socket, the agent hangs up on them."""
    async with opened(public_directory / "group") as group:
        (instance,) = await started(group)
        address = public_directory / "group" / instance / "agent.sock"
        for path, mode in ((address.parent.parent, 0o711), (address.parent, 0o711), (address, 0o666)):
            path.chmod(mode)
        with socket.socket(socket.AF_UNIX) as intruder:
            with somebody_else():
                intruder.connect(str(address))
            assert await anyio.to_thread.run_sync(intruder.recv, 1) == b""
        await group.heartbeat(instance)


async def test_orphans_end_by_themselves(tmp_path: Path) -> None:
    """When the manager is killed its agents end, and take their directories and the group's along."""
    root = tmp_path / "group"
    async with await anyio.open_process([sys.executable, "-c", MANAGER, str(root)], stderr=None) as manager:
        assert manager.stdout is not None
        assert await BufferedByteReceiveStream(manager.stdout).receive_until(b"\n", 100) == b"running"
        agents = [agent_of(root, instance) for instance in names(root)]
        with watched(*agents) as processes:
            manager.kill()
            for process in processes:
                await process.ended()
    assert len(agents) == 2
    assert names(tmp_path) == []


@pytest.mark.needs("setsid")
async def test_an_agent_that_its_manager_left_ends_with_its_jobs(tmp_path: Path) -> None:
    """After `orphan_ttl` without a manager everything that runs in the instance is killed, whoever is connected."""
    heard = Heard()
    async with opened(tmp_path / "group", orphan_ttl=0.05) as group:
        (instance,) = await started(group)
        async with dialled(group, instance) as connection, anyio.create_task_group() as tasks:

            async def leave() -> None:
                with watched(*await heard.pids(2), agent_of(tmp_path / "group", instance)) as processes:
                    await group.shutdown()
                    for process in processes:
                        await process.ended()

            tasks.start_soon(leave)
            with pytest.raises(Unreachable):
                await connection.run(f"{DETACHED} echo $$; exec sleep 1000", stdout=heard)


@pytest.mark.needs("setsid")
async def test_sigterm_ends_an_agent_in_good_order(tmp_path: Path) -> None:
    """Its jobs are killed, its directory goes, and the group shows it as being deleted, then not at all."""
    heard = Heard()
    async with opened(tmp_path) as group:
        (instance,) = await started(group)
        async with dialled(group, instance) as connection, anyio.create_task_group() as tasks:

            async def end() -> None:
                with watched(*await heard.pids(2)) as processes:
                    kill(agent_of(tmp_path, instance), signal.SIGTERM)
                    for process in processes:
                        await process.ended()

            tasks.start_soon(end)
            with pytest.raises(Unreachable):
                await connection.run(f"{DETACHED} echo $$; exec sleep 1000", stdout=heard)
        shown = {State.RUNNING, State.DELETING}
        await seen(group, lambda view: not view or not {each.state for each in view.values()} <= shown)
        assert (await group.update()).instances == {}
        assert names(tmp_path) == []


async def test_read_only_directories_do_not_stay_behind(tmp_path: Path) -> None:
    """What a job made read-only, as some package managers do, is removed with the instance all the same."""
    async with opened(tmp_path) as group:
        (instance,) = await started(group)
        async with dialled(group, instance) as connection:
            assert (await connection.run("mkdir -p a/b && touch a/b/c && ln -s / a/b/root && chmod -R a-w a")).ok
        await group.decrease([instance])
        await seen(group, lambda view: not view)
        assert names(tmp_path) == []


async def test_an_agent_keeps_nothing_of_its_managers_open(tmp_path: Path) -> None:
    """Descriptors that the manager passes on to its children do not live on in the agent."""
    with pipe() as (ours, passed_on):
        os.set_inheritable(passed_on.fileno(), True)
        async with opened(tmp_path) as group:
            (instance,) = await started(group)
            passed_on.close()
            assert await anyio.to_thread.run_sync(ours.read) == b""
            assert (await group.update()).instances[instance].state is State.RUNNING


def test_who_hangs_up_is_noticed_after_what_was_said() -> None:
    """Unread answers hide neither the end of a connection nor that it is open."""
    here, there = socket.socketpair()
    with here:
        with there:
            here.setblocking(False)
            there.send(b"hello")
            assert not _agent.has_hung_up(here)
            there.send(b"bye")
        assert _agent.has_hung_up(here)
