"""Brings back what a job was to leave: from its container, which need not run any more."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from posixpath import join, normpath

import anyio
from anyio import to_thread

from executor_docker._selection import Renaming, Selector, chosen_by, literal_part
from fleeting.archives import END, ArchiveRefused, ArchiveTooLarge
from fleeting.plugins import format_duration
from fleeting_docker_engine import Engine, EngineRefused, quoted
from taskscaler.executors.artifacts import take_in

COLLECT_TIMEOUT = 600.0
"""Seconds that bringing back the artifacts of one job may take."""

OVERHEAD = 2**27
"""Bytes that an archive may have beyond its contents: headers and padding of very many small files."""

NOT_FOUND = 404


async def fetch(
    engine: Engine, container: str, directory: str, patterns: Sequence[str], target: Path, *, limit: int
) -> Sequence[str]:
    """Make *target* from what matches the patterns, whole or not at all.

    Args:
        engine: The daemon.
        container: Runs or has ended.
        directory: The job's working directory, absolute.
        patterns: Relative to it.
        target: Does not exist.
        limit: Bytes that the artifacts may have.

    Returns:
        The patterns that match nothing.

    Raises:
        ArchiveRefused: What came is broken, too large or reaches outside; or it took too long.
    """
    async with anyio.TemporaryDirectory(dir=str(target.parent), prefix=f".{target.name}-") as temporary:
        archive, contents = Path(temporary, "archive.tar"), Path(temporary, "contents")
        with anyio.move_on_after(COLLECT_TIMEOUT) as scope:
            async with await anyio.open_file(archive, "wb") as file:
                for pattern in patterns:
                    top = normpath(join(directory, literal_part(pattern)))
                    await save(engine, container, top, chosen_by(pattern, directory, top), file, limit=limit)
                if await file.tell():
                    await file.write(END)
        if scope.cancelled_caught:
            raise ArchiveRefused(f"they took longer than {format_duration(COLLECT_TIMEOUT)}; leave fewer")
        return await to_thread.run_sync(partial(take_in, archive, contents, target, patterns, limit=limit))


async def save(
    engine: Engine, container: str, path: str, rename: Renaming, file: anyio.AsyncFile[bytes], *, limit: int
) -> None:
    """Append to an archive what is wanted of a path in a container; if there is nothing, nothing.

    Raises:
        ArchiveTooLarge: The archive would have more than *limit* bytes, by far.
        ArchiveRefused: What came is no archive.
    """
    selector = Selector(rename)

    async def store(chunk: bytes) -> None:
        await file.write(selector.feed(chunk))
        if await file.tell() > limit + OVERHEAD:
            raise ArchiveTooLarge(f"they have more than {limit} bytes")

    try:
        await engine.download(f"/containers/{quoted(container)}/archive", store, query={"path": path})
    except EngineRefused as error:
        if error.status != NOT_FOUND:
            raise
    else:
        await file.write(selector.finish())
