"""What other jobs left, for this one: from GitLab's archive to a directory in which nothing leads out.

The archive was made by another job, so it is not trusted. A zip file becomes a tar archive here, member by member, and
that is unpacked by `fleeting.archives`, which knows every way out of a directory.
"""

import gzip
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator
from os import SEEK_END
from pathlib import Path
from typing import Protocol

from anyio import from_thread

from fleeting.archives import BLOCK, END, ArchiveRefused, Kind, Member, header, unpack
from taskscaler_gitlab.runner._artifacts import MOST_BYTES, MOST_ENTRIES

PLACE = "dependencies"
"""Where they are put, in the directory in which a leg begins: a directory each, by their order."""

_PIECE = 1 << 20
MOST_LISTED = 32 << 20
"""Bytes of the list of entries at the end of a zip file."""

_END, _LOCATOR = b"PK\x05\x06", b"PK\x06\x07"
_END_SIZE, _LOCATOR_SIZE, _END_64_SIZE = 22, 20, 56
_END_SEARCHED = (1 << 16) + _END_SIZE + _LOCATOR_SIZE
"""Bytes at the end of a zip file in which the record of its list is, with the longest comment behind it."""

_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""Of zip files; of the others, Python unpacks a piece of a few bytes at once, however large it becomes."""

_LONGEST_LINK = 4096
_SECOND = 10**9
_GZIP = b"\x1f\x8b"


class NotTaken(Exception):
    """An archive cannot be used; says why."""


def take_archive(archive: Path, scratch: Path, target: Path, name: str) -> None:
    """Unpack what another job left; blocks, so call it in a thread.

    Args:
        archive: As GitLab gave it: a zip file, or a file packed by gzip.
        scratch: A file for what is between; does not exist, and is removed.
        target: The directory for it; does not exist.
        name: What a file is called that is alone.

    Raises:
        NotTaken: It is broken, too large, or leads outside.
        OSError: There is no room here.
    """
    target.mkdir(mode=0o700)
    try:
        with scratch.open("xb") as tar:
            with archive.open("rb") as file:
                is_gzip = file.read(len(_GZIP)) == _GZIP
            for piece in _whole(_of_gzip(archive, name) if is_gzip else _of_zip(archive)):
                from_thread.check_cancelled()
                if isinstance(piece, Member):
                    tar.write(header(piece))
                else:
                    tar.write(piece)
            tar.write(END)
        unpack(scratch, target, size=MOST_BYTES, members=MOST_ENTRIES, modes=True)
    except ArchiveRefused as error:
        raise NotTaken(f"the archive cannot be used: {error}") from None
    finally:
        scratch.unlink(missing_ok=True)


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


def _of_gzip(archive: Path, name: str) -> Iterator[Member | bytes]:
    """The one file, of which nobody says the size before."""
    with gzip.open(archive) as file:
        size = sum(len(piece) for piece in _bounded(file, MOST_BYTES))
    plain = Path(name.removesuffix(".gz")).name or "artifact"
    yield Member(name=plain.encode(), size=size, mode=0o644, mtime=_SECOND)
    with gzip.open(archive) as file:
        yield from _padded(file, size)


def _check_directory(archive: Path) -> None:
    """See that the list of a zip file's entries is of a size that fits into memory: Python reads all of it at once."""
    with archive.open("rb") as file:
        start = max(0, file.seek(0, SEEK_END) - _END_SEARCHED)
        file.seek(start)
        tail = file.read()
        at = len(tail) - _END_SIZE
        if not (tail[max(0, at) :].startswith(_END) and tail.endswith(b"\0\0")):
            at = tail.rfind(_END)
        size = _size_at(tail, at + 12, "<L")
        if tail[max(0, at - _LOCATOR_SIZE) : max(0, at)].startswith(_LOCATOR):
            file.seek(min(_size_at(tail, at - _LOCATOR_SIZE + 8, "<Q"), start + at))
            size = _size_at(file.read(_END_64_SIZE), 40, "<Q")
    if size > MOST_LISTED:
        raise NotTaken(f"the list of its files has {size} bytes, and {MOST_LISTED} are read at most")


def _size_at(data: bytes, offset: int, form: str) -> int:
    """Read a number; 0 if there is none, which is for others to complain about."""
    if not 0 <= offset <= len(data) - struct.calcsize(form):
        return 0
    number: int = struct.unpack_from(form, data, offset)[0]
    return number


def _of_zip(archive: Path) -> Iterator[Member | bytes]:
    _check_directory(archive)
    with zipfile.ZipFile(archive) as source:
        infos = source.infolist()
        if len(infos) > MOST_ENTRIES:
            raise NotTaken(f"the archive has {len(infos)} entries, and {MOST_ENTRIES} are taken at most")
        if sum(info.file_size for info in infos) > MOST_BYTES:
            raise NotTaken(f"the archive has more than {MOST_BYTES} bytes in it")
        if other := next((info for info in infos if info.compress_type not in _METHODS), None):
            raise NotTaken(
                f"the archive is packed by method {other.compress_type} of zip files; pack it by deflate, or not at all"
            )
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
            raise NotTaken(f"the archive has a file of more than {most} bytes")
        yield piece
