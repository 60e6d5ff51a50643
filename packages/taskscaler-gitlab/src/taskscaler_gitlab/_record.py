"""What is noted down of a job that was taken: enough to go on with it after this process was killed at any point.

A directory for each job, for our user alone, named after its GitLab, the job and its lease: what cannot be read any
more can still be ended and reported::

    job.json     the job as GitLab described it, with its token; removed once GitLab has the job's end
    state.json   where it stands
    over.json    how it ended, once GitLab has its end; see `_finished`
    trace        its log, as GitLab gets it: secrets are hidden already
    run/         what running it needs to remember
"""

import fcntl
import json
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from io import FileIO
from pathlib import Path
from typing import Any, TypeVar

from attrs import asdict, evolve, frozen

from fleeting import ConfigError, JournalError
from fleeting.plugins import make_private, one_line, open_private, structure, write_whole
from gitlab_jobs import GitLabJobsError, Job, Outcome, decode_job, encode_job
from taskscaler_gitlab.runner import RecordUnreadable
from taskscaler_gitlab.runner._record import RESULTS

T = TypeVar("T")

KEYS = "gitlab/"
"""How the keys of jobs begin, among all that have a lease."""

MAX_STATE = 1 << 16
"""Bytes of a state that we have written ourselves."""

MAX_JOB = 64 << 20
"""The same of a job: more than GitLab can make it."""

MOST_ASIDE = 10
"""Jobs that could not be read of which something is kept for whoever looks into it."""

_NAME = re.compile("([0-9a-f]{12})-[0-9]{1,20}-([0-9a-f]{12})")


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

    settings: str = ""
    """The name of the settings that it runs with; see `_noted_settings`."""

    rule: str = ""
    """The name of the rule of ``[[dispatch]]`` that says where it runs; empty: none does."""

    dispatched: str = ""
    """What became of it by the rules, as a sentence without its end; empty: there are none."""

    pools: tuple[str, ...] = ()
    """The pools that it may use, in order of preference; empty: any."""

    refusal: str = ""
    """Why it is to fail instead of being run; empty: it is not."""

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

    @classmethod
    def of(cls, jobs: Path, origin: str, job: int, key: str) -> "JobDirectory":
        """Name the directory of a job that is new.

        Args:
            jobs: Where all of them are.
            origin: Stands for the runner at its GitLab: 12 hexadecimal digits.
            job: The job's number.
            key: Under which it waits for its slot: `KEYS` and 12 hexadecimal digits.
        """
        return cls(jobs / f"{origin}-{job}-{key.removeprefix(KEYS)}")

    @property
    def origin(self) -> str:
        """See `of`; empty: the name does not say."""
        found = _NAME.fullmatch(self.path.name)
        return found[1] if found else ""

    @property
    def key(self) -> str:
        """See `of`; empty: the name does not say."""
        found = _NAME.fullmatch(self.path.name)
        return f"{KEYS}{found[2]}" if found else ""

    @property
    def trace(self) -> Path:
        """Where its log is."""
        return self.path / "trace"

    @property
    def results(self) -> Path:
        """Where it is kept how its steps went, if it had any."""
        return self.path / RESULTS

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

    def read_job(self) -> Job:
        """Read the job.

        Raises:
            OSError, ValueError, GitLabJobsError: It cannot be read.
        """
        return decode_job(_bounded(self.path / "job.json", MAX_JOB))

    def read_record(self) -> Record:
        """Read where it stands.

        Raises:
            OSError, ValueError, ConfigError: It cannot be read.
        """
        return Record.decode(_bounded(self.path / "state.json", MAX_STATE))

    def forget_try(self) -> None:
        """Forget what a try that came to nothing remembered."""
        shutil.rmtree(self.path / "run", ignore_errors=True)

    def end(self) -> None:
        """The job is over: its token is forgotten, its log stays for whoever looks at it."""
        (self.path / "job.json").unlink(missing_ok=True)
        self.forget_try()

    def size(self) -> int:
        """Bytes of its log here, and of how its steps went."""
        return sum(map(_size, (self.trace, self.results)))

    def remove(self) -> None:
        """Leave nothing of it."""
        shutil.rmtree(self.path, ignore_errors=True)

    def copy_aside(self, shelf: Path) -> None:
        """Keep what has no secrets of a job that cannot be read, and of the last ones only."""
        with suppress(OSError):
            make_private(shelf)
            make_private(target := shelf / self.path.name)
            for file in (self.path / "state.json", self.path / "run" / "record.json"):
                if file.is_file():
                    with file.open("rb") as opened:
                        write_whole(target / file.name, opened.read(MAX_STATE))
            for old in sorted(shelf.iterdir(), key=lambda each: each.stat().st_mtime)[:-MOST_ASIDE]:
                shutil.rmtree(old, ignore_errors=True)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


@frozen(kw_only=True)
class Left:
    """What an earlier process has left of a job."""

    directory: JobDirectory
    job: Job | None
    """What it was; None: that cannot be read."""

    record: Record | None
    """Where it stood; None: likewise."""

    problem: str
    """Which file cannot be read, and why; empty: all can."""

    reason: str
    """The reason alone, for those who have no business with this machine's files."""

    since: float
    """When it was noted down, if nothing else says so: seconds since the epoch."""

    @property
    def key(self) -> str:
        """Under which it has its lease; empty: nobody knows."""
        return self.directory.key if self.record is None else self.record.key

    @property
    def origin(self) -> str:
        """Stands for the runner at its GitLab; empty: nobody knows."""
        return self.directory.origin if self.record is None else self.record.prefix.partition("-")[0]

    @property
    def standing(self) -> Record:
        """Where it stands, as far as that is known."""
        unknown = Record(key=self.key, prefix=self.directory.path.name, taken_at=self.since, stage=Stage.CLAIMED)
        return self.record or unknown


def read_left(directory: JobDirectory, look_at_run: Callable[[Path], object]) -> Left:
    """Read what is left of a job; whatever is wrong with it, that is all that is wrong.

    Args:
        directory: Where it is.
        look_at_run: Reads what running it needs to remember, and raises anything if it cannot.
    """
    problems: list[tuple[str, str]] = []

    def attempt(read: Callable[[], T], file: Path) -> T | None:
        try:
            return read()
        except Exception as error:  # noqa: BLE001  (anything may lie there)
            reason = _reason(error)
            account = str(error) if isinstance(error, RecordUnreadable) else f"{file} cannot be read ({reason})"
            problems.append((one_line(account), reason))
            return None

    path = directory.path
    record = attempt(directory.read_record, path / "state.json")
    job = attempt(directory.read_job, path / "job.json")
    if record is None or record.stage is not Stage.ENDED:
        attempt(lambda: look_at_run(path), path / "run")
    since = attempt(lambda: path.stat().st_mtime, path) or 0.0
    problem, reason = problems[0] if problems else ("", "")
    return Left(directory=directory, job=job, record=record, problem=problem, reason=reason, since=since)


def _reason(error: Exception) -> str:
    """Why a file cannot be read, in a few words."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, ValueError | ConfigError | GitLabJobsError):
        return one_line(str(error))
    return "it was damaged, or written by another version"


def _bounded(file: Path, most: int) -> bytes:
    """Read a file of at most so many bytes.

    Raises:
        OSError: It cannot be read.
        ValueError: It has more.
    """
    with file.open("rb") as opened:
        data = opened.read(most + 1)
    if len(data) > most:
        raise ValueError(f"it has more than {most} bytes")
    return data


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


def found(directory: Path) -> tuple[list[JobDirectory], list[JobDirectory]]:
    """Find the jobs that are not over, and the others, of which something may have been kept.

    Raises:
        OSError: The directory cannot be used.
    """
    make_private(directory, hide=True)
    jobs = [JobDirectory(path) for path in sorted(directory.iterdir()) if path.is_dir()]
    unfinished = [each for each in jobs if _is_there(each.path / "job.json")]
    return unfinished, [each for each in jobs if each not in unfinished]


def _is_there(path: Path) -> bool:
    """Whether a file is there, or may be."""
    try:
        return path.exists()
    except OSError:
        return True
