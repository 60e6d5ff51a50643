"""The end of a connection that calls, on any stream of bytes."""

from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from math import inf
from typing import Final, Generic, TypeVar

import anyio
from anyio.abc import ByteStream
from anyio.lowlevel import checkpoint
from attrs import define, field

from job_steps._call_errors import CallFailed, ConnectionLost
from job_steps._call_status import CallStatus, Code
from job_steps._groups import beside
from job_steps._grpc import CallEnded, Caller, GrpcEvent, MessageReceived
from job_steps._grpc_driver import Driver

_T = TypeVar("_T")

KEEPALIVE: Final = 330.0
"""Seconds without a sign of life before one is asked for: servers in Go end connections that ask more than once in five
minutes."""

KEEPALIVE_TIMEOUT: Final = 60.0
"""Seconds that a sign of life may take then."""


@asynccontextmanager
async def connect(stream: ByteStream, *, keepalive: float = KEEPALIVE) -> AsyncIterator["GrpcClient"]:
    """Speak gRPC on a stream, and close that at the end.

    Args:
        stream: Leads to the service.
        keepalive: Seconds without any sign of life, after which one is asked for; infinite: never.
    """
    client = GrpcClient(stream)
    async with stream, beside() as tasks:
        tasks.start_soon(client.run, keepalive)
        yield client


@define(eq=False)
class _Call:
    """One that is under way."""

    messages: deque[bytes] = field(factory=deque)
    status: CallStatus | None = None
    changed: anyio.Event = field(factory=anyio.Event)

    def change(self) -> None:
        self.changed.set()
        self.changed = anyio.Event()


class GrpcClient:
    """Calls one service; made by `connect`. Any number of calls may be under way at one time."""

    def __init__(self, stream: ByteStream) -> None:
        """Take the stream."""
        self._caller = Caller()
        self._driver = Driver(stream, self._caller, self._on_event)
        self._calls: dict[int, _Call] = {}

    async def run(self, keepalive: float) -> None:
        """Pass on what comes and goes, until the connection ends."""
        async with anyio.create_task_group() as tasks:
            if keepalive < inf:
                tasks.start_soon(self._keep_alive, keepalive)
            self._driver.wake()
            await self._driver.run()
            for call in self._calls.values():
                call.change()
            tasks.cancel_scope.cancel()

    async def call(self, path: str, request: bytes, *, timeout: float) -> bytes:
        """Call, and return the only response.

        Args:
            path: What is called.
            request: The only message.
            timeout: Seconds for all of it.

        Raises:
            CallFailed: With `Code.DEADLINE_EXCEEDED` if it took too long, else as the service says.
            ConnectionLost: It may have been carried out, or not.
        """
        responses = [response async for response in Responses(self, path, request, bytes, timeout)]
        if len(responses) != 1:
            raise CallFailed(Code.INTERNAL, f"the service answered {len(responses)} times, not once")
        return responses[0]

    async def begin(self, path: str, request: bytes, timeout: float) -> int:
        """Begin a call; returns its number. Raises as `call`."""
        await self._driver.wait_until(lambda: self._caller.has_room)
        if self._caller.ended is not None:
            raise ConnectionLost(self._lost())
        number = self._caller.call(path, request, timeout=timeout if timeout < inf else None)
        self._calls[number] = _Call()
        self._driver.wake()
        return number

    async def next_response(self, number: int) -> bytes | None:
        """Wait for a call's next response; None if there are no more. Raises as `call`."""
        call = self._calls[number]
        while not call.messages and call.status is None and self._caller.ended is None:
            await call.changed.wait()
        if call.messages:
            message = call.messages.popleft()
            self._caller.take(number, len(message))
            self._driver.wake()
            return message
        if call.status is None:
            raise ConnectionLost(self._lost())
        if call.status.code is not Code.OK:
            raise CallFailed(call.status.code, call.status.said)
        return None

    def end(self, number: int) -> None:
        """Take no more of a call; its service hears that with whatever is sent next."""
        self._calls.pop(number, None)
        self._caller.cancel(number)

    def _lost(self) -> str:
        return f"the connection to the service has ended: {self._caller.ended}"

    def _on_event(self, event: GrpcEvent) -> None:
        if isinstance(event, MessageReceived) and (call := self._calls.get(event.call)):
            call.messages.append(event.data)
            call.change()
        elif isinstance(event, CallEnded) and (call := self._calls.get(event.call)):
            call.status = event.status
            call.change()

    async def _keep_alive(self, keepalive: float) -> None:
        """Ask for a sign of life where there was none; end the connection if none comes."""
        driver = self._driver
        while True:
            before = driver.arrivals
            await anyio.sleep(keepalive)
            if driver.arrivals != before:
                continue
            self._caller.ping()
            driver.wake()
            with anyio.move_on_after(KEEPALIVE_TIMEOUT):
                await driver.wait_until(partial(_differs, driver, before))
            if driver.arrivals == before:
                self._caller.ended_by_peer("it gives no sign of life")
                await driver.stream.aclose()
                return


class Responses(Generic[_T]):
    """The responses to a call, which begins with the first that is asked for, and ends with the last or by `aclose`.

    Not a generator: whoever leaves a loop over it in the middle need not close it, or wait for that.
    """

    def __init__(
        self, client: GrpcClient, path: str, request: bytes, read: Callable[[bytes], _T], timeout: float = inf
    ) -> None:
        """Take what is called, what is made of each response, and how many seconds all of it may take."""
        self._client = client
        self._asked = (path, request, timeout)
        self._read = read
        self._deadline = inf
        self._number: int | None = None
        self._is_over = False

    def __aiter__(self) -> "Responses[_T]":
        """Is its own iterator."""
        return self

    async def __anext__(self) -> _T:
        """Wait for the next one.

        Raises:
            CallFailed, ConnectionLost: As `GrpcClient.call`.
        """
        if self._is_over:
            raise StopAsyncIteration
        try:
            message = await self._next()
        except BaseException:
            self._end()
            raise
        if message is None:
            self._end()
            raise StopAsyncIteration
        return self._read(message)

    async def aclose(self) -> None:
        """Take no more."""
        self._end()
        await checkpoint()

    async def _next(self) -> bytes | None:
        path, request, timeout = self._asked
        if self._number is None:
            self._deadline = anyio.current_time() + timeout
        with anyio.CancelScope(deadline=self._deadline):
            if self._number is None:
                self._number = await self._client.begin(path, request, timeout)
            return await self._client.next_response(self._number)
        raise CallFailed(Code.DEADLINE_EXCEEDED, f"the service did not answer within {timeout:g} s")

    def _end(self) -> None:
        if self._number is not None and not self._is_over:
            self._client.end(self._number)
        self._is_over = True

    def __del__(self) -> None:
        """Take no more, since nobody does."""
        self._end()


def _differs(driver: Driver, before: int) -> bool:
    return driver.arrivals != before
