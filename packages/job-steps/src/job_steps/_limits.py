"""Limits of commands: how much memory each may have, whether any may have the network, and how that is kept.

Memory: the command's control group has the limit, if it can (`_cgroups`): the kernel kills all of the command at the
moment in which it needs more. Elsewhere its processes are looked at four times a second, and killed once they have
more together (`_keeping`). A limit of the address space (``RLIMIT_AS``) is neither: it counts what a program has
reserved and never used, for each of its processes apart, and says nothing when it was reached.

Network: the command starts in a network namespace of its own, with nothing but a loopback interface.
"""

import os
import socket
import sys
from collections.abc import Collection, Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final

from attrs import frozen

from job_steps._errors import StepFailed
from job_steps._launching import launched

INTERVAL: Final = 0.25
"""Seconds between two looks at the memory of a command's processes."""

_PROC: Final = Path("/proc")
_NOWHERE: Final = frozenset(
    {"lo", "tunl0", "gre0", "gretap0", "erspan0", "ip_vti0", "ip6_vti0", "sit0", "ip6tnl0", "ip6gre0"}
)
"""Interfaces that lead nowhere: the kernel gives them to each namespace."""

_PATIENCE: Final = 60.0
"""Seconds for a trial to end."""


@frozen(kw_only=True)
class Limits:
    """What each command of a run may have, with all that it starts."""

    memory: int | None = None
    """Bytes; None: any number."""
    network: str | None = None
    """``none``: no network, but a loopback interface of its own. None: that of this process."""

    def within(self, other: "Limits") -> "Limits":
        """The stricter ones of both."""
        memory = min((each for each in (self.memory, other.memory) if each is not None), default=None)
        return Limits(memory=memory, network=self.network or other.network)


NO_LIMITS: Final = Limits()


def check_limits(limits: Limits) -> None:
    """See that this machine can keep limits; blocks.

    Raises:
        StepFailed: It cannot, so nothing must run; says why.
    """
    if limits.memory is not None and not (_PROC / "self/stat").exists():
        raise StepFailed(f"the limit `memory` cannot be kept on {sys.platform}, so no step runs; it needs Linux")
    if limits.network == "none" and not has_no_network() and (problem := _no_namespace()):
        raise StepFailed(
            f"the limit `network` cannot be kept here, so no step runs: {problem}; run the agent as root, allow user"
            " namespaces, or use a container without network"
        )


def has_no_network() -> bool:
    """Whether this process has none itself."""
    return {name for _, name in socket.if_nameindex()} <= _NOWHERE


@cache
def _no_namespace() -> str:
    """Try to start a command without network; says why that fails, once and for all."""
    if sys.platform != "linux":
        return f"{sys.platform} has no network namespaces"
    started = launched(["/bin/true"], cwd="/", env={}, output=None, network="none")
    if started.error is not None:
        return started.error.strerror or str(started.error)
    assert started.process is not None  # noqa: S101  (one of both is there)
    code = started.process.wait(_PATIENCE)
    return "" if code == 0 else f"a trial ended with exit status {code}"


def memory_of(processes: Iterable[int], most: int) -> int:
    """How many bytes of memory of their own processes have, files that they read apart; blocks.

    What they share is counted for each at first, which is quick, and only once if that makes more than *most*.
    """
    found = [*processes]
    rough = sum(_resident(process) for process in found)
    return rough if rough <= most else sum(_share(process) for process in found)


Known = dict[int, tuple[int, int]]
"""Of processes: what started each, and its session."""


def processes_of(leaders: Collection[int], known: Known | None = None) -> dict[int, list[int]]:
    """The processes of commands: of the session that each leads, and all that those have started; blocks.

    Args:
        leaders: The commands.
        known: What an earlier look has found, which is not looked at again; what this one finds is added.
    """
    known = {} if known is None else known
    there = _look(known)
    parents: dict[int, int] = {}
    owners: dict[int, int] = {}
    for process in there:
        parent, session = known[process]
        parents[process] = parent
        if owner := next((each for each in (process, session) if each in leaders), None):
            owners[process] = owner
    for process in parents:
        line = [process]
        while line[-1] not in owners and (above := parents.get(line[-1])) and above not in line:
            line.append(above)
        if owner := owners.get(line[-1]):
            owners |= dict.fromkeys(line, owner)
    return {leader: sorted(each for each, owner in owners.items() if owner == leader) for leader in leaders}


def send(processes: Iterable[int], number: int) -> None:
    """Send a signal to processes, as far as they are still there."""
    for process in processes:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(process, number)


def _look(known: Known) -> list[int]:
    """Find all processes, and learn of those that are not known; returns which there are."""
    with os.scandir(_PROC) as entries:
        names = [each.name for each in entries if each.name.isdigit()]
    there: list[int] = []
    for name in names:
        with suppress(OSError, ValueError, IndexError):
            process = int(name)
            if process not in known:
                words = (_PROC / name / "stat").read_text(errors="replace").rpartition(")")[2].split()
                known[process] = int(words[1]), int(words[3])
            there.append(process)
    return there


def _resident(process: int) -> int:
    return _bytes(process, "status", ("RssAnon:", "RssShmem:", "VmSwap:"))


def _share(process: int) -> int:
    """The same, but of what several share its part; all of it, if the kernel does not say."""
    return _bytes(process, "smaps_rollup", ("Pss_Anon:", "Pss_Shmem:", "SwapPss:")) or _resident(process)


def _bytes(process: int, file: str, names: tuple[str, ...]) -> int:
    total = 0
    with suppress(OSError, ValueError, IndexError):
        for line in (_PROC / str(process) / file).read_text(errors="replace").splitlines():
            if line.startswith(names):
                total += int(line.split()[1]) * 1024
    return total
