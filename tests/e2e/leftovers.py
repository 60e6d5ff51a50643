"""What a fleet has left on this machine: nothing, if all is well."""

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from select import POLLIN, poll

PATIENCE = 10.0
"""Seconds after which a process that should end counts as left behind."""


def environment(home: Path) -> dict[str, str]:
    """Our own, with directories of the fixture `home` for whatever a fleet leaves."""
    return {**os.environ, "TMPDIR": str(home / "tmp"), "XDG_STATE_HOME": str(home / "state")}


def instances(home: Path) -> list[Path]:
    """The directories of all local instances there."""
    return list((home / "state" / "fleeting" / "local").glob("*/*"))


def await_agents(home: Path) -> None:
    """Wait for the end of agents that are removing their directories: it is the last thing they do, for nobody."""
    for process in agents(home):
        with suppress(ProcessLookupError):
            descriptor = os.pidfd_open(process)
            try:
                ended = poll()
                ended.register(descriptor, POLLIN)
                ended.poll(PATIENCE * 1000)
            finally:
                os.close(descriptor)


def agents(home: Path) -> list[int]:
    """Processes whose command line names a directory below *home*; what they have started is not counted."""
    found, parents = set(), {}
    for directory in Path("/proc").iterdir():
        if directory.name.isdigit():
            try:
                command = (directory / "cmdline").read_bytes()
                parent = int((directory / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue  # it ended while we looked
            parents[int(directory.name)] = parent
            if os.fsencode(home) in command:
                found.add(int(directory.name))
    return [process for process in found if found.isdisjoint(_above(process, parents))]


def _above(process: int, parents: Mapping[int, int]) -> Iterator[int]:
    """Yield the processes that it comes from, the nearest first."""
    while (process := parents.get(process, 0)) != 0:
        yield process
