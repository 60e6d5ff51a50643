"""An agent of the `local` group that is started by hand, as a script that plays a cloud does."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from anyio import to_thread
from anyio.lowlevel import checkpoint

from fleeting import ConnectInfo, dial
from tests.fleeting.local_agents import names, watched

pytestmark = pytest.mark.anyio


def start(*arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    """Run the module."""
    command = [sys.executable, "-m", "fleeting.groups.local", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


async def test_an_agent_started_by_hand_runs_commands_until_it_is_told_to_end(tmp_path: Path) -> None:
    """It outlives who started it, and leaves nothing: not even the directory above, once that is empty."""
    directory = tmp_path / "cloud" / "i-1"
    directory.parent.mkdir()
    done = await to_thread.run_sync(start, directory)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    while not (directory / "agent.sock").exists():
        await checkpoint()
    info = ConnectInfo(id="i-1", protocol="local", internal_addr=str(directory / "agent.sock"))
    async with dial(info) as connection:
        assert (await connection.run("echo hello")).stdout == b"hello\n"
    pid = int((directory / "agent.pid").read_text())
    with watched(pid) as (agent,):
        os.kill(pid, 15)
        await agent.ended()
    assert names(tmp_path) == []


def test_what_is_there_is_left_alone(tmp_path: Path) -> None:
    """Neither an instance nor anything else is overwritten, or removed when the start fails."""
    (tmp_path / "precious").write_text("data")
    done = start(tmp_path)
    assert (done.returncode, done.stderr) == (1, f"{tmp_path} cannot be made: File exists\n")
    assert names(tmp_path) == ["precious"]


def test_a_wrong_call_is_told_how() -> None:
    """In a line."""
    done = start()
    assert (done.returncode, done.stderr) == (1, "usage: python -m fleeting.groups.local DIRECTORY\n")
