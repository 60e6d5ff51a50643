"""In which order pools are asked: as they stand, but for those from which the cloud has taken too much lately. Pure.

A pool is deprioritised if, of the instances that left it within `MEMORY`, the cloud has taken at least `FEWEST`, and
those were at least the share `TOO_MANY`. It is then asked after the next one that is not, so it loses one place and no
more, and has it again when the memory has faded. Nothing is remembered over a restart.
"""

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence

from attrs import define, field, frozen

from fleeting.plugins import span
from taskscaler._wording import counted

MEMORY = 1800.0
"""Seconds for which it counts how an instance left."""

FEWEST = 3
"""So many have to be taken before it is more than chance."""

TOO_MANY = 0.5
"""Share of those that left."""

KEPT = 50
"""So many of the last that left a pool are remembered."""


@frozen
class _Left:
    """An instance that is no more."""

    at: float
    offering: str | None
    taken: bool


@define
class _Stay:
    """An instance that is there."""

    offering: str | None
    announced: bool = False
    """Whether it was counted as taken, since that was announced."""


@define
class Losses:
    """What the cloud has taken from each pool."""

    _here: dict[tuple[str, str], _Stay] = field(factory=dict)
    _left: dict[str, deque[_Left]] = field(factory=dict)

    def arrived(self, pool: str, instance: str, offering: str | None) -> None:
        """An instance may be given work, perhaps once more."""
        self._here.setdefault((pool, instance), _Stay(offering)).offering = offering

    def announced(self, pool: str, instance: str, now: float) -> None:
        """It will be taken."""
        stay = self._here.get((pool, instance))
        if stay is not None and not stay.announced:
            stay.announced = True
            self._note(pool, _Left(now, stay.offering, taken=True))

    def gone(self, pool: str, instance: str, now: float, *, taken: bool) -> None:
        """It is no more, either because it was taken or because it was given up."""
        stay = self._here.pop((pool, instance), None)
        if stay is not None and not stay.announced:
            self._note(pool, _Left(now, stay.offering, taken))

    def _note(self, pool: str, left: _Left) -> None:
        self._left.setdefault(pool, deque(maxlen=KEPT)).append(left)

    def _lately(self, pool: str, now: float) -> list[_Left]:
        return [left for left in self._left.get(pool, ()) if left.at > now - MEMORY]

    def deprioritises(self, pool: str, now: float) -> bool:
        """Whether it is asked later than its place says."""
        if len(self._left.get(pool, ())) < FEWEST:  # as mostly; and each decision asks
            return False
        lately = self._lately(pool, now)
        taken = sum(left.taken for left in lately)
        return taken >= FEWEST and taken >= TOO_MANY * len(lately)

    def order(self, pools: Sequence[str], now: float) -> list[str]:
        """In which order they are asked; each that is deprioritised stands at most one place behind its own."""
        order = list(pools)
        for place in reversed(range(len(order) - 1)):
            pool, following = order[place : place + 2]
            if self.deprioritises(pool, now) and not self.deprioritises(following, now):
                order[place : place + 2] = following, pool
        return order

    def why(self, pool: str, now: float) -> str:
        """Why it is deprioritised: what was taken, in all and by offering; empty if it is not."""
        if not self.deprioritises(pool, now):
            return ""
        lately = self._lately(pool, now)
        taken = sum(left.taken for left in lately)
        by_offering = ", ".join(_shares(lately))
        return (
            f"the cloud took {taken} of the {counted(len(lately), 'instance')} that ended in the last "
            f"{span(MEMORY)}{f' ({by_offering})' if by_offering else ''}"
        )


def _shares(lately: Iterable[_Left]) -> Iterator[str]:
    """What was taken of each offering that is known by name."""
    lately = list(lately)
    left = Counter(each.offering for each in lately if each.offering)
    taken = Counter(each.offering for each in lately if each.taken)
    yield from (f"{offering}: {taken[offering]} of {count}" for offering, count in left.items() if taken[offering])
