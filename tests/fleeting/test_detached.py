"""Commands that outlive their connections, where something goes wrong with the host, or with what is kept there."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleeting import Completed, ConnectError, Unreachable
from fleeting.connectors import Collector, Detached, PosixConnection
from fleeting.connectors._detached_report import checked_name, ended, listed
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


async def ignore(_: bytes) -> None:
    """Take output."""


@pytest.mark.parametrize(
    ("line", "why"), [(0, "the host has rebooted"), (2, "what watched over it was killed")], ids=["boot", "process"]
)
async def test_a_command_of_another_boot_or_process_is_lost(tmp_path: Path, line: int, why: str) -> None:
    """Its process id may be somebody else's now; it is told apart from a command that ended, and ends nobody."""
    async with connected(tmp_path) as (connection, kept):
        await connection.start("a", "exec sleep 1000")
        process = kept / "a" / "process"
        before = process.read_text()
        lines = before.split("\n")
        lines[line] = "1"
        process.write_text("\n".join(lines))
        with pytest.raises(CommandLost, match=why):
            await connection.attach("a", output=ignore)
        (listed,) = await connection.list_detached()
        assert listed.lost.startswith(why)
        if line == 0:
            await connection.kill("a")
        assert local_agents.is_there(int(lines[1]))
        process.write_text(before)
        await connection.kill("a")


async def test_what_was_killed_with_its_supervisor_is_lost_until_somebody_kills_it(tmp_path: Path) -> None:
    """Nobody knows how it ended; `kill` sees to it that it has."""
    async with connected(tmp_path) as (connection, kept):
        await connection.start("a", "exec sleep 1000")
        _, watcher, *_ = (kept / "a" / "process").read_text().split("\n")
        await connection.run(["kill", "-KILL", "--", f"-{watcher}"], check=True)
        with pytest.raises(CommandLost, match="killed"):
            await connection.attach("a", output=ignore)
        await connection.kill("a")
        assert (await connection.attach("a", output=ignore)).signal == "SIGKILL"


async def test_a_job_that_removes_what_is_kept_is_lost(tmp_path: Path) -> None:
    """Who is attached learns of it; who comes later finds nothing."""
    async with connected(tmp_path) as (connection, kept):
        await connection.start("a", f"sleep 0.3; rm -r {kept}/a; exec sleep 1000")
        with pytest.raises(CommandLost, match="removed"):
            await connection.attach("a", output=ignore)
        with pytest.raises(NameUnknown):
            await connection.attach("a", output=ignore)


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
    """Directories 0700, files 0600, and of the input nothing stays."""
    async with connected(tmp_path) as (connection, kept):
        await connection.start("a", "cat", stdin=b"secret")
        await connection.attach("a", output=ignore)
        assert kept.stat().st_mode & 0o777 == (kept / "a").stat().st_mode & 0o777 == 0o700
        assert {path.stat().st_mode & 0o777 for path in (kept / "a").iterdir()} == {0o600}
        assert "input" not in local_agents.names(kept / "a")


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


@given(st.integers(0, 255), st.sampled_from(["", "KILL", "RTMIN+3"]), st.integers(0, 10**17))
def test_an_end_is_read_as_it_is_reported(status: int, signal: str, cut: int) -> None:
    """A signal is reported in place of the status."""
    wanted = Completed(exit_status=None if signal else status, signal=f"SIG{signal}" if signal else None, cut=cut)
    assert ended("a", f"ended {status}.{signal}.{cut}") == wanted
    assert list(listed(f"a ended {status}.{signal}.{cut}\nb running\nc absent\n")) == [
        Detached(name="a", completed=wanted),
        Detached(name="b"),
    ]


@given(st.text("aé /.\n\0é-", max_size=8))
def test_no_other_report_is_believed(text: str) -> None:
    """A host that says anything else is in error, and so is a name that would leave the directory."""
    with pytest.raises(ConnectError):
        ended("a", f"ended {text}")
    for name in ("../a", f"{text}/", f"/{text}", f"{text}\n", f".{text}"):
        with pytest.raises(ConnectError):
            checked_name(name)


def test_what_somebody_else_left_among_the_commands_hides_none_of_them() -> None:
    """A directory with a space, an end that no shell writes, a signal without a name: each is one line's own."""
    report = "a running\nstray b running\n.x running\nb ended x.y\nc ended 160.32.0\nd rebooted\n"
    assert [(each.name, each.completed, bool(each.lost)) for each in listed(report)] == [
        ("a", None, False),
        ("b", None, True),
        ("c", Completed(exit_status=160), False),
        ("d", None, True),
    ]
