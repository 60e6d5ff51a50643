"""A request that a cell holds: what is on its way when it is given up still comes, and nothing a cell says hurts."""

import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import anyio
import pytest
import trustme
from anyio.abc import ByteStream, SocketAttribute
from anyio.streams.tls import TLSListener

from taskscaler_gitlab.cells import _held
from taskscaler_gitlab.cells._cells import cell_of
from taskscaler_gitlab.cells._held import AnswerTooLong, CellAway, Held, Origin
from taskscaler_gitlab.cells._settings import CellSettings

pytestmark = [pytest.mark.anyio]

JOB = (
    b"HTTP/1.1 201 Created\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
)
CONTEXT = tuple[ssl.SSLContext, ssl.SSLContext]


@asynccontextmanager
async def cell(answer: Callable[[ByteStream], Awaitable[None]], tls: CONTEXT | None = None) -> AsyncIterator[Origin]:
    """One that answers so."""

    async def heard(stream: ByteStream) -> None:
        async with stream:
            said = b""
            while not said.endswith(b"{}"):
                said += await stream.receive()
            assert said.startswith(b"POST /root/api/v4/jobs/request HTTP/1.1\r\nHost: 127.0.0.1:")
            await answer(stream)

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(SocketAttribute.local_port)
    async with listener, anyio.create_task_group() as tasks:
        wrapped = listener if tls is None else TLSListener(listener, tls[0], standard_compatible=False)
        tasks.start_soon(wrapped.serve, heard)
        yield Origin("127.0.0.1", port, "/root", None if tls is None else tls[1])
        tasks.cancel_scope.cancel()


@pytest.fixture(params=["plain", "tls"])
def tls(request: pytest.FixtureRequest) -> CONTEXT | None:
    """For a server and its client; None: neither."""
    if request.param == "plain":
        return None
    authority = trustme.CA()
    server, client = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), ssl.create_default_context()
    authority.issue_cert("127.0.0.1").configure_cert(server)
    authority.configure_trust(client)
    return server, client


async def ask(held: Held) -> _held.Answer:
    """Make the request."""
    return await held.ask("/api/v4/jobs/request", {"content-type": "application/json"}, b"{}")


async def test_an_answer_that_is_on_its_way_comes_though_it_was_given_up(tls: CONTEXT | None) -> None:
    """The job that the cell has handed out already is not lost; then the cell sees that nobody waits any more."""
    asked, given_up, found = anyio.Event(), anyio.Event(), list[_held.Answer]()

    async def answer(stream: ByteStream) -> None:
        asked.set()
        await given_up.wait()
        await stream.send(JOB)
        with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
            await stream.receive()

    async with cell(answer, tls) as origin, anyio.create_task_group() as tasks:
        held = Held(origin)

        async def waiting() -> None:
            found.append(await ask(held))

        tasks.start_soon(waiting)
        await asked.wait()
        held.hang_up()
        given_up.set()
    assert (found[0].status, found[0].body) == (201, b"{}")
    held.hang_up()  # when all is over, nothing happens


async def test_who_is_hung_up_on_and_says_nothing_is_left_alone() -> None:
    """Within a moment, or at once if the request was never sent."""

    async def answer(stream: ByteStream) -> None:  # noqa: ARG001  (it never does)
        await anyio.sleep_forever()

    async with cell(answer) as origin:
        held = Held(origin)
        held.hang_up()
        with pytest.raises(CellAway):
            await ask(held)


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 201 Created\r\nContent-Length: 9\r\n\r\n{",
        b"HTTP/1.1 201 " + b"x" * 200_000,
    ],
    ids=["nothing", "nonsense", "cut short", "endless"],
)
async def test_what_is_no_answer_is_none(said: bytes) -> None:
    """One line says which cell it was."""

    async def answer(stream: ByteStream) -> None:
        await stream.send(said)

    async with cell(answer) as origin:
        with pytest.raises(CellAway, match=r"^127\.0\.0\.1: "):
            await ask(Held(origin))


async def test_an_answer_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """In bytes."""
    monkeypatch.setattr(_held, "MOST_ANSWER", 100)

    async def answer(stream: ByteStream) -> None:
        await stream.send(b"HTTP/1.1 201 Created\r\nContent-Length: 101\r\n\r\n" + b"x" * 101)

    async with cell(answer) as origin:
        with pytest.raises(AnswerTooLong, match="the answer has more than 100 bytes"):
            await ask(Held(origin))


async def test_an_address_that_nobody_reaches_is_not_the_only_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a host whose IPv6 leads nowhere: packets to it are dropped, as to who has no room for a connection."""
    monkeypatch.setattr(_held, "NEXT", 0.1)

    async def answer(stream: ByteStream) -> None:
        await stream.send(JOB)

    async with cell(answer) as origin, AsyncExitStack() as stack:
        full = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(3):  # the first has room, and the kernel may have some for another
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())

        addresses = [full.getsockname(), ("127.0.0.1", origin.port)]

        async def both(*_: object, **__: object) -> object:
            return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", each) for each in addresses]

        monkeypatch.setattr(anyio, "getaddrinfo", both)
        assert (await ask(Held(origin))).status == 201


@pytest.mark.parametrize(
    "url", ["http://cell:8080", "http://cell:8080/gitlab/", "http://cell:8080/gitlab/ci", "http://[::1]/ci"]
)
def test_a_request_that_is_held_goes_where_all_others_go(url: str) -> None:
    """As addresses are written, also in older configurations of runners."""
    made = cell_of("1", CellSettings(url=url))
    origin, base = made.origin, made.client.http.base
    assert f"http://{origin.authority}{origin.path}/api/v4/" == str(base)


async def test_a_cell_that_is_not_there() -> None:
    """At a port that nobody listens at."""
    with pytest.raises(CellAway, match=r"^127\.0\.0\.1: "):
        await ask(Held(Origin("127.0.0.1", 9, "", None)))
