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

from taskscaler._observe import GONE, DecisionEvent, InstanceEvent
from taskscaler._recorded_run import Progress, RecordedRun
from taskscaler.batch import Begun, Ended, JobState, Joined, Over, RecordedEvent, Resumed, Started
from taskscaler.batch._state import STOPPED


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


@frozen(kw_only=True)
class Span:
    """A time in the life of an instance. Times are seconds since the epoch."""

    phase: Phase
    """What the instance was doing."""

    began: float
    """From when on."""

    ended: float
    """Until when."""

    @property
    def duration(self) -> float:
        """Seconds; more than 0."""
        return self.ended - self.began


@frozen(kw_only=True)
class Bar:
    """A job on a slot: one try. Times are seconds since the epoch."""

    job: str
    """Name of the job."""

    slot: int
    """The number of the slot, from 0."""

    began: float
    """When it began."""

    ended: float
    """When it ended."""

    number: int
    """Which try of the job it was, from 1."""

    state: JobState
    """How the try ended; `RUNNING` if it did not, or nobody knows."""

    why: str = ""
    """Why it ended as it did, in a few words; empty if there is nothing to say."""

    @property
    def duration(self) -> float:
        """Seconds."""
        return self.ended - self.began


@frozen(kw_only=True)
class Row:
    """One instance."""

    pool: str
    """Name of the instance's pool."""

    instance: str
    """The instance's id."""

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

    @property
    def runs(self) -> Sequence[tuple[float, float]]:
        """From when until when it existed without a break, such as while it was suspended; each time."""
        runs = list[tuple[float, float]]()
        for span in self.spans:
            if runs and runs[-1][1] == span.began:
                runs[-1] = runs[-1][0], span.ended
            else:
                runs.append((span.began, span.ended))
        return runs

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
    """Of the batch."""

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


def lay_out(run: RecordedRun) -> Timeline:
    """Make the timeline of a run."""
    history = _History(now=run.started)
    for event in run.events:
        history.take(event)
    if run.progress is not Progress.RUNNING:
        history.stop(history.now)
    rows = [life.finish(history.now, lost=_is_lost(run, life)) for life in history.lives.values()]
    return Timeline(
        name=run.directory.resolve().name,
        began=run.started,
        ended=history.now,
        rows=tuple(sorted((row for row in rows if row.spans), key=lambda row: row.began)),
        queue=tuple(history.queue),
    )


def _is_lost(run: RecordedRun, life: "_Life") -> bool:
    instance = run.instances.get((life.pool, life.instance))
    return instance is not None and instance.lost is not None


def covered(intervals: Iterable[tuple[float, float]]) -> float:
    """How long at least one of the intervals lasted."""
    total, until = 0.0, float("-inf")
    for began, ended in sorted(intervals):
        total += max(0.0, ended - max(began, until))
        until = max(until, ended)
    return total


@define
class _History:
    """What the events so far amount to."""

    now: float
    lives: dict[tuple[str, str], "_Life"] = field(factory=dict)
    queue: list[tuple[float, int]] = field(factory=list)
    running: dict[str, "_Life"] = field(factory=dict)
    """Where each job runs that does."""

    stopped: dict[str, "_Life"] = field(factory=dict)
    """Where each job ran that did when the last manager was stopped."""

    tries: Counter[str] = field(factory=Counter)
    """How many of each job there were."""

    slots: Mapping[str, int] = field(factory=dict)
    """How many an instance has, by pool."""

    def take(self, event: RecordedEvent) -> None:
        """Take in the next event; while the clock is set back, time stands still."""
        if isinstance(event, Over):
            return
        last, self.now = self.now, max(self.now, event.at)
        match event:
            case Begun() | Resumed():
                self.slots = {pool.name: pool.capacity_per_instance for pool in event.pools}
                self._wait(last, 0)
                self.stop(last)
                for life in self.lives.values():
                    life.unwatched(last)
            case InstanceEvent():
                self._life(event.pool, event.instance).move(event, self.now)
            case Started():
                self.tries[event.job] += 1
                self.running[event.job] = life = self._life(event.pool, event.instance)
                life.begin(event.job, event.slot, self.now, self.tries[event.job])
            case Joined():
                self.running[event.job] = life = self.stopped.pop(event.job)
                life.join(event.job, self.now)
            case Ended():
                self.running.pop(event.job).end(event.job, self.now, event.state, event.why)
            case DecisionEvent():
                self._wait(self.now, event.decision.demand.pending)
            case _:
                pass

    def stop(self, at: float) -> None:
        """The manager was stopped, and with it all that ran, unless a later one joins it."""
        self.stopped = {**self.running}
        while self.running:
            job, life = self.running.popitem()
            life.end(job, at, JobState.LOST, STOPPED)

    def _life(self, pool: str, instance: str) -> "_Life":
        if (pool, instance) not in self.lives:
            self.lives[pool, instance] = _Life(pool, instance, slots=self.slots.get(pool, 1))
        return self.lives[pool, instance]

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

    open: dict[str, int] = field(factory=dict)
    """Which of the bars are of tries of which nobody has heard yet how they ended, by job."""

    last_seen: float | None = None
    """When it was seen last, if nobody has seen since whether it is still there."""

    def move(self, event: InstanceEvent, at: float) -> None:
        """It came to be in another state. That a manager knows it from its journal does not mean that it is there."""
        if event.state != "creating":
            if event.state == GONE and self.last_seen is not None:
                self._went_unseen(self.last_seen)
                return
            self.last_seen = None
        self._enter(_PHASES.get(event.state), at)

    def begin(self, job: str, slot: int, at: float, number: int) -> None:
        """A job was given a slot, so it is ready."""
        self.last_seen = None
        self._enter(Phase.READY, at)
        self._cut_off(slot, at)
        self.slots = max(self.slots, slot + 1)
        self.running[slot] = Bar(job=job, slot=slot, began=at, ended=at, number=number, state=JobState.RUNNING)

    def end(self, job: str, at: float, state: JobState, why: str) -> None:
        """A try has ended: now, or when the instance was no longer ready."""
        for slot in [slot for slot, bar in self.running.items() if bar.job == job]:
            self._cut_off(slot, at)
        index = self.open.pop(job)
        self.bars[index] = evolve(self.bars[index], state=state, why=why)

    def join(self, job: str, at: float) -> None:
        """The last try at a job ran on though nobody watched, and runs still, so the instance is ready."""
        index = max(index for index, bar in enumerate(self.bars) if bar.job == job)
        bar = self.bars.pop(index)
        self.open = {name: place - (place > index) for name, place in self.open.items()}
        self.last_seen = None
        self._enter(Phase.READY, at)
        self._cut_off(bar.slot, at)
        self.running[bar.slot] = evolve(bar, ended=at, state=JobState.RUNNING, why="")

    def unwatched(self, at: float) -> None:
        """Its manager was killed, and the last word of it came then."""
        if self.phase is not None:
            self._enter(Phase.UNWATCHED, at)
            self.last_seen = at if self.last_seen is None else self.last_seen

    def finish(self, at: float, *, lost: bool) -> Row:
        """Nothing more is known."""
        for slot in list(self.running):
            self._cut_off(slot, at)
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
            lost=lost,
            left=left,
        )

    def _enter(self, phase: Phase | None, at: float) -> None:
        if phase is self.phase:
            return
        for slot in list(self.running):  # whatever runs on an instance that is not ready any more
            self._cut_off(slot, at)
        if self.phase is not None and at > self.since:
            self.spans.append(Span(phase=self.phase, began=self.since, ended=at))
        self.phase, self.since = phase, at

    def _cut_off(self, slot: int, at: float) -> None:
        if slot in self.running:
            bar = self.running.pop(slot)
            self.open[bar.job] = len(self.bars)
            self.bars.append(evolve(bar, ended=at))

    def _went_unseen(self, last_seen: float) -> None:
        """Nobody knows when it went; what is known of it ends when it was seen last."""
        self.spans = [span for span in self.spans if span.ended <= last_seen]
        self.phase = self.last_seen = None
