"""Reads tar archives: bytes in, members and pieces of their content out. Pure.

The formats are ustar, pax, GNU's, and the one before them all. What precedes a member (long names, pax records, maps
of gaps) has limits that are checked before any of it is kept, so whatever the archive, a reader needs a few MiB.

Source: POSIX.1-2017, the pax utility; the manual of GNU tar, "Basic Tar Format" and "Storing Sparse Files".
"""

from collections.abc import Callable, Iterator
from functools import partial
from struct import Struct
from typing import Final, TypeAlias

from attrs import define, evolve, field

from fleeting.archives._members import BLOCK, LONGEST_NAME, ArchiveRefused, Kind, Member, Piece, shown
from fleeting.archives._numbers import from_field, from_record, time_from_field, time_from_record
from fleeting.archives._sparse import (
    Extent,
    MapReader,
    checked,
    extents_in_extension,
    extents_in_header,
    extents_in_record,
    in_one_record,
    refuse_too_many,
)

LONGEST_EXTENSION = 1 << 20
"""Bytes that a pax header may have: names are a few thousand at most, extended attributes are more."""

MOST_RECORDS = 1 << 12
"""Records that a pax header may have: reading one must take no more than milliseconds."""

LARGEST = (1 << 63) - 1
"""Bytes that a file can have on any system."""

Event: TypeAlias = Member | Piece

_HEADER: Final = Struct("100s8s8s8s12s12s8sc100s8s80x155s12x")
_CHECKSUM: Final = slice(148, 156)
_USTAR: Final = b"ustar\x0000"
_EMPTY: Final = bytes(BLOCK)

_GAPS: Final = b"S"
_IDS: Final = (1 << 32) - 1
"""Ids have 32 bits; nobody's is written as -2 by some."""

_KINDS: Final = {
    b"\0": Kind.FILE,
    b"0": Kind.FILE,
    b"7": Kind.FILE,  # contiguous, where that means something
    _GAPS: Kind.FILE,
    b"1": Kind.HARD_LINK,
    b"2": Kind.SYMLINK,
    b"5": Kind.DIRECTORY,
    b"D": Kind.DIRECTORY,  # of an incremental dump, with a list of entries as its content
}
_WITHOUT_CONTENT: Final = b"123456"
"""Kinds of members whose size, if there is one, says something else."""

_NAMES: Final = frozenset({b"path", b"linkpath", b"GNU.sparse.name"})
_OF_ONE: Final = _NAMES | {
    b"size",
    b"GNU.sparse.major",
    b"GNU.sparse.minor",
    b"GNU.sparse.size",
    b"GNU.sparse.realsize",
    b"GNU.sparse.map",
}
"""Records that say something of one member only."""

_READ: Final = _OF_ONE | {b"mtime", b"uid", b"gid"}


@define
class Reader:
    """Takes an archive in pieces of any size.

    Content belongs to the member before it, and has come whole before the next member comes.
    """

    _block: bytearray = field(factory=bytearray, init=False)
    """What has come of the block, or the blocks, that are taken as one."""

    _wanted: int = field(default=BLOCK, init=False)
    """Bytes that it has when it is complete."""

    _take: Callable[[bytes], Iterator[Event]] = field(init=False)
    """Takes it then."""

    _offset: int = field(default=0, init=False)
    """Where the content that comes next belongs in its file."""

    _content: int = field(default=0, init=False)
    """Bytes until the next gap or the end of the content."""

    _extents: Iterator[Extent] = field(factory=lambda: iter(()), init=False)
    """Where content is after that."""

    _skipped: int = field(default=0, init=False)
    """Bytes after the content that mean nothing."""

    _records: dict[bytes, bytes] = field(factory=dict, init=False)
    """What extended headers have said of the next member."""

    _records_for_all: dict[bytes, bytes] = field(factory=dict, init=False)
    is_over: bool = field(default=False, init=False)
    """Whether the end of the archive was read."""

    def __attrs_post_init__(self) -> None:
        """Begin with a header."""
        self._take = self._take_header

    def feed(self, data: bytes) -> Iterator[Event]:
        """Take the next piece of the archive; exhaust what this returns before the next call.

        Raises:
            ArchiveRefused: It is no archive, something exceeds a limit, or is of a kind that this does not read.
        """
        view = memoryview(data)
        while view and not self.is_over:
            if self._content:
                part, view = view[: self._content], view[self._content :]
                yield self._piece(part)
            elif self._skipped:
                size = min(self._skipped, len(view))
                self._skipped, view = self._skipped - size, view[size:]
            else:
                missing = self._wanted - len(self._block)
                self._block += view[:missing]
                view = view[missing:]
                if len(self._block) == self._wanted:
                    yield from self._take_block()

    def finish(self) -> None:
        """Say that this was all.

        Raises:
            ArchiveRefused: The archive has not come to its end.
        """
        if not self.is_over:
            raise ArchiveRefused("the archive is broken: it is truncated")

    def _piece(self, part: memoryview) -> Piece:
        piece = Piece(self._offset, part)
        self._offset += len(part)
        self._content -= len(part)
        if not self._content:
            self._offset, self._content = next(self._extents, (0, 0))
        return piece

    def _take_block(self) -> Iterator[Event]:
        block, take = bytes(self._block), self._take
        self._block.clear()
        self._expect(BLOCK, self._take_header)
        yield from take(block)

    def _expect(self, size: int, take: Callable[[bytes], Iterator[Event]]) -> None:
        self._wanted, self._take = size, take

    def _take_header(self, block: bytes) -> Iterator[Event]:
        if block == _EMPTY:
            self._end()
            return
        _refuse_wrong_checksum(block)
        match block[156:157]:
            case b"L":
                self._expect_extension(block, LONGEST_NAME + 1, partial(self._take_long_name, b"path"))
            case b"K":
                self._expect_extension(block, LONGEST_NAME + 1, partial(self._take_long_name, b"linkpath"))
            case b"x" | b"X":  # the second is Solaris's
                self._expect_extension(block, LONGEST_EXTENSION, self._take_records)
            case b"g":
                self._expect_extension(block, LONGEST_EXTENSION, self._take_records_for_all)
            case b"V":  # the name of a tape
                self._skipped = _padded(_size_of(block))
            case b"M":
                raise ArchiveRefused("the archive is one volume of several; pack a single volume")
            case kind:
                yield from self._begin_member(kind, block)

    def _end(self) -> None:
        if self._records:
            raise ArchiveRefused("the archive is broken: it ends with an extended header")
        self.is_over = True

    # --- extended headers ------------------------------------------------------------------------------------

    def _expect_extension(self, header: bytes, limit: int, take: Callable[[bytes], None]) -> None:
        size = _size_of(header)
        if not 0 < size <= limit:
            raise ArchiveRefused(f"the archive is broken: a name or pax header has {size} bytes, not 1 to {limit}")

        def take_without_padding(blocks: bytes) -> Iterator[Event]:
            take(blocks[:size])
            return iter(())

        self._expect(_padded(size), take_without_padding)

    def _take_long_name(self, key: bytes, data: bytes) -> None:
        self._records[key] = data.partition(b"\0")[0]

    def _take_records(self, data: bytes) -> None:
        offsets, lengths = [], []
        for key, value in _records_in(data):
            if key == b"GNU.sparse.offset":
                offsets.append(value)
            elif key == b"GNU.sparse.numbytes":
                lengths.append(value)
            elif key in _READ:
                self._records[key] = value
        if offsets:
            self._records[b"GNU.sparse.map"] = in_one_record(offsets, lengths)

    def _take_records_for_all(self, data: bytes) -> None:
        records = dict(_records_in(data))
        wrong = next((key for key in records if key in _OF_ONE), None)
        if wrong is not None:
            raise ArchiveRefused(f"the archive is broken: a pax header gives all members one {wrong.decode()}")
        self._records_for_all |= {key: value for key, value in records.items() if key in _READ}

    # --- members ---------------------------------------------------------------------------------------------

    def _begin_member(self, kind: bytes, block: bytes) -> Iterator[Event]:
        records = {key: value for key, value in (self._records_for_all | self._records).items() if value}
        self._records.clear()
        member, stored = _member_in(kind, block, records)
        if member.kind is not Kind.FILE:
            self._skipped = _padded(stored)
            yield member
        elif kind == _GAPS:
            extents, has_more, size = extents_in_header(block)
            member = evolve(member, size=_sensible(size), has_gaps=True)
            yield from self._continue_map(member, stored, extents, has_more=has_more)
        elif (records.get(b"GNU.sparse.major"), records.get(b"GNU.sparse.minor")) == (b"1", b"0"):
            member = evolve(member, size=_real_size(records), has_gaps=True)
            self._expect(BLOCK, partial(self._take_map, MapReader(), member, stored))
        elif b"GNU.sparse.map" in records:
            member = evolve(member, size=_real_size(records), has_gaps=True)
            yield self._begin_content(member, stored, extents_in_record(records[b"GNU.sparse.map"]))
        else:
            self._offset, self._content, self._skipped = 0, stored, -stored % BLOCK
            yield member

    def _continue_map(self, member: Member, stored: int, extents: list[Extent], *, has_more: bool) -> Iterator[Event]:
        if has_more:
            self._expect(BLOCK, partial(self._take_map_extension, member, stored, extents))
        else:
            yield self._begin_content(member, stored, extents)

    def _take_map_extension(self, member: Member, stored: int, extents: list[Extent], block: bytes) -> Iterator[Event]:
        more, has_more = extents_in_extension(block)
        extents += more
        refuse_too_many(len(extents))
        yield from self._continue_map(member, stored, extents, has_more=has_more)

    def _take_map(self, reader: MapReader, member: Member, stored: int, block: bytes) -> Iterator[Event]:
        if stored < BLOCK:
            raise ArchiveRefused("the archive is broken: the map of a file's gaps is longer than its content")
        extents = reader.take(block)
        if extents is None:
            self._expect(BLOCK, partial(self._take_map, reader, member, stored - BLOCK))
        else:
            yield self._begin_content(member, stored - BLOCK, extents)

    def _begin_content(self, member: Member, stored: int, extents: list[Extent]) -> Member:
        extents = checked(extents, member.size)
        if sum(length for _, length in extents) != stored:
            raise ArchiveRefused("the archive is broken: the map of a file's gaps does not fit its content")
        self._extents, self._skipped = iter(extents), -stored % BLOCK
        self._offset, self._content = next(self._extents, (0, 0))
        return member


def _member_in(kind: bytes, block: bytes, records: dict[bytes, bytes]) -> tuple[Member, int]:
    """Read a header, corrected by records: the member, and how many bytes its content has in the archive."""
    name, mode, uid, gid, _, mtime, _, _, link, magic, prefix = _HEADER.unpack(block)
    name = name.partition(b"\0")[0]
    if magic == _USTAR and prefix[0]:
        name = prefix.partition(b"\0")[0] + b"/" + name
    name = _refuse_bad_name(records.get(b"GNU.sparse.name") or records.get(b"path") or name)
    link = _refuse_bad_name(records.get(b"linkpath") or link.partition(b"\0")[0])
    what = _KINDS.get(kind, Kind.OTHER)
    if what is Kind.FILE and name.endswith(b"/"):  # what tar was before directories had a kind
        what = Kind.DIRECTORY
    size = from_record(records[b"size"], "a size") if b"size" in records else from_field(block[124:136], "a size")
    stored = 0 if kind in _WITHOUT_CONTENT else _sensible(size)
    uid = from_record(records[b"uid"], "an id") if b"uid" in records else from_field(uid, "an id")
    gid = from_record(records[b"gid"], "an id") if b"gid" in records else from_field(gid, "an id")
    member = Member(
        name=name,
        kind=what,
        link=link if what in (Kind.SYMLINK, Kind.HARD_LINK) else b"",
        size=stored if what is Kind.FILE else 0,
        mode=from_field(mode, "a mode") & 0o7777,
        mtime=time_from_record(records[b"mtime"]) if b"mtime" in records else time_from_field(mtime),
        owner=(uid & _IDS, gid & _IDS),
    )
    return member, stored


def _real_size(records: dict[bytes, bytes]) -> int:
    """Find the size with gaps; its record's name depends on the form of the map."""
    size = records.get(b"GNU.sparse.realsize") or records.get(b"GNU.sparse.size")
    if size is None:
        raise ArchiveRefused("the archive is broken: a file with gaps has no size")
    return _sensible(from_record(size, "a size"))


def _size_of(block: bytes) -> int:
    return _sensible(from_field(block[124:136], "a size"))


def _sensible(size: int) -> int:
    if not 0 <= size <= LARGEST:
        raise ArchiveRefused("the archive is broken: a size is out of range")
    return size


def _padded(size: int) -> int:
    return -(-size // BLOCK) * BLOCK


def _refuse_wrong_checksum(block: bytes) -> None:
    """A header's own bytes, with spaces for the sum itself, are added up as unsigned or, by some, as signed ones."""
    said = from_field(block[_CHECKSUM], "a checksum")
    total = sum(block) - sum(block[_CHECKSUM]) + 8 * ord(" ")
    if total != said:
        rest = block[: _CHECKSUM.start] + block[_CHECKSUM.stop :]
        if total - 256 * sum(byte >> 7 for byte in rest) != said:
            raise ArchiveRefused("the archive is broken: a header's checksum is wrong")


def _refuse_bad_name(name: bytes) -> bytes:
    if len(name) > LONGEST_NAME or b"\0" in name:
        raise ArchiveRefused(f"the archive is broken: {shown(name)} is not a name")
    return name


def _records_in(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Read the records ``length key=value`` of a pax header; what follows a NUL is padding."""
    start = 0
    for _ in range(MOST_RECORDS):
        if not data[start : start + 1].strip(b"\0"):
            return
        digits = data[start : start + 8].partition(b" ")[0]
        end = start + int(digits) if digits.isdigit() else 0
        key, equals, value = data[start + len(digits) + 1 : end - 1].partition(b"=")
        if not equals or data[end - 1 : end] != b"\n":
            raise ArchiveRefused("the archive is broken: a pax header is not made of records")
        yield key, value
        start = end
    raise ArchiveRefused(f"the archive is broken: a pax header has more than {MOST_RECORDS} records")
