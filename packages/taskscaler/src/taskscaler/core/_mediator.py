"""The core: one plan per pool below, the ledger on top, and the decision between them. Pure.

Facts about instances go to their pool's plan, whose events let the ledger know which instances may be given
work. Acquires, releases and reservations go to the ledger, which answers at once. Whatever changes leads to
one decision a few milliseconds later, from the counters: how many instances to ask for, which to give up.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import islice
from math import inf
from typing import Any, NamedTuple

from attrs import evolve

from fleeting import Notice, NoticeKind, State
from fleeting.core import (
    NOTHING,
    TOO_OLD,
    Instance,
    Plan,
    Stage,
    Start,
    Step,
    Timers,
    Write,
    messages,
    refusal_of,
)
from fleeting.events import Access, Availability, Loss, LossKind
from taskscaler._errors import NoCapacity, NoSuchInstance, TaskscalerError
from taskscaler._meter import Meter
from taskscaler._observe import DecisionEvent, Watch
from taskscaler._types import Policy, PoolSettings
from taskscaler.core._calm import Calm
from taskscaler.core._choices import Choices
from taskscaler.core._decide import ANY_NUMBER, Choice, Decision, Removal, Sleep, Supply, decide, idle_slots
from taskscaler.core._idling import IDLING, Idling
from taskscaler.core._ledger import Ledger
from taskscaler.core._payoff import Payoff
from taskscaler.core._preference import Losses
from taskscaler.core._releases import NOTHING_EXPECTED, Expected, Releases
from taskscaler.core._restart import Left
from taskscaler.core._schedule import Schedule
from taskscaler.core._slots import (
    AWAY,
    FINAL,
    Capacity,
    Clean,
    Closed,
    LeaseId,
    MarkUnhealthy,
    Node,
    PoolSlots,
    Refuse,
    node_id,
)

RESTING = frozenset({State.SUSPENDING, State.SUSPENDED})

IDLES_AT_ZERO = Policy()
"""What holds where no policy matches."""

COALESCE = 0.005
"""Seconds that a decision waits for what else comes with a burst: a call to a cloud takes a hundred times that."""

REST = 0.1
"""Seconds from a decision that asks something of a cloud to the next that is made for news, at the least: see
`Core._rest`. The cloud has hardly answered by then, and what else is to be asked for waits for that; where jobs come
and go all the time, a decision for each would take most of the processor, and each be a call of its own."""

REST_PER_BOOT = 0.01
"""The same as a share of a boot, after which what is asked for comes at the soonest."""

LONGEST_REST = 1.0
"""Seconds that it never exceeds, however long booting takes."""

BREAK_AHEAD = 30.0
"""Seconds before an announced end of an instance at which work is broken that would not be done in time."""

TAKEN = frozenset({LossKind.VANISHED, LossKind.DELETED, LossKind.PREEMPTED})
"""How instances go that their cloud has taken, announced or not."""

REMOVED = Loss(LossKind.KILLED, "it was removed")
"""Of what was on an instance that is given up."""

OF_NO_USE = frozenset({Stage.WAITING, Stage.PREPARING, Stage.REMOVING, Stage.HELD})
"""Stages of instances that may not be given work, and that are no nodes unless they were of use before."""

OBSERVES = "observe_only: the scaler hands out no slots and changes nothing at the cloud"
"""Why a core that only observes refuses every acquire."""

DAY = 86400.0
"""Seconds for which the next change of the policy is looked for."""

KEPT_DECISIONS = 100
"""How many of the last decisions are kept for `explain`."""


class AllRemoved(NamedTuple):
    """After `Core.remove_all`: nothing exists any more, nor may come to exist, but for what is retained."""


class _Inputs(NamedTuple):
    """What a decision was made on, for the next to be spared if that is what it would be made on, too."""

    unsettled: bool
    pools: tuple[tuple[object, ...], ...]
    counts: tuple[int, ...]
    over: str
    bound: tuple[tuple[tuple[str, ...], int], ...] = ()


class InstanceLost(NamedTuple):
    """For observers: an instance was lost that nobody gave up."""

    node: str
    loss: Loss


class Core:
    """All state of a scaler, and every decision."""

    _has_noted_time = False
    """Whether an instance has become ready in this turn."""

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
        meter: Meter | None = None,
        max_instances: int = 0,
        reattach_timeout: float = 600.0,
        journaled: bool = True,
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
            watched: Whether to report, as actions, instances that change and of decisions.
            meter: Counts what happens to instances and at clouds. None: nobody wants to know.
            max_instances: How many there may be over all pools, besides what each of them may have; 0: any number.
            reattach_timeout: Seconds for which a persistent lease that nobody holds is kept.
            journaled: Whether anybody keeps a journal; else few steps have writes, and nobody is to read them. The same
                goes for the plans.
        """
        self.ceiling = max_instances or None
        self.losses = Losses()
        """What the clouds have taken, by which the pools' order is changed."""

        self.pools = {pool.name: pool for pool in pools}
        self.plans = dict(plans)
        left = Left.of(pools, recovered, keep_used=keep_used)
        self._schedule = Schedule(policies)
        self._policy = IDLES_AT_ZERO
        self._policy_until = -inf
        self.ledger = Ledger(
            map(_slots_of, pools),
            left.uses,
            left.kept,
            left.cordons,
            left.dirty,
            expired=left.expired,
            claim_until=now + self.policy_at(now).idle_time,
            reattach_by=now + reattach_timeout,
            journaled=journaled,
        )
        self._reattach_timeout = reattach_timeout
        self.keep_used = keep_used
        self.decided = 0
        """How many decisions were made so far; not those that were spared, as they would have done nothing."""

        self._decisions: deque[Decision] = deque(maxlen=KEPT_DECISIONS)
        self._noted_at: float | None = None
        """When it was last seen that something has changed; None: not since the last decision."""

        self.refusal: str | None = None
        """Why the groups may not be managed as the first view shows them."""

        self.journal_error = ""
        """Why nothing can be remembered, and is handed out, at the moment; empty if all is well."""

        self.doomed: dict[tuple[str, str], Notice] = {}
        """The notices that were given of nodes, by pool and instance."""

        self.observing = observing
        """Whether nothing of what is decided is carried out."""

        self._held_back = ""
        """Why nothing new is handed out for the moment; empty if it is."""

        payoffs = {name: Payoff() for name in self.pools}
        self.choices = Choices(
            self.pools,
            self.plans,
            self.ledger,
            payoffs,
            observing,
            idling=Idling.of(_prices(policies), recovered.get(IDLING, {}), journaled=journaled),
        )
        self._releases = Releases(now)
        self._calm = Calm(
            self.plans,
            self.ledger,
            self.choices.surplus,
            reserved_demand=self._reserved_demand,
            releases=self.expected_releases,
            waits=self.left_to_releases,
            idling=self.choices.idling,
            ceiling=self.ceiling,
        )
        self._unhealthy: set[tuple[str, str]] = set()
        """Of which instances it was acted upon that their plans know them as unhealthy, by pool and instance."""

        self._breaks: Timers[tuple[str, str]] = Timers()
        """When the work on them that would last longer is broken."""

        self._lease_timers: Sequence[Timers[Any]] = (self._breaks, self.ledger.expiries.timers, self.ledger.deadlines)
        self._look_at = now
        self._rests_until = -inf
        """No decision is made for news before that."""

        self._touched = True
        """Whether anything was taken in since the last tick."""

        self._seen = 0
        """Grows with what decisions read and nothing else counts."""

        self._decided_on: _Inputs | None = None
        self._writes: list[Write] = []
        self._actions: list[Any] = []
        self._watch = Watch() if watched else None
        self._meter = meter
        self._begin(left, now)

    def _begin(self, left: Left, now: float) -> None:
        """Take up what an earlier manager left."""
        for plan in self.plans.values():
            if self._watch:
                self._actions += self._watch.begin(plan, now)
            if self._meter is not None:
                self._meter.begin(plan, now)
        self._writes += left.writes(self.ledger)
        for name, plan in self.plans.items():
            for known in plan.instances.values():
                self._sync(name, known, self.ledger.node(name, known.id), now)
        for pool, reasons in left.removals(self.plans).items():
            self._route(pool, self.plans[pool].remove(reasons, now), now)
        if self.observing:
            self.ledger.shut_down(OBSERVES)

    # --- what the shell asks -----------------------------------------------------------------------------

    def acquire(
        self,
        key: str,
        now: float,
        expected: float = inf,
        place: int | None = None,
        *,
        persistent: bool = False,
        pools: tuple[str, ...] = (),
    ) -> Step:
        """See `Ledger.acquire`."""
        self._touched = True
        return self.ledger.acquire(key, now, expected, place, persistent=persistent, pools=pools)

    def release(self, key: str, now: float) -> Step:
        """See `Ledger.release`."""
        self._touched = True
        assignment = self.ledger.leases.get(key)
        step = self.ledger.release(key, now)
        if step is not NOTHING:
            self._add(step)
        if assignment is not None:
            self._releases.note_end(now)
            if assignment.node.closed is Closed.LEAVING:
                self._note_rest(assignment.node, now)
        return self._end()

    def deliver(self, lease: LeaseId) -> bool:
        """See `Ledger.deliver`."""
        return self.ledger.deliver(lease)

    def check(self, lease: LeaseId, now: float) -> Step:
        """Have a slot handed over once a heartbeat of its instance has passed."""
        if self.ledger.check(lease):
            self._route(lease.pool, self.plans[lease.pool].ask_heartbeat(lease.instance), now)
        return self._end()

    def cleaned(self, clean: Clean, failure: str, now: float) -> Step:
        """A clean-up has ended; *failure*: why it went wrong, empty if it did not."""
        self._touched = True
        if not failure:
            self._add(self.ledger.cleaned(clean, now))
        elif self.ledger.wants(clean):
            why = f"slot {clean.slot} could not be cleaned: {failure}"
            node = self.ledger.pools[clean.pool].nodes[clean.instance]
            self._close_for_good(node, Closed.DRAINING, why, now)
        return self._end()

    def cancel(self, key: str, now: float) -> Step:
        """See `Ledger.cancel`."""
        self._touched = True
        return self.ledger.cancel(key, now)

    def reserve(self, key: str, now: float) -> Step:
        """See `Ledger.reserve`. In preemptive mode only what is ready counts, else also what could be created.

        Raises:
            KeyInUse: The key holds a slot, waits for one, or is reserved.
            NoCapacity: `possible` says whether a slot could still be created.
        """
        policy = self.policy_at(now)
        leaving = self._not_to_reserve(policy, now)
        self._touched = True
        try:
            potential = 0 if policy.preemptive else self._potential(now, heed_throttle=True)
            return self.ledger.reserve(key, now, potential - leaving)
        except NoCapacity as error:
            raise self._refusal(str(error), now, leaving=leaving, preemptive=policy.preemptive) from None

    def _refusal(self, why: str, now: float, *, leaving: int, preemptive: bool) -> NoCapacity:
        """Why there is no slot to reserve, and what there is instead."""
        ledger, capacity = self.ledger, self.capacity()
        if ledger.shut:
            return NoCapacity(why, capacity=capacity)
        possible = ledger.has_room(self._potential(now, heed_throttle=False))
        remedy = "ask again soon" if possible else "release one first"
        if possible and leaving and ledger.has_room(0):
            why = "what is idle is about to be removed"
        elif possible:
            why = "no slot is ready" if preemptive else "growth is throttled"
        return NoCapacity(f"{why} ({in_short(capacity)}); {remedy}", possible=possible, capacity=capacity)

    @cached_property
    def _throttles_reservations(self) -> bool:
        """Whether reservations neither buy instances nor keep those that are to spare."""
        return all(pool.reservation_throttling for pool in self.pools.values())

    def _reserved_demand(self, policy: Policy, in_use: int) -> int:
        """How many reservations call for slots of their own.

        Most that reserve find no job, and give it up. So where that is throttled, idle slots are kept for them and not
        besides them; and where a reservation may count on what could be created, an acquire has to come first. Until
        then its slot only is not there for others who wait.
        """
        ledger = self.ledger
        if not ledger.reserved or not self._throttles_reservations:
            return ledger.reserved
        held = ledger.reserved if policy.preemptive else ledger.fulfilled if ledger.pending else 0
        return max(0, held - idle_slots(policy, in_use))

    def _not_to_reserve(self, policy: Policy, now: float) -> int:
        """Slots of idle instances that would go if nothing were reserved; in preemptive mode also what is due to go."""
        making_room = self.choices.to_make_room(self._decisions[-1]) if self.ledger.bound and self._decisions else 0
        return max(making_room, self._leaving_but_for_reservations(policy, now) if policy.preemptive else 0)

    def _leaving_but_for_reservations(self, policy: Policy, now: float) -> int:
        """Slots of an idle instance that is due to go, and would if nothing were reserved; none of them is reserved.

        So reservations that come and go, one after the other, do not keep it for ever. O(pools), but for the slots of
        an instance.
        """
        if not self._throttles_reservations:
            return 0
        pools = self.ledger.pools
        in_use = sum(each.counts.acquired + each.counts.rare.cleaning + each.counts.blocked for each in pools.values())
        spare = self.ledger.usable - self.ledger.pending_for_any - idle_slots(policy, in_use)
        if spare <= 0:
            return 0
        longest_idle = (
            node for pool in pools for nodes in self.ledger.idle_by_usable(pool) for node in islice(nodes, 1)
        )
        if policy.adaptive:
            slots, idling, idle_time = in_use + self.ledger.usable, self.idling, policy.idle_time
            idle = (node.usable for node in longest_idle if node.idle_since + idling.least(idle_time) <= now)
            fits = (each for each in idle if each <= spare)
            return min((each for each in fits if idling.due(slots - each + 1, idle_time, now) <= now), default=0)
        due = (node.usable for node in longest_idle if node.idle_since + policy.idle_time <= now)
        surplus = self.choices.surplus
        goes = (usable for usable in due if usable <= spare and surplus.since(usable, now) + policy.idle_time <= now)
        return min(goes, default=0)

    def _note_use(self, now: float) -> None:
        """See how much is in use, and how much to spare. O(pools).

        Where reservations do not keep what is to spare, they do not make it any less here, not even for a moment; but
        what they call for stays as long as they do.
        """
        ledger, policy = self.ledger, self._policy
        usable = in_use = 0
        for pool in ledger.pools.values():
            acquired, free, _, blocked, _, rare = pool.counts
            usable += free
            in_use += acquired + blocked + rare.cleaning
        spare = usable - (ledger.pending_for_any if ledger.bound else ledger.pending)
        spare -= idle_slots(policy, in_use) if policy.scale_factor else policy.idle_count
        if not self._throttles_reservations:
            spare -= ledger.reserved
        self.choices.surplus.note(spare, now)
        self._releases.note(in_use, now)
        if policy.adaptive:
            self.idling.note(in_use + usable - spare, policy.idle_time, self._releases.boot, now)
        elif self.choices.idling.looks:
            self.choices.idling.pause()

    def expected_releases(self, policy: Policy, now: float) -> Expected:
        """Slots that are free again before a new instance would be ready. Nothing of it is kept over a restart."""
        if not (policy.idle_count or policy.scale_factor):
            return NOTHING_EXPECTED
        return self._releases.expected(now)

    def left_to_releases(self, policy: Policy, now: float) -> Expected:
        """How many of those that wait are left to a release, if the policy is adaptive."""
        if not (policy.adaptive and self.ledger.pending):
            return NOTHING_EXPECTED
        return self._releases.awaited(self.ledger.waiting_since, policy.idle_time, now)

    def unreserve(self, key: str, now: float) -> Step:
        """See `Ledger.unreserve`."""
        self._touched = True
        return self.ledger.unreserve(key, now)

    def capacity(self) -> Capacity:
        """See `Ledger.capacity`; what is not ready yet is counted, too."""
        return evolve(self.ledger.capacity(), unready=sum(map(self._slots_never_ready, self.plans)))

    def stop_handing_out(self, why: str) -> Step:
        """From now on every acquire is refused, those that wait included; what is held stays held."""
        self._touched = True
        return self.ledger.shut_down(why)

    def break_all(self, why: str, now: float, *, all_too: bool) -> Step:
        """Break every lease, but perhaps those that a manager leaves to the next: suspended and persistent ones."""
        self._touched = True
        if not all_too:
            self._add(self.ledger.detach_all(why))
        for node in list(self.ledger.nodes.values()):
            self._add(self.ledger.break_all(node, Loss(LossKind.KILLED, why), now, all_too=all_too))
        self._actions += [Refuse(each.key, why) for each in self.ledger.leases.values() if each.resuming]
        return self._end()

    def suspend(self, lease: LeaseId, now: float, expires_at: float | None = None) -> Step:
        """See `Ledger.suspend`."""
        self._touched = True
        assignment = self.ledger.find(lease)
        self._add(self.ledger.suspend(lease, now, expires_at))
        if assignment is not None:
            self._note_rest(assignment.node, now)
        return self._end()

    def resume(self, key: str) -> Step:
        """See `Ledger.resume`."""
        self._touched = True
        return self.ledger.resume(key)

    def reattach(self, key: str) -> Step:
        """See `Ledger.reattach`."""
        self._touched = True
        return self.ledger.reattach(key)

    def detach(self, lease: LeaseId, now: float) -> Step:
        """See `Ledger.detach`."""
        self._touched = True
        self.ledger.detach(
            lease, inf if self.ledger.over else now + self._reattach_timeout
        )  # then it is the next one's
        return NOTHING

    def bound_detached(self, key: str, by: float) -> Step:
        """See `Ledger.bound_detached`."""
        self._touched = True
        self.ledger.bound_detached(key, by)
        return NOTHING

    def mark_unreachable(self, lease: LeaseId, loss: Loss, now: float) -> Step:
        """Break one lease, if it is still held: the node is unhealthy, and out of its holder's reach."""
        self._touched = True
        assignment = self.ledger.find(lease)
        if assignment is not None:
            self._add(self.ledger.break_one(lease, loss, now))
            self._give_up_if_free([assignment.node], now)
        return self._end()

    def replace(self, key: str, now: float, why: str) -> Step:
        """See `Ledger.replace`; the node goes once it is free."""
        replaced = self.ledger.leases.get(key)
        self._touched = True
        self._add(self.ledger.replace(key, now, why))
        if replaced is not None:
            node = replaced.node
            self._actions += [MarkUnhealthy(each.id, why) for each in node.awake.values()]
            self._give_up_if_free([node], now)
        return self._end()

    def mark_suspect(self, pool: str, instance: str, why: str, now: float) -> Step:
        """Give the node no new work, and replace it once it is free: who had work there says why."""
        self._touched = True
        node = self.ledger.node(pool, instance)
        if node is not None and node.closed not in AWAY:  # else it has to become ready first
            self._mark_unhealthy(node, why, now)
        return self._end()

    def cordon(self, instance: str, why: str, now: float) -> Step:
        """Give an instance no new work, nor what is on its way there. Raises as `_find`."""
        self._touched = True
        plan, known = self._find(instance)
        self._add(self.ledger.cordon(plan.pool, known.id, why))
        node = self.ledger.node(plan.pool, known.id)
        if node is not None:
            self._add(self.ledger.take_back(node, now))
        return self._end()

    def uncordon(self, instance: str, now: float) -> Step:
        """Give it work again. Raises as `_find`."""
        self._touched = True
        plan, known = self._find(instance)
        return self.ledger.uncordon(plan.pool, known.id, now)

    def retain(self, instance: str, why: str, now: float) -> Step:
        """Do not ask for the deletion of an instance, whatever the reason. Raises as `_find`."""
        plan, known = self._find(instance)
        self._route(plan.pool, plan.retain(known.id, why), now)
        return self._end()

    def unretain(self, instance: str, now: float) -> Step:
        """Let it be deleted, if there is a reason. Raises as `_find`."""
        plan, known = self._find(instance)
        self._route(plan.pool, plan.unretain(known.id, now), now)
        return self._end()

    def _find(self, name: str) -> tuple[Plan, Instance]:
        """The instance of that id, or of that pool and id (``pool/instance``).

        Raises:
            NoSuchInstance: None of that name is known, several are, or it is being removed already.
            TaskscalerError: This is only to observe.
        """
        if self.observing:
            raise TaskscalerError("observe_only: cordon and retain instances through the scaler that manages them")
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
                why = f"instance {name!r} is already being removed: {known.removing}"
            case []:
                why = f"unknown instance {name!r}; `instances()`, or `taskscaler instances`, lists the known ones"
            case _:
                several = " or ".join(node_id(plan.pool, known.id) for plan, known in found)
                why = f"several pools have an instance {name!r}; write {several}"
        raise NoSuchInstance(name, why)

    def remove_all(self, now: float) -> Step:
        """Delete every instance as it falls free, but for retained ones, and every one that still appears."""
        self._touched = True
        self._seen += 1
        self.choices.staying = {pool: dict.fromkeys(plan.instances) for pool, plan in self.plans.items()}
        for node in [each for each in self.ledger.nodes.values() if each.cleaning]:
            self.ledger.close(node, Closed.DRAINING, "shutdown")
        for plan in self.plans.values():
            self._route(plan.pool, plan.shut_down(now), now)
        return self._end()

    def configure(self, policies: Sequence[Policy]) -> Step:
        """From now on these policies hold."""
        self._seen += 1
        self._schedule = Schedule(policies)
        self._policy_until = -inf
        self._touched = True
        self.idling.keep(_prices(policies))
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
        return max(now, self._due_at(now))

    def foresee(self, at: float) -> tuple[Policy, Decision]:
        """What will be decided then, *at* being now or later, and under which policy."""
        policy = self._policy if at < self._policy_until else self._schedule.at(at).policy or IDLES_AT_ZERO
        supplies = [self._supply(pool, at) for pool in self.losses.order([*self.pools], at)]
        total = 0 if self.ceiling is None else self.total - sum(plan.dropped(at) for plan in self.plans.values())
        in_use = sum(supply.in_use for supply in supplies)
        decision = decide(
            supplies,
            self._reserved_demand(policy, in_use),
            self.ledger.pending,
            policy,
            at,
            room=self._room_over_all(total),
            room_to_come=self._room_to_come(total),
            excess=self._excess_over_all(total),
            releases=self.expected_releases(policy, at),
            bound=self.ledger.bound,
            waits=self.left_to_releases(policy, at),
        )
        removals: list[Removal] = []
        sleeps: list[Sleep] = []
        look_again_at = decision.look_again_at
        wakes = tuple(self.choices.to_wake(decision, at))
        for due, choice in self.choices.to_give_up(decision, policy, at):
            if due > at:
                look_again_at = min(look_again_at, due)
                break
            if isinstance(choice, Sleep):
                sleeps.append(choice)
            else:
                removals.append(choice)
        if self.ledger.wake_requested:
            waits_until = [plan.resuming.until for plan in self.plans.values() if plan.resuming.active(at)]
            look_again_at = min([look_again_at, *waits_until])
        if not (removals or sleeps or wakes or self.observing or look_again_at < decision.look_again_at):
            return policy, decision
        return policy, decision.choosing(removals, sleeps, wakes, look_again_at=look_again_at, observed=self.observing)

    @property
    def idling(self) -> Idling:
        """What adaptive policies have learned of how long idling pays."""
        return self.choices.idling

    @property
    def removing_all(self) -> bool:
        """Whether every instance is deleted as it falls free."""
        return self.choices.staying is not None

    @property
    def total(self) -> int:
        """Instances that exist or may come to exist, over all pools. O(1)."""
        return sum(plan.standing.total for plan in self.plans.values())

    def _is_over_all(self) -> bool:
        """Whether there are, or may be, more than that ceiling allows."""
        return self.ceiling is not None and self.total > self.ceiling

    def _excess_over_all(self, total: int) -> int:
        """Instances over that ceiling, besides those on their way out."""
        if self.ceiling is None:
            return 0
        return max(0, total - self._leaving() - self.ceiling)

    def _room_to_come(self, total: int) -> int:
        """How many more there may be once those on their way out are gone than now, *total* being there."""
        if self.ceiling is None:
            return 0
        return max(0, self.ceiling - total + self._leaving()) - max(0, self.ceiling - total)

    def _leaving(self) -> int:
        """Instances on their way out, over all pools."""
        return sum(
            self.plans[pool].standing.removing + pool_slots.counts.to_remove
            for pool, pool_slots in self.ledger.pools.items()
        )

    def _room_over_all(self, total: int) -> int | None:
        """How many more there may be over all pools besides so many; None: any number."""
        return None if self.ceiling is None else max(0, self.ceiling - total)

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

    def breaks(self) -> Iterable[tuple[Node, float]]:
        """Nodes that will go before all work on them may be done, and when the rest of it is broken."""
        return ((self.ledger.pools[pool].nodes[instance], at) for (pool, instance), at in self._breaks.items())

    # --- what the engine asks ----------------------------------------------------------------------------

    @property
    def wake_at(self) -> float | None:
        """See `fleeting.runtime.Core`."""
        at = min(self._look_at, self.choices.idling.writes_at)
        for timers in self._lease_timers:
            if timers.heap:  # mostly none is set, and this is asked with each job
                due = timers.next
                if due is not None and due < at:
                    at = due
        for plan in self.plans.values():
            due = plan.wake_at
            if due is not None and due < at:
                at = due
        return None if at == inf else at

    def quiet_until(self, now: float) -> float:
        """When something other than a view is due; *now* if the next view may lead to something, whatever it shows.

        Until then views that show what the last ones did lead to no action and no decision, so that
        `Plan.postpone_view` may leave them out. O(timers).
        """
        if self._touched or self._calm.stuck or now >= min(self._look_at, self._policy_until):
            return now
        calm_until = self._calm_until(self._policy, now)
        if calm_until is None:
            return now
        due = [each for timers in self._lease_timers if (each := timers.next) is not None]
        quiet = [plan.quiet_until for plan in self.plans.values()]
        return max(now, min(calm_until, self._look_at, self.choices.idling.writes_at, *due, *quiet))

    def heed(self, now: float) -> None:
        """See `fleeting.runtime.Core`: what was taken in may lead to a decision, or to what no plan knows yet."""
        if self.ceiling is not None:
            crowded = self._is_over_all()
            if any(plan.crowded != crowded for plan in self.plans.values()):
                self._look_at = min(self._look_at, now)
        self._note_news(now)

    def _note_news(self, now: float) -> None:
        """Decide soon if anything has changed that may matter; what else comes with a burst is waited for."""
        if self._touched:
            self._note_use(now)
            self._look_at = self._due_at(now)
            self._touched, self._noted_at = False, now

    def tick(self, now: float) -> Step:
        """Do what is due, and decide if anything has changed."""
        if self.ceiling is not None:
            crowded = self._is_over_all()
            for plan in self.plans.values():
                if plan.crowded != crowded:
                    self._route(plan.pool, plan.handle(messages.Crowded(crowded), now), now)
        for plan in self.plans.values():
            wake_at = plan.wake_at
            if wake_at is not None and wake_at <= now:
                self._route(plan.pool, plan.tick(now), now)
        if any(timers.heap and (timers.next or inf) <= now for timers in self._lease_timers):
            self._end_leases(now)
        self._note_news(now)
        if now >= self._look_at:
            policy = self.policy_at(now)
            self._note_use(now)  # it is another one where another policy holds
            calm_until = self._calm_until(policy, now)
            if calm_until is None:
                self._decide(now)
            else:
                self._look_at = min(self._policy_until, calm_until)
                self._noted_at = now
            self._touched = False  # what the decision itself changed is looked at with what comes next
        if self.choices.idling.writes_at <= now:
            self._writes += self.idling.writes(now)
        return self._end()

    def _end_leases(self, now: float) -> None:
        """Break work that will not be done in time, and end leases that nobody has come back for in time."""
        left: list[Node] = []
        for pool, instance in self._breaks.due(now):
            node, notice = self.ledger.pools[pool].nodes[instance], self.doomed[pool, instance]
            self._add(self.ledger.break_late(node, notice.deadline, Loss(LossKind.PREEMPTED, notice.why), now))
            left.append(node)
            self._touched = True
        expired = self.ledger.expire(now)
        if expired.actions:
            self._add(expired)
            self._touched = True
        abandoned = [self._give_up_lease(key, now) for key in self.ledger.deadlines.due(now)]
        left += [node for node in abandoned if node.closed in FINAL]
        self._give_up_if_free(left, now)

    def handle(self, pool: str, fact: messages.Fact, now: float) -> Step:
        """Take in what happened to an instance or a group."""
        if self._meter is not None:
            self._meter.answered(self.plans[pool], fact, now)
        step = self.plans[pool].handle(fact, now)
        if any(step) or not isinstance(fact, messages.HeartbeatPassed):  # which, with work, is nearly all there is
            self._route(pool, step, now)
        return self._end()

    def handle_all(self, pool: str, facts: Sequence[messages.Fact], now: float) -> Step:
        """The same of what happened at one moment, each to another instance: together that costs little more."""
        plan = self.plans[pool]
        if self._meter is not None:
            for fact in facts:
                self._meter.answered(plan, fact, now)
        self._route(pool, plan.handle_all(facts, now), now)
        return self._end()

    def journal_failed(self, error: str, now: float) -> Step:
        """Hand out nothing that would not be remembered."""
        self.journal_error = f"the journal cannot be written: {error}"
        self._hold_back(now)
        return self._end()

    def journal_recovered(self, now: float) -> Step:
        """Go on."""
        self._touched = True
        self.journal_error = ""
        self._hold_back(now)
        return self._end()

    # --- between plan and ledger -------------------------------------------------------------------------

    def _route(self, pool: str, step: Step, now: float) -> None:
        """Take over a plan's step, and let the ledger know what changed."""
        self._touched = True
        if self.observing or (step.events and (self.removing_all or self.plans[pool].suspends)):
            self._seen += 1  # decisions read more than counters of such a pool
        if self.choices.staying is not None:
            changed = (event.instance for event in step.events if isinstance(event, messages.Changed))
            self.choices.staying[pool].update(dict.fromkeys(changed))  # new ones are among them
        self._writes += step.writes
        self._actions += step.actions
        if self._meter is not None:
            self._meter.changed(self.plans[pool], step, now)
        if self._watch:  # before what the changes lead to: an instance is ready, then it is given work
            self._actions += self._watch.changes(self.plans[pool], step, now)
        instances, nodes = self.plans[pool].instances, self.ledger.pools[pool].nodes
        for event in step.events:
            if event.__class__ is messages.Changed:  # as most are
                known, node = instances[event.instance], nodes.get(event.instance)
                # most are of no use yet, or no more; what one will be is seen once it is ready
                if node is not None or known.phase.stage not in OF_NO_USE:
                    self._sync(pool, known, node, now)
            else:
                self._take_event(pool, event, now)
        if self._has_noted_time:
            self._note_boots(now)

    def _take_event(self, pool: str, event: messages.Event, now: float) -> None:
        """Take in what a plan says: what an instance has come to be is read where it lives, by `_sync`."""
        match event:
            case messages.Alive(instance):
                node = self.ledger.pools[pool].nodes[instance]
                offers = self.ledger.offers(node)
                self._add(self.ledger.confirm_alive(node) if offers else self.ledger.take_back(node, now))
            case messages.Gone(instance, cause):
                self._lose(self.ledger.pools[pool].nodes[instance], cause, now)
            case messages.Ended(instance):
                self._add(self.ledger.end(pool, instance, now))
            case messages.Refused():
                self.refusal = refusal_of(event)
            case messages.Disowned(error):
                self._add(self.ledger.block(pool, error, now))
                self._hold_back(now)

    def _sync(self, pool: str, known: Instance, node: Node | None, now: float) -> None:
        """Bring the ledger in line with what the plan knows of an instance; does nothing where it is.

        *node*: what the ledger has of it.
        """
        ledger, instance, level = self.ledger, known.id, known.availability
        match level.access:
            case Access.COMING:
                if node is not None and node.closed is Closed.ASLEEP:
                    ledger.wake(node)
            case Access.ASLEEP:
                if node is None or node.closed is not Closed.ASLEEP:
                    ledger.sleep(pool, instance, level.why)
                else:
                    self.choices.sleepers[pool].note_change(node)
            case Access.LEAVING:
                if node is not None:  # never ready again since a restart: what slept there is lost
                    self._add(ledger.lose(node, Loss(LossKind.KILLED, level.why), now))
            case _:
                self._sync_ready(self._take_in(pool, known, node, now), known, level, now)
        node = ledger.node(pool, instance)
        if node is not None and node.retained is not (known.retained is not None):
            ledger.retain(node, retained=known.retained is not None)

    def _take_in(self, pool: str, known: Instance, node: Node | None, now: float) -> Node:
        """The node of an instance that is ready, perhaps once more; *node*: what there is of it."""
        if node is None or node.closed in AWAY:
            self._note_time(pool, known, now)
            self.losses.arrived(pool, known.id, known.offering)
            too_old = self.plans[pool].too_old_at(known) <= now
            self._add(self.ledger.add(pool, known.id, now, draining=TOO_OLD if too_old else ""))
        return self.ledger.pools[pool].nodes[known.id]

    def _sync_ready(self, node: Node, known: Instance, level: Availability, now: float) -> None:
        """The same, of one that is ready, or was until it turned out unhealthy."""
        if level.access is Access.AVAILABLE and node.closed is None:  # as mostly
            return
        place = node.pool, node.instance
        if known.notice is not None:
            self._sync_notice(node, known.notice, now)
        if known.stage is Stage.UNHEALTHY and place not in self._unhealthy:
            self._unhealthy.add(place)
            self._mark_unhealthy(node, level.why, now)
            if self.pools[node.pool].unhealthy_breaks_jobs:
                self._add(self.ledger.break_all(node, Loss(LossKind.UNHEALTHY, level.why), now))
                self._give_up_if_free([node], now)
        elif level.why == TOO_OLD and node.closed not in FINAL:
            self._close_for_good(node, Closed.DRAINING, TOO_OLD, now)
        elif level.access is Access.PAUSED and node.closed not in FINAL:
            closed = Closed.PAUSED if level.briefly else Closed.LEAVING
            if (node.closed, node.why_closed) != (closed, level.why):
                self.ledger.close(node, closed, level.why)
                if self.pools[node.pool].heartbeat_on_acquire:  # a sign of life may not come for long
                    self._add(self.ledger.take_back(node, now))
            self._note_rest(node, now)
        elif level.access is Access.AVAILABLE and node.closed in {Closed.PAUSED, Closed.LEAVING}:
            self._add(self.ledger.reopen(node, now))

    def _sync_notice(self, node: Node, notice: Notice, now: float) -> None:
        """It goes at a deadline."""
        place = node.pool, node.instance
        if self.doomed.get(place) != notice:
            self._close_for_good(node, Closed.DOOMED, notice.why, now)
            self.doomed[place] = notice
            if self._meter is not None:
                self._meter.pools[node.pool].notices[notice.kind.value] += 1
            self._breaks.set(place, notice.deadline - BREAK_AHEAD)
            if notice.kind is NoticeKind.PREEMPTION:
                self.losses.announced(node.pool, node.instance, now)

    def _lose(self, node: Node, cause: Loss | None, now: float) -> None:
        """It is lost to work; without a cause it was given up."""
        place = node.pool, node.instance
        if cause is not None and not self.observing:  # else its manager may have given it up
            self._actions.append(InstanceLost(node.id, cause))
        self._breaks.cancel(place)
        self._unhealthy.discard(place)
        self.losses.gone(node.pool, node.instance, now, taken=cause is not None and cause.kind in TAKEN)
        cause = _as_announced(cause, self.doomed.pop(place, None))
        self._add(self.ledger.lose(node, cause or REMOVED, now))

    def _hold_back(self, now: float) -> None:
        """Hand out nothing new while nothing can be remembered, or no group is known to be ours; else do it again."""
        disowned = [plan.disowned for plan in self.plans.values()]
        before, self._held_back = self._held_back, self.journal_error or (disowned[0] if all(disowned) else "")
        if self._held_back:
            self.ledger.hold_back(self._held_back)
        elif before:
            self._add(self.ledger.hand_out_again(before, now))

    def _note_time(self, pool: str, known: Instance, now: float) -> None:
        """How long the instance took to be ready, if that is known."""
        boot = known.boot
        if boot is not None and boot.since is not None:
            self.choices.payoffs[pool].note(now - boot.since, now, resumed=boot.start is Start.RESUMED)
            self._has_noted_time = True

    def _note_boots(self, now: float) -> None:
        """How long booting takes, now that some have become ready."""
        self._has_noted_time = False
        typical = [payoff.boots(now) for payoff in self.choices.payoffs.values()]
        self._releases.note_boot(min((each for each in typical if each is not None), default=None), now)

    def _note_rest(self, node: Node, now: float) -> None:
        """Where somebody else has suspended an instance on which nothing runs, it is taken for asleep."""
        if node.closed is not Closed.LEAVING or not node.rests:
            return
        known = self.plans[node.pool].instances.get(node.instance)
        if known is not None and known.state in RESTING:
            self._route(node.pool, self.plans[node.pool].suspend({known.id: node.why_closed}, now), now)

    def _mark_unhealthy(self, node: Node, why: str, now: float) -> None:
        """No new work for the node; who has work there and waits for a connection need not wait longer."""
        self._close_for_good(node, Closed.UNHEALTHY, why, now)
        self._actions += [MarkUnhealthy(assignment.id, why) for assignment in node.leases]

    def _close_for_good(self, node: Node, closed: Closed, why: str, now: float) -> None:
        """Give a node no more work, not even what is on its way there; it is replaced once it is free."""
        self.ledger.close(node, closed, why)
        self._add(self.ledger.take_back(node, now))

    # --- deciding ----------------------------------------------------------------------------------------

    def heeds_news_at(self, now: float) -> float:
        """When a decision is due at the soonest, and at the latest if it would do something, for what is news now."""
        if self.observing:
            return now
        soon = now + COALESCE
        return max(self._rests_until, soon)

    def _due_at(self, now: float) -> float:
        """When the next decision is due, that may do something, now that something was taken in."""
        look_at, soonest = self._look_at, self.heeds_news_at(now)
        if not self._touched or look_at <= soonest:
            return look_at
        calm_until = self._calm_until(self._policy, now) if now < self._policy_until else None
        if calm_until is not None:
            return min(look_at, calm_until)
        return soonest if self._is_news(now) else look_at

    def _calm_until(self, policy: Policy, now: float) -> float | None:
        """Until when decisions do nothing, and are spared; None: they may do something, or somebody watches."""
        if self._watch is not None or self.observing or self.ledger.over or self.choices.staying is not None:
            return None
        return self._calm.until(policy, now)

    def _is_news(self, now: float) -> bool:
        """Whether a decision may say something else than the last one, but for what time alone brings.

        What time brings is looked at when the last decision said. Only while one of several pools backs off, or is
        deprioritised, is that not all there is to it: how much others take on changes with their tokens.
        """
        inputs = self._inputs(now)
        return inputs.unsettled or inputs != self._decided_on

    def _inputs(self, now: float) -> "_Inputs":
        """All that decisions read, or versions of it. O(pools)."""
        ledger, pools, unsettled, several = self.ledger, [], False, len(self.pools) > 1
        for pool, plan in self.plans.items():
            blocked = plan.blocked(now)
            unsettled = unsettled or (several and (blocked or self.losses.deprioritises(pool, now)))
            resting = self._resting(pool, now) if plan.suspends else None
            pools.append((ledger.pools[pool].version, plan.standing, blocked, resting))
        counts = (ledger.reserved, ledger.fulfilled, ledger.pending, self._seen)
        bound = tuple(ledger.bound.items()) if ledger.bound else ()
        return _Inputs(unsettled, tuple(pools), counts, ledger.over, bound)

    def _resting(self, pool: str, now: float) -> tuple[bool, ...]:
        """What decisions read of a pool that can suspend, and time changes."""
        plan, choices = self.plans[pool], self.choices
        pays = choices.sleepers[pool].any and choices.payoff(pool, now).pays
        return plan.resuming.active(now), plan.suspending.active(now), pays

    def _decide(self, now: float) -> None:
        """Decide, say when to look again, and carry it out, unless this is only to observe."""
        self._decided_on = self._inputs(now)  # before it is carried out: what is asked for may make other surplus
        self.decided += 1
        _, decision = self.foresee(now)
        self._look_at = min(self._policy_until, decision.look_again_at)
        self._remember(decision)
        if not self.observing:
            self._carry_out(decision, now)
        acts = _acts(decision)
        if acts:
            self._rests_until = now + self._rest
        if acts and self._inputs(now) != self._decided_on:
            self._decided_on = None  # what it asked for may come to nothing: then all is as before, and it is news
        elif any(pool.wanted for pool in decision.pools):
            self._calm.note_stuck(decision.look_again_at)

    @property
    def _rest(self) -> float:
        """Seconds without a decision for news after one that asks something of a cloud.

        Instances that take a minute may be asked for half a second later, in one call instead of five. Resuming takes
        seconds, and does not wait for more.
        """
        boot = self._releases.boot
        if boot is None or any(plan.suspends for plan in self.plans.values()):
            return REST
        return min(max(REST, boot * REST_PER_BOOT), LONGEST_REST)

    def _carry_out(self, decision: Decision, now: float) -> None:
        """Ask the plans for what was decided."""
        if self._meter is not None:
            self._meter.decided(decision)
        if self.choices.staying is not None:
            self._take_everything_back(self.choices.staying)
        elif not self.ledger.over:
            self._grow(decision, now)
        for pool, reasons in _by_pool(decision.wakes).items():
            self._route(pool, self.plans[pool].resume(reasons, now), now)
        for pool, reasons in _by_pool(decision.sleeps).items():
            self.choices.surplus.give_up(sum(self.ledger.pools[pool].nodes[instance].usable for instance in reasons))
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

    def _take_everything_back(self, staying: dict[str, dict[str, None]]) -> None:
        """Withdraw all that may still come, and report when nothing is left but what is retained."""
        for pool, plan in self.plans.items():
            known = [plan.instances[id_] for id_ in staying[pool] if id_ in plan.instances]
            staying[pool] = dict.fromkeys(each.id for each in known if each.deletion is None)
            if plan.outstanding:
                self._add(plan.withdraw(plan.outstanding))
        if all(plan.total == len(plan.retained) for plan in self.plans.values()):
            self._actions.append(AllRemoved())

    def _give_up(self, removals: Iterable[Removal], now: float) -> None:
        """Remove instances that hold no work, all of a pool in one request."""
        for pool, reasons in _by_pool(removals).items():
            nodes = self.ledger.pools[pool].nodes
            for instance in reasons:
                node = nodes.get(instance)
                if node is not None:
                    usable = node.usable
                    if usable:
                        self.choices.surplus.give_up(usable)
                    self.ledger.retire(node)
            self._route(pool, self.plans[pool].remove(reasons, now), now)

    def _give_up_if_free(self, nodes: Iterable[Node], now: float) -> None:
        """Remove nodes whose work was broken in the same turn: after a crash they must not be used again."""
        free = (node for node in nodes if node.counts.to_remove)
        self._give_up([Removal(node.pool, node.instance, node.why_closed) for node in free], now)

    def _give_up_lease(self, key: str, now: float) -> Node:
        """Nobody has reattached it in time; returns its node."""
        self._touched = True
        node = self.ledger.detached[key].node
        self._add(self.ledger.give_up(key, now, used_on=self.keep_used))
        if node.closed in FINAL:
            self._add(self.ledger.take_back(node, now))
        self._note_rest(node, now)
        return node

    def _supply(self, pool: str, now: float) -> Supply:
        """The counters of one pool. O(1), but for what is to be woken."""
        pool_slots, plan = self.ledger.pools[pool], self.plans[pool]
        counts, rare, standing = pool_slots.counts, pool_slots.counts.rare, plan.standing
        returning = -(-rare.paused // pool_slots.per_node)
        woken = [node for node in pool_slots.lists.wake_requested.values() if self.choices.may_wake(node, now)]
        to_come = sum(node.counts.rare.asleep for node in woken)
        leaving = standing.removing + counts.to_remove
        dropped = plan.dropped(now)
        over = 0 if standing.ceiling is None else standing.total - dropped - leaving - standing.ceiling
        return Supply(
            pool=pool,
            slots=pool_slots.fresh,
            kept=counts.kept,
            coming=standing.coming - dropped + returning + len(woken),
            usable=counts.usable,
            in_use=counts.acquired + rare.cleaning + counts.blocked,
            excess=max(0, over),
            limits=plan.limits(now),
            stranded=plan.stranded(now),
            deprioritised=self._why_deprioritised(pool, now),
            short=(rare.returners + len(woken)) * pool_slots.fresh - rare.returning - to_come,
            asleep=self.choices.sleepers[pool].slots(now),
        )

    def _why_deprioritised(self, pool: str, now: float) -> str:
        """Why it is asked later than its place says; empty if it is not, or if there is no other."""
        return self.losses.why(pool, now) if len(self.pools) > 1 else ""

    def _potential(self, now: float, *, heed_throttle: bool) -> int:
        """Slots that are on their way or could be created; none of the latter while growth is throttled, if heeded."""
        slots = 0
        room_over_all = self._room_over_all(self.total)
        over_all = ANY_NUMBER if room_over_all is None else room_over_all
        for pool, plan in self.plans.items():
            limits = plan.limits(now)
            throttled = limits.blocked_until is not None or limits.tokens == 0
            waits = throttled and self.pools[pool].reservation_throttling
            room = 0 if waits and heed_throttle else ANY_NUMBER if limits.room is None else limits.room
            room = min(room, over_all)
            over_all -= room
            slots += room * self.ledger.pools[pool].fresh + self._slots_to_come(pool, now, heed=heed_throttle)
        return slots

    def _slots_to_come(self, pool: str, now: float, *, heed: bool) -> int:
        """Slots of what is on its way, and of what sleeps; none of the latter while nothing is resumed, if heeded."""
        pool_slots, plan = self.ledger.pools[pool], self.plans[pool]
        if pool_slots.why_blocked:
            return 0
        rare = pool_slots.counts.rare
        coming = self._slots_never_ready(pool) + rare.returning
        waits = heed and self.pools[pool].reservation_throttling and plan.resuming.active(now)
        return coming + (0 if waits else rare.asleep)

    def _slots_never_ready(self, pool: str) -> int:
        """Slots of what is on its way for the first time."""
        pool_slots = self.ledger.pools[pool]
        return max(0, self.plans[pool].coming - pool_slots.counts.rare.returners) * pool_slots.fresh

    @property
    def decisions(self) -> Sequence[Decision]:
        """The last decisions, newest last; one that changes nothing replaces its like.

        Of those that were spared, the last is among them if nothing has happened since that calls for another.
        """
        at, self._noted_at = self._noted_at, None
        if at is not None and self._calm_until(self._policy, at) is not None:
            self._remember(self.foresee(at)[1])
        return self._decisions

    def _remember(self, decision: Decision) -> None:
        """Keep the decision; of a run that say the same, the last."""
        self._noted_at = None
        if self._decisions and self._decisions[-1] == decision:
            self._decisions.pop()
        elif self._watch:
            self._actions.append(DecisionEvent(at=decision.at, decision=decision))
        self._decisions.append(decision)

    # --- bookkeeping -------------------------------------------------------------------------------------

    def _add(self, step: Step) -> None:
        """Make a part of what this turn leads to."""
        self._writes += step.writes
        self._actions += step.actions

    def _end(self) -> Step:
        """Hand over what this turn led to."""
        if not (self._writes or self._actions):
            return NOTHING
        step = Step(self._writes, self._actions)
        self._writes, self._actions = [], []
        return step


def _slots_of(pool: PoolSettings) -> PoolSlots:
    return PoolSlots.empty(
        pool.name,
        pool.capacity_per_instance,
        pool.max_use_count,
        cleans=pool.cleans,
        checks=pool.heartbeat_on_acquire,
    )


def _prices(policies: Iterable[Policy]) -> Sequence[float]:
    """The `idle_time` of those that are adaptive, each once."""
    return [*dict.fromkeys(policy.idle_time for policy in policies if policy.adaptive)]


def in_short(capacity: Capacity) -> str:
    """The slots by state, those that there are some of."""
    states = ("idle", "reserved", "acquired", "suspended", "unavailable", "unhealthy", "unready")
    some = [f"{count} {state}" for state in states if (count := getattr(capacity, state))]
    return ", ".join(some) or "there are none"


def _acts(decision: Decision) -> bool:
    """Whether anything is asked of plans."""
    choices = decision.removals or decision.sleeps or decision.wakes
    return bool(choices) or any(pool.increase or pool.withdraw for pool in decision.pools)


def _by_pool(choices: Iterable[Choice]) -> dict[str, dict[str, str]]:
    """Why what is to be done with which instance, by pool."""
    by_pool: dict[str, dict[str, str]] = {}
    for choice in choices:
        by_pool.setdefault(choice.pool, {})[choice.instance] = choice.why
    return by_pool


def _as_announced(loss: Loss | None, notice: Notice | None) -> Loss | None:
    """Why work was lost, if that was announced: for the same reason, however its end was noticed."""
    if loss is None or notice is None or loss.kind not in TAKEN:
        return loss
    return Loss(LossKind.PREEMPTED, f"{notice.why}, and {loss}")
