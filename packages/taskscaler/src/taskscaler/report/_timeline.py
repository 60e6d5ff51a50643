"""The timeline of a run: which instance was there when, and which job on it. Pure; drawing it is another's business.

The life of an instance is cut into spans, one after the other, without gaps::

    BOOT       from when it was first seen until it was ready
    READY      it could be given jobs; busy while it has one, else idle
    LEAVING    it was being deleted
    HELD       it would have been deleted, but was to be kept
    UNWATCHED  no manager was there to see: the one before was killed

On it lie the jobs as bars, each on a slot, one after the other on the same slot and never outside a READY span.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum

from attrs import define, evolve, field, frozen

from taskscaler._observe import GONE, DecisionEvent, InstanceEvent, LeaseEvent
from taskscaler._told import RunTold
from taskscaler.batch import Attempt, JobState, Opened, RecordedEvent
from taskscaler.batch._history import STOPPED


class Phase(Enum):
    """What an instance is good for."""

    BOOT = "boot"
    READY = "ready"
    LEAVING = "leaving"
    HELD = "held"
    UNWATCHED = "unwatched"


_PHASES: Mapping[str, Phase] = {
    "creating": Phase.BOOT,
    "pending": Phase.BOOT,
    "running": Phase.READY,
    "deleting": Phase.LEAVING,
    "unusable": Phase.HELD,
}

_STATES: Mapping[str, JobState] = {"released": JobState.SUCCEEDED, "lost": JobState.LOST}
"""How a try ended, as far as the fleet knows."""


@frozen(kw_only=True)
class Span:
    """A time in the life of an instance. Times are seconds since the epoch."""

    phase: Phase
    began: float
    ended: float

    @property
    def duration(self) -> float:
        """Seconds; more than 0."""
        return self.ended - self.began


@frozen(kw_only=True)
class Bar:
    """A job on a slot: one try. Times are seconds since the epoch."""

    job: str
    slot: int
    began: float
    ended: float
    number: int
    """Which try of the job it was, from 1."""

    state: JobState
    """How the try ended; `RUNNING` if it did not, or nobody knows."""

    why: str = ""

    @property
    def duration(self) -> float:
        """Seconds."""
        return self.ended - self.began


@frozen(kw_only=True)
class Row:
    """One instance."""

    pool: str
    instance: str
    slots: int
    """How many jobs at once; at least 1."""

    spans: tuple[Span, ...]
    """In order; at least one."""

    bars: tuple[Bar, ...]
    """In the order in which they ended."""

    lost: bool
    """Whether it was taken from us."""

    left: bool
    """Whether it was still there when it was last heard of."""

    @property
    def began(self) -> float:
        """When it was first seen."""
        return self.spans[0].began

    @property
    def ended(self) -> float:
        """When it was gone, or last heard of."""
        return self.spans[-1].ended

    def time(self, *phases: Phase) -> float:
        """Seconds that it spent so; without phases, all that it existed."""
        return sum(span.duration for span in self.spans if not phases or span.phase in phases)

    @property
    def busy(self) -> float:
        """Seconds for which it had a job, or several."""
        return covered((bar.began, bar.ended) for bar in self.bars)

    @property
    def idle(self) -> float:
        """Seconds for which it was ready and had none."""
        return self.time(Phase.READY) - self.busy

    @property
    def slot_time(self) -> float:
        """Seconds that its slots were in use, all added up."""
        return sum(bar.duration for bar in self.bars)


@frozen(kw_only=True)
class Timeline:
    """A whole run."""

    name: str
    began: float
    """When the first manager opened the fleet, in seconds since the epoch; nothing lies before it."""

    ended: float
    """When the fleet was last heard of; nothing lies after it."""

    rows: tuple[Row, ...]
    """In the order in which the instances were first seen."""

    queue: tuple[tuple[float, int], ...]
    """How many jobs waited for a slot, and from when on; only changes, in order."""

    @property
    def duration(self) -> float:
        """Seconds."""
        return self.ended - self.began

    @property
    def lanes(self) -> int:
        """Slots of all instances."""
        return sum(row.slots for row in self.rows)


def lay_out(run: RunTold) -> Timeline:
    """Make the timeline of a run, of whose fleet something must have been recorded."""
    told = _Telling(now=run.events[0].at)
    for event in run.events:
        told.take(event)
    rows = [life.finish(told.now) for life in told.lives.values()]
    rows = sorted((row for row in rows if row.spans), key=lambda row: row.began)
    tries = {name: job.attempts for name, job in run.jobs.items()}
    return Timeline(
        name=run.directory.resolve().name,
        began=run.events[0].at,
        ended=told.now,
        rows=tuple(_named(row, tries) for row in rows),
        queue=tuple(told.queue),
    )


def covered(intervals: Iterable[tuple[float, float]]) -> float:
    """Tell how long at least one of the intervals lasted."""
    total, until = 0.0, float("-inf")
    for began, ended in sorted(intervals):
        total += max(0.0, ended - max(began, until))
        until = max(until, ended)
    return total


def _named(row: Row, tries: Mapping[str, Sequence[Attempt]]) -> Row:
    """Tell of each bar how its try ended, and which it was."""
    return evolve(row, bars=tuple(_told_by(bar, row, tries.get(bar.job, ())) for bar in row.bars))


def _told_by(bar: Bar, row: Row, attempts: Sequence[Attempt]) -> Bar:
    for number, attempt in enumerate(attempts, 1):
        here = (attempt.instance, attempt.slot) == (row.instance, bar.slot) and attempt.pool in {"", row.pool}
        if here and bar.began <= attempt.started <= bar.ended:
            return evolve(bar, number=number, state=attempt.state, why=attempt.why)
    return bar


@define
class _Telling:
    """What the events so far amount to."""

    now: float
    lives: dict[tuple[str, str], "_Life"] = field(factory=dict)
    queue: list[tuple[float, int]] = field(factory=list)
    tries: Counter[str] = field(factory=Counter)
    """How many of each job there were."""

    slots: Mapping[str, int] = field(factory=dict)
    """How many an instance has, by pool."""

    def take(self, event: RecordedEvent) -> None:
        """Take in the next event; while the clock is set back, time stands still."""
        last, self.now = self.now, max(self.now, event.at)
        match event:
            case Opened():
                self.slots = {pool.name: pool.capacity_per_instance for pool in event.pools}
                self._wait(last, 0)
                for life in self.lives.values():
                    life.unwatched(last)
            case InstanceEvent():
                self._life(event).move(event, self.now)
            case LeaseEvent(what="acquired" | "resumed"):
                self.tries[event.key] += event.what == "acquired"
                self._life(event).begin(event, self.now, self.tries[event.key])
            case LeaseEvent():
                self._life(event).end(event, self.now)
            case DecisionEvent():
                self._wait(self.now, event.decision.demand.pending)

    def _life(self, event: InstanceEvent | LeaseEvent) -> "_Life":
        place = event.pool, event.instance
        if place not in self.lives:
            self.lives[place] = _Life(*place, slots=self.slots.get(event.pool, 1))
        return self.lives[place]

    def _wait(self, at: float, number: int) -> None:
        if number != (self.queue[-1][1] if self.queue else 0):
            self.queue.append((at, number))


@define
class _Life:
    """What is known of one instance so far."""

    pool: str
    instance: str
    slots: int
    phase: Phase | None = None
    """None: it is not there."""

    since: float = 0.0
    spans: list[Span] = field(factory=list)
    bars: list[Bar] = field(factory=list)
    running: dict[int, Bar] = field(factory=dict)
    """Bars without an end yet, by slot."""

    last_seen: float | None = None
    """When it was seen last, if nobody has seen since whether it is still there."""

    lost: bool = False

    def move(self, event: InstanceEvent, at: float) -> None:
        """It came to be in another state. That a manager knows it from its journal does not mean that it is there."""
        if event.state != "creating":
            if event.state == GONE and self.last_seen is not None:
                self._went_unseen(self.last_seen)
                return
            self.last_seen = None
        self.lost |= event.lost
        self._enter(_PHASES.get(event.state), at, event.why)

    def begin(self, event: LeaseEvent, at: float, number: int) -> None:
        """A job was given a slot, so it is ready."""
        self.last_seen = None
        self._enter(Phase.READY, at)
        self._end(event.slot, at, JobState.SUCCEEDED)
        self.slots = max(self.slots, event.slot + 1)
        self.running[event.slot] = Bar(
            job=event.key, slot=event.slot, began=at, ended=at, number=number, state=JobState.RUNNING
        )

    def end(self, event: LeaseEvent, at: float) -> None:
        """A job gave its slot back, lost it, or fell asleep."""
        bar = self.running.get(event.slot)
        if bar is not None and bar.job == event.key:
            self._end(event.slot, at, _STATES.get(event.what, JobState.RUNNING), event.why)

    def unwatched(self, at: float) -> None:
        """Its manager was killed, and the last word of it came then."""
        if self.phase is not None:
            self._enter(Phase.UNWATCHED, at, STOPPED)
            self.last_seen = at if self.last_seen is None else self.last_seen

    def finish(self, at: float) -> Row:
        """Nothing more is known."""
        for slot in list(self.running):
            self._end(slot, at, JobState.RUNNING)
        if self.last_seen is not None:
            self._went_unseen(self.last_seen)
        left = self.phase is not None
        self._enter(None, at)
        return Row(
            pool=self.pool,
            instance=self.instance,
            slots=self.slots,
            spans=tuple(self.spans),
            bars=tuple(self.bars),
            lost=self.lost,
            left=left,
        )

    def _enter(self, phase: Phase | None, at: float, why: str = "") -> None:
        if phase is self.phase:
            return
        for slot in list(self.running):  # whatever runs on an instance that is not ready any more
            self._end(slot, at, JobState.LOST, why)
        if self.phase is not None and at > self.since:
            self.spans.append(Span(phase=self.phase, began=self.since, ended=at))
        self.phase, self.since = phase, at

    def _end(self, slot: int, at: float, state: JobState, why: str = "") -> None:
        if slot in self.running:
            self.bars.append(evolve(self.running.pop(slot), ended=at, state=state, why=why))

    def _went_unseen(self, last_seen: float) -> None:
        """Nobody knows when it went; what is known of it ends when it was seen last."""
        self.spans = [span for span in self.spans if span.ended <= last_seen]
        self.phase = self.last_seen = None
