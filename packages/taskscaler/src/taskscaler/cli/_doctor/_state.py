"""Where a fleet's state is kept: whether it can be, and what earlier managers left there."""

import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path
from urllib.parse import quote

from attrs import frozen

from fleeting import JournalError
from fleeting.journal import group_lock
from fleeting.plugins import in_units
from taskscaler._recorded_run import is_locked
from taskscaler._wording import counted
from taskscaler.cli._doctor._finding import Finding, Grade

LEAST_FREE = 0.1
"""Of a disk, that should be free: jobs print, and a journal that cannot be written stops the fleet."""

LITTLE = 256 << 20
"""Bytes below which even a small share that is free is too little."""

MOST = 50
"""So many journals are looked into."""

_OUTPUT = "run batches in another directory, or with --output"
_ELSEWHERE = "set dir in [autoscaler.state_storage] to another directory"


@frozen
class Disk:
    """What a file system has left."""

    size: int
    free: int
    """Bytes that our user may still write."""

    inodes: int | None
    """Files that may still be made; None: any number."""

    is_read_only: bool

    @classmethod
    def at(cls, path: Path) -> "Disk":
        """Ask for the file system of a path that exists."""
        found = os.statvfs(path)
        return cls(
            size=found.f_blocks * found.f_frsize,
            free=found.f_bavail * found.f_frsize,
            inodes=found.f_favail if found.f_files else None,
            is_read_only=bool(found.f_flag & os.ST_RDONLY),
        )


def judge_disk(what: str, path: Path, disk: Disk, elsewhere: str) -> Iterator[Finding]:
    """Judge what is left for *what*, which is kept at *path*; *elsewhere* says how to keep it somewhere else.

    Returns:
        What is wrong, at most one finding.
    """
    if disk.is_read_only:
        found, do, grade = "the file system is read-only", f"mount it for writing, or {elsewhere}", True
    elif disk.free == 0:
        found, do, grade = "the disk is full", f"free some space, or {elsewhere}", True
    elif disk.inodes == 0:
        found, do, grade = "the disk has room for no more files", f"remove some, or {elsewhere}", True
    elif disk.free < LITTLE or disk.free < LEAST_FREE * disk.size:
        share = f"{disk.free / disk.size:.0%}" if disk.size else "nothing"
        found, grade = f"{in_units(disk.free)} are free, {share} of the disk", False
        do = "free some space before the disk is full: what cannot be recorded is not done"
    else:
        return
    yield Finding(check=what, grade=Grade.PROBLEM if grade else Grade.WARNING, found=f"{path}: {found}", do=do)


def look_at_state(directory: Path | None) -> Iterator[Finding]:
    """See whether state can be kept in the directory, which need not exist; None: none is kept."""
    if directory is None:
        found = "not kept: after a crash, nothing is known of the instances"
        yield Finding(check="state", grade=Grade.OK, found=found)
        return
    there = _nearest(directory)
    if wrong := [*_wrong_directory(directory, there), *judge_disk("state", directory, Disk.at(there), _ELSEWHERE)]:
        yield from wrong
        return
    free = in_units(Disk.at(there).free)
    where = str(directory) if there == directory else f"{directory}, which does not exist yet"
    yield Finding(check="state", grade=Grade.OK, found=f"kept in {where}; {free} are free")


def look_at_results(directory: Path) -> Iterator[Finding]:
    """See whether results can be left below the current directory, where they go unless somebody says otherwise."""
    if not os.access(directory, os.W_OK | os.X_OK):
        found = f"{directory}, the current directory, cannot be written"
        do = _OUTPUT
        yield Finding(check="results", grade=Grade.WARNING, found=found, do=do)
    else:
        wrong = [*judge_disk("results", directory, Disk.at(directory), _OUTPUT)]
        free = f"{directory}: {in_units(Disk.at(directory).free)} are free"
        yield from wrong or [Finding(check="results", grade=Grade.OK, found=free)]


def _nearest(path: Path) -> Path:
    """The path, or the nearest directory above it that exists."""
    path = path.absolute()
    return next((each for each in (path, *path.parents) if each.exists()), Path("/"))


def _wrong_directory(directory: Path, there: Path) -> Iterator[Finding]:
    status = there.stat()
    code = JournalError.entry.code
    if not there.is_dir():
        found, do = f"{there} is a file", _ELSEWHERE
    elif there == directory.absolute() and (status.st_uid != os.geteuid() or status.st_mode & 0o022):
        found, do = f"{directory} belongs to or can be written by another user", f"chmod go-w it, or {_ELSEWHERE}"
    elif not os.access(there, os.W_OK | os.X_OK):
        found = f"{there} cannot be written by this user"
        do = f"correct its permissions, or {_ELSEWHERE}"
    else:
        return
    yield Finding(check="state", grade=Grade.PROBLEM, found=found, do=do, code=code)


# --- what managers left ----------------------------------------------------------------------------------


def look_at_managers(directory: Path) -> Iterator[Finding]:
    """Report whose journals lie there: those of managers that live, and of dead ones that left something."""
    journals = sorted(directory.glob("*.sqlite"))[:MOST] if directory.is_dir() else []
    found = [finding for journal in journals for finding in _look_at_journal(journal)]
    yield from found or [Finding(check="managers", grade=Grade.OK, found="none runs, and none left anything behind")]


def _look_at_journal(path: Path) -> Iterator[Finding]:
    lock = path.with_name(f"{path.name}.lock")
    holder = _holder(lock)
    try:
        if is_locked(lock):
            yield Finding(check="managers", grade=Grade.OK, found=f"{holder} runs, with {path.name}")
            return
        identities, records = _read(path)
    except sqlite3.DatabaseError as error:
        do = "move it away, and set `preexisting` to say what happens to the existing instances"
        code = JournalError.entry.code
        yield Finding(check="managers", grade=Grade.PROBLEM, found=f"{path} is damaged: {error}", do=do, code=code)
        return
    except OSError as error:
        yield Finding(
            check="managers",
            grade=Grade.PROBLEM,
            found=f"{path} cannot be read: {error.strerror}",
            do="correct its permissions: it should be this user's own",
            code=JournalError.entry.code,
        )
        return
    left = [counted(records[kind], kind) for kind in ("instance", "intent", "lease") if records.get(kind)]
    if left:
        do = "run something on the group again, which takes over, or remove the instances at the cloud if nobody will"
        found = f"{holder} ended and left {', '.join(left)} of {', '.join(identities)}"
        yield Finding(check="managers", grade=Grade.WARNING, found=found, do=do)


def _read(path: Path) -> tuple[list[str], Mapping[str, int]]:
    """Read a journal that nobody has open: whose it is, and how many records of each kind it has."""
    mode = "mode=ro" if path.with_name(f"{path.name}-wal").exists() else "immutable=1"  # else SQLite makes files
    with closing(sqlite3.connect(f"file:{quote(str(path.absolute()))}?{mode}", uri=True)) as database:
        identities = [identity for (identity,) in database.execute("SELECT identity FROM managed ORDER BY 1")]
        return identities, dict(database.execute("SELECT kind, count(*) FROM record GROUP BY kind").fetchall())


def look_at_lock(directory: Path, identity: str) -> Iterator[Finding]:
    """Say whether another manager has the group."""
    lock = group_lock(directory, identity)
    if is_locked(lock):
        found = f"{identity} is managed by {_holder(lock)}"
        do = "stop that manager before you start another one; a second one is refused"
        yield Finding(check="manager", grade=Grade.WARNING, found=found, do=do, code=JournalError.entry.code)


def _holder(lock: Path) -> str:
    """Read who held the lock last."""
    with suppress(OSError), lock.open("rb") as file:
        return file.read(1000).decode(errors="replace") or "a manager"
    return "a manager"
