"""Chooses members of a tar archive while it arrives, so that only what is wanted is kept. Pure.

A daemon hands out whole directories. What passes is written anew: files, directories and links, with names that are
relative to where the caller wants them. What it is worth is for `fleeting.archives.unpack` to judge.
"""

import tarfile
from collections.abc import Callable
from fnmatch import fnmatchcase
from itertools import takewhile
from pathlib import PurePosixPath
from posixpath import dirname, join, normpath, relpath

from attrs import define, field

from fleeting.archives import ArchiveRefused

BLOCK = tarfile.BLOCKSIZE

END = bytes(2 * BLOCK)
"""What an archive ends with."""

_LONGEST = 1 << 20
"""Bytes that a member's own headers may have; names are a few thousand at most."""

_EXTENSIONS = (tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)

Renaming = Callable[[str], str | None]
"""Gives a member's new name, or None if it is not wanted."""


@define
class Selector:
    """Takes an archive in pieces of any size, and gives the part of it that is wanted."""

    _rename: Renaming
    _header: bytearray = field(factory=bytearray, init=False)
    _left: int = field(default=0, init=False)
    """Bytes until the next header."""

    _wanted: bool = field(default=False, init=False)
    _extension: bytes = field(default=b"", init=False)
    """The type of the extension that is being read; empty: it is a member's content, or nothing."""

    _size: int = field(default=0, init=False)
    """Of what the extension says, without padding."""

    _said: bytearray = field(factory=bytearray, init=False)
    _known: dict[str, str] = field(factory=dict, init=False)
    """What extensions have said of the next member."""

    _over: bool = field(default=False, init=False)

    def feed(self, data: bytes) -> bytes:
        """Take a piece.

        Raises:
            ArchiveRefused: It is no archive.
        """
        view, chosen = memoryview(data), bytearray()
        while view and not self._over:
            if self._left:
                part, view = view[: self._left], view[self._left :]
                self._take_content(bytes(part), chosen)
            else:
                missing = BLOCK - len(self._header)
                self._header += view[:missing]
                view = view[missing:]
                if len(self._header) == BLOCK:
                    self._take_header(chosen)
        return bytes(chosen)

    def _take_content(self, part: bytes, chosen: bytearray) -> None:
        self._left -= len(part)
        if self._extension:
            self._said += part
            if not self._left:
                self._end_extension()
        elif self._wanted:
            chosen += part

    def _take_header(self, chosen: bytearray) -> None:
        if not any(self._header):
            self._over = True
            return
        try:
            member = tarfile.TarInfo.frombuf(bytes(self._header), "utf-8", "surrogateescape")
        except (tarfile.HeaderError, ValueError) as error:
            raise ArchiveRefused(f"the archive is broken: {error}") from error
        self._header.clear()
        if member.type in _EXTENSIONS:
            self._begin_extension(member)
        else:
            self._begin_member(member, chosen)

    def _begin_extension(self, member: tarfile.TarInfo) -> None:
        if not 0 < member.size <= _LONGEST:
            raise ArchiveRefused("the archive is broken: a header has no sensible size")
        self._extension, self._size, self._left = member.type, member.size, _padded(member.size)
        self._said.clear()

    def _end_extension(self) -> None:
        said = bytes(self._said[: self._size])
        match self._extension:
            case tarfile.GNUTYPE_LONGNAME:
                self._known["path"] = _text(said.rstrip(b"\0"))
            case tarfile.GNUTYPE_LONGLINK:
                self._known["linkpath"] = _text(said.rstrip(b"\0"))
            case _:
                self._known |= _records(said)
        self._extension = b""

    def _begin_member(self, member: tarfile.TarInfo, chosen: bytearray) -> None:
        known, self._known = self._known, {}
        name, link = known.get("path", member.name), known.get("linkpath", member.linkname)
        try:
            member.size = int(known.get("size", member.size))
        except ValueError as error:
            raise ArchiveRefused("the archive is broken: a size is no number") from error
        if member.size < 0:
            raise ArchiveRefused("the archive is broken: a size is below zero")
        self._left = _padded(member.size) if member.isreg() else 0
        new = self._rename(name)
        kind = member.isreg() or member.isdir() or member.issym() or member.islnk()
        self._wanted = kind and new is not None
        if self._wanted and new is not None:
            member.name = new
            member.linkname = (self._rename(link) or link) if member.islnk() else link
            chosen += member.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")


def chosen_by(pattern: str, directory: str, top: str) -> Renaming:
    """Choose what a glob matches, and all that is in it.

    Args:
        pattern: Relative to the directory.
        directory: What the new names are relative to, absolute.
        top: What the archive is of, absolute; names in it begin with the last part of that.
    """
    asked = PurePosixPath(pattern).parts

    def rename(name: str) -> str | None:
        path = relpath(normpath(join(dirname(top), name)), directory)
        parts = PurePosixPath(path).parts
        return path if len(parts) >= len(asked) and all(map(_matches, parts, asked)) else None

    return rename


def literal_part(pattern: str) -> str:
    """The directories of a glob that are named as they are; of a path without one, all of it."""
    return str(PurePosixPath(*takewhile(lambda part: not set("*?[") & set(part), PurePosixPath(pattern).parts)))


def _matches(part: str, asked: str) -> bool:
    """As a shell does: what begins with a dot is not matched by a wildcard."""
    return fnmatchcase(part, asked) and (asked.startswith(".") or not part.startswith("."))


def _padded(size: int) -> int:
    return -(-size // BLOCK) * BLOCK


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _records(data: bytes) -> dict[str, str]:
    """Read the records ``length key=value`` of a pax header."""
    records = {}
    while data:
        digits, _, _ = data.partition(b" ")
        if not digits.isdigit() or not 0 < int(digits) <= len(data):
            raise ArchiveRefused("the archive is broken: a pax record has no length")
        record, data = data[len(digits) + 1 : int(digits) - 1], data[int(digits) :]
        key, _, value = record.partition(b"=")
        records[_text(key)] = _text(value)
    return records
