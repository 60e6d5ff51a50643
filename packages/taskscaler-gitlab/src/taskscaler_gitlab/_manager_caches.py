"""Caches on the manager: one archive for each key of a project, below a directory that several runners may share.

What a job takes along is a loan, and what is being written a draft: files of their own beside the archives, with a lock
for as long as their process is at it. So whoever tidies up sees what is in use, in other processes too, and what a
process that was killed has left.
"""

import fcntl
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from attrs import define, field

from fleeting.plugins import make_private, open_private
from taskscaler_gitlab._keeping import Kept, Limits, outdated

ABANDONED = 3600.0
"""Seconds without a change after which a file is taken for a killed process's that nobody has locked."""

_OWNER = re.compile("[0-9a-f]{12}")
_SCRATCH = (".draft", ".loan")


@define
class Loans:
    """What a job has taken from the caches of its project, until it is given back."""

    link: Callable[[Path, Path], None] = os.link
    """Gives a file a second name."""

    _taken: list[tuple[Path, int]] = field(factory=list, init=False)

    def take(self, archive: Path, job: str) -> Path | None:
        """Take a cache along; returns where it is until it is given back, whatever becomes of it. Blocks.

        Args:
            archive: The cache.
            job: Names who takes it.

        Returns:
            None: there is no such cache.
        """
        loan = archive.with_name(f".{archive.stem}.{job}.loan")
        try:
            os.utime(archive)  # it was used
            loan.unlink(missing_ok=True)
            self._lend(archive, loan)
            opened = os.open(loan, os.O_RDONLY)
        except OSError:
            return None
        fcntl.flock(opened, fcntl.LOCK_SH)
        self._taken.append((loan, opened))
        return loan

    def _lend(self, archive: Path, loan: Path) -> None:
        """Give a cache a second name; where there is no such thing, copy it."""
        try:
            self.link(archive, loan)
        except FileNotFoundError:
            raise
        except OSError:
            shutil.copyfile(archive, loan)

    def give_back(self) -> None:
        """Have everything on loan go. Blocks."""
        while self._taken:
            loan, opened = self._taken.pop()
            with suppress(OSError):
                loan.unlink(missing_ok=True)
            os.close(opened)


def keep_archive(source: Path, archive: Path, job: str, *, most: int) -> None:
    """Keep an archive as a cache, whole or not at all. Blocks.

    Args:
        source: The archive.
        archive: Where it is to be.
        job: Names who has made it: jobs of a project may end at the same time.
        most: Bytes that all caches may have; one that has more is not kept, and what was there goes.

    Raises:
        OSError: It cannot be kept; what was there stays.
    """
    if source.stat().st_size > most:
        archive.unlink(missing_ok=True)
        return
    make_private(archive.parent)
    draft = archive.with_name(f".{archive.stem}.{job}.draft")
    with source.open("rb") as made, open(draft, "wb", opener=open_private) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            shutil.copyfileobj(made, file)
            file.flush()
            draft.replace(archive)
        except BaseException:
            draft.unlink(missing_ok=True)  # it would count as in use for an hour, and others would go for it
            raise


def tidy(top: Path, limits: Limits, now: float) -> list[str]:
    """Remove the caches that were used least recently, or not for long; returns their paths. Blocks.

    What is in use stays, and counts. Files that are none of ours are left alone.
    """
    kept: list[Kept] = []
    for project in _projects(top):
        kept += _tidied(project, now)
    found = {each.name: each for each in kept}
    gone = [path for path in outdated(kept, limits, now) if remove(found[path])]
    for project in _projects(top):
        with suppress(OSError):
            if now - project.stat().st_mtime > ABANDONED:
                project.rmdir()  # if nothing is in it
    return gone


def remove(found: Kept) -> bool:
    """Remove a cache, unless it was used or replaced since it was found; returns whether it is gone. Blocks."""
    path = Path(found.name)
    try:
        status = path.lstat()
        if (status.st_mtime, status.st_size) == (found.used, found.size):
            path.unlink()
            return True
    except OSError:
        pass
    return False


def _tidied(project: Path, now: float) -> list[Kept]:
    """Find what there is of a project, once what killed processes have left is removed."""
    archives: dict[int, Kept] = {}
    in_use: dict[int, Kept] = {}
    with _listed(project) as entries:
        ours = [*files_of(entries)]
    for entry, status in ours:
        found = Kept(name=entry.path, used=status.st_mtime, size=status.st_size)
        if entry.name.endswith(".tar"):
            archives[status.st_ino] = found
        elif _is_locked(entry.path) or now - status.st_mtime <= ABANDONED:
            in_use[status.st_ino] = Kept(name=entry.path, used=status.st_mtime, size=status.st_size, in_use=True)
        else:
            with suppress(OSError):
                Path(entry.path).unlink()
    lent = [
        Kept(name=each.name, used=each.used, size=each.size, in_use=ino in in_use) for ino, each in archives.items()
    ]
    return [*lent, *(each for ino, each in in_use.items() if ino not in archives)]


def files_of(entries: Iterable["os.DirEntry[str]"]) -> Iterator[tuple["os.DirEntry[str]", os.stat_result]]:
    """Find what is ours among these, and is still there."""
    for entry in entries:
        if entry.name.endswith(_SCRATCH if entry.name.startswith(".") else ".tar"):
            try:
                status = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            if stat.S_ISREG(status.st_mode):
                yield entry, status


def _projects(top: Path) -> Iterator[Path]:
    """Find the directories with caches: of each runner, and of those that share theirs."""
    with _listed(top) as entries:
        for entry in entries:
            if not entry.is_dir(follow_symlinks=False):
                continue
            if entry.name.startswith("project-"):
                yield Path(entry)
            elif _OWNER.fullmatch(entry.name):
                yield from _projects(Path(entry))


@contextmanager
def _listed(directory: Path) -> Iterator[list["os.DirEntry[str]"]]:
    try:
        with os.scandir(directory) as entries:
            found = [*entries]
    except OSError:
        found = []
    yield found


def _is_locked(path: str) -> bool:
    """Whether a process is at it."""
    try:
        opened = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(opened)
