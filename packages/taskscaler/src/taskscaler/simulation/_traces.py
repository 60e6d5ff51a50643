"""Traces of jobs, whatever they are in: found out from what stands in the file."""

import gzip
import zlib
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

from attrs import frozen

from fleeting.plugins import span
from taskscaler._errors import TraceUnreadable
from taskscaler.batch import Results
from taskscaler.simulation._gitlab_jobs import read_gitlab_jobs
from taskscaler.simulation._jobs import Jobs
from taskscaler.simulation._parquet import read_parquet
from taskscaler.simulation._recorded import read_results
from taskscaler.simulation._synthetic import LONGEST
from taskscaler.simulation._tables import GZIP, read_csv

LOOKED_AT = 4096
"""Bytes at the begin of a file that show what it is."""


@frozen(kw_only=True)
class Trace:
    """Jobs that were read."""

    jobs: Jobs
    """At least one."""

    notes: tuple[str, ...]
    """What was left out, or taken for something, in sentences."""


def read_trace(path: Path, columns: Mapping[str, str] | None = None) -> Trace:
    """Read a trace: CSV, Parquet, GitLab's list of jobs, or the results of batches.

    Args:
        path: Of a file, or of a directory with results.
        columns: Which columns of a table have what: names by ``submit`` and ``duration``, or ``start`` and ``end``.
            What is not named is recognised.

    Raises:
        TraceUnreadable: It is damaged or too large, or does not say when jobs were submitted and how long they ran.
        OSError: It cannot be read.
    """
    given = columns or {}
    if path.exists() and not path.is_dir() and not path.is_file():
        raise TraceUnreadable(f"{path} is a pipe or a device; name a file")
    if path.is_dir():
        kind, (jobs, notes) = "results", read_results(path)
    else:
        with path.open("rb") as file:
            begin = file.read(LOOKED_AT)
        if begin.startswith(GZIP):
            begin = _unpacked(path)
        kind = _kind_of(path, begin)
        match kind:
            case "parquet":
                jobs, notes = read_parquet(path, given)
            case "json":
                jobs, notes = read_gitlab_jobs(path)
            case "events":
                if path.name != Results(path.parent).events.name:
                    raise TraceUnreadable(
                        f"{path} is the event log of a batch under another name; name the directory that it comes from"
                    )
                jobs, notes = read_results(path.parent)
            case _:
                jobs, notes = read_csv(path, given)
    if given and kind not in ("csv", "parquet"):
        raise TraceUnreadable(f"{path} is not a table, so it has no columns to name; leave --columns out")
    if not len(jobs):
        left_out = f" ({'; '.join(notes)})" if notes else ""
        raise TraceUnreadable(f"{path} has no job that has run{left_out}; name a trace with some")
    _check_span(path, jobs)
    return Trace(jobs=jobs, notes=tuple(notes))


def _check_span(path: Path, jobs: Jobs) -> None:
    """See that no time is far from all others: a null that was written as 0 makes a simulation of half a century."""
    if jobs.ends - jobs.begins > LONGEST:
        gap, before = max((later - earlier, earlier) for earlier, later in pairwise(jobs.submits))
        raise TraceUnreadable(
            f"{path} covers {span(jobs.ends - jobs.begins)}, expected at most five years: no job is submitted for"
            f" {span(gap)} after {before:.0f} s since the epoch; correct the times, or leave those jobs out"
        )


def _kind_of(path: Path, begin: bytes) -> str:
    text = begin.removeprefix(b"\xef\xbb\xbf").lstrip()
    if begin.startswith(b"PAR1"):
        return "parquet"
    if begin.startswith(b"SQLite format 3\0"):
        raise TraceUnreadable(
            f"{path} is the journal of a fleet, which holds what is there now and not which jobs have run;"
            " name the results of its batches"
        )
    if begin.startswith(b"PK\x03\x04"):
        raise TraceUnreadable(f"{path} is a ZIP archive or a workbook; unpack it, or export it as CSV")
    if text.startswith((b'{"format": "taskscaler events"', b'{"format":"taskscaler events"')):
        return "events"
    if text[:1] in (b"[", b"{"):
        return "json"
    return "csv"


def _unpacked(path: Path) -> bytes:
    try:
        with gzip.open(path) as file:
            return file.read(LOOKED_AT)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise TraceUnreadable(f"{path} is damaged: {error}; copy it again") from error
