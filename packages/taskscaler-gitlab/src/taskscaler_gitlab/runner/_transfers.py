"""What goes between this machine and GitLab: the artifacts of other jobs and of this one; and caches kept here."""

import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

from anyio import to_thread
from attrs import define, evolve, frozen

from fleeting import Clock
from fleeting.errors import SystemRefused
from fleeting.plugins import make_private
from gitlab_jobs import Dependency, GitLabJobsError, Job, Refused
from gitlab_jobs.client import GitLabClient
from taskscaler_gitlab._manager_caches import keep_archive
from taskscaler_gitlab.runner import _talk
from taskscaler_gitlab.runner._artifacts import KnownArtifact, NotPacked, pack_artifacts
from taskscaler_gitlab.runner._caches import KnownCache
from taskscaler_gitlab.runner._dependencies import PLACE, NotTaken, Room, take_archive
from taskscaler_gitlab.runner._options import Compression

PAUSE = 5.0
"""Seconds before something is downloaded again."""

_FINAL = frozenset({401, 403, 404})
"""Answers that will not be others if GitLab is asked again."""

_MOST_MISSING = 20
"""Patterns without files that a job's log names."""

_LONGEST = 1 << 16
"""Bytes of their names that are read."""


class NotFetched(Exception):
    """What another job left cannot be had; says why."""

    def __init__(self, message: str, reason: str) -> None:
        """Take what is wrong, and the reason for the job's failure."""
        super().__init__(message)
        self.reason = reason


class NotSent(Exception):
    """What the job left did not get to GitLab; says why."""

    reason = "script_failure"
    """What GitLab learns: as with GitLab Runner, where a stage of the job sends them."""


@frozen
class Sent:
    """What came of sending artifacts."""

    text: str
    """Lines for the job's log."""

    problem: str = ""
    """What went wrong; empty if nothing did."""


@define(kw_only=True)
class Transfers:
    """Brings files of one job to and fro."""

    job: Job
    client: GitLabClient
    clock: Clock
    place: Path
    """A directory of the job's own."""

    async def fetch(self, attempts: int) -> None:
        """Bring what other jobs left to this machine.

        Raises:
            NotFetched: Some of it cannot be had.
        """
        directory = self.place / PLACE
        await to_thread.run_sync(self.remove, directory)
        await to_thread.run_sync(make_private, directory)
        room = Room()
        for number, each in enumerate(self.job.dependencies):
            if each.artifacts_file.filename:
                room = await self._fetch(each, directory / str(number), attempts, room)

    def fetched(self) -> Iterator[Path]:
        """Directories of what other jobs left, whose names are the order in which they go over each other."""
        with suppress(FileNotFoundError):
            yield from sorted((self.place / PLACE).iterdir())

    async def _fetch(self, dependency: Dependency, target: Path, attempts: int, room: Room) -> Room:
        """Bring what one left, as far as there is room; returns what is left of that."""
        what = f"the artifacts of {dependency.name} ({dependency.id})"
        archive, scratch = self.place / "download", self.place / "scratch.tar"
        while True:
            attempts -= 1
            for path in (archive, scratch):
                await to_thread.run_sync(partial(path.unlink, missing_ok=True))
            await to_thread.run_sync(self.remove, target)
            try:
                await self.client.download(dependency, archive)
                name = dependency.artifacts_file.filename
                return await to_thread.run_sync(take_archive, archive, scratch, target, name, room)
            except NotTaken as error:
                raise NotFetched(f"{what} cannot be used: {error}", "script_failure") from None
            except OSError as error:
                raise NotFetched(
                    f"{what} cannot be kept here: {SystemRefused(error)}", "runner_system_failure"
                ) from None
            except GitLabJobsError as error:
                is_refused = isinstance(error, Refused)
                if attempts < 1 or (isinstance(error, Refused) and error.status in _FINAL):
                    reason = "script_failure" if is_refused else "runner_system_failure"
                    raise NotFetched(f"{what} cannot be downloaded: {error}", reason) from None
            await self.clock.sleep_until(self.clock.now() + PAUSE)

    async def send(self, known: KnownArtifact, out: Path, why: str, compression: Compression = "default") -> Sent:
        """Send one set of artifacts.

        Args:
            known: Which.
            out: What the instance has brought.
            why: Why that is not there, if it is not.
            compression: How hard it is tried to make them small.
        """
        archive = out / known.file
        lines = await to_thread.run_sync(_missing, out / f"missing-{known.number}")
        if not await to_thread.run_sync(archive.is_file):
            if why:
                return Sent(lines + _talk.failure(f"Uploading artifacts: {why}"), why)
            return Sent(lines + _talk.warning(f"no files to upload as {known.type}"))
        scratch, target = self.place / "contents", self.place / "upload"
        try:
            await to_thread.run_sync(self.remove, scratch)
            await to_thread.run_sync(self.remove, target)
            form = known.artifact.artifact_format
            count = await to_thread.run_sync(pack_artifacts, archive, scratch, target, form, compression)
            lines += f"found {count} matching artifact files and directories\n"
            artifact = evolve(known.artifact, artifact_type=known.type, artifact_format=form or "zip")
            await self.client.upload(self.job, artifact, target, filename=known.filename)
        except (NotPacked, GitLabJobsError) as error:
            why = str(error)
        except OSError as error:
            why = str(SystemRefused(error))
        finally:
            for path in (scratch, target):
                await to_thread.run_sync(self.remove, path)
        what = f'Uploading artifacts as "{known.type}" to coordinator...'
        if why:
            return Sent(f"{lines}{_talk.failure(f'{what} {why}')}", f"{what} {why}")
        return Sent(f"{lines}{what} 201 Created\n")

    @staticmethod
    def remove(path: Path) -> None:
        """Leave nothing there; blocks."""
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def keep_caches(caches: Iterable[KnownCache], out: Path, kept: Path, *, job: str, most: int) -> None:
    """Keep on this machine what came of a job's caches; blocks. One that cannot be kept is not.

    See `keep_archive`; after a restart, a job's name is the same.
    """
    for cache in caches:
        archive = out / f"cache-{cache.number}.tar"
        with suppress(OSError):
            if archive.is_file() and not archive.is_symlink():
                keep_archive(archive, kept / f"{cache.names[0]}.tar", job, most=most)


def _missing(path: Path) -> str:
    """Name patterns without files, a line each; blocks."""
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        names = file.read(_LONGEST).decode(errors="replace").splitlines()
    shown = [f"{name}: no matching files" for name in names[:_MOST_MISSING]]
    if len(names) > _MOST_MISSING:
        shown.append(f"{len(names) - _MOST_MISSING} more patterns have no matching files")
    return "".join(map(_talk.warning, shown))
