"""One job that the agent keeps: in memory while it runs, and on disk what is left of it when the agent is not."""

import hashlib
import json
import re
import secrets
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

import anyio
from attrs import define, field

from job_steps._agent._directory import read_whole, set_aside, write_whole
from job_steps._agent._growing import save_while_it_grows
from job_steps._agent._holding import Holding
from job_steps._agent._log import JobLog
from job_steps._errors import ResultInvalid
from job_steps._messages import Cause, RunState, StatusMessage, Timestamp
from job_steps._removing import remove_tree
from job_steps._results import Status, StepResult

LONGEST_ID: Final = 255  # characters
LONGEST_MESSAGE: Final = 4096  # characters
_LONGEST_RESULTS: Final = 64 << 20  # bytes

LOST: Final = (
    "the agent ended while this job ran: it was killed, by one of the job's steps or from outside, or the instance"
    " restarted; what was left of the job was ended"
)

_PLAIN: Final = re.compile(r"[A-Za-z0-9_-]{1,100}")
_STATUS, _RESULTS, _LOG, _FILES, _NOTE = "job.json", "results.json", "log", "files", "containers"


def now() -> datetime:
    """The time, by this host's clock: for people, and for what has waited for days."""
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
    holding: Holding = field(init=False)
    """Its breakpoints."""

    scope: anyio.CancelScope = field(factory=anyio.CancelScope)
    done: anyio.Event = field(factory=anyio.Event)
    """Set once it is over, and on disk."""

    changed: anyio.Event = field(factory=anyio.Event)
    """Set, and replaced, when `tree` or `state` has changed."""

    is_closed: bool = False
    """Whether somebody has closed it, so that its end is nobody else's doing."""

    was_loaded: bool = False
    """Whether it is an earlier agent's, so that its tree is on disk alone once it is over."""

    @holding.default
    def _no_breakpoints(self) -> Holding:
        return Holding(self.id, is_over=self.state.is_over)

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
        """Make what is on disk of a job that is about to run, where nothing may be.

        Raises:
            OSError: It cannot be made.
        """
        directory = directory_of(jobs, job)
        directory.mkdir(mode=0o700, parents=True)
        kept = KeptJob(id=job, directory=directory, log=JobLog(str(directory / _LOG)), started=now())
        try:
            kept.files.mkdir(mode=0o700)
            kept.save()
        except OSError:
            kept.log.close()
            remove_tree(directory)
            raise
        return kept

    def grow(self, result: StepResult) -> None:
        """Take note of what its steps have come to."""
        self.tree = result
        self._change()

    async def save_while_it_grows(self) -> None:
        """Keep on disk what its steps have come to, for when the agent is killed, until this is cancelled."""
        await save_while_it_grows(lambda: (self.tree, self.changed), self._save_tree)

    def lose(self) -> None:
        """Take note that its agent has ended, by no wish of whoever runs it: what of it still ran then, is lost."""
        if isinstance(self.tree, Mapping):
            with suppress(ResultInvalid):  # something else has written there
                self.tree = StepResult.from_dict(self.tree).lost(LOST)
        elif self.tree is not None:
            self.tree = self.tree.lost(LOST, Status.CANCELLED)
        self.end(RunState.FAILURE, LOST, Cause.LOST)

    def end(self, state: RunState, message: str = "", cause: Cause = Cause.NONE) -> None:
        """Take note of its end, and let everybody know; a disk that takes nothing keeps the agent from nothing."""
        results = self.results()
        self.state, self.message, self.cause, self.ended = state, message[:LONGEST_MESSAGE], cause, now()
        self.log.end()
        self.holding.end()
        try:
            write_whole(self.directory / _RESULTS, results)
            self.save()
        except OSError as error:
            self.message = message or f"what became of this job is not on disk: {error.strerror}"
        self.done.set()
        self._change()

    def results(self) -> bytes:
        """Its tree, as JSON; empty if there is none."""
        if self.was_loaded and self.state.is_over:
            with suppress(OSError, ValueError):  # it may have had none when its agent ended
                return read_whole(self.directory / _RESULTS, _LONGEST_RESULTS)
            return b""
        tree = self.tree.as_dict() if isinstance(self.tree, StepResult) else self.tree
        return b"" if tree is None else json.dumps(tree, ensure_ascii=False).encode(errors="replace")

    def _save_tree(self) -> int:
        """Write it down as far as it is; returns its size. A disk that takes nothing is no reason for anything."""
        data = self.results()
        with suppress(OSError):
            write_whole(self.directory / _RESULTS, data)
        return len(data)

    def status(self) -> StatusMessage:
        """How it is, as callers hear it."""
        return StatusMessage(
            id=self.id,
            message=self.message,
            status=self.state,
            start_time=Timestamp.of(self.started),
            end_time=Timestamp.of(self.ended),
            cause=self.cause,
            held_time=self.holding.held_time,
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
        write_whole(self.directory / _STATUS, json.dumps(kept).encode())

    @staticmethod
    def load(directory: Path) -> "KeptJob | None":
        """Read what an agent has left of a job; None if that is nothing to go by: other jobs may have been at it."""
        try:
            kept = json.loads(read_whole(directory / _STATUS))
            job = KeptJob(
                id=str(kept["id"]),
                directory=directory,
                log=JobLog(str(directory / _LOG), is_over=True),
                mark=str(kept["mark"]),
                state=RunState[kept["state"]],
                message=str(kept["message"])[:LONGEST_MESSAGE],
                cause=Cause[kept["cause"]],
                started=_moment(kept["started"]),
                ended=_moment(kept["ended"]),
                was_loaded=True,
            )
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None
        if directory_of(directory.parent, job.id) != directory:
            job.log.close()
            return None
        if not job.state.is_over:
            with suppress(OSError, ValueError, RecursionError):  # it may have had none when the agent ended
                tree = json.loads(read_whole(directory / _RESULTS, _LONGEST_RESULTS) or b"null")
                job.tree = tree if isinstance(tree, dict) else None
        return job

    def forget(self) -> Path:
        """Let go of it, so that its name is free; returns what has to be removed, which may take a while."""
        self.log.close()
        try:
            return set_aside(self.directory)
        except OSError:
            return self.directory

    def _change(self) -> None:
        self.changed.set()
        self.changed = anyio.Event()


def _moment(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text).astimezone(timezone.utc) if text else None
