"""Control groups of version 2 as the kernel keeps them, in an ordinary directory: the parts that job-steps relies on.

What it does is what Documentation/admin-guide/cgroup-v2.rst says: a group is a directory in which files appear by
themselves ("Organizing Processes and Threads"); the files of a controller are in the groups below the one whose
``cgroup.subtree_control`` has it ("Controlling Controllers"); that takes none while the group itself has processes ("No
Internal Process Constraint", ``EBUSY``), nor one that it does not have itself (``ENOENT``); a group with processes
cannot be removed (``EBUSY``), and a process is in one group at a time; ``cgroup.kill`` kills all of a group; what is
charged beyond ``memory.max`` kills one, or all with ``memory.oom.group``, and ``memory.events`` counts them.
"""

import errno
import os
import shutil
import signal
from contextlib import suppress
from pathlib import Path

from attrs import define, field

from job_steps._cgroups import Hierarchy

_CONTROLLERS = {
    "memory": {
        "memory.current": "0\n",
        "memory.peak": "0\n",
        "memory.max": "max\n",
        "memory.oom.group": "0\n",
        "memory.events": "oom 0\noom_kill 0\n",
    },
    "io": {"io.stat": ""},
}


@define
class KernelsGroups(Hierarchy):
    """A group, with processes of its own or without."""

    controllers: tuple[str, ...] = ("cpu", "io", "memory", "pids")
    """That it has been given."""
    own: set[int] = field(factory=set)
    """Its processes."""

    def __attrs_post_init__(self) -> None:
        """Have the files of a group."""
        (self.directory / "cgroup.controllers").write_text(" ".join(self.controllers) + "\n")
        (self.directory / "cgroup.subtree_control").write_text("")
        self._show()

    def make(self, name: str) -> None:
        """Make a group, with the files of the controllers that are passed on."""
        super().make(name)
        group = self.directory / name
        (group / "cgroup.procs").write_text("")
        (group / "cgroup.kill").write_text("")
        (group / "cpu.stat").write_text("usage_usec 0\nuser_usec 0\nsystem_usec 0\n")
        for controller in (self.directory / "cgroup.subtree_control").read_text().split():
            for file, text in _CONTROLLERS.get(controller, {}).items():
                (group / file).write_text(text)

    def remove(self, name: str) -> None:
        """Remove a group."""
        if not (self.directory / name).exists():
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
        if self.processes(name):
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        shutil.rmtree(self.directory / name)

    def write(self, file: str, text: str) -> None:
        """Do what the kernel does when somebody writes there."""
        name, _, what = file.rpartition("/")
        if not (self.directory / file).exists():
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
        if what == "cgroup.subtree_control":
            self._pass_on(text.removeprefix("+"))
        elif what == "cgroup.procs":
            self._take(name, int(text))
        elif what == "cgroup.kill":
            for process in self.processes(name):
                os.kill(process, signal.SIGKILL)
        else:
            (self.directory / file).write_text(f"{text}\n")

    def processes(self, name: str) -> list[int]:
        """The processes of a group below; the file is also written to by processes that put themselves there."""
        found = [int(each) for each in (self.directory / name / "cgroup.procs").read_text().split()]
        return [each for each in found if runs(each)]

    def spend(self, name: str, *, usec: int = 0, read: int = 0, written: int = 0) -> None:
        """Count what the processes of a group use."""
        (self.directory / name / "cpu.stat").write_text(f"usage_usec {usec}\nuser_usec {usec}\nsystem_usec 0\n")
        if (stat := self.directory / name / "io.stat").exists():
            stat.write_text(f"8:0 rbytes={read} wbytes={written} rios=1 wios=1 dbytes=0 dios=0\n")

    def charge(self, name: str, size: int) -> None:
        """Have the processes of a group need memory: more than there may be kills them."""
        group = self.directory / name
        most = (group / "memory.max").read_text().strip()
        got = size if most == "max" else min(size, int(most))
        (group / "memory.peak").write_text(f"{got}\n")
        if got < size:
            there = self.processes(name)
            killed = there if (group / "memory.oom.group").read_text().strip() == "1" else there[:1]
            (group / "memory.events").write_text(f"oom 1\noom_kill {len(killed)}\n")
            for process in killed:
                os.kill(process, signal.SIGKILL)

    def _pass_on(self, controller: str) -> None:
        if controller not in self.controllers:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
        if self.own:
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        path = self.directory / "cgroup.subtree_control"
        path.write_text(" ".join(sorted({*path.read_text().split(), controller})))

    def _take(self, name: str, process: int) -> None:
        if not Path(f"/proc/{process}").exists():
            raise OSError(errno.ESRCH, os.strerror(errno.ESRCH))
        if not runs(process):
            return  # nobody has waited for it yet: the kernel says nothing, and does nothing
        self.own.discard(process)
        for group in self.names():
            there = [each for each in self.processes(group) if each != process]
            (self.directory / group / "cgroup.procs").write_text("".join(f"{each}\n" for each in there))
        with (self.directory / name / "cgroup.procs").open("a") as file:
            file.write(f"{process}\n")
        self._show()

    def _show(self) -> None:
        (self.directory / "cgroup.procs").write_text("".join(f"{each}\n" for each in sorted(self.own)))


def runs(process: int) -> bool:
    """Whether there is such a process, which has not ended."""
    with suppress(OSError, IndexError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False
