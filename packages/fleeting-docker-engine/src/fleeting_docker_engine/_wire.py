"""One HTTP/1.1 connection over a byte stream; h11 knows the protocol and does no I/O."""

from collections.abc import AsyncIterable, Sequence

import anyio
import h11
from anyio.abc import ByteStream, SocketAttribute
from anyio.lowlevel import checkpoint
from attrs import define, field

from fleeting.plugins import one_line
from fleeting_docker_engine._errors import EngineUnreachable

Body = bytes | AsyncIterable[bytes]
"""What a request carries: all of it, or in pieces as they come."""

READ = 1 << 16

SWITCHING = 101
"""HTTP's status for a switch of protocols."""

CLOSE_TIMEOUT = 5.0
"""Seconds that closing may take, when nobody waits for it any more."""

Headers = Sequence[tuple[str, str]]


@define(eq=False)
class Wire:
    """A connection to the daemon: one request after the other."""

    _stream: ByteStream
    _http: h11.Connection = field(factory=lambda: h11.Connection(h11.CLIENT), init=False)
    headers: dict[str, str] = field(factory=dict, init=False)
    """Of the last answer, by their names in lower case."""

    _early_taken: bool = field(default=False, init=False)
    """Whether what came together with the answer to a switch of protocols was received."""

    async def ask(self, method: str, target: str, headers: Headers, body: Body) -> int:
        """Send a request and wait for the head of its answer; returns the status.

        Raises:
            EngineUnreachable: The connection broke, or what came is not HTTP.
        """
        try:
            await self._send(h11.Request(method=method, target=target, headers=[*headers]))
            await self._send_body(body)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass  # a daemon that refuses what it has not read to its end answers, and closes
        event = await self._next()
        while isinstance(event, h11.InformationalResponse) and event.status_code != SWITCHING:
            event = await self._next()
        if not isinstance(event, h11.Response | h11.InformationalResponse):
            raise EngineUnreachable("the Docker daemon closed the connection instead of answering")
        self.headers = {name.decode().lower(): value.decode("latin-1") for name, value in event.headers}
        return event.status_code

    async def receive(self) -> bytes:
        """Wait for more of the answer's body; empty at its end.

        Raises:
            EngineUnreachable: The connection broke before that.
        """
        while True:
            event = await self._next()
            if isinstance(event, h11.Data):
                if event.data:
                    return bytes(event.data)
            else:
                return b""

    async def receive_raw(self) -> bytes:
        """After a switch of protocols: wait for whatever comes; empty at the end.

        Raises:
            EngineUnreachable: The connection broke.
        """
        early, _ = self._http.trailing_data
        if early and not self._early_taken:
            self._early_taken = True
            return early
        return await self._read()

    @property
    def is_reusable(self) -> bool:
        """Whether request and answer are over, and another request may follow."""
        return self._http.our_state is h11.DONE and self._http.their_state is h11.DONE

    def recycle(self) -> None:
        """Get ready for the next request."""
        self._http.start_next_cycle()

    async def aclose(self) -> None:
        """Close it, whatever is cancelled."""
        with anyio.move_on_after(CLOSE_TIMEOUT, shield=True):
            await self._stream.aclose()

    async def _send_body(self, body: Body) -> None:
        if isinstance(body, bytes):
            await self._send(h11.Data(data=body))
        else:
            async for chunk in body:
                await self._send(h11.Data(data=chunk))
        await self._send(h11.EndOfMessage())

    async def _send(self, event: h11.Event) -> None:
        if data := self._http.send(event):
            await self._stream.send(data)

    async def _next(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        await checkpoint()  # one read can bring ten thousand pieces of a byte each
        try:
            while (event := self._http.next_event()) is h11.NEED_DATA:
                self._http.receive_data(await self._read())
        except h11.RemoteProtocolError as error:
            raise EngineUnreachable(
                f"what answers is not a Docker daemon, or its answer is truncated: {one_line(str(error), 200)}"
            ) from error
        return event

    async def _read(self) -> bytes:
        try:
            return await receive_from(self._stream)
        except anyio.EndOfStream:
            return b""
        except (anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
            raise EngineUnreachable("the connection to the Docker daemon broke") from error


async def receive_from(stream: ByteStream) -> bytes:
    """Wait for the next bytes of a stream; may be cancelled, whatever it is."""
    sock = stream.extra(SocketAttribute.raw_socket, None)
    if sock is not None:
        # A receive of anyio's that is cancelled on asyncio while data arrives ends in an InvalidStateError that
        # nobody can catch (as in https://github.com/agronholm/anyio/issues/1267); waiting like this does not.
        await anyio.wait_readable(sock)
    return await stream.receive(READ)
