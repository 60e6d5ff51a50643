"""Which deletions were undone: an instance was given up, and soon the pool asked for one again. Pure."""

from collections import deque

from attrs import define, field

SOON = 60.0
"""Seconds. A boot takes about as long: who asks again sooner would have done better to wait."""


@define(eq=False)
class Churn:
    """Counts them, one request for one deletion: the first that is not undone."""

    removed: int = 0
    """Idle instances that were given up because nothing needed them."""

    undone: int = 0
    """How many of them."""

    _lately: dict[str, deque[tuple[float, int]]] = field(factory=dict)
    """When how many were given up that are not undone, by pool."""

    def give_up(self, pool: str, instances: int, now: float) -> None:
        """So many idle instances of the pool are given up."""
        self.removed += instances
        self._lately.setdefault(pool, deque()).append((now, instances))

    def ask(self, pool: str, instances: int, now: float) -> None:
        """So many are asked for there."""
        lately = self._lately.get(pool, deque[tuple[float, int]]())
        while lately and instances:
            at, count = lately.popleft()
            if at >= now - SOON:
                again = min(instances, count)
                self.undone += again
                instances -= again
                if count > again:
                    lately.appendleft((at, count - again))
