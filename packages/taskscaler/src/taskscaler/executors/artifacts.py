"""What an executor does with the artifacts that it has brought back as a tar archive; for authors of executors."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path, PurePosixPath

import anyio
from anyio import to_thread
from attrs import evolve

from fleeting import Completed
from fleeting.archives import ArchiveRefused, ArchiveTooLarge, unpack
from fleeting.connectors import Sink
from fleeting.plugins import format_duration, hide_tree
from taskscaler.executors import JobOutcome, Verdict

MOST_ARTIFACTS = 100_000
"""So many files, directories and links a job may leave at most."""

COLLECT_TIMEOUT = 600.0
"""Seconds that bringing back the artifacts of one job may take."""

TAR_OVERHEAD = 2**27
"""Bytes that a tar archive may have beyond its contents: headers and padding of very many small files."""


def take_in(archive: Path, contents: Path, target: Path, patterns: Sequence[str], *, limit: int) -> list[str]:
    """Make *target* from an archive, whole or not at all, for our user alone; blocks, so call it in a thread.

    Args:
        archive: What came from the job, and is not trusted. An empty file: nothing came.
        contents: Where it is unpacked first; does not exist, on the same file system as *target*.
        target: Where the artifacts shall be; does not exist.
        patterns: Files, directories and globs that were asked for, relative to the job's working directory.
        limit: Bytes that they may have.

    Returns:
        The patterns that match nothing.

    Raises:
        ArchiveRefused: It is broken, too large, or reaches outside.
    """
    if archive.stat().st_size == 0:
        return list(patterns)
    contents.mkdir(mode=0o700)
    unpack(archive, contents, size=limit, members=MOST_ARTIFACTS)
    hide_tree(contents)
    contents.rename(target)
    return [pattern for pattern in patterns if not _matches(target, pattern)]


async def fetch(
    download: Callable[[Sequence[str], Sink], Awaitable[Completed]],
    patterns: Sequence[str],
    target: Path,
    *,
    limit: int,
) -> list[str]:
    """Make *target* from what matches the patterns, whole or not at all, for our user alone.

    Args:
        download: Gives a sink a tar archive of what matches patterns; nothing if nothing does.
        patterns: Files, directories and globs, relative to the job's working directory.
        target: Where the artifacts shall be; does not exist.
        limit: Bytes that they may have.

    Returns:
        The patterns that match nothing.

    Raises:
        ArchiveRefused: It did not come, or is broken, too large, or reaches outside.
    """
    async with anyio.TemporaryDirectory(dir=str(target.parent), prefix=f".{target.name}-") as temporary:
        archive, contents = Path(temporary, "archive.tar"), Path(temporary, "contents")
        await _download(download, patterns, archive, limit=limit)
        return await to_thread.run_sync(partial(take_in, archive, contents, target, patterns, limit=limit))


async def _download(
    download: Callable[[Sequence[str], Sink], Awaitable[Completed]],
    patterns: Sequence[str],
    archive: Path,
    *,
    limit: int,
) -> None:
    size = 0
    async with await anyio.open_file(archive, "wb") as file:
        with anyio.move_on_after(COLLECT_TIMEOUT) as scope:

            async def store(chunk: bytes) -> None:
                nonlocal size
                size += len(chunk)
                if size > limit + TAR_OVERHEAD:
                    scope.cancel()
                await file.write(chunk)

            completed = await download(patterns, store)
    if scope.cancelled_caught:
        took = format_duration(COLLECT_TIMEOUT)
        raise ArchiveRefused(f"they far exceed artifact_limit, or took longer than {took}; leave fewer")
    if not completed.ok:
        raise ArchiveRefused(f"tar {completed.account}")


def without_artifacts(outcome: JobOutcome, problem: ArchiveRefused | Sequence[str]) -> JobOutcome:
    """Say in a job's outcome that artifacts were refused or, by their patterns, are missing; maybe none are.

    A job that succeeded but left them not has failed.
    """
    match problem:
        case ArchiveTooLarge():
            why = f"the artifacts were refused: {problem}; raise artifact_limit"
        case ArchiveRefused():
            why = f"the artifacts were refused: {problem}"
        case _:
            why = f"no such artifact: {', '.join(problem)}" if problem else ""
    if why and outcome.verdict is Verdict.SUCCEEDED:
        return evolve(outcome, verdict=Verdict.FAILED, why=why)
    return evolve(outcome, warnings=(*outcome.warnings, why)) if why else outcome


def _matches(directory: Path, pattern: str) -> bool:
    return any(True for _ in directory.glob(str(PurePosixPath(pattern))))
