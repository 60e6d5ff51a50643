"""Which deletions are asked for with the next call. Pure.

What falls due while a call is under way goes into the next one: a fleet that shrinks would make as many calls as it has
instances, and the clouds' budgets are far below that. A call that is not answered for long is waited for no longer.
"""

from collections.abc import Iterable
from math import inf


class Deletions:
    """The queue, and the calls under way."""

    def __init__(self) -> None:
        """Nothing is queued, and no call under way."""
        self._queued: dict[str, None] = {}
        self._under_way = 0
        self._until = -inf
        """Until when an answer is waited for."""

    def __bool__(self) -> bool:
        """Whether anything is queued."""
        return bool(self._queued)

    def waits_until(self, now: float) -> float | None:
        """Until when the next call waits for an answer; None: it does not."""
        return self._until if self._under_way and now < self._until else None

    def queue(self, instance: str) -> bool:
        """Have it asked for with the next call; returns False if it is already."""
        if not self.may_queue(instance):
            return False
        self._queued[instance] = None
        return True

    def may_queue(self, instance: str) -> bool:
        """Whether it is not queued yet."""
        return instance not in self._queued

    @property
    def queued(self) -> tuple[str, ...]:
        """What the next call asks for."""
        return tuple(self._queued)

    def take(self) -> Iterable[str]:
        """All that are queued, for a call."""
        queued, self._queued = self._queued, {}
        return queued

    def sent(self, until: float) -> None:
        """A call begins, whose answer is waited for so long."""
        self._until = until
        self._under_way += 1

    def answered(self) -> None:
        """A call has ended, whatever came of it."""
        self._under_way -= 1
