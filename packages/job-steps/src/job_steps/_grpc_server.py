"""The end of a connection that is called."""

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeAlias

import anyio
from anyio.abc import ByteStream, TaskGroup
from attrs import define, field

from job_steps._call_errors import CallFailed
from job_steps._call_status import CallStatus, Code
from job_steps._grpc import Callee, CallEnded, CallReceived, GrpcEvent
from job_steps._grpc_driver import Driver

_log = logging.getLogger("job_steps.agent")

_MOST_BACKLOG: Final = 64 << 10
"""Bytes of a call's responses that wait for its caller to have room, above which whoever responds waits too."""

Respond: TypeAlias = Callable[[bytes], Awaitable[None]]
Handler: TypeAlias = Callable[[bytes, Respond], Awaitable[None]]
"""Takes a call's request and what sends a response, which returns when there is room for the next one.

Raises:
    CallFailed: What the caller is told; of any other error, it learns nothing but that there was one.
"""


@define(eq=False)
class Presence:
    """Somebody who is connected."""

    since: float
    """When the last call has ended, or when it connected, by anyio's clock."""

    calls: int = 0
    """That are under way."""

    scope: anyio.CancelScope = field(factory=anyio.CancelScope)
    """Around all of it."""


async def serve(stream: ByteStream, handlers: Mapping[str, Handler], presence: Presence | None = None) -> None:
    """Answer the calls that come through a stream until it ends, then give up those that are under way.

    Args:
        stream: Is closed at the end.
        handlers: By what is called, such as ``/proto.StepRunner/Run``.
        presence: Learns what is going on.
    """
    presence = presence or Presence(anyio.current_time())
    async with stream, anyio.create_task_group() as calls:
        await _Serving(stream, handlers, calls, presence).run()
        calls.cancel_scope.cancel()


class _Serving:
    """One connection."""

    def __init__(
        self, stream: ByteStream, handlers: Mapping[str, Handler], tasks: TaskGroup, presence: Presence
    ) -> None:
        self._callee = Callee()
        self._driver = Driver(stream, self._callee, self._on_event)
        self._handlers = handlers
        self._tasks = tasks
        self._presence = presence
        self._scopes: dict[int, anyio.CancelScope] = {}

    async def run(self) -> None:
        self._driver.wake()
        await self._driver.run()

    def _on_event(self, event: GrpcEvent) -> None:
        if isinstance(event, CallReceived):
            self._scopes[event.call] = anyio.CancelScope()
            self._tasks.start_soon(self._answer, event)
        elif isinstance(event, CallEnded) and (scope := self._scopes.get(event.call)):
            scope.cancel()

    async def _answer(self, call: CallReceived) -> None:
        scope = self._scopes[call.call]
        self._presence.calls += 1
        try:
            with scope:
                self._callee.finish(call.call, await self._status(call))
                self._driver.wake()
        finally:
            del self._scopes[call.call]
            self._presence.calls -= 1
            self._presence.since = anyio.current_time()

    async def _status(self, call: CallReceived) -> CallStatus:
        """Carry a call out; returns how that ended."""
        handler = self._handlers.get(call.path)
        if handler is None:
            return CallStatus(Code.UNIMPLEMENTED, f"there is no {call.path[:200]} here")

        async def respond(message: bytes) -> None:
            self._callee.respond(call.call, message)
            self._driver.wake()
            await self._driver.wait_until(lambda: self._callee.backlog(call.call) < _MOST_BACKLOG)

        with anyio.move_on_after(call.timeout):
            try:
                await handler(call.request, respond)
            except CallFailed as failed:
                return CallStatus(failed.code, str(failed))
            except Exception:  # noqa: BLE001  (one call's is no reason to end the others, or the service)
                _log.exception("step_call_failed", extra={"path": call.path})
                return CallStatus(Code.INTERNAL, "the service has an error of its own; see what it logs")
            return CallStatus(Code.OK)
        return CallStatus(Code.DEADLINE_EXCEEDED, "the time for the call was over")
