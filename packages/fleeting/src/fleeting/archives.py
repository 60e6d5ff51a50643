"""Tar archives on the manager's side: packs what an instance needs, unpacks what comes from one.

What comes from an instance is not trusted. Only files, directories and links are taken; links are made after
everything else, so that nothing is ever written through one, and must end inside the target.
"""

import errno
import io
import os
import tarfile
from collections.abc import AsyncIterator, Iterator, Mapping
from math import inf
from pathlib import Path
from stat import S_ISDIR, S_ISLNK, S_ISREG

from anyio import to_thread
from attrs import frozen

CHUNK = 1 << 18
"""Bytes that are read at once, and that a chunk of an archive has at least, except for the last one."""

_END = bytes(2 * tarfile.BLOCKSIZE)


class ArchiveRefused(Exception):
    """The archive is broken, too large, or reaches outside its target; the message says which."""


class ArchiveTooLarge(ArchiveRefused):
    """What is in it has more bytes than it may have."""


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


def unpack(archive: Path, target: Path, *, size: float = inf, members: float = inf, modes: bool = False) -> None:
    """Unpack into the empty directory *target*.

    Args:
        archive: The archive.
        target: The directory.
        size: Bytes that there may be at most.
        members: Files, directories and links that there may be at most.
        modes: Whether permissions are kept; if not, others may not write, and directories are as new ones are.

    Raises:
        ArchiveRefused: The target may hold a part by then; remove it.
    """
    try:
        with tarfile.open(archive, "r:") as tar:
            accepted = _acceptable_members(tar, size, members)
            links = [member for member in accepted if member.issym()]
            _extract(tar, [member for member in accepted if not member.issym()], target, modes=modes)
            _extract(tar, links, target, modes=False)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise ArchiveRefused(f"it cannot be unpacked: {where}{error.strerror or error}") from error
    except (tarfile.TarError, ValueError, OverflowError, KeyError, EOFError) as error:  # all seen to come
        raise ArchiveRefused(f"the archive is broken or unsafe: {error}") from error
    _refuse_links_that_leave(target, [target / link.name for link in links])


def _parts(files: Mapping[str, Path], last: str | None, owner: tuple[int, int]) -> Iterator[bytes]:
    with tarfile.open(fileobj=io.BytesIO(), mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name, top in files.items():
            for path, inner in _walk(top, name):
                yield from _entry(tar.gettarinfo(path, inner), path, owner)
    if last is not None:
        yield _header(tarfile.TarInfo(last))
    yield _END


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
        yield bytes(-member.size % tarfile.BLOCKSIZE)


def _header(member: tarfile.TarInfo) -> bytes:
    return member.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")


def _content(path: Path, size: int) -> Iterator[bytes]:
    """Read as much as was announced; what was added since is not of it."""
    with path.open("rb") as file:
        while size:
            chunk = file.read(min(CHUNK, size))
            if not chunk:
                raise OSError(errno.EIO, "it got shorter while it was read", str(path))
            size -= len(chunk)
            yield chunk


def _acceptable_members(tar: tarfile.TarFile, size: float, most: float) -> list[tarfile.TarInfo]:
    """List the members, each path once: overlapping globs name one file several times."""
    members: dict[str, tarfile.TarInfo] = {}
    total = 0
    for member in tar:
        total += member.size
        if total > size:
            raise ArchiveTooLarge(f"they have more than {size} bytes")
        members.setdefault(os.path.normpath(member.name), member)
        if len(members) > most:
            raise ArchiveRefused(f"they are more than {most} files; pack them into one")
    return list(members.values())


def _extract(tar: tarfile.TarFile, members: list[tarfile.TarInfo], target: Path, *, modes: bool) -> None:
    for member in members:
        tar.extract(member, target, filter=_with_mode if modes else tarfile.data_filter)
    if modes:
        for member in members:
            if member.isdir():
                (target / member.name.lstrip("/")).chmod(member.mode & 0o777 | 0o700)


def _with_mode(member: tarfile.TarInfo, target: str) -> tarfile.TarInfo:
    """Accept what is safe, with its own permissions; a directory's would be in the way of what comes into it."""
    safe = tarfile.data_filter(member, target)
    return safe.replace(mode=member.mode & 0o777, deep=False) if member.isreg() or member.islnk() else safe


def _refuse_links_that_leave(target: Path, links: list[Path]) -> None:
    """Follow every link once all exist: each by itself may look harmless."""
    root = target.resolve()
    for link in links:
        if not Path(os.path.realpath(link)).is_relative_to(root):
            raise ArchiveRefused(f"the link {link.relative_to(target)} leads outside its directory")
