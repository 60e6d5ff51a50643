"""The standard input and outputs, for what runs elsewhere: as they come, and no faster than they are taken."""

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from io import FileIO
from stat import S_ISFIFO
from typing import BinaryIO

import anyio
from anyio import to_thread
from attrs import frozen

from fleeting._protocols import Sink

CHUNK = 65536
"""Bytes that are read at most in one go."""


@frozen
class Arriving:
    """What can be read from a descriptor. It stays as it is for whoever else has it: blocking, and at its place."""

    _descriptor: int

    def __aiter__(self) -> AsyncIterator[bytes]:
        """Read until the end."""
        return self

    async def __anext__(self) -> bytes:
        """Wait for more."""
        with suppress(PermissionError):  # the kernel waits for no file: there is always something to read
            await anyio.wait_readable(self._descriptor)
        if data := os.read(self._descriptor, CHUNK):
            return data
        raise StopAsyncIteration


@contextmanager
def passed_on(stream: BinaryIO) -> Iterator[Sink]:
    """Pass bytes on to a stream; where its reader takes none, that can be given up."""
    with ExitStack() as ends:
        own = _reopened(stream)
        write = partial(_write, stream) if own is None else partial(_write_as_taken, ends.enter_context(own))

        async def sink(chunk: bytes) -> None:
            try:
                await write(chunk)
            except BrokenPipeError:
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())  # else the interpreter's last flush fails
                raise

        yield sink


def _reopened(stream: BinaryIO) -> FileIO | None:
    """Open a pipe or a terminal once more, for writes that do not wait: what others have of it stays as it is."""
    flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY
    with suppress(OSError):  # also if it is no file at all
        descriptor = stream.fileno()
        if S_ISFIFO(os.fstat(descriptor).st_mode) or os.isatty(descriptor):
            return FileIO(os.open(f"/dev/fd/{descriptor}", flags), "w")
    return None


async def _write_as_taken(file: FileIO, chunk: bytes) -> None:
    rest = memoryview(chunk)
    while rest:
        await anyio.wait_writable(file)
        rest = rest[file.write(rest) or 0 :]


async def _write(stream: BinaryIO, chunk: bytes) -> None:
    def write() -> None:
        stream.write(chunk)
        stream.flush()

    await to_thread.run_sync(write)
