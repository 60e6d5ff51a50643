"""One job that the agent keeps: in memory while it runs, and on disk what is left of it when the agent is not."""

import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

import anyio
from attrs import define, field

from job_steps._agent._log import JobLog
from job_steps._messages import Cause, RunState, StatusMessage, Timestamp
from job_steps._results import StepResult

LONGEST_ID: Final = 255  # characters

LOST: Final = (
    "the agent ended while this job ran: it was killed, by one of the job's steps or from outside, or the instance"
    " restarted; what was left of the job was ended"
)

_PLAIN: Final = re.compile(r"[A-Za-z0-9_-]{1,100}")
_STATUS, _RESULTS, _LOG, _FILES, _NOTE = "job.json", "results.json", "log", "files", "containers"


def now() -> datetime:
    """The time, by this host's clock: it is for people, and nothing is decided by it."""
    return datetime.now(timezone.utc)


def directory_of(jobs: Path, job: str) -> Path:
    """Where a job is kept, whatever characters its id has."""
    name = job if _PLAIN.fullmatch(job) else hashlib.sha256(job.encode(errors="surrogatepass")).hexdigest()
    return jobs / name


@define(eq=False)
class KeptJob:
    """A job, from its start until it is closed."""

    id: str
    directory: Path
    log: JobLog
    mark: str = field(factory=lambda: secrets.token_hex(16))
    """In the environment of its processes."""

    state: RunState = RunState.RUNNING
    message: str = ""
    cause: Cause = Cause.NONE
    started: datetime | None = None
    ended: datetime | None = None
    tree: Mapping[str, Any] | StepResult | None = None
    scope: anyio.CancelScope = field(factory=anyio.CancelScope)
    done: anyio.Event = field(factory=anyio.Event)
    """Set once it is over, and on disk."""

    changed: anyio.Event = field(factory=anyio.Event)
    """Set, and replaced, when `tree` or `state` has changed."""

    @property
    def files(self) -> Path:
        """Where variables are kept that are files."""
        return self.directory / _FILES

    @property
    def note(self) -> Path:
        """The file that says that it has containers, or had."""
        return self.directory / _NOTE

    @staticmethod
    def begin(jobs: Path, job: str) -> "KeptJob":
        """Make what is on disk of a job that is about to run.

        Raises:
            OSError: It cannot be made.
        """
        directory = directory_of(jobs, job)
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(mode=0o700, parents=True)
        kept = KeptJob(id=job, directory=directory, log=JobLog(str(directory / _LOG)), started=now())
        kept.files.mkdir(mode=0o700)
        kept.save()
        return kept

    def grow(self, result: StepResult) -> None:
        """Take note of what its steps have come to."""
        self.tree = result
        self._change()

    def end(self, state: RunState, message: str = "", cause: Cause = Cause.NONE) -> None:
        """Take note of its end, and let everybody know; a disk that takes nothing keeps the agent from nothing."""
        self.state, self.message, self.cause, self.ended = state, message, cause, now()
        self.log.end()
        try:
            self.save()
            _write(self.directory / _RESULTS, self.results())
        except OSError as error:
            self.message = message or f"what became of this job is not on disk: {error.strerror}"
        self.done.set()
        self._change()

    def results(self) -> bytes:
        """Its tree, as JSON; empty if there is none."""
        tree = self.tree.as_dict() if isinstance(self.tree, StepResult) else self.tree
        return b"" if tree is None else json.dumps(tree, ensure_ascii=False).encode(errors="replace")

    def status(self) -> StatusMessage:
        """How it is, as callers hear it."""
        return StatusMessage(
            id=self.id,
            message=self.message,
            status=self.state,
            start_time=Timestamp.of(self.started),
            end_time=Timestamp.of(self.ended),
            cause=self.cause,
        )

    def save(self) -> None:
        """Write down how it is.

        Raises:
            OSError: The disk does not take it.
        """
        kept = {
            "id": self.id,
            "mark": self.mark,
            "state": self.state.name,
            "message": self.message,
            "cause": self.cause.name,
            "started": self.started and self.started.isoformat(),
            "ended": self.ended and self.ended.isoformat(),
        }
        _write(self.directory / _STATUS, json.dumps(kept).encode())

    @staticmethod
    def load(directory: Path) -> "KeptJob | None":
        """Read what an agent has left of a job; None if that is nothing to go by."""
        try:
            kept = json.loads((directory / _STATUS).read_bytes())
            job = KeptJob(
                id=str(kept["id"]),
                directory=directory,
                log=JobLog(str(directory / _LOG), is_over=True),
                mark=str(kept["mark"]),
                state=RunState[kept["state"]],
                message=str(kept["message"]),
                cause=Cause[kept["cause"]],
                started=_moment(kept["started"]),
                ended=_moment(kept["ended"]),
            )
        except (OSError, ValueError, KeyError, TypeError):
            return None
        with suppress(OSError, ValueError):  # it may have had none when the agent ended
            job.tree = json.loads((directory / _RESULTS).read_bytes() or b"null")
        return job

    def remove(self) -> None:
        """Remove what is on disk of it."""
        self.log.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _change(self) -> None:
        self.changed.set()
        self.changed = anyio.Event()


def _moment(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


def _write(path: Path, data: bytes) -> None:
    """Put a file in its place, whole."""
    beside = path.with_suffix(".new")
    file = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(file, "wb") as writing:  # noqa: PTH123  (it has a descriptor already)
        writing.write(data)
    beside.replace(path)
