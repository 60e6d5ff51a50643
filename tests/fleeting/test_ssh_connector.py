"""The `ssh` connector, on OpenSSH's own server."""

import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import anyio
import pytest
from anyio.abc import ByteStream, SocketAttribute
from attrs import evolve
from paramiko import Message
from paramiko.common import MSG_CHANNEL_CLOSE

import fleeting
from fleeting import CommandFailed, ConnectError, Unreachable, Unsupported
from fleeting.connectors import ssh
from fleeting.connectors.ssh import MemoryHostKeys, SshConnector
from fleeting.connectors.ssh._channel import Channel
from fleeting.connectors.ssh._connection import SshConnection
from fleeting.connectors.ssh._shared import Shared
from fleeting.plugins import load_connector
from tests.fleeting.local_agents import POLL, Heard, watched
from tests.fleeting.sshd import configured, connected, dialled, sshd

pytestmark = pytest.mark.anyio


def runs(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def until_gone(pid: int) -> None:
    """Wait until it does not run any more."""
    while runs(pid):  # noqa: ASYNC110  (it tells nobody)
        await anyio.sleep(POLL)


# --- commands --------------------------------------------------------------------------------------------


async def test_collects_both_outputs_and_the_exit_status(tmp_path: Path) -> None:
    """Without sinks, the result has what the command wrote, each stream by itself."""
    async with connected(tmp_path) as connection:
        completed = await connection.run("echo out; echo err >&2; exit 3")
    assert (completed.exit_status, completed.signal) == (3, None)
    assert (completed.stdout, completed.stderr) == (b"out\n", b"err\n")


async def test_tells_the_signal_that_ended_the_command(tmp_path: Path) -> None:
    """A command that was killed has a signal in place of an exit status."""
    async with connected(tmp_path) as connection:
        for name in ("KILL", "TERM", "ABRT"):
            completed = await connection.run(f"ulimit -c 0; kill -{name} $$")
            assert (completed.exit_status, completed.signal) == (None, f"SIG{name}")


async def test_no_shell_touches_a_list(tmp_path: Path) -> None:
    """A program with its arguments gets them as they are, through two shells."""
    arguments = ["$HOME", "a b", "*", "'", '"', "\\", "!", "new\nline", ""]
    async with connected(tmp_path) as connection:
        completed = await connection.run(["printf", "%s|", *arguments])
    assert completed.stdout.decode() == "".join(f"{argument}|" for argument in arguments)


async def test_bytes_pass_unchanged(tmp_path: Path) -> None:
    """Neither input, output nor arguments need to be UTF-8."""
    everything = bytes(range(256))
    async with connected(tmp_path) as connection:
        assert (await connection.run("cat", stdin=everything)).stdout == everything
        assert (await connection.run("cat >&2", stdin=everything)).stderr == everything
        assert (await connection.run(["printf", "%s", os.fsdecode(b"\xff\xfe")])).stdout == b"\xff\xfe"


async def test_large_input_goes_through(tmp_path: Path) -> None:
    """Input that no window and no socket holds is fed as the command reads it."""
    data = os.urandom(12 << 20)
    async with connected(tmp_path) as connection:
        assert (await connection.run("sleep 0.1; cat", stdin=data)).stdout == data


async def test_a_command_need_not_read_its_input(tmp_path: Path) -> None:
    """Input that the command leaves unread is no error, whether it ends or goes on."""
    async with connected(tmp_path) as connection:
        assert (await connection.run("exec true", stdin=bytes(4 << 20))).ok
        assert (await connection.run("exec <&-; echo done", stdin=bytes(4 << 20))).stdout == b"done\n"


async def test_without_input_there_is_nothing_to_read(tmp_path: Path) -> None:
    """A command that reads meets the end at once, and does not wait."""
    async with connected(tmp_path) as connection:
        assert (await connection.run("cat")).stdout == b""


async def test_environment_and_working_directory(tmp_path: Path) -> None:
    """Variables are added to the host's own, whatever their values; the directory is where the command starts."""
    async with connected(tmp_path) as connection:
        completed = await connection.run(["env", "-0"], env={"GREETING": "good\n'morning'", "B": ""}, cwd=str(tmp_path))
        seen = dict(entry.split("=", 1) for entry in completed.stdout.decode().rstrip("\0").split("\0"))
        assert (seen["GREETING"], seen["B"], seen["PWD"]) == ("good\n'morning'", "", str(tmp_path))
        assert "HOME" in seen


@pytest.mark.parametrize(
    ("command", "cwd", "status"),
    [("no-such-program", None, 127), (["no-such-program"], None, 127), (["pwd"], "/no/such", 127), (["/"], None, 126)],
)
async def test_what_cannot_be_started_exits_as_in_a_shell(
    tmp_path: Path, command: str | list[str], cwd: str | None, status: int
) -> None:
    """A program or directory that is not there, or none, gives 127 or 126 and a line on stderr."""
    async with connected(tmp_path) as connection:
        completed = await connection.run(command, cwd=cwd)
    assert completed.exit_status == status
    assert completed.stderr


async def test_check_raises_for_a_failure_only(tmp_path: Path) -> None:
    """With `check`, a status other than 0 is an error that shows the command as it was given."""
    async with connected(tmp_path) as connection:
        assert (await connection.run("true", check=True)).ok
        with pytest.raises(CommandFailed, match="'echo why >&2; exit 4' exited with 4: why"):
            await connection.run("echo why >&2; exit 4", check=True)


async def test_output_is_heard_while_the_command_runs(tmp_path: Path) -> None:
    """A sink gets what is written at once, and the result has no copy of it."""
    heard, go = Heard(), tmp_path / "go"
    os.mkfifo(go)
    async with connected(tmp_path) as connection, anyio.create_task_group() as tasks:

        async def answer() -> None:
            assert await heard.lines(1) == [b"ready"]
            await anyio.to_thread.run_sync(go.write_text, "set")

        tasks.start_soon(answer)
        completed = await connection.run(f"echo ready; cat {go}", stdout=heard)
    assert (heard.data, completed.stdout) == (b"ready\nset", b"")


async def test_a_slow_sink_holds_the_command_up(tmp_path: Path) -> None:
    """What is between command and sink is bounded by the window, not by what the command writes."""
    size, written, heard = 24 << 20, tmp_path / "written", 0
    ahead = []
    program = (
        "import os\n"
        f"record = os.open({str(written)!r}, os.O_CREAT | os.O_WRONLY)\n"
        f"for end in range(65536, {size} + 1, 65536):\n"
        "    os.write(1, bytes(65536)); os.pwrite(record, b'%10d' % end, 0)\n"
    )

    async def slow(chunk: bytes) -> None:
        nonlocal heard
        await anyio.to_thread.run_sync(os.sched_yield)
        ahead.append(int(written.read_bytes() or 0) - heard if written.exists() else 0)
        heard += len(chunk)

    async with connected(tmp_path) as connection:
        assert (await connection.run([sys.executable, "-I", "-S", "-c", program], stdout=slow)).ok
    assert heard == size
    assert max(ahead) <= 10 << 20  # the window, what sshd holds, and what the kernel holds


async def test_a_stopped_sink_stops_its_command_alone(tmp_path: Path) -> None:
    """While nobody takes one command's output, others on the same connection go on."""
    async with connected(tmp_path) as connection, anyio.create_task_group() as tasks:
        full = anyio.Event()

        async def stuck(_: bytes) -> None:
            full.set()
            await anyio.sleep_forever()

        async def run() -> None:
            await connection.run("yes", stdout=stuck)

        tasks.start_soon(run)
        await full.wait()
        assert (await connection.run("head -c 4000000 /dev/zero")).stdout == bytes(4_000_000)
        tasks.cancel_scope.cancel()


async def test_collecting_has_a_limit(tmp_path: Path) -> None:
    """Output beyond the limit without a sink is an error, and the command is ended."""
    async with connected(tmp_path) as connection:
        with pytest.raises(ConnectError, match="more than 16 MiB to stdout; pass a sink"):
            await connection.run(["yes"])
        assert (await connection.run("true")).ok


async def test_a_failing_sink_ends_the_command(tmp_path: Path) -> None:
    """What a sink raises comes out as it is, after the process group was ended."""
    heard = Heard()

    async def full(chunk: bytes) -> None:
        await heard(chunk)
        raise LookupError("full")

    async with connected(tmp_path) as connection:
        for stdin in (b"", b"fed by a task"):
            with pytest.raises(LookupError, match="full"):
                await connection.run("echo $$; exec sleep 1000", stdout=full, stdin=stdin)
        assert not any(map(runs, await heard.pids(2)))


async def test_cancelling_ends_the_process_group_first(tmp_path: Path) -> None:
    """When the cancellation comes out, the command and its children are gone."""
    heard = Heard()
    async with connected(tmp_path) as connection:
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:

                async def cancel() -> None:
                    await heard.pids(2)
                    scope.cancel()

                tasks.start_soon(cancel)
                await connection.run("sh -c 'echo $$; exec sleep 1000' & echo $$; sleep 1000", stdout=heard)
        assert scope.cancelled_caught
        assert not any(map(runs, await heard.pids(2)))
        assert (await connection.run("true")).ok


async def test_cancelling_lets_a_command_clean_up_but_does_not_wait_for_the_deaf(tmp_path: Path) -> None:
    """A cancelled command gets SIGTERM; one that ignores it is killed when its grace is over."""
    for trap, left in ((f"echo done > {tmp_path / 'cleaned'}; exit", "done\n"), ("", None)):
        heard = Heard()
        async with connected(tmp_path) as connection, anyio.create_task_group() as tasks:

            async def cancel(heard: Heard, scope: anyio.CancelScope) -> None:
                await heard.pids(1)
                scope.cancel()

            tasks.start_soon(cancel, heard, tasks.cancel_scope)
            await connection.run(f"trap '{trap}' TERM; echo $$; while :; do sleep 0.01; done", stdout=heard)
        (pid,) = await heard.pids(1)
        await until_gone(pid)  # on a busy host, later than a cancelled caller waits
        if left:
            assert (tmp_path / "cleaned").read_text() == left


async def test_a_cancelled_caller_starts_nothing(tmp_path: Path) -> None:
    """A command that was cancelled before it began leaves nothing on the host."""
    async with connected(tmp_path) as connection:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await connection.run(f"touch {tmp_path / 'ran'}")
        assert (await connection.run("true")).ok
    assert not (tmp_path / "ran").exists()


async def test_what_a_command_leaves_behind_keeps_nobody_waiting(tmp_path: Path) -> None:
    """What holds the outputs open after the command's end is ended; what does not may stay."""
    async with connected(tmp_path) as connection:
        completed = await connection.run("sleep 1000 & echo $!")
        assert not runs(int(completed.stdout))
        completed = await connection.run("sleep 1000 >/dev/null 2>&1 & echo $!")
        left = int(completed.stdout)
        assert runs(left)
        os.kill(left, signal.SIGKILL)


@pytest.mark.parametrize("left", ["yes", "while :; do echo x; sleep 0.1; done"])
async def test_what_goes_on_writing_after_a_command_is_ended(tmp_path: Path, left: str) -> None:
    """It never falls silent, and keeps nobody waiting all the same; what the command itself wrote is there."""

    async def pass_over(_: bytes) -> None:
        """Nobody wants it."""

    async with connected(tmp_path) as connection:
        completed = await connection.run(f"({left}) & echo $! >&2; seq 100000 >&2", stdout=pass_over)
    pid, *rest = map(int, completed.stderr.split())
    assert not runs(pid)
    assert rest == list(range(1, 100_001))


@pytest.mark.parametrize("stranger", ["exec yes", "while echo x; do sleep 0.1; done"])
async def test_what_left_the_group_and_writes_on_keeps_nobody_waiting(tmp_path: Path, stranger: str) -> None:
    """It is not ours to end, but the result comes, with all that the command itself wrote."""

    async def pass_over(_: bytes) -> None:
        """Nobody wants it."""

    async with connected(tmp_path) as connection:
        completed = await connection.run(f"setsid sh -c '{stranger}' & seq 100000 >&2", stdout=pass_over)
    assert [*map(int, completed.stderr.split())] == list(range(1, 100_001))


async def test_a_directory_may_have_any_name(tmp_path: Path) -> None:
    """None is an option, or the directory before this one."""
    async with connected(tmp_path) as connection:
        home = (await connection.run("pwd")).stdout.decode().strip()
        up = "../" * home.count("/")
        for name in ("-", "-P", "with space", "new\nline", "$HOME", "~"):
            path = str(tmp_path / name)
            await anyio.Path(path).mkdir()
            for cwd in (path, f"{up}{path[1:]}"):
                assert (await connection.run(["pwd"], cwd=cwd)).stdout.decode() == f"{path}\n"
        for cwd in ("-", "-P"):
            assert (await connection.run(["pwd"], cwd=cwd)).exit_status == 127


async def test_a_command_may_close_its_outputs_and_go_on(tmp_path: Path) -> None:
    """The result comes when the command ends, not when it falls silent."""
    async with connected(tmp_path) as connection:
        assert (await connection.run("exec >&- 2>&-; sleep 0.2; exit 5")).exit_status == 5


async def test_what_no_shell_can_run_is_refused_here(tmp_path: Path) -> None:
    """A NUL, a name that is no variable's, or too long a command would break the connection or the command."""
    async with connected(tmp_path) as connection:
        with pytest.raises(ConnectError, match="NUL"):
            await connection.run(["echo", "a\0b"])
        with pytest.raises(ConnectError, match="'A-B' cannot be a shell variable"):
            await connection.run("true", env={"A-B": "c"})
        with pytest.raises(ConnectError, match="pass data on stdin"):
            await connection.run(["echo", "x" * 200_000])
        assert (await connection.run(["sh", "-c", "echo ${#1}", "sh", "x" * 100_000])).stdout == b"100000\n"


@pytest.mark.parametrize("chatter", ["", "echo hello >&2; ", "head -c 200000 /dev/zero >&2; "])
async def test_what_a_login_shell_says_first_is_passed_on(tmp_path: Path, chatter: str) -> None:
    """The line with the process id is found behind what start-up files write, and taken out."""
    async with connected(tmp_path, f'ForceCommand {chatter}eval "$SSH_ORIGINAL_COMMAND"') as connection:
        completed = await connection.run("echo err >&2")
    said = {"": b"", "echo hello >&2; ": b"hello\n"}.get(chatter, bytes(200_000))
    assert completed.stderr.startswith(said)
    assert completed.stderr.endswith(b"err\n")
    assert completed.exit_status == 0


async def test_a_host_that_runs_no_commands_says_so(tmp_path: Path) -> None:
    """Where the host gives no session to a user, that is an error and no hang."""
    async with connected(tmp_path, "MaxSessions 0") as connection:
        with pytest.raises(ConnectError, match="runs no commands"):
            await connection.run("true")


async def test_200_commands_at_once_on_one_connection(tmp_path: Path) -> None:
    """Each has its own output and status, and none has a thread."""
    with sshd(tmp_path) as server:
        async with dialled(server.info) as connection, anyio.create_task_group() as tasks:
            done: dict[int, tuple[bytes, int | None]] = {}

            async def run(number: int) -> None:
                completed = await connection.run(f"echo {number}; exit {number}")
                done[number] = completed.stdout, completed.exit_status

            for number in range(200):
                tasks.start_soon(run, number)
        assert done == {number: (b"%d\n" % number, number) for number in range(200)}
        assert len(server.connections) == 1


# --- sessions, sharing -----------------------------------------------------------------------------------


async def test_a_limit_on_sessions_is_met_by_more_connections(tmp_path: Path) -> None:
    """With MaxSessions 10 and stock MaxStartups, 25 commands at once run on three connections."""
    with sshd(tmp_path, "MaxSessions 10", "MaxStartups 10:30:100") as server:
        async with dialled(server.info) as connection, anyio.create_task_group() as tasks:
            heard = Heard()

            async def run() -> None:
                await connection.run("echo here; exec sleep 1000", stdout=heard)

            for _ in range(25):
                tasks.start_soon(run)
            await heard.lines(25)
            assert len(server.connections) == 3
            tasks.cancel_scope.cancel()
        assert len(await heard.lines(25)) == 25


async def test_a_session_that_has_just_ended_is_no_limit(tmp_path: Path) -> None:
    """The host counts it for a moment longer: that neither fails the next command nor lowers the limit for good."""
    with sshd(tmp_path, "MaxSessions 2", "MaxStartups 10:30:100") as server:
        async with dialled(server.info) as connection:

            async def run() -> None:
                for _ in range(20):
                    assert (await connection.run("true")).ok

            async with anyio.create_task_group() as tasks:
                for _ in range(6):
                    tasks.start_soon(run)
            heard = Heard()
            async with anyio.create_task_group() as tasks:
                for _ in range(12):
                    tasks.start_soon(partial(connection.run, "echo here; exec sleep 1000", stdout=heard))
                await heard.lines(12)
                assert len(server.connections) < 12  # two on each, but for those of a host that was slow to count
                tasks.cancel_scope.cancel()
    with sshd(tmp_path, "MaxSessions 1") as server:
        async with dialled(server.info) as connection:
            for _ in range(60):
                assert (await connection.run("true")).ok
            assert len(server.connections) < 6


async def test_the_channel_of_a_command_that_follows_another_is_there(tmp_path: Path) -> None:
    """That saves it a round trip. For one that comes alone none is opened in vain."""
    async with connected(tmp_path) as connection:
        assert isinstance(connection, SshConnection)
        shared, channels = connection._shared, []
        for _ in range(4):
            await connection.run("true")
            channels.append(shared._spare and shared._spare[1])
        await connection.run("echo here")
        assert channels[0] is None
        assert [channel.id for channel in channels[1:] if channel] == [3, 4, 5]
        assert all(channel.exited for channel in channels[1:] if channel)


@pytest.fixture(params=["before it is used", "just when it is used"])
def closing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the host close each channel that was opened in advance, as one does that closes what is idle."""
    use, take, ask = request.param, Shared._opened_in_advance, Channel.request

    async def taken(shared: Shared) -> Channel | None:
        if shared._spare and use == "before it is used":
            await shared._spare[1].opened()
            shared._spare[1].handle(MSG_CHANNEL_CLOSE, Message())
        return await take(shared)

    def asked(channel: Channel, kind: str, *details: str | bytes | int) -> None:
        if channel.in_advance:
            channel.handle(MSG_CHANNEL_CLOSE, Message())
        ask(channel, kind, *details)

    monkeypatch.setattr(Shared, "_opened_in_advance", taken)
    monkeypatch.setattr(Channel, "request", asked)


@pytest.mark.usefixtures("closing")
async def test_a_channel_that_the_host_closed_meanwhile_is_none(tmp_path: Path) -> None:
    """A command runs once all the same, with all of its input and its environment; nobody takes it for lost."""

    async def arriving() -> AsyncIterator[bytes]:
        for number in range(3):
            yield b"%d " % number

    ran = tmp_path / "ran"
    async with connected(tmp_path) as connection:
        for _ in range(3):
            assert (await connection.run(f"echo here | tee -a {ran}")).stdout == b"here\n"
        completed = await connection.run('cat; echo "$A"', stdin=arriving(), env={"A": "b"})
        assert completed.stdout == b"0 1 2 b\n"
        assert ran.read_text() == "here\n" * 3


@pytest.mark.parametrize("end", [lambda spare: spare.handle(MSG_CHANNEL_CLOSE, Message()), Channel.mark_broken])
async def test_a_terminal_opens_though_the_channel_in_advance_is_over(
    tmp_path: Path, end: Callable[[Channel], None]
) -> None:
    """What is known to be over is not even tried, so this holds for whatever is done with a session."""
    async with connected(tmp_path) as connection:
        assert isinstance(connection, SshConnection)
        for _ in range(2):
            await connection.run("true")
        assert connection._shared._spare
        spare = connection._shared._spare[1]
        await spare.opened()
        end(spare)
        async with connection.open_terminal("exit 3", term="dumb", columns=80, rows=25) as terminal:
            assert (await terminal.wait()).exit_status == 3


@pytest.mark.usefixtures("closing")
async def test_a_cancelled_command_ends_though_the_host_closes_what_is_idle(tmp_path: Path) -> None:
    """What ends it takes the next channel, which was open for as long as it ran."""
    heard = Heard()
    async with connected(tmp_path) as connection:
        for _ in range(2):
            await connection.run("true")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(connection.run, "echo $$; exec sleep 1000", stdout=heard))
            pids = await heard.pids(1)
            tasks.cancel_scope.cancel()
        assert not any(map(runs, pids))


@pytest.mark.usefixtures("closing")
async def test_a_unix_socket_is_reached_though_the_host_closes_what_is_idle(tmp_path: Path) -> None:
    """Also where a command moves the stream."""
    async with (
        connected(tmp_path, "AllowStreamLocalForwarding no") as connection,
        await anyio.create_unix_listener(tmp_path / "socket") as listener,
        anyio.create_task_group() as tasks,
    ):
        for _ in range(2):
            await connection.run("true")
        tasks.start_soon(listener.serve, echo)
        await exchange(await connection.open_unix(str(tmp_path / "socket")))
        tasks.cancel_scope.cancel()


async def test_leases_of_an_instance_share_one_connection(tmp_path: Path) -> None:
    """Whoever dials at once waits for the one who dials; who comes shortly after finds the connection."""
    connector = SshConnector(MemoryHostKeys())
    with sshd(tmp_path) as server:

        async def use() -> None:
            async with dialled(server.info, connector) as connection:
                assert (await connection.run("true")).ok

        async with anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(use)
        (first,) = server.connections
        await use()
        assert server.connections == [first]


async def test_other_credentials_or_another_instance_are_another_connection(tmp_path: Path) -> None:
    """Nobody is let in on the strength of what somebody else knew."""
    connector = SshConnector(MemoryHostKeys())
    with sshd(tmp_path) as server:
        async with dialled(server.info, connector):
            with pytest.raises(fleeting.LoginRejected):
                async with dialled(evolve(server.info, key=None, password="wrong"), connector):
                    pass
            async with dialled(evolve(server.info, id="other"), connector):
                assert len(server.connections) == 2


async def test_leaving_ends_one_use_and_not_the_others(tmp_path: Path) -> None:
    """Closing is the lease's own affair: who waits for its end is told, and another lease goes on."""
    connector = SshConnector(MemoryHostKeys())
    with sshd(tmp_path) as server:
        async with dialled(server.info, connector) as kept, anyio.create_task_group() as tasks:
            ended = Heard()

            async def watch(connection: fleeting.Connection) -> None:
                await ended(f"{await connection.wait_closed()}\n".encode())

            async with dialled(server.info, connector) as left:
                tasks.start_soon(watch, left)
                await left.run("true")
            assert await ended.lines(1) == [b"it was closed locally"]
            with pytest.raises(Unreachable, match="is closed"):
                await left.run("true")
            assert (await kept.run("true")).ok


@pytest.mark.parametrize("linger", [0.0, 0.05])
async def test_nobody_keeps_a_connection_for_ever(tmp_path: Path, linger: float) -> None:
    """A connection that nobody uses is closed after a while, by its own thread; one that is used is not."""
    connector = SshConnector(MemoryHostKeys(), linger=linger)
    with sshd(tmp_path) as server:
        with ExitStack() as stack:
            async with dialled(server.info, connector, keepalive=0.02, keepalive_misses=50) as connection:
                assert (await connection.run("sleep 0.3; echo here")).stdout == b"here\n"
                await connection.run("true")  # from here on a channel is there for the next command
                (served,) = stack.enter_context(watched(*server.connections))
            await served.ended()
        async with dialled(server.info, connector) as connection:
            assert (await connection.run("true")).ok


async def test_a_dead_connection_is_dialled_anew(tmp_path: Path) -> None:
    """When the connection dies its leases are told, and the next lease gets a new one."""
    connector = SshConnector(MemoryHostKeys())
    with sshd(tmp_path) as server:
        async with dialled(server.info, connector) as connection:
            server.signal(signal.SIGKILL)
            assert await connection.wait_closed()
            with pytest.raises(Unreachable):
                await connection.run("true")
            async with dialled(server.info, connector) as again:
                assert (await again.run("true")).ok


# --- death -----------------------------------------------------------------------------------------------


async def test_a_server_that_dies_takes_its_commands_along(tmp_path: Path) -> None:
    """A killed server is noticed at once; that the outcome is unknown is what the error says."""
    heard = Heard()
    with sshd(tmp_path) as server:
        async with dialled(server.info) as connection, anyio.create_task_group() as tasks:

            async def kill() -> None:
                await heard.lines(1)
                server.signal(signal.SIGKILL)

            tasks.start_soon(kill)
            with pytest.raises(Unreachable, match="it is unknown whether the command had ended"):
                await connection.run("echo here; exec sleep 1000", stdout=heard)
            assert await connection.wait_closed()


@pytest.mark.parametrize("stopped", ["while a command runs", "while a command is fed", "before a command"])
async def test_a_stopped_server_is_noticed(tmp_path: Path, stopped: str) -> None:
    """A peer that no longer answers is given up after the configured number of silences, whatever is going on."""
    heard = Heard()
    with sshd(tmp_path) as server:
        async with dialled(server.info, keepalive=0.3, keepalive_misses=3) as connection:
            if stopped == "before a command":
                server.signal(signal.SIGSTOP)
                with pytest.raises(Unreachable, match=r"silent for 0\.9 s"):
                    await connection.run("true")
                return
            async with anyio.create_task_group() as tasks:

                async def stop() -> None:
                    await heard.lines(1)
                    server.signal(signal.SIGSTOP)

                tasks.start_soon(stop)
                stdin = bytes(64 << 20) if stopped == "while a command is fed" else None
                with pytest.raises(Unreachable, match=r"silent for 0\.9 s"):
                    await connection.run("echo here; exec sleep 1000", stdin=stdin, stdout=heard)


async def test_a_silent_connection_stays(tmp_path: Path) -> None:
    """A host that answers is not given up, however long nothing happens."""
    with sshd(tmp_path) as server:
        async with dialled(server.info, keepalive=0.02, keepalive_misses=50) as connection:
            assert (await connection.run("sleep 2; echo awake")).stdout == b"awake\n"


# --- tunnels ---------------------------------------------------------------------------------------------


async def exchange(stream: ByteStream) -> None:
    """Send more than any buffer holds to one who echoes, and get it all back."""
    data = os.urandom(6 << 20)
    got = bytearray()
    async with stream, anyio.create_task_group() as tasks:

        async def feed() -> None:
            await stream.send(data)
            await stream.send_eof()

        tasks.start_soon(feed)
        async for chunk in stream:
            got += chunk
    assert got == data


async def echo(stream: ByteStream) -> None:
    """Send back what comes."""
    async with stream:
        async for chunk in stream:
            await stream.send(chunk)


async def test_a_tcp_port_is_reached(tmp_path: Path) -> None:
    """A stream leads to a port as seen from the host, both ways, with an end of its own each way."""
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    async with listener, connected(tmp_path) as connection, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, echo)
        await exchange(await connection.open_tcp("127.0.0.1", listener.extra(SocketAttribute.local_port)))
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("settings", [[], ["AllowStreamLocalForwarding no"]], ids=["forwarded", "through stdio"])
async def test_a_unix_socket_is_reached(tmp_path: Path, settings: list[str]) -> None:
    """A stream leads to a socket of the host, also where the host forwards none."""
    path = tmp_path / "with 'odd' name"
    listener = await anyio.create_unix_listener(path)
    async with listener, connected(tmp_path, *settings) as connection, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, echo)
        await exchange(await connection.open_unix(str(path)))
        with pytest.raises(Unreachable, match=r"nothing answers at .*/none"):
            await connection.open_unix(str(tmp_path / "none"))
        tasks.cancel_scope.cancel()


async def test_a_tunnel_that_leads_nowhere(tmp_path: Path) -> None:
    """Nobody who listens is one error, a host that may not is another."""
    async with connected(tmp_path) as connection:
        with pytest.raises(Unreachable, match=r"nothing answers at 127\.0\.0\.1 port 1"):
            await connection.open_tcp("127.0.0.1", 1)
    async with connected(tmp_path, "AllowTcpForwarding no") as connection:
        with pytest.raises(Unsupported, match="AllowTcpForwarding"):
            await connection.open_tcp("127.0.0.1", 1)


async def test_a_stream_ends_with_its_connection(tmp_path: Path) -> None:
    """An end that nobody announced is told from one that was."""
    with sshd(tmp_path) as server:
        async with dialled(server.info) as connection:
            stream = await connection.open_tcp("127.0.0.1", server.port)
            assert (await stream.receive()).startswith(b"SSH-2.0-")
            server.signal(signal.SIGKILL)
            with pytest.raises(anyio.BrokenResourceError):
                await stream.receive()
            with pytest.raises(anyio.BrokenResourceError):
                await stream.send(b"hello")
            await stream.aclose()
            with pytest.raises(anyio.ClosedResourceError):
                await stream.receive()


async def test_one_connection_leads_to_the_next(tmp_path: Path) -> None:
    """A host behind another is dialled through it, verified like any other, and ends with it."""
    connector = SshConnector(MemoryHostKeys())
    with sshd(tmp_path / "outer") as outer, sshd(tmp_path / "inner") as inner:
        async with (
            dialled(outer.info, connector) as over,
            connector.dial(inner.info, configured(), over=over) as connection,
        ):
            data = os.urandom(4 << 20)
            assert (await connection.run("cat", stdin=data)).stdout == data
            outer.signal(signal.SIGKILL)
            assert await connection.wait_closed()
            with pytest.raises(Unreachable, match="the connection to it is dead: "):
                async with connector.dial(inner.info, configured(timeout=1000.0), over=over):
                    pass
        async with dialled(outer.info, connector) as over:
            with pytest.raises(fleeting.HostKeyMismatch):
                async with connector.dial(evolve(inner.info, host_key=outer.host_key), configured(), over=over):
                    pass
            with pytest.raises(LookupError, match=r"^'as it is'$"):
                async with connector.dial(inner.info, configured(), over=over):
                    raise KeyError("as it is")


def test_the_connector_is_found_by_its_protocol() -> None:
    """The entry point gives it, and what is public is there."""
    assert isinstance(load_connector("ssh"), SshConnector)
    assert all(hasattr(ssh, name) for name in ssh.__all__)
    with pytest.raises(AttributeError):
        ssh.no_such_name  # noqa: B018
