"""Clients that take their time, in virtual time: whose heads and bodies do not come, who do not read, who are many."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
import trustme
from attrs import evolve

from fleeting.testing import FakeCloud, virtual_time
from taskscaler.serve._app import BODY_TIMEOUT
from taskscaler.serve._hang_up import unless_gone
from taskscaler.serve._server import IDLE, SEND_TIMEOUT, Server
from taskscaler.serve._tcp import HANDSHAKE, Listen
from tests.taskscaler.daemons import client, daemon

pytestmark = pytest.mark.anyio
anyio_backend = virtual_time


async def test_a_head_that_comes_byte_by_byte_is_not_waited_for(tmp_path: Path) -> None:
    """The connection is closed when the bound has passed, however busy it looks; others are served meanwhile."""
    path, cloud = tmp_path / "s.sock", FakeCloud()
    async with daemon(path, cloud), await anyio.connect_unix(path) as slow, client(path, cloud) as scaler:
        began = anyio.current_time()
        with pytest.raises((anyio.BrokenResourceError, anyio.EndOfStream)):
            for byte in b"GET /v1/status HTTP/1.1\r\n" + b"x-long: y\r\n" * 100:
                await slow.send(bytes([byte]))
                await anyio.sleep(1)
                await scaler.capacity()
        assert anyio.current_time() - began < 2 * IDLE


@pytest.fixture
def listen(tmp_path: Path) -> Listen:
    """Where to listen over TCP."""
    (tmp_path / "token").write_text("t" * 40)
    return Listen(host="127.0.0.1", port=0, token=tmp_path / "token")


async def test_a_head_over_tcp_that_comes_byte_by_byte_is_not_waited_for(tmp_path: Path, listen: Listen) -> None:
    """Whether or not the token is in it already; the socket's clients are served meanwhile."""
    path, cloud = tmp_path / "s.sock", FakeCloud()
    for begun in (b"GET /v1/status HTTP/1.1\r\n", b"GET / HTTP/1.1\r\nauthorization: Bearer " + b"t" * 40 + b"\r\n"):
        async with (
            daemon(path, cloud, tcp=listen) as fleet,
            await anyio.connect_tcp("127.0.0.1", fleet.port) as slow,
            client(path, cloud) as scaler,
        ):
            began = anyio.current_time()
            with pytest.raises((anyio.BrokenResourceError, anyio.EndOfStream)):
                for byte in begun + b"x-long: y\r\n" * 100:
                    await slow.send(bytes([byte]))
                    await anyio.sleep(1)
                    await scaler.capacity()
            assert anyio.current_time() - began < 2 * IDLE


async def test_a_handshake_that_does_not_come_is_not_waited_for(tmp_path: Path, listen: Listen) -> None:
    """Neither one of which nothing comes nor one that has begun."""
    trustme.CA().issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "tls.pem"))
    listen = evolve(listen, certificate=tmp_path / "tls.pem")
    async with daemon(tmp_path / "s.sock", FakeCloud(), tcp=listen) as fleet:
        for begun in (b"", b"\x16", b"\x16\x03\x01\x02\x00\x01"):
            async with await anyio.connect_tcp("127.0.0.1", fleet.port) as slow:
                began = anyio.current_time()
                if begun:
                    await slow.send(begun)
                with pytest.raises((anyio.BrokenResourceError, anyio.EndOfStream)):
                    await slow.receive()
                assert HANDSHAKE <= anyio.current_time() - began < HANDSHAKE + 1


async def test_a_body_that_does_not_come_is_not_waited_for(tmp_path: Path) -> None:
    """The request is refused."""
    path = tmp_path / "s.sock"
    head = b"POST /v1/client HTTP/1.1\r\nhost: localhost\r\ntaskscaler-client: %s\r\ncontent-length: 100\r\n\r\n{"
    async with daemon(path, FakeCloud()), await anyio.connect_unix(path) as slow:
        began = anyio.current_time()
        await slow.send(head % (b"a" * 32))
        assert b" 408 " in await slow.receive()
        assert BODY_TIMEOUT <= anyio.current_time() - began < BODY_TIMEOUT + 1


@asynccontextmanager
async def served(path: Path, app: Any, **bounds: Any) -> AsyncIterator[None]:  # noqa: ANN401  (of the server)
    """A server of that application on a socket."""
    async with await anyio.create_unix_listener(path) as listener, anyio.create_task_group() as tasks:
        server = Server(app, **bounds)
        tasks.start_soon(server.serve, listener)
        yield
        await server.close()


async def answer(path: Path) -> bytes:
    """What a client gets that asks once."""
    async with await anyio.connect_unix(path) as stream:
        await stream.send(b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        return b"".join([piece async for piece in stream])


async def greets(_: Any, __: Any, send: Any) -> None:  # noqa: ANN401  (ASGI)
    """Answer anything with a word."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"5")]})
    await send({"type": "http.response.body", "body": b"hello"})


async def test_a_connection_too_many_is_told_so(tmp_path: Path) -> None:
    """In an answer that every client understands; once another has gone, there is room again."""
    path = tmp_path / "s.sock"
    async with served(path, greets, most=1):
        async with await anyio.connect_unix(path):
            await anyio.wait_all_tasks_blocked()
            head, _, body = (await answer(path)).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 503 ")
            assert json.loads(body)["error"]["message"] == "too many connections; wait"
        await anyio.sleep(1)
        assert (await answer(path)).endswith(b"hello")


async def test_who_does_not_read_is_hung_up_on(tmp_path: Path) -> None:
    """Within the bound, so that nothing piles up behind; who reads is served meanwhile."""
    path, ended = tmp_path / "s.sock", anyio.Event()

    async def tells(scope: Any, receive: Any, send: Any) -> None:  # noqa: ANN401  (ASGI)
        if scope["path"] == "/":
            await greets(scope, receive, send)
            return

        async def pour() -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            while True:
                await send({"type": "http.response.body", "body": bytes(1 << 16), "more_body": True})

        try:
            await unless_gone(receive, pour)
        finally:
            ended.set()

    async with served(path, tells), await anyio.connect_unix(path) as deaf:
        await deaf.send(b"GET /events HTTP/1.1\r\nhost: localhost\r\n\r\n")
        began = anyio.current_time()
        await anyio.sleep(SEND_TIMEOUT / 2)
        assert not ended.is_set()
        assert (await answer(path)).endswith(b"hello")
        with anyio.fail_after(SEND_TIMEOUT):
            await ended.wait()
            with pytest.raises(anyio.EndOfStream):
                while True:
                    await deaf.receive()
        assert anyio.current_time() - began < SEND_TIMEOUT + 1


async def test_who_has_hung_up_takes_no_place(tmp_path: Path) -> None:
    """Whether nothing was asked, or everything was answered: there is room for the next one at once."""
    path = tmp_path / "s.sock"
    async with served(path, greets, most=1):
        for _ in range(3):
            async with await anyio.connect_unix(path) as idle:
                await anyio.wait_all_tasks_blocked()
                await idle.aclose()
            await anyio.sleep(1)
            async with await anyio.connect_unix(path) as stream:
                await stream.send(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
                assert b" 200 " in await stream.receive()
            await anyio.sleep(1)
