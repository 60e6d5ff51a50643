"""Where the relay listens: strangers there cost little, and take nothing from those who come through tunnels."""

import socket
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import cast

import anyio
import httpx
import pytest
from anyio import to_thread
from anyio.abc import ByteStream
from anyio.lowlevel import checkpoint
from attrs import define, field
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from fleeting import ConnectError, Connection
from fleeting.runtime import PulledStream
from taskscaler import TaskscalerError
from taskscaler_gitlab._settings import OwnSettings
from taskscaler_gitlab.relay import _ways
from taskscaler_gitlab.relay._ears import Ears
from taskscaler_gitlab.relay._places import places_of
from taskscaler_gitlab.relay._ways import Listening

pytestmark = pytest.mark.anyio


async def hello(_: Request) -> PlainTextResponse:
    """Answer."""
    return PlainTextResponse("hello")


APP = Starlette(routes=[Route("/", hello)])


def open_port(host: str = "127.0.0.1") -> tuple[OwnSettings, int]:
    """Settings of a relay that others can reach, and where."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    return OwnSettings(run_with="sidecar", reach="url", advertise_url=url, listen=f"{host}:{port}"), port


def answers(port: int, host: str = "127.0.0.1") -> bool:
    """Whether somebody speaks HTTP there."""
    try:
        with socket.create_connection((host, port)) as stream:
            stream.sendall(b"GET / HTTP/1.1\r\nHost: us\r\nConnection: close\r\n\r\n")
            return stream.recv(100).startswith(b"HTTP/1.1 200")
    except OSError:
        return False


async def is_answered(port: int, host: str = "127.0.0.1") -> bool:
    """The same, while we answer ourselves."""
    return await to_thread.run_sync(answers, port, host)


NOBODY = cast("Connection", None)
ALL, ALL_6 = "0.0.0.0", "[::]"  # noqa: S104  (for a moment)


@define
class Others:
    """Jobs of sidecars that were started with another `listen`."""

    over: anyio.Event = field(factory=anyio.Event)

    def at(self, *listen: str) -> dict[str, Callable[[], Awaitable[object]]]:
        """Where these report."""
        return dict.fromkeys(listen, self.wait)

    async def wait(self) -> None:
        """Wait until they are over."""
        await self.over.wait()


@pytest.mark.parametrize(
    ("now", "before"),
    [
        ("127.0.0.1", "127.0.0.1"),
        (ALL, "127.0.0.1"),
        ("127.0.0.1", ALL),
        ("localhost", "127.0.0.1"),
        ("127.0.0.1", "localhost"),
        (ALL, "localhost"),
        ("localhost", ALL),
        ("127.0.0.1", "127.0.0.2"),
    ],
)
async def test_who_reports_where_it_is_only_written_otherwise_is_heard(now: str, before: str) -> None:
    """Wider, narrower, by name, or beside it: none of our own sockets keeps us from hearing an earlier sidecar."""
    settings, port = open_port(now)
    others, listen = Others(), f"{before}:{port}"
    async with Listening(settings, others.at(listen)).serve(APP) as ways:
        async with ways.reopen(NOBODY, 0, listen) as way:
            assert (way.is_sure, way.listen) == (True, listen)
        async with ways.open(NOBODY) as way, ways.reopen(NOBODY, 0, way.listen) as again:
            assert again.is_sure
        assert await is_answered(port)
        others.over.set()
        while "127.0.0.2" in (now, before) and await is_answered(port, "127.0.0.2"):
            pass
        assert await is_answered(port)


async def test_where_nobody_reports_any_more_nobody_is_let_in(caplog: pytest.LogCaptureFixture) -> None:
    """A wider address is answered until the jobs are over that know it, then the log says once who is refused."""
    settings, port = open_port("127.0.0.1")
    others = Others()
    async with Listening(settings, others.at(f"{ALL}:{port}")).serve(APP):
        assert await is_answered(port, "127.0.0.2")
        others.over.set()
        while await is_answered(port, "127.0.0.2"):
            pass
        assert not await is_answered(port, "127.0.0.2")
        assert await is_answered(port)
    refused = [record for record in caplog.records if record.getMessage() == "nobody_expected"]
    assert [vars(record)["address"] for record in refused] == [f"127.0.0.2 port {port}"]


async def test_an_address_that_somebody_else_has_is_not_heard(caplog: pytest.LogCaptureFixture) -> None:
    """A sidecar that reports there is told from one that we may hear, and the log says why."""
    settings, _ = open_port()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        async with Listening(settings, Others().at(listen)).serve(APP) as ways:
            with pytest.raises(ConnectError, match=f"reports to {listen}, where this program cannot listen any more"):
                ways.reopen(NOBODY, 0, listen)
        (line,) = [record for record in caplog.records if record.getMessage() == "not_listening"]
        assert f"cannot listen on {listen}" in line.__dict__["error"]


async def test_a_wildcard_that_cannot_be_had_leaves_what_can() -> None:
    """Somebody else has one of the addresses: the service listens at its own, and whether it is heard is not sure."""
    settings, port = open_port()
    with socket.create_server(("127.0.0.2", port)):
        async with Listening(settings, Others().at(f"{ALL}:{port}")).serve(APP) as ways:
            assert await is_answered(port)
            async with ways.reopen(NOBODY, 0, f"{ALL}:{port}") as way:
                assert not way.is_sure


async def test_a_place_that_was_not_noted_down_is_not_sure_or_nowhere() -> None:
    """A record of an earlier release: where we listen at all, its sidecar may reach us."""
    settings, _ = open_port()
    async with Listening(settings).serve(APP) as ways, ways.reopen(NOBODY, 0, "") as way:
        assert not way.is_sure
    async with Listening(OwnSettings(run_with="sidecar")).serve(APP) as ways:
        with pytest.raises(ConnectError, match="an address where this program does not listen any more"):
            ways.reopen(NOBODY, 0, "")


@pytest.mark.parametrize("host", ["[::1]", ALL_6])
async def test_an_address_of_ipv6_is_listened_on(host: str) -> None:
    """In brackets, as URLs have it."""
    if not _has_ipv6():
        pytest.skip("this machine has no IPv6")
    settings, port = open_port(host)
    async with Listening(settings).serve(APP):
        assert await is_answered(port, "::1")
        assert not await is_answered(port)


async def test_who_comes_to_a_link_local_address_is_let_in() -> None:
    """Its interface belongs to how it is written; a connection's socket has it as a number, beside the address."""
    connected = SimpleNamespace(getsockname=lambda: ("fe80::1", 8930, 0, 2))
    stream = cast("ByteStream", SimpleNamespace(extra=lambda _: connected))
    admitted, _ = await _ways._Expected(Ears(own=places_of("[fe80::1%eth0]:8930"))).admit(stream)
    assert admitted is stream
    with pytest.raises(ConnectionRefusedError, match="nobody is expected at fe80::1 port 8930"):
        await _ways._Expected(Ears(own=places_of("[fe80::2%eth0]:8930"))).admit(stream)


def _has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


async def test_an_address_that_is_taken_is_an_error_that_names_it() -> None:
    """Where the settings say, the service has to listen."""
    settings, port = open_port()
    expected = pytest.raises(TaskscalerError, match=rf"cannot listen on 127.0.0.1:{port} .*; name another with `l")
    with socket.create_server(("127.0.0.1", port)), expected:
        async with Listening(settings).serve(APP):
            pass


async def test_strangers_are_bounded_and_others_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections beyond the bound are told so; once one is closed, there is room again."""
    monkeypatch.setattr(_ways, "MOST_STRANGERS", 3)
    settings, port = open_port()
    async with Listening(settings).serve(APP) as ways, httpx.AsyncClient() as client:
        assert ways.advertised is not None
        silent = [await anyio.connect_tcp("127.0.0.1", port) for _ in range(3)]
        async with await anyio.connect_tcp("127.0.0.1", port) as stranger:
            assert b" 503 " in await stranger.receive()
        await silent.pop().aclose()
        while (await client.get(ways.advertised.url)).text != "hello":
            await checkpoint()
        for each in silent:
            await each.aclose()


@define(eq=False)
class Channel(ByteStream):
    """A stream that is no socket, as one through SSH."""

    inner: ByteStream

    async def receive(self, max_bytes: int = 65536) -> bytes:
        """Receive what the other end sends."""
        return await self.inner.receive(max_bytes)

    async def send(self, item: bytes) -> None:
        """Send it to the other end."""
        await self.inner.send(item)

    async def send_eof(self) -> None:
        """Say that nothing more comes."""
        await self.inner.send_eof()

    async def aclose(self) -> None:
        """Close it."""
        await self.inner.aclose()


async def test_what_comes_through_a_tunnel_needs_no_socket_of_ours() -> None:
    """It is answered as it is, and what goes wrong with it ends nothing else."""
    async with Listening(OwnSettings(run_with="sidecar")).serve(APP) as ways, anyio.create_task_group() as tasks:
        for sent, status in ((b"nothing\r\n\r\n", b"400"), (b"GET / HTTP/1.1\r\nHost: us\r\n\r\n", b"200")):
            ours, theirs = socket.socketpair()
            ours.setblocking(False)
            tasks.start_soon(ways.tunnels.answer, Channel(PulledStream(ours)))
            with theirs:
                theirs.sendall(sent)
                await anyio.wait_readable(theirs)
                assert theirs.recv(100).startswith(b"HTTP/1.1 " + status)


async def test_leaving_closes_what_is_open() -> None:
    """A connection that says nothing holds nobody up, and the port is free after that."""
    settings, port = open_port()
    async with Listening(settings).serve(APP):
        silent = await anyio.connect_tcp("127.0.0.1", port)
    async with silent:
        with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
            await silent.receive()
    socket.create_server(("127.0.0.1", port)).close()
