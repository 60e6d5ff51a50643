"""The end of a connection that calls, on any stream of bytes."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from math import inf
from typing import Final

import anyio
from anyio.abc import ByteStream
from attrs import define, field

from job_steps._call_errors import CallFailed, ConnectionLost
from job_steps._call_status import CallStatus, Code
from job_steps._grpc import CallEnded, Caller, GrpcEvent, MessageReceived
from job_steps._grpc_driver import Driver

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
    client, error = GrpcClient(stream), None
    async with stream, anyio.create_task_group() as tasks:
        tasks.start_soon(client.run, keepalive)
        try:
            yield client
        except Exception as raised:  # noqa: BLE001  (it is raised below, as it is: not in a group)
            error = raised
        tasks.cancel_scope.cancel()
    if error is not None:
        raise error


@define(eq=False)
class _Call:
    """One that is under way."""

    messages: list[bytes] = field(factory=list)
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
        responses = [response async for response in self.stream(path, request, timeout=timeout)]
        if len(responses) != 1:
            raise CallFailed(Code.INTERNAL, f"the service answered {len(responses)} times, not once")
        return responses[0]

    async def stream(self, path: str, request: bytes, *, timeout: float = inf) -> AsyncGenerator[bytes, None]:
        """Call, and return each response as it comes; as `call` otherwise."""
        deadline = anyio.current_time() + timeout
        with anyio.CancelScope(deadline=deadline) as waiting:
            await self._driver.wait_until(lambda: self._caller.has_room)
        if waiting.cancelled_caught:
            raise _too_late(timeout)
        if self._caller.ended is not None:
            raise ConnectionLost(self._lost())
        number = self._caller.call(path, request, timeout=timeout if timeout < inf else None)
        call = self._calls[number] = _Call()
        self._driver.wake()
        try:
            while True:
                with anyio.CancelScope(deadline=deadline) as waiting:
                    message = await self._next(number, call)
                if waiting.cancelled_caught:
                    raise _too_late(timeout)
                if message is None:
                    return
                yield message
        finally:
            del self._calls[number]
            self._caller.cancel(number)
            self._driver.wake()

    async def _next(self, number: int, call: _Call) -> bytes | None:
        """The next response; None if there are no more."""
        while not call.messages and call.status is None and self._caller.ended is None:
            await call.changed.wait()
        if call.messages:
            message = call.messages.pop(0)
            self._caller.take(number, len(message))
            self._driver.wake()
            return message
        if call.status is None:
            raise ConnectionLost(self._lost())
        if call.status.code is not Code.OK:
            raise CallFailed(call.status.code, call.status.said)
        return None

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


def _differs(driver: Driver, before: int) -> bool:
    return driver.arrivals != before


def _too_late(timeout: float) -> CallFailed:
    return CallFailed(Code.DEADLINE_EXCEEDED, f"the service did not answer within {timeout:g} s")
