"""What has happened in a scaler so far, counted. Pure, and nothing but sums: whoever shows them reads them when asked.

A scaler has a meter only if one of its observers is `Metered`. What is counted with each lease costs less than a
microsecond; all else is counted with what happens to instances and at clouds, which is rare. The names of operations
are GitLab's where it has them.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from math import isfinite
from typing import Final, NamedTuple, Protocol, runtime_checkable

from attrs import Factory, define, frozen

from fleeting import NoticeKind
from fleeting.core import Instance, Plan, Stage, Start, Step, messages
from fleeting.events import Loss
from taskscaler._histogram import Histogram
from taskscaler._use_meter import UseMeter
from taskscaler.core._decide import OVER_ALL, Decision
from taskscaler.core._slots import Capacity

FAST: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
"""Bounds in seconds for what takes milliseconds."""

SLOW: Final = (1.0, 2.5, 5.0, 10.0, 15.0, 30.0, 45.0, 60.0, 90.0, 120.0, 180.0, 300.0, 600.0, 1200.0)
"""For what clouds do with instances."""

LONG: Final = (60.0, 300.0, 600.0, 1800.0, 3600.0, 7200.0, 14400.0, 28800.0, 86400.0, 259200.0)
"""For lives."""

WAITS: Final = (0.01, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)
"""For waits for a slot: none, where one is idle, or as long as an instance takes, or as the queue is long."""

BUCKETS: Final[Mapping[str, tuple[float, ...]]] = {
    "instance_creation_time": SLOW,
    "instance_is_running_time": SLOW,
    "instance_deletion_time": SLOW,
    "instance_life_duration": LONG,
    "instance_readiness_time": SLOW,
    "queue_wait": WAITS,
    "dial": (*FAST, 10.0, 30.0, 60.0),
    "journal_commit": FAST,
}
"""The histograms, and the upper bounds of their buckets in seconds."""


MOST_BUCKETS: Final = 50
"""Of a histogram: each is a series of its own."""


def check_bounds(bounds: Sequence[float]) -> None:
    """See whether these can be upper bounds of buckets; raises ValueError with what is expected."""
    rising = all(low < high for low, high in pairwise(bounds))
    if not (0 < len(bounds) <= MOST_BUCKETS and rising and all(isfinite(each) and each > 0 for each in bounds)):
        raise ValueError(f"1 to {MOST_BUCKETS} upper bounds in seconds, above 0 and ascending, such as [1, 5, 30]")


def usable_bounds(bounds: Sequence[float]) -> tuple[float, ...]:
    """Make of any numbers such as can be upper bounds of buckets, or none: ascending, and not too many."""
    found = sorted({float(each) for each in bounds if isfinite(each) and each > 0})
    few = min(len(found), MOST_BUCKETS)
    return tuple(found[(at + 1) * len(found) // few - 1] for at in range(few))


_CALLS: Final[Mapping[type, tuple[str, str]]] = {
    messages.Updated: ("update", ""),
    messages.UpdateFailed: ("update", "_failure"),
    messages.Increased: ("increase", ""),
    messages.IncreaseFailed: ("increase", "_failure"),
    messages.Decreased: ("decrease", ""),
    messages.DecreaseFailed: ("decrease", "_failure"),
    messages.Withdrawn: ("withdraw", ""),
    messages.SuspendAccepted: ("suspend", ""),
    messages.SuspendFailed: ("suspend", "_failure"),
    messages.ResumeAccepted: ("resume", ""),
    messages.ResumeFailed: ("resume", "_failure"),
    messages.Prepared: ("prepare", ""),
    messages.PrepareFailed: ("prepare", "_failure"),
    messages.HeartbeatPassed: ("heartbeat", ""),
    messages.HeartbeatFailed: ("heartbeat", "_failure"),
}
"""The answers of groups: which call each of them ends, and how."""

CALLS: Final = (*dict.fromkeys(f"{call}{how}" for call, how in _CALLS.values()), "withdraw_failure")
"""What is counted of calls to groups: each, and each that fails."""

TASKS: Final = (
    "acquire",
    "acquire_failure",
    "release",
    "reserve",
    "reserve_available_capacity_failure",
    "reserve_iop_capacity_failure",
    "unreserve",
    "suspend",
    "resume",
    "expire",
    "replace",
    "detach",
    "reattach",
    "lost",
)
"""What is done with slots: see ``docs/reference/metrics.md``."""

INSTANCES: Final = ("create", "delete", "suspend", "resume", "withdraw")
"""What is done with instances at clouds."""

LOSSES: Final = tuple(kind.value for kind in messages.LossKind)
"""Why instances and leases are lost."""

LIMITS: Final = ("max_instances", "max_instances_over_all", "group_size", "scale_throttle", "backoff", "blocked")
"""What may keep a pool from growing."""

DIALS: Final = ("ok", "unreachable", "failed", "cancelled")
"""How a connection to an instance may end before it is there."""

STATES: Final[Mapping[str, tuple[Stage, ...]]] = {
    "creating": (Stage.WAITING,),
    "pending": (Stage.PREPARING,),
    "running": (Stage.READY, Stage.UNHEALTHY),
    "deleting": (Stage.REMOVING,),
    "suspended": (Stage.ASLEEP,),
    "unusable": (Stage.HELD,),
}
"""States of instances, as GitLab's dashboards have them, and two that only we know: of which stages they consist."""


@define
class _Life:
    """What is remembered of an instance from one step to the next."""

    first_seen: float
    requested_at: float | None
    """When it was asked for; None: nobody did, or an earlier manager."""

    counted: int | None = None
    """What `PoolMeter.came` gave; None: it is suspended, or about to run again, and nobody pays for it.

    It begins with this manager: what an earlier one counted would be counted twice.
    """

    was_running: bool = False
    was_ready: bool = False
    removing_since: float | None = None


@define
class PoolMeter:
    """What happened in one pool."""

    notices: Counter[str] = Factory(Counter)
    """Announcements that an instance will go, by their kind."""

    losses: Counter[str] = Factory(Counter)
    """Instances that were lost, by why."""

    viewed_at: float | None = None
    """When the cloud's view last came, in seconds since the epoch."""

    removals: dict[str, float] = Factory(dict)
    """Since when each instance is being deleted that is, the oldest first."""

    _ended: int = 0
    """Microseconds that instances were there which are gone. Whole ones: such sums are exact, and never fall."""

    _count: int = 0
    _begins: int = 0
    """The sum of when those that are there came, in microseconds since the epoch."""

    _latest: int = 0
    """Time does not go back."""

    def came(self, at: float) -> int:
        """An instance is there, and not suspended; returns what `went` is to be told."""
        began = self._at(at)
        self._count += 1
        self._begins += began
        return began

    def went(self, began: int, now: float) -> None:
        """It is no more, or is suspended."""
        self._count -= 1
        self._begins -= began
        self._ended += self._at(now) - began

    def instance_seconds(self, now: float) -> float:
        """For how long instances were there and not suspended so far, all together; never less than before. O(1)."""
        return (self._ended + self._count * self._at(now) - self._begins) / 1e6

    def _at(self, now: float) -> int:
        self._latest = max(self._latest, round(now * 1e6))
        return self._latest


class Meter:
    """What happened so far. Its numbers only ever grow."""

    def __init__(self, buckets: Mapping[str, Sequence[float]] | None = None, steps: Sequence[str] = ()) -> None:
        """Start at nought.

        Args:
            buckets: Upper bounds in seconds for some of `BUCKETS`, in place of those there.
            steps: As for `UseMeter`.
        """
        self.uses = UseMeter(steps)
        """What jobs used: whoever runs them says so."""

        self.histograms = {name: Histogram((buckets or {}).get(name) or usual) for name, usual in BUCKETS.items()}
        self.at_once = 0
        """Slots that were handed over without a wait, since `settle`: apart, as `released`, because nearly all are."""

        self.released = 0
        """Leases that were given back since then."""

        self.tasks = dict.fromkeys(TASKS, 0)
        self.scalings: Counter[str] = Counter({"up": 0, "down": 0})
        self.instances: Counter[str] = Counter(dict.fromkeys(INSTANCES, 0))
        self.calls: Counter[str] = Counter(dict.fromkeys(CALLS, 0))
        self.broken: Counter[str] = Counter(dict.fromkeys(LOSSES, 0))
        """Leases that were lost, by why."""

        self.dials: Counter[str] = Counter(dict.fromkeys(DIALS, 0))
        self.pools: dict[str, PoolMeter] = {}
        self._lives: dict[tuple[str, str], _Life] = {}
        self._wait = self.histograms["queue_wait"].observe

    # --- leases ------------------------------------------------------------------------------------------

    def acquired(self, waited: float) -> None:
        """A slot was handed over, after so many seconds."""
        if waited <= 0:
            self.at_once += 1
        else:
            self.tasks["acquire"] += 1
            self._wait(waited)

    def settle(self) -> None:
        """Add up what was counted apart; before any of it is read."""
        waits = self.histograms["queue_wait"]
        self.tasks["acquire"] += self.at_once
        waits.counts[0] += self.at_once
        self.tasks["release"] += self.released
        self.at_once = self.released = 0

    def lost(self, loss: Loss, *, kept: bool) -> None:
        """A lease has broken; *kept*: it is left to the next manager."""
        if kept:
            self.tasks["detach"] += 1
        else:
            self.tasks["lost"] += 1
            self.broken[loss.kind.value] += 1

    def dialled(self, how: str, seconds: float) -> None:
        """Somebody with a lease has dialled its instance; one of `DIALS` came of it, after so long."""
        self.dials[how] += 1
        self.histograms["dial"].observe(seconds)

    def decided(self, decision: Decision) -> None:
        """A decision is carried out; one that changes nothing is not counted."""
        self.scalings["up"] += bool(decision.increase or decision.wakes)
        self.scalings["down"] += bool(decision.removals or decision.sleeps)

    # --- instances ---------------------------------------------------------------------------------------

    def begin(self, plan: Plan, now: float) -> None:
        """Take in a pool, with the instances that an earlier manager left."""
        pool = self.pools.setdefault(plan.pool, PoolMeter())
        for each in LOSSES:
            pool.losses[each] += 0
        for kind in NoticeKind:
            pool.notices[kind.value] += 0
        for known in plan.instances.values():
            self._follow(plan, known, now)

    def answered(self, plan: Plan, fact: messages.Fact, now: float) -> None:
        """A call to a group has ended, or is about to be taken in."""
        call = _CALLS.get(type(fact))
        if call is None:
            return
        self.calls[call[0]] += 1
        if call[1]:
            self.calls[call[0] + call[1]] += 1
        if isinstance(fact, messages.Withdrawn) and fact.has_failed:
            self.calls["withdraw_failure"] += 1
        match fact:
            case messages.Updated():
                self.pools[plan.pool].viewed_at = now
            case messages.Increased(_, accepted):
                self.instances["create"] += max(0, accepted)
            case messages.Decreased(_, accepted_ids):
                self.instances["delete"] += len(accepted_ids)
            case messages.Withdrawn(_, taken):
                self.instances["withdraw"] += max(0, taken)
            case messages.SuspendAccepted(_, accepted_ids):
                self.instances["suspend"] += len(accepted_ids)
            case messages.ResumeAccepted(_, accepted_ids):
                self.instances["resume"] += len(accepted_ids)
            case _:
                pass

    def changed(self, plan: Plan, step: Step, now: float) -> None:
        """A plan's step has brought instances into other states, or to their ends."""
        for event in step.events:
            if isinstance(event, messages.Changed):
                known = plan.instances.get(event.instance)
                if known is not None:
                    self._follow(plan, known, now)
            elif isinstance(event, messages.Gone):
                if event.loss is not None and not plan.observing:
                    self.pools[plan.pool].losses[event.loss.kind.value] += 1
            elif isinstance(event, messages.Ended):
                self._end(plan.pool, event.instance, now)

    def _follow(self, plan: Plan, known: Instance, now: float) -> None:
        """Note what an instance has come to."""
        life = self._lives.get((plan.pool, known.id))
        if life is None:
            life = self._begin(plan, known)
        stage = known.stage
        self._count_time(self.pools[plan.pool], life, known, now)
        if not life.was_running and stage is not Stage.WAITING and life.removing_since is None:
            if stage in (Stage.PREPARING, Stage.READY):
                self._since_request("instance_is_running_time", life, now)
            life.was_running = True
        if stage is Stage.READY and not life.was_ready:
            life.was_ready = True
            self._since_request("instance_readiness_time", life, now)
        if stage is Stage.REMOVING and life.removing_since is None:
            life.removing_since = now
        removals = self.pools[plan.pool].removals
        if stage is Stage.REMOVING:
            removals.setdefault(known.id, now)
        else:
            removals.pop(known.id, None)

    def _begin(self, plan: Plan, known: Instance) -> _Life:
        boot = known.boot
        is_new = boot is not None and boot.start is Start.NEW
        life = _Life(known.first_seen, boot.since if boot is not None and is_new else None)
        self._lives[plan.pool, known.id] = life
        self._since_request("instance_creation_time", life, known.first_seen)
        return life

    def _count_time(self, pool: PoolMeter, life: _Life, known: Instance, now: float) -> None:
        """Count for how long it is there, but not while it is suspended."""
        is_waiting_to_wake = known.stage is Stage.WAITING and (known.announced or known.sleep is not None)
        is_there = known.stage is not Stage.ASLEEP and not is_waiting_to_wake
        if is_there and life.counted is None:
            life.counted = pool.came(now)
        elif not is_there and life.counted is not None:
            pool.went(life.counted, now)
            life.counted = None

    def _since_request(self, histogram: str, life: _Life, at: float) -> None:
        if life.requested_at is not None:
            self.histograms[histogram].observe(max(0.0, at - life.requested_at))

    def _end(self, pool: str, instance: str, now: float) -> None:
        life = self._lives.pop((pool, instance), None)
        if life is None:
            return
        if life.counted is not None:
            self.pools[pool].went(life.counted, now)
        self.pools[pool].removals.pop(instance, None)
        self.histograms["instance_life_duration"].observe(max(0.0, now - life.first_seen))
        if life.removing_since is not None:
            self.histograms["instance_deletion_time"].observe(now - life.removing_since)


class Growth(NamedTuple):
    """What the last decision made of one pool."""

    wanted: int
    """Instances that the demand calls for beyond those that there are or that are on their way."""

    limit: str
    """Which of `LIMITS` keeps some of them from being asked for; empty: none."""


@frozen(kw_only=True)
class PoolFigures:
    """How one pool stands."""

    name: str
    instances: Mapping[str, int]
    """By state: those of `STATES`, and ``requested``."""

    ceiling: int | None
    """Instances that there may be; None: any number."""

    slots: int
    """Per instance."""

    uses: int
    """Per instance; 0: any number."""

    missed: int
    """How often a view did not show a known instance."""

    failures: Mapping[tuple[str, str], int]
    """Calls that failed, by the call and the error's class."""

    growth: Growth
    retained: int
    cordoned: int
    is_disowned: bool
    update_interval: float
    """Seconds from one view to the next, at most, where the cloud answers."""


@frozen(kw_only=True)
class Figures:
    """How a scaler stands, from counters: O(pools)."""

    at: float
    """Seconds since the epoch."""

    capacity: Capacity
    desired: int
    """Instances that the last decision aims at."""

    ceiling: int | None
    """Instances that there may be over all pools; None: any number."""

    pools: Sequence[PoolFigures]
    waiting_since: float | None
    """When the first in the queue asked for a slot; None: nobody waits."""

    is_journaled: bool
    writes: int
    """Records that were written to the journal."""

    commit_failures: int
    is_journal_failing: bool
    is_handing_out: bool
    """Whether slots are handed out; not while draining, or while the journal cannot be written."""


@runtime_checkable
class Metered(Protocol):
    """An observer that hears of no event, but reads what was counted, and how the scaler stands, when it likes."""

    meter: Meter
    """Counts; one scaler's alone."""

    def use_buckets(self, usual: Mapping[str, tuple[float, ...]]) -> None:
        """Take other bounds for the histograms of which its own settings say nothing; before the scaler is made."""
        ...

    def attach(self, look: Callable[[], Figures | None]) -> None:
        """Learn how to look at the scaler; it has nothing to show while it is not open."""
        ...


def growth_of(decision: Decision | None, plan: Plan) -> Growth:
    """What a decision made of a pool, in words of which there are few: what clouds say is not among them."""
    found = next((each for each in decision.pools if each.pool == plan.pool), None) if decision is not None else None
    if found is None:
        return Growth(0, "")
    return Growth(found.wanted, _limit(found.limited_by, plan))


def _limit(words: str, plan: Plan) -> str:
    if not words:
        return ""
    if words == OVER_ALL:
        return "max_instances_over_all"
    if words in ("max_instances", "scale_throttle"):
        return words
    if words == plan.ceiling_is:
        return "group_size"
    return "backoff" if words.startswith("backoff (") else "blocked"
