"""Control groups of commands: what they count, what they limit, and that they leave nothing; by a kernel of our own."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest
from attrs import define
from hypothesis import given
from hypothesis import strategies as st

from job_steps import Resources
from job_steps._cgroups import (
    Cgroups,
    Hierarchy,
    _groups_with_memory,
    cgroups_here,
    may_be_used,
    oom_kills,
    own_group,
    prepared,
)
from job_steps._keeping import Keeping, kept
from job_steps._limits import Limits
from job_steps._process import Ended, run_command
from job_steps._results import OutOfMemory
from tests.fleeting.local_agents import POLL
from tests.job_steps.groups import KernelsGroups
from tests.job_steps.running import ENV

pytestmark = pytest.mark.anyio

MIB = 1 << 20


@pytest.fixture
def kernel(tmp_path: Path) -> KernelsGroups:
    """A group without processes of its own."""
    directory = tmp_path / "group"
    directory.mkdir()
    return KernelsGroups(directory)


def ready(kernel: KernelsGroups, *, moves: bool = False) -> Cgroups:
    """Make what makes groups there."""
    found = prepared(kernel, moves=moves)
    assert found
    return found


async def gone(cgroups: Cgroups, kernel: KernelsGroups) -> None:
    """Wait until no group is left: what was killed takes a moment to end."""
    while kernel.names():
        cgroups.tidy()
        await anyio.sleep(POLL)


def only(kernel: KernelsGroups) -> str:
    """The one group of a command that there is."""
    (name,) = (each for each in kernel.names() if not each.endswith("-own"))
    return name


@define
class Busy:
    """A command that says something, and waits until it is in its group before it ends."""

    kernel: KernelsGroups
    directory: Path
    keeping: Keeping

    async def run(self, inside: Callable[[str], None], code: int = 0) -> Ended:
        """Run it, with something that happens while it is in its group."""

        async def hear(_: bytes) -> None:
            while not self.kernel.processes(only(self.kernel)):  # noqa: ASYNC110  (it tells nobody)
                await anyio.sleep(POLL)
            inside(only(self.kernel))
            (self.directory / "go").touch()

        (self.directory / "go").unlink(missing_ok=True)
        command = ["sh", "-c", f"echo; while [ ! -e go ]; do sleep 0.05; done; exit {code}"]
        return await run_command(command, cwd=str(self.directory), env=ENV, sink=hear, keeping=self.keeping)


async def test_a_group_counts_what_its_command_uses(kernel: KernelsGroups, tmp_path: Path) -> None:
    """All four figures, in place of the kernel's of processes; afterwards there is no group."""
    cgroups = ready(kernel)

    def use(group: str) -> None:
        kernel.spend(group, usec=70_500_000, read=1 << 40, written=2 << 40)
        kernel.charge(group, 3 * MIB)

    ended = await Busy(kernel, tmp_path, Keeping(cgroups=cgroups)).run(use)
    figures = ("cpu_seconds", "peak_memory", "read_bytes", "written_bytes")
    assert ended.resources == Resources(
        cpu_seconds=70.5, peak_memory=3 * MIB, read_bytes=1 << 40, written_bytes=2 << 40, by_cgroup=figures
    )
    assert (ended.code, ended.out_of_memory) == (0, None)
    await gone(cgroups, kernel)


async def test_a_command_over_its_memory_is_killed_with_all_that_it_started(
    kernel: KernelsGroups, tmp_path: Path
) -> None:
    """It is in its group from the first moment on, so what it starts is; what runs beside it goes on."""
    cgroups = ready(kernel)
    other = cgroups.make()
    assert other
    beside = await anyio.open_process(["sleep", "1000"], start_new_session=True)
    assert other.take(beside.pid)
    group = ""

    async def leak(_: bytes) -> None:
        nonlocal group
        (group,) = (each for each in kernel.names() if each != other.name)
        assert (kernel.directory / group / "memory.max").read_text() == f"{64 * MIB}\n"
        kernel.charge(group, 65 * MIB)

    command = ["sh", "-c", "echo; exec sleep 1000"]
    async with kept(Limits(memory=64 * MIB), cgroups) as keeping:
        ended = await run_command(command, cwd=str(tmp_path), env=ENV, sink=leak, keeping=keeping)
    assert ended.code == -signal.SIGKILL
    assert ended.out_of_memory == OutOfMemory(had=64 * MIB, allowed=64 * MIB)
    assert ended.resources.peak_memory == 64 * MIB
    assert beside.returncode is None
    other.kill()
    assert await beside.wait() == -signal.SIGKILL
    cgroups.release(other)
    await gone(cgroups, kernel)


def test_a_command_that_is_over_at_once_was_in_no_group(kernel: KernelsGroups) -> None:
    """The kernel puts nothing that has ended into a group, and does not say so: its figures are not from there."""
    cgroups = ready(kernel)
    group = cgroups.make()
    assert group
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", ""]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert not group.take(process.pid)
    cgroups.release(group)
    assert kernel.names() == []


async def test_what_was_killed_elsewhere_was_not_out_of_memory(kernel: KernelsGroups, tmp_path: Path) -> None:
    """A signal alone says nothing, and neither does a process that was killed in a command that succeeded."""
    keeping = Keeping(cgroups=ready(kernel))
    killed = await run_command(["sh", "-c", "kill -9 $$"], cwd=str(tmp_path), env=ENV, sink=_ignore, keeping=keeping)
    assert (killed.code, killed.out_of_memory) == (-signal.SIGKILL, None)

    def count(group: str) -> None:
        (kernel.directory / group / "memory.events").write_text("oom 0\noom_kill 1\n")

    busy = Busy(kernel, tmp_path, keeping)
    fine, above = await busy.run(count), await busy.run(count, code=7)
    assert (fine.code, fine.out_of_memory) == (0, None)
    assert (above.code, above.out_of_memory) == (7, OutOfMemory(had=0, allowed=None)), "a limit above it was reached"


async def test_what_stays_in_the_background_keeps_its_group_until_it_ends(
    kernel: KernelsGroups, tmp_path: Path
) -> None:
    """And with that, its limit; then the next command removes it."""
    cgroups = ready(kernel)
    left = await anyio.open_process(["sleep", "1000"])
    group = cgroups.make()
    assert group
    assert group.take(left.pid)
    cgroups.release(group)
    assert group.name in kernel.names()
    group.kill()
    await left.wait()
    while kernel.processes(group.name):  # noqa: ASYNC110  (it tells nobody)
        await anyio.sleep(POLL)
    keeping = Keeping(cgroups=cgroups)
    ended = await run_command(["true"], cwd=str(tmp_path), env=ENV, sink=_ignore, keeping=keeping)
    assert ended.code == 0
    assert kernel.names() == []


def test_controllers_are_passed_on_where_nobody_is_in_the_way(kernel: KernelsGroups) -> None:
    """An agent moves out of the way, with those that started it; a program that only runs steps does not."""
    kernel.own.update({os.getpid(), os.getppid()})
    KernelsGroups.__attrs_post_init__(kernel)
    ready(kernel)
    assert kernel.read("cgroup.subtree_control").split() == []
    assert kernel.own == {os.getpid(), os.getppid()}
    ready(kernel, moves=True)
    assert kernel.read("cgroup.subtree_control").split() == ["io", "memory"]
    assert set(kernel.processes(f"job-steps-{os.getpid()}-own")) == {os.getpid(), os.getppid()}


async def test_without_controllers_a_group_counts_cpu_time_alone(kernel: KernelsGroups, tmp_path: Path) -> None:
    """Where others' processes are in the group; a limit of memory is kept by other means then."""
    async with await anyio.open_process(["sleep", "1000"]) as stranger:
        kernel.own.update({os.getpid(), stranger.pid})
        KernelsGroups.__attrs_post_init__(kernel)
        cgroups = ready(kernel, moves=True)
        assert kernel.read("cgroup.subtree_control") == ""
        assert kernel.own == {os.getpid(), stranger.pid}
        stranger.kill()
    leak = ["python3", "-c", "import time; x = bytearray(100 << 20); time.sleep(1000)"]
    async with kept(Limits(memory=64 * MIB), cgroups) as keeping:
        ended = await run_command(leak, cwd=str(tmp_path), env=ENV, sink=_ignore, keeping=keeping)
    assert ended.code == -signal.SIGKILL
    assert ended.out_of_memory
    assert (ended.out_of_memory.allowed, ended.out_of_memory.had >= 64 * MIB) == (64 * MIB, True)
    assert ended.resources.by_cgroup == ("cpu_seconds",)
    assert ended.resources.peak_memory >= 64 * MIB


def test_what_kills_a_command_in_a_container_is_counted_there(tmp_path: Path) -> None:
    """By version 2, or by version 1 of the memory alone; where the kernel does not count it, nobody says anything."""
    for each in ("self", "v1", "v2"):
        (tmp_path / each).mkdir()
    assert oom_kills(tmp_path) is None
    _groups_with_memory.cache_clear()
    (tmp_path / "self/cgroup").write_text("5:cpu,memory:/docker/1\n0::/\n")
    (tmp_path / "self/mountinfo").write_text(
        f"30 23 0:26 / {tmp_path}/v2 rw - cgroup2 cgroup2 rw\n"
        f"31 23 0:27 /docker/1 {tmp_path}/v1 ro - cgroup cgroup rw,cpu,memory\n"
    )
    assert oom_kills(tmp_path) is None
    (tmp_path / "v1/memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")
    assert oom_kills(tmp_path) == 3
    (tmp_path / "v2/memory.events").write_text("low 0\noom 0\noom_kill 5\n")
    assert oom_kills(tmp_path) == 5


def test_a_name_that_is_taken_is_passed_over(kernel: KernelsGroups) -> None:
    """An earlier process may have had this one's id, and something of it still runs."""
    cgroups = ready(kernel)
    kernel.make(f"job-steps-{os.getpid()}-2")
    group = cgroups.make()
    assert group
    assert group.name == f"job-steps-{os.getpid()}-3"


def test_groups_of_processes_that_are_gone_are_removed(kernel: KernelsGroups) -> None:
    """Those of this one, and whatever others have made, stay."""
    for name in ("job-steps-999999999-1", f"job-steps-{os.getpid()}-77", "docker"):
        kernel.make(name)
    ready(kernel)
    assert sorted(kernel.names()) == ["docker", f"job-steps-{os.getpid()}-77"]


@pytest.mark.parametrize(
    ("own", "mount", "found"),
    [
        ("0::/user.slice/a\n", "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw", "/sys/fs/cgroup/user.slice/a"),
        ("4:memory:/x\n0::/\n", "30 23 0:26 / /sys/fs/cgroup/unified rw - cgroup2 none rw", "/sys/fs/cgroup/unified"),
        ("0::/a/job-steps-7-own\n", "30 23 0:26 / /cg rw - cgroup2 cgroup rw", "/cg/a"),
        ("0::/a/job-steps-7-1\n", "30 23 0:26 / /cg rw - cgroup2 cgroup rw", "/cg/a/job-steps-7-1"),
        ("0::/docker/1/a\n", "30 23 0:26 /docker/1 /a\\040b rw - cgroup2 cgroup rw", "/a b/a"),
        ("0::/docker/1\n", "30 23 0:26 /docker/1 /cg rw shared:9 - cgroup2 cgroup rw", "/cg"),
        ("0::/other\n", "30 23 0:26 /docker/1 /cg rw - cgroup2 cgroup rw", None),
        ("0::/../other\n", "30 23 0:26 / /cg rw - cgroup2 cgroup rw", None),
        ("4:memory:/x\n", "30 23 0:26 / /cg rw - cgroup cgroup rw,memory", None),
    ],
)
def test_the_group_of_this_process_is_found(tmp_path: Path, own: str, mount: str, found: str | None) -> None:
    """Wherever its hierarchy is mounted, and in a container."""
    (tmp_path / "self").mkdir()
    (tmp_path / "self/cgroup").write_text(own)
    (tmp_path / "self/mountinfo").write_text(f"22 1 254:0 / / rw - ext4 /dev/vda rw\n{mount}\n")
    assert own_group(tmp_path) == (None if found is None else Path(found))


def test_systemds_groups_are_left_alone(kernel: KernelsGroups, tmp_path: Path) -> None:
    """Only what a unit was given is its own, whoever could write there. Elsewhere, who may write may divide."""
    assert may_be_used(kernel.directory, tmp_path / "no-systemd")
    assert not may_be_used(kernel.directory, tmp_path)
    assert not may_be_used(tmp_path / "nothing", tmp_path / "no-systemd")


BURN = """
import time
while time.process_time() < 0.2: pass
open("fifo", "w").write(f"{time.process_time()}\\n")
"""
"""A program that says how much CPU time it has used."""


async def test_this_machines_kernel_does_what_ours_does(tmp_path: Path) -> None:
    """Where it lets us make groups, one counts a process that nobody waits for, too, and is removed."""
    directory = own_group()
    can = directory is not None and may_be_used(directory)
    cgroups = cgroups_here()
    assert (cgroups is not None) is can
    before = [] if cgroups is None else cgroups.hierarchy.names()
    heard: list[bytes] = []

    def made() -> list[str]:
        now = [] if cgroups is None else cgroups.hierarchy.names()
        return [name for name in now if name not in before and name.startswith(f"job-steps-{os.getpid()}-")]

    async def hear(data: bytes) -> None:
        heard.append(data)
        if cgroups and len(heard) == 1:
            while not cgroups.hierarchy.read(f"{made()[0]}/cgroup.procs"):  # noqa: ASYNC110  (as above)
                await anyio.sleep(POLL)
        (tmp_path / "go").touch()

    script = """
        mkfifo fifo; echo ready; while [ ! -e go ]; do sleep 0.05; done
        "$0" -I -S -c "$1" & exec head -1 fifo
    """
    command = ["sh", "-c", script, sys.executable, BURN]
    ended = await run_command(command, cwd=str(tmp_path), env=ENV, sink=hear, keeping=Keeping(cgroups=cgroups))
    assert ended.code == 0
    assert ("cpu_seconds" in ended.resources.by_cgroup) is can
    assert (ended.resources.cpu_seconds > 0.9 * float(heard[-1])) is can
    while cgroups and made():  # that process may end a moment later
        cgroups.tidy()
        await anyio.sleep(POLL)


NAMES = ("cpu_seconds", "peak_memory", "read_bytes", "written_bytes")


@given(st.lists(st.sets(st.sampled_from(NAMES)), max_size=5))
def test_a_sum_is_a_groups_if_all_of_it_is(each: list[set[str]]) -> None:
    """Otherwise, something was left out of it."""
    used = [Resources(by_cgroup=tuple(name for name in NAMES if name in names)) for names in each]
    assert set(Resources.of_all(used).by_cgroup) == (set.intersection(*each) if each else set())


async def _ignore(_: bytes) -> None:
    """Hear nothing."""


def test_a_hierarchy_is_read_within_bounds(tmp_path: Path) -> None:
    """Whatever is there in the kernel's place."""
    (tmp_path / "file").write_bytes(b"x" * (1 << 20))
    assert len(Hierarchy(tmp_path).read("file")) == 1 << 16
