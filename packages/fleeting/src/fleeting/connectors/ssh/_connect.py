"""Opening the socket under a connection: straight to the host, or over another connection."""

import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TypeVar

import anyio
from anyio.abc import ByteStream, TaskGroup

from fleeting._errors import Unreachable
from fleeting._protocols import Connection

T = TypeVar("T")

CONNECT_TIMEOUT = 10.0
"""Seconds for one address: a host that boots may not even refuse."""


async def connect(host: str, port: int) -> socket.socket:
    """Connect to the first of the host's addresses that answers.

    Raises:
        OSError: None does.
    """
    last = OSError(f"{host} has no address")
    for family, kind, protocol, _, address in await _addresses(host, port):
        try:
            with anyio.fail_after(CONNECT_TIMEOUT):
                return await _connect_to(socket.socket(family, kind, protocol), address)
        except TimeoutError:
            last = OSError("it does not answer")
        except OSError as error:
            last = error
    raise last


async def _addresses(host: str, port: int) -> Sequence[tuple[int, int, int, str, object]]:
    try:
        return await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except ValueError as error:  # beyond ASCII and no host's name either, or with a NUL in it
        raise OSError(f"{host!r} is not a host name") from error


async def _connect_to(sock: socket.socket, address: object) -> socket.socket:
    try:
        sock.setblocking(False)
        with suppress(BlockingIOError):
            sock.connect(address)  # type: ignore[arg-type]  # whatever getaddrinfo gave
        await anyio.wait_writable(sock)
        if number := sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            raise OSError(number, os.strerror(number))
    except BaseException:
        sock.close()
        raise
    return sock


class Jump:
    """Connects over another connection: a socket pair, whose other end is moved through a tunnel."""

    def __init__(self, over: Connection, tasks: TaskGroup) -> None:
        """Open tunnels in *over*; *tasks* move the data."""
        self._over = over
        self._tasks = tasks

    async def __call__(self, host: str, port: int) -> socket.socket:
        """See `connect`."""
        tunnel = await self._over.open_tcp(host, port)
        ours, theirs = socket.socketpair()
        self._tasks.start_soon(_join, tunnel, theirs)
        return ours


@asynccontextmanager
async def jump(over: Connection) -> AsyncIterator[Jump]:
    """Connect over *over* for as long as the context is open; what is raised within comes out as it is."""
    try:
        async with anyio.create_task_group() as tasks:
            yield Jump(over, tasks)
            tasks.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None


async def while_alive(over: Connection, make: Callable[[], Awaitable[T]]) -> T:
    """Make something over *over*, for as long as that lives: whoever tries again would do so in vain.

    Raises:
        Unreachable: It died; and whatever *make* raises.
    """
    made: list[T] = []
    why = ""

    async def watch() -> None:
        nonlocal why
        why = await over.wait_closed()
        tasks.cancel_scope.cancel()

    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch)
            made.append(await make())
            tasks.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None
    if not made:
        raise Unreachable(f"the connection to it is dead: {why}")
    return made[0]


async def _join(tunnel: ByteStream, sock: socket.socket) -> None:
    """Move data both ways until either side ends."""
    sock.setblocking(False)
    async with tunnel, anyio.create_task_group() as tasks:
        with sock:
            tasks.start_soon(_up, tunnel, sock, tasks.cancel_scope)
            with suppress(anyio.EndOfStream, anyio.BrokenResourceError, OSError):
                while True:
                    await _send(sock, await tunnel.receive())
            tasks.cancel_scope.cancel()


async def _up(tunnel: ByteStream, sock: socket.socket, scope: anyio.CancelScope) -> None:
    with suppress(anyio.BrokenResourceError, OSError):
        while data := await _receive(sock):
            await tunnel.send(data)
    scope.cancel()


async def _receive(sock: socket.socket) -> bytes:
    await anyio.wait_readable(sock)
    return sock.recv(1 << 16)


async def _send(sock: socket.socket, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        await anyio.wait_writable(sock)
        rest = rest[sock.send(rest) :]
