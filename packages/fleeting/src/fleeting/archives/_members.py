"""What an archive consists of. Pure."""

from enum import Enum
from typing import NamedTuple

from attrs import frozen

from fleeting._wording import one_line, quoted

BLOCK = 512
"""Bytes of a tar block: headers have one, contents are padded to whole ones."""

CHUNK = 1 << 18
"""Bytes that are read at once, and that a chunk of an archive has at least, except for the last one."""

END = bytes(2 * BLOCK)
"""What an archive ends with."""

LONGEST_NAME = 4095
"""Bytes of a name or of a link's target; a path cannot have more on any system that we run on."""


class ArchiveRefused(Exception):
    """The archive is broken, too large, or reaches outside its target; the message says which."""


class ArchiveTooLarge(ArchiveRefused):
    """The contents have more bytes than they may have."""


class Kind(Enum):
    """What a member is."""

    FILE = "a file"
    DIRECTORY = "a directory"
    SYMLINK = "a symbolic link"
    HARD_LINK = "a hard link"
    OTHER = "a device, a FIFO, or of an unknown type"


@frozen(kw_only=True)
class Member:
    """One entry of an archive, as its headers describe it. Names are bytes: they have no encoding on POSIX systems."""

    name: bytes
    """At most `LONGEST_NAME` bytes, without NUL; may be empty, absolute, or contain ``..``."""

    kind: Kind = Kind.FILE
    """What it is."""

    link: bytes = b""
    """What a link points to, with the same limits; a hard link names a member."""

    size: int = 0
    """Bytes of a file, gaps included; 0 for everything else."""

    mode: int = 0o644
    """Permissions, with the setuid, setgid and sticky bits."""

    mtime: int = 0
    """When it was last changed: nanoseconds since the epoch, in 64 bits, possibly negative."""

    owner: tuple[int, int] = (0, 0)
    """Ids of user and group."""

    has_gaps: bool = False
    """Whether the pieces leave gaps, which are zeros."""


class Piece(NamedTuple):
    """A part of the content of the member that came last."""

    offset: int
    """Where it belongs in the file; offsets only grow."""

    data: memoryview
    """Never empty; valid until more is fed to the reader."""


def shown(name: bytes) -> str:
    """Write a name from an archive in a message: quoted, on one line, cut if it is long."""
    return quoted(one_line(name.decode(errors="replace")))
