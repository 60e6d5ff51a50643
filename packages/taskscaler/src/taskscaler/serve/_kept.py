"""Until when a lease is kept that outlives its clients. Pure.

A lease is attended while a client has it, and then has no bound. Once the client is gone, two clocks run: `ttl` from
when it was left, and `idle_timeout` from when anything was last seen to use it, such as a command that was left
running. Whichever ends first ends the lease. Nothing here awaits, reads a clock or calls anything.

    attended ──leave──► left ──due──► END
        ▲                │ ▲
        └─────take───────┘ └──see (does a command still run?)──LOOK
"""

from enum import Enum
from math import inf
from typing import Self

from attrs import evolve, field, frozen
from attrs.validators import and_, ge, le, optional

from taskscaler._kept_bounds import DEFAULT_TIME, LEAST_TIME, MOST_TIME
from taskscaler._wire import KeptFacts

LOOK_INTERVAL = 60.0
"""Seconds between two looks whether a command still runs, at most: so much later than it could a lease may end."""


class Due(Enum):
    """What is to be done about a lease."""

    NOTHING = "nothing"
    LOOK = "look"
    """See whether a command still runs."""

    END = "end"


@frozen(kw_only=True)
class Kept:
    """A lease that outlives its clients. What is written down is all of it."""

    key: str
    name: str
    """Names what its holders leave on the instance: a command that runs, a directory."""

    uid: int
    """Whose it is."""

    ttl: float = field(default=DEFAULT_TIME, validator=and_(ge(LEAST_TIME), le(MOST_TIME)))
    """Seconds after which it ends, if no client has it."""

    idle_timeout: float | None = field(default=None, validator=optional(and_(ge(LEAST_TIME), le(MOST_TIME))))
    """Seconds after which it ends, if no client has it and nothing runs. None: that does not matter."""

    there: bool = False
    """Whether its holders leave something on the instance."""

    noted: bool = False
    """Whether they have always noted there which command runs: if that is gone, nobody knows."""

    stays: bool = True
    """Whether it is kept when the command that was left in it has ended and somebody has seen that."""

    left_at: float | None = None
    """Since when no client has it, in seconds since the epoch; None: one has it."""

    used_at: float = 0.0
    """When something was last seen to use it, if no client has it."""

    runs: bool = False
    """Whether a command may still run in it."""

    @property
    def facts(self) -> KeptFacts:
        """For the client."""
        return KeptFacts(
            name=self.name,
            ttl=self.ttl,
            idle_timeout=self.idle_timeout,
            stays=self.stays,
            there=self.there,
            noted=self.noted,
        )

    @property
    def ends_at(self) -> float:
        """When it ends if nothing changes; infinite: not as long as its client has it."""
        if self.left_at is None:
            return inf
        return min(self.left_at + self.ttl, inf if self.idle_timeout is None else self.used_at + self.idle_timeout)

    @property
    def bound(self) -> float:
        """Which of its bounds ends it, in seconds."""
        by_ttl = self.idle_timeout is None or self.ends_at >= (self.left_at or 0.0) + self.ttl
        return self.ttl if by_ttl else self.idle_timeout or self.ttl

    @property
    def looks_at(self) -> float:
        """When to see whether a command still runs; infinite: that makes no difference."""
        if self.left_at is None or self.idle_timeout is None or not self.runs:
            return inf
        return self.used_at + min(self.idle_timeout, LOOK_INTERVAL)

    @property
    def next_at(self) -> float:
        """When something is due, in seconds since the epoch."""
        return min(self.ends_at, self.looks_at)

    def due(self, now: float) -> Due:
        """Say what is to be done now."""
        if self.left_at is not None and now >= self.left_at + self.ttl:
            return Due.END
        if now >= self.looks_at:
            return Due.LOOK
        return Due.END if now >= self.ends_at else Due.NOTHING

    def wanted(
        self,
        ttl: float | None,
        idle_timeout: float | None,
        *,
        stays: bool | None,
        there: bool | None,
        noted: bool | None = None,
    ) -> Self:
        """Its client wants it kept otherwise; None: as before."""
        return evolve(
            self,
            ttl=self.ttl if ttl is None else ttl,
            idle_timeout=self.idle_timeout if idle_timeout is None else idle_timeout,
            stays=self.stays if stays is None else stays,
            there=self.there if there is None else there,
            noted=self.noted if noted is None else noted,
        )

    def taken(self) -> Self:
        """A client has it."""
        return evolve(self, left_at=None)

    def left(self, now: float) -> Self:
        """Its client is gone; a command may run in it."""
        return self if self.left_at is not None else evolve(self, left_at=now, used_at=now, runs=self.there)

    def seen(self, now: float, *, running: bool) -> Self:
        """Somebody has looked. A command that has ended since may have done so just now."""
        return evolve(self, used_at=max(self.used_at, now), runs=running)
