"""What a process writes to a pipe of ours, on the way to a sink."""

import fcntl
import sys
import termios
from io import FileIO

import anyio
from anyio.lowlevel import checkpoint
from attrs import define, field

from fleeting._protocols import Sink

CHUNK = 65536
"""Bytes that a sink gets at most in one go; the pipe holds about as many again, and then the process waits."""


@define
class PipeOutput:
    """One pipe, which does not block on our side."""

    _source: FileIO
    _sink: Sink
    _left: int = field(default=sys.maxsize, init=False)
    """Bytes that may still come."""

    _waiting: "anyio.CancelScope" = field(factory=lambda: anyio.CancelScope(), init=False)  # noqa: PLW0108  (loads it)

    async def pump(self) -> None:
        """Move it until the end, holding no more than one chunk."""
        while chunk := await self._read():
            await self._sink(chunk)

    def end(self) -> None:
        """Take what is in the pipe and no more: the process has ended, though a child of its may write on."""
        size = fcntl.ioctl(self._source, termios.FIONREAD, bytes(4))
        self._left = int.from_bytes(size, sys.byteorder)
        self._waiting.cancel()

    async def _read(self) -> bytes:
        while self._left:
            await checkpoint()  # a process that is faster than its sink must not keep others from running
            chunk = self._source.read(min(CHUNK, self._left))
            if chunk is not None:
                self._left -= len(chunk)
                return chunk
            with anyio.CancelScope() as self._waiting:
                await anyio.wait_readable(self._source)
        return b""
