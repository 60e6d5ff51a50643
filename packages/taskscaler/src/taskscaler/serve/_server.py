"""HTTP on the daemon's socket, with a bound for everything a client may do to it.

anycorn speaks HTTP, on asyncio and trio alike. Its own `serve` accepts by itself, and neither says which user has
connected nor bounds how many do; so the listener is ours, and each connection is given to anycorn's `TCPServer`.
What asks the app costs the same however small a piece of a body is, so pieces are as large as what has come allows.
"""

import errno
import json
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from socket import AF_UNSPEC
from typing import Any, cast

import anyio
import h11
from anycorn.app_wrappers import ASGIWrapper
from anycorn.config import Config
from anycorn.events import Event, Updated
from anycorn.protocol.h11 import H11Protocol
from anycorn.tcp_server import TCPServer
from anycorn.typing import ConnectionState
from anycorn.worker_context import WorkerContext
from anyio.abc import ByteStream, SocketAttribute, SocketListener, SocketStream
from attrs import define, field

from fleeting.runtime import PulledStream, accept
from taskscaler._errors import DaemonRefused
from taskscaler._wire import error_as_data
from taskscaler.serve._peers import Peer, peer_of
from taskscaler.serve._shares import has_room, network_of

MOST_CONNECTIONS = 8192
"""At a time: each client has one that stays open, and one for each slot that it waits for."""

LONGEST_HEAD = 16 * 1024
"""Bytes of a request's first line and headers."""

MOST_STREAMS = 4
"""Requests at a time over one connection that speaks HTTP/2, which anycorn does as well; no client of ours does."""

IDLE = 15
"""Seconds until a connection has sent a request's head, from when it was made or its last request was answered."""

SEND_TIMEOUT = 10.0
"""Seconds that a client may take to read what it is sent; then its connection is closed."""

SENT_IN_TIME = 64 * 1024
"""Bytes of it, at most, for which it has that time."""

MOST_REFUSED = 64
"""Connections too many that are told so at a time; further ones are closed."""

PIECE = 256 * 1024
"""Bytes of a body that are read at a time, at most."""

HEARING = 1.0
"""Seconds for which a connection that is too much is still listened to, so that it can read why."""

BREATH = 0.1
"""Seconds until the next try to accept where the system has no file descriptors left."""


def written(status: int, why: str) -> bytes:
    """Write a refusal as it goes over the wire, where nothing else speaks HTTP."""
    body = json.dumps({"error": error_as_data(DaemonRefused(why))}).encode()
    head = f"HTTP/1.1 {status} Refused\r\nconnection: close\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


def connections_of(open_files: int, listeners: int) -> int:
    """Say how many connections each listener may have, of the files that may be open.

    A quarter of these is left for the logs of jobs and for the journal, whoever takes all connections.
    """
    return max(1, min(MOST_CONNECTIONS, open_files * 3 // 4 // listeners))


_FULL = (503, "too many connections; wait")

SAID = 60.0
"""Seconds between two lines of the log about addresses that have too many connections."""

log = logging.getLogger("taskscaler.serve")


@define(eq=False)
class _Patient(ByteStream):
    """A connection whose other end may not take for ever to read."""

    _stream: ByteStream
    is_in_body: Callable[[], bool] = field(default=lambda: False, init=False)
    """Whether a body comes, of which anycorn takes more at a time than it asks for."""

    async def receive(self, max_bytes: int = 65536) -> bytes:
        """Receive, for as long as it takes: anycorn sees to who is idle."""
        return await self._stream.receive(PIECE if self.is_in_body() else max_bytes)

    async def send(self, item: bytes) -> None:
        """Send within the bound.

        Raises:
            anyio.BrokenResourceError: The other end does not read.
        """
        for at in range(0, len(item), SENT_IN_TIME):
            with anyio.move_on_after(SEND_TIMEOUT) as scope:
                await self._stream.send(item[at : at + SENT_IN_TIME])
            if scope.cancelled_caught:
                await anyio.aclose_forcefully(self._stream)  # also for who waits to receive: nothing would end that
                raise anyio.BrokenResourceError

    async def send_eof(self) -> None:
        """Say that nothing more comes."""
        await self._stream.send_eof()

    async def aclose(self) -> None:
        """Close it."""
        await self._stream.aclose()

    @property
    def extra_attributes(self) -> Mapping[Any, Callable[[], Any]]:
        """Give those of the socket, if it is one."""
        return {SocketAttribute.raw_socket: _Nowhere, **self._stream.extra_attributes}


class _Nowhere:
    """What anycorn finds of the socket of a stream that is none."""

    family = AF_UNSPEC

    def getpeername(self) -> str:
        """Say who is at the other end."""
        return ""

    def getsockname(self) -> str:
        """Say who we are."""
        return ""


class _Whole(h11.Connection):
    """Gives all that has come of a body as one piece, in however many chunks: gitlab-runner sends 32 KiB in each."""

    _next: Any = None
    """What comes after the piece that was given."""

    def is_in_body(self) -> bool:
        """Say whether a body comes."""
        return self.their_state is h11.SEND_BODY

    def next_event(self) -> Any:  # noqa: ANN401  (h11's)
        """Give the next event."""
        event, self._next = self._next or super().next_event(), None
        if type(event) is not h11.Data:
            return event
        pieces = [event.data]
        while type(following := super().next_event()) is h11.Data:
            pieces.append(following.data)
        self._next = None if following is h11.NEED_DATA else following
        return h11.Data(data=b"".join(pieces)) if len(pieces) > 1 else event

    def start_next_cycle(self) -> None:
        """Forget the end of a body that was answered before it was given."""
        self._next = None
        super().start_next_cycle()


class _Connection(TCPServer):
    """One connection, which is over once the other end has hung up and nothing is being answered.

    anycorn's own goes on waiting for the next request, which cannot come any more.
    """

    stream: Any  # a `_Patient`: of the socket, anycorn uses no more than this has
    _has_hung_up = False

    async def _read_data(self) -> None:
        if isinstance(self.protocol.protocol, H11Protocol):
            whole = _Whole(h11.SERVER, max_incomplete_event_size=self.config.h11_max_incomplete_size)
            self.protocol.protocol.connection, self.stream.is_in_body = whole, whole.is_in_body
        await super()._read_data()
        self._has_hung_up = True
        await self.idle_task.stop()

    async def protocol_send(self, event: Event) -> None:
        """Do what the protocol wants, but wait for nothing more."""
        if not (self._has_hung_up and isinstance(event, Updated)):
            await super().protocol_send(event)


def client_of(stream: ByteStream) -> str:
    """Say which client has connected over TCP; all addresses of one network are one, if those are its own to choose.

    Raises:
        OSError: It has gone.
    """
    return network_of(str(stream.extra(SocketAttribute.raw_socket).getpeername()[0]))


async def hear_out(stream: ByteStream) -> None:
    """Read what is still sent: who is hung up on meanwhile may never read the answer."""
    while True:
        await stream.receive()


async def _as_connected(stream: ByteStream) -> tuple[ByteStream, Peer]:
    """Take a connection on a Unix socket as it is: the kernel says whose it is."""
    return stream, peer_of(stream.extra(SocketAttribute.raw_socket))


@define(eq=False)
class Server:
    """Answers what comes in on a listener."""

    app: Any
    """The ASGI application; finds whom it speaks with in the state of each request, as ``peer``."""

    most: int = MOST_CONNECTIONS
    """Connections that are open at a time; further ones are told so."""

    admit: Callable[[ByteStream], Awaitable[tuple[ByteStream, Peer]]] = _as_connected
    """Says what to speak over, and with which user, among whom connections are shared; may take its time, within bounds
    of its own."""

    pause: float = 0.0
    """Seconds from one connection until the next is taken."""

    oldest_gives_way: bool = False
    """Whether the oldest connection is closed for one too many, whosever they are, and not the new one refused."""

    most_per_client: int | None = None
    """Connections of these that one client may have, as `client_of` tells them apart; None: all of them."""

    refusal: Callable[[int, str], bytes] = written
    """Writes the answer to a connection too many, of a status and a reason."""

    _users: Counter[int] = field(factory=Counter, init=False)
    """How many connections each user has."""

    _clients: Counter[str] = field(factory=Counter, init=False)
    """How many connections each client has, if that is bounded."""

    _said_at: float = field(default=-SAID, init=False)
    """When a client was last named in the log that had too many."""

    _refused: int = field(default=0, init=False)
    """How many connections too many are being told so."""

    _open: dict[ByteStream, anyio.CancelScope] = field(factory=dict, init=False)
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
        config.h2_max_concurrent_streams = MOST_STREAMS
        config.include_server_header = False

    async def serve(self, listener: SocketListener) -> None:
        """Answer until it is closed."""
        async with anyio.create_task_group() as connections:
            with self._accepting:
                listening = listener.extra(SocketAttribute.raw_socket)
                while True:
                    try:
                        stream = PulledStream(await accept(listening))
                    except OSError as error:
                        if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                            raise
                        log.warning("cannot_accept", extra={"error": str(error)})
                        await anyio.sleep(BREATH)
                    else:
                        connections.start_soon(self.answer, stream)
                        if self.pause:
                            await anyio.sleep(self.pause)

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

    async def answer(self, stream: ByteStream) -> None:
        """Answer over one connection until it ends, however it has come; what goes wrong with it ends nothing else."""
        if self.oldest_gives_way and len(self._open) >= self.most:
            self._open.pop(next(iter(self._open))).cancel()
        try:
            client = "" if self.most_per_client is None else client_of(stream)
            if len(self._open) >= self.most:
                await self._refuse(stream, _FULL)
            elif self.most_per_client is not None and self._clients[client] >= self.most_per_client:
                self._say_too_many(client)
                why = f"{client} has {self.most_per_client} connections, as many as one client may; wait"
                await self._refuse(stream, (429, why))
            else:
                with self._counted(client), anyio.CancelScope() as self._open[stream]:
                    await self._talk(stream)
        except Exception as error:
            log.debug("connection_failed", exc_info=error)
        finally:
            self._open.pop(stream, None)
            self._closed.set()
            with anyio.CancelScope(shield=True):
                await anyio.aclose_forcefully(stream)

    @contextmanager
    def _counted(self, client: str) -> Iterator[None]:
        self._clients[client] += 1
        try:
            yield
        finally:
            self._clients[client] -= 1
            self._clients += Counter()  # who has none is not counted

    def _say_too_many(self, client: str) -> None:
        if (now := anyio.current_time()) >= self._said_at + SAID:
            self._said_at = now
            log.warning("client_has_too_many", extra={"client": client, "connections": self._clients[client]})

    async def _refuse(self, stream: ByteStream, why: tuple[int, str], admitted: ByteStream | None = None) -> None:
        """Say that there are too many; closed with something unread, the connection would lose the answer."""
        if self._refused >= MOST_REFUSED:
            return
        self._refused += 1
        try:
            with anyio.move_on_after(HEARING):
                admitted = admitted or (await self.admit(stream))[0]
                await _Patient(admitted).send(self.refusal(*why))
                with suppress(NotImplementedError):  # TLS has no such thing
                    await admitted.send_eof()
                await hear_out(admitted)
        finally:
            self._refused -= 1

    async def _talk(self, stream: ByteStream) -> None:
        admitted, peer = await self.admit(stream)
        if not (self.oldest_gives_way or has_room(self.most, self._users, peer)):
            self._open.pop(stream)  # it is in nobody's way while it hears why
            await self._refuse(stream, _FULL, admitted)
            return
        self._users[peer.uid] += 1
        try:
            state, patient = ConnectionState({"peer": peer}), cast("SocketStream", _Patient(admitted))
            await _Connection(ASGIWrapper(self.app), self._config, self._context, state, patient).run()
        finally:
            self._users[peer.uid] -= 1
            self._users += Counter()  # who has none is not counted
