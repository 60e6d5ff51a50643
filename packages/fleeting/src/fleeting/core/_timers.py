"""Named points in time, pure: what is due, and when the next one is."""

import heapq
from collections.abc import Hashable, Iterable, Iterator
from typing import Generic, TypeVar

FEW = 64
"""Heap entries that are not worth tidying up."""

K = TypeVar("K", bound=Hashable)


class Timers(Generic[K]):
    """At most one time per key. Setting, cancelling and taking one due are O(log n)."""

    def __init__(self) -> None:
        """Start with none."""
        self._entries: dict[K, tuple[float, int, K]] = {}
        """The heap's entry of each key; any other that the heap has is superseded."""

        self.heap: list[tuple[float, int, K]] = []
        """Empty: none is set."""

        self._most = FEW
        """With more entries than these, the heap is looked at for superseded ones."""

        self._count = 0  # breaks ties, so that keys are never compared

    def set(self, key: K, at: float) -> None:
        """Let *key* be due at *at*, whatever it was before."""
        before = self._entries.get(key)
        if before is not None and before[0] == at:
            return
        self._count += 1
        self._entries[key] = entry = (at, self._count, key)
        heap = self.heap
        heapq.heappush(heap, entry)
        if len(heap) > self._most:
            self._tidy()

    def advance(self, key: K, at: float) -> None:
        """Let *key* be due at *at*, unless it is due before that anyway."""
        before = self._entries.get(key)
        if before is None or before[0] > at:
            self.set(key, at)

    def cancel(self, key: K) -> None:
        """Forget *key*; nothing happens if it is not set."""
        self._entries.pop(key, None)

    def cancel_all(self, keys: Iterable[K]) -> None:
        """Forget all of them."""
        entries = self._entries
        for key in keys:
            entries.pop(key, None)

    def at(self, key: K) -> float | None:
        """When *key* is due; None if it is not set."""
        entry = self._entries.get(key)
        return entry[0] if entry is not None else None

    def __contains__(self, key: K) -> bool:
        """Whether *key* is set."""
        return key in self._entries

    def items(self) -> Iterable[tuple[K, float]]:
        """All that are set, and when they are due, in no order."""
        return ((key, at) for at, _, key in self._entries.values())

    @property
    def next(self) -> float | None:
        """When the earliest is due, None if there is none."""
        heap, entries = self.heap, self._entries
        while heap:
            first = heap[0]
            if entries.get(first[2]) is first:
                return first[0]
            heapq.heappop(heap)
        return None

    def due(self, now: float) -> Iterator[K]:
        """Take out those that are due at *now*, earliest first, one by one: what is done for one may cancel another."""
        while (at := self.next) is not None and at <= now:
            key = heapq.heappop(self.heap)[2]
            del self._entries[key]
            yield key

    def _tidy(self) -> None:
        """Drop superseded entries if most are, which would else pile up where times are often moved."""
        if len(self.heap) > 4 * len(self._entries):
            self.heap = list(self._entries.values())
            heapq.heapify(self.heap)
        self._most = max(FEW, 4 * len(self._entries))
