"""What became of every try at every job, on disk before anything relies on it: what an interrupted batch goes on from.

One JSON object on a line for each event, appended and made durable at once::

    begun     once, first: when, and from which jobs file
    try       a job was given a slot, or that try has ended: the try with this number now stands so
    resumed   a later command goes on; tries that had not ended by then were interrupted
    over      once, last: there is nothing left to do, and no instance left

A command that is killed while it writes leaves a line without its end. That event never happened.
"""

import fcntl
import json
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import anyio
from attrs import asdict, define, evolve, field, frozen

from fleeting.plugins import Offload, open_private
from taskscaler._errors import CannotResume
from taskscaler.batch._state import Attempt, JobRecord, JobState

FILE = "history.jsonl"

COPY = "jobs.toml"
"""The jobs file as it was, kept until the batch is over."""

VERSION = 2
"""Of the file; raised when an earlier release could not go on from it."""

STOPPED = "the manager was stopped"
"""Why tries are lost that had not ended when their command was killed."""


@define
class Tries:
    """All that was tried for one job."""

    attempts: list[Attempt] = field(factory=list)
    warnings: tuple[str, ...] = ()


@frozen(kw_only=True)
class Over:
    """How a batch ended that has nothing left to do."""

    jobs: int
    succeeded: int
    well: bool
    """Whether the command was content: all jobs succeeded, and the report was made."""


@define
class Past:
    """What a history tells. Told line by line."""

    started: float = 0.0
    """When the batch was begun, in seconds since the epoch."""

    jobs_file: Path = field(factory=Path)
    """Absolute."""

    tries: dict[str, Tries] = field(factory=dict)
    """By job; those not named were never tried."""

    over: Over | None = None
    _seen: float = 0.0
    """When the last event happened: the last sign of life of the command that wrote it."""

    @classmethod
    def of(cls, lines: Iterable[bytes], *, running: bool = False) -> Self:
        """Read a history, all lines of which are whole.

        What had not ended in it counts as interrupted, unless a command is *running* it just now.

        Raises:
            ValueError: It makes no sense, at a line that the message names.
            CannotResume: A later release wrote it.
        """
        past = cls()
        for number, line in enumerate(lines, 1):
            try:
                past._tell(**json.loads(line))
            except (ValueError, TypeError, KeyError, IndexError) as error:
                raise ValueError(f"line {number} makes no sense") from error
        if not past.started:
            raise ValueError("its first line is missing")
        if not running:
            past._interrupt()
        return past

    def _tell(self, *, event: str, **data: Any) -> None:  # noqa: ANN401  (JSON)
        match event:
            case "begun":
                if data["version"] > VERSION:
                    raise CannotResume("a newer release has written it; go on with that release")
                self.started = self._seen = data["started"]
                self.jobs_file = Path(data["jobs_file"])
            case "try":
                self._try(**data)
            case "resumed":
                self._interrupt()
            case "over":
                self.over = Over(**data)
            case _:
                raise ValueError(event)

    def _try(self, *, job: str, number: int, attempt: dict[str, Any], warnings: Sequence[str]) -> None:
        tries = self.tries.setdefault(job, Tries())
        tries.attempts[number - 1 :] = [Attempt(**{**attempt, "state": JobState(attempt["state"])})]
        tries.warnings = tuple(warnings)
        self._seen = attempt["ended"] or attempt["started"]

    def _interrupt(self) -> None:
        for tries in self.tries.values():
            last = tries.attempts[-1]
            if last.ended is None:
                ended = max(last.started, self._seen)
                tries.attempts[-1] = evolve(last, ended=ended, state=JobState.LOST, why=STOPPED, interrupted=True)


class History:
    """The file, open and locked: one command writes a batch's history at a time."""

    def __init__(self, directory: Path, *, jobs_file: Path, text: str) -> None:
        """Prepare the history of a new batch; nothing is written yet.

        Args:
            directory: Made by `begin`.
            jobs_file: What the batch was made from.
            text: What is in that file; kept beside the history until the batch is over.
        """
        self.directory = directory
        self.past: Past | None = None
        """What was told before; None: this is the beginning."""

        self.jobs_file = jobs_file
        self.text = text
        self._file: int | None = None
        self._size = 0
        self._offload = Offload(limit=1)  # one event after the other

    @classmethod
    def reopen(cls, directory: Path) -> Self:
        """Take up the history of an earlier command.

        Raises:
            CannotResume: There is none, it is damaged, or the earlier command still runs.
            OSError: It cannot be read or written.
        """
        copy = _copy(directory)
        text = copy.read_text(encoding="utf-8", errors="replace") if copy.is_file() else ""
        history = cls(directory, jobs_file=Path(), text=text)
        try:
            history._open(directory)
        except (FileNotFoundError, NotADirectoryError):
            raise CannotResume(f"no batch was begun in {directory.parent}; run its jobs file instead") from None
        try:
            history._read()
        except BaseException:
            history.close()
            raise
        return history

    @property
    def over(self) -> Over | None:
        """How the batch ended, if nothing is left to do."""
        return self.past.over if self.past else None

    @property
    def copy(self) -> Path:
        """Where the jobs file is kept as it was, until the batch is over."""
        return _copy(self.directory)

    def check(self, jobs: Iterable[str]) -> None:
        """See that it tells of no other jobs than these.

        Raises:
            CannotResume: It does.
        """
        if self.past and (strange := self.past.tries.keys() - set(jobs)):
            path = self.directory / FILE
            raise CannotResume(f"{path} is damaged: it has the unknown job {min(strange)!r}; start a new batch")

    def begin(self, started: float) -> None:
        """Begin the file, or go on with it.

        Raises:
            OSError: It cannot be written.
        """
        if self.past is None:
            self._make({"version": VERSION, "started": started, "jobs_file": str(self.jobs_file.absolute())})
        else:
            self._append({"event": "resumed"})

    async def note(self, record: JobRecord, *, leaves: Sequence[Path] = ()) -> None:
        """Make durable how the job's last try stands, and before that what it leaves. Not cut short.

        Raises:
            OSError: It cannot be written.
        """
        attempt = {**asdict(record.attempts[-1]), "state": record.attempts[-1].state.value}
        told = {"job": record.name, "number": len(record.attempts), "attempt": attempt, "warnings": record.warnings}
        with anyio.CancelScope(shield=True):
            await self._offload(self._append, {"event": "try", **told}, leaves)

    def end(self, over: Over) -> None:
        """Write that there is nothing left to do, and forget the jobs file: there may be secrets in it.

        Raises:
            OSError: It cannot be written.
        """
        self._append({"event": "over", **asdict(over)})
        self.copy.unlink(missing_ok=True)

    def close(self) -> None:
        """Let go of the file; another command may go on."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _make(self, begun: Mapping[str, object]) -> None:
        """Make directory and file, for our user's eyes only, and with the first line in it at once."""
        draft = draft_of(self.directory)
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(mode=0o700)
        copy = _copy(draft)
        with open(copy, "w", encoding="utf-8", opener=open_private) as file:
            file.write(self.text)
        _sync(copy)
        self._open(draft, os.O_CREAT)
        self._append({"event": "begun", **begun})
        _sync(draft)
        draft.rename(self.directory)
        _sync(self.directory.parent)

    def _open(self, directory: Path, flags: int = 0) -> None:
        self._file = open_private(directory / FILE, flags | os.O_RDWR | os.O_APPEND)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise CannotResume(f"the batch in {self.directory.parent} is still being run; end that first") from None

    def _read(self) -> None:
        """See what was told, and cut off what was not told to its end."""
        path = self.directory / FILE
        whole, newline, _ = path.read_bytes().rpartition(b"\n")
        self._size = len(whole + newline)
        os.truncate(path, self._size)
        try:
            self.past = Past.of(whole.splitlines())
        except ValueError as error:
            raise CannotResume(f"{path} is damaged: {error}; start a new batch") from error
        except CannotResume as error:
            raise CannotResume(f"{path} cannot be used: {error}") from error
        self.jobs_file = self.past.jobs_file

    def _append(self, event: Mapping[str, object], leaves: Sequence[Path] = ()) -> None:
        if self._file is None:
            raise ValueError("the history is closed")
        for path in leaves:
            _sync_tree(path)
            _sync(path.parent)
        line = json.dumps(event).encode() + b"\n"
        try:
            rest = line
            while rest:
                rest = rest[os.write(self._file, rest) :]
            os.fsync(self._file)
        except OSError:
            os.ftruncate(self._file, self._size)  # half a line must not be in the way of the next one
            raise
        self._size += len(line)


def draft_of(directory: Path) -> Path:
    """Tell where a history is made; what a command that was killed has left there was never begun."""
    return directory.with_name(f".{directory.name}.part")


def _copy(directory: Path) -> Path:
    """Tell where the jobs file is kept as it was."""
    return directory / COPY


def _sync_tree(path: Path) -> None:
    """Make durable what is there: a file, or a directory with all that is in it, however deep; links as they are."""
    left = [path]
    while left:
        path = left.pop()
        if path.is_symlink() or not (path.is_dir() or path.is_file()):
            continue
        with suppress(PermissionError):  # a job may leave what even its owner cannot read
            left += path.iterdir() if path.is_dir() else ()
            _sync(path)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
