"""The log of a job, as its coordinator gets it: bytes in; offsets, patches, CRC-32, size limit: pure.

A log only grows, so that the bytes at an offset are always the same: whatever is lost or sent twice, the coordinator's
copy is the beginning of ours, and the number of bytes that it holds says all about it.
"""

import codecs
import errno
import os
import re
import zlib
from contextlib import suppress
from io import BytesIO
from typing import Protocol

from attrs import frozen

MAX_PATCH = 1 << 20
"""Bytes of one patch; GitLab Runner sends no more."""

DEFAULT_LIMIT = 4 << 20
"""Bytes of a log, GitLab Runner's ``output_limit`` of 4096 KiB."""

_READ = 1 << 20
_LONGEST = 4  # bytes of a character
_DECODER = codecs.getincrementaldecoder("utf-8")
_GOES_ON = "The job goes on, and what it prints from here on is not kept."
_RANGE = re.compile(r"0-([0-9]{1,18})")


class Spool(Protocol):
    """Where the log is kept: a file opened for reading and writing bytes without a buffer, or what behaves as one."""

    def seek(self, offset: int, /) -> int:
        """Go to an offset."""

    def read(self, size: int, /) -> bytes | None:
        """Read at most so many bytes."""

    def write(self, data: bytes, /) -> int | None:
        """Write as many of them as there is room for; returns how many."""

    def truncate(self, size: int, /) -> int:
        """Forget what comes after so many bytes."""


@frozen
class Patch:
    """A piece of the log on its way to the coordinator."""

    start: int
    """The offset of its first byte."""

    body: bytes
    """What is there; never empty."""

    @property
    def content_range(self) -> str:
        """The header: both offsets, the last one included."""
        return f"{self.start}-{self.start + len(self.body) - 1}"


class Trace:
    """A job's log: what is written, and how much of it the coordinator has.

    Kept in memory unless it gets a *spool*, which may have been written before a restart: sending starts at the
    beginning then, and the coordinator's answer to the first patch says where it is. A character of which only a part
    was written when the process died is taken back: nobody has seen it.

    A spool that cannot be written to any more, such as one on a full disk, costs what the job prints from then on, and
    a line says so; neither the job nor what was kept. One that cannot be read any more costs what was not sent yet,
    and the checksum with it. The file is to be opened with ``buffering=0``: what is in a buffer is not kept, and
    cannot be taken back.
    """

    def __init__(self, *, limit: int = DEFAULT_LIMIT, spool: Spool | None = None) -> None:
        """Take at most *limit* bytes, and a line that says so if there are more."""
        self.limit = limit
        self.size = 0
        self.sent = 0
        self._crc: int | None = 0
        self._spool: Spool = BytesIO() if spool is None else spool
        self._rest: bytearray | None = None
        """What the spool did not take, or does not give back: our own lines; `None` while it takes everything."""

        self._decoder = _DECODER("replace")
        self._crc = self._take_up()
        self._is_full = self.size >= limit

    def _take_up(self) -> int:
        """Read what is there, to the last whole character; returns its checksum."""
        crc, torn = 0, b""
        self._spool.seek(0)
        while data := self._spool.read(_READ):
            whole, torn = _whole(torn + data)
            crc = zlib.crc32(whole, crc)
            self.size += len(whole)
        if torn:
            self._spool.truncate(self.size)
        return crc

    @property
    def checksum(self) -> str | None:
        """Of all that is kept, as ``PUT jobs/:id`` has it; `None` if some of it cannot be read any more."""
        return None if self._crc is None else f"crc32:{self._crc:08x}"

    @property
    def is_sent(self) -> bool:
        """Whether the coordinator has all that is kept."""
        return self.sent == self.size

    def write(self, data: bytes) -> None:
        """Add what the job printed; what is no UTF-8 is replaced, over the borders of pieces too."""
        self._keep(self._decoder.decode(data))

    def end(self) -> None:
        """Add what is left of a character that never became whole."""
        self._keep(self._decoder.decode(b"", final=True))
        self._decoder.reset()

    def note(self, line: str) -> None:
        """Add a line of our own, whatever the limit: why a job failed is not lost in its output."""
        self._append(line.encode(errors="replace"), is_ours=True)

    def patch(self, most: int = MAX_PATCH) -> Patch | None:
        """The next piece that the coordinator lacks, of *most* bytes; `None` if it has everything."""
        if self.is_sent:
            return None
        kept = self.size - len(self._rest or b"")
        body = self._read(min(most, kept - self.sent)) if self.sent < kept else b""
        if not body and self._rest is not None:
            at = max(0, self.sent - (self.size - len(self._rest)))
            body = bytes(self._rest[at : at + most])
        return Patch(self.sent, body)

    def _read(self, most: int) -> bytes:
        """What is kept there, or nothing if it is lost."""
        try:
            self._spool.seek(self.sent)
            body = self._spool.read(most)
            reason = "its file is shorter than it was"
        except OSError as error:
            body, reason = None, error.strerror or str(error)
        if not body:
            self._lose(reason)
        return body or b""

    def _lose(self, reason: str) -> None:
        """Go on after what the coordinator has; nobody can tell the checksum of what it has any more."""
        self._is_full, self._crc = True, None
        rest = self._rest or b""
        notice = _notice(f"What comes here cannot be read any more: {reason}. It is lost, and what comes later, too.")
        self._rest = bytearray(rest if rest.startswith(notice) else notice + rest)
        self.size = self.sent + len(self._rest)

    def accepted(self, patch: Patch) -> None:
        """The coordinator has taken a piece."""
        self.sent = patch.start + len(patch.body)

    def refused(self, held: str | None) -> None:
        """The coordinator wants another piece: its header ``Range`` ends with the number of bytes that it holds.

        Without one, or with one that makes no sense, everything is sent again.
        """
        found = _RANGE.fullmatch(held or "")
        self.sent = min(int(found[1]), self.size) if found else 0

    def restart(self) -> None:
        """The coordinator's copy is not ours: send everything again."""
        self.sent = 0

    def _keep(self, text: str) -> None:
        if self._is_full or not text:
            return
        data = text.encode()
        if self.size + len(data) <= self.limit:
            self._append(data)
            return
        self._is_full = True
        self._append(data[: self.limit - self.size].decode(errors="ignore").encode())
        self._append(_notice(f"The log has reached its limit of {self.limit} bytes. {_GOES_ON}"))

    def _append(self, data: bytes, *, is_ours: bool = False) -> None:
        if self._rest is None:
            try:
                write_all(self._spool, self.size, data)  # what an earlier try may have left there does not count
            except OSError as error:
                self._is_full = True
                self._rest = bytearray()
                with suppress(OSError):  # what was written of it is not what the coordinator gets
                    self._spool.truncate(self.size)
                notice = _notice(f"The log cannot be kept any more: {error.strerror or error}. {_GOES_ON}")
                data = notice + data if is_ours else notice
        if self._rest is not None:
            self._rest += data
        self._crc = None if self._crc is None else zlib.crc32(data, self._crc)
        self.size += len(data)


def _whole(data: bytes) -> tuple[bytes, bytes]:
    """What is whole of UTF-8, and the beginning of a character that may follow."""
    decoder = _DECODER("replace")
    decoder.decode(data[-_LONGEST:])
    whole = len(data) - len(decoder.getstate()[0])
    return data[:whole], data[whole:]


def write_all(spool: Spool, at: int, data: bytes) -> None:
    """Write all of it there; a disk that takes a part, and then nothing, is full."""
    spool.seek(at)
    while data:
        written = spool.write(data) or 0
        if not written:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        data = data[written:]


def _notice(text: str) -> bytes:
    """A line of our own in the log, in yellow."""
    return f"\n\x1b[33;1m{text}\x1b[0;m\n".encode(errors="replace")
