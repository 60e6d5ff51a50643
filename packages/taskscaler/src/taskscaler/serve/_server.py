"""HTTP on the daemon's socket, with a bound for everything a client may do to it.

anycorn speaks HTTP, on asyncio and trio alike. Its own `serve` accepts by itself, and neither says which user has
connected nor bounds how many do; so the listener is ours, and each connection is given to anycorn's `TCPServer`.
"""

import errno
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

import anyio
from anycorn.app_wrappers import ASGIWrapper
from anycorn.config import Config
from anycorn.events import Event, Updated
from anycorn.tcp_server import TCPServer
from anycorn.typing import ConnectionState
from anycorn.worker_context import WorkerContext
from anyio.abc import ByteStream, SocketAttribute, SocketListener, SocketStream
from attrs import define, field

from taskscaler._errors import DaemonRefused
from taskscaler._wire import error_as_data
from taskscaler.serve._peers import Peer, peer_of

MOST_CONNECTIONS = 8192
"""At a time: each client has one that stays open, and one for each slot that it waits for."""

LONGEST_HEAD = 16 * 1024
"""Bytes of a request's first line and headers."""

IDLE = 15
"""Seconds until a connection has sent a request's head, from when it was made or its last request was answered."""

SEND_TIMEOUT = 10.0
"""Seconds that a client may take to read what it is sent; then its connection is closed."""

MOST_REFUSED = 64
"""Connections too many that are told so at a time; further ones are closed."""

HEARING = 1.0
"""Seconds for which a connection that is too much is still listened to, so that it can read why."""

BREATH = 0.1
"""Seconds until the next try to accept where the system has no file descriptors left."""


def written(status: int, why: str) -> bytes:
    """Write a refusal as it goes over the wire, where nothing else speaks HTTP."""
    body = json.dumps({"error": error_as_data(DaemonRefused(why))}).encode()
    head = f"HTTP/1.1 {status} Refused\r\nconnection: close\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


_FULL = written(503, "too many connections; wait")

log = logging.getLogger("taskscaler.serve")


@define(eq=False)
class _Patient(ByteStream):
    """A connection whose other end may not take for ever to read."""

    _stream: ByteStream

    async def receive(self, max_bytes: int = 65536) -> bytes:
        """Receive, for as long as it takes: anycorn sees to who is idle."""
        return await self._stream.receive(max_bytes)

    async def send(self, item: bytes) -> None:
        """Send within the bound.

        Raises:
            anyio.BrokenResourceError: The other end does not read.
        """
        with anyio.move_on_after(SEND_TIMEOUT):
            await self._stream.send(item)
            return
        await anyio.aclose_forcefully(self._stream)  # also for who waits to receive: nothing would ever end that
        raise anyio.BrokenResourceError

    async def send_eof(self) -> None:
        """Say that nothing more comes."""
        await self._stream.send_eof()

    async def aclose(self) -> None:
        """Close it."""
        await self._stream.aclose()

    @property
    def extra_attributes(self) -> Mapping[Any, Callable[[], Any]]:
        """Give those of the socket."""
        return self._stream.extra_attributes


class _Connection(TCPServer):
    """One connection, which is over once the other end has hung up and nothing is being answered.

    anycorn's own goes on waiting for the next request, which cannot come any more.
    """

    _has_hung_up = False

    async def _read_data(self) -> None:
        await super()._read_data()
        self._has_hung_up = True
        await self.idle_task.stop()

    async def protocol_send(self, event: Event) -> None:
        """Do what the protocol wants, but wait for nothing more."""
        if not (self._has_hung_up and isinstance(event, Updated)):
            await super().protocol_send(event)


async def hear_out(stream: ByteStream) -> None:
    """Read what is still sent: who is hung up on meanwhile may never read the answer."""
    while True:
        await stream.receive()


async def _as_connected(stream: SocketStream) -> tuple[ByteStream, Peer]:
    """Take a connection on a Unix socket as it is: the kernel says whose it is."""
    return stream, peer_of(stream.extra(SocketAttribute.raw_socket))


@define(eq=False)
class Server:
    """Answers what comes in on a listener."""

    app: Any
    """The ASGI application; finds the `Peer` in the state of each request, as ``peer``."""

    most: int = MOST_CONNECTIONS
    admit: Callable[[SocketStream], Awaitable[tuple[ByteStream, Peer]]] = _as_connected
    """Says what to speak over, and with whom; may take its time, within bounds of its own."""

    _refused: int = field(default=0, init=False)
    """How many connections too many are being told so."""

    _open: dict[SocketStream, anyio.CancelScope] = field(factory=dict, init=False)
    _accepting: anyio.CancelScope = field(factory=anyio.CancelScope, init=False)
    _closed: anyio.Event = field(factory=anyio.Event, init=False)
    """Set when one more is closed."""

    _context: WorkerContext = field(init=False)
    _config: Config = field(init=False)

    def __attrs_post_init__(self) -> None:
        """Set anycorn's bounds."""
        self._context = WorkerContext(None)
        self._config = config = Config()
        config.errorlog = config.accesslog = None
        config.h11_max_incomplete_size = LONGEST_HEAD
        config.keep_alive_timeout = IDLE
        config.include_server_header = False

    async def serve(self, listener: SocketListener) -> None:
        """Answer until it is closed."""
        async with anyio.create_task_group() as connections:
            with self._accepting:
                while True:
                    try:
                        stream = await listener.accept()
                    except OSError as error:
                        if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                            raise
                        log.warning("cannot_accept", extra={"error": str(error)})
                        await anyio.sleep(BREATH)
                    else:
                        connections.start_soon(self._attend, stream)

    async def close(self) -> None:
        """Close all connections: what is being sent is cut short, who waits for an answer sees the end."""
        self._accepting.cancel()  # first: who is cut off comes back at once
        await self._context.terminated.set()
        await anyio.sleep(BREATH)  # who has hung up by now is seen to have
        for scope in self._open.values():
            scope.cancel()
        with anyio.move_on_after(SEND_TIMEOUT):
            while self._open:
                self._closed = anyio.Event()
                await self._closed.wait()

    async def _attend(self, stream: SocketStream) -> None:
        """Serve one connection; whatever goes wrong with it ends nothing else."""
        try:
            if len(self._open) < self.most:
                with anyio.CancelScope() as self._open[stream]:
                    await self._talk(stream)
            elif self._refused < MOST_REFUSED:
                await self._refuse(stream)
        except Exception as error:
            log.debug("connection_failed", exc_info=error)
        finally:
            self._open.pop(stream, None)
            self._closed.set()
            with anyio.CancelScope(shield=True):
                await anyio.aclose_forcefully(stream)

    async def _refuse(self, stream: SocketStream) -> None:
        """Say that there are too many; closed with something unread, the connection would lose the answer."""
        self._refused += 1
        try:
            with anyio.move_on_after(HEARING):
                admitted, _ = await self.admit(stream)
                await _Patient(admitted).send(_FULL)
                with suppress(NotImplementedError):  # TLS has no such thing
                    await admitted.send_eof()
                await hear_out(admitted)
        finally:
            self._refused -= 1

    async def _talk(self, stream: SocketStream) -> None:
        admitted, peer = await self.admit(stream)
        patient: Any = _Patient(admitted)  # of the socket, anycorn uses no more than this has
        state = ConnectionState({"peer": peer})
        await _Connection(ASGIWrapper(self.app), self._config, self._context, state, patient).run()
