"""Why there is what there is: snapshots and sentences for people, never on the hot path."""

from collections import Counter
from collections.abc import Iterator, Mapping
from math import inf

from attrs import evolve, frozen

from fleeting import Instance, Plan
from taskscaler._core import Core
from taskscaler._decide import Decision
from taskscaler._ledger import Capacity, host_id
from taskscaler._observe import label_of


@frozen(kw_only=True)
class InstanceView:
    """One instance, for people to look at."""

    id: str
    pool: str
    state: str
    """``creating``, ``pending`` (running, not ready yet), ``running`` or ``deleting``, as in the metrics; or
    ``unusable``: it would be removed, but is retained, or the scaler only observes."""

    slots: tuple[str | None, ...]
    """By slot number: the key that holds it, or None. Empty until the instance is ready."""

    uses: int
    """How often it was given work."""

    since: float
    """When it was first seen, seconds since the epoch."""

    ready_since: float | None
    why: str
    """Why it gets no new work, is not ready yet, or is (or would be) removed; empty if none of it is so, or if that is
    an operator's wish, and `holds` tells."""

    cordoned: str | None
    """Why an operator wants it to get no new work, empty if nothing was said; None: no operator does."""

    retained: str | None
    """Why it is not to be deleted, empty if nothing was said; None: it may be."""

    @property
    def holds(self) -> str:
        """In words what an operator wants of it, such as ``cordoned (a disk fails), retained``; empty: nothing."""
        words = [("cordoned", self.cordoned), ("retained", self.retained)]
        return ", ".join(f"{word} ({why})" if why else word for word, why in words if why is not None)


_WORDS = {
    "creating": "booting",
    "pending": "getting ready",
    "running": "ready",
    "deleting": "being removed",
    "unusable": "of no use",
}
"""The metrics' states, as people say them."""


@frozen(kw_only=True)
class PoolView:
    """What stands between one pool and more capacity."""

    name: str
    instances: Mapping[str, int]
    """Known instances, counted by their states; see `InstanceView.state`."""

    outstanding: int
    """Instances that were asked for and have not been seen yet."""

    ceiling: int | None
    """How many there may be, all of the above counted; None: any number."""

    backoff: str
    """Why nothing is asked for at the moment; empty if it is."""

    backoff_left: float
    """Seconds until something is asked for again; infinite if time alone does not bring that about."""

    problems: tuple[str, ...]
    """What the cloud says on why capacity is not coming."""

    last_failure: str
    """Why growing failed last, whatever has succeeded since; empty if it never did."""

    last_failure_ago: float
    """Seconds since then."""

    def sentences(self) -> Iterator[str]:
        """One thought each."""
        counts = [f"{count} {_WORDS.get(state, state)}" for state, count in self.instances.items()]
        counts += [f"{self.outstanding} asked for"] if self.outstanding else []
        ceiling = f", at most {self.ceiling}" if self.ceiling is not None else ""
        yield f"pool {self.name}: {', '.join(counts) or 'no instances'}{ceiling}"
        if self.backoff:
            long = f" for {self.backoff_left:.0f} s" if self.backoff_left < inf else ""
            yield f"pool {self.name} asks for no more{long}: {self.backoff}"
        elif self.last_failure:
            yield f"pool {self.name} failed to grow {self.last_failure_ago:.0f} s ago: {self.last_failure}"
        yield from (f"the cloud says of pool {self.name}: {problem}" for problem in self.problems)


@frozen(kw_only=True)
class Explanation:
    """The state of a scaler in words; `str()` of it is for people."""

    at: float
    capacity: Capacity
    shut: str
    """Why no slots are handed out at all; empty if they are."""

    pools: tuple[PoolView, ...]
    holds: tuple[InstanceView, ...]
    """Instances that an operator has cordoned or retained."""

    decisions: tuple[Decision, ...]
    """The last ones that differ, newest last."""

    def sentences(self) -> Iterator[str]:
        """One thought each."""
        capacity = self.capacity
        states = (
            (capacity.acquired, "acquired"),
            (capacity.suspended, "suspended"),
            (capacity.idle, "idle"),
            (capacity.reserved, "reserved"),
            (capacity.unavailable, "unavailable"),
            (capacity.unhealthy, "unhealthy"),
        )
        yield f"slots: {', '.join(f'{count} {state}' for count, state in states if count) or 'none'}"
        if capacity.pending or capacity.promised:
            yield f"waiting for a slot: {capacity.pending} acquires, {capacity.promised} reservations"
        if self.shut:
            yield f"no slots are handed out: {self.shut}"
        for pool in self.pools:
            yield from pool.sentences()
        for view in self.holds:
            yield f"instance {view.id} is {view.holds}" + (f": {view.why}" if view.why else "")
        if self.decisions:
            decision = self.decisions[-1]
            yield f"last decision, {self.at - decision.at:.0f} s ago: {decision}"

    def __str__(self) -> str:
        """All sentences, a line each."""
        return "\n".join(self.sentences())


def explain(core: Core, now: float) -> Explanation:
    """Take a snapshot."""
    return Explanation(
        at=now,
        capacity=core.capacity(),
        shut=core.ledger.shut or core.refusal or "",
        pools=tuple(_view_pool(plan, now) for plan in core.plans.values()),
        holds=tuple(_held(core)),
        decisions=tuple(core.decisions),
    )


def view_instances(core: Core) -> list[InstanceView]:
    """All known instances, oldest first."""
    views = [_view(core, plan, each) for plan in core.plans.values() for each in plan.instances.values()]
    decision = core.decisions[-1] if core.decisions else None
    if decision is not None and decision.observed:
        would = {(each.pool, each.instance): f"would be removed: {each.why}" for each in decision.removals}
        views = [evolve(view, why=would.get((view.pool, view.id), view.why)) for view in views]
    return sorted(views, key=lambda view: (view.since, view.id))


def _view(core: Core, plan: Plan, instance: Instance) -> InstanceView:
    host = core.ledger.hosts.get(host_id(plan.pool, instance.id))
    return InstanceView(
        id=instance.id,
        pool=plan.pool,
        state=label_of(instance),
        slots=tuple(held.key if held else None for held in host.slots) if host else (),
        uses=host.uses if host else 0,
        since=instance.first_seen,
        ready_since=instance.ready_since,
        why=instance.removing or (host.why_closed if host else instance.trouble),
        cordoned=core.ledger.why_cordoned(host_id(plan.pool, instance.id)),
        retained=instance.retained,
    )


def _held(core: Core) -> Iterator[InstanceView]:
    """Those of which an operator wants something."""
    for plan in core.plans.values():
        for each in plan.instances.values():
            if each.retained is not None or core.ledger.why_cordoned(host_id(plan.pool, each.id)) is not None:
                yield _view(core, plan, each)


def _view_pool(plan: Plan, now: float) -> PoolView:
    limits = plan.limits(now)
    failed_at, failure = plan.last_failure or (now, "")
    return PoolView(
        name=plan.pool,
        instances=Counter(label_of(each) for each in plan.instances.values()),
        outstanding=plan.outstanding,
        ceiling=plan.ceiling,
        backoff=limits.blocked_why if limits.blocked_until is not None else "",
        backoff_left=max(0.0, (limits.blocked_until or now) - now),
        problems=tuple(problem.message for problem in plan.problems),
        last_failure=failure,
        last_failure_ago=now - failed_at,
    )
