"""A run as its event log has it: what has become of its jobs, and of its fleet. Only reads, also while it runs."""

import fcntl
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from enum import Enum
from functools import cached_property
from pathlib import Path

from attrs import define, field

from fleeting.config import did_you_mean
from taskscaler import _old_record
from taskscaler._errors import NotRecorded, RecordUnreadable
from taskscaler._observe import GONE, DecisionEvent, InstanceEvent
from taskscaler._wording import enumerated
from taskscaler.batch import (
    Attempt,
    BatchState,
    JobRecord,
    JobState,
    RecordedEvent,
    Results,
    Resumed,
    fold,
    read_events,
)

NEWEST = 3
"""So many directories are named that may have been meant."""


class Progress(Enum):
    """How far a batch has come."""

    RUNNING = "running"
    INTERRUPTED = "interrupted"
    """No command runs it, and there is something left to do."""

    OVER = "over"


@define
class RecordedInstance:
    """One instance, as far as was recorded."""

    id: str
    pool: str
    changes: list[InstanceEvent] = field(factory=list)
    """At least one, in order."""

    attempts: list[tuple[str, Attempt]] = field(factory=list)
    """The tries that it was given, each with its job."""

    _unwatched: bool = False
    """Whether nobody has seen it since its last manager was stopped."""

    _went_unwatched: bool = False
    _taken: str | None = None
    """Why the cloud took it; None: it did not."""

    @property
    def state(self) -> str:
        """The last one that was recorded; see `InstanceEvent.state`."""
        return self.changes[-1].state

    @property
    def seen(self) -> bool:
        """Whether anybody has seen it since its last manager was stopped, if one was."""
        return not self._unwatched

    @property
    def lost(self) -> str | None:
        """Why it was lost: the cloud took it, or it went because work on it was; None: it was not."""
        if self._taken is not None or not self._removed:
            return self._taken
        whys = [
            attempt.why for _, attempt in self.attempts if attempt.state is JobState.LOST and not attempt.interrupted
        ]
        return (self._removed[0].why or whys[-1]) if whys else None

    @property
    def fate(self) -> str:
        """Why it went, or goes: in words, empty if it does not."""
        if self.lost is not None:
            return f"lost: {self.lost}"
        if self._went_unwatched:
            return "unwatched: no manager was running to see why"
        return f"removed: {self._removed[0].why}" if self._removed else ""

    @property
    def holding(self) -> Mapping[int, str]:
        """Which job has which slot."""
        return {attempt.slot: job for job, attempt in self.attempts if attempt.ended is None}

    @property
    def _removed(self) -> list[InstanceEvent]:
        return [change for change in self.changes if change.state == "deleting"]

    def take(self, event: InstanceEvent) -> None:
        """Take in its next change."""
        self.changes.append(event)
        if event.state == GONE and self._unwatched:
            self._went_unwatched = True
        elif event.lost and self._taken is None:
            self._taken = event.why
        if event.state != "creating":  # as which a manager knows it from its journal, before it has seen it
            self._unwatched = False

    def unwatched(self) -> None:
        """Its manager was stopped."""
        self._unwatched = self.state != GONE


@define(kw_only=True, slots=False)
class RecordedRun:
    """A batch, as far as is known."""

    directory: Path
    progress: Progress
    state: BatchState
    """What the events come to."""

    events: Sequence[RecordedEvent]
    """In order."""

    @property
    def started(self) -> float:
        """When it was begun, in seconds since the epoch."""
        return self.state.started

    @property
    def last(self) -> float:
        """When the last thing happened that is known."""
        return self.state.last

    @property
    def jobs(self) -> Mapping[str, JobRecord]:
        """By name, in the order of the batch."""
        return self.state.jobs

    @cached_property
    def fleet_recorded(self) -> bool:
        """Whether anything is known of its fleet."""
        return any(isinstance(event, InstanceEvent | DecisionEvent) for event in self.events)

    @cached_property
    def instances(self) -> Mapping[tuple[str, str], RecordedInstance]:
        """By pool and id, in the order in which they were first heard of."""
        instances: dict[tuple[str, str], RecordedInstance] = {}
        for event in self.events:
            match event:
                case InstanceEvent(pool=pool, instance=id_):
                    instances.setdefault((pool, id_), RecordedInstance(id_, pool)).take(event)
                case Resumed():
                    for instance in instances.values():
                        instance.unwatched()
        for job in self.jobs.values():
            for attempt in job.attempts:
                if (place := (attempt.pool, attempt.instance)) in instances:
                    instances[place].attempts.append((job.name, attempt))
        return instances

    def job(self, name: str) -> JobRecord:
        """One job.

        Raises:
            NotRecorded: There is none of that name.
        """
        if name not in self.jobs:
            near = self._copies(name) or did_you_mean(name, self.jobs)
            hint = near or f"it has {enumerated(list(self.jobs)) or 'none'}"
            raise NotRecorded(f"the batch in {self.directory} has no job {name!r}; {hint}")
        return self.jobs[name]

    def instance(self, name: str) -> RecordedInstance:
        """One instance of its fleet, by its id, or by ``pool/id``.

        Raises:
            NotRecorded: None of that name was recorded.
        """
        for (pool, id_), instance in self.instances.items():
            if name in {id_, f"{pool}/{id_}"}:
                return instance
        known = [id_ for _, id_ in self.instances]
        hint = did_you_mean(name, known) or (f"it had {enumerated(known)}" if known else "the fleet was not recorded")
        raise NotRecorded(f"the fleet of {self.directory} had no instance {name!r}; {hint}")

    def _copies(self, name: str) -> str:
        """Ask which copy was meant, if the jobs file has several under that name."""
        copies = [job for job in self.jobs if job.startswith(f"{name}-")]
        return f"did you mean one of `{copies[0]}` to `{copies[-1]}`?" if len(copies) > 1 else ""


def read_run(directory: Path) -> RecordedRun:
    """Read the run whose results are in a directory.

    Raises:
        NotRecorded: There are none.
        RecordUnreadable: They cannot be understood.
        OSError: They cannot be read.
    """
    if not directory.is_dir():
        near = did_you_mean(directory.name, (path.name for path in directory.parent.glob("*") if path.is_dir()))
        advice = near or "name one with results, or the id of a batch that was submitted"
        raise NotRecorded(f"there is no directory {directory}; {advice}")
    results = Results(directory)
    if results.events.exists():
        running = is_locked(results.events)
        events: Sequence[RecordedEvent] = read_events(results.events)
    elif _old_record.is_in(results):
        running = is_locked(_old_record.history(results))
        events = _old_record.events(results)
    else:
        raise NotRecorded(f"{directory} holds no results of a batch; {_elsewhere(directory)}")
    try:
        return recorded(directory, events, running=running)
    except ValueError as error:
        raise RecordUnreadable(f"{results.events} cannot be used: {error}") from error


def recorded(directory: Path, events: Sequence[RecordedEvent], *, running: bool) -> RecordedRun:
    """Make of the events of a run what is known of it.

    Raises:
        ValueError: They are not those of a run.
    """
    state = fold(events)
    if not running:
        state.interrupt()
    progress = Progress.OVER if state.over else Progress.RUNNING if running else Progress.INTERRUPTED
    return RecordedRun(directory=directory, progress=progress, state=state, events=events)


def _elsewhere(directory: Path) -> str:
    """Say where results may have been meant."""
    inside = [
        path.parent for name in ("events.jsonl", "resume", "results.json") for path in directory.glob(f"*/{name}")
    ]
    found = sorted(set(inside), key=lambda path: path.stat().st_mtime, reverse=True)[:NEWEST]
    if found:
        return f"did you mean {' or '.join(f'`{path}`' for path in found)}?"
    return "name the directory that `taskscaler run` wrote them to"


def is_locked(path: Path) -> bool:
    """Whether a command runs the batch: it holds a lock as long as it lives."""
    with suppress(FileNotFoundError, NotADirectoryError), path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def runner_of(path: Path) -> int | None:
    """Find the process that holds that lock, and so runs the batch. None: nobody does, or the system does not say."""
    with suppress(OSError):
        status = path.stat()
        place = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
        for line in Path("/proc/locks").read_text().splitlines():  # Linux
            match line.split():
                case [_, "FLOCK", _, "WRITE", pid, where, *_] if where == place and pid.isdecimal():
                    return int(pid)
    return None
