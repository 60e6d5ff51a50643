"""Where things are kept on the manager's own machine, out of reach of its other users."""

import errno
import os
import stat
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attrs import Attribute


def state_home() -> Path:
    """Where the user's programs keep what they must remember; absolute, need not exist.

    Raises:
        RuntimeError: The user has no home directory.

    Source: the XDG base directory specification.
    """
    given = Path(os.environ.get("XDG_STATE_HOME", ""))
    return given if given.is_absolute() else Path.home() / ".local" / "state"  # one that is relative is passed over


def make_private(directory: Path, *, hide: bool = False) -> None:
    """Make a directory, and those above it that are missing, for our user alone; or see that it is ours.

    What other users can write into one that exists already, they can put files, links and locks into.

    Args:
        directory: Where; the last part may be a link to a directory.
        hide: Whether an existing one is taken from other users' eyes and hands. Otherwise they may see what it is
            called, and it is refused if they can write into it.

    Raises:
        PermissionError: It belongs to another user, or may be written by others.
        OSError: It cannot be made, or is none.
    """
    missing = [*takewhile(lambda path: not path.exists(), (directory, *directory.parents))]
    for path in reversed(missing):
        try:
            path.mkdir(mode=0o700)  # mkdir's parents would get the mode that the umask leaves
        except FileExistsError:
            if not path.is_dir():  # else somebody was quicker, and whose it is we see below
                raise
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if status.st_uid != os.geteuid() or (status.st_mode & 0o022 and not hide):
            raise PermissionError(errno.EPERM, "it belongs to or can be written by another user", str(directory))
        if status.st_mode & 0o077 and hide:
            os.fchmod(descriptor, status.st_mode & 0o700)
    finally:
        os.close(descriptor)


def open_private(path: str | os.PathLike[str], flags: int) -> int:
    """Open a file for our user alone, whatever the umask, and if it is there already; an ``opener`` for `open`.

    Raises:
        PermissionError: It belongs to another user.
        OSError: It cannot be opened, is a link, or is no file.
    """
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "it is a link", os.fspath(path)) from None
        raise
    try:
        status = os.fstat(descriptor)
        if status.st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, "it belongs to another user", os.fspath(path))
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", os.fspath(path))
        if status.st_mode & 0o7177:
            os.fchmod(descriptor, 0o600)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def write_whole(path: Path, content: bytes) -> None:
    """Write a file for our user alone that is there as it was before, or whole, even after the machine's end.

    Raises:
        OSError: Nothing was changed.
    """
    fresh = path.with_name(f".{path.name}.part")
    try:
        with open(fresh, "wb", opener=open_private) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except OSError as error:
        if error.filename is not None:
            error.filename = os.fspath(path)  # nobody else knows the other one
        raise
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def hide_tree(directory: Path) -> None:
    """Take a directory of ours and what is in it from other users' eyes and hands; links stay as they are.

    Nobody else may be able to write into it meanwhile.
    """
    directory.chmod(directory.stat().st_mode & 0o700)
    below = [os.fspath(directory)]
    while below:
        with suppress(OSError), os.scandir(below.pop()) as entries:  # nobody can get to where we cannot
            for entry in entries:
                mode = entry.stat(follow_symlinks=False).st_mode
                if stat.S_ISDIR(mode):
                    below.append(entry.path)
                if (stat.S_ISREG(mode) or stat.S_ISDIR(mode)) and mode & 0o7077:
                    Path(entry.path).chmod(mode & 0o700)


def is_absolute(_: object, __: "Attribute[Any]", value: str | None) -> None:
    """Refuse, as a validator of a setting, a path that depends on where the manager was started.

    Raises:
        ValueError: It does; says what may stand there.
    """
    if value is not None and not Path(value).is_absolute():
        raise ValueError("an absolute path")
