"""Events for systemd's journal over its own protocol, so that each of their fields can be searched for.

``journalctl TASKSCALER_EVENT=update_failed TASKSCALER_POOL=spot``. A line on standard error, which is all that a
service needs, has room for a level and no more. Packages that speak the protocol were weighed: `systemd-python` and
`cysystemd` are compiled against libsystemd, and `logging-journald` writes all that a record has, at any length, and
waits for a journal that has stopped reading for as long as that takes, in the middle of an event loop.
"""

import logging
import os
import re
import socket
import struct
from collections.abc import Mapping
from typing import IO, Final

from taskscaler.cli._log_formats import MessageFormatter, own, priority_of

SOCKET: Final = "/run/systemd/journal/socket"

PREFIX: Final = "TASKSCALER_"
"""Of the fields that are ours: others have a meaning of systemd's, such as ``UNIT`` and ``PRIORITY``."""

LONGEST_NAME: Final = 64
"""Characters: the journal drops a field with a longer name."""

LONGEST_VALUE: Final = 16 << 10
"""Bytes that a field may have; more are cut off."""

LONGEST_EVENT: Final = 96 << 10
"""Bytes of all fields: a datagram has to fit into the socket's buffer, of which Linux grants 208 KiB."""

PATIENCE: Final = 0.5
"""Seconds that the journal has to take an event, while it did so the last time; after that it is not waited for."""


def is_journal(stream: IO[str]) -> bool:
    """Whether a stream leads to the journal, by what systemd says in JOURNAL_STREAM."""
    try:
        status = os.fstat(stream.fileno())
    except (OSError, ValueError):  # closed, or no file
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"


def encode(fields: Mapping[str, str]) -> bytes:
    """Write fields as the journal takes them: ``NAME=value``, or with a length where the value has several lines."""
    written = b""
    for name, value in fields.items():
        raw = _cut(value.encode(errors="backslashreplace"))
        line = b"%s=%s\n" % (name.encode(), raw)
        if b"\n" in raw:
            line = b"%s\n%s%s\n" % (name.encode(), struct.pack("<Q", len(raw)), raw)
        if len(written) + len(line) > LONGEST_EVENT:
            break
        written += line
    return written


def field_name(key: str) -> str:
    """How a field of an event is called in the journal: capitals, digits and underscores."""
    return f"{PREFIX}{re.sub('[^A-Z0-9]', '_', key.upper())}"[:LONGEST_NAME]


def _cut(raw: bytes) -> bytes:
    if len(raw) <= LONGEST_VALUE:
        return raw
    return raw[:LONGEST_VALUE].decode(errors="ignore").encode() + b" [cut off]"


class JournalHandler(logging.Handler):
    """Sends events to the journal; one that does not read holds up nobody for longer than a moment."""

    def __init__(self, otherwise: logging.Handler, path: str | None = None) -> None:
        """Connect to nothing: each event finds the socket anew, which may be another journal's by then.

        Args:
            otherwise: Takes the events while there is no such socket.
            path: Of the socket; None: systemd's.
        """
        super().__init__()
        self.setFormatter(MessageFormatter())
        self._otherwise, self._path = otherwise, path or SOCKET
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.settimeout(PATIENCE)
        self.lost = 0
        """Events that the journal did not take in time, since the last that it did."""

    def emit(self, record: logging.LogRecord) -> None:
        """Send an event."""
        try:
            self._socket.sendto(encode(self._fields(record)), self._path)
        except (TimeoutError, BlockingIOError):
            self.lost += 1
            self._socket.setblocking(False)
        except OSError:
            self._otherwise.handle(record)
        else:
            if self.lost:
                self._resume()

    def _resume(self) -> None:
        """Say how much is missing, now that the journal reads again."""
        lost, self.lost = self.lost, 0
        self._socket.settimeout(PATIENCE)
        about = {"name": __name__, "levelno": logging.WARNING, "levelname": "WARNING", "msg": "events_lost"}
        self.emit(logging.makeLogRecord({**about, "events": lost}))

    def _fields(self, record: logging.LogRecord) -> dict[str, str]:
        mine = {field_name(key): value if isinstance(value, str) else str(value) for key, value in own(record).items()}
        return {
            "MESSAGE": self.format(record),
            "PRIORITY": str(priority_of(record)),
            "SYSLOG_IDENTIFIER": "taskscaler",
            f"{PREFIX}EVENT": record.getMessage(),
            f"{PREFIX}LOGGER": record.name,
            **mine,
        }

    def close(self) -> None:
        """Send no more."""
        self._socket.close()
        self._otherwise.close()
        super().close()
