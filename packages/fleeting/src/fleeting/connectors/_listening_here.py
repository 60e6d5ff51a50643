"""Ports of this host, for connectors whose instances are on it."""

import errno
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import anyio
from anyio.abc import ByteStream, SocketAttribute, SocketListener
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from attrs import define, field

from fleeting._errors import ConnectError, PortTaken, Unreachable
from fleeting._pulled import PulledStream, accept
from fleeting.connectors._listening import MOST_WAITING, PortListener, check_place

_OURS = frozenset({errno.EBADF, errno.EINVAL, errno.ENOTSOCK})
"""What is wrong with what we listen on; all else passes, once others have closed something or a network is back."""

_PAUSE = 0.1


@asynccontextmanager
async def listening_here(
    instance: str, host: str, port: int, wait_closed: Callable[[], Awaitable[str]]
) -> AsyncIterator[PortListener]:
    """Listen at a port of this host, as `ForwardsPorts.listen_tcp` says.

    Args:
        instance: Whose host it is, for messages.
        host: As there.
        port: As there.
        wait_closed: Returns why, once the connection is dead; then so is this.
    """
    check_place(host, port)
    sockets = await _listen(instance, host, port)
    arrive, arrivals = anyio.create_memory_object_stream["_Stream"](0)
    listener = _Listener(instance, sockets[0].extra(SocketAttribute.local_port), arrivals)
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.take_in, sockets, arrive, wait_closed)
            yield listener
            tasks.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        error = group.exceptions[0]
        raise error from error.__cause__
    finally:
        arrivals.close()
        with anyio.CancelScope(shield=True):
            await listener.end(sockets)


async def _listen(instance: str, host: str, port: int) -> list[SocketListener]:
    try:
        opened = await anyio.create_tcp_listener(local_host=host or None, local_port=port, backlog=MOST_WAITING)
    except (OSError, UnicodeError) as error:
        number = getattr(error, "errno", None)
        if number == errno.EADDRINUSE:
            raise PortTaken(instance, host, port) from error
        if number == errno.EACCES:
            raise ConnectError(f"{instance} lets only root listen at port {port}; ask for a port above 1023") from error
        raise ConnectError(f"{instance} cannot listen at {host} port {port}: {error}; is it its address?") from error
    return [one for one in opened.listeners if isinstance(one, SocketListener)]


@define(eq=False)
class _Listener(PortListener):
    _instance: str
    _port: int
    _arrivals: "MemoryObjectReceiveStream[_Stream]"
    _open: "set[_Stream]" = field(factory=set, init=False)
    """What was not closed yet."""

    _why_closed: str | None = field(default=None, init=False)
    """Why the connection to the instance is dead; None: it is not."""

    @property
    def port(self) -> int:
        return self._port

    async def accept(self) -> ByteStream:
        try:
            return await self._arrivals.receive()
        except anyio.EndOfStream:
            if self._why_closed is None:  # the context was left meanwhile
                raise anyio.ClosedResourceError from None
            why = f"the connection to {self._instance} ended ({self._why_closed})"
            raise Unreachable(f"{why}; nothing listens at port {self._port} any more") from None

    async def take_in(
        self,
        sockets: Sequence[SocketListener],
        arrive: "MemoryObjectSendStream[_Stream]",
        wait_closed: Callable[[], Awaitable[str]],
    ) -> None:
        """Take connections in until that to the instance is dead, and end them with it."""
        async with arrive, anyio.create_task_group() as tasks:
            for one in sockets:
                tasks.start_soon(self._take_in, one.extra(SocketAttribute.raw_socket), arrive)
            self._why_closed = await wait_closed()
            tasks.cancel_scope.cancel()
        await self.end(sockets)

    async def end(self, sockets: Sequence[SocketListener]) -> None:
        """Listen no more, and end all that is open."""
        for one in sockets:
            await one.aclose()
        for stream in list(self._open):
            await anyio.aclose_forcefully(stream)

    async def _take_in(self, listening: socket.socket, arrive: "MemoryObjectSendStream[_Stream]") -> None:
        """Take one connection at a time: those behind it wait with the kernel."""
        while True:
            stream = _Stream(await _accepted(listening), self._open)
            self._open.add(stream)
            await arrive.send(stream)


async def _accepted(listening: socket.socket) -> socket.socket:
    while True:
        try:
            return await accept(listening)
        except OSError as error:
            if error.errno in _OURS:
                raise
            await anyio.sleep(_PAUSE)


@define(eq=False)
class _Stream(PulledStream):
    """A connection, known to its listener until it is closed."""

    _open: "set[_Stream]"

    async def aclose(self) -> None:
        self._open.discard(self)
        await super().aclose()
