"""The record of a fleet, in ``fleet.jsonl``: what pictures, reports and explanations of a batch are made from.

One JSON object on a line for each event, with the time ``at`` which it happened in seconds since the epoch::

    opened     a manager begins; how its pools are set
    instance   an instance came to be in another state
    lease      a job was given a slot, gave it back, or lost it
    decision   a scaling decision that differs from the last, as data and as text

A batch that is gone on with has several managers, one after the other, in the same file. One that was killed may have
left a line without its end. That event is not told of; nothing else depends on it.
"""

import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import Any

from attrs import asdict, frozen

from fleeting.plugins import open_private
from taskscaler._errors import RecordUnreadable
from taskscaler._observe import DecisionEvent, InstanceEvent, LeaseEvent, ScalerEvent, event_as_data
from taskscaler.core._decide import Decision, Demand, PoolDecision, Removal, Sleep, Wake

VERSION = 1
"""Of the file; raised when an earlier release would misunderstand it."""

log = logging.getLogger("taskscaler.record")


@frozen(kw_only=True)
class PoolFacts:
    """How one pool is set, as far as it helps to understand what happened."""

    name: str
    plugin: str
    capacity_per_instance: int
    max_instances: int
    """0: any number."""

    max_use_count: int = 0
    """0: any number."""


@frozen(kw_only=True)
class Opened:
    """A manager began; what had no end before has none that is known."""

    at: float
    """Seconds since the epoch."""

    pools: tuple[PoolFacts, ...]


RecordedEvent = Opened | ScalerEvent


class FleetRecord:
    """Writes the record; an observer of a `Taskscaler`.

    It is there to be looked at, and nothing relies on it: where it cannot be written, that is logged once, and the
    batch goes on.
    """

    def __init__(self, path: Path, pools: Sequence[PoolFacts]) -> None:
        """Name the file, which is appended to if it exists; nothing is written before the first event."""
        self._path = path
        self._pools = tuple(pools)
        self._file: int | None = None
        self._opened = False
        self._failing = False

    def __call__(self, event: ScalerEvent) -> None:
        """Write down one event."""
        if not self._opened:
            self._opened = self._append(Opened(at=event.at, pools=self._pools))
        self._append(event)

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _append(self, event: RecordedEvent) -> bool:
        """Append; tell whether it is there."""
        try:
            if self._file is None:
                self._file = _open(self._path)
            _write_line(self._file, json.dumps(as_json(event), allow_nan=False).encode())
        except OSError as error:
            if not self._failing:
                log.warning("record_failed", extra={"path": str(self._path), "error": str(error)})
            self._failing = True
            return False
        self._failing = False
        return True


def read_record(path: Path) -> list[RecordedEvent]:
    """Read all events, in the order in which they happened; lines that make no sense are passed over.

    Raises:
        RecordUnreadable: A later release wrote it.
        OSError: It cannot be read.
    """
    with path.open("rb") as file:
        try:
            return list(_events(file))
        except RecordUnreadable as error:
            raise RecordUnreadable(f"{path} cannot be used: {error}") from None


def as_json(event: RecordedEvent) -> Mapping[str, object]:
    """Give an event as plain data that JSON has words for."""
    if isinstance(event, Opened):
        return {"at": event.at, "event": "opened", "version": VERSION, "pools": [*map(asdict, event.pools)]}
    return event_as_data(event)


def _events(lines: Iterable[bytes]) -> Iterator[RecordedEvent]:
    for line in lines:
        with suppress(ValueError, TypeError, KeyError, AttributeError):
            yield _event(**json.loads(line))


def _event(*, at: float, event: str, **data: Any) -> RecordedEvent:  # noqa: ANN401  (JSON)
    return _READERS[event](at=float(at), **data)


def _opened(*, at: float, version: int, pools: Sequence[Mapping[str, Any]] = (), **_later: object) -> Opened:
    if version > VERSION:
        raise RecordUnreadable("a newer release has written it; use that release")
    return Opened(at=at, pools=tuple(PoolFacts(**pool) for pool in pools))


def _decision(*, at: float, decision: dict[str, Any], text: str) -> DecisionEvent:  # noqa: ARG001  (it is made anew)
    again = decision["look_again_at"]
    values = {
        "demand": Demand(**decision["demand"]),
        "pools": tuple(PoolDecision(**pool) for pool in decision["pools"]),
        "removals": tuple(Removal(**removal) for removal in decision["removals"]),
        "sleeps": tuple(Sleep(**sleep) for sleep in decision.get("sleeps", ())),  # earlier releases had none
        "wakes": tuple(Wake(**wake) for wake in decision.get("wakes", ())),
        "look_again_at": inf if again is None else again,
    }
    return DecisionEvent(at=at, decision=Decision(**{**decision, **values}))


_READERS: Mapping[str, Callable[..., RecordedEvent]] = {
    "opened": _opened,
    "instance": InstanceEvent,
    "lease": LeaseEvent,
    "decision": _decision,
}


def _open(path: Path) -> int:
    """Open for appending, behind a whole line."""
    file = open_private(path, os.O_CREAT | os.O_RDWR | os.O_APPEND)
    size = os.fstat(file).st_size
    if size and os.pread(file, 1, size - 1) != b"\n":
        os.write(file, b"\n")
    return file


def _write_line(file: int, line: bytes) -> None:
    """Append a line whole, or not at all."""
    size = os.fstat(file).st_size
    rest = line + b"\n"
    try:
        while rest:
            rest = rest[os.write(file, rest) :]
    except OSError:
        os.ftruncate(file, size)
        raise
