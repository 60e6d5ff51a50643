"""Control groups of Linux, version 2: one for each command, where this process may make them below its own.

What a group counts, it counts of all processes that were ever in it, whoever waited for them. Which figures there are
depends on the controllers that the group above passes on: CPU time always is, memory and disks only with theirs. That
group passes none on as long as it has processes of its own, unless it is the root of all: so an agent, and the
processes that started it, move into a group beside the commands' if nobody else is there (`make_way`). A program that
only uses this library moves nobody.

Groups are made below the group of this process, so that all limits from above still hold. Where systemd is in charge,
only in units that it has given away (``Delegate=yes``): elsewhere, it takes groups that it did not make for its own.

Source: Documentation/admin-guide/cgroup-v2.rst of Linux; docs/CGROUP_DELEGATION.md of systemd.
"""

import errno
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final

from attrs import define, field, frozen

from job_steps._results import FIGURES, Resources

_PREFIX: Final = "job-steps-"
"""What the names of our groups begin with; behind it is the process that has made one."""

_OWN: Final = re.compile(rf"{_PREFIX}[0-9]+-own")
"""The names of the groups that make way for others."""

_PROC: Final = Path("/proc")
_SYSTEMD: Final = Path("/run/systemd/system")
"""Is there if systemd has started this system."""

_DELEGATED: Final = ("user.delegate", "trusted.delegate")
"""Attributes of the groups of units that systemd has given away."""

_PASSED_ON: Final = ("memory", "io")
"""The controllers that figures and limits need."""

_MOST_TAKEN: Final = 1000
"""Processes that are moved after a command, at most; it has had a moment to start them."""

_MOST_NAMES: Final = 1000
"""How many names are tried for a group."""

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
class OutOfMemoryKills:
    """Processes of a group that were killed because there was no memory for them."""

    kills: int
    is_limit: bool
    """Whether the group's own limit was reached; else, it was that of one above, or all memory of the machine."""


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
        """Put a process into it, and those that it has started meanwhile; returns whether it was still there.

        One that has ended, and that nobody has waited for yet, can be put in, too: the kernel does nothing then.
        """
        waiting, taken = [process], set[int]()
        while waiting and len(taken) < _MOST_TAKEN:
            each = waiting.pop()
            if each in taken:
                continue
            with suppress(OSError):
                self._write("cgroup.procs", str(each))
                taken.add(each)
                waiting += _children(each)
        return str(process) in (self._read("cgroup.procs") or "").split()

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
    def oom(self) -> "OutOfMemoryKills | None":
        """Which of them were killed because there was no memory for them; None if it does not count that."""
        found = _figures(self._read("memory.events"))
        return OutOfMemoryKills(found["oom_kill"], found.get("oom", 0) > 0) if "oom_kill" in found else None

    def measured(self, otherwise: Resources, *, is_whole: bool) -> Resources:
        """Say what they have used.

        Args:
            otherwise: Figures of the processes that somebody has waited for, for what it does not count.
            is_whole: Whether the command was in the group from its beginning: else it has used something before.
        """
        found: dict[str, float] = {}
        if (usage := _figures(self._read("cpu.stat")).get("usage_usec")) is not None:
            found["cpu_seconds"] = usage / 1e6
        if (moved := self._read("io.stat")) is not None:
            found["read_bytes"], found["written_bytes"] = _moved(moved)
        if not is_whole:
            found = {name: max(figure, getattr(otherwise, name)) for name, figure in found.items()}
        if (peak := (self._read("memory.peak") or "").strip()).isdigit():
            found["peak_memory"] = int(peak)
        return Resources(
            cpu_seconds=found.get("cpu_seconds", otherwise.cpu_seconds),
            peak_memory=int(found.get("peak_memory", otherwise.peak_memory)),
            read_bytes=int(found.get("read_bytes", otherwise.read_bytes)),
            written_bytes=int(found.get("written_bytes", otherwise.written_bytes)),
            by_cgroup=tuple(name for name in FIGURES if name in found),
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
        for _ in range(_MOST_NAMES):
            self._made += 1
            name = f"{_PREFIX}{os.getpid()}-{self._made}"
            try:
                self.hierarchy.make(name)
            except FileExistsError:  # of an earlier process with this id, and something still runs in it
                continue
            except OSError:
                break
            return Group(self.hierarchy, name)
        return None

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


def make_way() -> None:
    """Have groups keep all figures and limits, if that can be: for a program that is there for nothing else.

    It is called before all else here, because this process is in another group then.
    """
    directory = own_group()
    if directory is not None and may_be_used(directory):
        prepared(Hierarchy(directory), moves=True)


def prepared(hierarchy: Hierarchy, *, moves: bool = False) -> Cgroups | None:
    """Clear up after processes that are no more, and have controllers passed on; None if no group can be made.

    Args:
        hierarchy: Where.
        moves: Whether this process may be moved for that, with those that started it.
    """
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
    _pass_on(hierarchy, moves=moves)
    return found


def own_group(proc: Path = _PROC) -> Path | None:
    """Find the directory of the group that this process is in; None if no hierarchy of version 2 is mounted.

    If an agent has made way, as `make_way` does, it is the one above.
    """
    found = _group_of_this_process(proc, "")
    return found.parent if found and _OWN.fullmatch(found.name) else found


def oom_kills(proc: Path = _PROC) -> int | None:
    """Count the processes of this process's group that were killed for memory so far; None if the kernel does not say.

    In a container, all of its processes are in that group, and who may not make groups may read this all the same.
    """
    for group, file in _groups_with_memory(proc):
        with suppress(OSError):
            if (count := _figures(group.read(file)).get("oom_kill")) is not None:
                return count
    return None


@cache
def _groups_with_memory(proc: Path) -> list[tuple[Hierarchy, str]]:
    """Where that may be counted: in version 2, else in version 1."""
    kinds = (("", "memory.events"), ("memory", "memory.oom_control"))
    found = ((_group_of_this_process(proc, controller), file) for controller, file in kinds)
    return [(Hierarchy(directory), file) for directory, file in found if directory]


def _group_of_this_process(proc: Path, controller: str) -> Path | None:
    """Find where the kernel shows it, in the hierarchy of version 2, or of a controller in version 1."""
    try:
        own = (proc / "self/cgroup").read_text(errors="surrogateescape")
        mounts = (proc / "self/mountinfo").read_text(errors="surrogateescape")
    except OSError:
        return None
    lines = (line.split(":", 2) for line in own.splitlines())
    path = next((line[2] for line in lines if line[-1].startswith("/") and controller in line[1].split(",")), None)
    if path is None or path.startswith("/.."):  # of another namespace
        return None
    for line in mounts.splitlines():
        before, _, behind = line.partition(" - ")
        kind, _, options = behind.partition(" ")
        is_it = kind == "cgroup" and controller in re.split("[ ,]", options) if controller else kind == "cgroup2"
        if is_it:
            root, point = (_unescaped(each) for each in before.split(" ")[3:5])
            if root in ("/", path) or path.startswith(f"{root}/"):
                return Path(point) / path.removeprefix(root).lstrip("/")
    return None


def may_be_used(directory: Path, systemd: Path = _SYSTEMD) -> bool:
    """Say whether a group is ours to divide."""
    writable = all(os.access(each, os.W_OK) for each in (directory, directory / "cgroup.procs"))
    return writable and (not systemd.exists() or _is_delegated(directory))


def _is_delegated(directory: Path) -> bool:
    for name in _DELEGATED:
        with suppress(OSError):
            if os.getxattr(directory, name) == b"1":
                return True
    return False


def _pass_on(hierarchy: Hierarchy, *, moves: bool) -> None:
    """Have the controllers passed on to the groups of commands, as far as that can be."""
    try:
        there, passed = (hierarchy.read(f"cgroup.{each}").split() for each in ("controllers", "subtree_control"))
    except OSError:
        return
    missing = [each for each in _PASSED_ON if each in there and each not in passed]
    if missing and not _passed(hierarchy, missing) and moves and _alone_in(hierarchy):
        _passed(hierarchy, missing)


def _passed(hierarchy: Hierarchy, controllers: Sequence[str]) -> bool:
    """Ask for all controllers; returns whether no process is in the way."""
    took = [_took(hierarchy, each) for each in controllers]
    return all(took)


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
        with suppress(FileExistsError):
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
