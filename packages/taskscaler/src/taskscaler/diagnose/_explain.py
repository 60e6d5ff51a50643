"""Why there is what there is: snapshots and sentences for people, never on the hot path."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import inf

from attrs import asdict, evolve, frozen

from fleeting.core import Instance, Limits, Plan, Stage
from fleeting.plugins import span
from taskscaler._observe import label_of
from taskscaler._types import Policy
from taskscaler._wording import counted, enumerated, finite, iso
from taskscaler.core._decide import OVER_ALL, Decision, PoolDecision, limit, released_soon
from taskscaler.core._mediator import Core
from taskscaler.core._slots import Capacity, DetachedLease, Node
from taskscaler.diagnose._answer import ScalerAnswer
from taskscaler.diagnose._forecast import describe_policy, in_short
from taskscaler.diagnose._snapshot import Snapshot


@frozen(kw_only=True)
class InstanceView:
    """One instance, for people to look at."""

    id: str
    """The instance's id."""

    pool: str
    """Name of its pool."""

    state: str
    """``creating``, ``pending`` (running, not ready yet), ``running``, ``suspended`` (or about to be), ``resuming`` or
    ``deleting``, as in the metrics; or ``unusable``: it would be removed, but is retained, or the scaler only
    observes."""

    slots: tuple[str | None, ...]
    """By slot number: the key that holds it, or None. Empty until the instance is ready."""

    held_since: tuple[float | None, ...] = ()
    """By slot number: since when it is held, in seconds since the epoch, or None."""

    cleaning: frozenset[int]
    """Numbers of the slots that are being cleaned."""

    uses: int
    """How often it was given work."""

    since: float
    """When it was first seen, seconds since the epoch."""

    ready_since: float | None
    """Since when it is ready, in seconds since the epoch; None if it is not."""

    why: str
    """Why it gets no new work, is not ready yet, or is (or would be) removed; empty if none of it is so, or if that is
    an operator's wish, and `holds` says which."""

    cordoned: str | None
    """Why an operator wants it to get no new work, empty if nothing was said; None: no operator does."""

    retained: str | None
    """Why it is not to be deleted, empty if nothing was said; None: it may be."""

    @property
    def holds(self) -> str:
        """In words what an operator wants of it, such as ``cordoned (a disk fails), retained``; empty: nothing."""
        words = [("cordoned", self.cordoned), ("retained", self.retained)]
        return ", ".join(f"{word} ({why})" if why else word for word, why in words if why is not None)


STATES: Mapping[str, str] = {
    "creating": "booting",
    "pending": "getting ready",
    "running": "ready",
    "suspended": "suspended",
    "resuming": "resuming",
    "deleting": "being removed",
    "unusable": "unusable",
    "gone": "gone",
}
"""The metrics' states, as people say them."""


@frozen(kw_only=True)
class PoolView:
    """What stands between one pool and more capacity."""

    name: str
    """The pool's name."""

    instances: Mapping[str, int]
    """Known instances, counted by their states; see `InstanceView.state`."""

    outstanding: int
    """Instances that were asked for and have not been seen yet."""

    waited: float
    """Seconds since the oldest of these was asked for; 0 if there are none."""

    coming: int
    """Instances on their way to being ready, the outstanding ones included."""

    cleaning: int
    """Slots that are being cleaned between two jobs."""

    ceiling: int | None
    """How many there may be, all of the above counted; None: any number."""

    ceiling_is: str
    """What sets it, in words: ``max_instances``, ``the number of hosts``, ``the cloud's own limit``."""

    ceiling_over_all: int | None
    """How many there may be over all pools; None: any number."""

    set_back: str
    """Why it is asked later than its place says; empty if it is not."""

    wanted: int
    """How many more the demand calls for; see `PoolDecision`."""

    asked: int
    """How many of these are asked for at once."""

    limited_by: str
    """What stands between the two: `ceiling_is`, ``max_instances over all pools``, ``scale_throttle``, ``backoff``,
    ``unknown``; empty: nothing."""

    limit_left: float
    """Seconds until that no longer does; infinite if time alone does not bring that about."""

    backoff: str
    """Why nothing is asked for at the moment; empty if it is."""

    backoff_left: float
    """Seconds until something is asked for again; infinite if time alone does not bring that about."""

    problems: tuple[str, ...]
    """What the cloud says on why capacity is not coming."""

    troubles: Mapping[str, Sequence[str]]
    """What keeps instances from becoming ready so far, each with the ids of those that it keeps, at least one."""

    sleep: str
    """What is suspended there instead of deleted, and why nothing is at the moment; empty if nothing ever is."""

    last_failure: str
    """Why growing failed last, whatever has succeeded since; empty if it never did."""

    last_failure_ago: float
    """Seconds since then."""

    def counts(self) -> str:
        """The instances in words: ``2 ready, 1 being removed``."""
        counts = [f"{count} {STATES.get(state, state)}" for state, count in self.instances.items()]
        counts += [f"{self.outstanding} requested"] if self.outstanding else []
        return ", ".join(counts) or "no instances"

    def limit(self) -> str:
        """What keeps it from growing, in words; empty if nothing does."""
        soon = f" in {span(self.limit_left)}" if self.limit_left < inf else ""
        match self.limited_by:
            case word if word == OVER_ALL:
                return f"the limit of {counted(self.ceiling_over_all or 0, 'instance')} ({OVER_ALL}) is reached"
            case "scale_throttle":
                return f"scale_throttle allows the next request{soon}" if soon else "scale_throttle allows no request"
            case "backoff":
                return f"the last request for instances failed ({self.backoff})" + (soon and f", retrying{soon}")
            case "":
                return ""
            case "unknown":
                return self.backoff
        return f"the limit of {counted(self.ceiling or 0, 'instance')} ({self.ceiling_is}) is reached: {self.counts()}"

    @property
    def is_full(self) -> bool:
        """Whether it is a ceiling that keeps it from growing."""
        return self.limited_by in {self.ceiling_is, OVER_ALL}

    def unready(self) -> Iterator[str]:
        """Which instances are not ready yet, a sentence for each reason: ``i-1 is not ready yet: no address``."""
        for trouble, ids in self.troubles.items():
            who = ids[0] if len(ids) == 1 else counted(len(ids), "instance")
            yield f"{who} {_verb(len(ids), 'is', 'are')} not ready yet: {trouble}"

    def sentences(self) -> Iterator[str]:
        """One thought each."""
        ceiling = f", at most {self.ceiling}" if self.ceiling is not None else ""
        yield f"pool {self.name}: {self.counts()}{ceiling}"
        if self.set_back:
            yield f"pool {self.name} is deprioritised: {self.set_back}"
        if self.outstanding and self.waited >= 1:
            yield f"pool {self.name} has waited {span(self.waited)} for the instances it requested"
        if self.cleaning:
            are = _verb(self.cleaning, "is", "are")
            yield f"pool {self.name}: {counted(self.cleaning, 'slot')} {are} being cleaned after a job"
        if self.sleep:
            yield f"pool {self.name}: {self.sleep}"
        if self.backoff:
            long = f" for {span(self.backoff_left)}" if self.backoff_left < inf else ""
            yield f"pool {self.name} makes no requests{long}: {self.backoff}"
        elif self.last_failure:
            yield f"pool {self.name} failed to grow {span(self.last_failure_ago)} ago: {self.last_failure}"
        yield from (f"pool {self.name}: {sentence}" for sentence in self.unready())
        yield from (f"pool {self.name}: the cloud says: {problem}" for problem in self.problems)

    def as_dict(self) -> dict[str, object]:
        """Plain data for JSON."""
        return {
            "name": self.name,
            "instances": dict(self.instances),
            "outstanding": self.outstanding,
            "waited": round(self.waited, 3),
            "coming": self.coming,
            "cleaning": self.cleaning,
            "ceiling": self.ceiling,
            "ceiling_is": self.ceiling_is if self.ceiling is not None else "",
            "ceiling_over_all": self.ceiling_over_all,
            "set_back": self.set_back,
            "wanted": self.wanted,
            "asked": self.asked,
            "limited_by": self.limited_by,
            "limit_left": finite(self.limit_left),
            "limit": self.limit(),
            "backoff": self.backoff,
            "backoff_left": finite(self.backoff_left),
            "problems": list(self.problems),
            "troubles": list(self.troubles),
            "sleep": self.sleep,
            "last_failure": self.last_failure,
            "last_failure_ago": finite(self.last_failure_ago) if self.last_failure else None,
        }


@frozen(kw_only=True)
class Explanation(ScalerAnswer):
    """Why there is what there is, and what will happen next: the next of each kind."""

    about = "scaler"

    capacity: Capacity
    """Slots by state, and who waits."""

    shut: str
    """Why no slots are handed out at all; empty if they are."""

    journal_error: str
    """Why nothing can be remembered at the moment; empty if all is well."""

    policy: Policy
    """The one that holds."""

    pools: tuple[PoolView, ...]
    """How each pool stands, in order of preference."""

    holds: tuple[InstanceView, ...]
    """Instances that an operator has cordoned or retained."""

    detached: tuple[DetachedLease, ...]
    """Leases that wait for somebody to reattach them, oldest first; they count as acquired."""

    decision: Decision
    """What would be decided now; nothing is done about it yet if something has just changed."""

    decisions: tuple[Decision, ...]
    """The last ones that differ, newest last."""

    learned: str = ""
    """How long the next slot that is to spare idles, under an adaptive policy; else empty."""

    @property
    def answer(self) -> str:
        """Why there is no capacity, or that there is some, in one sentence."""
        capacity = self.capacity
        if self.shut:
            holders = f"; {counted(capacity.acquired, 'job')} still {_verb(capacity.acquired, 'holds', 'hold')} one"
            return f"no slots are handed out: {self.shut}" + (holders if capacity.acquired else "")
        if waiting := self._waiting():
            verb = _verb(capacity.pending + capacity.promised, "is waiting", "are waiting")
            return f"{waiting} {verb}: {self.waits_for}"
        target = self.decision.idle_target
        missing = target - capacity.idle
        if missing > 0:
            kept = f"{missing} of {counted(target, 'idle slot')} {_verb(missing, 'is', 'are')} missing"
            expected = self.decision.expected
            soon = f"{expected} {released_soon(expected)}" if expected else "work has just taken them"
            return f"nothing is waiting, but {kept}: {self._supply() or soon}"
        if not capacity.idle:
            return "nothing is waiting, and no slot is idle"
        return f"nothing is waiting; {counted(capacity.idle, 'slot')} {_verb(capacity.idle, 'is', 'are')} idle"

    @property
    def waits_for(self) -> str:
        """What those wait for who wait for a slot, in one sentence; for nobody if nobody waits."""
        if self.shut:
            return f"no slots are handed out: {self.shut}"
        return self._supply() or self._soon()

    def details(self) -> Iterator[str]:
        """What led to the answer, from demand to limits: one thought each."""
        capacity, decision = self.capacity, self.decision
        states = (
            (capacity.acquired, f"acquired ({len(self.detached)} detached)" if self.detached else "acquired"),
            (capacity.suspended, "suspended"),
            (capacity.idle, "idle"),
            (capacity.reserved, "reserved"),
            (capacity.unavailable, "unavailable"),
            (capacity.unhealthy, "unhealthy"),
        )
        yield f"slots: {', '.join(f'{count} {state}' for count, state in states if count) or 'none'}"
        if waiting := self._waiting():
            yield f"waiting for a slot: {waiting}"
        if self.journal_error:
            yield f"the cloud gets no requests: {self.journal_error}"
        yield f"target: {decision}"
        yield f"policy: {describe_policy(self.policy)}"
        if self.learned:
            yield f"mode adaptive: {self.learned}"
        for pool in self.pools:
            yield from pool.sentences()
        if self.detached:
            yield f"detached, until somebody reattaches them: {enumerated([each.key for each in self.detached])}"
        for view in self.holds:
            yield f"instance {view.id} is {view.holds}" + (f": {view.why}" if view.why else "")

    def data(self) -> Mapping[str, object]:
        """See `Answer.data`."""
        return {
            "shut": self.shut,
            "journal_error": self.journal_error,
            "capacity": asdict(self.capacity),
            "policy": dict(self.policy.effect),
            "learned": self.learned,
            "pools": [pool.as_dict() for pool in self.pools],
            "holds": [_hold(view) for view in self.holds],
            "detached": [_detached(lease) for lease in self.detached],
            "decision": decision_dict(self.decision),
            "decisions": [decision_dict(decision) for decision in self.decisions],
        }

    def _waiting(self) -> str:
        """Who waits; empty if nobody does."""
        waiting = ((self.capacity.pending, "job"), (self.capacity.promised, "reservation"))
        return " and ".join(counted(number, noun) for number, noun in waiting if number)

    def _soon(self) -> str:
        """What happens next for who waits though nothing is in the way."""
        if self.decision.awaited:
            return "a slot is expected to be released sooner than a new instance would pay off"
        if self.capacity.pending or self.decision.demand.reserved:
            return "a slot is about to be handed out"
        return "a reservation alone requests no instance (reservation_throttling); the acquire that follows it does"

    def _cordons(self) -> Iterator[str]:
        """Which of the instances that fill a ceiling get no new work because an operator wants it, by reasons."""
        cordoned: dict[str, list[str]] = {}
        for view in self.holds:
            if view.cordoned is not None:
                cordoned.setdefault(view.cordoned, []).append(view.id)
        for why, ids in cordoned.items():
            who = ids[0] if len(ids) == 1 else f"{counted(len(ids), 'instance')} ({enumerated(ids)})"
            gets = _verb(len(ids), "is cordoned by an operator and gets", "are cordoned by an operator and get")
            yield f"{who} {gets} no new work" + (f": {why}" if why else "")

    def _supply(self) -> str:
        """Why what is missing is not there; empty if nothing is known to be in the way."""
        parts = []
        asked = sum(pool.asked for pool in self.pools)
        if self.pools[-1].wanted > self.pools[-1].asked:  # not even the last one can give all
            several = len(self.pools) > 1
            parts += [f"pool {pool.name}: {pool.limit()}" if several else pool.limit() for pool in self.pools]
            parts += self._cordons() if any(pool.is_full for pool in self.pools) else ()
        if asked:
            parts.append(f"{counted(asked, 'instance')} {_verb(asked, 'is', 'are')} being requested")
        parts += self._coming()
        return "; ".join(part for part in parts if part)

    def _coming(self) -> Iterator[str]:
        """Which instances are on their way, and which the cloud has not delivered, with what it says of that."""
        if not any(pool.coming for pool in self.pools):
            return
        if not any(pool.is_full for pool in self.pools):  # which reports them too
            refused = [pool for pool in self.pools if pool.problems]
            missing = sum(pool.outstanding for pool in refused)
            if coming := sum(pool.coming for pool in self.pools) - missing:
                since = _requested([pool for pool in self.pools if pool not in refused])
                yield f"{counted(coming, 'instance')} {_verb(coming, 'is', 'are')} on the way{since}"
            if missing:
                since = _requested(refused)
                yield f"{counted(missing, 'instance')}{since and f'{since},'} {_verb(missing, 'has', 'have')} not come"
        yield from (sentence for pool in self.pools for sentence in pool.unready())
        yield from (f"the cloud says: {problem}" for pool in self.pools for problem in pool.problems)


def _requested(pools: Sequence[PoolView]) -> str:
    """How long ago what a pool waits for was requested, in words; empty if it was just now."""
    waited = max((pool.waited for pool in pools), default=0.0)
    return f", requested {span(waited)} ago" if waited >= 1 else ""


def explain(snapshot: Snapshot) -> Explanation:
    """Describe the whole scaler."""
    core, now = snapshot.core, snapshot.now
    policy, decision = snapshot.foreseen
    return Explanation(
        at=now,
        capacity=core.capacity(),
        shut=core.ledger.shut or core.refusal or "",
        journal_error=core.journal_error,
        policy=policy,
        pools=tuple(_view_pool(core, each, now) for each in decision.pools),
        holds=tuple(_held(core)),
        detached=tuple(core.ledger.list_detached()),
        decision=decision,
        decisions=tuple(core.decisions),
        learned=_learned(core, policy, decision, now),
        next=tuple(in_short(snapshot.upcoming)),
    )


def _learned(core: Core, policy: Policy, decision: Decision, now: float) -> str:
    """For how long the next slot idles that is to spare, and how that is known; empty under a static policy."""
    if not policy.adaptive:
        return ""
    level = decision.target + max(1, decision.spare)
    lasts = span(core.idling.idles(level, policy.idle_time, now))
    if not core.idling.has_seen_enough(level, policy.idle_time):
        return f"too little has been seen yet, what is not needed idles for {lasts}"
    return f"as things were lately, it pays if slot number {level} idles for {lasts} while it is not needed"


def decision_dict(decision: Decision) -> dict[str, object]:
    """A decision as plain data for JSON."""
    return {
        "at": iso(decision.at),
        "sentence": str(decision),
        **asdict(decision.demand),
        "idle_target": decision.idle_target,
        "target": decision.target,
        "target_instances": decision.target_instances,
        "expected": decision.expected,
        "awaited": decision.awaited,
        "spare": decision.spare,
        "excess": decision.excess,
        "displaced": decision.displaced,
        "pools": [asdict(pool) for pool in decision.pools],
        "removals": [asdict(removal) for removal in decision.removals],
        "sleeps": [asdict(sleep) for sleep in decision.sleeps],
        "wakes": [asdict(wake) for wake in decision.wakes],
        "observed": decision.observed,
    }


def _hold(view: InstanceView) -> dict[str, object]:
    return {"instance": view.id, "pool": view.pool, "cordoned": view.cordoned, "retained": view.retained}


def _verb(number: int, one: str, many: str) -> str:
    return one if number == 1 else many


def view_instances(core: Core) -> list[InstanceView]:
    """All known instances, oldest first."""
    views = [view_of(core, plan, each) for plan in core.plans.values() for each in plan.instances.values()]
    decision = core.decisions[-1] if core.decisions else None
    if decision is not None and decision.observed:
        would = {(each.pool, each.instance): f"would be removed: {each.why}" for each in decision.removals}
        views = [evolve(view, why=would.get((view.pool, view.id), view.why)) for view in views]
    return sorted(views, key=lambda view: (view.since, view.id))


def view_of(core: Core, plan: Plan, instance: Instance) -> InstanceView:
    """One known instance."""
    node = core.ledger.node(plan.pool, instance.id)
    return InstanceView(
        id=instance.id,
        pool=plan.pool,
        state=label_of(instance),
        slots=_slots(node) if node else (),
        held_since=_held_since(node) if node else (),
        cleaning=frozenset(node.cleaning if node else ()),
        uses=node.uses if node else 0,
        since=instance.first_seen,
        ready_since=instance.ready_since,
        why=instance.removing or (node.why_closed if node else instance.trouble),
        cordoned=core.ledger.why_cordoned(plan.pool, instance.id),
        retained=instance.retained,
    )


def _slots(node: Node) -> tuple[str | None, ...]:
    """Who holds which slot."""
    keys = {assignment.slot: assignment.key for assignment in node.leases}
    return tuple(keys.get(slot) for slot in range(node.pool_slots.per_node))


def _held_since(node: Node) -> tuple[float | None, ...]:
    """Since when."""
    since = {assignment.slot: assignment.since for assignment in node.leases}
    return tuple(since.get(slot) for slot in range(node.pool_slots.per_node))


def _held(core: Core) -> Iterator[InstanceView]:
    """Those of which an operator wants something."""
    for plan in core.plans.values():
        for each in plan.instances.values():
            if each.retained is not None or core.ledger.why_cordoned(plan.pool, each.id) is not None:
                yield view_of(core, plan, each)


def _detached(lease: DetachedLease) -> dict[str, object]:
    by = finite(lease.reattach_by)
    return {**asdict(lease), "since": iso(lease.since), "reattach_by": None if by is None else iso(by)}


def _limit(decision: PoolDecision, limits: Limits, now: float) -> tuple[str, float]:
    """What keeps a pool from growing as it should, in one word or so, and when it no longer does."""
    if decision.limited_by in {"", OVER_ALL}:
        return decision.limited_by, inf if decision.limited_by else now
    limited_by, lifted_at = limit(limits)
    if limited_by not in {limits.room_is, "scale_throttle"}:
        limited_by = "unknown" if lifted_at == inf else "backoff"
    return limited_by, lifted_at


def _view_pool(core: Core, decision: PoolDecision, now: float) -> PoolView:
    plan = core.plans[decision.pool]
    limits = plan.limits(now)
    failed_at, failure = plan.last_failure or (now, "")
    limited_by, lifted_at = _limit(decision, limits, now)
    return PoolView(
        name=plan.pool,
        instances=Counter(label_of(each) for each in plan.instances.values()),
        outstanding=plan.outstanding,
        waited=max((now - intent.requested_at for intent in plan.intents if intent.outstanding), default=0.0),
        coming=plan.coming,
        cleaning=core.ledger.pools[plan.pool].counts.rare.cleaning,
        ceiling=plan.ceiling,
        ceiling_over_all=core.ceiling,
        set_back=decision.set_back,
        ceiling_is=plan.ceiling_is,
        wanted=decision.wanted,
        asked=decision.increase,
        limited_by=limited_by,
        limit_left=lifted_at - now,
        backoff=limits.blocked_why if limits.blocked_until is not None else "",
        backoff_left=max(0.0, (limits.blocked_until or now) - now),
        problems=tuple(problem.message for problem in plan.problems),
        troubles=_troubles(plan),
        sleep=_on_sleep(core, plan, now),
        last_failure=failure,
        last_failure_ago=now - failed_at,
    )


def _on_sleep(core: Core, plan: Plan, now: float) -> str:
    """What is to be said of suspending and resuming in a pool that can."""
    count, verdict = core.pools[plan.pool].suspended_count, core.choices.payoff(plan.pool, now)
    parts = []
    if plan.suspends and count:
        measured = f" ({verdict})" if str(verdict) else ""
        kept = f"up to {counted(count, 'idle instance')} {_verb(count, 'is', 'are')} suspended instead of deleted"
        parts.append(
            f"{kept}{measured}"
            if verdict.pays
            else f"idle instances are deleted: suspending them does not pay off{measured}"
        )
    for backoff, what in ((plan.suspending, "suspending"), (plan.resuming, "resuming")):
        if backoff.active(now):
            parts.append(f"{what} is paused for {span(backoff.until - now)}: {backoff.reason}")
    return "; ".join(parts)


def _troubles(plan: Plan) -> Mapping[str, Sequence[str]]:
    troubles: dict[str, list[str]] = {}
    for each in plan.instances.values():
        if each.trouble and each.stage is Stage.PREPARING:
            troubles.setdefault(each.trouble, []).append(each.id)
    return troubles
