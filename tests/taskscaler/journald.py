"""A journal of systemd's, as far as its own protocol goes: a socket, and what was sent there, read to the letter."""

import re
import socket
import struct
from pathlib import Path

from attrs import define, field

FIELD = re.compile(rb"[A-Z][A-Z0-9_]{0,63}")


def parse(sent: bytes) -> dict[str, str]:
    """Read a datagram as the journal does; what it would drop is an error here."""
    fields: dict[str, str] = {}
    while sent:
        head, _, rest = sent.partition(b"\n")
        name, equals, value = head.partition(b"=")
        if equals:
            sent = rest
        else:
            (length,) = struct.unpack_from("<Q", rest)
            value, end, sent = rest[8 : 8 + length], rest[8 + length : 9 + length], rest[9 + length :]
            assert len(value) == length
            assert end == b"\n"
        assert FIELD.fullmatch(name), name
        assert name.decode() not in fields
        fields[name.decode()] = value.decode()
    return fields


@define
class FakeJournal:
    """Takes datagrams at a path."""

    path: Path
    listener: socket.socket = field(init=False)

    def __attrs_post_init__(self) -> None:
        """Listen."""
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.listener.bind(str(self.path))
        self.listener.setblocking(False)

    def read(self) -> list[dict[str, str]]:
        """All that has come since the last time."""
        events = []
        while True:
            try:
                events.append(parse(self.listener.recv(1 << 20)))
            except BlockingIOError:
                return events

    def close(self) -> None:
        """Be gone, as a journal that is restarted without its socket."""
        self.listener.close()
        self.path.unlink()
