"""Whether it pays to suspend idle instances: how long resuming takes, against how long booting takes. Pure."""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable
from math import inf

from attrs import define, field, frozen

from fleeting.plugins import span

KEPT = 20
"""So many of the last of each are looked at."""

ENOUGH = 3
"""So many of each say something; with fewer it is taken to pay."""

WORTH = 0.8
"""Resuming pays if it takes no more than this share of what booting takes."""

FORGET = 6 * 3600.0
"""Seconds after which a time says nothing any more: where resuming did not pay, it is tried again then."""


@frozen
class Verdict:
    """What the times of one pool say."""

    boots: float | None
    """Median seconds from when an instance was asked for until it was ready; None: too few to say."""

    resumes: float | None
    """The same from when a suspended one was asked to resume."""

    @property
    def pays(self) -> bool:
        """Whether idle instances are worth being suspended."""
        return self.boots is None or self.resumes is None or self.resumes <= WORTH * self.boots

    def __str__(self) -> str:
        """In words: ``resuming takes 4s, booting 41s``."""
        words = [f"{what} {span(took)}" for what, took in self._known() if took is not None]
        return f"{words[0].replace(' ', ' takes ', 1)}{''.join(f', {each}' for each in words[1:])}" if words else ""

    def _known(self) -> Iterable[tuple[str, float | None]]:
        return ("resuming", self.resumes), ("booting", self.boots)


@define
class _Times:
    """The last of one kind."""

    _last: deque[tuple[float, float]] = field(factory=lambda: deque(maxlen=KEPT))
    """When it was ready, and how many seconds that took."""

    _sorted: list[float] = field(factory=list)
    """How long each of these took, ascending: each decision asks for their median, and most make no other."""

    _typical: float | None = None
    _holds: tuple[float, float] = (inf, -inf)
    """From when until when `_typical` is what they say, unless more are noted."""

    def note(self, took: float, now: float) -> None:
        """One more."""
        if len(self._last) == KEPT:
            del self._sorted[bisect_left(self._sorted, self._last[0][1])]
        self._last.append((now, took))
        insort(self._sorted, took)
        self._holds = inf, -inf

    def typical(self, now: float) -> float | None:
        """The median of those that say something by now; None: too few to say."""
        since, until = self._holds
        if not since <= now < until:
            first, took = min(self._last, default=(inf,))[0], self._sorted
            if first + FORGET <= now:
                fresh = [each for each in self._last if now < each[0] + FORGET]
                first, took = min(fresh, default=(inf,))[0], sorted(took for _, took in fresh)
            self._typical = (took[(len(took) - 1) // 2] + took[len(took) // 2]) / 2 if len(took) >= ENOUGH else None
            self._holds = now, first + FORGET
        return self._typical


@define
class Payoff:
    """The last times of one pool."""

    _boots: _Times = field(factory=_Times)
    _resumes: _Times = field(factory=_Times)

    def note(self, took: float, now: float, *, resumed: bool) -> None:
        """An instance became ready so many seconds after it was asked for, or asked to resume."""
        (self._resumes if resumed else self._boots).note(took, now)

    def boots(self, now: float) -> float | None:
        """`Verdict.boots`."""
        return self._boots.typical(now)

    def verdict(self, now: float) -> Verdict:
        """What they say by now."""
        return Verdict(self._boots.typical(now), self._resumes.typical(now))
