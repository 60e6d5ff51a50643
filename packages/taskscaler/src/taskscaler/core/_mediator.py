"""The core: one plan per pool below, the ledger on top, and the decision between them. Pure.

Facts about instances go to their pool's plan, whose events tell the ledger which instances may be given
work. Acquires, releases and reservations go to the ledger, which answers at once. Whatever changes leads to
one decision a few milliseconds later, from the counters: how many instances to ask for, which to give up.
"""

import heapq
from collections import deque
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from math import inf
from operator import itemgetter
from typing import Any, NamedTuple

from attrs import evolve

from fleeting import NoticeKind, State
from fleeting.core import NOTHING, Drop, Instance, Plan, Put, Stage, Step, Timers, Write, messages, refusal_of
from fleeting.events import Loss, LossKind
from taskscaler._errors import NoCapacity, NoSuchInstance, TaskscalerError
from taskscaler._observe import DecisionEvent, Watch
from taskscaler._types import Policy, PoolSettings
from taskscaler._wording import enumerated
from taskscaler.core._decide import ANY_NUMBER, Choice, Decision, Removal, Sleep, Supply, Wake, decide
from taskscaler.core._ledger import Ledger
from taskscaler.core._payoff import Payoff, Verdict
from taskscaler.core._preference import Losses
from taskscaler.core._schedule import Schedule
from taskscaler.core._slots import (
    AWAY,
    CORDON,
    DIRTY,
    LEASE,
    USES,
    Capacity,
    Clean,
    Closed,
    CordonRecord,
    DirtyRecord,
    Held,
    Host,
    LeaseRecord,
    Refuse,
    Shelf,
    host_id,
)

RESTING = frozenset({State.SUSPENDING, State.SUSPENDED})

IDLES_AT_ZERO = Policy()
"""What holds where no policy matches."""

COALESCE = 0.005
"""Seconds that a decision waits for what else comes with a burst: a call to a cloud takes a hundred times that."""

BREAK_AHEAD = 30.0
"""Seconds before an announced end of an instance at which work is broken that would not be done in time."""

TAKEN = frozenset({LossKind.VANISHED, LossKind.DELETED, LossKind.PREEMPTED})
"""How instances go that their cloud has taken, announced or not."""

OBSERVES = "observe-only: nothing is handed out, and nothing is asked of the cloud"
"""Why whoever asks a core for a slot that only observes gets none."""

DAY = 86400.0
"""Seconds for which the next change of the policy is looked for."""

NOT_NEEDED = "not needed"
"""Why idle instances are given up that are to spare."""
TOO_OLD = "older than max_instance_age"
"""Why an instance that has reached its age gets no more work."""

ONLY_SLEEPERS = "all leases on it sleep"
"""Why an instance is suspended that is kept for them."""

SPARED = "not needed for now"
"""Why one is suspended that would be given up otherwise."""

OVER = "over the ceiling"
TOO_MANY = "more than suspended_count"
TOO_LONG = "suspended for longer than suspended_time"
UNRESUMABLE = "it could not be resumed"
"""Why suspended instances are given up that hold no leases."""

KEPT_DECISIONS = 100
"""How many of the last decisions are kept for `explain`."""


class AllRemoved(NamedTuple):
    """After `Core.remove_all`: nothing exists any more, nor may come to exist, but for what is retained."""


class InstanceLost(NamedTuple):
    """To be told to whoever watches: an instance was lost that nobody gave up."""

    host: str
    loss: Loss


class Doubt(NamedTuple):
    """Tell the holder that the instance is unhealthy: a connection that is not there yet is not worth waiting for."""

    held: Held
    why: str


class Core:
    """All state of a scaler, and every decision."""

    def __init__(
        self,
        pools: Sequence[PoolSettings],
        plans: Mapping[str, Plan],
        policies: Sequence[Policy],
        recovered: Mapping[str, Mapping[str, Any]],
        now: float,
        *,
        keep_used: bool = False,
        observing: bool = False,
        watched: bool = False,
        max_instances: int = 0,
    ) -> None:
        """Start from what the journal knows.

        Args:
            pools: At least one, in order of preference.
            plans: One per pool, by name.
            policies: The last that matches holds; none: idle at zero.
            recovered: The journal's records by kind and key.
            now: Seconds since the epoch.
            keep_used: Whether instances that were in use when their manager stopped are used on, not removed.
            observing: Whether to decide and carry nothing out, nor hand anything out. The plans must observe, too: it
                is they who hold back what would change anything; the core only keeps from believing it was done.
            watched: Whether to tell, as actions, of instances that change and of decisions.
            max_instances: How many there may be over all pools, besides what each of them may have; 0: any number.
        """
        self.ceiling = max_instances or None
        self.losses = Losses()
        """What the clouds have taken, by which the pools' order is changed."""

        self.pools = {pool.name: pool for pool in pools}
        self.plans = dict(plans)
        for plan in plans.values():
            plan.no_room = self._is_over_all
        uses = {host: record.uses for host, record in recovered.get(USES, {}).items()}
        leases: Mapping[str, LeaseRecord] = recovered.get(LEASE, {})
        asleep = {key: record for key, record in leases.items() if record.suspended}
        used = [DirtyRecord(record.host, record.slot, key) for key, record in leases.items() if not record.suspended]
        used += recovered.get(DIRTY, {}).values()
        sleepers = {record.host for record in asleep.values()}
        spared = {host for host in sleepers if self.pools[host.partition("/")[0]].cleans}
        kept = used if keep_used else [record for record in used if record.host in spared]
        self.ledger = Ledger(map(_shelf, pools), uses, asleep, _whys(recovered.get(CORDON, {})), kept)
        self.decisions: deque[Decision] = deque(maxlen=KEPT_DECISIONS)
        """The last decisions, newest last; one that changes nothing replaces its like."""

        self.refusal: str | None = None
        """Why the groups may not be managed as the first view shows them."""

        self.journal_error = ""
        """Why nothing can be remembered, and is handed out, at the moment; empty if all is well."""

        self.doomed: dict[str, messages.Doomed] = {}
        """The notices that were given of hosts, by host id."""

        self.removing_all = False
        """Whether every instance is deleted as it falls free."""

        self.observing = observing
        """Whether nothing of what is decided is carried out."""

        self._held_back = ""
        """Why nothing new is handed out for the moment; empty if it is."""

        self._payoffs = {name: Payoff() for name in self.pools}

        self._breaks: Timers[str] = Timers()
        """When the work on them that would last longer is broken."""

        self._schedule = Schedule(policies)
        self._policy = IDLES_AT_ZERO
        self._policy_until = -inf
        self._look_at = now
        self._changed = True
        self._writes: list[Write] = []
        self._actions: list[Any] = []
        self._watch = Watch() if watched else None
        if self._watch:
            self._actions += [event for plan in self.plans.values() for event in self._watch.begin(plan, now)]
        dropped = [Drop(LEASE, key) for key in leases if key not in self.ledger.leases]
        self._writes += [*dropped, *(Drop(DIRTY, key) for key in recovered.get(DIRTY, {}))]
        self._writes += [Put(DIRTY, key, record) for key, record in self.ledger.dirty().items()]
        if not keep_used:
            self._remove_used({record.host for record in used} - spared, now)
        if observing:
            self.ledger.shut_down(OBSERVES)

    # --- what the shell asks -----------------------------------------------------------------------------

    def acquire(self, key: str, now: float, expected: float = inf) -> Step:
        """See `Ledger.acquire`."""
        self._changed = True
        return self.ledger.acquire(key, now, expected)

    def release(self, key: str, now: float) -> Step:
        """See `Ledger.release`."""
        self._changed = True
        held = self.ledger.leases.get(key)
        self._add(self.ledger.release(key, now))
        if held is not None:
            self._note_rest(held.host, now)
        return self._end()

    def check(self, held: Held, now: float) -> Step:
        """Have a slot handed over once a heartbeat of its instance has passed."""
        if self.ledger.check(held):
            host = held.host
            self._route(host.pool, self.plans[host.pool].ask_heartbeat(host.instance), now)
        return self._end()

    def cleaned(self, clean: Clean, failure: str, now: float) -> Step:
        """A clean-up has ended; *failure*: why it went wrong, empty if it did not."""
        self._changed = True
        if not failure:
            self._add(self.ledger.cleaned(clean, now))
        elif clean.wanted:
            why = f"slot {clean.slot} could not be cleaned: {failure}"
            self._close_for_good(clean.host, Closed.DRAINING, why, now)
        return self._end()

    def cancel(self, key: str, now: float) -> Step:
        """See `Ledger.cancel`."""
        self._changed = True
        return self.ledger.cancel(key, now)

    def reserve(self, key: str, now: float) -> Step:
        """See `Ledger.reserve`. In preemptive mode only what is ready counts, else also what could be created.

        Raises:
            KeyInUse: The key holds a slot, waits for one, or is reserved.
            NoCapacity: `possible` tells whether a slot could still be created.
        """
        preemptive = self.policy_at(now).preemptive
        counted = 0 if preemptive else self._potential(now, heed_throttle=True)
        self._changed = True
        try:
            return self.ledger.reserve(key, now, counted)
        except NoCapacity as error:
            if self.ledger.shut:
                raise
            later = self.ledger.usable + self._potential(now, heed_throttle=False)
            possible = later > self.ledger.reserved + self.ledger.pending
            soon = "no slot is ready" if preemptive else "growth is throttled"
            raise NoCapacity(soon if possible else str(error), possible=possible) from None

    def unreserve(self, key: str, now: float) -> Step:
        """See `Ledger.unreserve`."""
        self._changed = True
        return self.ledger.unreserve(key, now)

    def capacity(self) -> Capacity:
        """See `Ledger.capacity`."""
        return self.ledger.capacity()

    def stop_handing_out(self, why: str) -> Step:
        """From now on whoever asks or waits is refused; what is held stays held."""
        self._changed = True
        return self.ledger.shut_down(why)

    def break_all(self, why: str, now: float, *, asleep_too: bool) -> Step:
        """Break every lease, but perhaps those that are suspended."""
        self._changed = True
        for host in list(self.ledger.hosts.values()):
            self._add(self.ledger.break_all(host, Loss(LossKind.KILLED, why), now, asleep_too=asleep_too))
        self._actions += [Refuse(each.key, why) for each in self.ledger.leases.values() if each.resuming]
        return self._end()

    def suspend(self, held: Held, now: float) -> Step:
        """See `Ledger.suspend`."""
        self._changed = True
        self._add(self.ledger.suspend(held, now))
        self._note_rest(held.host, now)
        return self._end()

    def resume(self, key: str) -> Step:
        """See `Ledger.resume`."""
        self._changed = True
        return self.ledger.resume(key)

    def forsake(self, held: Held, loss: Loss, now: float) -> Step:
        """Break one lease, if it is still held: the host is unhealthy, and out of its holder's reach."""
        self._changed = True
        if self.ledger.leases.get(held.key) is held:
            self._add(self.ledger.sever(held, loss, now))
            self._give_up_if_free(held.host, now)
        return self._end()

    def distrust(self, host: Host, why: str, now: float) -> Step:
        """Give the host no new work, and replace it once it is free: who had work there says why."""
        self._changed = True
        if host.id in self.ledger.hosts and host.closed not in AWAY:  # else it has to become ready first
            self._doubt(host, why, now)
        return self._end()

    def cordon(self, instance: str, why: str, now: float) -> Step:
        """Give an instance no new work, nor what is on its way there. Raises as `_find`."""
        self._changed = True
        plan, known = self._find(instance)
        id_ = host_id(plan.pool, known.id)
        self._add(self.ledger.cordon(id_, why))
        if id_ in self.ledger.hosts:
            self._add(self.ledger.take_back(self.ledger.hosts[id_], now))
        return self._end()

    def uncordon(self, instance: str, now: float) -> Step:
        """Give it work again. Raises as `_find`."""
        self._changed = True
        plan, known = self._find(instance)
        return self.ledger.uncordon(host_id(plan.pool, known.id), now)

    def retain(self, instance: str, why: str) -> Step:
        """Do not ask for the deletion of an instance, whatever the reason. Raises as `_find`."""
        self._changed = True
        plan, known = self._find(instance)
        self._add(plan.retain(known.id, why))
        self._keep_if_retained(plan, known.id)
        return self._end()

    def unretain(self, instance: str, now: float) -> Step:
        """Let it be deleted, if there is a reason. Raises as `_find`."""
        self._changed = True
        plan, known = self._find(instance)
        self._route(plan.pool, plan.unretain(known.id, now), now)
        host = self.ledger.hosts.get(host_id(plan.pool, known.id))
        if host is not None:
            self.ledger.unretain(host)
        return self._end()

    def _find(self, name: str) -> tuple[Plan, Instance]:
        """The instance of that id, or of that pool and id (``pool/instance``).

        Raises:
            NoSuchInstance: None of that name is known, several are, or it is being removed already.
            TaskscalerError: This is only to observe.
        """
        if self.observing:
            raise TaskscalerError("observe-only: instances are cordoned and retained with those who manage them")
        found = [
            (plan, plan.instances[id_])
            for plan in self.plans.values()
            for id_ in {name, name.removeprefix(f"{plan.pool}/")}
            if id_ in plan.instances
        ]
        match found:
            case [(plan, known)] if known.stage is not Stage.REMOVING:
                return plan, known
            case [(_, known)]:
                why = f"instance {name!r} is being removed already: {known.removing}"
            case []:
                why = f"no instance {name!r} is known; `instances()` lists those that are"
            case _:
                several = " or ".join(host_id(plan.pool, known.id) for plan, known in found)
                why = f"several pools have an instance {name!r}; write {several}"
        raise NoSuchInstance(name, why)

    def remove_all(self, now: float) -> Step:
        """Delete every instance as it falls free, but for retained ones, and every one that still appears."""
        self._changed = True
        self.removing_all = True
        for host in [each for each in self.ledger.hosts.values() if each.cleaning]:
            self.ledger.close(host, Closed.DRAINING, "shutdown")
        for plan in self.plans.values():
            self._route(plan.pool, plan.shut_down(now), now)
        return self._end()

    def configure(self, policies: Sequence[Policy]) -> Step:
        """From now on these policies hold."""
        self._schedule = Schedule(policies)
        self._policy_until = -inf
        self._changed = True
        return NOTHING

    def policy_at(self, now: float) -> Policy:
        """The policy that holds."""
        if now >= self._policy_until:
            current = self._schedule.at(now)
            self._policy = current.policy if current.policy is not None else IDLES_AT_ZERO
            self._policy_until = current.until
        return self._policy

    # --- what will be, if nothing else happens; for people ----------------------------------------------

    def decides_at(self, now: float) -> float:
        """When the next decision is due."""
        soonest = now if self.observing else now + COALESCE
        return max(now, min(self._look_at, soonest) if self._changed else self._look_at)

    def foresee(self, at: float) -> tuple[Policy, Decision]:
        """What will be decided then, *at* being now or later, and under which policy."""
        policy = self._policy if at < self._policy_until else self._schedule.at(at).policy or IDLES_AT_ZERO
        supplies = [self._supply(pool, at) for pool in self.losses.order([*self.pools], at)]
        decision = evolve(
            decide(supplies, self.ledger.reserved, self.ledger.pending, policy, at, room=self.room_over_all),
            excess=self._excess_over_all,
        )
        removals: list[Removal] = []
        sleeps: list[Sleep] = []
        look_again_at = decision.look_again_at
        wakes = tuple(self._to_wake(decision, at))
        for due, choice in self.to_give_up(decision, policy, at):
            if due > at:
                look_again_at = min(look_again_at, due)
                break
            if isinstance(choice, Sleep):
                sleeps.append(choice)
            else:
                removals.append(choice)
        if self.ledger.called:
            waits_until = [plan.resuming.until for plan in self.plans.values() if plan.resuming.active(at)]
            look_again_at = min([look_again_at, *waits_until])
        return policy, evolve(
            decision,
            removals=tuple(removals),
            sleeps=tuple(sleeps),
            wakes=wakes,
            look_again_at=look_again_at,
            observed=self.observing,
        )

    @property
    def total(self) -> int:
        """Instances that exist or may come to exist, over all pools. O(1)."""
        return sum(plan.total for plan in self.plans.values())

    def _is_over_all(self) -> bool:
        """Whether there are, or may be, more than that ceiling allows."""
        return self.ceiling is not None and self.total > self.ceiling

    @property
    def _excess_over_all(self) -> int:
        """Instances over that ceiling, besides those on their way out."""
        leaving = sum(plan.removing for plan in self.plans.values()) + len(self.ledger.retirable)
        return 0 if self.ceiling is None else max(0, self.total - leaving - self.ceiling)

    @property
    def room_over_all(self) -> int | None:
        """How many more there may be over all pools; None: any number."""
        return None if self.ceiling is None else max(0, self.ceiling - self.total)

    def to_give_up(self, decision: Decision, policy: Policy, at: float) -> Iterator[tuple[float, Removal | Sleep]]:
        """What is given up or suspended then, and what later if nothing else happens; soonest first."""
        if self.removing_all:
            yield from ((at, removal) for removal in self._everything_free())
            return
        yield from ((at, removal) for removal in self._unfit())
        if self.observing or not self.ledger.over:
            yield from self._to_spare(decision, policy, at)

    def policy_change(self, now: float) -> tuple[float, Policy] | None:
        """When a policy will hold that leads to something else, and which; None: not within a day."""
        policy = self.policy_at(now)
        until = self._policy_until
        while until < now + DAY:
            current = self._schedule.at(until)
            following = current.policy or IDLES_AT_ZERO
            if following.effect != policy.effect:
                return until, following
            until = current.until
        return None

    def payoff(self, pool: str, now: float) -> Verdict:
        """Whether it pays to suspend idle instances of the pool."""
        return self._payoffs[pool].verdict(now)

    def breaks(self) -> Iterable[tuple[Host, float]]:
        """Hosts that will go before all work on them may be done, and when the rest of it is broken."""
        return ((self.ledger.hosts[host], at) for host, at in self._breaks.items())

    # --- what the engine asks ----------------------------------------------------------------------------

    @property
    def wake_at(self) -> float | None:
        """See `fleeting.runtime.Core`."""
        times = [self._look_at, self._breaks.next, *(plan.wake_at for plan in self.plans.values())]
        at = min((at for at in times if at is not None), default=inf)
        return None if at == inf else at

    def tick(self, now: float) -> Step:
        """Do what is due, and decide if anything has changed."""
        for plan in self.plans.values():
            wake_at = plan.wake_at
            if wake_at is not None and wake_at <= now:
                self._route(plan.pool, plan.tick(now), now)
        for id_ in self._breaks.due(now):
            host, doom = self.ledger.hosts[id_], self.doomed[id_]
            self._add(self.ledger.break_late(host, doom.deadline, Loss(LossKind.PREEMPTED, doom.why), now))
            self._give_up_if_free(host, now)
            self._changed = True
        if self._changed:
            self._changed = False
            self._look_at = min(self._look_at, now if self.observing else now + COALESCE)
        if now >= self._look_at:
            self._decide(now)
            self._changed = False  # what the decision itself changed, it has taken into account
        return self._end()

    def handle(self, pool: str, fact: messages.Fact, now: float) -> Step:
        """Take in what happened to an instance or a group."""
        self._route(pool, self.plans[pool].handle(fact, now), now)
        return self._end()

    def journal_failed(self, error: str, now: float) -> Step:
        """Hand out nothing that would not be remembered."""
        self.journal_error = f"the journal cannot be written: {error}"
        self._hold_back(now)
        return self._end()

    def journal_recovered(self, now: float) -> Step:
        """Go on."""
        self._changed = True
        self.journal_error = ""
        self._hold_back(now)
        return self._end()

    # --- between plan and ledger -------------------------------------------------------------------------

    def _route(self, pool: str, step: Step, now: float) -> None:
        """Take over a plan's step, and tell the ledger what changed."""
        self._changed = True
        self._add(step)
        if self._watch:  # before what the changes lead to: an instance is ready, then it is given work
            self._actions += self._watch.changes(self.plans[pool], step, now)
        for event in step.events:
            self._tell(pool, event, now)
        for action in step.actions:
            if isinstance(action, messages.Forget):
                self._lose_returning(pool, action.instance, now)

    def _lose_returning(self, pool: str, instance: str, now: float) -> None:
        """One that is given up before it is ready again will never be: what slept there is lost."""
        host = self.ledger.hosts.get(host_id(pool, instance))
        if host is not None and host.closed is Closed.RETURNING:
            why = self.plans[pool].instances[instance].removing
            self._add(self.ledger.lose(host, Loss(LossKind.KILLED, why), now))

    def _tell(self, pool: str, event: messages.Event, now: float) -> None:
        """Tell the ledger."""
        ledger = self.ledger
        match event:
            case messages.Ready(instance, too_old):
                self._note_time(pool, instance, now)
                self.losses.arrived(pool, instance, self.plans[pool].instances[instance].offering)
                self._add(ledger.add(pool, instance, now, draining=TOO_OLD if too_old else ""))
                self._keep_if_retained(self.plans[pool], instance)
            case messages.Asleep(instance, why):
                ledger.sleep(pool, instance, why)
                self._keep_if_retained(self.plans[pool], instance)
            case messages.Waking(instance):
                ledger.wake(ledger.hosts[host_id(pool, instance)])
            case messages.Ended(instance):
                self._add(ledger.end(host_id(pool, instance), now))
            case messages.Refused():
                self.refusal = refusal_of(event)
            case messages.Disowned(error):
                self._add(ledger.bar(pool, error, now))
                self._hold_back(now)
            case _:
                host = ledger.hosts[host_id(pool, event.instance)]
                self._tell_of(host, event, now)

    def _hold_back(self, now: float) -> None:
        """Hand out nothing new while nothing can be remembered, or no group is known to be ours; else do it again."""
        disowned = [plan.disowned for plan in self.plans.values()]
        before, self._held_back = self._held_back, self.journal_error or (disowned[0] if all(disowned) else "")
        if self._held_back:
            self.ledger.hold_back(self._held_back)
        elif before:
            self._add(self.ledger.hand_out_again(before, now))

    def _note_time(self, pool: str, instance: str, now: float) -> None:
        """How long the instance took to be ready, if that is known."""
        known = self.plans[pool].instances[instance]
        if known.coming_since is not None:
            self._payoffs[pool].note(now - known.coming_since, now, resumed=known.resumed)

    def _tell_of(self, host: Host, event: messages.Event, now: float) -> None:  # noqa: C901  (an arm for each kind)
        """Tell the ledger what changed about a host."""
        ledger = self.ledger
        match event:
            case messages.Paused(_, reason, briefly):
                ledger.close(host, Closed.PAUSED if briefly else Closed.LEAVING, reason)
                if self.pools[host.pool].heartbeat_on_acquire:  # a sign of life may not come for long
                    self._add(ledger.take_back(host, now))
                self._note_rest(host, now)
            case messages.Alive():
                self._add(ledger.vouch(host) if ledger.offers(host) else ledger.take_back(host, now))
            case messages.Resumed():
                self._add(ledger.reopen(host, now))
            case messages.Unhealthy(_, breaks_work, why):
                ill = f"its heartbeats fail: {why}"
                self._doubt(host, ill, now)
                if breaks_work:
                    self._add(ledger.break_all(host, Loss(LossKind.UNHEALTHY, ill), now))
                    self._give_up_if_free(host, now)
            case messages.Aged():
                self._close_for_good(host, Closed.DRAINING, TOO_OLD, now)
            case messages.Doomed():
                self._close_for_good(host, Closed.DOOMED, event.why, now)
                self.doomed[host.id] = event
                self._breaks.set(host.id, event.deadline - BREAK_AHEAD)
                if event.kind is NoticeKind.PREEMPTION:
                    self.losses.announced(host.pool, host.instance, now)
            case messages.Gone(_, cause):
                if cause is not None and not self.observing:  # else its manager may have given it up
                    self._actions.append(InstanceLost(host.id, cause))
                self._breaks.cancel(host.id)
                self.losses.gone(host.pool, host.instance, now, taken=cause is not None and cause.kind in TAKEN)
                cause = _as_announced(cause, self.doomed.pop(host.id, None))
                self._add(ledger.lose(host, cause or Loss(LossKind.KILLED, "it was removed"), now))

    def _note_rest(self, host: Host, now: float) -> None:
        """Where somebody else has suspended an instance on which nothing runs, it is taken for asleep."""
        known = self.plans[host.pool].instances.get(host.instance)
        if host.closed is Closed.LEAVING and host.rests and known is not None and known.state in RESTING:
            self._route(host.pool, self.plans[host.pool].suspend({known.id: host.why_closed}, now), now)

    def _doubt(self, host: Host, why: str, now: float) -> None:
        """No new work for the host; who has work there and waits for a connection need not wait longer."""
        self._close_for_good(host, Closed.UNHEALTHY, why, now)
        self._actions += [Doubt(held, why) for held in host.slots if held is not None]

    def _keep_if_retained(self, plan: Plan, instance: str) -> None:
        """Tell the ledger of an instance that is not to be given up, if it knows it already."""
        host = self.ledger.hosts.get(host_id(plan.pool, instance))
        if host is not None and plan.instances[instance].retained is not None:
            self.ledger.retain(host)

    def _close_for_good(self, host: Host, closed: Closed, why: str, now: float) -> None:
        """Give a host no more work, not even what is on its way there; it is replaced once it is free."""
        self.ledger.close(host, closed, why)
        self._add(self.ledger.take_back(host, now))

    # --- deciding ----------------------------------------------------------------------------------------

    def _decide(self, now: float) -> None:
        """Decide, say when to look again, and carry it out, unless this is only to observe."""
        self.policy_at(now)
        _, decision = self.foresee(now)
        self._look_at = min(self._policy_until, decision.look_again_at)
        self._remember(decision)
        if not self.observing:
            self._carry_out(decision, now)

    def _unfit(self) -> Iterator[Removal]:
        """What is given up whatever the demand."""
        for host in self.ledger.retirable.values():
            yield Removal(host.pool, host.instance, host.why_closed or "used up")
        if self.observing:
            yield from self._plans_removals()

    def _to_spare(self, decision: Decision, policy: Policy, at: float) -> Iterator[tuple[float, Removal | Sleep]]:
        """What is over the ceiling, at once; what is cordoned or to spare, once it is idle for long enough.

        Of what falls due together, the least preferred pool's goes first.
        """
        spare = decision.spare
        others: list[tuple[float, Removal | Sleep]] = []
        idle: list[Iterable[tuple[float, Host]]] = []
        places: dict[str, int] = {}
        over_all = decision.excess
        for pool in reversed(decision.pools):
            excess = to_go = max(pool.excess, over_all)
            for due, removal in self._stopped(pool.pool, excess, policy, at):
                others.append((due, removal))
                excess = max(0, excess - (due <= at))
            places[pool.pool] = self._places(pool.pool, at)
            for host in self.ledger.idle_cordoned(pool.pool):
                due = at if excess else _due(host, policy, at)
                others.append((due, Removal(host.pool, host.instance, "cordoned, and idle")))
                excess = max(0, excess - (due <= at))
            hosts = (host for host in self.ledger.longest_idle(pool.pool) if not host.retained)
            for host in islice(hosts, excess):
                spare -= host.usable
                excess -= 1
                yield at, Removal(host.pool, host.instance, OVER if pool.excess else f"{OVER} over all pools")
            over_all = max(0, over_all - (to_go - excess))
            idle.append((_due(host, policy, at), host) for host in hosts)
        dormant = sorted(self._dormant(policy, at), key=itemgetter(0))
        others += ((due, _with_its_leases(host)) for due, host in dormant if not host.usable)
        idle.append((due, host) for due, host in dormant if host.usable)
        idle_first = heapq.merge(*idle, key=itemgetter(0))
        not_needed = ((due, self._spared(host, places)) for due, host in _fitting(idle_first, spare))
        yield from heapq.merge(sorted(others, key=itemgetter(0)), not_needed, key=itemgetter(0))

    def _dormant(self, policy: Policy, at: float) -> Iterator[tuple[float, Host]]:
        """Hosts that are kept only for leases that sleep, and when their instances are to be suspended. O(such hosts).

        Those that nobody else can use sleep at once, the others as late as idle ones would go.
        """
        for host in self.ledger.dormant.values():
            plan = self.plans[host.pool]
            if plan.may_suspend(host.instance):
                due = _due(host, policy, at) if host.usable else at
                yield max(due, plan.suspending.until), host

    def _spared(self, host: Host, places: dict[str, int]) -> Removal | Sleep:
        """What becomes of a host that is not needed: it sleeps, if leases do or there is a place for it, or goes."""
        if host.busy:
            return _with_its_leases(host)
        if places[host.pool] > 0 and self.plans[host.pool].may_suspend(host.instance):
            places[host.pool] -= 1
            return Sleep(host.pool, host.instance, SPARED)
        return Removal(host.pool, host.instance, NOT_NEEDED)

    def _places(self, pool: str, at: float) -> int:
        """How many more idle instances of the pool may be suspended, rather than given up."""
        plan = self.plans[pool]
        if not plan.suspends or plan.suspending.active(at):
            return 0
        return self._places_in_all(pool, at) - sum(not host.busy for host in self._asleep(pool))

    def _places_in_all(self, pool: str, at: float) -> int:
        """How many idle instances of the pool may be suspended; none where resuming them does not pay."""
        return self.pools[pool].suspended_count if self.payoff(pool, at).pays else 0

    def _asleep(self, pool: str) -> list[Host]:
        """The pool's suspended hosts that are of use, the first to fall asleep first. O(such hosts of all pools)."""
        return [host for host in self.ledger.asleep.values() if host.pool == pool]

    def _stopped(self, pool: str, excess: int, policy: Policy, at: float) -> Iterator[tuple[float, Removal]]:
        """Suspended instances that hold no leases, and when they are given up."""
        places, verdict = self._places_in_all(pool, at), self.payoff(pool, at)
        too_many = TOO_MANY if verdict.pays else f"suspending does not pay: {verdict}"
        stopped = [host for host in self._asleep(pool) if not (host.busy or host.retained)]
        for number, host in enumerate(stopped):
            ends = dict(self._ends_asleep(host, policy, at))
            if number < excess:
                ends[OVER] = at
            elif number < len(stopped) - places:
                known = self.plans[host.pool].instances[host.instance]
                ends[too_many] = _asleep_since(known, at) + policy.idle_time
            why, due = min(ends.items(), key=itemgetter(1))
            yield max(at, due), Removal(host.pool, host.instance, why)

    def _ends_asleep(self, host: Host, policy: Policy, at: float) -> Iterator[tuple[str, float]]:
        """Why and when a suspended instance without leases goes, however many there may be."""
        plan = self.plans[host.pool]
        known = plan.instances[host.instance]
        since = _asleep_since(known, at)
        if known.resume_failures > 1:  # once, and it may have been the network
            yield UNRESUMABLE, at
        if host.cordoned is not None:
            yield "cordoned, and idle", since + policy.idle_time
        yield TOO_OLD, plan.too_old_at(known)
        yield TOO_LONG, since + self.pools[host.pool].suspended_time

    def _to_wake(self, decision: Decision, at: float) -> Iterator[Wake]:
        """Suspended instances to resume: for whoever waits for a lease there, and for what is missing."""
        if self.removing_all:
            return
        called = [host for host in self.ledger.called.values() if self._may_wake(host, at)]
        yield from (Wake(host.pool, host.instance, _why_called(host)) for host in called)
        for pool in decision.pools:
            missing = 0 if self.ledger.over else pool.wake
            for host in reversed(self._to_be_had(pool.pool, at) if missing else []):
                if missing > 0:
                    missing -= host.asleep
                    yield Wake(host.pool, host.instance, "more slots are needed")

    def _to_be_had(self, pool: str, at: float) -> list[Host]:
        """The pool's suspended hosts with slots for anybody, unless they wake anyhow; the last to fall asleep last."""
        plan, called = self.plans[pool], self.ledger.called
        return [
            host
            for host in (self._asleep(pool) if self.ledger.shelves[pool].asleep else [])
            if host.asleep and host.id not in called and self._may_wake(host, at)
            if at < plan.too_old_at(plan.instances[host.instance])
        ]

    def _may_wake(self, host: Host, at: float) -> bool:
        """Whether its instance can be resumed then, as far as is known."""
        plan = self.plans[host.pool]
        blocked = plan.resuming.active(at) or not plan.viewed
        return not blocked and host.closed is Closed.ASLEEP and plan.may_resume(host.instance)

    def _everything_free(self) -> Iterator[Removal]:
        """All instances that hold no work, whatever they are for, but not those that are retained."""
        for pool, plan in self.plans.items():
            for each in plan.instances.values():
                host = self.ledger.hosts.get(host_id(pool, each.id))
                if each.removal_asked_at is None and each.retained is None and not (host and host.busy):
                    yield Removal(pool, each.id, "shutdown")

    def _plans_removals(self) -> Iterator[Removal]:
        """What the plans would have asked for by themselves, did they not observe."""
        for pool, plan in self.plans.items():
            for each in plan.instances.values():
                if each.stage is Stage.HELD and each.state is not State.DELETING:
                    yield Removal(pool, each.id, each.removing)

    def _carry_out(self, decision: Decision, now: float) -> None:
        """Ask the plans for what was decided."""
        if self.removing_all:
            self._take_everything_back()
        elif not self.ledger.over:
            self._grow(decision, now)
        for pool, reasons in _by_pool(decision.wakes).items():
            self._route(pool, self.plans[pool].resume(reasons, now), now)
        for pool, reasons in _by_pool(decision.sleeps).items():
            self._route(pool, self.plans[pool].suspend(reasons, now), now)
        self._give_up(decision.removals, now)

    def _grow(self, decision: Decision, now: float) -> None:
        """Ask for more where some are wanted, and take back what nothing calls for any more."""
        for pool in decision.pools:
            plan = self.plans[pool.pool]
            if pool.increase:
                self._route(pool.pool, plan.request(pool.increase, now), now)
            elif pool.withdraw:
                self._add(plan.withdraw(pool.withdraw))

    def _take_everything_back(self) -> None:
        """Withdraw all that may still come, and tell when nothing is left but what is retained."""
        for plan in self.plans.values():
            if plan.outstanding:
                self._add(plan.withdraw(plan.outstanding))
        if all(plan.total == len(plan.retained) for plan in self.plans.values()):
            self._actions.append(AllRemoved())

    def _give_up(self, removals: Iterable[Removal], now: float) -> None:
        """Remove instances that hold no work, all of a pool in one request."""
        by_pool = _by_pool(removals)
        for pool, reasons in by_pool.items():
            for instance in reasons:
                host = self.ledger.hosts.get(host_id(pool, instance))
                if host is not None:
                    self.ledger.retire(host)
            self._route(pool, self.plans[pool].remove(reasons, now), now)

    def _give_up_if_free(self, host: Host, now: float) -> None:
        """Remove a host whose work was broken in the same turn: after a crash it must not be used again."""
        if host.id in self.ledger.retirable:
            self._give_up([Removal(host.pool, host.instance, host.why_closed)], now)

    def _supply(self, pool: str, now: float) -> Supply:
        """The counters of one pool. O(1), but for what sleeps there and could be woken."""
        shelf, plan = self.ledger.shelves[pool], self.plans[pool]
        returning = -(-shelf.paused // shelf.slots)
        called = [host for host in self.ledger.called.values() if host.pool == pool and self._may_wake(host, now)]
        to_come = sum(host.asleep for host in called)
        leaving = plan.removing + sum(host.pool == pool for host in self.ledger.retirable.values())
        over = 0 if plan.ceiling is None else plan.total - leaving - plan.ceiling
        return Supply(
            pool=pool,
            slots=shelf.fresh,
            kept=shelf.kept,
            coming=plan.coming + returning + len(called),
            usable=shelf.usable,
            in_use=shelf.acquired + shelf.cleaning + shelf.blocked,
            excess=max(0, over),
            limits=plan.limits(now),
            stranded=plan.stranded(now),
            set_back=self._why_set_back(pool, now),
            short=(shelf.returners + len(called)) * shelf.fresh - shelf.returning - to_come,
            asleep=sum(host.asleep for host in self._to_be_had(pool, now)),
        )

    def _why_set_back(self, pool: str, now: float) -> str:
        """Why it is asked later than its place says; empty if it is not, or if there is no other."""
        return self.losses.why(pool, now) if len(self.pools) > 1 else ""

    def _potential(self, now: float, *, heed_throttle: bool) -> int:
        """Slots that are on their way or could be created; none of the latter while growth is throttled, if heeded."""
        slots = 0
        over_all = ANY_NUMBER if self.room_over_all is None else self.room_over_all
        for pool, plan in self.plans.items():
            limits = plan.limits(now)
            throttled = limits.blocked_until is not None or limits.tokens == 0
            waits = throttled and self.pools[pool].reservation_throttling
            room = 0 if waits and heed_throttle else ANY_NUMBER if limits.room is None else limits.room
            room = min(room, over_all)
            over_all -= room
            slots += room * self.ledger.shelves[pool].fresh + self._slots_to_come(pool, now, heed=heed_throttle)
        return slots

    def _slots_to_come(self, pool: str, now: float, *, heed: bool) -> int:
        """Slots of what is on its way, and of what sleeps; none of the latter while nothing is resumed, if heeded."""
        shelf, plan = self.ledger.shelves[pool], self.plans[pool]
        if shelf.barred:
            return 0
        coming = (plan.coming - shelf.returners) * shelf.fresh + shelf.returning
        waits = heed and self.pools[pool].reservation_throttling and plan.resuming.active(now)
        return max(0, coming) + (0 if waits else shelf.asleep)

    def _remember(self, decision: Decision) -> None:
        """Keep the decision; of a run that say the same, the last."""
        if self.decisions and self.decisions[-1] == decision:
            self.decisions.pop()
        elif self._watch:
            self._actions.append(DecisionEvent(at=decision.at, decision=decision))
        self.decisions.append(decision)

    # --- bookkeeping -------------------------------------------------------------------------------------

    def _remove_used(self, hosts: Container[str], now: float) -> None:
        """Instances that an earlier manager had in use: nobody holds them any more, and what ran there may run on."""
        for pool, plan in self.plans.items():
            used = [id_ for id_ in plan.instances if host_id(pool, id_) in hosts]
            reasons = dict.fromkeys(used, "it was in use when its manager stopped")
            self._route(pool, plan.remove(reasons, now), now)

    def _add(self, step: Step) -> None:
        """Make a part of what this turn leads to."""
        self._writes += step.writes
        self._actions += step.actions

    def _end(self) -> Step:
        """Hand over what this turn led to."""
        step = Step(self._writes, self._actions)
        self._writes, self._actions = [], []
        return step


def _whys(cordons: Mapping[str, CordonRecord]) -> Mapping[str, str]:
    return {host: record.why for host, record in cordons.items()}


def _shelf(pool: PoolSettings) -> Shelf:
    return Shelf.empty(
        pool.name,
        pool.capacity_per_instance,
        pool.max_use_count,
        cleans=pool.cleans,
        checks=pool.heartbeat_on_acquire,
    )


def _by_pool(choices: Iterable[Choice]) -> dict[str, dict[str, str]]:
    """Why what is to be done with which instance, by pool."""
    by_pool: dict[str, dict[str, str]] = {}
    for choice in choices:
        by_pool.setdefault(choice.pool, {})[choice.instance] = choice.why
    return by_pool


def _as_announced(loss: Loss | None, doom: messages.Doomed | None) -> Loss | None:
    """Why work was lost, if that was announced: for the same reason, however its end was noticed."""
    if loss is None or doom is None or loss.kind not in TAKEN:
        return loss
    return Loss(LossKind.PREEMPTED, f"{doom.why}, and {loss}")


def _with_its_leases(host: Host) -> Sleep:
    return Sleep(host.pool, host.instance, ONLY_SLEEPERS)


def _asleep_since(known: Instance, at: float) -> float:
    return at if known.asleep_since is None else known.asleep_since


def _why_called(host: Host) -> str:
    """Why it is waited for."""
    keys = [held.key for held in host.held if held.resuming]
    return f"{enumerated(keys)} {'is' if len(keys) == 1 else 'are'} to be resumed" if keys else "to be cleaned"


def _due(host: Host, policy: Policy, at: float) -> float:
    """When an idle host that nothing calls for is to be given up, *at* being now."""
    return max(at, host.idle_since + policy.idle_time)


def _fitting(hosts: Iterable[tuple[float, Host]], spare: int) -> Iterator[tuple[float, Host]]:
    """Those that leave enough, whichever of them go; one behind another may have fewer uses left, and fit."""
    for due, host in hosts:
        if spare <= 0:
            return
        if host.usable <= spare:
            spare -= host.usable
            yield due, host
