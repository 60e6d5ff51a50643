"""What a fleet has left on this machine: nothing, if all is well."""

import os
import select
from collections.abc import Iterator, Mapping
from pathlib import Path


def environment(home: Path) -> dict[str, str]:
    """Our own, with directories of the fixture `home` for whatever a fleet leaves."""
    return {**os.environ, "TMPDIR": str(home / "tmp"), "XDG_STATE_HOME": str(home / "state")}


def instances(home: Path) -> list[Path]:
    """The directories of all local instances there."""
    return list((home / "state" / "fleeting" / "local").glob("*/*"))


def wait_for_the_end_of(processes: list[int]) -> None:
    """Wait until none of these is left."""
    for process in processes:
        try:
            descriptor = os.pidfd_open(process)
        except ProcessLookupError:
            continue
        select.select([descriptor], [], [])
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
