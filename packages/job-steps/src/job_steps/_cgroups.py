"""Control groups of Linux, version 2: one for each command, where this process may make them below its own.

What a group counts, it counts of all processes that were ever in it, whoever waited for them. Which figures there are
depends on the controllers that the group above passes on: CPU time always is, memory and disks only with theirs. That
group passes none on as long as it has processes of its own, unless it is the root of all: so this process, and those
that started it, move into a group beside the commands' if nobody else is there.

Groups are made below the group of this process, so that all limits from above still hold. Where systemd is in charge,
only in units that it has given away (``Delegate=yes``): elsewhere, it takes groups that it did not make for its own.

Source: Documentation/admin-guide/cgroup-v2.rst of Linux; docs/CGROUP_DELEGATION.md of systemd.
"""

import errno
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final

from attrs import define, field, frozen

from job_steps._results import Resources

_PREFIX: Final = "job-steps-"
"""What the names of our groups begin with; behind it is the process that has made one."""

_PROC: Final = Path("/proc")
_SYSTEMD: Final = Path("/run/systemd/system")
"""Is there if systemd has started this system."""

_DELEGATED: Final = ("user.delegate", "trusted.delegate")
"""Attributes of the groups of units that systemd has given away."""

_PASSED_ON: Final = ("memory", "io")
"""The controllers that figures and limits need."""

_LONGEST: Final = 1 << 16
"""Bytes that are read of a file of the kernel's."""


@define
class Hierarchy:
    """A group, and those directly below it: files and directories of the kernel's."""

    directory: Path

    def make(self, name: str) -> None:
        """Make a group below."""
        (self.directory / name).mkdir()

    def remove(self, name: str) -> None:
        """Remove one in which there are no processes any more; raises OSError if there are."""
        (self.directory / name).rmdir()

    def read(self, file: str) -> str:
        """Read a file of the group, or of one below."""
        with (self.directory / file).open("rb") as reading:
            return reading.read(_LONGEST).decode(errors="replace")

    def write(self, file: str, text: str) -> None:
        """Write into one, which has to be there; raises OSError if the kernel does not want that."""
        opened = os.open(self.directory / file, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(opened, text.encode())
        finally:
            os.close(opened)

    def names(self) -> list[str]:
        """Name the groups below."""
        with os.scandir(self.directory) as entries:
            return [each.name for each in entries if each.is_dir(follow_symlinks=False)]


@frozen
class Group:
    """The group of one command."""

    above: Hierarchy
    name: str

    @property
    def processes(self) -> str:
        """The path of the file that takes the ids of processes."""
        return str(self.above.directory / self.name / "cgroup.procs")

    def take(self, process: int) -> bool:
        """Put a process into it, and those that it has started meanwhile; returns whether it was still there."""
        try:
            self._write("cgroup.procs", str(process))
        except OSError:
            return False
        for child in _children(process):
            self.take(child)
        return True

    def limit_memory(self, most: int) -> bool:
        """Have all processes in it killed when they need more bytes together; returns whether that is so."""
        try:
            self._write("memory.oom.group", "1")
            self._write("memory.max", str(most))
        except OSError:
            return False
        with suppress(OSError):  # a kernel without swap has no such file
            self._write("memory.swap.max", "0")
        return True

    def kill(self) -> None:
        """Kill all processes in it."""
        with suppress(OSError):  # kernels before 5.14
            self._write("cgroup.kill", "1")

    @property
    def out_of_memory(self) -> bool:
        """Whether one of them was killed because there was no memory for it."""
        return _figures(self._read("memory.events")).get("oom_kill", 0) > 0

    def measured(self, otherwise: Resources) -> Resources:
        """Say what they have used, with figures from elsewhere for what it does not count."""
        found: dict[str, float] = {}
        if (usage := _figures(self._read("cpu.stat")).get("usage_usec")) is not None:
            # It may have run for a moment before it was in the group; elsewhere, what it did not wait for is missing.
            found["cpu_seconds"] = max(usage / 1e6, otherwise.cpu_seconds)
        if (peak := (self._read("memory.peak") or "").strip()).isdigit():
            found["peak_memory"] = int(peak)
        if (moved := self._read("io.stat")) is not None:
            found["read_bytes"], found["written_bytes"] = _moved(moved)
        return Resources(
            cpu_seconds=found.get("cpu_seconds", otherwise.cpu_seconds),
            peak_memory=int(found.get("peak_memory", otherwise.peak_memory)),
            read_bytes=int(found.get("read_bytes", otherwise.read_bytes)),
            written_bytes=int(found.get("written_bytes", otherwise.written_bytes)),
            by_cgroup=tuple(found),
        )

    def _write(self, file: str, text: str) -> None:
        self.above.write(f"{self.name}/{file}", text)

    def _read(self, file: str) -> "str | None":
        """Read a file; None if it has none, as its controller is not passed on."""
        try:
            return self.above.read(f"{self.name}/{file}")
        except OSError:
            return None


@define
class Cgroups:
    """Where groups of commands are made."""

    hierarchy: Hierarchy
    _made: int = field(init=False, default=0)
    _left: list[str] = field(init=False, factory=list)
    """Those in which something still ran when their commands had ended."""

    def make(self) -> Group | None:
        """Make the group of a command; None if that is not possible any more."""
        self.tidy()
        self._made += 1
        name = f"{_PREFIX}{os.getpid()}-{self._made}"
        try:
            self.hierarchy.make(name)
        except OSError:
            return None
        return Group(self.hierarchy, name)

    def release(self, group: Group) -> None:
        """Remove a group whose command has ended, at once or when what runs in it has."""
        self._left.append(group.name)
        self.tidy()

    def tidy(self) -> None:
        """Remove the groups in which nothing runs any more."""
        self._left = [name for name in self._left if not self._removed(name)]

    def _removed(self, name: str) -> bool:
        try:
            self.hierarchy.remove(name)
        except OSError as error:
            return error.errno == errno.ENOENT
        return True


@cache
def cgroups_here() -> Cgroups | None:
    """Find out where this process may make groups; None: nowhere. The first time it is prepared, if need be."""
    directory = own_group()
    if directory is None or not may_be_used(directory):
        return None
    return prepared(Hierarchy(directory))


def prepared(hierarchy: Hierarchy) -> Cgroups | None:
    """Clear up after processes that are no more, and have controllers passed on; None if no group can be made."""
    for name in hierarchy.names():
        maker = name.removeprefix(_PREFIX).partition("-")[0]
        if name.startswith(_PREFIX) and maker.isdigit() and not (_PROC / maker).exists():
            with suppress(OSError):
                hierarchy.remove(name)
    found = Cgroups(hierarchy)
    trial = found.make()
    if trial is None:
        return None
    found.release(trial)
    _pass_on(hierarchy)
    return found


def own_group(proc: Path = _PROC) -> Path | None:
    """Find the directory of the group that this process is in; None if no hierarchy of version 2 is mounted."""
    try:
        own = (proc / "self/cgroup").read_text()
        mounts = (proc / "self/mountinfo").read_text(errors="surrogateescape")
    except OSError:
        return None
    path = next((line.removeprefix("0::") for line in own.splitlines() if line.startswith("0::/")), None)
    if path is None or path.startswith("/.."):  # of another namespace
        return None
    for line in mounts.splitlines():
        before, _, behind = line.partition(" - ")
        if behind.startswith("cgroup2 "):
            root, point = (_unescaped(each) for each in before.split(" ")[3:5])
            if root in ("/", path) or path.startswith(f"{root}/"):
                return Path(point) / path.removeprefix(root).lstrip("/")
    return None


def may_be_used(directory: Path, systemd: Path = _SYSTEMD) -> bool:
    """Say whether a group is ours to divide."""
    writable = all(os.access(each, os.W_OK) for each in (directory, directory / "cgroup.procs"))
    return writable and (not systemd.exists() or os.geteuid() != 0 or _is_delegated(directory))


def _is_delegated(directory: Path) -> bool:
    for name in _DELEGATED:
        with suppress(OSError):
            if os.getxattr(directory, name) == b"1":
                return True
    return False


def _pass_on(hierarchy: Hierarchy) -> None:
    """Have the controllers passed on to the groups of commands, as far as that can be."""
    try:
        there, passed = (hierarchy.read(f"cgroup.{each}").split() for each in ("controllers", "subtree_control"))
    except OSError:
        return
    missing = [each for each in _PASSED_ON if each in there and each not in passed]
    if missing and not _passed(hierarchy, missing) and _alone_in(hierarchy):
        _passed(hierarchy, missing)


def _passed(hierarchy: Hierarchy, controllers: Sequence[str]) -> bool:
    """Ask for controllers; returns whether no process is in the way."""
    return all(_took(hierarchy, each) for each in controllers)


def _took(hierarchy: Hierarchy, controller: str) -> bool:
    try:
        hierarchy.write("cgroup.subtree_control", f"+{controller}")
    except OSError as error:
        return error.errno != errno.EBUSY
    return True


def _alone_in(hierarchy: Hierarchy) -> bool:
    """Move this process and those that started it out of their group, unless there are others in it."""
    try:
        there = [int(each) for each in hierarchy.read("cgroup.procs").split()]
        if not set(there) <= set(_line()):
            return False
        own = f"{_PREFIX}{os.getpid()}-own"
        hierarchy.make(own)
        for each in there:
            hierarchy.write(f"{own}/cgroup.procs", str(each))
    except (OSError, ValueError):
        return False
    return True


def _line() -> Iterator[int]:
    """This process, the one that started it, and so on."""
    process = os.getpid()
    while process > 0:
        yield process
        try:
            stat = (_PROC / str(process) / "stat").read_text(errors="replace")
        except OSError:
            return
        process = int(stat.rpartition(")")[2].split()[1])


def _children(process: int) -> list[int]:
    try:
        return [int(each) for each in (_PROC / f"{process}/task/{process}/children").read_text().split()]
    except (OSError, ValueError):
        return []


def _figures(text: "str | None") -> Mapping[str, int]:
    """Read lines of a name and a number."""
    pairs = (line.split() for line in (text or "").splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}  # noqa: PLR2004  (a pair)


def _moved(text: str) -> tuple[int, int]:
    """Read what was read from all disks, and written."""
    read = written = 0
    for word in text.split():
        name, _, number = word.partition("=")
        if number.isdigit():
            read += int(number) * (name == "rbytes")
            written += int(number) * (name == "wbytes")
    return read, written


def _unescaped(path: str) -> str:
    """Read a path of mountinfo, in which blanks are octal."""
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        path = path.replace(code, character)
    return path
