"""What ran elsewhere, by another clock, as spans below one of ours. Pure.

What ran on an instance is learned of when it is over, from something that the instance says: so it may be as long as it
likes, and its times may be any. Whoever reads it makes the same spans of it, with the same ids: a manager that was
killed in between sends what it has sent before once more, not something else beside it.
"""

import math
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final, NamedTuple

from taskscaler._span import Attributes, Span, SpanContext

MOST_PARTS: Final = 1000
"""That become spans, of one whole: others have to have room in the queue of those that are sent, too."""

LEAST_OFFSET: Final = 1e-6
"""Seconds below which clocks do not differ."""

LATEST: Final = 1e12
"""Seconds since the epoch, either way, from which on a time is none."""

OFFSET: Final = "taskscaler.clock_offset"
"""The attribute that says by how many seconds times were moved."""

_NONE: Final[Attributes] = {}


class Part(NamedTuple):
    """Something that is over. Times are seconds since the epoch, by the clock of where it ran."""

    name: str
    began: float | None = None
    """None: it is not known."""

    ended: float | None = None
    """None: it has not, as far as is known."""

    parent: int = -1
    """Which of the parts before it this is a part of; -1: of none, but of the whole."""

    attributes: Attributes = _NONE
    error: str = ""
    """The kind of error with which it ended; empty: it went well."""


def derived(parent: SpanContext, what: str) -> SpanContext:
    """Name what is a part of it by what it is: it has the same name wherever that is done."""
    made = blake2b(b"%x %x %b" % (parent.trace_id, parent.span_id, what.encode()), digest_size=8).digest()
    return SpanContext(parent.trace_id, int.from_bytes(made) or 1, parent.is_sampled, parent.state)


def first_of(parts: Sequence[Part]) -> float | None:
    """When the first of them began, by their clock; None: nobody knows."""
    return min(_times(parts), default=None)


def offset_of(parts: Sequence[Part], began: float, ended: float) -> float:
    """Find the seconds by which another clock's times are moved, so that what it saw lies within what ours did.

    As few as will do: none, if it does. What took longer than it can have by our clock begins when ours says.
    """
    times = _times(parts)
    if not times:
        return 0.0
    first, last = min(times), max(times)
    if first < began or last - first > ended - began:
        return began - first
    return min(0.0, ended - last)


def spans_of(parts: Sequence[Part], whole: Span, offset: float | None = None) -> list[Span]:
    """Make spans of parts, below that of the whole: one for each, in their order, of those beyond `MOST_PARTS` none.

    Each has an id of its own that depends on nothing but that of its parent and its place below it, and lies within
    its parent, whatever its times say.

    Args:
        parts: What the whole consisted of.
        whole: What they are parts of.
        offset: Seconds by which their clock is behind ours; None: see `offset_of`.
    """
    parts = parts[:MOST_PARTS]
    offset = offset_of(parts, whole.began, whole.ended) if offset is None else offset
    spans: list[Span] = []
    places: dict[int, int] = {}
    for number, part in enumerate(parts):
        index = part.parent if 0 <= part.parent < number else -1
        parent = whole if index < 0 else spans[index]
        place = places[index] = places.get(index, -1) + 1
        began, ended = _time(part.began), _time(part.ended)
        since = parent.began if began is None else _between(began + offset, parent.began, parent.ended)
        until = parent.ended if ended is None else _between(ended + offset, since, parent.ended)
        moved: Attributes = {OFFSET: round(float(offset), 6)} if index < 0 and abs(offset) >= LEAST_OFFSET else _NONE
        context = derived(parent.context, f"part {place}")
        known = {**part.attributes, **moved}
        spans.append(Span(part.name, context, parent.context, since, until, known, (), part.error))
    return spans


def moved_by(spans: Sequence[Span]) -> float:
    """Say by how many seconds the times of such spans were moved."""
    moved = spans[0].attributes.get(OFFSET, 0.0) if spans else 0.0
    return moved if isinstance(moved, float) else 0.0


def _times(parts: Sequence[Part]) -> list[float]:
    """What is known of when those began and ended that are parts of no other."""
    all_of_them = (time for part in parts if part.parent < 0 for time in (part.began, part.ended))
    return [time for time in map(_time, all_of_them) if time is not None]


def _time(time: float | None) -> float | None:
    return time if time is not None and math.isfinite(time) and abs(time) < LATEST else None


def _between(time: float, first: float, last: float) -> float:
    return min(max(time, first), last)
