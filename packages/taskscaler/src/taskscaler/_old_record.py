"""Results that releases before the event log have left: what they say, as the events that there would be today.

They wrote the tries at the jobs to ``resume/history.jsonl``, what became of the fleet to ``fleet.jsonl``, what became
of jobs that were never tried to ``results.json`` alone; which jobs there are stands in the copy of the jobs file that
was kept until the batch was over. Any of these may be missing, but for one of the first and the third.
"""

import fcntl
import json
import os
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from heapq import merge
from itertools import accumulate, islice
from math import inf
from pathlib import Path
from typing import Any

from attrs import define, field, frozen

from fleeting.plugins import open_private, write_whole
from taskscaler._errors import CannotResume, NotRecorded, RecordUnreadable
from taskscaler._jobsfile import Defaults, JobTable
from taskscaler._jobsfile._expansion import Expansion
from taskscaler._observe import DecisionEvent, InstanceEvent, read_decision
from taskscaler.batch import (
    Attempt,
    BatchState,
    Begun,
    Ended,
    GivenUp,
    JobState,
    Over,
    Planned,
    PoolFacts,
    RecordedEvent,
    Results,
    Resumed,
    Retries,
    Started,
)
from taskscaler.batch._events import as_line, header

MOST_BYTES = 1 << 30
"""Of a file: a try takes two hundred, and those releases kept all of them in memory, too."""

HISTORY_VERSION = 2
FLEET_VERSION = 1

_NEWER = "a newer release has written it; use that release"

_ROUNDED = 0.001
"""Seconds by which a time in ``results.json`` may be too early."""

_ABSENT = (FileNotFoundError, NotADirectoryError)


def history(results: Results) -> Path:
    """Name the file of the tries; a command that runs the batch holds a lock on it."""
    return results.resume / "history.jsonl"


def is_in(results: Results) -> bool:
    """Whether there are results of an earlier release."""
    return history(results).exists() or results.summary.exists()


def events(results: Results) -> Sequence[RecordedEvent]:
    """Give what happened in a batch that an earlier release has run.

    Raises:
        RecordUnreadable: A file is damaged.
        NotRecorded: There is something else in the place of ``results.json``.
        OSError: A file cannot be read.
    """
    record = _Record()
    fleet = results.directory / "fleet.jsonl"
    with suppress(*_ABSENT):
        _read_lines(fleet, record.take_fleet, lenient=True)
    with suppress(*_ABSENT):
        _read_lines(history(results), record.take_try)
    with suppress(*_ABSENT):
        record.summary = _read_summary(results.summary)
    with suppress(*_ABSENT, ValueError, TypeError, LookupError, RecursionError):
        record.retries = _retries(_read(results.jobs_file).decode())
    if record.begun is None and (record.summary is None or history(results).exists()):
        raise RecordUnreadable(f"{history(results)} cannot be used: its first line is missing")
    return list(record.events())


def adopt(results: Results) -> None:
    """Make an event log of what an earlier release has left, so that the batch can be resumed.

    Raises:
        CannotResume: A command of that release still runs the batch.
        RecordUnreadable: A file is damaged.
        OSError: The log cannot be written.
    """
    try:
        lock = open_private(history(results), os.O_RDWR)
    except _ABSENT:
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        write_whole(results.events, b"".join([header(), *map(as_line, events(results))]))
    except BlockingIOError:
        raise CannotResume(f"the batch in {results.directory} is still being run; end that first") from None
    finally:
        os.close(lock)


def _read(path: Path) -> bytes:
    """Read a whole file; raises RecordUnreadable if it is too large."""
    with path.open("rb") as file:
        found = file.read(MOST_BYTES + 1)
    if len(found) > MOST_BYTES:
        raise RecordUnreadable(f"{path} cannot be used: it has more than {MOST_BYTES} bytes, as none of a batch has")
    return found


def _read_lines(path: Path, take: Callable[..., None], *, lenient: bool = False) -> None:
    """Take in all whole lines of a file; those that make no sense are passed over if *lenient*."""
    whole, _, _ = _read(path).rpartition(b"\n")
    for number, line in enumerate(whole.splitlines(), 1):
        try:
            take(**json.loads(line))
        except RecordUnreadable as error:
            raise RecordUnreadable(f"{path} cannot be used: {error}") from None
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            if not lenient:
                raise RecordUnreadable(f"{path} cannot be used: line {number} is not a valid event") from error


def _retries(text: str) -> Mapping[str, int | Retries]:
    """Find in a jobs file which jobs there are, and how often each is retried."""
    data = tomllib.loads(text)
    default = data.get("defaults", {}).get("retries", Defaults().retries)
    keys = ("name", "script", "copies", "retries")
    tables = [JobTable(**{key: table[key] for key in keys if key in table}) for table in data["jobs"]]
    return {
        name: default if table.retries is None else table.retries
        for table in tables
        for name in Expansion(table=table).names()
    }


@frozen(kw_only=True)
class _Summary:
    """What ``results.json`` says."""

    started: float
    ended: float
    jobs: Mapping[str, tuple[JobState, str, Sequence[Attempt]]]
    """By name: how each stands and why, and its tries."""


def _read_summary(path: Path) -> _Summary:
    try:
        data = json.loads(_read(path))
        jobs = {
            job["name"]: (JobState(job["state"]), job["why"], [*map(_attempt, job["attempts"])]) for job in data["jobs"]
        }
        return _Summary(started=_time(data["started"]), ended=_time(data["ended"]), jobs=jobs)
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise NotRecorded(f"{path} cannot be used: no batch wrote it") from error


def _attempt(attempt: Mapping[str, Any]) -> Attempt:
    return Attempt(
        pool=attempt.get("pool", ""),
        instance=attempt["instance"],
        slot=attempt["slot"],
        started=_time(attempt["started"]),
        ended=None if attempt["ended"] is None else _time(attempt["ended"]),
        state=JobState(attempt["state"]),
        exit_code=attempt["exit_code"],
        why=attempt["why"],
        interrupted=attempt["interrupted"],
        preempted=attempt.get("preempted", False),
    )


def _time(iso: str) -> float:
    return datetime.fromisoformat(iso).timestamp()


_Tried = Started | Ended | Resumed


@define
class _Record:
    """What the files say."""

    begun: float | None = None
    jobs_file: str = ""
    over: bool | None = None
    """Whether it was over well; None: it was not."""

    summary: _Summary | None = None
    retries: Mapping[str, int | Retries] = field(factory=dict)
    """By job, in the order of the batch; empty if that is not known any more."""

    _tries: list[_Tried] = field(factory=list)
    _attempts: dict[str, list[Attempt]] = field(factory=dict)
    """By job, as they were last heard of."""

    _fleet: list[InstanceEvent | DecisionEvent | Resumed] = field(factory=list)
    _pools: dict[str, str] = field(factory=dict)
    """By instance."""

    def take_fleet(self, *, event: str, at: float, **data: Any) -> None:  # noqa: ANN401  (JSON)
        """Take in a line of the record of the fleet."""
        match event:
            case "opened":
                if data["version"] > FLEET_VERSION:
                    raise RecordUnreadable(_NEWER)
                self._fleet.append(Resumed(at=float(at), pools=tuple(PoolFacts(**pool) for pool in data["pools"])))
            case "instance":
                change = InstanceEvent(at=float(at), **data)
                self._pools[change.instance] = change.pool
                self._fleet.append(change)
            case "decision":
                self._fleet.append(read_decision(at=at, decision=data["decision"]))

    def take_try(self, *, event: str, **data: Any) -> None:  # noqa: ANN401  (JSON)
        """Take in a line of the history."""
        match event:
            case "begun":
                if data["version"] > HISTORY_VERSION:
                    raise RecordUnreadable(_NEWER)
                self.begun, self.jobs_file = float(data["started"]), data["jobs_file"]
            case "try":
                attempt = Attempt(**{**data["attempt"], "state": JobState(data["attempt"]["state"])})
                self._take(data["job"], data["number"], attempt, tuple(data["warnings"]))
            case "resumed":
                self._tries.append(Resumed(at=0.0))
            case "over":
                self.over = bool(data["well"])
            case _:
                raise ValueError(event)

    def _take(self, job: str, number: int, attempt: Attempt, warnings: tuple[str, ...] = ()) -> None:
        known = self._attempts.setdefault(job, [])
        if number > len(known):
            pool = attempt.pool or self._pools.get(attempt.instance, "")
            self._tries.append(
                Started(at=attempt.started, job=job, pool=pool, instance=attempt.instance, slot=attempt.slot)
            )
        known[number - 1 :] = [attempt]
        if attempt.interrupted and attempt.ended is not None:
            self._tries.append(Resumed(at=attempt.ended))
        elif attempt.ended is not None:
            self._tries.append(
                Ended(
                    at=attempt.ended,
                    job=job,
                    state=attempt.state,
                    exit_code=attempt.exit_code,
                    why=attempt.why,
                    cpu_time=attempt.cpu_time,
                    peak_memory=attempt.peak_memory,
                    disk_written=attempt.disk_written,
                    preempted=attempt.preempted,
                    warnings=warnings,
                )
            )

    # --- all of it -----------------------------------------------------------------------------------------------

    def events(self) -> Iterator[RecordedEvent]:
        """Put all of it in the order in which it happened."""
        if self.begun is None:
            self._take_summary()
        opened = next((event for event in self._fleet if isinstance(event, Resumed)), Resumed(at=0.0))
        begun = Begun(at=self.begun or 0.0, jobs=self._jobs(), pools=opened.pools, jobs_file=self.jobs_file)
        fleet = [event for event in self._fleet if event is not opened]
        ended = [self.summary] if self.summary else []
        tries = self._timed([event.at for event in fleet if isinstance(event, Resumed)], begun)
        state = BatchState(begun)
        yield begun
        for event in merge(tries, _never_back(fleet), [(each.ended + _ROUNDED, each) for each in ended], key=_first):
            for each in _given_up(event[1], state) if isinstance(event[1], _Summary) else [event[1]]:
                state.apply(each)
                yield each
        if self.over is not None:
            yield Over(at=state.last, well=self.over)

    def _take_summary(self) -> None:
        """Where there is no history, the tries are those of ``results.json``."""
        if self.summary is None:
            return
        self.begun = self.summary.started
        for name, (_, _, attempts) in self.summary.jobs.items():
            for number, attempt in enumerate(attempts, 1):
                self._take(name, number, attempt)
        self._tries.sort(key=lambda event: event.at)
        states = [state for state, _, _ in self.summary.jobs.values()]
        if all(state.stands for state in states):
            self.over = all(state is JobState.SUCCEEDED for state in states)

    def _jobs(self) -> tuple[Planned, ...]:
        known = dict.fromkeys([*(self.retries or (self.summary.jobs if self.summary else ())), *self._attempts])
        return tuple(Planned(name=name, retries=self._retries_of(name)) for name in known)

    def _retries_of(self, name: str) -> int | Retries:
        """How often a job may be retried; where that is not known any more, as often as comes to what it did."""
        if name in self.retries:
            return self.retries[name]
        attempts = self._attempts.get(name, [])
        losses = sum(each.state is JobState.LOST and not each.excused for each in attempts)
        last_lost = bool(attempts) and attempts[-1].state is JobState.LOST and not attempts[-1].excused
        state = self.summary.jobs[name][0] if self.summary and name in self.summary.jobs else JobState.LOST
        return losses - 1 if last_lost and state is JobState.LOST else losses

    def _timed(self, opened: Sequence[float], begun: Begun) -> Iterator[tuple[float, RecordedEvent]]:
        """Say when each thing happened. Of a command that resumed the batch, the record of the fleet says it, too."""
        last = begun.at
        for number, event in enumerate(self._tries):
            if isinstance(event, Resumed):
                later = islice(self._tries, number, None)
                following = next((each.at for each in later if not isinstance(each, Resumed)), inf)
                if any(last <= at <= following for at in opened):
                    continue
                event = Resumed(at=max(last, event.at), pools=begun.pools)  # noqa: PLW2901  (with its time)
            last = max(last, event.at)
            yield last, event


def _never_back(events: Sequence[RecordedEvent]) -> Iterator[tuple[float, RecordedEvent]]:
    """Say when each happened, though a clock may have been set back."""
    return zip(accumulate((event.at for event in events), max), events, strict=True)


def _first(timed: tuple[float, object]) -> float:
    return timed[0]


def _given_up(summary: _Summary, state: BatchState) -> Iterator[RecordedEvent]:
    """Which jobs a command gave up when it ended, as only ``results.json`` says."""
    for name, (end, why, _) in summary.jobs.items():
        if end.stands or not end.final:
            continue
        if state[name].state is JobState.QUEUED:
            yield GivenUp(at=summary.ended, jobs=(name,), state=end, why=why)
        elif state[name].state is JobState.RUNNING:
            yield Ended(at=summary.ended, job=name, state=end, why=why)
