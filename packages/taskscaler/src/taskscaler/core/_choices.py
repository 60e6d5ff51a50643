"""Which instances go, which sleep and which wake, beside how many there should be. Pure; O(1) but for what is due.

What goes is what is of no use any more, what is over the ceiling, what makes room under that for those who wait for
other pools, and what has been idle for long enough and is to spare. What is to spare sleeps instead, where the group
can suspend, that pays, and there is a place for it; so does what is kept only for leases that sleep. What sleeps wakes
if somebody waits for a lease there, and for what is missing.
"""

import heapq
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from operator import itemgetter

from attrs import define, field

from fleeting import State
from fleeting.core import Plan, Stage
from taskscaler._types import Policy, PoolSettings
from taskscaler._wording import enumerated
from taskscaler.core._decide import MAKES_ROOM, Decision, PoolDecision, Removal, Sleep, Wake
from taskscaler.core._idling import Idling
from taskscaler.core._ledger import Ledger
from taskscaler.core._payoff import Payoff, Verdict
from taskscaler.core._sleepers import CORDONED, OVER, OVER_ALL_CEILINGS, Sleepers
from taskscaler.core._slots import LISTED, Closed, Node
from taskscaler.core._surplus import Surplus

NOT_NEEDED = "not needed"
"""Why idle instances are given up that are to spare."""

ONLY_SLEEPERS = "all leases on it are suspended"
"""Why an instance is suspended that is kept for them."""

SPARED = "not needed for now"
"""Why one is suspended that would be given up otherwise."""

TOO_MANY = "more than suspended_count"
"""Why suspended instances are given up that hold no leases, though resuming pays."""


@define
class Choices:
    """Says which, from what plans and ledger know; changes nothing."""

    pools: Mapping[str, PoolSettings]
    plans: Mapping[str, Plan]
    ledger: Ledger
    payoffs: Mapping[str, Payoff]
    observing: bool
    """Whether nothing of it is carried out."""

    staying: dict[str, dict[str, None]] | None = None
    """Where everything is to go: by pool, instances that are not known to be asked to go. No others are looked at."""

    surplus: Surplus = field(factory=Surplus)
    """Since when how much has been to spare, over all pools."""

    idling: Idling = field(factory=lambda: Idling({}))
    """How long idling pays, for policies that are adaptive."""

    sleepers: Mapping[str, Sleepers] = field(init=False)
    """By pool: its suspended nodes that are of use."""

    def __attrs_post_init__(self) -> None:
        """Nothing has been looked through yet."""
        pools = self.ledger.pools
        self.sleepers = {name: Sleepers(pool, self.plans[name], pools[name]) for name, pool in self.pools.items()}

    def to_give_up(self, decision: Decision, policy: Policy, at: float) -> Iterator[tuple[float, Removal | Sleep]]:
        """What is given up or suspended then, and what later if nothing else happens; soonest first."""
        if self.staying is not None:
            yield from ((at, removal) for removal in self._everything_free(self.staying))
            return
        yield from ((at, removal) for removal in self._unfit())
        if self.observing or not self.ledger.over:
            yield from self._to_spare(decision, policy, at)

    def payoff(self, pool: str, now: float) -> Verdict:
        """Whether it pays to suspend idle instances of the pool."""
        return self.payoffs[pool].verdict(now)

    def _unfit(self) -> Iterator[Removal]:
        """What is given up whatever the demand."""
        for node in self.ledger.to_remove:
            yield Removal(node.pool, node.instance, node.why_closed or "used up")
        if self.observing:
            yield from self._plans_removals()

    def _to_spare(self, decision: Decision, policy: Policy, at: float) -> Iterator[tuple[float, Removal | Sleep]]:
        """What is over a ceiling or makes room, at once; what is cordoned or to spare, once it is idle for long enough.

        Of what falls due together, the least preferred pool's goes first.
        """
        idle_time = self.idling.least(policy.idle_time) if policy.adaptive else policy.idle_time
        if self._is_plain(decision):
            nodes = [nodes for pool in reversed(decision.pools) for nodes in self.ledger.idle_by_usable(pool.pool)]
            plain = [_dues(each, (), idle_time, at) for each in nodes]
            yield from self._not_needed(plain, decision.spare, decision, policy, at)
            return
        spare = decision.spare
        others: list[Iterator[tuple[float, Removal | Sleep]]] = []
        idle: list[Iterator[tuple[float, Node]]] = []
        own = {pool.pool: self._can_go(pool) if pool.excess else 0 for pool in decision.pools}
        over_all = max(0, decision.excess - sum(own.values()))  # what goes for its own pool's sake goes for all
        displaced = max(0, decision.displaced - max(0, sum(own.values()) - decision.excess))
        yielding, free = self._yielding(decision) if displaced else (set(), 0)
        for pool in reversed(decision.pools):
            yields = displaced if pool.pool in yielding else 0
            over = _Over([*[OVER] * pool.excess, *[OVER_ALL_CEILINGS] * over_all, *[MAKES_ROOM] * yields])
            others += [self._stopped(pool.pool, over, policy, at), self._cordoned(pool.pool, over, policy, at)]
            gone = self._idle_over(pool.pool, over, free)
            for node, why in gone:
                spare -= node.usable
                free -= node.usable
                yield at, Removal(node.pool, node.instance, why)
            beyond = max(0, over.found - own[pool.pool])
            displaced -= max(0, beyond - over_all)
            over_all = max(0, over_all - beyond)
            if decision.spare:
                ids = {node.instance for node, _ in gone}
                idle += [_dues(nodes, ids, idle_time, at) for nodes in self.ledger.idle_by_usable(pool.pool)]
        suspendable = sorted(self._suspendable(policy, at), key=itemgetter(0))
        others.append((due, _with_its_leases(node)) for due, node in suspendable if not node.usable)
        idle += [iter([(due, node)]) for due, node in suspendable if node.usable]
        not_needed = self._not_needed(idle, spare, decision, policy, at)
        yield from heapq.merge(*others, not_needed, key=itemgetter(0))

    def _is_plain(self, decision: Decision) -> bool:
        """Whether nothing is over a ceiling or makes room, nor cordoned, asleep or kept for sleepers, as mostly."""
        if decision.excess or decision.displaced:
            return False
        pools = self.ledger.pools
        return not any(pool.excess or any(pools[pool.pool].counts.rare[LISTED:]) for pool in decision.pools)

    def _not_needed(
        self, idle: Iterable[Iterator[tuple[float, Node]]], spare: int, decision: Decision, policy: Policy, at: float
    ) -> Iterator[tuple[float, Removal | Sleep]]:
        """What of idle nodes that nothing calls for goes or sleeps, and when; see `_going`.

        None of them before as many slots have been to spare for `idle_time`, besides the others that go at once; under
        an adaptive policy not before the lowest of these levels has idled for as long as pays.
        """
        others = decision.spare - spare
        top = decision.target - (self.ledger.pending - self.ledger.pending_for_any) + spare

        def may_go(slots: int) -> float:
            if policy.adaptive:
                return self.idling.due(top - slots + 1, policy.idle_time, at)
            return self.surplus.since(others + slots, at) + policy.idle_time

        places: dict[str, int] = {}
        return ((due, self._spared(node, places, at)) for due, node in _going(idle, spare, may_go, at))

    def _suspendable(self, policy: Policy, at: float) -> Iterator[tuple[float, Node]]:
        """Nodes that are kept only for leases that sleep, and when their instances are to be suspended. O(such nodes).

        Those that nobody else can use sleep at once, the others as late as idle ones would go.
        """
        for node in self.ledger.suspendable:
            plan = self.plans[node.pool]
            if plan.may_suspend(node.instance):
                due = _due(node, policy.idle_time, at) if node.usable else at
                yield max(due, plan.suspending.until), node

    def _spared(self, node: Node, places: dict[str, int], at: float) -> Removal | Sleep:
        """What becomes of a node that is not needed: it sleeps, if leases do or there is a place for it, or goes."""
        if node.busy:
            return _with_its_leases(node)
        if node.pool not in places:
            places[node.pool] = self._places(node.pool, at)
        if places[node.pool] > 0 and self.plans[node.pool].may_suspend(node.instance):
            places[node.pool] -= 1
            return Sleep(node.pool, node.instance, SPARED)
        return Removal(node.pool, node.instance, NOT_NEEDED)

    def _places(self, pool: str, at: float) -> int:
        """How many more idle instances of the pool may be suspended, rather than given up."""
        plan = self.plans[pool]
        if not plan.suspends or plan.suspending.active(at):
            return 0
        return self._places_in_all(pool, self.payoff(pool, at)) - self.sleepers[pool].free

    def _places_in_all(self, pool: str, verdict: Verdict) -> int:
        """How many idle instances of the pool may be suspended; none where resuming them does not pay."""
        return self.pools[pool].suspended_count if verdict.pays else 0

    def _can_go(self, pool: PoolDecision) -> int:
        """How many of those over a pool's own ceiling may go at once. O(so many)."""
        idle = (node for node in self.ledger.longest_idle(pool.pool) if not node.retained)
        cordoned = self.ledger.idle_cordoned(pool.pool)
        some = sum(1 for _ in islice(chain(cordoned, idle), pool.excess))
        return min(pool.excess, some + self.sleepers[pool.pool].stopped)

    def _stopped(self, pool: str, over: "_Over", policy: Policy, at: float) -> Iterator[tuple[float, Removal]]:
        """Suspended instances that hold no leases, and when they are given up; see `Sleepers.endings`."""
        if not self.sleepers[pool].any:
            return iter(())
        verdict = self.payoff(pool, at)
        too_many = TOO_MANY if verdict.pays else f"suspending does not pay off: {verdict}"
        places = self._places_in_all(pool, verdict)
        endings = self.sleepers[pool].endings(policy, at, over=over.reasons, places=places, too_many=too_many)
        if not over.missing:
            return endings
        some = list(endings)
        over.note(sum(due <= at for due, _ in some))
        return iter(some)

    def _cordoned(self, pool: str, over: "_Over", policy: Policy, at: float) -> Iterator[tuple[float, Removal]]:
        """Cordoned instances that are idle, and when they are given up: at once while some are over a ceiling."""
        cordoned = []
        for node in self.ledger.idle_cordoned(pool):
            due = at if over.missing else _due(node, policy.idle_time, at)
            over.note(due <= at)
            cordoned.append((due, Removal(node.pool, node.instance, CORDONED)))
        return iter(sorted(cordoned, key=itemgetter(0)))

    def _yielding(self, decision: Decision) -> tuple[set[str], int]:
        """Pools whose instances may make room, and how many usable slots may go with them.

        Not those that somebody waits for, nor those of which something is to wake. What is kept for reservations stays.
        """
        ledger = self.ledger
        bound_to = {pool for pools in ledger.bound for pool in pools}
        others = {pool.pool for pool in decision.pools} - bound_to
        usable = sum(ledger.pools[pool].counts.usable for pool in others)
        claimed = max(ledger.fulfilled, decision.demand.reserved) + ledger.pending_for_any
        return others - {pool.pool for pool in decision.pools if pool.wake}, usable - claimed

    def to_make_room(self, decision: Decision) -> int:
        """Slots of idle instances that are to make room, as decided, and have not as something there is reserved.

        If these are not reserved again, reservations that come and go do not keep them for ever. O(so many instances).
        """
        most = decision.in_the_way
        pools, _ = self._yielding(decision) if most else ((), 0)
        by_usable = (nodes for pool in pools for nodes in self.ledger.idle_by_usable(pool))
        return sum(sorted(node.usable for nodes in by_usable for node in islice(nodes, most))[:most])

    def _idle_over(self, pool: str, over: "_Over", free: int) -> Sequence[tuple[Node, str]]:
        """Idle nodes that go at once, and why. O(those).

        For a ceiling the longest idle go first. To make room those with the fewest usable slots do, no more than *free*
        over all.
        """
        nodes = (node for node in self.ledger.longest_idle(pool) if not node.retained)
        for_ceilings = [why for why in over.missing if why != MAKES_ROOM]
        gone = [(node, why) for why, node in zip(for_ceilings, nodes, strict=False)]
        over.note(len(gone))
        if MAKES_ROOM in over.missing:
            free -= sum(node.usable for node, _ in gone)
            ids = {node.instance for node, _ in gone}
            idle = chain.from_iterable(self.ledger.idle_by_usable(pool))
            staying = (node for node in idle if node.instance not in ids)
            makes_room = [*_fitting(staying, free, len(over.missing))]
            over.note(len(makes_room))
            gone += [(node, MAKES_ROOM) for node in makes_room]
        return gone

    def to_wake(self, decision: Decision, at: float) -> Iterator[Wake]:
        """Suspended instances to resume: for those who wait for a lease there, and for what is missing."""
        if self.staying is not None:
            return
        woken = [node for node in self.ledger.wake_requested if self.may_wake(node, at)]
        yield from (Wake(node.pool, node.instance, _why_woken(node)) for node in woken)
        for pool in decision.pools:
            missing = 0 if self.ledger.over else pool.wake
            for node in self.sleepers[pool.pool].to_resume(missing, at):
                yield Wake(node.pool, node.instance, "more slots are needed")

    def to_wake_later(self, at: float) -> Iterator[tuple[float, Wake]]:
        """Suspended instances whose leases wait for the end of a backoff, and when that is."""
        for node in self.ledger.wake_requested if self.staying is None else ():
            until = self.plans[node.pool].resuming.until
            if until > at and self.may_wake(node, until):
                yield until, Wake(node.pool, node.instance, _why_woken(node))

    def may_wake(self, node: Node, at: float) -> bool:
        """Whether its instance can be resumed then, as far as is known."""
        return node.closed is Closed.ASLEEP and self.sleepers[node.pool].may_wake(node, at)

    def _everything_free(self, staying: Mapping[str, Iterable[str]]) -> Iterator[Removal]:
        """All instances that hold no work, whatever they are for, but not those that are retained."""
        for pool, plan in self.plans.items():
            for each in (plan.instances[id_] for id_ in staying[pool] if id_ in plan.instances):
                node = self.ledger.node(pool, each.id)
                if each.deletion is None and each.retained is None and not (node and node.busy):
                    yield Removal(pool, each.id, "shutdown")

    def _plans_removals(self) -> Iterator[Removal]:
        """What the plans would have asked for by themselves, did they not observe."""
        for pool, plan in self.plans.items():
            for each in plan.instances.values():
                if each.stage is Stage.HELD and each.state is not State.DELETING:
                    yield Removal(pool, each.id, each.removing)


@define
class _Over:
    """How many instances of a pool are over ceilings, and how many of these have been found so far."""

    reasons: Sequence[str]
    """Why each of them is to go."""

    found: int = 0

    @property
    def missing(self) -> Sequence[str]:
        """Why those are to go that have not been found yet."""
        return self.reasons[self.found :]

    def note(self, found: int) -> None:
        """So many more that go at once were found, perhaps more than are over."""
        self.found = min(len(self.reasons), self.found + found)


def _with_its_leases(node: Node) -> Sleep:
    return Sleep(node.pool, node.instance, ONLY_SLEEPERS)


def _why_woken(node: Node) -> str:
    """Why it is waited for."""
    keys = [assignment.key for assignment in node.leases if assignment.resuming]
    return f"{enumerated(keys)} {'is' if len(keys) == 1 else 'are'} resuming" if keys else "to be cleaned"


def _fitting(nodes: Iterable[Node], slots: int, most: int) -> Iterator[Node]:
    """The first of these, at most so many, which have no more than so many usable slots; the fewest come first."""
    for node in islice(nodes, most):
        slots -= node.usable
        if slots < 0:
            return
        yield node


def _due(node: Node, idle_time: float, at: float) -> float:
    """When an idle node that nothing calls for is to be given up, *at* being now."""
    return max(at, node.idle_since + idle_time)


def _dues(nodes: Iterable[Node], gone: Container[str], idle_time: float, at: float) -> Iterator[tuple[float, Node]]:
    """When which of these idle nodes are to be given up, but for those that go anyhow."""
    return ((_due(node, idle_time, at), node) for node in nodes if node.instance not in gone)


def _going(
    streams: Iterable[Iterator[tuple[float, Node]]], spare: int, may_go: Callable[[int], float], at: float
) -> Iterator[tuple[float, Node]]:
    """Those that leave enough, and when each goes, soonest first. O(those that it gives), but for the streams.

    It is what decisions at these moments come to: of all that have been idle for long enough by then, those of the
    first stream go first.

    Args:
        streams: Nodes in the order in which they have been idle for long enough. All of a stream have as many usable
            slots, so that where one is not to be spared, none behind it is; one of another may have fewer, and fit.
        spare: Usable slots that may be given up.
        may_go: Before when so many of them may not go; never earlier for more.
        at: When the question is asked.
    """
    heads = [(*head, number, stream) for number, stream in enumerate(streams) for head in islice(stream, 1)]
    coming = [(due, number, node, stream) for due, node, number, stream in heads]
    heapq.heapify(coming)
    waiting: list[tuple[int, Node, Iterator[tuple[float, Node]]]] = []
    slots, now = 0, at
    while spare > 0 and (waiting or coming):
        if not waiting:
            now = max(now, coming[0][0])
        elif waiting[0][1].usable > spare:
            heapq.heappop(waiting)
            continue
        goes_at = max(now, may_go(slots + waiting[0][1].usable)) if waiting else now
        while coming and coming[0][0] <= goes_at:
            due, number, node, stream = heapq.heappop(coming)
            if node.usable > spare:
                continue
            heapq.heappush(waiting, (number, node, stream))
            if waiting[0][0] == number:  # it goes first of those that are due by now
                now = max(now, due)
                goes_at = max(now, may_go(slots + node.usable))
        if waiting:
            number, node, stream = heapq.heappop(waiting)
            now, spare, slots = goes_at, spare - node.usable, slots + node.usable
            yield now, node
            for due, following in islice(stream, 1):
                heapq.heappush(coming, (due, number, following, stream))
