"""How long idling pays at each level of a fleet, as its own history has it: ``mode = "adaptive"``. Pure.

A fleet of *n* slots has *n* levels; level *n* is needed while *n* slots or more are. Each time it is not, for a *gap*,
it is a bet: to keep the slot costs the gap; to give it up costs what it was kept until then and, when it is needed
again, a boot that somebody waits for. What that is worth is what the policy says with `idle_time`: this is the price.
At this price, giving up after `idle_time` never costs more than twice what knowing the future would.

A few ways to bet are compared on the last gaps of each level. They differ in how long a slot idles, and in how that is
measured: by the clock, or *weighed*, where time counts as many times as there are slots for each one that is needed.
Of 10 slots of which 9 are needed, the tenth may be needed any moment; if 2 are, that takes longer. The *usual* way is
`idle_time`, weighed. Another one is chosen for a level where it would have cost clearly less. A level that was seldom
needed goes by what all levels together say, and where that is too little, too, by the static policy.

Whatever is chosen, a slot idles for at most twice the `idle_time`, and for a boot at least, or for `idle_time` if that
is less. So on any history a level costs at most twice what it would by the static policy, in time that is paid for::

    gap                 static              this, at most
    up to the least     gap                 gap
    up to idle_time     gap                 the gap, or least + boot: at most twice the gap
    longer              idle_time + boot    2 idle_time + boot

What is remembered fades with each gap, takes little room whatever the fleet's size, and outlives the manager.
"""

from collections.abc import Iterator, Mapping, Sequence
from math import inf, log2
from typing import NamedTuple

from attrs import define, field, frozen

from fleeting.core import Drop, Put, Write

IDLING = "idling"
"""The journal's kind of records for what was learned."""

FADES = 0.98
"""What of a gap is left in memory with each later one of the same level."""

ENOUGH = 8.0
"""So many gaps have to be remembered before they say something."""

CLEARLY = 0.8
"""Another way is chosen than the usual one if it would have cost at most this share."""

EACH = 8
"""So many of the lowest levels are each looked at by themselves, and beyond them so many groups per doubling."""

MOST = 100_000
"""Levels that are looked at. Higher ones idle as the static policy has it."""

EVERY = 60.0
"""Seconds between two writes of what was learned."""

WIDELY = 0
"""Under this number is what all levels together say; the others are those of groups of levels."""


class LearnedRecord(NamedTuple):
    """What was learned under one `idle_time`, as the journal keeps it."""

    groups: tuple[int, ...]
    gaps: tuple[float, ...]
    """How many are remembered, by group."""

    costs: tuple[tuple[float, ...], ...]
    """What they would have cost, by group and way."""


IDLING_RECORDS: Mapping[str, type] = {IDLING: LearnedRecord}


@frozen
class Way:
    """One way to bet."""

    times: float
    """The `idle_time`."""

    weighed: bool
    """Whether time counts more, the more slots are not needed."""


STATIC = Way(1.0, weighed=False)

WAYS = (
    Way(1.0, weighed=True),
    STATIC,
    Way(0.0, weighed=False),
    Way(0.5, weighed=True),
    Way(2.0, weighed=True),
    Way(1.5, weighed=False),
)
"""The usual one first."""


def group_of(level: int) -> int:
    """Under which number a level is looked at."""
    return level if level <= EACH else int(EACH * log2(level / EACH)) + EACH


@define(eq=False)
class Learned:
    """What was learned under one `idle_time`."""

    idle_time: float
    gaps: dict[int, float] = field(factory=dict)
    """How many are remembered, by group."""

    costs: dict[int, list[float]] = field(factory=dict)
    """What they would have cost in seconds of a slot, by group and way."""

    _chosen: dict[int, Way] = field(factory=dict)

    @classmethod
    def of(cls, idle_time: float, record: LearnedRecord | None) -> "Learned":
        """Begin with what an earlier manager has learned; what does not fit is left aside."""
        learned = cls(idle_time)
        if record is not None:
            for group, gaps, costs in zip(record.groups, record.gaps, record.costs, strict=False):
                if len(costs) == len(WAYS):
                    learned.gaps[group], learned.costs[group] = gaps, [*costs]
                    learned._choose(group)
        return learned

    @property
    def record(self) -> LearnedRecord:
        """It, for the journal."""
        groups = tuple(self.gaps)
        return LearnedRecord(groups, tuple(self.gaps.values()), tuple(tuple(self.costs[each]) for each in groups))

    def note(self, level: int, gap: float, weighed: float, boot: float | None) -> None:
        """Level *level* was not needed for *gap* seconds, *weighed* seconds if time is weighed. O(ways)."""
        shortest, swift = least(self.idle_time, boot), weighed / gap if gap > 0 else 1.0
        cost = [_cost(way, gap, swift, shortest, self.idle_time) for way in WAYS]
        for group in (group_of(level), WIDELY):
            before = self.costs.get(group)
            self.costs[group] = cost if before is None else [a * FADES + b for a, b in zip(before, cost, strict=True)]
            self.gaps[group] = self.gaps.get(group, 0.0) * FADES + 1.0
            self._choose(group)

    def knows(self, level: int) -> bool:
        """Whether enough was seen of a level, or of all together."""
        return level <= MOST and (group_of(level) in self._chosen or WIDELY in self._chosen)

    def way(self, level: int) -> Way:
        """Which one is chosen for a level."""
        if level > MOST:
            return STATIC
        return self._chosen.get(group_of(level)) or self._chosen.get(WIDELY, STATIC)

    def _choose(self, group: int) -> None:
        if self.gaps[group] >= ENOUGH:
            costs = self.costs[group]
            best = min(range(len(WAYS)), key=costs.__getitem__)
            self._chosen[group] = WAYS[best if costs[best] <= CLEARLY * costs[0] else 0]


def least(idle_time: float, boot: float | None) -> float:
    """Seconds for which a slot idles at least; *boot*: None: it is unknown."""
    return idle_time if boot is None else min(boot, idle_time)


def _cost(way: Way, gap: float, swift: float, shortest: float, idle_time: float) -> float:
    """What a gap would have cost; *swift*: how much faster weighed time went, on average."""
    idles = max(shortest, way.times * idle_time / (swift if way.weighed else 1.0))
    return gap if gap <= idles else idles + idle_time


@define(eq=False)
class Idling:
    """Which levels are not needed, since when; and what was learned of such gaps."""

    _learned: dict[float, Learned]
    """By `idle_time`: that of each adaptive policy."""

    _forgotten: list[str] = field(factory=list)
    """Keys of the journal's records that are of no policy any more."""

    _journaled: bool = field(default=True, kw_only=True)
    writes_at: float = inf
    """When what was learned is to be written; infinite: it is."""

    _changed: set[float] = field(factory=set)
    """Of which `idle_time` anything was learned since it was written last."""

    looks: bool = False
    """Whether the policy that holds is adaptive; else nothing is looked at."""

    _boot: float | None = None
    _needed: int = 0
    """Slots, since `_at`."""

    _at: float = 0.0
    _weighed: float = 0.0
    """Seconds until `_at`, each divided by one more than the slots that were needed then."""

    _begun: float = 0.0
    """Since when it is looked at."""

    _since: list[float] = field(factory=list)
    """Since when each level is not needed, from the highest that ever was down to the one above what is needed."""

    _since_weighed: list[float] = field(factory=list)
    """What `_weighed` was then."""

    _closed: list[tuple[int, float, float]] = field(factory=list)
    """Gaps that ended at `_at`: levels, ascending, with what the two lists had; a level that was never needed before
    since minus infinity. They are learned of once time has passed: what lasts no time counts for nothing."""

    _written_at: float = -inf

    @classmethod
    def of(
        cls, idle_times: Sequence[float], records: Mapping[str, LearnedRecord], *, journaled: bool = True
    ) -> "Idling":
        """Begin with what an earlier manager has learned, by the journal's keys; and perhaps write nothing."""
        by_key = {_key(each): each for each in idle_times}
        learned = {each: Learned.of(each, records.get(key)) for key, each in by_key.items()}
        idling = cls(learned, [key for key in records if key not in by_key], journaled=journaled)
        idling._have_written()
        return idling

    def keep(self, idle_times: Sequence[float]) -> None:
        """From now on these are the `idle_time` of the policies that are adaptive."""
        self._forgotten += [_key(each) for each in self._learned if each not in idle_times]
        self._learned = {each: self._learned.get(each) or Learned(each) for each in idle_times}
        self._changed &= {*idle_times}
        self._have_written()
        self.looks = False

    def _have_written(self) -> None:
        """See when what has changed is to be written."""
        if self._journaled and (self._changed or self._forgotten):
            self.writes_at = self._written_at + EVERY

    def pause(self) -> None:
        """A policy holds that is not adaptive."""
        self.looks = False

    def note(self, needed: int, idle_time: float, boot: float | None, now: float) -> None:
        """So many slots are needed from now on, and what that `idle_time` has taught holds. Amortised O(1) a slot."""
        learned = self._learned.get(idle_time)
        if learned is None:  # policies have changed, and which of them holds is not looked up yet
            self.pause()
            return
        needed, self._boot = min(max(0, needed), MOST), boot
        if not self.looks or now <= self._begun:
            self._begun = self._at = now
            self._needed, self._since, self._since_weighed, self._closed = needed, [], [], []
        self.looks = True
        if self._closed and now > self._at:
            self._learn(learned)
        if needed == self._needed:
            return
        self._weighed += max(0.0, now - self._at) / (self._needed + 1)
        self._at = now
        if needed > self._needed:
            self._close(needed)
        else:
            self._open(needed)
        self._needed = needed

    def _close(self, needed: int) -> None:
        """More slots are needed: the gaps of their levels end."""
        for level in range(self._needed + 1, needed + 1):
            since, weighed = (self._since.pop(), self._since_weighed.pop()) if self._since else (-inf, 0.0)
            if since < self._at:
                self._closed.append((level, since, weighed))

    def _open(self, needed: int) -> None:
        """Fewer slots are needed: gaps begin, or go on where a level had been needed for no time at all."""
        for level in range(self._needed, needed, -1):
            since, weighed = self._at, self._weighed
            if self._closed and self._closed[-1][0] == level:
                _, since, weighed = self._closed.pop()
            if since > -inf:
                self._since.append(since)
                self._since_weighed.append(weighed)

    def _learn(self, learned: Learned) -> None:
        """Learn of the gaps that ended when something changed last."""
        for level, since, weighed in self._closed:
            if since > -inf:
                learned.note(level, self._at - since, level * (self._weighed - weighed), self._boot)
                self._changed.add(learned.idle_time)
        self._closed.clear()
        self._have_written()

    def due(self, level: int, idle_time: float, now: float) -> float:
        """When the slot of that level has idled for as long as pays at that price, if nothing else happens. O(1).

        That moment does not depend on *now* where the level is not needed; else it is as if that ended now.
        """
        way = self.way(level, idle_time)
        above = level - self._needed if self.looks else 0
        if not 0 < above <= len(self._since):
            since = self._begun if above > 0 else now
            return since + max(self.least(idle_time), way.times * idle_time)
        since, weighed = self._since[-above], self._since_weighed[-above]
        shortest = since + self.least(idle_time)
        due = since + way.times * idle_time
        if way.weighed:  # which goes at least as fast as the clock
            left = way.times * idle_time - level * (self._weighed - weighed)
            due = min(due, self._at + left * (self._needed + 1) / level)
        return max(shortest, due)

    def least(self, idle_time: float) -> float:
        """Seconds for which any slot idles."""
        return least(idle_time, self._boot)

    def way(self, level: int, idle_time: float) -> Way:
        """Which one is chosen for a level."""
        learned = self._learned.get(idle_time)
        return STATIC if learned is None else learned.way(level)

    def idles(self, level: int, idle_time: float, now: float) -> float:
        """Seconds for which the slot of that level idles in all, if nothing else happens."""
        above = level - self._needed if self.looks else 0
        known = 0 < above <= len(self._since)
        since = self._since[-above] if known else self._begun if above > 0 else now
        return self.due(level, idle_time, now) - since

    def has_seen_enough(self, level: int, idle_time: float) -> bool:
        """Whether anything was learned that holds for a level."""
        learned = self._learned.get(idle_time)
        return learned is not None and learned.knows(level)

    def writes(self, now: float) -> Iterator[Write]:
        """What brings the journal in line with what was learned, if that is due."""
        if self.writes_at <= now:
            yield from (Drop(IDLING, key) for key in self._forgotten)
            yield from (Put(IDLING, _key(each), self._learned[each].record) for each in sorted(self._changed))
            self._forgotten.clear()
            self._changed.clear()
            self._written_at, self.writes_at = now, inf


def _key(idle_time: float) -> str:
    """Under which the journal keeps what was learned."""
    return f"{idle_time!r}"
