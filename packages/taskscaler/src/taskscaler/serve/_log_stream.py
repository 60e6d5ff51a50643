"""A job's log as an answer, which goes on while the job prints."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from pathlib import Path

import anyio
from anyio import to_thread
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from taskscaler.batch._log_reader import LogReader
from taskscaler.serve._hang_up import Gone, unless_gone

INTERVAL = 0.25
"""Seconds between two looks at a log that is followed."""


class LogStream(Response):
    """What is in a log, from some lines before its end on."""

    def __init__(
        self, path: Path, lines: int, over: Callable[[], bool], counted: Callable[[], AbstractContextManager[None]]
    ) -> None:
        """Prepare it; nothing is sent yet.

        Args:
            path: Where the log is, or will be.
            lines: How many of the last lines are sent.
            over: Says whether nothing more comes.
            counted: Entered while it is sent.
        """
        self._path = path
        self._lines = lines
        self._over = over
        self._counted = counted
        super().__init__(media_type="text/plain", headers={"cache-control": "no-store"})
        del self.headers["content-length"]

    async def __call__(self, _: Scope, receive: Receive, send: Send) -> None:
        """Send until the job is over, or the other end hangs up."""
        try:
            with self._counted():
                await unless_gone(receive, lambda: self._pour(send))
        except Gone:
            return

    async def _pour(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await self._pour_log(send)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _pour_log(self, send: Send) -> None:
        while not self._path.exists():
            if self._over():
                return
            await anyio.sleep(INTERVAL)
        reader = await to_thread.run_sync(LogReader.at_last_lines, self._path, self._lines)
        with closing(reader):
            while True:
                over = self._over()  # asked first: what was printed before the end is there by then
                pieces = reader.read()
                while piece := await to_thread.run_sync(_next, pieces):
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
                if over:
                    return
                await anyio.sleep(INTERVAL)


def _next(pieces: Iterator[bytes]) -> bytes:
    return next(pieces, b"")
