"""What will happen, and when: in a heap what happens in the next seconds, and apart from it what comes later. Pure.

One heap of all would hold the ends of all jobs that run, and with tens of thousands of these each step through it waits
for memory.
"""

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from math import inf

SPAN = 8.0
"""Seconds whose events are in the heap together. A power of two, so that its multiples are exact."""

Event = tuple[float, int, Callable[[], None]]
"""When it happens, and what; of those at the same time the one first that was added first."""


class Events:
    """All that was added and has not been taken out of `soon`."""

    def __init__(self) -> None:
        """Start with none."""
        self.soon: list[Event] = []
        """Heap of those that come first; once it is empty, `advance` brings the next. It stays the same list."""

        self._until = -inf
        """What happens before this time is there."""

        self._later: dict[int, list[Event]] = {}
        """The others, by which span of time they happen in."""

        self._spans: list[int] = []
        """Heap of these spans."""

        self._added = 0

    def add(self, at: float, call: Callable[[], None]) -> None:
        """Have it called at that time, in seconds since the epoch."""
        self._added += 1
        event = at, self._added, call
        if at < self._until:
            heappush(self.soon, event)
            return
        span = int(at // SPAN)
        among = self._later.get(span)
        if among is None:
            self._later[span] = [event]
            heappush(self._spans, span)
        else:
            among.append(event)

    def advance(self) -> None:
        """Bring the next into `soon`, which is empty; there must be some."""
        span = heappop(self._spans)
        self.soon += self._later.pop(span)
        heapify(self.soon)
        self._until = (span + 1) * SPAN
