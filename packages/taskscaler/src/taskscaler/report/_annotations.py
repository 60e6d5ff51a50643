"""Annotations that CI systems show beside a change: of the jobs that ended badly. Pure."""

import json
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256

from fleeting.plugins import one_line
from taskscaler._wording import counted
from taskscaler.batch import BatchState, JobRecord, JobState

FAILURES = (JobState.FAILED, JobState.TIMED_OUT, JobState.LOST, JobState.NO_CAPACITY)
"""How a job ends badly."""

MOST_OF_GITHUB = 10
"""Errors that GitHub shows of one step; the rest is not shown."""

_LONGEST = 1024
"""Bytes of an annotation."""

_DATA = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A"})
_PROPERTY = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A", ":": "%3A", ",": "%2C"})

Tail = Callable[[str], Sequence[str]]
"""Gives the last lines that a job has printed."""


def github(state: BatchState, tail: Tail) -> Iterator[str]:
    """Write workflow commands, one a line, as GitHub Actions reads them on standard output."""
    failed = [record for record in state.records if record.state in FAILURES]
    shown = failed if len(failed) <= MOST_OF_GITHUB else failed[: MOST_OF_GITHUB - 1]
    for record in shown:
        title = f"{record.name} {record.state.words}"
        yield f"::error title={title.translate(_PROPERTY)}::{_message(record, tail).translate(_DATA)}"
    if len(shown) < len(failed):
        more = counted(len(failed) - len(shown), "more job")
        yield f"::error title={more} failed::see the summary, or results.json"


def gitlab(state: BatchState, tail: Tail, *, path: str) -> Iterator[str]:
    """Write a report of GitLab's code quality, in pieces: each job is a finding in the jobs file.

    Args:
        state: Of the batch.
        tail: Gives the last lines of a job.
        path: Of the jobs file, relative to the repository.
    """
    comma = ""
    yield "["
    for record in state.records:
        if record.state in FAILURES:
            finding = {
                "description": f"{record.name} {record.state.words}: {_message(record, tail)}",
                "check_name": f"taskscaler/{record.state.value}",
                "fingerprint": sha256(f"taskscaler {path} {record.name}".encode()).hexdigest(),
                "severity": "major",
                "location": {"path": path, "lines": {"begin": 1}},
            }
            yield f"{comma}\n  {json.dumps(finding)}"
            comma = ","
    yield "\n]\n"


def _message(record: JobRecord, tail: Tail) -> str:
    """Say why it ended so, with its last line of output."""
    last = tail(record.name)[-1:]
    return one_line(" · ".join(filter(None, [record.why or record.state.words, *last])), _LONGEST)
