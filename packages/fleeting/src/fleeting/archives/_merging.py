"""Moves what was unpacked into a directory that has something in it already, by handles and through no links."""

import errno
import os
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from stat import S_ISDIR, S_ISLNK

from attrs import evolve, frozen

from fleeting.archives import _paths
from fleeting.archives._unpacking import checkpoint, opened


def merge(source: Path, target: Path) -> None:
    """Move what is in one directory into another one: directories are merged, anything else is replaced.

    Nothing outside the target changes: a link in it is replaced, or in the way of a directory, but never followed.
    No link that is moved leads out, not through one that the target had before either.

    Blocks; a cancelled caller's worker thread ends before anything moves, or when all has.

    Args:
        source: What `unpack` has made; on the same file system.
        target: A directory, and no link to one.

    Raises:
        ArchiveRefused: A link would lead out; nothing has moved.
        OSError: Something is in the way, and nothing has moved; or the system refuses to move something.
    """
    with opened(source) as from_, opened(target) as to:
        top = _Pair(from_=from_, to=to, place=target)
        _check(top, top)
        _move(top)


@frozen(kw_only=True)
class _Pair:
    """A directory that is moved, and the one that it is merged with."""

    from_: int
    """A handle."""

    to: int | None
    """A handle; None: there is none, so all of it moves at once."""

    place: Path
    """Where that is, for messages."""

    path: _paths.Path = ()
    """The same, from the target down."""

    def inner(self, name: bytes, stack: ExitStack) -> "_Pair":
        """Go into a directory."""
        to = self.to
        if to is not None:
            to = stack.enter_context(opened(name, to)) if S_ISDIR(_mode(name, to)) else None
        from_ = stack.enter_context(opened(name, self.from_))
        return evolve(self, from_=from_, to=to, place=self.place / os.fsdecode(name), path=(*self.path, name))


def _check(top: _Pair, pair: _Pair) -> None:
    """Refuse what could not be moved, or must not be, before anything is."""
    for name in _names(pair.from_):
        checkpoint()
        mode, there = _mode(name, pair.from_), 0 if pair.to is None else _mode(name, pair.to)
        if there and S_ISDIR(mode) != S_ISDIR(there):
            problem = errno.EISDIR if S_ISDIR(there) else errno.ENOTDIR
            raise OSError(problem, os.strerror(problem), str(pair.place / os.fsdecode(name)))
        if S_ISLNK(mode):
            text = os.readlink(name, dir_fd=pair.from_)
            _paths.refuse_detour((*pair.path, name), text, partial(_link_at, top))
        elif S_ISDIR(mode):
            with ExitStack() as stack:
                _check(top, pair.inner(name, stack))


def _link_at(top: _Pair, path: _paths.Path) -> bytes | None:
    """Read the link that will be at a path, whichever of the two directories it is in now."""
    name = b"/".join(path)
    for directory in (top.from_, top.to):
        mode = 0 if directory is None else _mode(name, directory)
        if mode:
            return os.readlink(name, dir_fd=directory) if S_ISLNK(mode) else None
    return None


def _move(pair: _Pair) -> None:
    """Move it all; without checkpoints, since half of it would be worse than a wait for renames."""
    for name in _names(pair.from_):
        if S_ISDIR(_mode(name, pair.from_)) and pair.to is not None and S_ISDIR(_mode(name, pair.to)):
            with ExitStack() as stack:
                _move(pair.inner(name, stack))
        else:
            try:
                os.replace(name, name, src_dir_fd=pair.from_, dst_dir_fd=pair.to)
            except OSError as error:
                raise OSError(error.errno, error.strerror, str(pair.place / os.fsdecode(name))) from error


def _names(directory: int) -> list[bytes]:
    return [os.fsencode(name) for name in os.listdir(directory)]


def _mode(name: bytes, directory: int) -> int:
    """Look what is there, without following it; 0 if nothing is."""
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return 0
