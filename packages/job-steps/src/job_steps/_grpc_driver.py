"""What moves bytes between a `Connection` without I/O and a stream: the same for both ends."""

from collections.abc import Callable, Sequence
from typing import Final

import anyio
from anyio.abc import ByteStream
from attrs import define, field

from job_steps._grpc import Connection, GrpcEvent

_MOST_UNSENT: Final = 1 << 20
"""Bytes that wait to be sent, above which nothing more is read: what a peer asks for without reading the answers."""

_LAST_WORDS: Final = 1.0
"""Seconds to tell a peer why its connection ends, which is only polite."""

_LAST_LOOK: Final = 1.0
"""Seconds in which what has arrived is read, once nothing can be sent any more."""

_BROKEN = (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError)


@define(eq=False)
class Driver:
    """One connection over one stream, for as long as `run` runs."""

    stream: ByteStream
    connection: Connection
    _on_event: Callable[[GrpcEvent], None]
    _news: anyio.Event = field(factory=anyio.Event, init=False)
    """Set when something may be there to send."""

    _progress: anyio.Event = field(factory=anyio.Event, init=False)
    """Set when something was sent or has arrived."""

    _broken: str = field(default="", init=False)
    """Why nothing can be sent any more."""

    arrivals: int = field(default=0, init=False)
    """Pieces that have arrived so far."""

    def wake(self) -> None:
        """Have sent what there is to send."""
        self._news.set()

    async def wait_until(self, is_so: Callable[[], bool]) -> None:
        """Wait until something is so, or the connection has ended."""
        while not is_so() and self.connection.ended is None:
            await self._progress.wait()

    async def run(self) -> None:
        """Pass bytes on until the connection has ended, and everybody knows."""
        async with anyio.create_task_group() as tasks:
            with anyio.CancelScope() as receiving:
                tasks.start_soon(self._send, receiving)
                await self._receive()
            for event in self.connection.ended_by_peer(self._broken):
                self._on_event(event)
            self._moved()
            tasks.cancel_scope.deadline = anyio.current_time() + _LAST_WORDS

    async def _receive(self) -> None:
        connection = self.connection
        while connection.ended is None:
            for event in await self._arrived():
                self._on_event(event)
            self._moved()
            await self.wait_until(lambda: connection.unsent < _MOST_UNSENT)

    async def _arrived(self) -> Sequence[GrpcEvent]:
        """Wait for something to arrive, if only the end; returns what that leads to."""
        try:
            data = await self.stream.receive()
        except anyio.EndOfStream:
            return self.connection.ended_by_peer("the other side has closed it")
        except _BROKEN as error:
            return self.connection.ended_by_peer(_broke(error))
        self.arrivals += 1
        return self.connection.receive(data)

    async def _send(self, receiving: anyio.CancelScope) -> None:
        """Send what there is to send; if that fails, nobody waits for what cannot come any more."""
        try:
            while True:
                await self._news.wait()
                self._news = anyio.Event()
                while data := self.connection.to_send():
                    await self.stream.send(data)
                    self._progress.set()
                    self._progress = anyio.Event()
                if self.connection.ended is not None:
                    return
        except _BROKEN as error:
            self._broken = _broke(error)
            receiving.deadline = anyio.current_time() + _LAST_LOOK

    def _moved(self) -> None:
        self._news.set()
        self._progress.set()
        self._progress = anyio.Event()


def _broke(error: Exception) -> str:
    return f"it broke: {error}" if str(error) else "it broke"
