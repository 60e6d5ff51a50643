"""What other jobs left, for this one: from GitLab's archive to a directory in which nothing leads out.

The archive was made by another job, so it is not trusted. A zip file becomes a tar archive here, member by member, and
that is unpacked by `fleeting.archives`, which knows every way out of a directory.
"""

import gzip
import io
import os
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from anyio import from_thread
from attrs import frozen

from fleeting.archives import BLOCK, END, ArchiveRefused, Kind, Member, header, unpack
from taskscaler_gitlab.runner._artifacts import MOST_BYTES, MOST_ENTRIES

PLACE = "dependencies"
"""Where they are put, in the directory in which a leg begins: a directory each, by their order."""

_PIECE = 1 << 20
MOST_LISTED = 32 << 20
"""Bytes of the list of entries at the end of a zip file."""

_ENTRY, _ENTRY_SIZE = b"PK\x01\x02", 46
"""How an entry of that list begins, and how many bytes it has beside its name, extra field and comment."""

_LENGTHS, _LENGTHS_AT = struct.Struct("<3H"), 28
"""The lengths of these three, and where in an entry they are."""

_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""Of zip files; of the others, Python unpacks a piece of a few bytes at once, however large it becomes."""

MOST_TOGETHER = 250_000
"""Files, directories and links of all archives of a job: about as many as ext4 has room for in `MOST_BYTES`."""

_OF_ALL = f"; all archives of a job may have {MOST_BYTES} together"

_LONGEST_LINK = 4096
_SECOND = 10**9
_GZIP = b"\x1f\x8b"


class NotTaken(Exception):
    """An archive cannot be used; says why."""


@frozen(kw_only=True)
class Room:
    """What the archives of one job may take of the disk together."""

    size: int = MOST_BYTES
    """Bytes."""

    entries: int = MOST_TOGETHER
    """Files, directories and links."""


def take_archive(archive: Path, scratch: Path, target: Path, name: str, room: Room) -> Room:
    """Unpack what another job left; blocks, so call it in a thread.

    Args:
        archive: As GitLab gave it: a zip file, or a file packed by gzip.
        scratch: A file for what is between; does not exist, and is removed.
        target: The directory for it; does not exist.
        name: What a file is called that is alone.
        room: What there is for it.

    Returns:
        What is left of that.

    Raises:
        NotTaken: It is broken, too large, or leads outside.
        OSError: There is no room here.
    """
    target.mkdir(mode=0o700)
    taken, entries = 0, min(room.entries, MOST_ENTRIES)
    try:
        with scratch.open("xb") as tar, _Archive(archive) as file:
            is_gzip = file.read(len(_GZIP)) == _GZIP
            file.seek(0)
            for piece in _whole(_of_gzip(file, name, room.size) if is_gzip else _of_zip(file, room.size)):
                if isinstance(piece, Member):
                    taken += piece.size
                    tar.write(header(piece))
                else:
                    tar.write(piece)
            tar.write(END)
        unpack(scratch, target, size=room.size, members=entries, modes=True)
    except ArchiveRefused as error:
        of_all = f"; all archives of a job may have {MOST_TOGETHER} together" if entries < MOST_ENTRIES else ""
        raise NotTaken(f"the archive cannot be used: {error}{of_all}") from None
    finally:
        scratch.unlink(missing_ok=True)
    return Room(size=room.size - taken, entries=room.entries - _entries(target))


def _entries(directory: Path) -> int:
    """How many files, directories and links there are, the parents of others among them."""
    return sum(len(directories) + len(files) for _, directories, files in os.walk(directory))


_BROKEN = (
    *(zipfile.BadZipFile, zlib.error, struct.error, EOFError, OSError),
    *(ValueError, IndexError, OverflowError, NotImplementedError, RuntimeError),
)
"""What Python raises, one time or another, about an archive that is broken, or made to look so."""


def _whole(pieces: Iterator[Member | bytes]) -> Iterator[Member | bytes]:
    """What is in an archive, as long as it can be read."""
    try:
        yield from pieces
    except _BROKEN as error:
        raise NotTaken(f"the archive cannot be used: {error}") from None


class _Reads(Protocol):
    def read(self, size: int, /) -> bytes: ...


class _Archive(io.BufferedReader):
    """An archive for readers that trust it: none of their reads outlasts a cancellation, or gets more than fits.

    Python reads the whole list of a zip file's entries at once, and makes some hundred bytes of each entry that may
    have 46. So that list is counted here, as it is read: whatever the archive says of its size, and wherever.
    """

    def __init__(self, path: Path) -> None:
        """Open it."""
        super().__init__(io.FileIO(path))

    def read(self, size: int | None = -1, /) -> bytes:
        """See `io.BufferedReader.read`; a checkpoint.

        Raises:
            NotTaken: It is the list of a zip file, and too long.
        """
        from_thread.check_cancelled()
        if size is not None and size > MOST_LISTED:
            raise NotTaken(f"the list of its files has {size} bytes, and {MOST_LISTED} are read at most")
        data = super().read(size)
        if len(data) > MOST_ENTRIES * _ENTRY_SIZE and _has_too_many(data):
            raise NotTaken(f"the archive has more than {MOST_ENTRIES} entries")
        return data


def _has_too_many(listed: bytes) -> bool:
    """Whether a zip file's list has more entries than are taken, as Python would read it."""
    at = count = 0
    while count <= MOST_ENTRIES and listed.startswith(_ENTRY, at) and at + _ENTRY_SIZE <= len(listed):
        at += _ENTRY_SIZE + sum(_LENGTHS.unpack_from(listed, at + _LENGTHS_AT))
        count += 1
    return count > MOST_ENTRIES


def _of_gzip(archive: _Archive, name: str, most: int) -> Iterator[Member | bytes]:
    """The one file, of which nobody says the size before."""
    with gzip.GzipFile(fileobj=archive) as file:
        size = sum(len(piece) for piece in _bounded(file, most))
    plain = Path(name.removesuffix(".gz")).name or "artifact"
    yield Member(name=plain.encode(), size=size, mode=0o644, mtime=_SECOND)
    archive.seek(0)
    with gzip.GzipFile(fileobj=archive) as file:
        yield from _padded(file, size)


def _of_zip(archive: _Archive, most: int) -> Iterator[Member | bytes]:
    with zipfile.ZipFile(archive) as source:
        infos = source.infolist()
        _check_sizes(infos, archive.seek(0, io.SEEK_END), most)
        for info in infos:
            mode = info.external_attr >> 16
            name = info.filename.encode("utf-8", "replace")
            if info.is_dir():
                yield Member(name=name.rstrip(b"/"), kind=Kind.DIRECTORY, mode=0o755, mtime=_SECOND)
            elif stat.S_ISLNK(mode):
                with source.open(info) as file:
                    yield Member(name=name, kind=Kind.SYMLINK, link=file.read(_LONGEST_LINK), mtime=_SECOND)
            else:
                yield Member(name=name, size=info.file_size, mode=mode & 0o777 or 0o644, mtime=_SECOND)
                with source.open(info) as file:
                    yield from _padded(file, info.file_size)


def _check_sizes(infos: Sequence[zipfile.ZipInfo], size: int, most: int) -> None:
    """See that unpacking a zip file of this size takes no more room, memory and time than ordinary ones do."""
    if sum(info.file_size for info in infos) > most:
        raise NotTaken(f"the archive has more than {most} bytes in it{_OF_ALL}")
    if sum(info.compress_size for info in infos) > size:
        raise NotTaken("the archive cannot be used: files in it overlap")
    if other := next((info for info in infos if info.compress_type not in _METHODS), None):
        raise NotTaken(
            f"the archive is packed by method {other.compress_type} of zip files; pack it by deflate, or not at all"
        )


def _padded(file: _Reads, size: int) -> Iterator[bytes]:
    found = 0
    for piece in _bounded(file, size):
        found += len(piece)
        yield piece
    if found != size:
        raise NotTaken("the archive cannot be used: a file in it is shorter than it says")
    yield bytes(-size % BLOCK)


def _bounded(file: _Reads, most: int) -> Iterator[bytes]:
    size = 0
    while piece := file.read(_PIECE):
        size += len(piece)
        if size > most:
            raise NotTaken(f"the archive has a file of more than {most} bytes{_OF_ALL}")
        yield piece
