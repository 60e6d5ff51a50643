"""Packs files and directories as an archive that is made as it is read."""

import errno
import io
import tarfile
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from stat import S_ISDIR, S_ISLNK, S_ISREG

from anyio import to_thread
from attrs import frozen

from fleeting.archives._members import BLOCK, CHUNK, END, Kind, Member

_TYPES = {
    Kind.FILE: tarfile.REGTYPE,
    Kind.DIRECTORY: tarfile.DIRTYPE,
    Kind.SYMLINK: tarfile.SYMTYPE,
    Kind.HARD_LINK: tarfile.LNKTYPE,
}
_SECOND = 10**9
"""In nanoseconds."""


@frozen
class Packed:
    """Files and directories as an archive that is made as it is read, in a thread."""

    _chunks: Iterator[bytes]

    @classmethod
    def of(cls, files: Mapping[str, Path], *, last: str | None = None, owner: tuple[int, int] = (0, 0)) -> "Packed":
        """Pack files and directories, as `pack` says."""
        return cls(pack(files, last=last, owner=owner))

    def __aiter__(self) -> AsyncIterator[bytes]:
        """Read it; once."""
        return self

    async def __anext__(self) -> bytes:
        """Make the next chunk."""
        chunk = await to_thread.run_sync(next, self._chunks, b"")
        if not chunk:
            raise StopAsyncIteration
        return chunk


def pack(files: Mapping[str, Path], *, last: str | None = None, owner: tuple[int, int] = (0, 0)) -> Iterator[bytes]:
    """Pack files and directories, without the names of their owners; what is neither, nor a link, is left out.

    Args:
        files: By the path that each shall have in the archive.
        last: The name of an empty file at the end: where it has come, all has.
        owner: Ids of the user and group that they belong to; who unpacks as another user than root passes over them.

    Yields:
        The archive. Tar of GNU's kind, which every tar reads, whatever bytes are in names.

    Raises:
        OSError: Something cannot be read, or got shorter meanwhile.
    """
    block = bytearray()
    for part in _parts(files, last, owner):
        block += part
        if len(block) >= CHUNK:
            yield bytes(block)
            block.clear()
    yield bytes(block)


def header(member: Member) -> bytes:
    """Write the header of a member, and what must precede it; its content, padded, is to follow.

    Tar of GNU's kind, with whole seconds.
    """
    info = tarfile.TarInfo(member.name.decode("utf-8", "surrogateescape"))
    info.type, info.linkname = _TYPES[member.kind], member.link.decode("utf-8", "surrogateescape")
    info.size, info.mode, info.mtime = member.size, member.mode, member.mtime // _SECOND
    info.uid, info.gid = member.owner
    return _header(info)


def _parts(files: Mapping[str, Path], last: str | None, owner: tuple[int, int]) -> Iterator[bytes]:
    with tarfile.open(fileobj=io.BytesIO(), mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name, top in files.items():
            for path, inner in _walk(top, name):
                yield from _entry(tar.gettarinfo(path, inner), path, owner)
    if last is not None:
        yield _header(tarfile.TarInfo(last))
    yield END


def _walk(top: Path, name: str) -> Iterator[tuple[Path, str]]:
    """Yield files, directories and links by their names, directories before what is in them."""
    left = [(top, name)]
    while left:
        path, inner = left.pop()
        mode = path.lstat().st_mode
        if S_ISREG(mode) or S_ISDIR(mode) or S_ISLNK(mode):
            yield path, inner
        if S_ISDIR(mode):
            left += [(entry, f"{inner}/{entry.name}") for entry in sorted(path.iterdir(), reverse=True)]


def _entry(member: tarfile.TarInfo, path: Path, owner: tuple[int, int]) -> Iterator[bytes]:
    member.uid, member.gid = owner
    member.uname = member.gname = ""
    member.mode = member.mode & 0o777 | (0o700 if member.isdir() else 0)
    yield _header(member)
    if member.isreg():
        yield from _content(path, member.size)
        yield bytes(-member.size % BLOCK)


def _header(member: tarfile.TarInfo) -> bytes:
    return member.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")


def _content(path: Path, size: int) -> Iterator[bytes]:
    """Read as much as was announced; what was added since is not of it."""
    with path.open("rb") as file:
        while size:
            chunk = file.read(min(CHUNK, size))
            if not chunk:
                raise OSError(errno.EIO, "it was truncated while being read", str(path))
            size -= len(chunk)
            yield chunk
