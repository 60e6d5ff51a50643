"""Instances that are gone, remembered so that a stale view cannot bring one back to work. Pure."""

from itertools import takewhile
from math import ceil
from typing import NamedTuple

from fleeting.core._context import REMEMBER_LOST, Context
from fleeting.core._due import RETURNED
from fleeting.core._records import LOST

FORGET_EVERY = 60.0
"""Seconds between two looks for those that have been gone for long enough: where a fleet replaces what it uses up, one
look for each of them would be a turn for each."""


class Departure(NamedTuple):
    """How an instance went that is no more."""

    at: float
    why: str


class Departed:
    """Those of one group."""

    def __init__(self, context: Context) -> None:
        """None is remembered."""
        self._context = context
        self._until: dict[str, float] = {}
        """Until when each is remembered at least; the next to be forgotten first."""

        self._departures: dict[str, Departure] = {}

    def __contains__(self, instance: str) -> bool:
        """Whether it is remembered as gone."""
        return instance in self._until

    def how(self, instance: str) -> Departure | None:
        """How an instance went; None if it is not remembered, or went in an earlier life."""
        return self._departures.get(instance)

    def until(self, instance: str) -> float | None:
        """Until when it is remembered at least; None: it is not."""
        return self._until.get(instance)

    def add(self, instance: str, why: str, now: float) -> None:
        """It is gone from now on."""
        self.remember(instance, now + REMEMBER_LOST)
        self._departures[instance] = Departure(now, why)
        self._context.turn.write(LOST, instance)

    def remember(self, instance: str, until: float) -> None:
        """It has been gone, be it since an earlier life; none is remembered for longer that was given before."""
        self._until.pop(instance, None)
        self._until[instance] = until
        if RETURNED not in self._context.timers:
            self._look_at(until)

    def forget(self, now: float) -> None:
        """Those that have not come back by now will not."""
        over = [*takewhile(lambda instance: self._until[instance] <= now, self._until)]
        for instance in over:
            del self._until[instance]
            self._departures.pop(instance, None)
            self._context.turn.write(LOST, instance)
        following = next(iter(self._until.values()), None)
        if following is not None:
            self._look_at(following)

    def _look_at(self, until: float) -> None:
        self._context.timers.set(RETURNED, ceil(until / FORGET_EVERY) * FORGET_EVERY)
