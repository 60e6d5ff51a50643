"""Maps of files with gaps, in the four forms in which GNU tar has written them. Pure.

A map lists the extents that the archive holds, as offset and length; whatever is between them is zeros.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from attrs import define, field

from fleeting.archives._members import ArchiveRefused
from fleeting.archives._numbers import from_field, from_record

MOST_EXTENTS = 1 << 14
"""Extents that one file may have: a map takes memory before any of its content has come."""

Extent = tuple[int, int]
"""Offset and length in bytes."""

_ENTRY = 24
"""Bytes of an entry in GNU tar's first form: two fields of 12."""

_IN_HEADER, _IN_EXTENSION = slice(386, 482), slice(0, 504)


def checked(extents: Sequence[Extent], size: int) -> list[Extent]:
    """Refuse a map that goes backwards or beyond its file; empty extents only say where the file ends."""
    end = 0
    for offset, length in extents:
        if offset < end or length < 0:
            raise ArchiveRefused("the archive is broken: the map of a file's gaps goes backwards")
        end = offset + length
    if end > size:
        raise ArchiveRefused("the archive is broken: the map of a file's gaps goes beyond its end")
    return [extent for extent in extents if extent[1]]


def in_one_record(offsets: Sequence[bytes], lengths: Sequence[bytes]) -> bytes:
    """Turn form 0.0, a record for each number, into form 0.1, one record for all."""
    if len(offsets) != len(lengths):
        raise ArchiveRefused("the archive is broken: the map of a file's gaps has no pairs")
    return b",".join(number for pair in zip(offsets, lengths, strict=True) for number in pair)


def extents_in_record(text: bytes) -> list[Extent]:
    """Read form 0.1."""
    return _paired(_numbers(text.split(b",", 2 * MOST_EXTENTS)))


def extents_in_header(header: bytes) -> tuple[list[Extent], bool, int]:
    """Read GNU tar's first form from a header: the extents, whether more follow, and the size of the file."""
    return _entries(header[_IN_HEADER]), bool(header[482]), from_field(header[483:495], "a size")


def extents_in_extension(block: bytes) -> tuple[list[Extent], bool]:
    """Read GNU tar's first form from a block after the header."""
    return _entries(block[_IN_EXTENSION]), bool(block[504])


@define
class MapReader:
    """Takes form 1.0: decimal numbers, a line each, at the beginning of the content; the first is how many follow."""

    _text: bytearray = field(factory=bytearray, init=False)
    _lines: int = field(default=0, init=False)
    _count: int | None = field(default=None, init=False)
    """Numbers that follow the first line."""

    def take(self, block: bytes) -> list[Extent] | None:
        """Take the next block.

        Returns:
            The map, once it is complete.
        """
        self._text += block
        self._lines += block.count(b"\n")
        if self._count is None:
            first, found, _ = block.partition(b"\n")
            self._count = 2 * from_record(first if found else b"", "the length of a map")
            refuse_too_many(self._count // 2)
        if self._lines > self._count:
            return _paired(_numbers(bytes(self._text).split(b"\n", self._count + 1)[1:-1]))
        if len(self._text) > (self._count + 1) * _ENTRY:
            raise ArchiveRefused("the archive is broken: the map of a file's gaps has no end")
        return None


def _entries(data: bytes) -> list[Extent]:
    return list(_used(data[at : at + _ENTRY] for at in range(0, len(data), _ENTRY)))


def _used(entries: Iterable[bytes]) -> Iterator[Extent]:
    for entry in entries:
        if not entry[0]:
            return
        yield from_field(entry[:12], "an offset"), from_field(entry[12:], "a length")


def _numbers(texts: Sequence[bytes]) -> list[int]:
    refuse_too_many((len(texts) + 1) // 2)
    return [from_record(text, "an offset or a length") for text in texts]


def _paired(numbers: Sequence[int]) -> list[Extent]:
    return list(pairwise(numbers))[::2]


def refuse_too_many(extents: int) -> None:
    """Refuse a map before it takes more memory."""
    if extents > MOST_EXTENTS:
        raise ArchiveRefused(f"a file has more than {MOST_EXTENTS} gaps; fill them")
