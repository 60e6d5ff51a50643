"""Answers that are sent piece by piece: a job's log, which goes on while the job prints, and archives."""

from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import AbstractContextManager, aclosing, closing
from pathlib import Path

import anyio
from anyio import to_thread
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from fleeting.archives import Packed
from taskscaler.batch import Results
from taskscaler.batch._log_reader import LogReader
from taskscaler.serve._hang_up import Gone, unless_gone

INTERVAL = 0.25
"""Seconds between two looks at a log that is followed."""


class Pieces(Response):
    """What an iterator gives, until it ends or the other end hangs up."""

    def __init__(
        self, media: str, pieces: AsyncGenerator[bytes], counted: Callable[[], AbstractContextManager[None]]
    ) -> None:
        """Prepare it; nothing is sent yet.

        Args:
            media: The type of the content.
            pieces: The content.
            counted: Entered while it is sent.
        """
        self._pieces = pieces
        self._counted = counted
        super().__init__(media_type=media, headers={"cache-control": "no-store"})
        del self.headers["content-length"]

    async def __call__(self, _: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        try:
            with self._counted():
                await unless_gone(receive, lambda: self._pour(send))
        except Gone:
            return

    async def _pour(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async with aclosing(self._pieces) as pieces:
            async for piece in pieces:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def log_pieces(path: Path, lines: int, over: Callable[[], bool]) -> AsyncGenerator[bytes]:
    """Read a log that may not be there yet.

    Args:
        path: Where it is, or will be.
        lines: How many of its last lines are read.
        over: Says whether nothing more comes.
    """
    while not await to_thread.run_sync(path.exists):
        if over():
            return
        await anyio.sleep(INTERVAL)
    with closing(await to_thread.run_sync(LogReader.at_last_lines, path, lines)) as reader:
        while True:
            is_over = over()  # asked first: what was printed before the end is there by then
            pieces = reader.read()
            while piece := await to_thread.run_sync(_next, pieces):
                yield piece
            if is_over:
                return
            await anyio.sleep(INTERVAL)


async def archive_pieces(results: Results) -> AsyncGenerator[bytes]:
    """Pack results as a tar archive."""
    async for piece in Packed.of(await to_thread.run_sync(results.files)):
        yield piece


def _next(pieces: Iterator[bytes]) -> bytes:
    return next(pieces, b"")
