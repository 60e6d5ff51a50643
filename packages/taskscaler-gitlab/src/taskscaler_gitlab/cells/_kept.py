"""Jobs that a second cell has handed out to a runner that had one already: kept for its next request, for a while.

A cell that waits to hear that a job was accepted hears meanwhile that it is being prepared, and gives it to somebody
else if nobody comes for it. Others believe that the job runs: such a job is noted down, and reported as failed if the
runner does not come, also if it is another process that finds the note.
"""

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
from anyio import to_thread
from attrs import define, field, frozen

from fleeting.plugins import make_private, one_line, write_whole
from taskscaler_gitlab.cells._held import Answer

KEPT = 60.0
"""Seconds for which a job waits for its runner."""

SIGN = 15.0
"""Seconds between two signs that it is being prepared."""

log = logging.getLogger("taskscaler.gitlab")


@frozen
class Owed:
    """A job that has to be reported, should its runner not come."""

    cell: str
    number: int
    token: str = field(repr=False)


@frozen
class KeptJob:
    """A job that waits."""

    owed: Owed
    answer: Answer
    until: float
    is_two_phase: bool
    """Whether its cell waits to hear that it was accepted."""


@define(eq=False)
class Kept:
    """All that wait, by their runners."""

    _directory: Path
    _jobs: dict[bytes, list[KeptJob]] = field(factory=dict, init=False)

    def __len__(self) -> int:
        """How many there are."""
        return sum(map(len, self._jobs.values()))

    async def keep(self, runner: bytes, job: KeptJob) -> None:
        """Have a job wait."""
        if not job.is_two_phase:
            try:
                await to_thread.run_sync(self._note, job.owed)
            except OSError as error:  # it is kept all the same, for as long as we live
                log.warning("not_noted", extra={"job": job.owed.number, "error": one_line(str(error))})
        self._jobs.setdefault(runner, []).append(job)

    async def take(self, runner: bytes) -> KeptJob | None:
        """The job that waits for a runner, if there is one; one whose note cannot be removed waits on."""
        stays: list[KeptJob] = []
        found: KeptJob | None = None
        while found is None and (waiting := self._jobs.get(runner)):
            found = waiting.pop(0)
            if not waiting:
                del self._jobs[runner]
            try:
                with anyio.CancelScope(shield=True):  # first: who finds the note would report a job that runs
                    await self.settle(found.owed)
            except OSError as error:
                log.warning("not_given", extra={"job": found.owed.number, "error": one_line(str(error))})
                stays.append(found)
                found = None
        if stays:
            self._jobs[runner] = [*stays, *self._jobs.get(runner, [])]
        return found

    def overdue(self, now: float) -> list[KeptJob]:
        """Those that have waited too long, which do not wait any more."""
        over = [each for each in self if now >= each.until]
        for runner, waiting in [*self._jobs.items()]:
            left = [each for each in waiting if now < each.until]
            self._jobs.update({runner: left})
            if not left:
                del self._jobs[runner]
        return over

    def __iter__(self) -> Iterator[KeptJob]:
        """All of them."""
        return (each for waiting in [*self._jobs.values()] for each in [*waiting])

    async def settle(self, owed: Owed) -> None:
        """Forget what is noted down of a job."""
        path = self._path(owed)
        await to_thread.run_sync(lambda: path.unlink(missing_ok=True))

    def left(self) -> list[Owed]:
        """What another process has noted down; blocks."""
        found = []
        for path in sorted(self._directory.glob("*.json")) if self._directory.is_dir() else []:
            try:
                said: Any = json.loads(path.read_bytes())
                found.append(Owed(str(said["cell"]), int(said["number"]), str(said["token"])))
            except (OSError, ValueError, KeyError, TypeError) as error:
                log.warning("not_readable", extra={"path": str(path), "error": one_line(str(error))})
        return found

    def _note(self, owed: Owed) -> None:
        make_private(self._directory)
        said = {"cell": owed.cell, "number": owed.number, "token": owed.token}
        write_whole(self._path(owed), json.dumps(said).encode())

    def _path(self, owed: Owed) -> Path:
        return self._directory / f"{owed.cell}-{owed.number}.json"
