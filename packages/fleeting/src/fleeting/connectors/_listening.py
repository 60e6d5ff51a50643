"""Ports of an instance whose connections come to us: what every protocol's listener is, and how to ask for one."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import TYPE_CHECKING, final

import anyio

from fleeting._arguments import check
from fleeting._errors import PortTaken, Unsupported
from fleeting._protocols import Connection, ForwardsPorts

if TYPE_CHECKING:
    from anyio.abc import ByteStream

MOST_WAITING = 128
"""Connections that wait for somebody to accept them; more are turned away, as by a full backlog."""

STREAMS_AT_ONCE = 64
"""Connections that `PortListener.serve` has open at once, unless somebody says otherwise."""

_LAST_PORT = 65535
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 1.0


class PortListener(ABC):
    """A port of an instance, as `ForwardsPorts.listen_tcp` gives it; a protocol's own says how connections arrive."""

    __slots__ = ()

    @property
    @abstractmethod
    def port(self) -> int:
        """Its number, which the instance has chosen if it was asked for 0."""

    @abstractmethod
    async def accept(self) -> "ByteStream":
        """Wait for the next connection; cancelling loses none. Several may wait at once.

        Returns:
            The connection as a stream, each direction of which has its own end. It is the caller's to close.

        Raises:
            Unreachable: The connection to the instance died, and with it all of the streams.
            anyio.ClosedResourceError: The context of the listener was left.
        """

    @final
    async def serve(
        self, handler: "Callable[[ByteStream], Awaitable[object]]", *, at_once: int = STREAMS_AT_ONCE
    ) -> None:
        """Give each connection to *handler*, in a task of its own, until this is cancelled or raises.

        A connection that breaks ends its own handler. Whatever else one raises ends all of them, and is raised.

        Args:
            handler: Takes a stream, which is closed once it returns.
            at_once: Connections that are open at the same time, at most; the next ones wait.

        Raises:
            Unreachable: As `accept`.
        """
        check("at_once", at_once, int, least=1)
        room = anyio.Semaphore(at_once)

        async def handle(stream: "ByteStream") -> None:
            try:
                async with stream:
                    with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream):
                        await handler(stream)
            finally:
                room.release()

        try:
            async with anyio.create_task_group() as tasks:
                while True:
                    await room.acquire()
                    tasks.start_soon(handle, await self.accept())
        except BaseExceptionGroup as group:
            error = group.exceptions[0]
            raise error from error.__cause__


@asynccontextmanager
async def listen_tcp(
    connection: Connection, host: str, port: int, *, patience: float = 0.0
) -> AsyncIterator[PortListener]:
    """Listen at a port of an instance, as `ForwardsPorts.listen_tcp` says, if the connection can do that.

    Args:
        connection: To the instance.
        host: As there.
        port: As there.
        patience: For how many seconds to ask again for a port that is taken. The host of a connection that was lost
            holds its port until it notices.

    Raises:
        Unsupported: The connection cannot do that at all; and what `ForwardsPorts.listen_tcp` raises.
    """
    check("patience", patience, float, least=0)
    if not isinstance(connection, ForwardsPorts):
        raise Unsupported(f"{_name(connection)} cannot forward ports of an instance to here; use SSH")
    async with AsyncExitStack() as stack:
        yield await _once_free(stack, connection, host, port, patience)


async def _once_free(
    stack: AsyncExitStack, connection: ForwardsPorts, host: str, port: int, patience: float
) -> PortListener:
    deadline, pause = anyio.current_time() + patience, _FIRST_PAUSE
    while True:
        try:
            return await stack.enter_async_context(connection.listen_tcp(host, port))
        except PortTaken:
            if anyio.current_time() + pause > deadline:
                raise
        await anyio.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)


def check_place(host: str, port: int) -> None:
    """See that a port could be one, and a host's name a name.

    Raises:
        TypeError, ValueError: It could not.
    """
    check("host", host, str)
    check("port", port, int, least=0)
    if port > _LAST_PORT:
        raise ValueError(f"port: expected a number from 0 to {_LAST_PORT}, found {port}")


def _name(connection: Connection) -> str:
    return str(getattr(connection, "protocol", "") or type(connection).__name__)
