"""Commands that outlive their connections, where nobody can know how they ended, or somebody could be mistaken."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from fleeting import ConnectError
from fleeting.connectors import Collector
from fleeting.errors import CommandLost, NameTaken, NameUnknown
from tests.fleeting import local_agents
from tests.fleeting.detached_commands import begun, connected, connected_over_ssh, ignore, lines_of

pytestmark = pytest.mark.anyio


def boot(lines: list[str]) -> None:
    """Another one."""
    lines[1] = "1"


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
            ended = await connection.attach("a", output=output)
            # by the latter, if the machine was busy for two seconds
            assert ended.signal in ("SIGTERM", "SIGKILL"), ended
            assert output.data
            await connection.forget("a")


async def test_a_signal_while_the_end_is_noted_changes_nothing(tmp_path: Path) -> None:
    """It is for the whole process group, and may come twice, or once the command has ended."""
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "mv").write_text('#!/bin/sh\nkill -TERM 0\nexec /bin/mv "$@"\n')  # which notes it
    (tools / "mv").chmod(0o755)
    async with connected_over_ssh(tmp_path, f"PATH={tools}:{os.environ['PATH']}") as (connection, _):
        await connection.start("a", "exit 3")
        assert (await connection.attach("a", output=ignore)).exit_status == 3
        assert [each.is_running for each in await connection.list_detached()] == [False]


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
        (kept / "a:process").write_text("4194305\n")  # no system has such a process
        (kept / "b:process").touch()
        assert [(each.name, each.lost) for each in await connection.list_detached()] == [
            ("a", "it was never begun")
        ]  # the other is about to begin, for all that is known
        for name in ("a", "b"):
            with pytest.raises(NameTaken):
                await connection.start(name, "true")
            with pytest.raises(CommandLost, match="never begun"):
                await connection.attach(name, output=ignore)
            await connection.forget(name)
            await connection.start(name, "true")
            assert (await connection.attach(name, output=ignore)).ok


async def test_a_shell_that_takes_long_to_begin_is_not_taken_for_dead(tmp_path: Path) -> None:
    """On a busy host that took longer than the wait, and a job ran twice; while the shell lives, it is waited for."""
    async with connected(tmp_path) as (connection, kept):
        kept.mkdir()
        line = "sleep 4; echo late > a:output; echo > a:ended:3::0"
        async with await anyio.open_process(line, cwd=kept, start_new_session=True) as shell:
            (kept / "a:process").write_text(f"{shell.pid}\n")
            output = Collector("output")
            (kept / "a:output").touch()
            assert (await connection.attach("a", output=output)).exit_status == 3
            assert output.data == b"late\n"
        await connection.forget("a")


async def test_a_job_that_removes_what_is_kept_is_lost(tmp_path: Path) -> None:
    """Who is attached learns of it; who comes later finds nothing."""
    async with connected(tmp_path) as (connection, kept):
        await connection.start(
            "a", f"echo; until [ -e {tmp_path}/go ]; do sleep 0.01; done; rm -r {kept}; exec sleep 1000"
        )

        async def go(_: bytes) -> None:
            (tmp_path / "go").touch()

        with pytest.raises(CommandLost, match="removed"):
            await connection.attach("a", output=go)
        with pytest.raises(NameUnknown):
            await connection.attach("a", output=ignore)


async def test_a_job_that_removes_its_output_has_an_end(tmp_path: Path) -> None:
    """What was not passed on by then is reported as cut."""
    async with connected(tmp_path) as (connection, kept):
        await connection.start("a", f"echo out; until [ -s {kept}/a:output ]; do :; done; rm {kept}/a:output; exit 3")
        await connection.start("b", "exit 4")
        while any(each.is_running for each in await connection.list_detached()):  # noqa: ASYNC110  (nobody here learns of it)
            await anyio.sleep(local_agents.POLL)
        completed = await connection.attach("a", output=ignore)
        assert (completed.exit_status, completed.cut) == (3, 4)
        await connection.forget("a")
        assert [each.name for each in await connection.list_detached()] == ["b"]


@pytest.mark.needs("setsid")
async def test_a_command_that_leaves_its_session_is_killed_all_the_same(tmp_path: Path) -> None:
    """With who watches over it, and without: it is known by what it was, and ends with its group of now."""
    async with connected_over_ssh(tmp_path) as (connection, kept):
        for alone in (False, True):
            await connection.start("a", ["setsid", "sleep", "1000"])
            watcher, pid = [int(line.split()[0]) for line in (await lines_of(kept / "a:process", 4))[2:]]
            while os.getsid(pid) != pid:  # noqa: ASYNC110  (it is no child of ours)
                await anyio.sleep(local_agents.POLL)
            if alone:
                os.kill(watcher, signal.SIGKILL)
            await connection.kill("a")
            while local_agents.is_there(pid):  # noqa: ASYNC110  (it is no child of ours)
                await anyio.sleep(local_agents.POLL)
            await connection.forget("a")
