"""The directory that a batch leaves: one log per job, their artifacts, and ``results.json``.

All of it is for our user alone: jobs print secrets, and the jobs file is kept there while the batch runs.
"""

import json
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, takewhile
from math import inf
from operator import itemgetter
from pathlib import Path

from attrs import asdict, define, frozen

from fleeting.plugins import make_private, open_private
from taskscaler._errors import ResultsInTheWay
from taskscaler._wording import iso
from taskscaler.batch._attempts import Attempt
from taskscaler.batch._job_state import JobState
from taskscaler.batch._log import write_at
from taskscaler.batch._record import JobRecord
from taskscaler.batch._state import BatchState
from taskscaler.executors import check_job_name

_PER_JOB = 2048
"""Bytes of room that are reserved in ``results.json`` for each job, before the jobs can fill the disk."""

_MOST_RESERVED = 64 << 20
_BLOCK = 1 << 20
_BRIEF = 80  # characters

SCHEMA_VERSION = 1
"""Of ``results.json``; raised when a key changes its meaning or goes."""


@frozen
class Results:
    """Where everything is."""

    directory: Path
    """Where they are."""

    def log(self, name: str) -> Path:
        """One job's log: what it printed, in all its tries.

        Raises:
            ValueError: No job has such a name.
        """
        check_job_name(name)
        return self._logs / f"{name}.log"

    def artifacts(self, name: str) -> Path:
        """The directory of one job's artifacts; there only if it left any.

        Raises:
            ValueError: No job has such a name.
        """
        check_job_name(name)
        return self._artifacts / name

    @property
    def _logs(self) -> Path:
        return self.directory / "logs"

    @property
    def _artifacts(self) -> Path:
        return self.directory / "artifacts"

    @property
    def summary(self) -> Path:
        """What became of each job, for programs."""
        return self.directory / "results.json"

    def files(self) -> Mapping[str, Path]:
        """What is in the directory: files and directories, by their names.

        Raises:
            OSError: It cannot be read.
        """
        return {path.name: path for path in self.directory.iterdir()}

    @property
    def fleet_log(self) -> Path:
        """What the libraries logged: every change asked of the cloud, and every failure."""
        return self.directory / "fleet.log"

    @property
    def events(self) -> Path:
        """What happened, event by event; see `read_events`. It is there once the batch has begun."""
        return self.directory / "events.jsonl"

    def timeline(self, format_: str) -> Path:
        """The picture of the run, as ``svg`` or ``png``."""
        return self.directory / f"timeline.{format_}"

    @property
    def annotations(self) -> Path:
        """Which jobs ended badly, for GitLab; only there if it was asked for."""
        return self.directory / "gl-code-quality-report.json"

    @property
    def resume(self) -> Path:
        """The directory of what is kept only until the batch is over, and for nobody else's eyes."""
        return self.directory / "resume"

    @property
    def jobs_file(self) -> Path:
        """The jobs file as it was when the batch was begun, until the batch is over."""
        return self.resume / "jobs.toml"

    @property
    def jobs_stream(self) -> Path:
        """The jobs that came as a stream, until the batch is over; there only if they did."""
        return self.resume / "jobs.jsonl"

    def prepare(self) -> Sequence[Path]:
        """Make the directory, or see that it is ours and empty but for traces of a fleet that never had a job.

        Returns:
            The directories that were made, innermost first.

        Raises:
            ResultsInTheWay: There is something already, for results are never mixed; or it is another user's.
            OSError: It cannot be made.
        """
        made = list(takewhile(lambda path: not path.exists(), (self.directory, *self.directory.parents)))
        if made:
            if len(made) > 1:
                make_private(self.directory.parent)
            try:
                self.directory.mkdir(mode=0o700)
            except FileExistsError as error:
                raise ResultsInTheWay(f"{self.directory} belongs to another run; name another directory") from error
        self._refuse_unless_empty()  # before it is touched: what is in there may be for everybody
        self._hide()
        self._refuse_unless_empty()  # now nobody can put anything there any more
        return made

    def begin(self, jobs: int) -> None:
        """Make what is in the directory, unless an earlier run did, and reserve room for the summary of so many jobs.

        Raises:
            OSError: There is no room for them, or the directory is another user's.
        """
        for directory in (self.directory, self._logs, self._artifacts):
            make_private(directory, hide=True)
        _reserve(draft_of(self.summary), min(jobs * _PER_JOB, _MOST_RESERVED))

    def write_summary(self, state: BatchState, *, now: float) -> None:
        """Write ``results.json``, whole or not at all; briefly if the disk has no room for more.

        Raises:
            OSError: Not even that was possible.
        """
        draft = draft_of(self.summary)
        try:
            _fill(draft, _written(state, now=now, briefly=False))
        except OSError:
            self._write_briefly(draft, state, now)
        draft.replace(self.summary)

    def _refuse_unless_empty(self) -> None:
        never_begun = {self.fleet_log, draft_of(self.events)}
        if self.resume.is_dir() and {self.jobs_file, draft_of(self.jobs_file)}.issuperset(self.resume.iterdir()):
            never_begun.add(self.resume)
        if never_begun.issuperset(there := list(self.directory.iterdir())):
            return
        if self.events in there:
            raise ResultsInTheWay(
                f"{self.directory} has the results of a batch; resume it with --resume, or name another directory"
            )
        raise ResultsInTheWay(f"{self.directory} is not empty; name another directory, or remove this one")

    def _hide(self) -> None:
        try:
            make_private(self.directory, hide=True)
        except PermissionError as error:
            raise ResultsInTheWay(
                f"{self.directory} cannot be kept from other users: {error.strerror}; name another directory"
            ) from error

    def _write_briefly(self, draft: Path, state: BatchState, now: float) -> None:
        try:
            _fill(draft, _written(state, now=now, briefly=True))
        except OSError as error:
            error.filename = error.filename or str(self.summary)  # writing, unlike opening, leaves it out
            raise


def draft_of(path: Path) -> Path:
    """Name the file that is filled first, and then takes the place of another."""
    return path.with_name(f".{path.name}.part")


def _reserve(path: Path, size: int) -> None:
    """Have a file with so much room, which other files cannot take any more."""
    _fill(path, (bytes(min(_BLOCK, size - done)) for done in range(0, size, _BLOCK)))


def _fill(path: Path, parts: Iterable[bytes]) -> None:
    """Write a file over what it is, and cut it off behind that."""
    file = open_private(path, os.O_WRONLY | os.O_CREAT)
    try:
        size, block = 0, bytearray()
        for part in chain(parts, [b""]):
            block += part
            if len(block) >= _BLOCK or not part:
                write_at(file, bytes(block), size)
                size += len(block)
                block.clear()
        os.ftruncate(file, size)
    finally:
        os.close(file)


def _written(state: BatchState, *, now: float, briefly: bool) -> Iterator[bytes]:
    """Yield ``results.json``, which need not be in memory as a whole."""
    return (part.encode() for part in _text(state, now=now, briefly=briefly))


def _text(state: BatchState, *, now: float, briefly: bool) -> Iterator[str]:
    """What became of a batch that ended at *now*, a job on each line: times in ISO 8601, durations in seconds."""
    head = {
        "version": SCHEMA_VERSION,
        "started": iso(state.started),
        "ended": iso(now),
        "duration": round(now - state.started, 3),
    }
    yield json.dumps(head).removesuffix("}") + ', "jobs": ['
    for number, record in enumerate(state.records):
        yield f"{',' if number else ''}\n  {json.dumps(_job(record, briefly=briefly))}"
    yield '\n], "fleet": {"instances": ['
    for number, instance in enumerate(_instances(state)):
        yield f"{',' if number else ''}\n  {json.dumps(instance)}"
    yield "\n]}}\n"


def _job(record: JobRecord, *, briefly: bool) -> Mapping[str, object]:
    """Give a job as data; briefly: with the last attempt only, and with the beginnings of what explains it."""
    most, attempts = _BRIEF if briefly else None, record.attempts
    return {
        "name": record.name,
        "state": record.state.value,
        "exit_code": attempts[-1].exit_code if attempts else None,
        "why": record.why[:most],
        "warnings": [] if briefly else list(record.warnings),
        "waited": None if record.waited is None else round(record.waited, 3),
        "duration": round(attempts[-1].duration, 3) if attempts else None,
        "attempts": [_attempt(attempt, most) for attempt in attempts[-1 if briefly else 0 :]],
    }


def _attempt(attempt: Attempt, most: int | None) -> Mapping[str, object]:
    return {
        "run": attempt.run,
        "pool": attempt.pool,
        "instance": attempt.instance,
        "slot": attempt.slot,
        "state": attempt.state.value,
        "exit_code": attempt.exit_code,
        "why": attempt.why[:most],
        "cpu_time": None if attempt.cpu_time is None else round(attempt.cpu_time, 3),
        "peak_memory": attempt.peak_memory,
        "disk_written": attempt.disk_written,
        "memory_limit": None if attempt.memory_limit is None else asdict(attempt.memory_limit),
        "interrupted": attempt.interrupted,
        "preempted": attempt.preempted,
        "started": iso(attempt.started),
        "ended": None if attempt.ended is None else iso(attempt.ended),
        "duration": round(attempt.duration, 3),
    }


@define
class _Use:
    """What an instance was used for."""

    attempts: int = 0
    lost: int = 0
    first: float = inf
    last: float = -inf

    def add(self, attempt: Attempt) -> None:
        self.attempts += 1
        self.lost += attempt.state is JobState.LOST
        self.first = min(self.first, attempt.started)
        self.last = max(self.last, attempt.ended or attempt.started)


def _instances(state: BatchState) -> Iterator[Mapping[str, object]]:
    """Of each instance that was given a job: how many it was given, and when the first began and the last ended."""
    uses: defaultdict[tuple[str, str], _Use] = defaultdict(_Use)
    for record in state.records:
        for attempt in record.attempts:
            uses[attempt.pool, attempt.instance].add(attempt)
    for (pool, instance), use in sorted(uses.items(), key=itemgetter(0)):
        yield {
            "pool": pool,
            "id": instance,
            "attempts": use.attempts,
            "lost": use.lost,
            "first_used": iso(use.first),
            "last_used": iso(use.last),
        }
