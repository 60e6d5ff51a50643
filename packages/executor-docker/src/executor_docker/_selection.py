"""Chooses members of a tar archive while it arrives, so that only what is wanted is kept. Pure.

A daemon hands out whole directories. What passes is written again: files, directories and links, with names that are
relative to where the caller wants them. What it is worth is for `fleeting.archives.unpack` to judge.
"""

from collections.abc import Callable
from fnmatch import fnmatchcase
from itertools import takewhile
from pathlib import PurePosixPath
from posixpath import dirname, join, normpath, relpath

from attrs import define, evolve, field

from fleeting.archives import BLOCK, ArchiveRefused, Kind, Member, Reader, header, shown

Renaming = Callable[[str], str | None]
"""Gives a member's new name, or None if it is not wanted."""


@define
class Selector:
    """Takes an archive in pieces of any size, and gives the part of it that is wanted."""

    _rename: Renaming
    _reader: Reader = field(factory=Reader, init=False)
    _is_wanted: bool = field(default=False, init=False)
    """Whether the last member is."""

    _padding: int = field(default=0, init=False)
    """Bytes that must follow its content."""

    def feed(self, data: bytes) -> bytes:
        """Take a piece.

        Raises:
            ArchiveRefused: It is no archive.
        """
        chosen = bytearray()
        for event in self._reader.feed(data):
            if isinstance(event, Member):
                chosen += self._begin(event)
            elif self._is_wanted:
                chosen += event.data
        return bytes(chosen)

    def finish(self) -> bytes:
        """Give what is left, once all pieces have come.

        Raises:
            ArchiveRefused: There should be more.
        """
        self._reader.finish()
        return self._padded()

    def _begin(self, member: Member) -> bytes:
        padding = self._padded()
        name = self._rename(_text(member.name))
        self._is_wanted = name is not None and member.kind is not Kind.OTHER
        if name is None or not self._is_wanted:
            return padding
        if member.has_gaps:
            raise ArchiveRefused(f"{shown(member.name)} is a sparse file, which no daemon sends")
        link = _text(member.link)
        if member.kind is Kind.HARD_LINK:
            link = self._rename(link) or link
        self._padding = -member.size % BLOCK
        return padding + header(evolve(member, name=_bytes(name), link=_bytes(link)))

    def _padded(self) -> bytes:
        padding, self._padding = bytes(self._padding), 0
        return padding


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


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
