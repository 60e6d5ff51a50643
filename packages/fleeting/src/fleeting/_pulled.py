"""A socket as a stream that is read when somebody receives, and not before.

What anyio accepts on asyncio is read at once, and on and on until somebody has received all of it: who sends faster
than that fills the memory. Of its Unix sockets, a wait that is cancelled as something comes has asyncio log an error.
"""

import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import anyio
from anyio.abc import ByteStream, SocketAttribute
from anyio.lowlevel import checkpoint
from attrs import define

T = TypeVar("T")


async def accept(listening: socket.socket) -> socket.socket:
    """Wait for the next connection, for a `PulledStream`; cancelling loses none.

    Raises:
        OSError: The system takes none, for now or for ever.
    """
    while True:
        await anyio.wait_readable(listening)
        try:
            accepted, _ = listening.accept()
        except (BlockingIOError, ConnectionAbortedError):
            continue  # who connected has thought better of it
        accepted.setblocking(False)
        with suppress(OSError):  # some systems refuse once the other end has gone, and Unix sockets know no delay
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return accepted


@define(eq=False)
class PulledStream(ByteStream):
    """A connected socket."""

    _socket: socket.socket

    async def receive(self, max_bytes: int = 65536) -> bytes:
        """Return the next bytes, at least one."""
        data = await self._attempt(lambda: self._socket.recv(max_bytes), anyio.wait_readable)
        if not data:
            raise anyio.EndOfStream
        return data

    async def send(self, item: bytes) -> None:
        """Send bytes; returns when the kernel has them."""
        rest = memoryview(item)
        while rest:
            rest = rest[await self._attempt(partial(self._socket.send, rest), anyio.wait_writable) :]

    async def send_eof(self) -> None:
        """Say that nothing more will be sent."""
        await checkpoint()
        with suppress(OSError):  # then there is nobody to whom it matters
            self._socket.shutdown(socket.SHUT_WR)

    async def aclose(self) -> None:
        """Close it; who waits to receive or to send learns that."""
        if self._socket.fileno() >= 0:
            anyio.notify_closing(self._socket)
            self._socket.close()
        await checkpoint()

    @property
    def extra_attributes(self) -> Mapping[Any, Callable[[], Any]]:
        """Give the socket."""
        return {SocketAttribute.raw_socket: lambda: self._socket}

    async def _attempt(self, act: Callable[[], T], ready: Callable[[socket.socket], Awaitable[None]]) -> T:
        await checkpoint()
        while True:
            try:
                return act()
            except BlockingIOError:
                await ready(self._socket)
            except OSError as error:
                raise (anyio.ClosedResourceError if self._socket.fileno() < 0 else anyio.BrokenResourceError) from error
