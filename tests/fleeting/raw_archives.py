"""Archives as nobody's tar would write them: every byte of a header is the test's own choice."""

from collections.abc import Mapping, Sequence

from attrs import field, frozen

BLOCK = 512
END = bytes(2 * BLOCK)


def padded(data: bytes) -> bytes:
    """Fill the last block up."""
    return data + bytes(-len(data) % BLOCK)


def header(
    name: bytes, kind: bytes = b"0", *, link: bytes = b"", size: int = 0, mode: int = 0o644, mtime: int = 0
) -> bytes:
    """Write a header of ustar's kind with the right checksum; a long name is cut, a large number in base 256."""
    block = bytearray(BLOCK)
    for start, length, value in (
        (0, 100, name),
        (100, 8, b"%07o" % mode),
        (108, 8, b"%07o" % 0),
        (116, 8, b"%07o" % 0),
        (124, 12, number(size)),
        (136, 12, number(mtime)),
        (148, 8, b" " * 8),
        (156, 1, kind),
        (157, 100, link),
        (257, 8, b"ustar\x0000"),
    ):
        block[start : start + length] = value[:length].ljust(length, b"\0")
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def number(value: int) -> bytes:
    """Write a number of 12 bytes."""
    if 0 <= value < 8**11:
        return b"%011o" % value
    return (b"\x80" if value >= 0 else b"\xff") + (value % (1 << 88)).to_bytes(11, "big")


def member(name: bytes, kind: bytes = b"0", *, content: bytes = b"", link: bytes = b"", mode: int = 0o644) -> bytes:
    """Write a member."""
    return header(name, kind, link=link, size=len(content), mode=mode) + padded(content)


def long_name(name: bytes, kind: bytes = b"L") -> bytes:
    """Write what comes before a member with a long name, as GNU tar does; kind K: a long link."""
    return header(b"././@LongLink", kind, size=len(name) + 1) + padded(name + b"\0")


def pax(records: Mapping[bytes, bytes] | Sequence[tuple[bytes, bytes]], kind: bytes = b"x") -> bytes:
    """Write what comes before a member with extended attributes; kind g: before all."""
    pairs = records.items() if isinstance(records, Mapping) else records
    data = b"".join(record(key, value) for key, value in pairs)
    return header(b"PaxHeaders/x", kind, size=len(data)) + padded(data)


def record(key: bytes, value: bytes) -> bytes:
    """Write one record, whose length counts itself."""
    rest = b" %s=%s\n" % (key, value)
    length = len(rest) + 1
    while len(b"%d" % length) + len(rest) != length:
        length += 1
    return b"%d%s" % (length, rest)


@frozen(kw_only=True)
class Spec:
    """A member that a hostile archive has; ``@`` in names stands for a directory outside the target."""

    name: bytes
    kind: bytes = b"0"
    link: bytes = b""
    content: bytes = b""
    size: int | None = None
    """What the header says, if not the truth."""

    mode: int = 0o644
    mtime: int = 0
    is_long: bool = False
    """Whether the names are in headers of their own."""

    records: Mapping[bytes, bytes] = field(factory=dict)

    def write(self, outside: bytes) -> bytes:
        """Write it, with what belongs before it."""
        name, link = (text.replace(b"@", outside) for text in (self.name, self.link))
        before = b""
        if self.is_long or len(name) > 100:
            before += long_name(name)
        if self.is_long or len(link) > 100:
            before += long_name(link, b"K")
        if self.records:
            before += pax({key: value.replace(b"@", outside) for key, value in self.records.items()})
        content = b"" if self.kind in {b"1", b"2", b"5"} else self.content
        size = len(content) if self.size is None else self.size
        return (
            before + header(name, self.kind, link=link, size=size, mode=self.mode, mtime=self.mtime) + padded(content)
        )
