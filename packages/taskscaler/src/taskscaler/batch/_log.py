"""A job's log, which never has more bytes than it may: of a longer one, the beginning and the end are kept.

The file is in order at all times, so that it can be read while it grows::

    the beginning, half of the limit | how much is left out | the end, between a quarter and half of the limit

It grows up to its limit. Then the last quarter is moved to where the end begins, and the file is cut off behind it:
each byte is moved at most once for each byte that is written.
"""

import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from threading import Lock
from typing import Self

from anyio import to_thread
from attrs import define, field

from fleeting.errors import SystemRefused
from fleeting.plugins import open_private
from taskscaler.batch._addresses import Addresses

_GAP = b"\ntaskscaler: %20d bytes are left out here, as log_limit says\n"
GAP_PATTERN = re.compile(_GAP.replace(b"%20d", b"( *[0-9]+)"))
GAP_SIZE = len(_GAP % 0)

_MOST_COUNTED = 10**20 - 1  # what fits into the gap, which a job may have printed itself

_BLOCK = 1 << 20
"""Bytes that are moved at once."""


@define
class JobLog:
    """What a job prints, as it comes, and a few remarks of ours.

    Where it cannot be written, the job goes on, and `problem` says why something is missing.
    """

    _limit: int
    addresses: Addresses
    """What must not be in a remark."""

    _file: int | None = None
    _size: int = 0
    _omitted: int = 0
    """Bytes that are left out; 0: there is no gap."""

    _at_line_start: bool = True
    _missing: bool = False
    """Whether what came last could not be written."""

    problem: str = field(default="", init=False)
    """Why the log is incomplete; empty if it is not, but for what the limit leaves out."""

    _lock: Lock = field(factory=Lock, init=False)
    """The two outputs of a job may come from two tasks."""

    @classmethod
    @asynccontextmanager
    async def open(cls, path: Path, limit: int, addresses: Addresses) -> AsyncIterator[Self]:
        """Open a log to append to it; never fails."""
        log = cls(limit, addresses)
        await to_thread.run_sync(log.open_at, path)
        with closing(log):
            yield log

    def open_at(self, path: Path, *, fresh: bool = False) -> None:
        """Open it, in a thread, empty if it is to be *fresh*; never fails."""
        try:
            self._file = open_private(path, os.O_RDWR | os.O_CREAT | (os.O_TRUNC if fresh else 0))
            self._size = os.fstat(self._file).st_size
            gap = GAP_PATTERN.fullmatch(os.pread(self._file, GAP_SIZE, self._head))
            self._omitted = int(gap[1]) if gap else 0
            self._at_line_start = os.pread(self._file, 1, max(0, self._size - 1)) in (b"", b"\n")
        except (OSError, ValueError) as error:
            self._note(error)

    @property
    def total(self) -> int:
        """Bytes that were ever appended, those that are left out included."""
        return self._size + (self._omitted - GAP_SIZE if self._omitted else 0)

    def go_on(self, logged: int) -> int:
        """Go on with what a try prints, in a thread; returns how much of that is there. The file alone says it.

        It may be out of order if it was being shortened when the process was killed. So from where the try began it is
        written again if something was left out since, as far as what is before that is whole.

        Args:
            logged: What `total` was before the try.
        """
        try:
            if self._file is not None and self._omitted and logged <= self._head:
                os.ftruncate(self._file, logged)
                self._size, self._omitted = logged, 0
                self._at_line_start = os.pread(self._file, 1, max(0, logged - 1)) in (b"", b"\n")
        except OSError as error:
            self._note(error)
        return max(0, self.total - logged)

    def close(self) -> None:
        """Take no more."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    async def write(self, chunk: bytes) -> None:
        """Append, in a thread; never fails."""
        await to_thread.run_sync(self._write, chunk)

    async def remark(self, *remarks: str) -> None:
        """Append lines of ours; empty ones are left out."""
        for remark in filter(None, remarks):
            line = f"taskscaler: {self.addresses.hide(remark)}\n"
            await self.write((b"" if self._at_line_start else b"\n") + line.encode(errors="replace"))

    @property
    def _head(self) -> int:
        """Bytes of the beginning."""
        return self._limit // 2

    @property
    def _tail(self) -> int:
        """Bytes of the end that are kept at the least."""
        return (self._limit - self._head - GAP_SIZE) // 2

    def _write(self, chunk: bytes) -> None:
        with self._lock:
            if self._file is None or not chunk:
                return
            try:
                if self._missing:
                    self._append(self._file, f"\ntaskscaler: something is missing here: {self.problem}\n".encode())
                for start in range(0, len(chunk), self._tail):
                    self._append(self._file, chunk[start : start + self._tail])
            except OSError as error:
                self._note(error)
            else:
                self._missing = False
            self._at_line_start = chunk.endswith(b"\n") and not self._missing

    def _note(self, error: OSError | ValueError) -> None:
        self._missing = True
        self.problem = str(SystemRefused(error)) if isinstance(error, OSError) else str(error)

    def _append(self, file: int, piece: bytes) -> None:
        """Append at most as much as is kept of the end."""
        if self._size + len(piece) > self._limit:
            self._make_room(file)
        rest = memoryview(piece)
        while rest:
            written = os.pwrite(file, rest, self._size)
            self._size += written
            rest = rest[written:]

    def _make_room(self, file: int) -> None:
        """Leave out what is between the beginning and the last quarter."""
        begin, end = self._head + GAP_SIZE, self._size - self._tail
        omitted = self._omitted + end - (begin if self._omitted else self._head)
        write_at(file, _GAP % min(omitted, _MOST_COUNTED), self._head)
        for done in range(0, self._tail, _BLOCK):
            write_at(file, os.pread(file, min(_BLOCK, self._tail - done), end + done), begin + done)
        os.ftruncate(file, begin + self._tail)
        self._size, self._omitted = begin + self._tail, omitted


def write_at(file: int, data: bytes, offset: int) -> None:
    """Write all of it there, over what is there."""
    rest = memoryview(data)
    while rest:
        written = os.pwrite(file, rest, offset)
        offset += written
        rest = rest[written:]
