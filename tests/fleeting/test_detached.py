"""Commands that outlive their connections, where something goes wrong with the host, or with what is kept there."""

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest
from attrs import define, evolve

from fleeting import Completed, ConnectError, Unreachable
from fleeting.connectors import Collector, Invocation, PosixConnection
from fleeting.errors import NameTaken
from tests.fleeting import local_agents
from tests.fleeting.detached_commands import begun, connected
from tests.fleeting.sshd import dialled, only_root, sshd

pytestmark = pytest.mark.anyio


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


@pytest.mark.needs("grep", "sed")
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
    """Nobody else enters the directory, and of the input nothing stays."""
    async with connected(tmp_path) as (connection, kept):
        for stdin in (b"secret", arriving_in_parts()):
            await connection.start("a", "cat", stdin=stdin)
            output = Collector("output")
            await connection.attach("a", output=output)
            assert output.data == b"secret"
            assert kept.stat().st_mode & 0o777 == 0o700
            ended, *others = local_agents.names(kept)
            assert ended.startswith("a:ended:0::0:")
            assert others == ["a:output", "a:process"]
            await connection.forget("a")


async def test_without_room_for_its_files_nothing_is_begun(tmp_path: Path) -> None:
    """The name is free again."""
    async with connected(tmp_path) as (connection, kept):
        kept.mkdir()
        (kept / "a:ending").symlink_to("/dev/full")
        with pytest.raises(ConnectError, match=r"'a' could not be started: its files could not.* check the disk"):
            await connection.start("a", "true", stdin=b"x")
        assert not local_agents.names(kept)
        await connection.start("a", "true")


async def arriving_in_parts() -> AsyncIterator[bytes]:
    """Yield a secret."""
    yield b"sec"
    yield b"ret"


@pytest.mark.needs("setsid")
async def test_who_leaves_the_session_is_not_waited_for(tmp_path: Path) -> None:
    """It has the output open, but the command has ended; on this kind of instance it ends with it."""
    async with connected(tmp_path) as (connection, _):
        await connection.start("a", local_agents.DETACHED + "exit 3")
        output = Collector("output")
        assert (await connection.attach("a", output=output)).exit_status == 3
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
            assert not (await connection.run("command -v setsid")).ok
            pid = await begun(connection, "a")
            await connection.kill("a")
            output = Collector("output")
            ended = await connection.attach("a", output=output)
            assert ended.signal in ("SIGTERM", "SIGKILL")  # the latter where its time to end is used up before it runs
            assert output.data == b"%d\n" % pid
            heard, starts = Collector("output"), list[bytes]()
            completed = await connection.start_attached(
                "b", "cat; exit 4", stdin=b"in", started=lambda: starts.append(bytes(heard.data)), output=heard
            )
            assert (completed.exit_status, bytes(heard.data), starts) == (4, b"in", [b""])


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
@pytest.mark.needs("mount", "umount")
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
            assert completed.usage.cpu_time is not None
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
