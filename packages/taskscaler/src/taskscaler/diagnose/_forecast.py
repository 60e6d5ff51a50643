"""What will happen next if nothing else happens: the cores' own timers and decisions, read out for people.

Nothing here has a model of its own: the plans say what their timers lead to, and the core is asked what it would
decide at the moments at which it will look.
"""

from collections.abc import Container, Iterable, Iterator, Mapping
from datetime import datetime
from enum import Enum
from math import inf
from typing import Any

from attrs import evolve, frozen

from fleeting.core import TOO_OLD, Plan, Stage, messages
from fleeting.plugins import span
from taskscaler._types import Policy
from taskscaler._wording import counted, enumerated, iso
from taskscaler.core._choices import NOT_NEEDED, SPARED
from taskscaler.core._decide import Choice, Decision, Sleep, limit
from taskscaler.core._ledger import NOT_REATTACHED
from taskscaler.core._mediator import COALESCE, Core
from taskscaler.core._schedule import zone
from taskscaler.core._slots import FINAL

TOGETHER = 1.0
"""Seconds within which things of one kind are reported as one."""


class Next(Enum):
    """Kinds of things to come."""

    ASK = "ask"
    """The cloud is asked for instances."""

    ASK_AGAIN = "ask_again"
    """A request that was never answered is repeated."""

    WITHDRAW = "withdraw"
    """Requests that the cloud has not filled are taken back."""

    GIVE_UP = "give_up"
    """An instance is given up."""

    SUSPEND = "suspend"
    """An instance is suspended."""

    RESUME = "resume"
    """An instance is resumed."""

    UNTURNED = "unturned"
    """That an instance is to be suspended or resumed counts as having failed, unless it is by then."""

    OVERDUE = "overdue"
    """An instance is given up, unless it is ready by then."""

    STAY = "stay"
    """An instance counts as failed, unless it is ready by then; it stays, as it is retained."""

    DELETE = "delete"
    """The deletion of an instance is asked for again, unless it is gone by then."""

    BREAK = "break"
    """Work is broken, unless it is done by then: its instance is about to go."""

    EXPIRE = "expire"
    """Suspended leases expire, unless they are resumed by then."""

    ABANDON = "abandon"
    """Detached leases are given up, unless they are reattached by then."""

    AGE = "age"
    """An instance grows too old: it takes no more work, and is given up once it is free."""

    TAKEN = "taken"
    """The cloud takes an instance away, as it announced."""

    POLICY = "policy"
    """Another policy begins to hold."""

    PREPARE = "prepare"
    """An instance's readiness steps are tried again."""

    LOOK = "look"
    """The cloud's view is fetched."""

    CHECK = "check"
    """An instance's health is checked."""


_SENTENCES = {
    Next.ASK: "{instances_wanted} {count_are} requested",
    Next.ASK_AGAIN: "the request for {instances_wanted} is repeated",
    Next.WITHDRAW: "requests for {instances_wanted} are withdrawn",
    Next.GIVE_UP: "{instances} {are} removed",
    Next.SUSPEND: "{instances} {are} suspended",
    Next.RESUME: "{instances} {are} resumed",
    Next.UNTURNED: "suspending or resuming {instances} counts as failed unless complete",
    Next.OVERDUE: "{instances} {are} removed unless ready",
    Next.STAY: "{instances} {are} given up unless ready, but not removed",
    Next.DELETE: "the deletion of {instances} is requested again unless complete",
    Next.BREAK: "{keys} on {instances} {keys_are} cut short unless finished",
    Next.EXPIRE: "{keys} on {instances} {keys_expire} unless resumed",
    Next.ABANDON: "{keys} on {instances} {keys_are} given up unless reattached",
    Next.AGE: "{instances} {get} no more work, and {are} removed once free",
    Next.TAKEN: "the cloud takes {instances} away",
    Next.POLICY: "the policy changes",
    Next.PREPARE: "the readiness steps of {instances} are retried",
    Next.LOOK: "the cloud is checked",
    Next.CHECK: "the health of {instances} is checked",
}


_HAPPEN_ANYWAY = frozenset({Next.LOOK, Next.POLICY, Next.TAKEN})
"""What a scaler that only observes does too, or what is not its doing."""

_NOTHING_BEFORE: Mapping[str, float | str] = {"scale_factor": 0.0, "scale_factor_limit": 0, "mode": "static"}
"""What goes without saying of a policy."""


@frozen(kw_only=True)
class Upcoming:
    """Something that will happen if nothing else does before."""

    at: float
    """Seconds since the epoch."""

    after: float
    """Seconds from the moment of asking."""

    what: Next
    """What will happen."""

    pool: str = ""
    """Empty for what concerns all pools."""

    instances: tuple[str, ...] = ()
    """To which instances; empty if to none in particular."""

    keys: tuple[str, ...] = ()
    """Whose work is broken, or which leases expire or are given up."""

    count: int = 0
    """How many instances are asked for, or requests taken back."""

    why: str = ""
    """What it rests on."""

    observed: bool = False
    """Whether it would happen if the scaler did not only observe."""

    def __str__(self) -> str:
        """In words: ``in 12 s: i-1 is removed: not needed``."""
        where = "" if self.pool in ("", "default") else f" (pool {self.pool})"
        thing = _SENTENCES[self.what].format(
            instances=enumerated(self.instances),
            are=_are(self.instances),
            keys=enumerated(self.keys),
            keys_are=_are(self.keys),
            keys_expire="expires" if len(self.keys) == 1 else "expire",
            get="gets" if len(self.instances) == 1 else "get",
            instances_wanted=counted(self.count, "instance"),
            count_are="is" if self.count == 1 else "are",
        )
        return f"{self.when}: {thing}{where}" + (f": {self.why}" if self.why else "")

    @property
    def when(self) -> str:
        """In words: ``now``, ``in 12 s``."""
        when = "now" if self.after <= 2 * COALESCE else f"in {span(self.after)}"
        return f"{when} (not done: observe_only)" if self.observed else when

    def as_dict(self) -> dict[str, object]:
        """Plain data for JSON."""
        return {
            "at": iso(self.at),
            "after": round(self.after, 3),
            "what": self.what.value,
            "pool": self.pool or None,
            "instances": list(self.instances),
            "keys": list(self.keys),
            "count": self.count,
            "why": self.why,
            "observed": self.observed,
            "sentence": str(self),
        }


def forecast(core: Core, now: float) -> list[Upcoming]:
    """All that time alone will bring to a core, right after its `tick` or `heed`; soonest first. O(n log n)."""
    return sorted(_Foresight(core, now).all(), key=lambda each: each.at)


def in_short(items: Iterable[Upcoming]) -> list[Upcoming]:
    """The next of each kind, with what happens at the same time; without the health checks, of which there are many."""
    first: dict[tuple[Next, str, str], Upcoming] = {}
    for item in items:
        key = (item.what, item.pool, item.why)
        earlier = first.setdefault(key, item)
        if item is not earlier and item.at - earlier.at < TOGETHER:
            first[key] = evolve(earlier, instances=earlier.instances + item.instances, keys=earlier.keys + item.keys)
    return [item for item in first.values() if item.what is not Next.CHECK]


def describe_policy(policy: Policy, *, before: Policy | None = None) -> str:
    """Write what a policy leads to, or what it leads to other than the one before it: ``idle_count 3``."""
    effect = policy.effect
    changed = [
        name for name, value in effect.items() if value != (before.effect if before else _NOTHING_BEFORE).get(name)
    ]
    settings = [name for name in changed if name != "preemptive_mode" or policy.preemptive_mode is not None]
    words = {**effect, "idle_time": span(policy.idle_time)}
    return ", ".join(f"{name} {words[name]}" for name in settings)


def _are(names: tuple[str, ...]) -> str:
    return "is" if len(names) == 1 else "are"


@frozen
class _Foresight:
    """What a core will do, seen from one moment."""

    core: Core
    now: float

    def all(self) -> Iterator[Upcoming]:
        """All of it, in no order."""
        for plan in self.core.plans.values():
            for at, action in plan.agenda.actions():
                yield self._chore(plan, at, action)
            for at, instance in plan.agenda.turning():
                yield self._item(at, Next.UNTURNED, plan.pool, instance)
            for at, instance in plan.agenda.giving_up():
                yield from self._lost_with(at, plan.pool, instance)
                retained = plan.instances[instance].retained
                if retained is not None and not self.core.observing:
                    yield self._item(at, Next.STAY, plan.pool, instance, why=f"retained: {retained}")
        yield from self._announced()
        yield from self._expiring()
        yield from self._abandoned()
        yield from self._grown_old()
        yield from self._decided()

    def _item(self, at: float, what: Next, pool: str = "", *instances: str, **more: Any) -> Upcoming:  # noqa: ANN401
        at = max(self.now, at)
        observed = self.core.observing and what not in _HAPPEN_ANYWAY
        return Upcoming(
            at=at, after=at - self.now, what=what, pool=pool, instances=instances, observed=observed, **more
        )

    # --- what the plans' timers lead to ------------------------------------------------------------------

    def _chore(self, plan: Plan, at: float, action: messages.Action) -> Upcoming:
        match action:
            case messages.Increase(pool, _, count):
                return self._item(at, Next.ASK_AGAIN, pool, count=count, why="the last request was not answered")
            case messages.Heartbeat(pool, instance):
                return self._item(at, Next.CHECK, pool, instance)
            case messages.Prepare(pool, instance):
                return self._item(at, Next.PREPARE, pool, instance, why=plan.instances[instance].trouble)
            case messages.Decrease(pool, instances):
                leaves = plan.instances[instances[0]].stage is Stage.REMOVING
                return self._item(at, Next.DELETE if leaves else Next.OVERDUE, pool, *instances)
        return self._item(at, Next.LOOK, plan.pool)

    def _lost_with(self, at: float, pool: str, instance: str) -> Iterator[Upcoming]:
        """Leases that sleep on an instance which is not ready again in time."""
        node = self.core.ledger.node(pool, instance)
        if node is not None and node.leases:
            keys = tuple(assignment.key for assignment in node.leases)
            yield self._item(at, Next.BREAK, pool, instance, keys=keys, why="its instance is not ready again in time")

    # --- what becomes of what the cloud takes away -------------------------------------------------------

    def _announced(self) -> Iterator[Upcoming]:
        for (pool, instance), notice in self.core.doomed.items():
            yield self._item(notice.deadline, Next.TAKEN, pool, instance, why=notice.why)
        for node, at in self.core.breaks():
            leases = node.leases
            notice = self.core.doomed[node.pool, node.instance]
            late = tuple(each.key for each in leases if each.ends_by > notice.deadline)
            if late:
                yield self._item(at, Next.BREAK, node.pool, node.instance, keys=late, why=notice.why)
            if late and len(late) == len(leases) and not node.retained:
                given_up_at = self.core.plans[node.pool].agenda.deletes_at(at)
                yield self._item(given_up_at, Next.GIVE_UP, node.pool, node.instance, why=node.why_closed)

    def _expiring(self) -> Iterator[Upcoming]:
        for key, at in self.core.ledger.expiries.items():
            lease = self.core.ledger.leases[key].id
            yield self._item(at, Next.EXPIRE, lease.pool, lease.instance, keys=(key,))

    def _abandoned(self) -> Iterator[Upcoming]:
        """Detached leases, and instances that go with the last of theirs."""
        ledger = self.core.ledger
        for key, at in ledger.deadlines.items():
            lease = ledger.detached[key].id
            if at < inf:
                yield self._item(at, Next.ABANDON, lease.pool, lease.instance, keys=(key,))
        nodes = {lease.node.id: lease.node for lease in ledger.detached.values()}
        for node in nodes.values():
            at = max(ledger.deadlines.at(lease.key) or inf for lease in node.leases)
            closes = node.closed in FINAL or not self.core.keep_used
            if at < inf and closes and not node.retained:
                why = node.why_closed if node.closed in FINAL else NOT_REATTACHED
                gone_at = self.core.plans[node.pool].agenda.deletes_at(at)
                yield self._item(gone_at, Next.GIVE_UP, node.pool, node.instance, why=why)

    def _grown_old(self) -> Iterator[Upcoming]:
        for pool, plan in self.core.plans.items():
            for at, instance in plan.agenda.ageing():
                if self.core.ledger.pools[pool].nodes[instance].closed not in FINAL:
                    yield self._item(at, Next.AGE, pool, instance, why=TOO_OLD)

    # --- what will be decided ----------------------------------------------------------------------------

    def _decided(self) -> Iterator[Upcoming]:
        """What the next decision does, and those that time alone leads to after it."""
        core = self.core
        at = min(core.decides_at(self.now), core.heeds_news_at(self.now))  # later, it has done all that is to do now
        policy, decision = core.foresee(at)
        grows = core.observing or not (core.removing_all or core.ledger.over)
        change = core.policy_change(self.now) if grows else None
        given_up: set[Choice] = set()
        for wake in decision.wakes:
            yield self._item(at, Next.RESUME, wake.pool, wake.instance, why=wake.why)
        for later, wake in core.choices.to_wake_later(at):
            yield self._item(later, Next.RESUME, wake.pool, wake.instance, why=wake.why)
        for due, removal in core.choices.to_give_up(decision, policy, at):
            if change is None or due < change[0]:
                given_up.add(removal)
                yield self._give_up(due, removal, policy)
        if core.removing_all:
            yield from self._take_back(at)
        if grows:
            yield from self._grow(decision, at)
            yield from self._when_lifted(decision, at)
            yield from self._when_not_released(policy, decision, at)
            yield from self._when_unanswered(decision)
        if change is not None:
            yield from self._when_changed(policy, *change, given_up)

    def _take_back(self, at: float) -> Iterator[Upcoming]:
        for pool, plan in self.core.plans.items():
            if plan.withdrawable:
                yield self._item(at, Next.WITHDRAW, pool, count=plan.withdrawable, why="shutdown")

    def _grow(self, decision: Decision, at: float, why: str = "") -> Iterator[Upcoming]:
        for each in decision.pools:
            plan = self.core.plans[each.pool]
            unwanted = min(each.withdraw - plan.queued, plan.withdrawable)  # what is queued goes first, without a call
            if each.increase:
                if not plan.asking:  # else it goes into the next call, and when nobody knows
                    yield self._item(at, Next.ASK, each.pool, count=each.increase, why=why)
            elif unwanted > 0:
                why = "other pools can fill them" if each.moved else "nothing needs them any more"
                yield self._item(at, Next.WITHDRAW, each.pool, count=unwanted, why=why)

    def _when_lifted(self, decision: Decision, at: float) -> Iterator[Upcoming]:
        """What is asked for once a limit that time lifts no longer holds."""
        for limited in decision.pools:
            plan = self.core.plans[limited.pool]
            what, lifted_at = limit(plan.limits(at))
            if limited.limited_by and lifted_at < inf and not plan.asking:
                later = self.core.foresee(lifted_at)[1].of(limited.pool)
                if later.increase:
                    why = f"{what} allows it" if what == "scale_throttle" else "the backoff ends"
                    yield self._item(lifted_at, Next.ASK, limited.pool, count=later.increase, why=why)

    def _when_not_released(self, policy: Policy, decision: Decision, at: float) -> Iterator[Upcoming]:
        """What is asked for if slots that are expected to be free by then are not."""
        counted_on = [self.core.expected_releases(policy, at)] if decision.expected else []
        counted_on += [self.core.left_to_releases(policy, at)] if decision.awaited else []
        if counted_on:
            until = min(each.until for each in counted_on)
            later = self.core.foresee(until)[1]
            news = evolve(
                later,
                pools=tuple(each for each in later.pools if each.increase and not decision.of(each.pool).increase),
            )
            yield from self._grow(news, until, "fewer slots were released than expected")

    def _when_unanswered(self, decision: Decision) -> Iterator[Upcoming]:
        """What others are asked for once a pool has waited too long for an answer."""
        for plan in self.core.plans.values():
            due = plan.agenda.unanswered_at()
            waiting = plan.queued or plan.withdrawable or decision.of(plan.pool).increase
            if due is None or due <= self.now or not waiting:
                continue
            late = self.core.heeds_news_at(due)
            later = self.core.foresee(late)[1]
            for wake in later.wakes:
                if wake not in decision.wakes:
                    yield self._item(late, Next.RESUME, wake.pool, wake.instance, why=wake.why)
            known = {each.pool for each in decision.pools if each.increase or each.withdraw}
            news = evolve(later, pools=tuple(each for each in later.pools if each.pool not in known))
            yield from self._grow(news, late, f"the cloud has not answered pool {plan.pool}")

    def _when_changed(
        self, before: Policy, at: float, after: Policy, given_up: Container[Choice]
    ) -> Iterator[Upcoming]:
        """Another policy, and what it leads to at once and later."""
        clock = datetime.fromtimestamp(at, zone(after.timezone))
        new = describe_policy(after, before=before)
        yield self._item(at, Next.POLICY, why=f"{new} from {clock:%H:%M} ({after.timezone or 'UTC'})")
        _, decision = self.core.foresee(at)
        yield from self._grow(decision, at, "for the new policy")
        for due, removal in self.core.choices.to_give_up(decision, after, at):
            if removal not in given_up:
                yield self._give_up(due, removal, after)

    def _give_up(self, at: float, choice: Choice, policy: Policy) -> Upcoming:
        why = choice.why
        if why in {NOT_NEEDED, SPARED} and policy.adaptive:
            why = f"{why}, and idle for as long as pays (mode adaptive)"
        elif why in {NOT_NEEDED, SPARED} and policy.idle_time:
            node = self.core.ledger.node(choice.pool, choice.instance)
            long_idle = node is not None and node.idle_since + policy.idle_time < at - TOGETHER / 2
            long = f"{span(policy.idle_time)} (idle_time)"
            why = f"{NOT_NEEDED} for {long}" if long_idle else f"{why}, and idle for {long}"
        if isinstance(choice, Sleep):
            return self._item(at, Next.SUSPEND, choice.pool, choice.instance, why=why)
        deleted_at = self.core.plans[choice.pool].agenda.deletes_at(at)
        return self._item(deleted_at, Next.GIVE_UP, choice.pool, choice.instance, why=why)
