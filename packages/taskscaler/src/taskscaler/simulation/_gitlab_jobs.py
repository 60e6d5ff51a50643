"""GitLab's own list of jobs, as its API at ``/jobs`` gives it. Pure, but for reading the file.

A job is submitted when it begins to wait for a runner: ``started_at`` less ``queued_duration``. Its ``created_at`` is
that of its pipeline, whose earlier stages it had to wait for first; it is used where the other is missing.
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from taskscaler._errors import TraceUnreadable
from taskscaler.simulation._cells import LONGEST_JOB, read_duration, read_time
from taskscaler.simulation._jobs import Jobs
from taskscaler.simulation._tables import Gathered

MOST_BYTES = 256 << 20
"""Of the file: some 70,000 jobs take that, with all that the API says of each."""


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
    if path.stat().st_size > MOST_BYTES:
        raise TraceUnreadable(f"{path} is larger than {MOST_BYTES >> 20} MiB; make CSV of it with two columns")
    gathered, number = Gathered(), 0
    try:
        for job in _objects(path.read_text(encoding="utf-8-sig")):
            number += 1
            gathered.add(_job(job))
    except json.JSONDecodeError as error:
        raise TraceUnreadable(f"{path}, line {error.lineno}: {error.msg}; {_EXPECTED}") from error
    except UnicodeDecodeError as error:
        raise TraceUnreadable(f"{path} is not UTF-8") from error
    except RecursionError as error:
        raise TraceUnreadable(f"{path} is not a list of jobs: it is nested too deeply") from error
    except ValueError as error:
        raise TraceUnreadable(f"{path}, job {number}: {error}; {_EXPECTED}") from error
    return gathered.jobs(), gathered.notes()


def _objects(text: str) -> Iterator[object]:
    """Read one value after the other, of arrays their elements: so that not all of a large file is in memory twice."""
    decoder, at, in_array, is_first = json.JSONDecoder(), 0, False, False
    while (at := _skip(text, at)) < len(text):
        if not in_array and text[at] == "[":
            at, in_array, is_first = at + 1, True, True
            continue
        if in_array and text[at] == "]":
            at, in_array = at + 1, False
            continue
        if in_array and not is_first:
            if text[at] != ",":
                raise json.JSONDecodeError("Expecting ',' or ']'", text, at)
            at = _skip(text, at + 1)
        found, at = decoder.raw_decode(text, at)
        is_first = False
        yield found
    if in_array:
        raise json.JSONDecodeError("Expecting ']'", text, at)


def _skip(text: str, at: int) -> int:
    """Pass over white space."""
    found = _NOT_BLANK.search(text, at)
    return found.start() if found else len(text)


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
