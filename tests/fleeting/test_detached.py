"""Commands that outlive their connections, where something goes wrong with the host, or with what is kept there."""

import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from attrs import define, evolve

from fleeting import Completed, ConnectError, Unreachable
from fleeting.connectors import Collector, Invocation, PosixConnection
from fleeting.errors import CommandLost, NameTaken, NameUnknown
from tests.fleeting import local_agents
from tests.fleeting.sshd import dialled, only_root, sshd

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def connected(directory: Path) -> AsyncIterator[tuple[PosixConnection, Path]]:
    """Connect to an instance; returns where its commands are kept, too."""
    async with local_agents.connected(directory) as connection:
        assert isinstance(connection, PosixConnection)
        yield connection, Path(connection.detached_directory)


@asynccontextmanager
async def connected_over_ssh(directory: Path) -> AsyncIterator[tuple[PosixConnection, Path]]:
    """The same over SSH, where nobody but the shells there ends anything."""
    home = directory / "home"
    home.mkdir()
    with sshd(directory / "sshd", f"SetEnv HOME={home} SHLVL=5") as server:
        async with dialled(server.info) as connection:
            assert isinstance(connection, PosixConnection)
            yield connection, home / ".fleeting" / "detached"


async def ignore(_: bytes) -> None:
    """Take output."""


async def begun(connection: PosixConnection, name: str) -> int:
    """Start a command that runs on, and return its process id once it has one."""
    await connection.start(name, "echo $$; exec sleep 1000")
    heard = b""
    with anyio.CancelScope() as scope:

        async def hear(chunk: bytes) -> None:
            nonlocal heard
            heard += chunk
            if heard.endswith(b"\n"):
                scope.cancel()

        await connection.attach(name, output=hear)
    return int(heard)


def boot(lines: list[str]) -> None:
    """Another one."""
    lines[0] = "1"


def processes(lines: list[str]) -> None:
    """Others, which have these process ids now and began at another time."""
    lines[2:] = [line and f"{line.split()[0]} 1" for line in lines[2:]]


@pytest.mark.parametrize(
    ("change", "why"), [(boot, "the host has rebooted"), (processes, "what watched over it was killed")]
)
async def test_a_command_of_another_boot_or_process_is_lost(
    tmp_path: Path, change: Callable[[list[str]], None], why: str
) -> None:
    """Its process id may be somebody else's now; it is told apart from a command that ended, and ends nobody."""
    async with connected(tmp_path) as (connection, kept):
        pid = await begun(connection, "a")
        process = kept / "a:process"
        before = process.read_text()
        lines = before.split("\n")
        change(lines)
        process.write_text("\n".join(lines))
        with pytest.raises(CommandLost, match=why):
            await connection.attach("a", output=ignore)
        (listed,) = await connection.list_detached()
        assert listed.lost.startswith(why)
        if change is boot:
            await connection.kill("a")
        assert local_agents.is_there(pid)
        process.write_text(before)
        await connection.kill("a")


async def test_a_clock_that_is_set_changes_nothing(tmp_path: Path) -> None:
    """The files of a command are from tomorrow once it is set back by a day; no time of a clock says how it is."""
    async with connected(tmp_path) as (connection, kept):
        for days in (1, -10_000):
            await begun(connection, "a")
            for path in kept.iterdir():
                os.utime(path, (path.stat().st_mtime + days * 86400,) * 2)
            assert [each.is_running for each in await connection.list_detached()] == [True]
            await connection.kill("a")
            output = Collector("output")
            assert (await connection.attach("a", output=output)).signal == "SIGTERM"
            assert output.data
            await connection.forget("a")


async def test_what_was_killed_with_its_supervisor_is_lost_until_somebody_kills_it(tmp_path: Path) -> None:
    """Nobody knows how it ended; `kill` sees to it that it has."""
    async with connected(tmp_path) as (connection, _):
        os.killpg(os.getpgid(await begun(connection, "a")), signal.SIGKILL)
        with pytest.raises(CommandLost, match="killed"):
            await connection.attach("a", output=ignore)
        await connection.kill("a")
        assert (await connection.attach("a", output=ignore)).signal == "SIGKILL"


async def test_a_command_runs_on_without_its_supervisor(tmp_path: Path) -> None:
    """It is not given up while it runs: it could be run twice. It is lost once it ends, and can be killed."""
    async with connected_over_ssh(tmp_path) as (connection, kept):
        for kill in (False, True):
            pid = await begun(connection, "a")
            watcher = int((kept / "a:process").read_text().split("\n")[2].split()[0])
            os.kill(watcher, signal.SIGKILL)
            assert [each.is_running for each in await connection.list_detached()] == [True]
            with pytest.raises(ConnectError, match="still runs"):
                await connection.forget("a")
            if kill:
                await connection.kill("a")
                assert (await connection.attach("a", output=ignore)).signal == "SIGKILL"
            else:
                os.kill(pid, signal.SIGTERM)
                with pytest.raises(CommandLost, match="killed"):
                    await connection.attach("a", output=ignore)
            await connection.forget("a")


async def test_a_name_that_was_taken_for_nothing_is_lost(tmp_path: Path) -> None:
    """Who began it was killed in between: it is listed as what never began, and can be forgotten."""
    async with connected(tmp_path) as (connection, kept):
        kept.mkdir()
        boot = (await connection.run(["cat", "/proc/sys/kernel/random/boot_id"])).stdout.decode()
        (kept / "a:process").write_text(f"{boot}{4194305}\n")  # no system has such a process
        (kept / "b:process").touch()
        assert [(each.name, each.lost) for each in await connection.list_detached()] == [
            ("a", "it was never begun")
        ]  # the other is about to begin, for all that is known
        for name in ("a", "b"):
            with pytest.raises(NameTaken):
                await connection.start(name, "true")
            with pytest.raises(CommandLost, match="never begun"):
                await connection.attach(name, output=ignore)
        await connection.forget("a")
        await connection.start("a", "true")
        assert (await connection.attach("a", output=ignore)).ok


async def test_a_job_that_removes_what_is_kept_is_lost(tmp_path: Path) -> None:
    """Who is attached learns of it; who comes later finds nothing."""
    async with connected(tmp_path) as (connection, kept):
        await connection.start("a", f"sleep 0.3; rm -r {kept}; exec sleep 1000")
        with pytest.raises(CommandLost, match="removed"):
            await connection.attach("a", output=ignore)
        with pytest.raises(NameUnknown):
            await connection.attach("a", output=ignore)


async def test_a_job_that_removes_its_output_has_an_end(tmp_path: Path) -> None:
    """What was not passed on by then is reported as cut."""
    async with connected(tmp_path) as (connection, kept):
        await connection.start("a", f"echo out; rm {kept}/a:output; exit 3")
        await connection.start("b", "exit 4")
        with anyio.fail_after(10):
            while any(each.is_running for each in await connection.list_detached()):  # noqa: ASYNC110  (nobody here learns of it)
                await anyio.sleep(local_agents.POLL)
        completed = await connection.attach("a", output=ignore)
        assert (completed.exit_status, completed.cut) == (3, 4)
        await connection.forget("a")
        assert [each.name for each in await connection.list_detached()] == ["b"]


async def test_two_managers_may_be_attached_to_one_command(tmp_path: Path) -> None:
    """Each has all of the output and the end, and neither knows of the other."""
    async with connected(tmp_path) as (connection, _):
        await connection.start("a", "i=0; while [ $i -lt 20 ]; do echo $((i += 1)); sleep 0.02; done; exit 7")
        outputs = [Collector("output") for _ in range(2)]
        ends = []

        async def attach(output: Collector) -> None:
            ends.append(await connection.attach("a", output=output))

        async with anyio.create_task_group() as tasks:
            for output in outputs:
                tasks.start_soon(attach, output)
        assert [end.exit_status for end in ends] == [7, 7]
        assert {bytes(output.data) for output in outputs} == {b"".join(b"%d\n" % (each + 1) for each in range(20))}


async def test_signals_are_as_a_command_finds_them(tmp_path: Path) -> None:
    """None is ignored: what a shell runs in the background would ignore SIGINT, and could not change that."""
    async with connected(tmp_path) as (connection, _):
        look = "grep SigIgn /proc/self/status"
        ran = await connection.run(look)
        await connection.start("a", look)
        output = Collector("output")
        await connection.attach("a", output=output)
        assert output.data == ran.stdout


async def test_input_that_breaks_off_starts_nothing(tmp_path: Path) -> None:
    """What the source raises is raised, and the name is free."""

    async def breaks() -> AsyncIterator[bytes]:
        yield b"half"
        raise LookupError("gone")

    async with connected(tmp_path) as (connection, kept):
        with pytest.raises(LookupError):
            await connection.start("a", "cat", stdin=breaks())
        assert not list(kept.glob("*"))
        assert not list(kept.glob(".*"))
        await connection.start("a", "cat", stdin=b"whole")
        output = Collector("output")
        assert (await connection.attach("a", output=output)).ok
        assert output.data == b"whole"


async def test_what_is_kept_is_the_users_alone(tmp_path: Path) -> None:
    """The directory 0700, files 0600, and of the input nothing stays."""
    async with connected(tmp_path) as (connection, kept):
        await connection.start("a", "cat", stdin=b"secret")
        await connection.attach("a", output=ignore)
        assert kept.stat().st_mode & 0o777 == 0o700
        assert {path.stat().st_mode & 0o777 for path in kept.iterdir()} == {0o600}
        assert local_agents.names(kept) == ["a:ended:0::0", "a:output", "a:process"]


async def test_who_leaves_the_session_is_not_waited_for(tmp_path: Path) -> None:
    """It has the output open, but the command has ended; on this kind of instance it ends with it."""
    async with connected(tmp_path) as (connection, _):
        await connection.start("a", local_agents.DETACHED + "exit 3")
        output = Collector("output")
        assert (await connection.attach("a", output=output)).exit_status == 3
        with anyio.fail_after(5):
            while local_agents.is_there(int(output.data)):  # noqa: ASYNC110  (it is no child of ours)
                await anyio.sleep(local_agents.POLL)


async def test_the_agents_end_is_the_end_of_its_commands(tmp_path: Path) -> None:
    """Nothing that was started on an instance is left when that is gone."""
    async with connected(tmp_path) as (connection, _):
        await connection.start("a", "echo $$; exec sleep 1000")
        heard = b""
        with anyio.CancelScope() as scope:

            async def hear(chunk: bytes) -> None:
                nonlocal heard
                heard += chunk
                scope.cancel()

            await connection.attach("a", output=hear)
    with anyio.fail_after(5):
        while local_agents.is_there(int(heard)):  # noqa: ASYNC110  (it is no child of ours)
            await anyio.sleep(local_agents.POLL)


async def test_a_host_without_setsid_will_do(tmp_path: Path) -> None:
    """Where each command has a process group of its own anyway, as over SSH, that serves as well."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for tool in ("cat", "mkdir", "mv", "rm", "sh", "sleep", "tail", "tee", "wc"):
        (tools / tool).symlink_to(f"/usr/bin/{tool}")
    (tmp_path / "home").mkdir()
    with sshd(tmp_path / "sshd", f"SetEnv PATH={tools} HOME={tmp_path / 'home'} SHLVL=5") as server:
        async with dialled(server.info) as connection:
            assert isinstance(connection, PosixConnection)
            await connection.start("a", "command -v setsid; echo out; exec sleep 1000")
            await connection.kill("a")
            output = Collector("output")
            assert (await connection.attach("a", output=output)).signal == "SIGTERM"
            assert output.data == b"out\n"


@define(eq=False)
class Plain(PosixConnection):
    """A connection that has no more than `perform`, to a host with these programs."""

    protocol = "a protocol of the tests"
    detached_directory = ""

    _connection: PosixConnection
    _path: Path

    async def perform(self, invocation: Invocation) -> Completed:
        """Perform it there."""
        return await self._connection.perform(evolve(invocation, env={"PATH": str(self._path), "HOME": "/nowhere"}))

    async def wait_closed(self) -> str:
        """Wait for the end of that."""
        return await self._connection.wait_closed()


async def test_a_connection_that_ends_sessions_says_that_it_needs_setsid(tmp_path: Path) -> None:
    """Nothing is begun without."""
    (tmp_path / "bin").mkdir()
    async with connected(tmp_path) as (connection, _):
        with pytest.raises(ConnectError, match=r"'a' could not be started: the instance has no setsid; install it"):
            await Plain(connection, tmp_path / "bin").start("a", "true")


@only_root
async def test_a_full_disk_cuts_the_output_and_nothing_else(tmp_path: Path) -> None:
    """The command goes on, how it ended is known, and nothing can be started any more."""
    async with connected(tmp_path) as (connection, kept):
        kept.mkdir()
        mounted = await connection.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(kept)])
        if not mounted.ok:
            pytest.skip("file systems cannot be mounted here")
        try:
            await connection.start("a", "head -c 300000 /dev/zero; kill -KILL $$")
            output = Collector("output")
            completed = await connection.attach("a", output=output)
            assert completed.signal == "SIGKILL"
            assert completed.cut == 300000 - len(output.data) > 0
            with pytest.raises(ConnectError, match="could not be started"):
                await connection.start("b", "cat", stdin=b"x" * 300000)
            with pytest.raises(ConnectError, match="check the disk"):
                await connection.start("c", "true")
            assert [each.name for each in await connection.list_detached()] == ["a"]
        finally:
            await connection.run(["umount", str(kept)], check=True)


async def test_a_connection_that_is_lost_loses_no_output(tmp_path: Path) -> None:
    """Whoever attaches again from where it broke off has each byte once."""
    heard = b""
    (tmp_path / "home").mkdir()
    with sshd(tmp_path / "sshd", f"SetEnv HOME={tmp_path / 'home'} SHLVL=5") as server:

        async def break_off(chunk: bytes) -> None:
            nonlocal heard
            heard += chunk
            server.signal(9)

        async with dialled(server.info) as connection:
            assert isinstance(connection, PosixConnection)
            await connection.start("a", "i=0; while [ $i -lt 30 ]; do echo $((i += 1)); sleep 0.02; done")
            with pytest.raises(Unreachable):
                await connection.attach("a", output=break_off)
        async with dialled(server.info) as connection:
            assert isinstance(connection, PosixConnection)
            rest = Collector("output")
            assert (await connection.attach("a", offset=len(heard), output=rest)).ok
            with pytest.raises(NameTaken):
                await connection.start("a", "true")
            assert heard + rest.data == b"".join(b"%d\n" % (number + 1) for number in range(30))
