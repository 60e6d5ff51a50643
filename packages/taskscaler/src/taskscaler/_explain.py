"""Why there is what there is: snapshots and sentences for people, never on the hot path."""

from collections.abc import Iterator
from math import inf

from attrs import frozen

from fleeting import Instance, Plan, Stage, State
from taskscaler._core import Core
from taskscaler._decide import Decision
from taskscaler._ledger import Capacity, host_id


@frozen(kw_only=True)
class InstanceView:
    """One instance, for people to look at."""

    id: str
    pool: str
    state: str
    """``creating``, ``pending`` (running, not ready yet), ``running`` or ``deleting``, as in the metrics."""

    slots: tuple[str | None, ...]
    """By slot number: the key that holds it, or None. Empty until the instance is ready."""

    uses: int
    """How often it was given work."""

    since: float
    """When it was first seen, seconds since the epoch."""

    ready_since: float | None
    why: str
    """Why it gets no new work, is not ready yet, or is being removed; empty if none of it is so."""


@frozen(kw_only=True)
class PoolView:
    """What stands between one pool and more capacity."""

    name: str
    total: int
    """Known instances, and those that open requests may still bring."""

    ceiling: int | None
    outstanding: int
    """Those that open requests may still bring."""

    backoff: str
    """Why nothing is asked for at the moment; empty if it is."""

    backoff_left: float
    """Seconds until something is asked for again; infinite if time alone does not bring that about."""

    problems: tuple[str, ...]
    """What the cloud says on why capacity is not coming."""


@frozen(kw_only=True)
class Explanation:
    """The state of a scaler in words; `str()` of it is for people."""

    at: float
    capacity: Capacity
    shut: str
    """Why no slots are handed out at all; empty if they are."""

    pools: tuple[PoolView, ...]
    decisions: tuple[Decision, ...]
    """The last ones that differ, newest last."""

    def sentences(self) -> Iterator[str]:
        """One thought each."""
        capacity = self.capacity
        yield (
            f"slots: {capacity.acquired} acquired, {capacity.idle} idle, {capacity.reserved} reserved,"
            f" {capacity.unavailable} unavailable, {capacity.unhealthy} unhealthy; {capacity.pending} acquires wait"
        )
        if self.shut:
            yield f"no slots are handed out: {self.shut}"
        for pool in self.pools:
            ceiling = f" of at most {pool.ceiling}" if pool.ceiling is not None else ""
            yield f"pool {pool.name}: {pool.total} instances{ceiling}, {pool.outstanding} of them not seen yet"
            if pool.backoff:
                long = f" for {pool.backoff_left:.0f} s" if pool.backoff_left < inf else ""
                yield f"pool {pool.name} asks for no more{long}: {pool.backoff}"
            yield from (f"the cloud says of pool {pool.name}: {problem}" for problem in pool.problems)
        if self.decisions:
            yield f"last decision: {self.decisions[-1]}"

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
        decisions=tuple(core.decisions),
    )


def view_instances(core: Core) -> list[InstanceView]:
    """All known instances, oldest first."""
    views = [_view(core, plan.pool, each) for plan in core.plans.values() for each in plan.instances.values()]
    return sorted(views, key=lambda view: (view.since, view.id))


def _view(core: Core, pool: str, instance: Instance) -> InstanceView:
    host = core.ledger.hosts.get(host_id(pool, instance.id))
    return InstanceView(
        id=instance.id,
        pool=pool,
        state=_label(instance),
        slots=tuple(held.key if held else None for held in host.slots) if host else (),
        uses=host.uses if host else 0,
        since=instance.first_seen,
        ready_since=instance.ready_since,
        why=instance.removing or (host.why_closed if host else instance.trouble),
    )


def _label(instance: Instance) -> str:
    if instance.stage is Stage.REMOVING:
        return "deleting"
    if instance.stage in {Stage.READY, Stage.UNHEALTHY}:
        return "running"
    return "pending" if instance.state is State.RUNNING else "creating"


def _view_pool(plan: Plan, now: float) -> PoolView:
    limits = plan.limits(now)
    return PoolView(
        name=plan.pool,
        total=plan.total,
        ceiling=plan.ceiling,
        outstanding=plan.outstanding,
        backoff=limits.blocked_why if limits.blocked_until is not None else "",
        backoff_left=max(0.0, (limits.blocked_until or now) - now),
        problems=tuple(problem.message for problem in plan.problems),
    )
