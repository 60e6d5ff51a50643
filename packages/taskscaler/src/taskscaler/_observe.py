"""What observers learn of a scaler: events as values, and who gets them. Each comes after what led to it is durable."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import inf
from typing import Any

from attrs import asdict, evolve, field, fields_dict, frozen

from fleeting.core import Instance, Origin, Plan, Stage, Step, messages
from fleeting.events import Loss
from taskscaler.core._decide import Decision, Demand, PoolDecision, Removal, Sleep, Wake

log = logging.getLogger("taskscaler.observers")

_LABELS: Mapping[Stage, str] = {
    Stage.WAITING: "creating",
    Stage.PREPARING: "pending",
    Stage.READY: "running",
    Stage.UNHEALTHY: "running",
    Stage.ASLEEP: "suspended",
    Stage.REMOVING: "deleting",
    Stage.HELD: "unusable",
}
"""States of instances, as the metrics call them."""

GONE = "gone"
"""The state of an instance that is no more."""

_ORIGINS = {
    Origin.REQUESTED: "it was requested",
    Origin.PREEXISTING: "it existed at the start",
    Origin.UNEXPECTED: "nobody requested it",
}

_KEPT = "an earlier manager left it"


@frozen(kw_only=True)
class InstanceEvent:
    """An instance came to be in another state."""

    at: float
    """Seconds since the epoch."""

    pool: str
    """Name of the instance's pool."""

    instance: str
    """The instance's id."""

    state: str
    """``creating``, ``pending`` (running, not ready yet), ``running``, ``suspended`` (or about to be), ``resuming`` or
    ``deleting``, as in the metrics; ``unusable`` (it would be deleted, but is retained); ``gone``."""

    why: str = ""
    """Why it is there, is deleted, or is gone; empty if it simply went on."""

    lost: bool = False
    """Whether it was taken from us: it failed, or is gone without our having deleted it."""

    kept_since: float | None = None
    """When it was first seen, if this is how an earlier manager left it: it may sleep or be gone by now. Else None."""


@frozen(kw_only=True)
class LeaseEvent:
    """A lease began, ended, fell asleep, or is held by nobody for a while."""

    at: float
    """Seconds since the epoch."""

    key: str
    """What the slot was acquired under."""

    pool: str
    """Name of the instance's pool."""

    instance: str
    """The instance's id."""

    slot: int
    """The number of the slot, from 0."""

    what: str
    """``acquired``, ``released``, ``lost``, ``suspended``, ``resumed``, ``expired`` (suspended for too long),
    ``detached`` (kept, and held by nobody), ``reattached``, or ``replaced`` (by a slot on another instance)."""

    why: str = ""
    """Why it was lost, replaced, or detached if not by its holder; else empty."""


@frozen(kw_only=True)
class DecisionEvent:
    """A scaling decision that differs from the last one."""

    at: float
    """Seconds since the epoch."""

    decision: Decision
    """What was decided, and why."""


ScalerEvent = InstanceEvent | LeaseEvent | DecisionEvent

ScalerObserver = Callable[[ScalerEvent], None]
"""Hears of every event, in order; must be quick. What it raises is logged, and goes no further."""


KINDS: Mapping[type[ScalerEvent], str] = {InstanceEvent: "instance", LeaseEvent: "lease", DecisionEvent: "decision"}
"""What the events are called in plain data."""


def event_as_data(event: ScalerEvent) -> Mapping[str, object]:
    """Give an event as plain data that JSON has words for."""
    common = {"at": event.at, "event": KINDS[type(event)]}
    if not isinstance(event, DecisionEvent):
        return {**common, **asdict(event, filter=lambda each, value: each.name != "kept_since" or value is not None)}
    decision, again = event.decision, event.decision.look_again_at
    data = {**asdict(decision), "look_again_at": None if again == inf else again}
    return {**common, "decision": data, "text": str(decision)}


def event_from_data(data: Mapping[str, Any]) -> ScalerEvent | None:
    """Make an event from what `event_as_data` gives; None: a later release's, of which we need not know.

    Raises:
        TypeError, ValueError, LookupError: It is none.
    """
    match data["event"]:
        case "decision":
            return read_decision(at=data["at"], decision=data["decision"])
        case "instance":
            kind: type[InstanceEvent | LeaseEvent] = InstanceEvent
        case "lease":
            kind = LeaseEvent
        case _:
            return None
    return kind(**{name: value for name, value in data.items() if name in fields_dict(kind)})


def read_decision(*, at: float, decision: Mapping[str, Any]) -> DecisionEvent:
    """Make a decision from what `event_as_data` gives."""
    again = decision["look_again_at"]
    values = {
        "demand": Demand(**decision["demand"]),
        "pools": tuple(PoolDecision(**pool) for pool in decision["pools"]),
        "removals": tuple(Removal(**removal) for removal in decision["removals"]),
        "sleeps": tuple(Sleep(**sleep) for sleep in decision.get("sleeps", ())),  # earlier releases had none
        "wakes": tuple(Wake(**wake) for wake in decision.get("wakes", ())),
        "look_again_at": inf if again is None else again,
    }
    return DecisionEvent(at=float(at), decision=Decision(**{**decision, **values}))


@frozen
class Observers:
    """All observers, each kept from harming the scaler and the others."""

    observers: Sequence[ScalerObserver]
    _known: set[tuple[int, type[Exception]]] = field(factory=set, init=False)
    """Which kinds of trouble have been logged, by observer."""

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self.observers)

    def notify(self, event: ScalerEvent) -> None:
        """Call all of them."""
        for number, observer in enumerate(self.observers):
            try:
                observer(event)
            except Exception as error:  # somebody else's code
                if (number, type(error)) not in self._known:
                    self._known.add((number, type(error)))
                    log.warning("observer_failed", exc_info=error, extra={"observer": repr(observer)})


def label_of(instance: Instance) -> str:
    """The state of an instance as the metrics call it; ``unusable`` if it is done for, but not to be deleted."""
    comes_back = instance.stage is Stage.WAITING and instance.announced
    return "resuming" if comes_back else _LABELS[instance.stage]


class Watch:
    """Finds which instances have come to be in another state. Pure; costs what a step costs, not what a fleet does."""

    def __init__(self) -> None:
        """Nothing was seen yet."""
        self._seen: dict[tuple[str, str], str] = {}
        """The last state seen, by pool and instance."""

    def begin(self, plan: Plan, now: float) -> Iterator[InstanceEvent]:
        """Report the instances that an earlier manager left."""
        for instance in plan.instances.values():
            for event in self._follow(plan, instance.id, now, why=_KEPT):
                yield evolve(event, kept_since=instance.first_seen)

    def changes(self, plan: Plan, step: Step, now: float) -> Iterator[InstanceEvent]:
        """Report the instances that the plan's step brought into another state."""
        losses = {event.instance: event.loss for event in step.events if isinstance(event, messages.Gone)}
        touched = (each.instance for each in step.events if isinstance(each, messages.Changed | messages.Ended))
        for instance in dict.fromkeys(touched):
            yield from self._follow(plan, instance, now, loss=losses.get(instance))

    def _follow(
        self, plan: Plan, instance: str, now: float, *, loss: Loss | None = None, why: str = ""
    ) -> Iterable[InstanceEvent]:
        known, place = plan.instances.get(instance), (plan.pool, instance)
        before, state = self._seen.get(place), GONE if known is None else label_of(known)
        if state == (before or GONE):
            return ()
        if known is None:
            del self._seen[place]
        else:
            self._seen[place] = state
        taken = loss is not None or (known is None and before != "deleting")
        lost = taken and not plan.observing  # its manager may have given it up
        why = why or (str(loss) if loss is not None else _why(known))
        return (InstanceEvent(at=now, pool=plan.pool, instance=instance, state=state, why=why, lost=lost),)


def _why(known: Instance | None) -> str:
    if known is None:
        return ""
    if known.stage is Stage.WAITING:
        return "it was suspended" if known.announced else _ORIGINS[known.origin]
    return known.removing or known.asleep
