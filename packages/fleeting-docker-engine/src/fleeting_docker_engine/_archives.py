"""Small archives: made here, for the daemon to unpack in a container, or read here as it gives them. Pure."""

import io
import tarfile
from collections.abc import Mapping
from typing import Final

from attrs import frozen

OVERHEAD: Final = 1 << 14
"""Bytes that an archive of one file may have beside the file: its headers, padding and end."""

_EXTENSIONS: Final = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)


@frozen
class Entry:
    """A file, or a directory if there is no content."""

    content: bytes | None = None
    """The file's bytes."""

    mode: int = 0o644
    """Its permissions."""

    owner: tuple[int, int] = (0, 0)
    """Ids of user and group."""


def tar_of(entries: Mapping[str, Entry]) -> bytes:
    """Pack entries, by their paths."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for path, entry in entries.items():
            member = tarfile.TarInfo(path)
            member.mode, (member.uid, member.gid) = entry.mode, entry.owner
            if entry.content is None:
                member.type = tarfile.DIRTYPE
            else:
                member.size = len(entry.content)
            tar.addfile(member, io.BytesIO(entry.content or b""))
    return buffer.getvalue()


def only_file(archive: bytes) -> bytes | None:
    """Read the content of the one file that an archive is of; None if it is of something else, or broken.

    Python's own reader calls itself for each header that extends the next, and raises whatever it meets.
    """
    rest = archive
    while len(rest) >= tarfile.BLOCKSIZE:
        try:
            member = tarfile.TarInfo.frombuf(rest[: tarfile.BLOCKSIZE], "utf-8", "surrogateescape")
        except (tarfile.HeaderError, ValueError):
            return None
        rest = rest[tarfile.BLOCKSIZE :]
        if not 0 <= member.size <= len(rest):
            return None
        if member.type not in _EXTENSIONS:
            return rest[: member.size] if member.isreg() else None
        rest = rest[-(-member.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE :]
    return None
