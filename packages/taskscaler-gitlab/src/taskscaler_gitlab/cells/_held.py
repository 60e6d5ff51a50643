"""A request for a job, which a cell may hold for a minute, on a connection of its own.

Who stops listening to a cell that is handing out a job loses that job. So a request is given up by closing only our
direction: the cell sees that nobody wants an answer any more, and one that is on its way is read all the same. HTTP
clients have no such thing, and thousands of these requests are open at a time: until something comes, one is a socket.
"""

import errno
import os
import socket
import ssl
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import anyio
import h11
from anyio.abc import ByteStream
from anyio.streams.tls import TLSStream
from attrs import define, field, frozen

from fleeting.plugins import one_line
from fleeting.runtime import PulledStream
from taskscaler_gitlab.cells._route import PARTING

CONNECT = 15.0
"""Seconds until a cell has taken a connection, and agreed on TLS."""

NEXT = 2.0
"""Seconds until the next of a cell's addresses is tried, as long as there is one: some hosts have one of IPv6 that
nobody reaches."""

LONGEST = 100.0
"""Seconds that a cell may hold a request: GitLab does for 50 by default."""

MOST_ANSWER = 64 << 20
"""Bytes of an answer, which may be a job: as many as a `taskscaler-gitlab` takes of one."""

_PIECE = 65536


class CellAway(Exception):
    """A cell did not answer, or not with an answer."""


class AnswerTooLong(CellAway):
    """An answer has more bytes than are read: whose job it may be, nobody will know."""


@frozen
class Origin:
    """Where a cell is."""

    host: str
    port: int
    path: str
    """What all its paths begin with, without a slash at the end."""

    tls: ssl.SSLContext | None

    @property
    def authority(self) -> str:
        """What the header ``Host`` says."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (80 if self.tls is None else 443) else f"{host}:{self.port}"


@frozen
class Answer:
    """What a cell has answered."""

    status: int
    headers: Mapping[str, str]
    """By their names in lower case."""

    body: bytes = field(repr=False)


@define(eq=False)
class Held:
    """One request; `ask` once."""

    _origin: Origin
    _scope: anyio.CancelScope = field(factory=anyio.CancelScope, init=False)
    _socket: socket.socket | None = field(default=None, init=False)
    _is_sent: bool = field(default=False, init=False)
    is_hung_up: bool = field(default=False, init=False)
    """Whether nobody wants its answer any more."""

    async def ask(self, path: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """Make the request, and wait for its answer.

        Raises:
            CellAway: There is none; or it was hung up on, and none was on its way.
            AnswerTooLong: It has more than `MOST_ANSWER` bytes.
        """
        answer: Answer | None = None
        with self._scope:
            self._scope.deadline = min(self._scope.deadline, anyio.current_time() + LONGEST)
            try:
                answer = await self._ask(path, headers, body)
            except (OSError, ssl.SSLError, anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
                raise CellAway(f"{self._origin.host}: {one_line(str(error)) or 'the connection ended'}") from error
            except (anyio.EndOfStream, h11.ProtocolError) as error:
                raise CellAway(f"{self._origin.host}: the connection ended without an answer") from error
        if answer is None:
            raise CellAway(f"{self._origin.host}: no answer in time")
        return answer

    def hang_up(self) -> None:
        """Say that no answer is wanted; `ask` returns one that is on its way even so."""
        self.is_hung_up = True
        if not self._is_sent or self._socket is None:
            self._scope.cancel()
            return
        with suppress(OSError):  # the cell has gone, or the answer is here
            self._socket.shutdown(socket.SHUT_WR)
        self._scope.deadline = min(self._scope.deadline, anyio.current_time() + PARTING)

    async def _ask(self, path: str, headers: Mapping[str, str], body: bytes) -> Answer:
        stream = await self._connect()
        try:
            await stream.send(_head(self._origin, path, headers, len(body)) + body)
            self._is_sent = True
            first = await stream.receive(_PIECE)
            return await _read(stream, first)
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.aclose_forcefully(stream)

    async def _connect(self) -> ByteStream:
        try:
            with anyio.fail_after(CONNECT):
                self._socket = await connected(self._origin.host, self._origin.port)
                stream: ByteStream = PulledStream(self._socket)
                if self._origin.tls is None:
                    return stream
                try:
                    return await TLSStream.wrap(
                        stream, hostname=self._origin.host, ssl_context=self._origin.tls, standard_compatible=False
                    )
                except BaseException:
                    self._socket.close()
                    raise
        except TimeoutError:
            raise OSError(errno.ETIMEDOUT, "it takes no connection") from None


async def connected(host: str, port: int) -> socket.socket:
    """Connect to the first of a host's addresses that takes it.

    Raises:
        OSError: None does.
    """
    found = await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    last: OSError | None = None
    for place, (family, kind, protocol, _, address) in enumerate(found, start=1):
        made = socket.socket(family, kind, protocol)
        try:
            made.setblocking(False)
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if made.connect_ex(address) not in (0, errno.EINPROGRESS):
                raise OSError(errno.EHOSTUNREACH, "it cannot be reached")
            with anyio.move_on_after(NEXT if place < len(found) else None) as waiting:
                await anyio.wait_writable(made)
            if waiting.cancelled_caught:
                raise OSError(errno.ETIMEDOUT, "it takes no connection")
            if code := made.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                raise OSError(code, os.strerror(code))
        except OSError as error:
            made.close()
            last = error
        except BaseException:
            made.close()
            raise
        else:
            return made
    raise last or OSError(errno.EHOSTUNREACH, "it has no address")


def _head(origin: Origin, path: str, headers: Mapping[str, str], length: int) -> bytes:
    lines = {"Host": origin.authority, **headers, "Content-Length": str(length), "Connection": "close"}
    head = f"POST {origin.path}{path} HTTP/1.1\r\n" + "".join(f"{key}: {value}\r\n" for key, value in lines.items())
    return head.encode("latin-1") + b"\r\n"


async def _read(stream: ByteStream, first: bytes) -> Answer:
    """Read an answer of which the beginning is here."""
    parser = h11.Connection(h11.CLIENT)
    parser.send(h11.Request(method="POST", target="/", headers=[("Host", "cell"), ("Content-Length", "0")]))
    parser.send(h11.EndOfMessage())
    parser.receive_data(first)
    status, headers, body = 0, {}, bytearray()
    while True:
        event: Any = parser.next_event()
        if event is h11.NEED_DATA:
            try:
                parser.receive_data(await stream.receive(_PIECE))
            except anyio.EndOfStream:
                parser.receive_data(b"")
        elif isinstance(event, h11.Response):
            status = event.status_code
            headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in event.headers}
        elif isinstance(event, h11.Data):
            body += event.data
            if len(body) > MOST_ANSWER:
                raise AnswerTooLong(f"the answer has more than {MOST_ANSWER} bytes")
        elif isinstance(event, (h11.EndOfMessage, h11.ConnectionClosed)):
            if not status:
                raise anyio.EndOfStream
            return Answer(status, headers, bytes(body))
