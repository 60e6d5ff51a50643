"""A run without a service, to which somebody can attach all the same: it listens for that while it runs."""

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import islice
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Final

import anyio
from anyio.abc import ByteStream

from job_steps._agent._holding import Holding, attach_command
from job_steps._call_errors import CallFailed
from job_steps._call_status import Code
from job_steps._removing import remove_tree

if TYPE_CHECKING:
    from job_steps._grpc_server import Presence

_MOST_LEFT: Final = 1000
"""Directories that one run removes."""

_LAST_WORDS: Final = 5.0
"""Seconds in which whoever is attached hears that the run is over."""


@asynccontextmanager
async def attachable(job: str, *, is_allowed: bool) -> AsyncIterator[Holding]:
    """What holds one run at breakpoints.

    Args:
        job: What it is called.
        is_allowed: Whether anything may hold it; if not, nobody listens.

    Raises:
        OSError: Nobody can listen there.
    """
    holding = Holding(job, note="The time limit of its job goes on meanwhile.")
    if not is_allowed:
        yield holding
        return
    from job_steps._agent._held_service import HeldService
    from job_steps._agent._listening import listen, socket_path
    from job_steps._grpc_server import serve

    def find(name: str) -> Holding:
        if name != job:
            raise CallFailed(Code.NOT_FOUND, f"no job with id {name[:100]!r}")
        return holding

    handlers = HeldService(find, lambda: [holding]).handlers
    directory = _directory()
    try:
        path = socket_path(directory)
        with (directory / "socket").open("w") as written:
            written.write(str(path))
        holding.how_to_attach = attach_command(directory, job)
        async with anyio.create_task_group() as connections:
            is_ready = anyio.Event()
            connected, left = 0, anyio.Event()

            async def answer(stream: ByteStream, presence: "Presence") -> None:
                nonlocal connected, left
                connected += 1
                try:
                    await serve(stream, handlers, presence)
                finally:
                    connected -= 1
                    left.set()
                    left = anyio.Event()

            async def be_attachable() -> None:
                await listen(
                    path,
                    answer,
                    connections=connections,
                    take=lambda: True,  # the directory is nobody else's
                    ready=is_ready.set,
                    is_over=lambda _: False,
                )

            connections.start_soon(be_attachable)
            await is_ready.wait()
            yield holding
            holding.end()
            with anyio.move_on_after(_LAST_WORDS):
                while connected:  # whoever is attached hears that it is over, and leaves
                    await left.wait()
            connections.cancel_scope.cancel()
    finally:
        remove_tree(directory)


def _directory() -> Path:
    """Make one where whoever attaches looks, or one of its own where that cannot be."""
    beside = Path(sys.argv[0]).absolute()
    name = f"run-alone-{os.getpid()}-"
    try:
        if beside.suffix == ".pyz":
            remove_left(beside.parent)
            return Path(mkdtemp(prefix=name, dir=beside.parent))
    except OSError:
        pass
    return Path(mkdtemp(prefix=name))


def remove_left(directory: Path) -> None:
    """Remove what runs have left that were killed: whoever attaches would look there."""
    for left in islice(directory.glob("run-alone-*"), _MOST_LEFT):
        process = left.name.split("-")[2]
        if process.isdecimal() and not _lives(int(process)):
            remove_tree(left)


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass  # of another user
    return True
