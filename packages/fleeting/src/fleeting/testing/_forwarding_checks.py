"""The contract of a connection whose instance listens for us, as checks beside those of `_connector_checks`.

They apply where a connection is a `ForwardsPorts`. Who connects to the port is the instance: by `open_tcp` of the same
connection, which leads to a port as seen from there. They leave nothing there.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from secrets import token_bytes
from typing import TYPE_CHECKING, Protocol

import anyio
from anyio.lowlevel import checkpoint

from fleeting._errors import PortTaken, Unreachable, Unsupported
from fleeting._protocols import Connection, ForwardsPorts
from fleeting.connectors import PortListener
from fleeting.testing._connector_checks import DialInstance, expect
from fleeting.testing._harness import Violation

if TYPE_CHECKING:
    from anyio.abc import ByteStream

ForwardingCheck = Callable[[DialInstance], Awaitable[None]]

HOST = "127.0.0.1"

_MIB = 1 << 20
_MANY = 30

_STANDSTILL = 0.5
"""Seconds without a byte after which a sender counts as held up."""

_SOON = 30.0
"""Seconds after which a stream counts as still open."""

AHEAD_AT_MOST = 48 * _MIB
"""Bytes that may be under way between both ends: a kernel lets what it has between two sockets grow to 36 MiB."""

_PIECE = 1 << 14
_TOTAL = AHEAD_AT_MOST + 8 * _MIB

_ENDS = (
    anyio.EndOfStream,
    anyio.BrokenResourceError,
    anyio.ClosedResourceError,
)
"""How a stream that was ended shows it, depending on which side looks."""


class _Forwarding(Connection, ForwardsPorts, Protocol):
    """A connection that has the capability."""


async def check_what_connects_comes_to_us(dial: DialInstance) -> None:
    """A connection to the port on the instance is a stream here, and bytes pass unchanged both ways."""
    everything = bytes(range(256)) * 4096
    async with _listening(dial) as (connection, listener):
        expect("a port that the instance chose is known", 0 < listener.port < 1 << 16, True)
        async with _pair(connection, listener) as (there, here):
            for sender, receiver in ((there, here), (here, there)):
                expect("bytes pass unchanged", await _passed(sender, receiver, everything), everything)


async def check_each_direction_has_its_own_end(dial: DialInstance) -> None:
    """Whoever has sent everything says so, and still hears the answer."""
    async with _listening(dial) as (connection, listener):
        async with _pair(connection, listener) as (there, here):
            for sender, receiver in ((there, here), (here, there)):
                await sender.send(b"all")
                await sender.send_eof()
                expect("the end of one direction is passed on", await _rest(receiver), b"all")
        async with _pair(connection, listener) as (there, here):
            await here.send_eof()
            await there.send(b"still")
            await there.send_eof()
            expect("the other direction goes on", await _rest(here), b"still")


async def check_many_streams_at_once(dial: DialInstance) -> None:
    """Each has its own bytes, and one that nobody reads holds up no other."""
    sent = {number: token_bytes(_MIB // 4) for number in range(_MANY)}
    heard: dict[int, bytes] = {}

    async def answer(stream: "ByteStream") -> None:
        await stream.send(await _rest(stream))
        await stream.send_eof()

    async with _listening(dial) as (connection, listener), AsyncExitStack() as stack:
        there, here = await stack.enter_async_context(_pair(connection, listener))

        async def ask(number: int) -> None:
            async with await connection.open_tcp(HOST, listener.port) as stream:
                await stream.send(sent[number])
                await stream.send_eof()
                heard[number] = await _rest(stream)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_flood, there)
            tasks.start_soon(partial(listener.serve, answer, at_once=_MANY))
            async with anyio.create_task_group() as asking:
                for number in range(_MANY):
                    asking.start_soon(ask, number)
            tasks.cancel_scope.cancel()
        await anyio.aclose_forcefully(here)
    expect("each stream has its own bytes", heard == sent, True)


async def check_who_is_not_read_is_held_up(dial: DialInstance) -> None:
    """Nothing piles up, in either direction: whoever sends waits for whoever does not receive, and nothing is lost."""
    async with _listening(dial) as (connection, listener), _pair(connection, listener) as (there, here):
        for sender, receiver in ((there, here), (here, there)):
            ahead, received = await _sent_ahead(sender, receiver)
            if ahead > AHEAD_AT_MOST:
                raise Violation("a stream that is not read stops its sender", f"it sent {ahead} bytes")
            expect("a slow reader gets everything", received, _TOTAL)


async def check_a_cancelled_accept_loses_nothing(dial: DialInstance) -> None:
    """Whoever waited for a connection and was cancelled has taken none away."""
    async with _listening(dial) as (connection, listener):
        for _ in range(3):
            with anyio.move_on_after(0.05):
                await listener.accept()
        async with _pair(connection, listener) as (there, here):
            await there.send(b"here")
            expect("the next accept gets the next connection", await here.receive(), b"here")


async def check_a_taken_port_is_refused(dial: DialInstance) -> None:
    """Where something listens already that is `PortTaken`, and whoever had the port keeps it."""
    async with _listening(dial) as (connection, listener):
        try:
            async with connection.listen_tcp(HOST, listener.port):
                pass
        except PortTaken as taken:
            expect("PortTaken has the port", taken.port, listener.port)
        else:
            raise Violation("a port that is taken raises PortTaken", "a second listener was opened")
        async with _pair(connection, listener) as (there, here):
            await here.send(b"mine")
            expect("the listener that has a port keeps it", await there.receive(), b"mine")


async def check_leaving_frees_the_port(dial: DialInstance) -> None:
    """Once the context was left nobody listens, streams are ended at both sides, and the port can be had again."""
    async with _forwarding(dial) as connection:
        async with connection.listen_tcp(HOST, 0) as listener:
            there, here = await _opened(connection, listener)
        port = listener.port
        try:
            async with there:
                expect("leaving ends a stream at the instance", await _ended(there), True)
            expect("leaving ends a stream here", await _ended(here), True)
            await _expect_nobody(connection, port)
            try:
                await listener.accept()
            except anyio.ClosedResourceError:
                pass
            else:
                raise Violation("accept raises ClosedResourceError after that", "it returned a stream")
            async with connection.listen_tcp(HOST, port) as again, _pair(connection, again) as (client, server):
                await client.send(b"again")
                expect("the port can be had again at once", (again.port, await server.receive()), (port, b"again"))
        finally:
            await anyio.aclose_forcefully(here)


async def check_leaving_ends_the_wait_for_a_stream(dial: DialInstance) -> None:
    """When the context is left, whoever waits for the next stream gets `ClosedResourceError`: nothing was lost."""
    errors: list[str] = []
    async with (
        _forwarding(dial) as connection,
        anyio.create_task_group() as tasks,
        connection.listen_tcp(HOST, 0) as listener,
    ):

        async def wait() -> None:
            try:
                await listener.accept()
            except (anyio.ClosedResourceError, Unreachable) as error:
                errors.append(type(error).__name__)

        tasks.start_soon(wait)
        tasks.start_soon(wait)
        for _ in range(3):
            await checkpoint()
    expect("accept raises ClosedResourceError for all who wait", errors, ["ClosedResourceError"] * 2)


async def check_the_end_of_the_connection_ends_the_listener(dial: DialInstance) -> None:
    """When the connection is gone, whoever waits for the next stream hears of it: `Unreachable`, once and for all."""
    errors: list[Unreachable] = []
    async with AsyncExitStack() as inner, AsyncExitStack() as outer:
        connection = await outer.enter_async_context(_forwarding(dial))
        listener = await inner.enter_async_context(connection.listen_tcp(HOST, 0))

        async def wait() -> None:
            try:
                await listener.accept()
            except Unreachable as error:
                errors.append(error)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            tasks.start_soon(wait)
            for _ in range(3):
                await checkpoint()
            await outer.aclose()
        await wait()
    expect("accept raises Unreachable for all who wait", len(errors), 3)
    expect("it says what listens no more", [str(error) for error in errors if str(listener.port) not in str(error)], [])


async def check_impossible_places_are_refused(dial: DialInstance) -> None:
    """A port that is none, or a host that is no string, is a mistake of the caller's, and nothing is asked."""
    async with _forwarding(dial) as connection:
        for host, port in ((HOST, -1), (HOST, 1 << 16), (HOST, "80"), (None, 80)):
            try:
                async with connection.listen_tcp(host, port):  # type: ignore[arg-type]  # which is the point
                    pass
            except (TypeError, ValueError):
                continue
            raise Violation(
                "an impossible place is a TypeError or ValueError", f"{host!r} port {port!r} is listened at"
            )


@asynccontextmanager
async def _forwarding(dial: DialInstance) -> AsyncIterator[_Forwarding]:
    """A connection, which has to have the capability."""
    async with dial() as connection:
        if not isinstance(connection, ForwardsPorts):
            raise Violation("the connection is a ForwardsPorts", f"{type(connection).__name__} has no listen_tcp")
        yield connection


@asynccontextmanager
async def _listening(dial: DialInstance) -> AsyncIterator[tuple[_Forwarding, PortListener]]:
    """A connection, and a port of its instance."""
    async with _forwarding(dial) as connection, connection.listen_tcp(HOST, 0) as listener:
        yield connection, listener


@asynccontextmanager
async def _pair(connection: Connection, listener: PortListener) -> "AsyncIterator[tuple[ByteStream, ByteStream]]":
    """Both ends of a connection to the port: the instance's, and ours."""
    there, here = await _opened(connection, listener)
    async with there, here:
        yield there, here


async def _opened(connection: Connection, listener: PortListener) -> "tuple[ByteStream, ByteStream]":
    there: list[ByteStream] = []

    async def connect() -> None:
        there.append(await connection.open_tcp(HOST, listener.port))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(connect)
        here = await listener.accept()
    return there[0], here


async def _passed(sender: "ByteStream", receiver: "ByteStream", data: bytes) -> bytes:
    got = bytearray()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(sender.send, data)
        while len(got) < len(data):
            got += await receiver.receive()
    return bytes(got)


async def _rest(stream: "ByteStream") -> bytes:
    return b"".join([chunk async for chunk in stream])


async def _flood(stream: "ByteStream") -> None:
    while True:
        await stream.send(bytes(_MIB))


async def _sent_ahead(sender: "ByteStream", receiver: "ByteStream") -> tuple[int, int]:
    """Send, and read only once nothing moves any more; returns how much had been sent by then, and the bytes read."""
    sent = received = 0

    async def send() -> None:
        nonlocal sent
        while sent < _TOTAL:
            await sender.send(bytes(_PIECE))
            sent += _PIECE

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(send)
        ahead = -1
        while ahead != sent:
            ahead = sent
            await anyio.sleep(_STANDSTILL)
        if ahead > AHEAD_AT_MOST:
            tasks.cancel_scope.cancel()  # it would wait for who reads no more
        while received < _TOTAL and ahead <= AHEAD_AT_MOST:
            received += len(await receiver.receive())
    return ahead, received


async def _ended(stream: "ByteStream") -> bool:
    """Whether nothing more comes, and that soon."""
    try:
        with anyio.move_on_after(_SOON):
            while True:
                await stream.receive()
    except _ENDS:
        return True
    return False


async def _expect_nobody(connection: Connection, port: int) -> None:
    try:
        stream = await connection.open_tcp(HOST, port)
    except (Unreachable, Unsupported):
        return
    await stream.aclose()
    raise Violation("after that nobody listens at the port", "a connection was opened")


FORWARDING_CHECKS: tuple[ForwardingCheck, ...] = (
    check_what_connects_comes_to_us,
    check_each_direction_has_its_own_end,
    check_many_streams_at_once,
    check_who_is_not_read_is_held_up,
    check_a_cancelled_accept_loses_nothing,
    check_a_taken_port_is_refused,
    check_leaving_frees_the_port,
    check_leaving_ends_the_wait_for_a_stream,
    check_the_end_of_the_connection_ends_the_listener,
    check_impossible_places_are_refused,
)
"""Every check, in the order in which the capability is best made to pass them."""
