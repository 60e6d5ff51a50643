"""The standard input and outputs, for what runs elsewhere: as they come, and no faster than they are taken."""

import os
from collections.abc import AsyncIterator
from contextlib import suppress
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


def passed_on(stream: BinaryIO) -> Sink:
    """Pass bytes on to a stream."""

    def write(chunk: bytes) -> None:
        stream.write(chunk)
        stream.flush()

    async def sink(chunk: bytes) -> None:
        try:
            await to_thread.run_sync(write, chunk)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())  # else the interpreter's last flush fails
            raise

    return sink
