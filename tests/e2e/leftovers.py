"""What a fleet has left on this machine: nothing, if all is well."""

import os
from pathlib import Path


def environment(home: Path) -> dict[str, str]:
    """Our own, with directories of the fixture `home` for whatever a fleet leaves."""
    return {**os.environ, "TMPDIR": str(home / "tmp"), "XDG_STATE_HOME": str(home / "state")}


def instances(home: Path) -> list[Path]:
    """The directories of all local instances there."""
    return list((home / "state" / "fleeting" / "local").glob("*/*"))


def agents(home: Path) -> list[int]:
    """Processes whose command line names a directory below *home*; what they have forked is not counted."""
    found = {}
    for directory in Path("/proc").iterdir():
        if directory.name.isdigit():
            try:
                command = (directory / "cmdline").read_bytes()
                parent = int((directory / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue  # it ended while we looked
            if os.fsencode(home) in command:
                found[int(directory.name)] = parent
    return [process for process, parent in found.items() if parent not in found]
