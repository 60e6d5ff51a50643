"""The daemon's socket: who may reach it, and that no two daemons have the same."""

import fcntl
import grp
import os
import stat
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from itertools import takewhile
from pathlib import Path

import anyio
from anyio.abc import SocketListener

from fleeting.plugins import make_private, open_private
from taskscaler._errors import SocketRefused
from taskscaler._socket import GROUP_DIRECTORY, LONGEST, socket_directory

BACKLOG = 1024
"""Connections that wait to be accepted; as many clients may come back at the same moment after a restart."""


def place_of(fleet: Path, given: Path | None, group: str | None) -> Path:
    """Where the daemon of a fleet listens by default: its path has the name of the fleet's file."""
    if given is not None:
        return given.absolute()
    return (GROUP_DIRECTORY if group else socket_directory()) / f"{fleet.stem}.sock"


class _NotInGroup(PermissionError):
    """Files cannot be given to a group whose member one is not."""


@asynccontextmanager
async def listening(path: Path, group: str | None) -> AsyncIterator[SocketListener]:
    """Listen, for the own user alone or for a group of users too; the socket's file goes with the listener.

    Raises:
        SocketRefused: Another daemon has it, or it cannot be made as it has to be.
    """
    if len(os.fsencode(path)) > LONGEST:
        raise SocketRefused(f"the path {path} is too long for a socket; name a shorter one with --socket")
    members = None if group is None else _id_of(group)
    async with AsyncExitStack() as stack:
        try:
            _make_directory(path.parent, members)
            stack.enter_context(_held(path.with_name(f"{path.name}.lock")))
            _remove(path)  # nobody listens there: we hold the lock
            listener = await anyio.create_unix_listener(path, mode=0o600, backlog=BACKLOG)
            await stack.enter_async_context(listener)
            stack.callback(_remove, path)
            if members is not None:
                _share(path, members, 0o660)
        except _NotInGroup as error:
            why = f"only members of the group {group!r} can share a socket with it"
            raise SocketRefused(f"{why}; add the daemon's user to the group") from error
        except OSError as error:
            raise SocketRefused(f"cannot listen on {path}: {error.strerror or error}") from error
        yield listener


def _id_of(group: str) -> int:
    try:
        return grp.getgrnam(group).gr_gid
    except (KeyError, ValueError) as error:
        raise SocketRefused(f"there is no group {group!r}; name one that exists with --socket-group") from error


def _make_directory(directory: Path, members: int | None) -> None:
    """Have a directory that the members can go through, as each must who connects to a socket in it.

    Only those that are made here are given to the members: what else is in one that was there is not known here.
    """
    made = [*takewhile(lambda path: not path.exists(), (directory, *directory.parents))]
    make_private(directory)
    if members is not None:
        try:
            for path in made:
                _share(path, members, 0o710)
        except _NotInGroup:
            for path in made:  # they would be private ones that were there, the next time
                path.rmdir()
            raise
        _let_through(directory, members)


def _let_through(directory: Path, members: int) -> None:
    """See that members can go through a directory.

    Raises:
        SocketRefused: They cannot, and it is not only for sockets.
    """
    status = directory.stat()
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o001 or (mode & 0o010 and status.st_gid == members):
        return
    if directory != GROUP_DIRECTORY:
        why = f"members of the group cannot go through {directory}"
        raise SocketRefused(f"{why}; let them (`chmod o+x`), or name a socket in another directory with --socket")
    directory.chmod(mode | 0o001)  # what is in it has modes of its own


def _share(path: Path, members: int, mode: int) -> None:
    try:
        os.chown(path, -1, members)
    except PermissionError as error:
        raise _NotInGroup(*error.args) from error
    path.chmod(mode)


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)


@contextmanager
def _held(path: Path) -> Iterator[None]:
    """Hold a lock file; the lock goes with its holder however that ends, and the file stays for the next one."""
    descriptor = open_private(path, os.O_CREAT | os.O_RDWR)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 100, 0).decode(errors="replace")
            socket = path.with_suffix("")
            raise SocketRefused(
                f"another daemon (process {holder}) listens on {socket}; stop it first, or name another --socket"
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(descriptor)
