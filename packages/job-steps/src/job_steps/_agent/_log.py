"""What one job writes: a file that grows, and those who follow it."""

import os
import stat
from collections.abc import AsyncGenerator
from typing import Final

import anyio
from anyio.lowlevel import checkpoint

LONGEST_LOG: Final = 256 << 20
"""Bytes that are kept of what a job writes."""

_PIECE: Final = 64 << 10
"""Bytes that are passed on at once."""

_FARTHEST: Final = 1 << 62
"""Byte of a file that a system may have."""


class JobLog:
    """The log of one job; its file may be taken away meanwhile."""

    def __init__(self, path: str, *, limit: int = LONGEST_LOG, is_over: bool = False) -> None:
        """Open it, or make it.

        Args:
            path: Of the file.
            limit: Bytes that are kept; the job goes on when it writes more, and the last line says so.
            is_over: Whether it is there, and nothing is added any more; it is opened once somebody reads it, and
                has nothing in it if it cannot be.

        Raises:
            OSError: It cannot be made.
        """
        self._path = path
        self._file: int | None = None
        self._limit = limit
        self._size = 0
        if not is_over:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            self._size = os.fstat(self._file).st_size
        self._lost = 0
        self._trouble = ""
        self._is_over = is_over
        self._is_closed = False
        self._news = anyio.Event()

    async def write(self, data: bytes) -> None:
        """Add to it, as far as there is room: what a job writes is no reason to end it."""
        kept = data[: max(0, self._limit - self._size)]
        self._lost += len(data) - len(kept)
        self._add(kept)
        await checkpoint()

    def end(self) -> None:
        """Add nothing any more."""
        if self._lost:
            why = self._trouble or f"a log is kept up to {self._limit >> 20} MiB"
            self._add(f"\n[{self._lost} bytes of this log were not kept: {why}]\n".encode())
        self._is_over = True
        self._news.set()

    async def follow(self, offset: int) -> AsyncGenerator[bytes, None]:
        """What is in it from a byte on, in pieces, until it is over."""
        while not self._is_closed:
            if piece := self._read(offset):
                offset += len(piece)
                yield piece
            elif self._is_over:
                return
            else:
                await self._news.wait()

    def close(self) -> None:
        """Let go of the file; whoever follows it has all that there will be."""
        self._is_closed = self._is_over = True
        if self._file is not None:
            os.close(self._file)
            self._file = None
        self._news.set()

    def _read(self, offset: int) -> bytes:
        if self._file is None:
            self._file = _opened(self._path)
        return os.pread(self._file, _PIECE, offset) if self._file is not None and offset <= _FARTHEST else b""

    def _add(self, data: bytes) -> None:
        rest = memoryview(data)
        try:
            while rest and self._file is not None:
                written = os.write(self._file, rest)
                self._size += written
                rest = rest[written:]
        except OSError as error:
            self._trouble = error.strerror or str(error)
            self._lost += len(rest)
        if not self._is_over:
            self._news.set()
            self._news = anyio.Event()


def _opened(path: str) -> int | None:
    """Open a file that is there, if it is one."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    if stat.S_ISREG(os.fstat(file).st_mode):
        return file
    os.close(file)
    return None
