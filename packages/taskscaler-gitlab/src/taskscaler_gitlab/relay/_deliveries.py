"""What is noted down of jobs that sidecars run: enough to go on after this process was killed at any point.

A directory for each job, for our user alone, with one file, ``delivery.json``. Neither the job's description nor,
unless the operator wants it, its token is there: what is known of tokens are their hashes.
"""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attrs import asdict, frozen

from fleeting.plugins import make_private, one_line, structure, write_whole
from gitlab_jobs import Job
from taskscaler_gitlab._names_of_traces import context_of
from taskscaler_gitlab._record import JobDirectory
from taskscaler_gitlab.relay._relay import Record, hashed

MAX_RECORD = 1 << 20
"""Bytes of a record that we have written ourselves; it names every job that one depends on."""

_FILE = "delivery.json"
_SINCE = ("traceparent", "tracestate", "rule", "dispatched", "pools")
"""What earlier releases do not know: where there is none, they read what this one has written."""


def record_of(job: Job, *, key: str, prefix: str, now: float, keeps_token: bool) -> Record:
    """What is noted down of a job that GitLab has just handed out."""
    part_of = context_of(job)
    return Record(
        job=job.id,
        name=one_line(job.job_info.name),
        project=one_line(job.job_info.project_full_path),
        key=key,
        prefix=prefix,
        taken_at=now,
        token_hash=hashed(job.token),
        token=job.token if keeps_token else "",
        dependencies={str(each.id): hashed(each.token) for each in job.dependencies},
        traceparent="" if part_of is None else part_of.traceparent,
        tracestate="" if part_of is None else part_of.state,
    )


def encoded(record: Record) -> bytes:
    """Write it as JSON."""
    how = record.how and record.how.value
    known = asdict(record) | {"standing": record.standing.value, "how": how}
    unsaid = {name for name in _SINCE if not known[name]}
    return json.dumps({name: value for name, value in known.items() if name not in unsaid}).encode()


def decoded(data: bytes) -> Record:
    """Read it.

    Raises:
        ValueError, ConfigError: It is none of ours.
    """
    found: Any = json.loads(data)
    if isinstance(found, dict):  # JSON has a null where a value is missing
        found = {key: value for key, value in found.items() if value is not None}
    return structure(found, Record)


@frozen
class DeliveryDirectory:
    """The directory of one job."""

    path: Path

    @classmethod
    def of(cls, deliveries: Path, origin: str, job: int, key: str) -> "DeliveryDirectory":
        """Name the directory as `JobDirectory.of` does, so that even the name of a damaged one says whose it is."""
        return cls(JobDirectory.of(deliveries, origin, job, key).path)

    @property
    def key(self) -> str:
        """Under which the job has its lease; empty: nobody knows."""
        return JobDirectory(self.path).key

    def note(self, record: Record) -> None:
        """Note down where it stands.

        Raises:
            OSError: It cannot be written.
        """
        make_private(self.path)
        write_whole(self.path / _FILE, encoded(record))

    def read(self) -> Record:
        """Read what is noted down.

        Raises:
            OSError, ValueError, ConfigError: It cannot be read.
        """
        with (self.path / _FILE).open("rb") as file:
            return decoded(file.read(MAX_RECORD))

    def size(self) -> int:
        """Bytes of its log here: none."""
        return 0

    def remove(self) -> None:
        """Leave nothing of it."""
        shutil.rmtree(self.path, ignore_errors=True)


def found(directory: Path) -> Iterator[DeliveryDirectory]:
    """Find the jobs that are not over, and remove what is left of others."""
    make_private(directory, hide=True)
    for path in sorted(directory.iterdir()):
        if (path / _FILE).exists():
            yield DeliveryDirectory(path)
        elif path.is_dir():
            DeliveryDirectory(path).remove()
