"""Whether a decision could do anything: most that happens to jobs changes nothing that clouds are asked for. Pure.

A decision reads all counters and explains itself. Most are made because a job began or ended, and do nothing: there is
enough, and nothing is due. `Calm` sees that from the few numbers that jobs change, so that no such decision is made. It
says so only where nothing but those numbers matters. Everything else is left to the decision.
"""

from collections.abc import Callable, Mapping
from math import inf
from typing import NamedTuple

from attrs import define

from fleeting.core import Plan
from taskscaler._types import Policy
from taskscaler.core._decide import idle_slots, idle_to_ask_for, left_waiting
from taskscaler.core._idling import Idling
from taskscaler.core._ledger import Ledger
from taskscaler.core._releases import Expected
from taskscaler.core._slots import LISTED, ORDINARY, PoolSlots, Rarities
from taskscaler.core._surplus import Surplus


@define(eq=False)
class _Footing:
    """What decisions read of one pool that jobs do not change: as of when it was last looked at."""

    slots: PoolSlots
    plan: Plan
    alone: bool
    """Whether there is no other pool."""

    handled: int = -1
    """How many messages its plan had taken in by then."""

    rare: Rarities = ORDINARY
    total: int = 0
    plain: bool = False
    """Whether nothing is to be done there but for what jobs call for."""

    arriving: int = 0
    """Slots that instances on their way offer."""

    withdrawable: bool = False
    """Whether anything that is on its way can be taken back."""

    stuck: bool = False
    """Whether a decision since then found slots to be missing, and that no more can be asked for."""

    def look(self, rare: Rarities) -> None:
        """Look again, as something may have changed."""
        standing = self.plan.standing
        self.handled, self.rare, self.total, self.stuck = self.plan.handled, rare, standing.total, False
        over = standing.ceiling is not None and standing.total - standing.removing > standing.ceiling
        self.withdrawable = standing.withdrawable > 0
        can_move = self.withdrawable and not self.alone
        self.plain = not (over or can_move or any(rare[LISTED:]) or self.plan.queued)
        returning = -(-rare.paused // self.slots.per_node)
        short = rare.returners * self.slots.fresh - rare.returning
        self.arriving = max(0, (standing.coming + returning) * self.slots.fresh - short)


class _NotDue(NamedTuple):
    """Before when no idle node is to be given up, while no more are to spare than then.

    What falls idle, or comes to be to spare, after this was seen is not due within `idle_time` of that. So only what
    was there has to be looked at, once: until more are to spare, or nodes come back that were idle before.
    """

    spare: int = 0
    until: float = -inf
    policy: Policy | None = None
    rearranged: int = 0


class Calm:
    """Looks at all pools of a core."""

    def __init__(
        self,
        plans: Mapping[str, Plan],
        ledger: Ledger,
        surplus: Surplus,
        *,
        reserved_demand: Callable[[Policy, int], int],
        releases: Callable[[Policy, float], Expected],
        waits: Callable[[Policy, float], Expected],
        idling: Idling,
        ceiling: int | None,
    ) -> None:
        """Nothing has been looked at yet; *ceiling*: how many instances there may be over all pools."""
        self._ledger = ledger
        self._surplus = surplus
        self._reserved_demand = reserved_demand
        self._releases = releases
        self._waits = waits
        self._idling = idling
        self._ceiling = ceiling
        self._footings = [_Footing(ledger.pools[pool], plan, len(plans) == 1) for pool, plan in plans.items()]
        self._stuck_until = inf
        self._not_due = _NotDue()
        self._fewest = min(pool.fresh for pool in ledger.pools.values())

    def until(self, policy: Policy, now: float) -> float | None:
        """Until when a decision would do nothing if nothing else happens; None: it may do something now.

        O(pools), and for each O(kinds of idle nodes).
        """
        ledger = self._ledger
        usable = in_use = arriving = total = 0
        withdrawable, stuck = False, True
        for footing in self._footings:
            acquired, free, _, blocked, to_remove, rare = footing.slots.counts
            if footing.plan.handled != footing.handled or rare is not footing.rare:
                footing.look(rare)
            if to_remove or ledger.bound or not footing.plain:
                return None
            usable += free
            in_use += acquired + blocked + rare.cleaning
            arriving += footing.arriving
            total += footing.total
            withdrawable = withdrawable or footing.withdrawable
            stuck = stuck and footing.stuck
        if self._ceiling is not None and total > self._ceiling:
            return None
        idle_target = idle_slots(policy, in_use) if policy.scale_factor else policy.idle_count
        called_for = ledger.pending + idle_target
        if ledger.reserved:
            called_for += self._reserved_demand(policy, in_use)
        spare = usable - called_for
        surplus = spare + arriving
        if surplus < 0:
            expected, expected_until = self._counted_on(-surplus, idle_target, in_use, policy, now)
            if stuck and now < self._stuck_until:
                return min(self._stuck_until, expected_until)
            return expected_until if -surplus <= expected else None
        if withdrawable and surplus >= self._fewest:
            return None
        due = self._not_due_before(spare, usable + in_use, policy, now) if spare > 0 else inf
        return due if due > now else None

    @property
    def stuck(self) -> bool:
        """Whether `until` relies on a decision that found no way to ask for more: a view may call for another."""
        return any(footing.stuck for footing in self._footings)

    def _counted_on(self, missing: int, idle_target: int, in_use: int, policy: Policy, now: float) -> tuple[int, float]:
        """For how many of the missing slots nothing is asked, as releases are expected, and until when."""
        releases = self._releases(policy, now)
        expected = max(0, idle_target - idle_to_ask_for(policy, in_use, releases.slots))
        until = releases.until if expected else inf
        if policy.adaptive:
            waits = self._waits(policy, now)
            awaited = left_waiting(missing, expected, self._ledger.pending, waits)
            return expected + awaited, min(until, waits.until) if awaited else until
        return expected, until

    def _pays_until(self, spare: int, slots: int, policy: Policy, now: float) -> float:
        """The same under an adaptive policy."""
        firsts = [first for footing in self._footings for first in footing.slots.longest_idle(spare)]
        if not firsts:
            return inf
        idling, idle_time = self._idling, policy.idle_time
        idle_until = min(node.idle_since for node in firsts) + idling.least(idle_time)
        return max(idle_until, min(idling.due(slots - node.usable + 1, idle_time, now) for node in firsts))

    def _not_due_before(self, spare: int, slots: int, policy: Policy, now: float) -> float:
        """Before when no idle node is to be given up of those that are to spare; infinite: there is none.

        Args:
            spare: Slots.
            slots: That there are.
            policy: The one that holds.
            now: Seconds since the epoch.
        """
        if policy.adaptive:
            return self._pays_until(spare, slots, policy, now)
        known, rearranged = self._not_due, 0
        for footing in self._footings:
            rearranged += footing.slots.rearranged
        if spare <= known.spare and now < known.until and (policy, rearranged) == (known.policy, known.rearranged):
            return known.until
        due, idle_since = self._first_due(spare, policy, now)
        until = min(now, max(idle_since, self._surplus.since(1, now))) + policy.idle_time
        self._not_due = _NotDue(spare, until, policy, rearranged)
        return due

    def _first_due(self, spare: int, policy: Policy, now: float) -> tuple[float, float]:
        """The same as of now, and since when the one of them is idle that has been so for longest."""
        firsts = [first for footing in self._footings for first in footing.slots.longest_idle(spare)]
        if not firsts:
            return inf, inf
        idle_since = min(node.idle_since for node in firsts)
        spare_since = self._surplus.since(min(node.usable for node in firsts), now)
        return max(idle_since, spare_since) + policy.idle_time, idle_since

    def note_stuck(self, until: float) -> None:
        """A decision found slots to be missing, and that no more can be asked for before it is made again, then."""
        self._stuck_until = until
        for footing in self._footings:
            footing.stuck = True
