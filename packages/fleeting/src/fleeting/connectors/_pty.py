"""A terminal of this host, one of whose ends a command on an instance of the `local` group has."""

import errno
import os
import pty as _pty
import termios
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from io import FileIO

import anyio
from anyio.lowlevel import checkpoint
from attrs import define

from fleeting._types import Completed

CHUNK = 65536
"""Bytes that are taken out at most in one go."""

_ON_TERMINAL = 'exec <>"$0" >&0 2>&0 && exec "$@"'
"""A command has no terminal that controls it until it opens one, for it is the first of a session."""


@contextmanager
def pty(columns: int, rows: int) -> Iterator[tuple[FileIO, FileIO]]:
    """Open a terminal: our end and the command's. Closing ours hangs up."""
    ours, theirs = _pty.openpty()
    with FileIO(ours, "r+") as our_end, FileIO(theirs, "r+") as their_end:
        termios.tcsetwinsize(ours, (rows, columns))
        os.set_blocking(ours, False)
        yield our_end, their_end


def on_terminal(name: str, argv: Sequence[str]) -> list[str]:
    """Write the command that opens the terminal *name*, and becomes *argv*."""
    return ["/bin/sh", "-c", _ON_TERMINAL, name, *argv]


@define(eq=False)
class LocalTerminal:
    """See `Terminal`."""

    _end: FileIO
    _outcome: Callable[[], Awaitable[Completed]]

    async def receive(self) -> bytes:
        """Wait for what it writes."""
        await checkpoint()  # who writes without end must not keep others from running
        while (data := self._read()) is None:
            await anyio.wait_readable(self._end)
        return data

    async def send(self, data: bytes) -> None:
        """Type something."""
        rest = memoryview(data)
        with suppress(OSError):  # the other end was closed
            while rest:
                await anyio.wait_writable(self._end)
                rest = rest[self._end.write(rest) or 0 :]

    async def resize(self, columns: int, rows: int) -> None:
        """Report the new size of the window."""
        await checkpoint()
        termios.tcsetwinsize(self._end.fileno(), (rows, columns))

    async def wait(self) -> Completed:
        """How the command ended."""
        return await self._outcome()

    def _read(self) -> bytes | None:
        """Take what is there; None: nothing yet."""
        try:
            return self._end.read(CHUNK)
        except OSError as error:
            if error.errno == errno.EIO:  # Linux's way to say that the other end was closed
                return b""
            raise
