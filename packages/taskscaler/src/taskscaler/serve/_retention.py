"""What a daemon keeps of batches that are over, and when its disk is too full. Pure."""

from collections.abc import Iterable, Sequence
from enum import Enum

from attrs import frozen

from taskscaler._jobsfile import Retention

LOW = 0.1
"""The part of a disk that is free when people are warned."""

FULL = 0.02
LEAST_FREE = 256 << 20
"""Bytes. Below either, no batch is accepted: its events, and the fleet's journal, could not be written."""


@frozen
class Finished:
    """A batch that is over, as it lies on the disk."""

    id: str
    ended: float
    """When, in seconds since the epoch."""

    size: int
    """Bytes of all that it left."""


def outdated(finished: Iterable[Finished], limits: Retention, now: float) -> Sequence[str]:
    """Choose which are deleted: those that are too old, and then the oldest until the rest is small enough.

    The newest of those that are not too old stays, however large it is: its user has yet to look at it.
    """
    newest_first = sorted(finished, key=lambda each: (-each.ended, each.id))
    kept, chosen, full = 0, [], False
    for number, each in enumerate(newest_first):
        full = full or (number > 0 and kept + each.size > limits.size)
        if full or now - each.ended >= limits.age:
            chosen.append(each.id)
        else:
            kept += each.size
    return chosen[::-1]


class Room(Enum):
    """How full a disk is."""

    ENOUGH = "enough"
    LOW = "low"
    FULL = "full"


def room(free: int, total: int) -> Room:
    """Judge a disk by its free and all its bytes."""
    if free < max(LEAST_FREE, FULL * total):
        return Room.FULL
    return Room.LOW if free < LOW * total else Room.ENOUGH
