"""HTTP on the daemon's socket, with a bound for everything a client may do to it.

anycorn speaks HTTP, on asyncio and trio alike. Its own `serve` accepts by itself, and neither says which user has
connected nor bounds how many do; so the listener is ours, and each connection is given to anycorn's `TCPServer`.
"""

import errno
import logging
from collections.abc import Callable, Mapping
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

from taskscaler.serve._peers import Peer, peer_of

MOST_CONNECTIONS = 8192
"""At a time: each client has one that stays open, and one for each slot that it waits for."""

LONGEST_HEAD = 16 * 1024
"""Bytes of a request's first line and headers."""

IDLE = 15
"""Seconds until a connection has sent a request's head, from when it was made or its last request was answered."""

SEND_TIMEOUT = 10.0
"""Seconds that a client may take to read what it is sent; then its connection is closed."""

HEARING = 1.0
"""Seconds for which a connection that is too much is still listened to, so that it can read why."""

BREATH = 0.1
"""Seconds until the next try to accept where the system has no file descriptors left."""

_WHY_FULL = b'{"error": {"code": "TS111", "type": "DaemonRefused", "message": "too many connections; wait"}}'
_FULL = b"HTTP/1.1 503 Full\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (
    len(_WHY_FULL),
    _WHY_FULL,
)

log = logging.getLogger("taskscaler.serve")


@define(eq=False)
class _Patient(ByteStream):
    """A connection whose other end may not take for ever to read."""

    _stream: SocketStream

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


@define(eq=False)
class Server:
    """Answers what comes in on a listener."""

    app: Any
    """The ASGI application; finds the `Peer` in the state of each request, as ``peer``."""

    most: int = MOST_CONNECTIONS
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
            peer = peer_of(stream.extra(SocketAttribute.raw_socket))
            if len(self._open) >= self.most:
                await _Patient(stream).send(_FULL)
                await stream.send_eof()
                with anyio.move_on_after(HEARING):  # closed with something unread, it would lose the answer
                    while True:
                        await stream.receive()
                return
            with anyio.CancelScope() as self._open[stream]:
                await self._talk(stream, peer)
        except Exception as error:
            log.debug("connection_failed", exc_info=error)
        finally:
            self._open.pop(stream, None)
            self._closed.set()
            with anyio.CancelScope(shield=True):
                await anyio.aclose_forcefully(stream)

    async def _talk(self, stream: SocketStream, peer: Peer) -> None:
        state = ConnectionState({"peer": peer})
        patient: Any = _Patient(stream)  # of the socket, anycorn uses no more than this has
        await _Connection(ASGIWrapper(self.app), self._config, self._context, state, patient).run()
