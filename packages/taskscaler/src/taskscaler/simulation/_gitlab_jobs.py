"""GitLab's own list of jobs, as its API at ``/jobs`` gives it. Pure, but for reading the file.

A job is submitted when it begins to wait for a runner: ``started_at`` less ``queued_duration``. Its ``created_at`` is
that of its pipeline, whose earlier stages it had to wait for first; it is used where the other is missing.
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TextIO

from attrs import define

from taskscaler._errors import TraceUnreadable
from taskscaler.simulation._cells import LONGEST_JOB, read_duration, read_time
from taskscaler.simulation._jobs import Jobs
from taskscaler.simulation._tables import Gathered

LONGEST_JOB_TEXT = 1 << 20
"""Characters of one job, as JSON: with all that the API says of it, it has some 4,000. What that is made into takes
twenty times as much memory at most."""

BLOCK = 1 << 18
"""Characters that are read at once."""

NEAR = 16
"""Characters: no word or escape is longer. So near to the end of what was read, what follows may right a mistake."""

_NOT_BLANK = re.compile(r"\S")
_EXPECTED = "expected JSON as GitLab's API gives it at /jobs, or else a table"


def read_gitlab_jobs(path: Path) -> tuple[Jobs, list[str]]:
    """Read what the API gave: one array or several, one after the other, or an object on each line.

    Returns:
        The jobs, and what was left out, in sentences.

    Raises:
        TraceUnreadable: With the job that is wrong.
        OSError: It cannot be read.
    """
    gathered, number = Gathered(), 0
    try:
        with path.open(encoding="utf-8-sig") as file:
            for job in _objects(_Text(file)):
                number += 1
                gathered.add(_job(job))
    except _Malformed as error:
        raise TraceUnreadable(f"{path}, {error}; {_EXPECTED}") from error
    except UnicodeDecodeError as error:
        raise TraceUnreadable(f"{path} is not UTF-8; {_EXPECTED}") from error
    except RecursionError as error:
        raise TraceUnreadable(f"{path} is not a list of jobs: it is nested too deeply; {_EXPECTED}") from error
    except ValueError as error:
        raise TraceUnreadable(f"{path}, job {number}: {error}; {_EXPECTED}") from error
    return gathered.jobs(), gathered.notes()


class _Malformed(Exception):
    """It is no JSON; with the line."""


@define
class _Text:
    """A text that is read as far as it is needed, and forgotten behind."""

    _file: TextIO
    _read: str = ""
    _at: int = 0
    _lines: int = 0
    """That were forgotten."""

    _is_whole: bool = False
    """Whether what was read goes to the end."""

    def peek(self) -> str:
        """The next character that is not white space; empty at the end."""
        while True:
            found = _NOT_BLANK.search(self._read, self._at)
            self._at = found.start() if found else len(self._read)
            if found or self._is_whole:
                return found[0] if found else ""
            self._read_on()

    def skip(self) -> None:
        """Go on behind that."""
        self._at += 1

    def value(self) -> object:
        """Read one value. Raises _Malformed."""
        while True:
            try:
                found, self._at = _DECODER.raw_decode(self._read, self._at)
            except json.JSONDecodeError as error:
                is_cut = error.msg.startswith("Unterminated string") or error.pos >= len(self._read) - NEAR
                if self._is_whole or not is_cut:
                    raise self.malformed(error.msg, error.pos) from error
            else:
                return found
            if len(self._read) - self._at > LONGEST_JOB_TEXT:
                raise self.malformed(f"a job of more than {LONGEST_JOB_TEXT >> 20} MiB, or a text without its end")
            self._read_on()

    def malformed(self, what: str, at: int | None = None) -> _Malformed:
        """Say what is wrong, and in which line."""
        line = self._lines + self._read.count("\n", 0, self._at if at is None else at) + 1
        return _Malformed(f"line {line}: {what}")

    def _read_on(self) -> None:
        block = self._file.read(BLOCK)
        self._is_whole = not block
        self._lines += self._read.count("\n", 0, self._at)
        self._read, self._at = self._read[self._at :] + block, 0


_DECODER = json.JSONDecoder()


def _objects(text: _Text) -> Iterator[object]:
    """Read one value after the other, of arrays their elements: so that no large file is ever in memory."""
    in_array, is_first = False, False
    while begin := text.peek():
        if not in_array and begin == "[":
            text.skip()
            in_array, is_first = True, True
            continue
        if in_array and begin == "]":
            text.skip()
            in_array = False
            continue
        if in_array and not is_first:
            if begin != ",":
                raise text.malformed("Expecting ',' or ']'")
            text.skip()
            text.peek()
        is_first = False
        yield text.value()
    if in_array:
        raise text.malformed("Expecting ']'")


def _job(job: object) -> tuple[float, float] | None:
    """Read one; None: it never ran, or runs still."""
    if not isinstance(job, Mapping):
        raise ValueError("it is not an object")
    if "started_at" not in job and "created_at" not in job:
        raise ValueError("it has neither `started_at` nor `created_at`")
    started, duration = _read(job, "started_at"), job.get("duration")
    if started is None or duration is None:
        return None
    try:
        ran = read_duration(duration, 1.0)
        queued = None if job.get("queued_duration") is None else read_duration(job["queued_duration"], 1.0)
    except ValueError as error:
        raise ValueError(f"a duration is not {error}") from None
    if not 0 <= ran <= LONGEST_JOB or not 0 <= (queued or 0.0) <= LONGEST_JOB:
        raise ValueError("a duration is not between 0 s and a year")
    created = _read(job, "created_at") if queued is None else started - queued
    return round(started if created is None else min(created, started), 6), ran


def _read(job: Mapping[str, object], key: str) -> float | None:
    if job.get(key) is None:
        return None
    try:
        return read_time(job[key])
    except ValueError as error:
        raise ValueError(f"`{key}` is {str(job[key])[:40]!r}, expected {error}") from None
