"""News for whoever listens, as server-sent events: to each as fast as it reads, and to nobody without bound."""

import json
from collections import deque
from collections.abc import Mapping

import anyio
from attrs import define, field

MOST_KEPT = 1000
"""Messages that wait for one listener; one that is so far behind learns that it has missed some."""

BEAT = 10.0
"""Seconds of silence after which a comment is sent, so that either end sees when the other is gone."""


@define(eq=False)
class Listener:
    """One who listens."""

    _kept: deque[Mapping[str, object]] = field(factory=deque, init=False)
    _missed: int = field(default=0, init=False)
    _closed: bool = field(default=False, init=False)
    _news: anyio.Event = field(factory=anyio.Event, init=False)

    def notify(self, message: Mapping[str, object]) -> None:
        """Keep a message until it is read; of too many, the later ones are counted only."""
        if len(self._kept) < MOST_KEPT:
            self._kept.append(message)
        else:
            self._missed += 1
        self._news.set()

    def close(self) -> None:
        """Let the stream end once all is read."""
        self._closed = True
        self._news.set()

    async def next(self) -> bytes:
        """Wait for what comes next, in the form of ``text/event-stream``; a comment if that is nothing for a while.

        Returns:
            What to send; nothing at the end.
        """
        if not (self._kept or self._missed or self._closed):
            self._news = anyio.Event()
            with anyio.move_on_after(BEAT):
                await self._news.wait()
        if self._kept:
            return _written(self._kept.popleft())
        missed, self._missed = self._missed, 0
        if missed:
            return _written({"event": "missed", "count": missed})
        return b"" if self._closed else b": still here\n\n"


def _written(message: Mapping[str, object]) -> bytes:
    data = json.dumps(message, allow_nan=False)
    return f"event: {message.get('event', 'message')}\ndata: {data}\n\n".encode()
