"""Commands that a killed shell has left on an instance: they are ended for good, and no other process with them."""

import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import anyio
import pytest
from attrs import evolve

from fleeting import Completed, ConnectError
from fleeting.connectors import Invocation
from taskscaler._left_there import ask_to_end, directory_of, end_registered, note_none, registering, remove_all
from tests.taskscaler.here import Here

pytestmark = pytest.mark.anyio

SHELLS = [("dash",), ("bash",), pytest.param(("busybox", "sh"), marks=pytest.mark.needs("busybox"))]

LOOP = "echo $$; while :; do sleep 0.05; done"
DEAF = f"trap '' TERM; {LOOP}"
FAMILY = f"sh -c \"trap '' TERM; {LOOP}\"; echo not reached"
"""What it has started is deaf; it waits for that."""


@pytest.fixture(params=SHELLS, ids=" ".join)
def shell(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """A shell that instances have as /bin/sh."""
    shell: tuple[str, ...] = request.param
    return shell


def start(home: Path, shell: tuple[str, ...], line: str, *, leads: bool = True) -> "subprocess.Popen[str]":
    """Run a command that registers itself, until it has printed a line."""
    command = [*shell, *registering("1", line, str(home))[1:]]
    process = subprocess.Popen(command, cwd=home, start_new_session=leads, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    assert process.stdout.readline()
    return process


@pytest.mark.parametrize(("line", "leads"), [(LOOP, True), (LOOP, False), (DEAF, True)], ids=["", "no leader", "deaf"])
async def test_a_command_is_ended(shell: tuple[str, ...], line: str, tmp_path: Path, *, leads: bool) -> None:
    """Willing or not; its directory goes with it."""
    with start(tmp_path, shell, line, leads=leads) as process:
        await remove_all(Here(tmp_path), "1")
        assert process.wait() < 0
    assert not (tmp_path / directory_of("1")).exists()


async def test_a_command_runs_where_nothing_can_be_noted(shell: tuple[str, ...], tmp_path: Path) -> None:
    """It may be there to make room; without the tree that was brought there it has nowhere to run."""
    (tmp_path / ".taskscaler").touch()  # which keeps root, too, from making a directory
    for cwd, status, printed in ((None, 3, b"ran\n"), (str(tmp_path), 126, b"")):
        command = [*shell, *registering("1", "echo ran; exit 3", cwd)[1:]]
        done = await anyio.run_process(command, cwd=tmp_path, check=False)
        assert (done.returncode, done.stdout) == (status, printed), done.stderr
        warned = b"lease-1 cannot be written, so the command may work on if its shell is killed\n" in done.stderr
        assert warned == (cwd is None)


class WithoutProc(Here):
    """An instance whose `ps` alone says when processes began, with blanks after it."""

    async def perform(self, invocation: Invocation) -> Completed:
        """Run a script there."""
        return await super().perform(evolve(invocation, command=without_proc(invocation.command)))


def without_proc(command: Sequence[str]) -> Sequence[str]:
    """Have a script see no /proc."""
    first, second, script, *others = command
    padded = "ps() { command ps \"$@\" | sed 's/$/    /'; }\n"
    return (first, second, padded + script.replace("/proc/self/stat", "/nowhere"), *others)


@pytest.mark.needs("ps", "sed")
async def test_a_command_is_ended_where_there_is_no_proc(tmp_path: Path) -> None:
    """As on macOS, whose `ps` pads what it prints."""
    command = without_proc(registering("1", LOOP, None))
    async with (
        await anyio.open_process(command, cwd=tmp_path, start_new_session=True, stderr=None) as process,
        anyio.create_task_group() as tasks,
    ):
        assert process.stdout
        assert await process.stdout.receive()
        tasks.start_soon(process.wait)  # so that it is no zombie, of which only /proc tells
        try:
            await end_registered(WithoutProc(tmp_path), "1")
            assert await process.wait() == -signal.SIGTERM
        finally:
            with suppress(ProcessLookupError):
                process.kill()


async def test_what_it_has_started_ends_too(shell: tuple[str, ...], tmp_path: Path) -> None:
    """As far as it is in its group, whatever that makes of SIGTERM."""
    with start(tmp_path, shell, FAMILY) as process:
        await end_registered(Here(tmp_path), "1")
        assert process.stdout
        assert process.stdout.read() == "", "nobody has the pipe any more"


LEAVES = [
    "sleep 600 >/dev/null 2>&1 & echo $!",
    "(trap '' TERM; exec sleep 600) >/dev/null 2>&1 & echo $!",
]
"""It ends at once, what it has started does not."""


def outlived(command: Sequence[str], cwd: Path) -> tuple[int, int]:
    """Run a command that ends, in a group of its own; returns its number, and that of what it leaves running."""
    with subprocess.Popen(command, cwd=cwd, start_new_session=True, stdout=subprocess.PIPE) as process:
        assert process.stdout
        left = int(process.stdout.readline())
        assert process.wait() == 0
    return process.pid, left


@pytest.mark.parametrize("line", LEAVES, ids=["willing", "deaf"])
async def test_what_has_outlived_its_command_ends_too(shell: tuple[str, ...], line: str, tmp_path: Path) -> None:
    """A command whose first process is gone is still there as long as anything of its group is."""
    left = outlived([*shell, *registering("1", line, None)[1:]], tmp_path)[1]
    assert is_there(left)
    assert await ask_to_end(Here(tmp_path), "1")
    await end_registered(Here(tmp_path), "1", noted=True)
    assert not is_there(left)
    assert not await ask_to_end(Here(tmp_path), "1")


def is_there(pid: int) -> bool:
    """Whether a process has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def test_a_group_of_before_a_restart_is_left_alone(tmp_path: Path) -> None:
    """Its first process has ended, as of many services, and its number is that of a command; it began before that."""
    group, left = outlived(["/bin/sh", "-c", LEAVES[0]], tmp_path)
    directory = tmp_path / directory_of("1")
    directory.mkdir(parents=True)
    (directory / "process").write_text(f"{group} {int(born(left)) + 1}\n")
    await end_registered(Here(tmp_path), "1")
    try:
        assert is_there(left)
    finally:
        os.kill(left, signal.SIGKILL)


async def test_a_note_that_is_gone_is_said(shell: tuple[str, ...], tmp_path: Path) -> None:
    """Nobody knows what runs then, so that the instance goes; a slot in which nothing ran yet has a note of that."""
    await note_none(Here(tmp_path), "1")
    await end_registered(Here(tmp_path), "1", noted=True)
    with start(tmp_path, shell, LOOP) as process:
        (tmp_path / directory_of("1") / "process").unlink()
        with pytest.raises(ConnectError, match="is gone, so nobody knows what runs there"):
            await remove_all(Here(tmp_path), "1", noted=True)
        process.kill()


async def test_another_process_with_its_number_is_left_alone(tmp_path: Path) -> None:
    """Numbers are given again: when a process began says which one it is."""
    with start(tmp_path, ("/bin/sh",), LOOP) as other:
        directory = tmp_path / directory_of("1")
        for noted in (f"{other.pid} 1\n", f"{1 << 40} 5\n"):
            (directory / "process").write_text(noted)
            await end_registered(Here(tmp_path), "1")
            assert other.poll() is None, noted
        for noted in (f"{other.pid} \n", f"{other.pid}\n", f"{other.pid} x\n", "", "-1 1\n", "\0\n"):
            (directory / "process").write_text(noted)
            with pytest.raises(ConnectError, match="nobody knows what runs there"):
                await end_registered(Here(tmp_path), "1")
            assert other.poll() is None, noted
        other.kill()


async def test_what_has_ended_or_never_began_is_no_trouble(shell: tuple[str, ...], tmp_path: Path) -> None:
    """Nor is a lease that left nothing."""
    await end_registered(Here(tmp_path), "1")
    with start(tmp_path, shell, "echo; exit 3") as process:
        assert process.wait() == 3
        await end_registered(Here(tmp_path), "1")


class Toothless(Here):
    """An instance on which nobody can kill anything."""

    async def perform(self, invocation: Invocation) -> Completed:
        """Run a script without `kill`."""
        first, second, script, *others = invocation.command
        command = (first, second, f"kill() {{ :; }}\n{script}", *others)
        return await super().perform(evolve(invocation, command=command))


def born(pid: int) -> str:
    """When a process began, as the system has it."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]


class Watched(Here):
    """An instance on which a signal is a failure."""

    async def perform(self, invocation: Invocation) -> Completed:
        """Run a script that fails where it sends one."""
        first, second, script, *others = invocation.command
        command = (first, second, f"kill() {{ echo sent; exit 9; }}\n{script}", *others)
        return await super().perform(evolve(invocation, command=command))


@pytest.mark.skipif(not Path("/proc/1/stat").exists(), reason="only Linux shows when processes began in /proc")
@pytest.mark.parametrize("number", ["1", "01", "-1", "0", "self"])
async def test_what_the_instance_says_reaches_no_other_process(number: str, tmp_path: Path) -> None:
    """Whoever was there may write anything: a signal for group 1 goes to every process."""
    began = born(1)
    directory = tmp_path / directory_of("1")
    directory.mkdir(parents=True)
    (directory / "process").write_text(f"{number} {began}\n")
    with pytest.raises(ConnectError, match="was changed, so nobody knows what runs there"):
        await end_registered(Watched(tmp_path), "1")


async def test_what_does_not_end_is_said(tmp_path: Path) -> None:
    """So that the instance goes with it."""
    with start(tmp_path, ("sh",), LOOP) as process:
        with pytest.raises(ConnectError, match=r"what runs in .taskscaler/lease-1 could not be ended"):
            await end_registered(Toothless(tmp_path), "1")
        process.kill()
