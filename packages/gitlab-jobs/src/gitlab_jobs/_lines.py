"""Marks in a log that GitLab's page of a job understands: sections, and the time of each line: pure."""

from collections.abc import Mapping
from datetime import UTC, datetime
from enum import Enum

_CLEAR = "\r\x1b[0K"
MAX_LINE = 16 << 10
"""Bytes of a line that are kept until its end is there; a longer one is continued in the next."""


class Stream(Enum):
    """Whose output it is."""

    RUNNER = "00"
    JOB = "01"
    SERVICE = "0f"


def section_start(name: str, now: float, options: Mapping[str, str] | None = None) -> bytes:
    """The mark where a section begins; *options* such as ``{"collapsed": "true"}``."""
    written = ",".join(f"{key}={value}" for key, value in (options or {}).items())
    return f"section_start:{int(now)}:{name}{f'[{written}]' if written else ''}{_CLEAR}".encode()


def section_end(name: str, now: float) -> bytes:
    """The mark where a section ends."""
    return f"section_end:{int(now)}:{name}{_CLEAR}".encode()


class Timestamps:
    """Writes the time before each line, as GitLab Runner does with ``FF_TIMESTAMPS``.

    A line gets the time of its end. One that has none for long is continued: a plus sign instead of the space.
    """

    def __init__(self, stream: Stream, *, is_error: bool = False) -> None:
        """Mark the output of a stream, its standard output or its errors."""
        self._mark = f"{stream.value}{'E' if is_error else 'O'}"
        self._held = bytearray()
        self._separator = b" "

    def feed(self, data: bytes, now: float) -> bytes:
        """Take output; returns the lines that are whole."""
        self._held += data
        *lines, rest = bytes(self._held).split(b"\n")
        self._held = bytearray(rest)
        shown = b"".join(self._line(line, now, b" ") for line in lines)
        return shown + self.flush(now) if len(rest) > MAX_LINE else shown

    def flush(self, now: float) -> bytes:
        """What there is of a line, so that nobody waits for its end."""
        if not self._held:
            return b""
        line = self._line(bytes(self._held), now, b"+")
        self._held.clear()
        return line

    def _line(self, line: bytes, now: float, following: bytes) -> bytes:
        time = datetime.fromtimestamp(now, tz=UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        separator, self._separator = self._separator, following
        return f"{time} {self._mark}".encode() + separator + line + b"\n"
