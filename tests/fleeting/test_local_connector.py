"""The `local` connector, on real agents."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import anyio
import pytest
from anyio.abc import ByteStream

import fleeting
from fleeting import (
    CommandFailed,
    ConnectError,
    ConnectorConfig,
    HostKeyMismatch,
    PluginNotFound,
    Unreachable,
    connectors,
)
from fleeting.connectors._pipe_output import CHUNK
from fleeting.groups.local import _agent, _client
from tests.fleeting.local_agents import (
    DETACHED,
    Heard,
    Watched,
    agent_of,
    children_of,
    connected,
    content,
    dialled,
    is_there,
    kill,
    open_descriptors,
    opened,
    settled,
    started,
    watched,
)

pytestmark = pytest.mark.anyio


def python(code: str) -> list[str]:
    """Make the command that runs this code."""
    return [sys.executable, "-I", "-S", "-c", code]


async def all_ended(processes: Sequence[Watched]) -> None:
    """Wait for the end of them all."""
    for process in processes:
        await process.ended()


async def test_collects_both_outputs_and_the_exit_status(tmp_path: Path) -> None:
    """Without sinks, the result has what the command wrote, each stream by itself."""
    async with connected(tmp_path / "group") as connection:
        completed = await connection.run("echo out; echo err >/dev/stderr; exit 3")
    assert (completed.exit_status, completed.signal) == (3, None)
    assert (completed.stdout, completed.stderr) == (b"out\n", b"err\n")
    assert not completed.ok


@pytest.mark.parametrize(("number", "name"), [(9, "SIGKILL"), (15, "SIGTERM"), (40, "SIG40")])
async def test_tells_the_signal_that_ended_the_command(tmp_path: Path, number: int, name: str) -> None:
    """A command that was killed has a signal in place of an exit status."""
    async with connected(tmp_path / "group") as connection:
        completed = await connection.run(f"kill -{number} $$")
    assert (completed.exit_status, completed.signal) == (None, name)


async def test_no_shell_touches_a_list(tmp_path: Path) -> None:
    """A program with its arguments gets them as they are."""
    async with connected(tmp_path / "group") as connection:
        completed = await connection.run(["printf", "%s|", "$HOME", "a b", "*"])
    assert completed.stdout == b"$HOME|a b|*|"


async def test_bytes_pass_unchanged(tmp_path: Path) -> None:
    """Neither input, output nor arguments need to be UTF-8."""
    everything = bytes(range(256))
    odd = b"\xff\xfe"
    async with connected(tmp_path / "group") as connection:
        assert (await connection.run("cat", stdin=everything)).stdout == everything
        assert (await connection.run(["printf", "%s", os.fsdecode(odd)])).stdout == odd


async def test_large_input_goes_through(tmp_path: Path) -> None:
    """Input that no pipe holds is fed as the command reads it."""
    data = os.urandom(1 << 20)
    async with connected(tmp_path / "group") as connection:
        assert (await connection.run("cat", stdin=data)).stdout == data


async def test_a_command_need_not_read_its_input(tmp_path: Path) -> None:
    """Input that the command leaves unread is no error."""
    async with connected(tmp_path / "group") as connection:
        assert (await connection.run("exec true", stdin=bytes(1 << 20))).ok


async def test_without_input_there_is_nothing_to_read(tmp_path: Path) -> None:
    """A command that reads meets the end at once, and does not wait."""
    async with connected(tmp_path / "group") as connection:
        assert (await connection.run("cat")).stdout == b""


async def test_environment_is_an_allow_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands see a few variables of the manager's and those they are given, never its secrets."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush")
    monkeypatch.setenv("LC_MESSAGES", "C")
    monkeypatch.setenv("TZ", "UTC")
    async with connected(tmp_path / "group") as connection:
        completed = await connection.run(["env", "-0"], env={"GREETING": "good\nmorning", "TZ": "Europe/Berlin"})
    seen = dict(entry.split("=", 1) for entry in completed.stdout.decode().rstrip("\0").split("\0"))
    assert (seen["GREETING"], seen["TZ"], seen["LC_MESSAGES"]) == ("good\nmorning", "Europe/Berlin", "C")
    allowed = {"GREETING", "HOME", "LANG", "LOGNAME", "PATH", "SHELL", "TMPDIR", "TZ", "USER"}
    assert {name for name in seen if not name.startswith("LC_")} <= allowed


async def test_runs_in_the_instances_own_directory_unless_told_otherwise(tmp_path: Path) -> None:
    """The default working directory belongs to the instance."""
    async with connected(tmp_path / "group") as connection:
        default = (await connection.run(["pwd"])).stdout.decode().strip()
        told = (await connection.run(["pwd"], cwd=str(tmp_path))).stdout.decode().strip()
    assert Path(default).name == "work"
    assert Path(default).is_relative_to(tmp_path / "group")
    assert told == str(tmp_path)


@pytest.mark.parametrize(
    ("command", "cwd", "status"),
    [(["no-such-program"], None, 127), (["pwd"], "/no/such/directory", 127), (["/"], None, 126), (["a\0b"], None, 126)],
)
async def test_what_cannot_be_started_exits_as_in_a_shell(
    tmp_path: Path, command: list[str], cwd: str | None, status: int
) -> None:
    """A program that is not there, or none, gives 127 or 126 and a line on stderr."""
    async with connected(tmp_path / "group") as connection:
        completed = await connection.run(command, cwd=cwd)
    assert completed.exit_status == status
    assert completed.stderr.startswith(b"cannot start ")


async def test_check_raises_for_a_failure_only(tmp_path: Path) -> None:
    """With `check`, a status other than 0 is an error that carries what came of the command."""
    async with connected(tmp_path / "group") as connection:
        assert (await connection.run("true", check=True)).ok
        with pytest.raises(CommandFailed, match="'echo why >&2; exit 4' exited with 4: why") as caught:
            await connection.run("echo why >&2; exit 4", check=True)
    assert caught.value.completed.exit_status == 4


async def test_output_is_heard_while_the_command_runs(tmp_path: Path) -> None:
    """A sink gets what is written at once, and the result has no copy of it."""
    heard = Heard()
    go = tmp_path / "go"
    os.mkfifo(go)
    async with connected(tmp_path / "group") as connection, anyio.create_task_group() as tasks:

        async def answer() -> None:
            assert await heard.lines(1) == [b"ready"]
            await anyio.to_thread.run_sync(go.write_text, "set")

        tasks.start_soon(answer)
        completed = await connection.run(f"echo ready; cat {go}", stdout=heard)
    assert (heard.data, completed.stdout) == (b"ready\nset", b"")


async def test_a_slow_sink_holds_the_command_up(tmp_path: Path) -> None:
    """What is between command and sink is bounded, by a pipe and a chunk, not by what the command writes."""
    size, written, heard = 10 << 20, tmp_path / "written", 0
    command = python(
        "import os, sys\n"
        f"record = os.open({str(written)!r}, os.O_CREAT | os.O_WRONLY)\n"
        f"for end in range(65536, {size} + 1, 65536):\n"
        "    os.write(1, bytes(65536)); os.pwrite(record, b'%10d' % end, 0)\n"
    )
    ahead = []

    async def slow(chunk: bytes) -> None:
        nonlocal heard
        assert len(chunk) <= CHUNK
        await anyio.to_thread.run_sync(os.sched_yield)
        ahead.append(int(written.read_bytes() or 0) - heard if written.exists() else 0)
        heard += len(chunk)

    async with connected(tmp_path / "group") as connection:
        assert (await connection.run(command, stdout=slow)).ok
    assert heard == size
    assert max(ahead) <= 3 * 65536


async def test_collecting_has_a_limit(tmp_path: Path) -> None:
    """Output beyond the limit without a sink is an error, and the command is ended."""
    async with connected(tmp_path / "group") as connection:
        with pytest.raises(ConnectError, match="more than 16 MiB to stdout; pass a sink"):
            await connection.run(["yes"])
        assert (await connection.run("true")).ok


async def test_a_failing_sink_ends_the_command(tmp_path: Path) -> None:
    """What a sink raises comes out as it is, after the process tree was ended."""
    pids: list[int] = []
    processes: list[Watched] = []

    async with connected(tmp_path / "group") as connection:
        with pytest.raises(LookupError, match="full"):

            async def full(chunk: bytes) -> None:
                pids.extend(map(int, chunk.split()))
                processes.extend(Watched(os.pidfd_open(pid)) for pid in pids)
                raise LookupError("full")

            await connection.run("echo $$; exec sleep 1000", stdout=full)
        assert len(processes) == 1
        await all_ended(processes)


async def test_a_command_has_three_descriptors(tmp_path: Path) -> None:
    """Those that it writes to end when it closes them, and nobody else's are among them."""
    async with connected(tmp_path / "group") as connection:
        listed = await connection.run('for fd in /proc/$$/fd/*; do [ ! -e "$fd" ] || echo "${fd##*/}"; done')
    assert listed.stdout == b"0\n1\n2\n"


@pytest.mark.needs("setsid")
async def test_nothing_outlives_its_command(tmp_path: Path) -> None:
    """When the result comes, what the command left in the background is gone, even if it left session and parent."""
    script = "(setsid sh -c 'echo $$ >pid; exec sleep 1000' &); until [ -s pid ]; do sleep 0.01; done; cat pid"
    async with connected(tmp_path / "group") as connection:
        completed = await connection.run(script)
    assert not is_there(int(completed.stdout))


@pytest.mark.needs("setsid")
async def test_cancelling_ends_the_whole_tree_first(tmp_path: Path) -> None:
    """When the cancellation comes out, children and grandchildren in other sessions are gone."""
    heard = Heard()
    async with connected(tmp_path / "group") as connection:
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:

                async def cancel() -> None:
                    with watched(*await heard.pids(3)) as processes:
                        scope.cancel()
                        with anyio.CancelScope(shield=True):
                            await all_ended(processes)

                tasks.start_soon(cancel)
                await connection.run(f"{DETACHED} {DETACHED} echo $$; exec sleep 1000", stdout=heard)
        assert scope.cancelled_caught
        assert not any(map(is_there, await heard.pids(3)))


async def test_cancelling_lets_a_command_clean_up(tmp_path: Path) -> None:
    """A cancelled command gets SIGTERM, and its last words are not cut off by a signal."""
    heard, cleaned = Heard(), tmp_path / "cleaned"
    async with connected(tmp_path / "group") as connection, anyio.create_task_group() as tasks:

        async def cancel() -> None:
            await heard.lines(1)
            tasks.cancel_scope.cancel()

        tasks.start_soon(cancel)
        script = f"trap 'echo done > {cleaned}; exit' TERM; echo ready; while :; do sleep 0.01; done"
        await connection.run(script, stdout=heard)
    assert content(cleaned) == "done\n"


@pytest.fixture
def impatient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Agents whose patience with cancelled commands is short."""
    patient = Path(_agent.__file__).read_text()
    assert f"GRACE = {_agent.GRACE}" in patient
    (tmp_path / "agent.py").write_text(patient.replace(f"GRACE = {_agent.GRACE}", "GRACE = 0.05"))
    monkeypatch.setattr(_agent, "__file__", str(tmp_path / "agent.py"))


@pytest.mark.usefixtures("impatient")
async def test_cancelling_does_not_wait_for_the_deaf(tmp_path: Path) -> None:
    """A command that ignores SIGTERM is killed when its grace is over."""
    heard = Heard()
    async with connected(tmp_path / "group") as connection:
        async with anyio.create_task_group() as tasks:

            async def cancel() -> None:
                await heard.lines(1)
                tasks.cancel_scope.cancel()

            tasks.start_soon(cancel)
            await connection.run("trap '' TERM; echo $$; while :; do sleep 0.01; done", stdout=heard)
        (pid,) = await heard.pids(1)
        assert not is_there(pid)


async def test_a_cancelled_caller_starts_nothing(tmp_path: Path) -> None:
    """A command that was cancelled before it began leaves nothing in the instance."""
    async with connected(tmp_path / "group") as connection:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await connection.run(f"touch {tmp_path / 'ran'}")
        assert (await connection.run("true")).ok
    assert content(tmp_path / "ran") is None


@pytest.mark.needs("setsid")
async def test_kill_9_of_the_agent_takes_everything_along(tmp_path: Path) -> None:
    """Losing the instance ends its jobs, daemonised grandchildren included, and the caller learns of it."""
    heard = Heard()
    async with opened(tmp_path) as group:
        (instance,) = await started(group)
        async with dialled(group, instance) as connection, anyio.create_task_group() as tasks:

            async def lose() -> None:
                with watched(*await heard.pids(3), agent_of(tmp_path, instance)) as processes:
                    kill(agent_of(tmp_path, instance))
                    await all_ended(processes)

            tasks.start_soon(lose)
            with pytest.raises(Unreachable, match=f"agent of {instance} ended"):
                await connection.run(f"{DETACHED} {DETACHED} echo $$; exec sleep 1000", stdout=heard)
            with pytest.raises(Unreachable, match="no agent listens"):
                await connection.run("true")


@pytest.mark.needs("setsid")
async def test_kill_9_of_the_agents_process_group_takes_everything_along(tmp_path: Path) -> None:
    """What watches over a job is not in the agent's process group, so it outlives that to do its work."""
    heard = Heard()
    async with opened(tmp_path) as group:
        (instance,) = await started(group)
        async with dialled(group, instance) as connection, anyio.create_task_group() as tasks:

            async def lose() -> None:
                with watched(*await heard.pids(2)) as processes:
                    os.killpg(agent_of(tmp_path, instance), signal.SIGKILL)
                    await all_ended(processes)

            tasks.start_soon(lose)
            with pytest.raises(Unreachable):
                await connection.run(f"{DETACHED} echo $$; exec sleep 1000", stdout=heard)


def test_a_command_that_cannot_start_because_the_agent_has_died_is_lost_with_it(tmp_path: Path) -> None:
    """The agent's directory goes with it, and so what commands run in; no status is sent that could pass for theirs."""
    ours, theirs = socket.socketpair()
    lifeline, agent = os.pipe()
    os.close(agent)
    runner = (
        "import socket, sys; from fleeting.groups.local._agent import Client, Runner;"
        " client = Client(socket.socket(fileno=int(sys.argv[1]))); client.receive();"
        " [request] = client.requests(); Runner(client, int(sys.argv[2])).serve(client.command(request))"
    )
    with ours, theirs, Path(os.devnull).open("r+b") as null:
        socket.send_fds(ours, [_client.encode(op="run", argv=["true"])], [null.fileno()] * 3)
        descriptors = theirs.fileno(), lifeline
        command = (sys.executable, "-c", runner, *map(str, descriptors))
        subprocess.run(command, check=True, cwd=tmp_path, pass_fds=descriptors)
        os.close(lifeline)
        theirs.close()
        assert ours.recv(1000) == b""


@pytest.mark.needs("setsid")
async def test_a_killed_runner_leaves_nothing_to_live_on(tmp_path: Path) -> None:
    """If the process between agent and command dies, the agent kills what it leaves, and goes on."""
    heard = Heard()
    async with opened(tmp_path) as group:
        (instance,) = await started(group)
        async with dialled(group, instance) as connection, anyio.create_task_group() as tasks:

            async def lose() -> None:
                with watched(*await heard.pids(3)) as processes:
                    (runner,) = children_of(agent_of(tmp_path, instance))
                    kill(runner)
                    await all_ended(processes)

            tasks.start_soon(lose)
            with pytest.raises(Unreachable):
                await connection.run(f"{DETACHED} {DETACHED} echo $$; exec sleep 1000", stdout=heard)
            assert (await connection.run("true")).ok


async def test_a_stranger_with_the_pipe_does_not_hold_the_result_up(tmp_path: Path) -> None:
    """Output that somebody outside the process tree keeps open is not waited for, and what was written is heard."""
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(tmp_path / "stranger"))
    server.listen()
    code = (
        "import os, socket; s = socket.socket(socket.AF_UNIX);"
        f"s.connect({str(tmp_path / 'stranger')!r}); socket.send_fds(s, [b'x'], [1, 2]); os.write(1, b'last words')"
    )
    with server:
        async with connected(tmp_path / "group") as connection:
            assert (await connection.run(python(code))).stdout == b"last words"
        accepted, _ = server.accept()
        with accepted:
            for held in socket.recv_fds(accepted, 1, 2)[1]:
                os.close(held)


async def test_commands_run_side_by_side(tmp_path: Path) -> None:
    """One connection carries many commands at once."""
    go = tmp_path / "go"
    os.mkfifo(go)
    async with connected(tmp_path / "group") as connection, anyio.create_task_group() as tasks:
        results = []

        async def run(command: str) -> None:
            results.append((await connection.run(command)).stdout)

        tasks.start_soon(run, f"cat {go}")
        tasks.start_soon(run, f"echo met > {go}")
    assert sorted(results) == [b"", b"met\n"]


async def test_commands_that_follow_each_other_are_strangers(tmp_path: Path) -> None:
    """They share a process that watches over them, and nothing else: not directory, environment, or what was left."""
    async with opened(tmp_path) as group:
        (instance,) = await started(group)
        async with dialled(group, instance) as connection:
            first = await connection.run(f"{DETACHED} env; pwd", cwd="/", env={"A": "b", "PATH": "/bin"})
            watching = children_of(agent_of(tmp_path, instance))
            second = await connection.run("env; pwd")
            assert (await connection.run(["no-such-program"])).exit_status == 127
            assert (await connection.run("exit 3")).exit_status == 3
            assert children_of(agent_of(tmp_path, instance)) == watching
    assert "A=b" in first.stdout.decode().splitlines()
    assert b"\n/\n" in first.stdout, "pwd; what is detached may say its process id after it"
    assert "A=b" not in second.stdout.decode().splitlines()
    assert "PATH=/bin" not in second.stdout.decode().splitlines()
    assert second.stdout.endswith(f"{tmp_path / instance}/work\n".encode())


async def test_connections_to_one_instance_are_one(tmp_path: Path) -> None:
    """While somebody uses it, dialling again costs nothing; the last one closes it, and nobody else's end does."""
    async with opened(tmp_path) as group:
        (instance,) = await started(group)
        before = open_descriptors()
        async with dialled(group, instance) as one:
            async with dialled(group, instance) as other:
                assert open_descriptors() == before + 1
                await other.run("true")
            with pytest.raises(Unreachable, match="is closed"):
                await other.run("true")
            assert await other.wait_closed() == "it was closed locally"
            await one.run("true")
            assert open_descriptors() == before + 2
        assert open_descriptors() == before


async def test_a_runner_that_was_killed_while_it_waited_is_no_loss(tmp_path: Path) -> None:
    """The next command gets another one."""
    async with opened(tmp_path) as group:
        (instance,) = await started(group)
        async with dialled(group, instance) as connection:
            await connection.run("true")
            (runner,) = children_of(agent_of(tmp_path, instance))
            with watched(runner) as processes:
                kill(runner)
                await all_ended(processes)
            assert (await connection.run("true")).ok


async def test_wait_closed_tells_of_the_agents_end(tmp_path: Path) -> None:
    """Everybody who waits for the connection's end learns of the agent's."""
    reasons: list[str] = []
    async with opened(tmp_path) as group:
        (instance,) = await started(group)
        async with dialled(group, instance) as connection:

            async def wait() -> None:
                reasons.append(await connection.wait_closed())

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(wait)
                tasks.start_soon(wait)
                await anyio.wait_all_tasks_blocked()
                assert reasons == []
                kill(agent_of(tmp_path, instance))
    assert reasons == [f"the agent of {instance} ended"] * 2


async def test_wait_closed_tells_of_our_own_hanging_up(tmp_path: Path) -> None:
    """Leaving the context closes the connection: waiters are told, commands are refused."""
    reasons: list[str] = []
    async with opened(tmp_path) as group, anyio.create_task_group() as tasks:
        (instance,) = await started(group)
        async with dialled(group, instance) as connection:

            async def wait() -> None:
                reasons.append(await connection.wait_closed())

            tasks.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
        with pytest.raises(Unreachable, match="is closed"):
            await connection.run("true")
        assert await connection.wait_closed() == "it was closed locally"
    assert reasons == ["it was closed locally"]


async def test_dial_fails_where_nobody_listens(tmp_path: Path) -> None:
    """An instance that is gone cannot be reached, and says so at once."""
    info = fleeting.ConnectInfo(id="gone", protocol="local", internal_addr=str(tmp_path / "gone" / "agent.sock"))
    with pytest.raises(Unreachable, match=f"no agent listens at {tmp_path}"):
        async with fleeting.dial(info):
            pass
    with pytest.raises(Unreachable, match="has no address"):
        async with fleeting.dial(fleeting.ConnectInfo(id="nowhere", protocol="local")):
            pass


async def test_dial_fails_when_nobody_answers(tmp_path: Path) -> None:
    """An agent that hangs is waited for as long as the configuration allows."""
    async with opened(tmp_path) as group:
        (instance,) = await started(group)
        info = await group.connect_info(instance)
        kill(agent_of(tmp_path, instance), signal.SIGSTOP)
        with pytest.raises(Unreachable, match="did not answer within"):
            async with fleeting.dial(info, ConnectorConfig(timeout=0.05)):
                pass
        kill(agent_of(tmp_path, instance), signal.SIGCONT)


async def test_dial_finds_the_connector_by_protocol() -> None:
    """A protocol that nobody speaks is an error that names those that are spoken."""
    with pytest.raises(PluginNotFound, match="local"):
        fleeting.dial(fleeting.ConnectInfo(id="i-1", protocol="telepathy"))
    assert fleeting.dial is connectors.dial


async def test_somebody_elses_socket_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process of another user that listens in the agent's place is refused, not talked to."""
    async with opened(tmp_path) as group:
        (instance,) = await started(group)
        info = await group.connect_info(instance)
        with monkeypatch.context() as patch:
            patch.setattr(os, "getuid", lambda: 4711)
            with pytest.raises(HostKeyMismatch, match="belongs to another user"):
                async with fleeting.dial(info):
                    pass


async def test_reaches_unix_sockets(tmp_path: Path) -> None:
    """The instance is this host, so its unix sockets are reached directly."""
    listener = await anyio.create_unix_listener(tmp_path / "echo")
    async with connected(tmp_path / "group") as connection, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, echo)
        await says_the_same(await connection.open_unix(str(tmp_path / "echo")))
        with pytest.raises(Unreachable, match="nothing answers at"):
            await connection.open_unix(str(tmp_path / "nobody"))
        tasks.cancel_scope.cancel()
    await listener.aclose()


async def test_reaches_tcp_ports(tmp_path: Path) -> None:
    """The same for TCP."""
    async with (
        await anyio.create_tcp_listener(local_host="127.0.0.1") as listener,
        connected(tmp_path / "group") as connection,
        anyio.create_task_group() as tasks,
    ):
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        tasks.start_soon(listener.serve, echo)
        await says_the_same(await connection.open_tcp("127.0.0.1", port))
        tasks.cancel_scope.cancel()
    with pytest.raises(Unreachable, match=f"nothing answers at 127.0.0.1 port {port}"):
        await connection.open_tcp("127.0.0.1", port)


async def echo(stream: ByteStream) -> None:
    """Serve one client of an echo server."""
    async with stream:
        await stream.send(await stream.receive())


async def says_the_same(stream: ByteStream) -> None:
    """Check that there is an echo server at the other end."""
    async with stream:
        await stream.send(b"hello")
        assert await stream.receive() == b"hello"


async def test_paths_may_be_long(tmp_path: Path) -> None:
    """A directory that does not fit into a socket address is no obstacle."""
    deep = tmp_path.joinpath(*["deep" * 10] * 6)
    deep.parent.mkdir(parents=True)
    async with connected(deep) as connection:
        assert (await connection.run("true")).ok


async def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    """Commands that succeed, fail, are cancelled or are lost cost no descriptor here or in the agent."""
    async with opened(tmp_path) as group:
        (instance,) = await started(group)
        agent = agent_of(tmp_path, instance)
        async with await anyio.connect_unix(tmp_path / instance / "agent.sock") as stream:
            await use_up(group, instance)
            await settled(stream)
            here, there = open_descriptors(), open_descriptors(agent)
            for _ in range(3):
                await use_up(group, instance)
            await settled(stream)
            assert (open_descriptors(), open_descriptors(agent)) == (here, there)


async def use_up(group: fleeting.InstanceGroup, instance: str) -> None:
    """Do with a connection all that can be done."""
    async with dialled(group, instance) as connection:
        assert (await connection.run("cat", stdin=b"x")).ok
        assert not (await connection.run(["no-such-program"])).ok
        with pytest.raises(ConnectError, match="refused a command"):
            await connection.run([])
        with anyio.move_on_after(0.01):
            await connection.run("exec sleep 1000")
        with anyio.move_on_after(0.01):
            await connection.wait_closed()
