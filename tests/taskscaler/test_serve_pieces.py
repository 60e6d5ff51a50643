"""Bodies as the server gives them to its app: in pieces as large as what has come, no faster than they are taken."""

import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import TypeAlias, cast

import anyio
import pytest
from anyio import to_thread
from anyio.abc import SocketAttribute, SocketListener, SocketStream
from anyio.lowlevel import checkpoint
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from taskscaler.serve._peers import Peer
from taskscaler.serve._server import Server

pytestmark = pytest.mark.anyio

UNDER_WAY = 16 << 20
"""Bytes that kernels and buffers hold at most between two ends of a connection."""

HEAD = b"POST / HTTP/1.1\r\nHost: us\r\nTransfer-Encoding: chunked\r\n\r\n"
CHUNK = b"8000\r\n" + bytes(0x8000) + b"\r\n"
END = b"0\r\n\r\n"

_App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]


async def anybody(stream: object) -> tuple[SocketStream, Peer]:
    """Let everybody in."""
    return cast("SocketStream", stream), Peer(0)


@asynccontextmanager
async def connected(app: _App) -> AsyncIterator[socket.socket]:
    """Serve an app over TCP for one client, whose first words are there already when it is accepted."""
    made = await anyio.create_tcp_listener(local_host="127.0.0.1")
    async with made, anyio.create_task_group() as tasks:
        (listener,) = made.listeners
        place = "127.0.0.1", listener.extra(SocketAttribute.local_port)
        with socket.create_connection(place) as client:
            client.sendall(HEAD + CHUNK)
            tasks.start_soon(Server(app, admit=anybody).serve, cast("SocketListener", listener))
            yield client
        tasks.cancel_scope.cancel()


async def answer(client: socket.socket) -> bytes:
    """Receive what an app has answered; empty: the connection has ended instead."""

    def receive() -> bytes:
        got = b""
        with suppress(ConnectionError):
            while not got.endswith(b"all") and (piece := client.recv(1 << 16)):
                got += piece
        return got

    return await to_thread.run_sync(receive)


async def test_a_body_comes_no_faster_than_it_is_taken() -> None:
    """A client that sends faster than the app takes is held up: its bytes wait with the kernel, not with us."""
    sent = received = ahead = 0
    over = anyio.Event()

    async def slow(scope: Scope, receive: Receive, _: Send) -> None:
        nonlocal received, ahead
        async for piece in Request(scope, receive).stream():
            received += len(piece)
            for _turn in range(20):
                await checkpoint()
            ahead = max(ahead, sent - received)
        over.set()

    def flood() -> None:
        nonlocal sent
        for _ in range(64):
            client.sendall(CHUNK * 32)
            sent += 1 << 20
        client.sendall(END)

    async with connected(slow) as client:
        await to_thread.run_sync(flood)
        await over.wait()
    assert received == (64 << 20) + 0x8000
    assert ahead < UNDER_WAY


async def test_what_came_in_many_chunks_is_one_piece() -> None:
    """What an app does for each piece, it does once for all that has come."""
    pieces: list[int] = []

    async def count(scope: Scope, receive: Receive, send: Send) -> None:
        pieces.extend([len(piece) async for piece in Request(scope, receive).stream() if piece])
        await PlainTextResponse("all")(scope, receive, send)

    async with connected(count) as client:
        client.sendall(CHUNK * 31 + END)
        assert (await answer(client)).endswith(b"all")
    assert sum(pieces) == 32 * 0x8000
    assert len(pieces) < 16


@pytest.mark.parametrize("chunks", [0, 1, 2, 30])
async def test_a_call_after_one_whose_body_nobody_took_is_answered(chunks: int) -> None:
    """Over the same connection, or over the next if what is left of a body stands in the way; never a wrong answer."""
    calls = 0

    async def hasty(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal calls
        calls += 1
        await PlainTextResponse(f"call {calls}, that is all")(scope, receive, send)

    async with connected(hasty) as client:
        with suppress(ConnectionError):
            client.sendall(CHUNK * chunks + END)
        assert b"call 1" in await answer(client)
        with suppress(ConnectionError):
            client.sendall(b"GET / HTTP/1.1\r\nHost: us\r\n\r\n")
        got = await answer(client)
    assert not got or b"call 2" in got
