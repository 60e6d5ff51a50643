"""The directory that a batch leaves: one log per job, their artifacts, and ``results.json``."""

import json
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path

from attrs import frozen

from taskscaler._errors import ResultsInTheWay
from taskscaler._wording import iso
from taskscaler.batch._history import draft_of
from taskscaler.batch._state import Attempt, BatchState, JobRecord, JobState

SCHEMA_VERSION = 1
"""Of ``results.json``; raised when a key changes its meaning or goes."""


@frozen
class Results:
    """Where everything is."""

    directory: Path

    def log(self, name: str) -> Path:
        """One job's log: what it printed, in all its tries."""
        return self.directory / "logs" / f"{name}.log"

    def artifacts(self, name: str) -> Path:
        """The directory of one job's artifacts; there only if it left any."""
        return self.directory / "artifacts" / name

    @property
    def summary(self) -> Path:
        """What became of each job, for programs."""
        return self.directory / "results.json"

    @property
    def fleet_log(self) -> Path:
        """What the libraries logged: every change asked of the cloud, and every failure."""
        return self.directory / "fleet.log"

    @property
    def fleet_record(self) -> Path:
        """What became of the fleet, event by event; see `read_record`."""
        return self.directory / "fleet.jsonl"

    def timeline(self, format_: str) -> Path:
        """The picture of the run, as ``svg`` or ``png``."""
        return self.directory / f"timeline.{format_}"

    @property
    def history(self) -> Path:
        """The directory of what a later command needs to go on."""
        return self.directory / "resume"

    def prepare(self) -> Sequence[Path]:
        """Make the directory, or see that it is empty; the traces of a fleet that never had a job may be there.

        Returns:
            The directories that were made, innermost first.

        Raises:
            ResultsInTheWay: There is something already; results are never mixed.
            OSError: It cannot be made.
        """
        made = list(takewhile(lambda path: not path.exists(), (self.directory, *self.directory.parents)))
        if made:
            try:
                self.directory.mkdir(parents=True)
            except FileExistsError as error:
                raise ResultsInTheWay(f"{self.directory} is another run's; name another directory") from error
        never_begun = {self.fleet_log, self.fleet_record, draft_of(self.history)}
        if any(path not in never_begun for path in self.directory.iterdir()):
            raise ResultsInTheWay(f"{self.directory} is not empty; name another directory, or remove it")
        return made

    def begin(self) -> None:
        """Make what is in the directory, unless an earlier run did."""
        self.log("").parent.mkdir(exist_ok=True)
        self.artifacts("").mkdir(exist_ok=True)

    def write_summary(self, state: BatchState, *, now: float) -> None:
        """Write ``results.json``, whole or not at all."""
        text = json.dumps(as_json(state, now=now), indent=2) + "\n"
        write_atomically(self.summary, text.encode())


def as_json(state: BatchState, *, now: float) -> Mapping[str, object]:
    """Tell what became of a batch that ended at *now*: times in ISO 8601, durations in seconds."""
    return {
        "version": SCHEMA_VERSION,
        "started": iso(state.started),
        "ended": iso(now),
        "duration": round(now - state.started, 3),
        "jobs": [_job(record) for record in state.records],
        "fleet": {"instances": _instances(state)},
    }


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file such that whoever looks sees the old one or the new one."""
    draft = path.with_name(f".{path.name}.part")
    draft.write_bytes(content)
    draft.replace(path)


def _job(record: JobRecord) -> Mapping[str, object]:
    return {
        "name": record.name,
        "state": record.state.value,
        "exit_code": record.exit_code,
        "why": record.why,
        "warnings": list(record.warnings),
        "waited": None if record.waited is None else round(record.waited, 3),
        "duration": round(record.attempts[-1].duration, 3) if record.attempts else None,
        "attempts": [_attempt(attempt) for attempt in record.attempts],
    }


def _attempt(attempt: Attempt) -> Mapping[str, object]:
    return {
        "pool": attempt.pool,
        "instance": attempt.instance,
        "slot": attempt.slot,
        "state": attempt.state.value,
        "exit_code": attempt.exit_code,
        "why": attempt.why,
        "cpu_time": None if attempt.cpu_time is None else round(attempt.cpu_time, 3),
        "peak_memory": attempt.peak_memory,
        "interrupted": attempt.interrupted,
        "preempted": attempt.preempted,
        "started": iso(attempt.started),
        "ended": None if attempt.ended is None else iso(attempt.ended),
        "duration": round(attempt.duration, 3),
    }


def _instances(state: BatchState) -> list[Mapping[str, object]]:
    """Tell of each instance that was given a job how many, and when the first began and the last ended."""
    attempts: dict[tuple[str, str], list[Attempt]] = {}
    for record in state.records:
        for attempt in record.attempts:
            attempts.setdefault((attempt.pool, attempt.instance), []).append(attempt)
    return [
        {
            "pool": pool,
            "id": instance,
            "attempts": len(tries),
            "lost": sum(attempt.state is JobState.LOST for attempt in tries),
            "first_used": iso(min(attempt.started for attempt in tries)),
            "last_used": iso(max(attempt.ended or attempt.started for attempt in tries)),
        }
        for (pool, instance), tries in sorted(attempts.items())
    ]
