"""The agent in a container: it runs one step for the agent that has made the container, over its input and output.

When its input ends, the agent outside has ended, or wants no more of the step: then its commands end, and so does it.
"""

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

import anyio
from anyio import to_thread
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from attrs import define, field

from job_steps._agent._running import Rules
from job_steps._delegation import (
    MAX_AROUND,
    MAX_MESSAGE,
    Child,
    Delegation,
    Message,
    Request,
    decoded,
    encoded,
    end_message,
    log_message,
)
from job_steps._errors import NotLoaded, StepFailed
from job_steps._groups import beside
from job_steps._limits import NO_LIMITS, Limits
from job_steps._references import ImageReference
from job_steps._results import StepResult
from job_steps._run import CameBack
from job_steps._runner import run_delegated

_PIECE: Final = 64 << 10

_PAUSE: Final = 0.5
"""Seconds between two trees that are sent, while steps run."""


async def serve_one(reading: int, writing: int) -> int:
    """Run what is asked for, and say what came of it; returns the exit status."""
    outside = _Outside(reading, writing)
    try:
        message = await outside.receive()
        if message is None:
            return 0
        request = Request.read(message)
    except (ValueError, StepFailed) as error:
        sys.stderr.write(f"agent.pyz: {error}\n")
        return 2
    async with beside() as tasks:
        tasks.start_soon(outside.listen, tasks.cancel_scope)
        await outside.send(end_message(await _carried_out(request, outside)))
    return 0


async def _carried_out(request: Request, outside: "_Outside") -> CameBack:
    """Run the step, and tell of its tree meanwhile, every now and then."""
    trees: list[StepResult] = []
    came: list[CameBack] = []

    async def tell() -> None:
        while True:
            await anyio.sleep(_PAUSE)
            if trees:
                message = {"tree": trees.pop().as_dict()}
                trees.clear()
                if len(encoded(message)) <= MAX_MESSAGE:
                    await outside.send(message)

    async def log(data: bytes) -> None:
        await outside.send(log_message(data))

    def keep(tree: StepResult) -> None:
        trees[:] = [tree]

    async with beside() as tasks:
        tasks.start_soon(tell)
        delegation = Delegation(containers=outside, env=request.base, policies=request.policies, limits=request.limits)
        came.append(
            await run_delegated(
                request,
                env=os.environ,
                log=log,
                on_result=keep,
                admit=Rules.of(request.policies).gate(),
                delegation=delegation,
            )
        )
    return came[0]


@define
class _Outside:
    """The agent outside."""

    reading: int
    writing: int
    _heard: bytearray = field(init=False, factory=bytearray)
    _turn: anyio.Lock = field(init=False, factory=anyio.Lock)
    _below: "MemoryObjectSendStream[Message] | None" = field(init=False, default=None)

    async def receive(self) -> Message | None:
        """Hear what it says next; None: nothing any more."""
        seen = 0
        while (end := self._heard.find(b"\n", seen)) < 0:
            seen = len(self._heard)
            await anyio.wait_readable(self.reading)
            piece = os.read(self.reading, _PIECE)
            if not piece:
                return None
            self._heard += piece
            if len(self._heard) > MAX_MESSAGE + MAX_AROUND + _PIECE:
                raise StepFailed(f"the agent outside says more than {MAX_MESSAGE >> 20} MiB at once")
        line = bytes(self._heard[:end])
        del self._heard[: end + 1]
        return decoded(line)

    async def send(self, message: Message) -> None:
        """Say something, whole."""
        async with self._turn:
            await to_thread.run_sync(self._write, encoded(message))

    def _write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self.writing, rest) :]

    async def listen(self, scope: anyio.CancelScope) -> None:
        """Pass on what comes from the container below; when nothing comes any more, end all."""
        try:
            while (message := await self.receive()) is not None:
                if self._below is not None:
                    await self._below.send(message)
        except StepFailed as error:
            sys.stderr.write(f"agent.pyz: {error}\n")
        if self._below is not None:
            self._below.close()
        scope.cancel()

    async def files_of(self, image: ImageReference, directory: Path) -> Path:  # noqa: ARG002  (others need it)
        """See `Containers.files_of`: there is no engine here."""
        raise NotLoaded(f"the files of {image} cannot be fetched in a container; let a step outside have the function")

    @asynccontextmanager
    async def open(
        self,
        image: ImageReference,
        path: tuple[str, ...],
        *,
        root: str = "",  # noqa: ARG002  (that is decided outside)
        limits: Limits = NO_LIMITS,  # noqa: ARG002  (as above)
    ) -> AsyncIterator[Child]:
        """See `Containers.open`: it is made outside."""
        self._below, receiving = anyio.create_memory_object_stream[Message](16)
        try:
            await self.send({"open": {"image": str(image), "path": list(path)}})
            below = _Below(self, receiving)
            try:
                await below.opened()
                yield below
            finally:
                with anyio.CancelScope(shield=True):
                    await below.close()
        finally:
            self._below = None


@define
class _Below:
    """An agent in a container that the agent outside has made for this one."""

    outside: _Outside
    receiving: MemoryObjectReceiveStream[Message]
    is_closed: bool = False

    async def opened(self) -> None:
        """Wait until it is there."""
        if "opened" not in await self._next():
            raise StepFailed("the agent outside says something else than was asked")

    async def send(self, message: Message) -> None:
        """See `Child.send`."""
        await self.outside.send({"to": message})

    async def receive(self) -> Message:
        """See `Child.receive`."""
        message: Message = (await self._next())["from"]
        return message

    async def _next(self) -> Message:
        try:
            message = await self.receiving.receive()
        except anyio.EndOfStream:
            message = {"closed": "the agent outside has ended"}
        if "closed" in message:
            self.is_closed = True
            raise StepFailed(message["closed"] or "the container has ended before its steps had")
        return message

    async def close(self) -> None:
        """Have the container removed, and wait for it."""
        if not self.is_closed:
            await self.outside.send({"close": True})
        with suppress(StepFailed):
            while not self.is_closed:
                await self._next()
