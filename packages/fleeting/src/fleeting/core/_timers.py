"""Named points in time, pure: what is due, and when the next one is."""

import heapq
from collections.abc import Hashable, Iterable, Iterator
from math import inf
from typing import Generic, TypeVar

FEW = 64
"""Heap entries that are not worth tidying up."""

K = TypeVar("K", bound=Hashable)


class Timers(Generic[K]):
    """At most one time per key. Setting, cancelling and taking one due are O(log n)."""

    def __init__(self) -> None:
        """Start with none."""
        self._at: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._count = 0  # breaks ties, so that keys are never compared

    def set(self, key: K, at: float) -> None:
        """Let *key* be due at *at*, whatever it was before."""
        if self._at.get(key) == at:
            return
        self._at[key] = at
        self._count += 1
        heapq.heappush(self._heap, (at, self._count, key))
        if len(self._heap) > max(FEW, 4 * len(self._at)):
            self._compact()

    def advance(self, key: K, at: float) -> None:
        """Let *key* be due at *at*, unless it is due before that anyway."""
        if self._at.get(key, inf) > at:
            self.set(key, at)

    def cancel(self, key: K) -> None:
        """Forget *key*; nothing happens if it is not set."""
        self._at.pop(key, None)

    def __contains__(self, key: K) -> bool:
        """Whether *key* is set."""
        return key in self._at

    def items(self) -> Iterable[tuple[K, float]]:
        """All that are set, and when they are due, in no order."""
        return self._at.items()

    @property
    def next(self) -> float | None:
        """When the earliest is due, None if there is none."""
        heap, live = self._heap, self._at
        while heap and live.get(heap[0][2]) != heap[0][0]:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def due(self, now: float) -> Iterator[K]:
        """Take out those that are due at *now*, earliest first, one by one: what is done for one may cancel another."""
        while (at := self.next) is not None and at <= now:
            key = heapq.heappop(self._heap)[2]
            del self._at[key]
            yield key

    def _compact(self) -> None:
        """Drop superseded entries, which would else pile up where times are often moved."""
        self._heap = [entry for entry in self._heap if self._at.get(entry[2]) == entry[0]]
        heapq.heapify(self._heap)
