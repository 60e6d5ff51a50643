"""Answers that are sent piece by piece: a job's log, which goes on while the job prints, and archives."""

import json
from base64 import b64encode
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import AbstractContextManager, aclosing, closing
from pathlib import Path
from typing import TypeAlias

import anyio
from anyio import to_thread
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from fleeting.archives import Packed
from taskscaler.batch import Results
from taskscaler.batch._log_reader import LogReader
from taskscaler.serve._hang_up import Gone, unless_gone

Opened: TypeAlias = Callable[[Path], LogReader]
"""Opens a log at a place."""

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


async def log_text(path: Path, opened: Opened, over: Callable[[], bool]) -> AsyncGenerator[bytes]:
    """Read a log that may not be there yet. Arguments are those of `_log_pieces`."""
    async with aclosing(_log_pieces(path, opened, over)) as pieces:
        async for piece, _ in pieces:
            yield piece


async def log_lines(
    path: Path, opened: Opened, over: Callable[[], bool], left: Callable[[], bool]
) -> AsyncGenerator[bytes]:
    """Read a log that may not be there yet, as lines of JSON that say where they end.

    Args:
        path: As `_log_pieces` has it.
        opened: The same.
        over: The same.
        left: Says in the end whether the next daemon goes on with the job.
    """
    async with aclosing(_log_pieces(path, opened, over)) as pieces:
        async for piece, place in pieces:
            yield json.dumps({"next": place, "data": b64encode(piece).decode()}).encode() + b"\n"
    yield json.dumps({"over": not left()}).encode() + b"\n"


async def _log_pieces(path: Path, opened: Opened, over: Callable[[], bool]) -> AsyncGenerator[tuple[bytes, int]]:
    """Read a log that may not be there yet; gives where each piece ends, too.

    Args:
        path: Where it is, or will be.
        opened: Opens it where reading begins.
        over: Says whether nothing more comes.
    """
    while not await to_thread.run_sync(path.exists):
        if over():
            return
        await anyio.sleep(INTERVAL)
    with closing(await to_thread.run_sync(opened, path)) as reader:
        while True:
            is_over = over()  # asked first: what was printed before the end is there by then
            pieces = reader.read()
            while piece := await to_thread.run_sync(_next, pieces):
                yield piece, reader.whole
            if is_over:
                return
            await anyio.sleep(INTERVAL)


async def archive_pieces(results: Results) -> AsyncGenerator[bytes]:
    """Pack results as a tar archive."""
    async for piece in Packed.of(await to_thread.run_sync(results.files)):
        yield piece


def _next(pieces: Iterator[bytes]) -> bytes:
    return next(pieces, b"")
