"""What is noted down of a job that was taken: enough to go on with it after this process was killed at any point.

A directory for each job, for our user alone::

    job.json     the job as GitLab described it, with its token; removed once GitLab has the job's end
    state.json   where it stands
    trace        its log, as GitLab gets it: secrets are hidden already
    run/         what running it needs to remember
"""

import fcntl
import json
import shutil
from collections.abc import Iterator
from enum import Enum
from io import FileIO
from pathlib import Path
from typing import Any

from attrs import asdict, evolve, frozen

from fleeting import JournalError
from fleeting.plugins import make_private, open_private, structure, write_whole
from gitlab_jobs import Job, Outcome, decode_job, encode_job

MAX_STATE = 1 << 16
"""Bytes of a state that we have written ourselves."""


class Stage(Enum):
    """How far a job has come."""

    TAKEN = "taken"
    """GitLab has handed it out; nothing has run."""

    CLAIMED = "claimed"
    """GitLab knows that it is ours, and its commands may run."""

    ENDED = "ended"
    """It is known how it ended; GitLab may not know yet."""


@frozen(kw_only=True)
class Record:
    """Where a job stands."""

    key: str
    """Under which it waits for its slot, or has it."""

    prefix: str
    """How the names of all its tries on instances begin."""

    taken_at: float
    """When GitLab handed it out, in seconds since the epoch."""

    tries: int = 1
    """How often it was placed."""

    stage: Stage = Stage.TAKEN
    """How far it has come."""

    is_canceling: bool = False
    """Whether GitLab wants it to end."""

    is_success: bool | None = None
    """How it ended, if it has."""

    failure_reason: str | None = None
    """Why it failed, in GitLab's words."""

    exit_code: int | None = None
    """What its script exited with."""

    @property
    def outcome(self) -> Outcome | None:
        """How it ended; None: it has not."""
        if self.is_success is None:
            return None
        return Outcome(is_success=self.is_success, failure_reason=self.failure_reason, exit_code=self.exit_code)

    def ended(self, outcome: Outcome, *, is_canceling: bool) -> "Record":
        """The record of a job that has ended."""
        return evolve(
            self,
            stage=Stage.ENDED,
            is_canceling=is_canceling,
            is_success=outcome.is_success,
            failure_reason=outcome.failure_reason,
            exit_code=outcome.exit_code,
        )

    def encode(self) -> bytes:
        """Write it as JSON."""
        return json.dumps(asdict(self) | {"stage": self.stage.value}).encode()

    @classmethod
    def decode(cls, data: bytes) -> "Record":
        """Read it.

        Raises:
            ValueError, ConfigError: It is none of ours.
        """
        found: Any = json.loads(data)
        if isinstance(found, dict):  # JSON has a null where a value is missing
            found = {key: value for key, value in found.items() if value is not None}
        return structure(found, cls)


@frozen
class JobDirectory:
    """The directory of one job."""

    path: Path

    @property
    def trace(self) -> Path:
        """Where its log is."""
        return self.path / "trace"

    def begin(self, job: Job, record: Record) -> None:
        """Note a job down; it is whole or not there when this is cut short: `found` looks for both files.

        Raises:
            OSError: It cannot be written.
        """
        make_private(self.path)
        write_whole(self.path / "state.json", record.encode())
        write_whole(self.path / "job.json", encode_job(job))

    def note(self, record: Record) -> None:
        """Note down where it stands. Raises as `begin`."""
        write_whole(self.path / "state.json", record.encode())

    def open_trace(self, kept: int | None = None) -> FileIO:
        """Open the log, with at most the first *kept* bytes of it; None: with all."""
        with open(self.trace, "ab", opener=open_private):  # makes it, if it is not there
            pass
        file = FileIO(self.trace, "r+b", opener=open_private)
        if kept is not None:
            file.truncate(kept)
        return file

    def read(self) -> tuple[Job, Record]:
        """Read what is noted down.

        Raises:
            OSError, ValueError, GitLabJobsError, ConfigError: It cannot be read.
        """
        with (self.path / "state.json").open("rb") as file:
            record = Record.decode(file.read(MAX_STATE))
        return decode_job((self.path / "job.json").read_bytes()), record

    def forget_try(self) -> None:
        """Forget what a try that came to nothing remembered."""
        shutil.rmtree(self.path / "run", ignore_errors=True)

    def end(self) -> None:
        """The job is over: its token is forgotten, its log stays for whoever looks at it."""
        (self.path / "job.json").unlink(missing_ok=True)
        self.forget_try()

    def size(self) -> int:
        """Bytes of its log here."""
        return self.trace.stat().st_size if self.trace.exists() else 0

    def remove(self) -> None:
        """Leave nothing of it."""
        shutil.rmtree(self.path, ignore_errors=True)


def hold(directory: Path) -> FileIO:
    """Have a directory of jobs to ourselves until what is returned is closed, or we die.

    Raises:
        JournalError: Another process has it: both would run what is noted down there.
        OSError: It cannot be used.
    """
    make_private(directory, hide=True)
    lock = FileIO(directory / "lock", "w", opener=open_private)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise JournalError(
            f"the jobs in {directory} are those of another runner or process; stop that one first,"
            " or set another state_dir in [runners.taskscaler]"
        ) from None
    return lock


def found(directory: Path) -> Iterator[JobDirectory]:
    """Find the jobs that are not over, and remove what is left of others."""
    make_private(directory, hide=True)
    for path in sorted(directory.iterdir()):
        if not path.is_dir():
            continue
        each = JobDirectory(path)
        if (path / "job.json").exists():
            yield each
        else:
            each.remove()
