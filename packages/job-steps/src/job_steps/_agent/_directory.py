"""The directory of an agent: whose it is, what was left in it, and versions beside it that nobody uses any more."""

import fcntl
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from itertools import islice
from pathlib import Path
from typing import Final

from job_steps._removing import remove_tree

UNUSED_FOR: Final = 7 * 86400.0
"""Seconds since a version was last started, after which the next one removes it."""

KEPT_FOR: Final = 30 * 86400.0
"""The same of one that has jobs which nobody has closed."""

MOST_REMOVED: Final = 20
"""Versions that one agent removes."""

_MOST_LOOKED_AT: Final = 1000
"""Names in a directory."""

_LONGEST: Final = 4 << 20  # bytes
_HOME: Final = ".job-steps"
_VERSION: Final = re.compile(r"[0-9a-f]{16}")
_OLD: Final = ".old-"


class Lock:
    """That one agent has a directory, for as long as it lives; the file may be taken away meanwhile."""

    def __init__(self, directory: Path) -> None:
        """Take where it is."""
        self._path = directory / "lock"
        self._file: int | None = None

    def take(self) -> bool:
        """Have it, or have it again; returns whether no other agent has.

        Raises:
            OSError: There is no place for it.
        """
        if self._file is not None and _is(self._path, self._file):
            return True
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
        if not _locked(file):
            os.close(file)
            return False
        self.let_go()
        self._file = file
        return True

    def let_go(self) -> None:
        """Leave it to others."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _is(path: Path, file: int) -> bool:
    with suppress(OSError):
        return path.lstat().st_ino == os.fstat(file).st_ino
    return False


def _locked(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def read_whole(path: Path, limit: int = _LONGEST) -> bytes:
    """Read a regular file, which nobody waits for, and which is no link.

    Raises:
        OSError: There is none.
        ValueError: It is bigger.
    """
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC)
    with os.fdopen(file, "rb") as reading:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise OSError(f"{path} is not a file")
        data = reading.read(limit + 1)
    if len(data) > limit:
        raise ValueError(f"{path} has more than {limit} bytes")
    return data


def write_whole(path: Path, data: bytes) -> None:
    """Put a file in its place, whole, whatever is there or beside it.

    Raises:
        OSError: The disk does not take it.
    """
    beside = path.with_suffix(".new")
    with suppress(FileNotFoundError):
        beside.unlink()
    file = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(file, "wb") as writing:
        writing.write(data)
    beside.replace(path)


def set_aside(path: Path) -> Path:
    """Give what is to be removed another name, so that its own is free at once; returns that.

    Raises:
        OSError: It cannot be renamed.
    """
    beside = path.with_name(f"{_OLD}{secrets.token_hex(8)}")
    path.rename(beside)
    return beside


def remove_set_aside(directory: Path) -> None:
    """Remove what was set aside by those who have not got to it."""
    for path in _names(directory):
        if path.name.startswith(_OLD):
            remove_tree(path)


def remove_old_versions(directory: Path, now: float) -> int:
    """Remove versions that no process uses; returns how many.

    Args:
        directory: Of an agent, whose own version stays; nothing is done if it is not where managers place agents.
        now: In seconds since 1970.
    """
    own = directory.parent
    home = own.parent
    if home.name != _HOME or not _VERSION.fullmatch(own.name) or not (own / "agent.pyz").is_file():
        return 0
    remove_set_aside(home)
    old = (path for path in _names(home) if path != own and _VERSION.fullmatch(path.name) and path.is_dir())
    return sum(_remove(path, now) for path in islice(old, MOST_REMOVED))


def _remove(version: Path, now: float) -> bool:
    """Remove a version unless it is in use; no agent of it starts meanwhile."""
    with ExitStack() as locks:
        try:
            if version.is_symlink() or not _is_unused(version, now, locks):
                return False
            remove_tree(set_aside(version))
        except OSError:
            return False
    return True


def _is_unused(version: Path, now: float, locks: ExitStack) -> bool:
    """Whether nobody has started it for long, and none of its agents runs, whose locks are taken."""
    agents = [path for path in _names(version) if path.name == "run" or path.name.startswith("run-")]
    touched = [path.lstat().st_mtime for path in (version, version / "agent.pyz", *agents) if path.exists()]
    unused_for = now - max(touched)
    has_jobs = any(next(_names(path / "jobs"), None) for path in agents)
    if unused_for < (KEPT_FOR if has_jobs else UNUSED_FOR):
        return False
    held = [Lock(path) for path in agents if (path / "lock").exists()]
    for lock in held:
        locks.callback(lock.let_go)
    return all(lock.take() for lock in held)


def _names(directory: Path) -> Iterator[Path]:
    with suppress(OSError), os.scandir(directory) as entries:
        for entry in islice(entries, _MOST_LOOKED_AT):
            yield Path(entry.path)
