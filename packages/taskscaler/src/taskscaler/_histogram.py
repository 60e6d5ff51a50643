"""How often values fell into which bucket, for metrics. Pure."""

from bisect import bisect_left
from collections.abc import Sequence
from math import inf


class Histogram:
    """How often a value fell into which bucket."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        """Start empty.

        Args:
            bounds: Upper bounds of the buckets, ascending; one without a bound is added.
        """
        self.bounds = (*bounds, inf)
        self.counts = [0] * len(self.bounds)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value
