"""What an executor does with the artifacts that it has brought back as a tar archive; for authors of executors."""

from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from attrs import evolve

from fleeting.archives import ArchiveRefused, ArchiveTooLarge, unpack
from fleeting.plugins import hide_tree
from taskscaler.executors import JobOutcome, Verdict

MOST_ARTIFACTS = 100_000
"""So many files, directories and links a job may leave at most."""


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
