"""What commands have used: what real shells say of it, and how that is read."""

import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from math import isfinite
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fleeting import Usage
from fleeting.connectors import REPORT_USAGE, Collector, PosixConnection, read_usage
from fleeting.connectors._detached_report import ended
from fleeting.connectors._detached_scripts import ATTACH, START
from fleeting.connectors._usage import PLACES
from tests.fleeting.detached_commands import connected, connected_over_ssh
from tests.needs import find_program

MIB = 1 << 20

Connect = Callable[[Path], AbstractAsyncContextManager[tuple[PosixConnection, Path]]]

SHELLS = [
    ["/bin/dash"],
    ["/bin/bash"],
    ["/bin/bash", "--posix"],
    pytest.param([find_program("busybox") or "busybox", "sh"], marks=pytest.mark.needs("busybox")),
]

WORK = """i=0; while [ $i -lt 30000 ]; do i=$((i + 1)); done
dd if=/dev/zero of=written bs=1048576 count=3 2>/dev/null
dd if=/dev/zero of=/dev/null bs=33554432 count=1 2>/dev/null"""
"""Takes some CPU time, writes 3 MiB, and has 32 MiB of memory."""


def on_disk(tmp_path: Path) -> Path | None:
    """Give a directory on a disk, which the one that pytest gives need not be; None: this machine has none."""
    return next((each for each in (tmp_path, Path("/var/tmp"), Path.cwd()) if _is_on_disk(each)), None)  # noqa: S108


def _is_on_disk(directory: Path) -> bool:
    kind = subprocess.run(
        ["/usr/bin/stat", "-f", "-c", "%T", directory], check=True, capture_output=True, text=True
    ).stdout
    return kind.strip() not in {"tmpfs", "ramfs"}


def tools_in(directory: Path, **tools: str | Path) -> Path:
    """Make a directory of these programs, of each its path or what a shell is to do in its place."""
    directory.mkdir()
    for name, tool in tools.items():
        if isinstance(tool, Path):
            (directory / name).symlink_to(tool)
        else:
            (directory / name).write_text(f"#!/bin/sh\n{tool}\n")
            (directory / name).chmod(0o700)
    return directory


def found(name: str) -> Path:
    """A program of this machine."""
    return Path(shutil.which(name) or "/nowhere")


PYTHON = Path(sys.executable).resolve()


@pytest.mark.parametrize("programs", [("perl", "python3"), ("python3",), ()], ids=["perl", "python3", "neither"])
@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
def test_any_shell_says_what_a_command_has_used(tmp_path: Path, shell: Sequence[str], programs: Sequence[str]) -> None:
    """CPU time and bytes written always; memory if there is a program that can ask the kernel; none from before."""
    places = tools_in(tmp_path / "places", **{name: {"python3": PYTHON}.get(name, found(name)) for name in programs})
    usage = usage_of_work(tmp_path, shell, REPORT_USAGE.replace(PLACES, str(places)))
    if programs:
        assert usage.peak_memory is not None
        assert 32 * MIB < usage.peak_memory < 100 * MIB
    else:
        assert usage.peak_memory is None


def usage_of_work(directory: Path, shell: Sequence[str], script: str) -> Usage:
    """What `WORK` has used by this shell's account, which has more tools than those that the script looks for."""
    tools = tools_in(directory / "bin", sh=found("sh"), dd=found("dd"), sleep=found("sleep"))
    asked = f"""{script}
dd if=/dev/zero of=/dev/null bs=134217728 count=1 2>/dev/null
said=$( (/bin/sh -c "$1") </dev/null; report_usage ''); echo "$said" """
    done = subprocess.run(
        [*shell, "-c", asked, "sh", WORK],
        check=True,
        capture_output=True,
        cwd=directory,
        env={"PATH": str(tools), "PERL5OPT": "-Mno::such", "PYTHONPATH": str(directory)},
    )
    usage = read_usage(done.stdout.decode().split())
    assert usage.cpu_time is not None
    assert 0 < usage.cpu_time < 60
    assert usage.disk_written is not None
    return usage


@pytest.mark.parametrize("has_python", [True, False])
def test_a_perl_of_32_bits_leaves_it_to_python(tmp_path: Path, *, has_python: bool) -> None:
    """It cannot ask, so the memory was unknown, although there was one that can."""
    programs = {"perl": found("perl")} | ({"python3": PYTHON} if has_python else {})
    places = tools_in(tmp_path / "places", **programs)
    of_64 = "qq(\\2)"
    assert of_64 in REPORT_USAGE
    script = REPORT_USAGE.replace(PLACES, str(places)).replace(of_64, "qq(\\1)")
    assert (usage_of_work(tmp_path, ["/bin/sh"], script).peak_memory is not None) == has_python


@pytest.mark.parametrize("perl", ["exit 1", "exec sleep 1000"], ids=["fails", "hangs"])
@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
def test_a_program_that_does_not_work_costs_only_what_it_would_have_said(
    tmp_path: Path, shell: Sequence[str], perl: str
) -> None:
    """Nor is it waited for for long; it hung once, and with it whoever waited for the command."""
    places = tools_in(tmp_path / "places", perl=perl)
    script = f"{REPORT_USAGE.replace(PLACES, str(places))}\nsaid=$( (exit 3); echo $?; report_usage ''); echo $said"
    done = subprocess.run([*shell, "-c", script], check=True, capture_output=True)
    status, *words = done.stdout.decode().split()
    usage = read_usage(words)
    assert (status, usage.cpu_time is None, usage.disk_written is None) == ("3", False, False)
    assert usage.peak_memory is None


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
def test_an_end_is_noted_before_anybody_is_asked(tmp_path: Path, shell: Sequence[str]) -> None:
    """Who hangs then holds up no end, and who is attached has what was known without it."""
    kept = tmp_path / "kept"
    places = tools_in(
        tmp_path / "places", perl=f"ls {kept} > {tmp_path}/new; mv {tmp_path}/new {tmp_path}/seen; exec sleep 1000"
    )
    command = [*shell, "-c", START.replace(PLACES, str(places)), "sh", str(kept), "a", "", "0", "10", "", "", "/bin/sh"]
    started = subprocess.run(
        [*command, "-c", "echo out; exit 3"], input=b"", capture_output=True, start_new_session=True, check=False
    )
    assert (started.stdout, started.returncode) == (b"started\n", -9)
    attached = subprocess.run([*shell, "-c", ATTACH, "sh", str(kept), "a", "1"], check=True, capture_output=True)
    assert attached.stdout == b"out\n"
    completed = ended("a", attached.stderr.decode().splitlines()[-1])
    assert (completed.exit_status, completed.cut) == (3, 0)
    assert completed.usage.cpu_time is not None
    assert completed.usage.disk_written is not None
    assert completed.usage.peak_memory is None
    while not (tmp_path / "seen").exists():
        subprocess.run(["/bin/sleep", "0.05"], check=True)
    assert (tmp_path / "seen").read_text().split() == ["a:ended:3::0:", "a:output", "a:process"]


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
def test_a_system_without_proc_knows_the_cpu_time(shell: Sequence[str]) -> None:
    """The shell's own `times` are known everywhere; they are the children's, and not the shell's."""
    script = REPORT_USAGE.replace("/proc/", "/nowhere/")
    work = "i=0; while [ $i -lt 100000 ]; do i=$((i + 1)); done"
    for mark in ("", "mark "):
        command = [*shell, "-c", f"{script}\n(sh -c '{work}'); report_usage '{mark}'"]
        first, *lines = subprocess.run(command, check=True, capture_output=True).stdout.decode().splitlines()
        assert first == "mark times" if mark else len(lines) == 1
        usage = read_usage(" ".join(lines if mark else [first, *lines]).split())
        assert usage.cpu_time is not None
        assert 0 < usage.cpu_time < 60
        assert (usage.peak_memory, usage.disk_written) == (None, None)


@pytest.mark.anyio
@pytest.mark.parametrize("connect", [connected, connected_over_ssh])
async def test_a_detached_command_s_use_is_known_when_it_has_ended(tmp_path: Path, connect: Connect) -> None:
    """However often one asks, and of each command its own; also of one that was ended by a signal."""
    async with connect(tmp_path) as (connection, _):
        output = Collector("output")
        first = await connection.start_attached(
            "a", f"cd {tmp_path}; {WORK}; kill -KILL $$", started=lambda: None, output=output
        )
        await connection.start("b", "true")
        second = await connection.attach("b", output=output)
        assert first.signal == "SIGKILL"
        assert first.usage == (await connection.attach("a", output=output)).usage
        for usage in (first.usage, second.usage):
            assert usage.cpu_time is not None
            assert usage.peak_memory is not None
            assert usage.disk_written is not None
        assert (first.usage.peak_memory or 0) > 32 * MIB > (second.usage.peak_memory or 0)
        assert (first.usage.cpu_time or 0) > (second.usage.cpu_time or 0)
        found = {each.name: each.completed for each in await connection.list_detached()}
        assert found["a"] is not None
        assert found["a"].usage == first.usage


def test_what_is_written_to_a_disk_is_counted(tmp_path: Path) -> None:
    """And what is written to memory is not."""
    directory = on_disk(tmp_path)
    if directory is None:
        pytest.skip("this machine has no file system on a disk")
    file = directory / f"usage-{tmp_path.parent.name}-{tmp_path.name}"
    write = 'dd if=/dev/zero of="$1" bs=1048576 count=3 2>/dev/null'
    script = f"{REPORT_USAGE}\nsaid=$( ({write}); report_usage ''); echo $said"
    try:
        done = subprocess.run(["/bin/sh", "-c", script, "sh", file], check=True, capture_output=True)
    finally:
        file.unlink(missing_ok=True)
    assert (read_usage(done.stdout.decode().split()).disk_written or 0) >= 3 * MIB


WORDS = st.one_of(
    st.text(max_size=30),
    st.from_regex(r"[ctmw][0-9]{1,20}", fullmatch=True),
    st.from_regex(r"[0-9]{1,15}m[0-9]{1,15}([.,][0-9]{1,9})?s", fullmatch=True),
)


@example(["0m0s", "0m0s", "999999999999m0s", "0m0s"])
@example(["t9007199254740991"])
@given(st.lists(WORDS, max_size=20))
def test_whatever_a_host_says_figures_are_figures(words: list[str]) -> None:
    """None is negative, endless or more than a column of numbers can hold; what is no report says nothing."""
    usage = read_usage(words)
    for figure, unit in ((usage.cpu_time, 1e6), (usage.peak_memory, 1), (usage.disk_written, 1)):
        assert figure is None or (isfinite(figure) and 0 <= figure * unit <= 2**53)
    if not any(word[:1].isascii() and word[:1].isalnum() for word in words):
        assert usage == Usage()


@given(st.integers(0, 2**53 - 1), st.integers(0, 2**53 - 1), st.integers(0, 2**53 - 1), st.booleans())
def test_a_report_is_read_as_it_was_written(cpu: int, memory: int, written: int, is_exact: bool) -> None:  # noqa: FBT001
    """Exact time wins over ticks; the name of a file has room for all of it."""
    words = [f"t{cpu // 10_000}", f"w{written}", *([f"c{cpu}", f"m{memory}"] if is_exact else [])]
    usage = read_usage(words)
    assert usage.cpu_time == (cpu / 1e6 if is_exact else cpu // 10_000 / 100)
    assert (usage.disk_written, usage.peak_memory) == (written, memory if is_exact else None)
    assert ended("a", f"ended 0::0:{'_'.join(words)}").usage == usage
