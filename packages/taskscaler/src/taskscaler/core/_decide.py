"""How many instances there should be, and why. Pure: counters, policy and `now` in, a decision out.

The target of all pools together is what is in use, what is reserved, what waits, and what the policy
wants idle. What is missing is asked of the pools in their order of preference, each as far as its limits
allow, and of each what is suspended there before anything new; what is to spare is given up in the opposite
order, idle instances only, and only once they have been idle for the policy's `idle_time`.

What was asked of a pool that fails to grow is taken back as far as others can take it on. It counts as coming until
that is done, so that nothing is bought twice; where it cannot be taken back, until it expires.

Slots that will be free again before a new instance would be ready count as idle when more are to be asked for, and not
when some are to be given up: what waits is never kept waiting for them.

Instances on their way count when more is to be asked for, and not when some are to be given up: what is
not there yet may never come.

Acquires that are bound to certain pools come first, those with the fewest pools before others: they claim slots that
are there or on their way in their pools, and what is missing is asked of their pools in the order that they prefer.
What nobody claims is for all. Where sets of pools overlap without one being part of the other, the claims may be such
that one instance more is asked for than another choice would have needed; it goes as any that is to spare.

What the policy wants idle yields to them: where only the ceiling over all pools keeps their pools from growing, as many
instances of other pools are to make room at once, as far as these are idle and nothing but the policy wants them. Else
whoever is bound would wait for ever beside idle instances that fill the fleet.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from attrs import define, evolve, field, frozen

from fleeting.core import Limits
from taskscaler._types import Policy
from taskscaler._wording import counted
from taskscaler.core._releases import NOTHING_EXPECTED, Expected

ANY_NUMBER = 1 << 30
"""More instances than there will ever be."""

OVER_ALL = "max_instances over all pools"
"""What limits a pool that could grow if others were smaller."""

MAKES_ROOM = "makes room for work that waits for another pool"
"""Why idle instances are given up though the policy wants them, and others that fill the ceiling over all pools."""

FEW = 5
"""So many instances are named in one sentence."""


class Supply(NamedTuple):
    """What one pool has and may still get; counters only."""

    pool: str
    slots: int
    """That a new instance offers."""

    kept: int
    """Ready instances that count as capacity."""

    coming: int
    """Instances on their way, whether the cloud shows them yet or not."""

    usable: int
    """Slots that can be handed out now, those kept for reservations included."""

    in_use: int
    """Acquired slots, those being cleaned, and free ones of busy instances that may not be handed out."""

    excess: int
    """Instances over the ceiling, which the cloud must have added by itself."""

    limits: Limits

    short: int = 0
    """Slots that those on their way offer less than new ones would: some hold leases that sleep."""

    asleep: int = 0
    """Slots that can be had by resuming suspended instances."""

    stranded: int = 0
    """Unfilled requests of a pool that fails to grow, as far as they can be taken back."""

    deprioritised: str = ""
    """Why it is asked later than its place in the order says; empty: it is not."""

    @property
    def takes(self) -> int:
        """So many more instances may be asked for."""
        return self.limits.allowed(ANY_NUMBER)

    @property
    def arriving(self) -> int:
        """Slots that those on their way offer."""
        return max(0, self.coming * self.slots - self.short)


@frozen
class Demand:
    """What is asked of all pools together, in slots."""

    in_use: int
    reserved: int
    """Reservations that call for slots of their own; with `reservation_throttling` few do."""

    pending: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.in_use + self.reserved + self.pending


@frozen
class PoolDecision:
    """What to do with one pool."""

    pool: str
    have: int
    """Instances that count as capacity, and those on their way."""

    wanted: int
    """How many more the demand calls for, when it is this pool's turn."""

    increase: int
    """How many more to ask for now."""

    limited_by: str
    """What stands between `wanted` and `increase`, by the names that `PoolView.limit` explains; empty: nothing."""

    withdraw: int
    """Instances on their way that nothing calls for any more."""

    excess: int
    """Idle instances to give up whatever the policy says."""

    wake: int = 0
    """Slots to be had by resuming suspended instances, before any more are asked for."""

    moved: int = 0
    """How many of those to withdraw another pool is to have in its place: this one fails to grow."""

    set_back: str = ""
    """Why it is deprioritised, see `Supply`; event logs and explanations have it under this name."""


@frozen
class Choice:
    """An instance with which something is to be done, and why."""

    pool: str
    """Name of the instance's pool."""

    instance: str
    """The instance's id."""

    why: str
    """In a few words."""


class Removal(Choice):
    """An instance to give up."""


class Sleep(Choice):
    """An instance to suspend."""


class Wake(Choice):
    """An instance to resume."""


@frozen
class Decision:
    """One scaling decision, with all that led to it."""

    at: float = field(eq=False)
    """When it was made, in seconds since the epoch."""

    demand: Demand
    """How many slots were in use, wanted and reserved."""

    idle_target: int
    """Slots that the policy wants idle."""

    target: int
    """Slots there should be."""

    target_instances: int
    """The same in instances of the preferred pool, at most its ceiling."""

    spare: int
    """Usable slots that may be given up."""

    pools: tuple[PoolDecision, ...]
    """In the order in which they are asked."""

    look_again_at: float = field(eq=False)
    """When a limit that held something back is lifted, or something idle is due to go; infinite if neither is."""

    excess: int = 0
    """Instances over the ceiling over all pools."""

    displaced: int = 0
    """Instances that are to make room at once, if so many idle: those who wait for other pools need their places."""

    removals: tuple[Removal, ...] = ()
    """Instances to give up now, none of which is in use."""

    sleeps: tuple[Sleep, ...] = ()
    """Instances to suspend now, on which nothing runs."""

    wakes: tuple[Wake, ...] = ()
    """Instances to resume now."""

    observed: bool = False
    """Whether it is there to be looked at only, and nothing of it was carried out."""

    expected: int = 0
    """Idle slots that are missing and not asked for: so many are expected to be released before they would be there."""

    awaited: int = 0
    """Waiting acquires for which nothing is asked for: so many slots are expected to be released soon enough."""

    def of(self, pool: str) -> PoolDecision:
        """What to do with that pool."""
        return next(each for each in self.pools if each.pool == pool)

    def choosing(
        self,
        removals: Iterable[Removal],
        sleeps: Iterable[Sleep],
        wakes: Iterable[Wake],
        *,
        look_again_at: float,
        observed: bool,
    ) -> "Decision":
        """The same, with what is to be done with which instances. `evolve` would take ten times as long."""
        return Decision(
            at=self.at,
            demand=self.demand,
            idle_target=self.idle_target,
            target=self.target,
            target_instances=self.target_instances,
            spare=self.spare,
            pools=self.pools,
            look_again_at=look_again_at,
            excess=self.excess,
            displaced=self.displaced,
            removals=tuple(removals),
            sleeps=tuple(sleeps),
            wakes=tuple(wakes),
            observed=observed,
            expected=self.expected,
            awaited=self.awaited,
        )

    @property
    def increase(self) -> int:
        """Instances to ask for now, over all pools."""
        return sum(pool.increase for pool in self.pools)

    @property
    def in_the_way(self) -> int:
        """Of the instances that are to make room, those that do not yet: they are in use, or kept for reservations."""
        return max(0, self.displaced - sum(each.why == MAKES_ROOM for each in self.removals))

    def __str__(self) -> str:
        """In words."""
        demand = self.demand
        claims = (
            (demand.in_use, "in use"),
            (demand.reserved, "reserved"),
            (demand.pending, "waiting"),
            (self.idle_target, "to keep idle"),
        )
        claimed = ", ".join(f"{count} {claim}" for count, claim in claims if count)
        size = f"{counted(self.target, 'slot')}, {counted(self.target_instances, 'instance')}"
        parts = [f"{size} ({claimed})" if claimed else size]
        for pool in self.pools:
            if pool.wanted:
                parts.append(f"{pool.pool} has {pool.have}, {self._requests(pool)}")
            if pool.moved:
                withdraws = "would withdraw" if self.observed else "withdraws"
                parts.append(f"{pool.pool} {withdraws} {counted(pool.moved, 'request')} that others can fill")
            if pool.set_back:
                parts.append(f"{pool.pool} is deprioritised: {pool.set_back}")
            if pool.excess:
                parts.append(f"{pool.pool} is {pool.excess} over the ceiling")
        if self.excess:
            parts.append(f"{self.excess} over the ceiling of all pools")
        if self.in_the_way:
            makes, is_idle = ("makes", "it is") if self.in_the_way == 1 else ("make", "they are")
            parts.append(
                f"{counted(self.in_the_way, 'instance')} of other pools {makes} room as soon as {is_idle} free"
            )
        parts += self._counts_on()
        if self.spare and not self.increase:
            parts.append(f"{counted(self.spare, 'slot')} to spare")
        for verb, choices in (("resume", self.wakes), ("suspend", self.sleeps), ("remove", self.removals)):
            parts += _words_on(f"would {verb}" if self.observed else f"{verb}s", choices)
        return "; ".join(parts)

    def _counts_on(self) -> Iterator[str]:
        """For what nothing is asked, as releases are expected."""
        if self.expected:
            yield f"{counted(self.expected, 'slot')} to keep idle {released_soon(self.expected)}"
        if self.awaited:
            yield f"{self.awaited} of those that wait {left_to_a_release(self.awaited)}"

    def _requests(self, pool: PoolDecision) -> str:
        requests = "would request" if self.observed else "requests"
        if pool.increase == pool.wanted:
            return f"{requests} {pool.increase} more"
        limit = f": {pool.limited_by}" if pool.limited_by else ""
        return f"needs {pool.wanted} more, {requests} {pool.increase or 'none'}{limit}"


def released_soon(slots: int) -> str:
    """What is said of so many slots that are not asked for."""
    return f"{'is' if slots == 1 else 'are'} expected to be released before a new instance would be ready"


def left_to_a_release(waiters: int) -> str:
    """What is said of so many waiters for whom nothing is asked for."""
    return f"{'is' if waiters == 1 else 'are'} expected to get a released slot sooner than a new instance would pay off"


def _words_on(does: str, choices: Sequence[Choice]) -> Iterator[str]:
    """With which instances what is done, those for the same reason together."""
    by_reason: dict[str, list[str]] = {}
    for choice in choices:
        by_reason.setdefault(choice.why, []).append(choice.instance)
    for why, instances in by_reason.items():
        some, more = ", ".join(instances[:FEW]), len(instances) - FEW
        among = f"{some} and {more} more" if more > 0 else some
        yield f"{does} {among}: {why}"


_NOBODY: Mapping[tuple[str, ...], int] = {}


def decide(
    supplies: Sequence[Supply],
    reserved: int,
    pending: int,
    policy: Policy,
    now: float,
    *,
    room: int | None = None,
    room_to_come: int = 0,
    excess: int = 0,
    releases: Expected = NOTHING_EXPECTED,
    waits: Expected = NOTHING_EXPECTED,
    bound: Mapping[tuple[str, ...], int] = _NOBODY,
) -> Decision:
    """Decide.

    Args:
        supplies: At least one, in order of preference.
        reserved: Reservations that call for slots of their own.
        pending: Acquires that wait.
        policy: The one that holds now.
        now: Seconds since the epoch.
        room: How many more instances there may be over all pools; None: any number.
        room_to_come: How many more than that once those are gone that are on their way out.
        excess: Instances over the ceiling over all pools.
        releases: Slots in use that will be free before a new instance would be ready.
        bound: How many of those acquires wait for a slot of which pools, where not any will do.
        waits: Those that wait and are left to a release, if the policy is adaptive.
    """
    demand = Demand(sum(supply.in_use for supply in supplies), reserved, pending)
    idle_target = idle_slots(policy, demand.in_use)
    shares = _Shares(supplies, ANY_NUMBER if room is None else room)
    for pools_of, waiting in sorted(bound.items(), key=_fewest_first) if bound else ():
        shares.claim(pools_of, waiting)
    for_any = pending - sum(bound.values()) if bound else pending
    for_all = reserved + for_any + idle_target
    usable = sum(each.usable for each in shares.pools)
    missing = for_all - usable - sum(each.arriving for each in shares.pools)
    expected = max(0, min(missing, idle_target - idle_to_ask_for(policy, demand.in_use, releases.slots)))
    awaited = left_waiting(missing, expected, for_any, waits) if waits.slots else 0
    if awaited and any(supply.asleep for supply in supplies):
        awaited = 0  # resuming is faster than what was reckoned with
    pools, look_again_at = shares.decided(missing, expected + awaited)
    if expected:
        look_again_at = min(look_again_at, releases.until)
    if awaited:
        look_again_at = min(look_again_at, waits.until)
    first = supplies[0]
    target = demand.total + idle_target
    ceiling = first.limits.room
    most = math.inf if ceiling is None else ceiling + first.kept + first.coming
    return Decision(
        at=now,
        demand=demand,
        idle_target=idle_target,
        target=target,
        target_instances=int(min(math.ceil(target / first.slots), most)),
        spare=max(0, usable - for_all),
        pools=pools,
        look_again_at=look_again_at,
        excess=excess,
        displaced=max(0, shares.crowded_out - room_to_come),
        expected=expected,
        awaited=awaited,
    )


def _fewest_first(item: tuple[tuple[str, ...], int]) -> tuple[int, tuple[str, ...]]:
    return len(item[0]), item[0]


@define
class _Share:
    """What of one pool nobody has claimed, and what is asked of it."""

    supply: Supply
    usable: int
    """Slots that can be handed out, and that nobody has claimed."""

    arriving: int
    """Slots that are on their way, likewise."""

    stranded: int
    """Unfilled requests, as far as they can be taken back and nobody has claimed their slots."""

    wake: int = 0
    wanted: int = 0
    increase: int = 0
    crowded_out: int = 0
    """Instances that would be asked for besides if there were room for them over all pools."""

    hoped_for: int = 0
    """Slots of these that nobody has claimed."""

    def take(self, slots: int, *, stranded: bool) -> int:
        """Claim as many of its slots, but those of stranded requests only if they are meant; returns how many."""
        kept = 0 if stranded else self.stranded * self.supply.slots
        usable = min(self.usable, slots)
        arriving = max(0, min(self.arriving - kept, slots - usable))
        self.usable -= usable
        self.arriving -= arriving
        self.stranded = min(self.stranded, self.arriving // self.supply.slots)
        hoped_for = min(self.hoped_for, slots - usable - arriving)
        self.hoped_for -= hoped_for
        return usable + arriving + hoped_for

    def ask(self, slots: int, room: int) -> int:
        """Ask for so many more, if limits and *room*, in instances over all pools, allow that.

        Returns:
            How many it will have, in slots; perhaps more than that.
        """
        supply = self.supply
        wake = max(0, min(slots, supply.asleep - self.wake))
        wanted = max(0, math.ceil((slots - wake) / supply.slots))
        allowed = supply.limits.allowed(self.increase + wanted) - self.increase
        increase = max(0, min(allowed, room))
        self.wake += wake
        self.wanted += wanted
        self.increase += increase
        return wake + increase * supply.slots

    def crowd_out(self, slots: int) -> int:
        """Note that so many are missing for want of room over all pools; returns how many it would bring, or more."""
        wanted = max(0, math.ceil(slots / self.supply.slots))
        asked = self.increase + self.crowded_out
        crowded_out = max(0, self.supply.limits.allowed(asked + wanted) - asked)
        self.crowded_out += crowded_out
        return crowded_out * self.supply.slots


class _Shares:
    """What of the missing slots each pool is to bring."""

    def __init__(self, supplies: Sequence[Supply], room: int) -> None:
        """Nothing is claimed or asked for; *room*: how many more instances there may be over all pools."""
        self.pools = [_Share(each, each.usable, each.arriving, each.stranded) for each in supplies]
        self._room = room

    def claim(self, pools: Sequence[str], slots: int) -> None:
        """Have so many slots of these pools, the first ones if possible, for who waits for them and no others.

        What fails to come is claimed last: others of the pools may have it instead.
        """
        own = [each for pool in pools for each in self.pools if each.supply.pool == pool]
        for each in own:
            slots -= each.take(slots, stranded=False)
        for each in own:
            slots -= self._ask(each, slots)
            if slots < 0:  # whoever comes may have the rest of the last instance
                each.arriving -= slots
                slots = 0
        for each in own:
            slots -= each.take(slots, stranded=True)
        for each in own:
            slots -= each.crowd_out(slots)
            if slots < 0:  # likewise
                each.hoped_for -= slots
                slots = 0

    @property
    def crowded_out(self) -> int:
        """Instances that those who claim would have asked for if there were room for them over all pools."""
        return sum(each.crowded_out for each in self.pools)

    def _ask(self, share: _Share, slots: int) -> int:
        if slots <= 0:  # as mostly
            return 0
        before = share.increase
        brings = share.ask(slots, self._room)
        self._room -= share.increase - before
        return brings

    def decided(self, missing: int, expected: int) -> tuple[tuple[PoolDecision, ...], float]:
        """What each pool is to bring of what is missing for all, and when a limit is lifted that held something back.

        Those that are expected to be released are not asked for, nor is anything withdrawn for them.
        """
        withdrawals = _withdrawals(self.pools, surplus=-missing)
        missing -= expected
        for each in self.pools:
            missing -= self._ask(each, missing)
        pools = []
        look_again_at = math.inf
        for share, withdraw in zip(self.pools, withdrawals, strict=True):
            supply = share.supply
            limited_by, lifted_at = _held_back(supply.limits, share.wanted, share.increase)
            look_again_at = min(look_again_at, lifted_at)
            pools.append(
                PoolDecision(
                    pool=supply.pool,
                    have=supply.kept + supply.coming,
                    wanted=share.wanted,
                    increase=share.increase,
                    limited_by=limited_by,
                    withdraw=withdraw,
                    excess=supply.excess,
                    wake=share.wake,
                    set_back=supply.deprioritised,
                )
            )
        if len(pools) > 1 and any(share.stranded for share in self.pools):
            pools = [*_with_moves(pools, self.pools)]
            if any(share.stranded > pool.withdraw for pool, share in zip(pools, self.pools, strict=True)):
                lifted = (limit(share.supply.limits)[1] for share in self.pools)  # others take more then
                look_again_at = min([look_again_at, *lifted])
        return tuple(pools), look_again_at


def _held_back(limits: Limits, wanted: int, increase: int) -> tuple[str, float]:
    """What stands between what is wanted and what is asked for, and when it no longer does."""
    if wanted <= increase:
        return "", math.inf
    if increase < limits.allowed(wanted):
        return OVER_ALL, math.inf
    return limit(limits)


def _with_moves(pools: Sequence[PoolDecision], shares: Sequence[_Share]) -> Iterator[PoolDecision]:
    """Have taken back what is stranded, as far as others can take it on besides what they are asked for already."""
    of_pools = [*zip(pools, shares, strict=True)]
    takes = sum((share.supply.takes - pool.increase) * share.supply.slots for pool, share in of_pools)
    for pool, share in of_pools:
        moved = min(share.stranded - pool.withdraw, takes // share.supply.slots)
        if moved > 0:
            takes -= moved * share.supply.slots
            yield evolve(pool, withdraw=pool.withdraw + moved, moved=moved)
        else:
            yield pool


def idle_slots(policy: Policy, in_use: int) -> int:
    """How many slots the policy wants idle while so many are in use."""
    if not policy.scale_factor:
        return policy.idle_count
    by_factor = math.ceil(in_use * policy.scale_factor - 1e-9)  # 10 * 0.3 is a little more than 3
    if policy.scale_factor_limit:
        by_factor = min(by_factor, policy.scale_factor_limit)
    return max(policy.idle_count, by_factor)


def left_waiting(missing: int, expected: int, pending: int, waits: Expected) -> int:
    """For how many of those that wait nothing is asked for; *expected*: idle slots for which nothing is, either."""
    return max(0, min(missing - expected, pending, waits.slots - expected))


def idle_to_ask_for(policy: Policy, in_use: int, releases: int) -> int:
    """How many idle slots there are to be if so many of those in use are about to be free."""
    return max(0, idle_slots(policy, max(0, in_use - releases)) - releases)


def _withdrawals(shares: Sequence[_Share], surplus: int) -> list[int]:
    """Instances on their way that nothing calls for, pool by pool: those of the least preferred pool first."""
    if surplus <= 0:
        return [0] * len(shares)
    withdrawals = []
    for share in reversed(shares):
        supply = share.supply
        claimed = -(-(supply.arriving - share.arriving) // supply.slots)
        count = max(0, min(supply.coming - max(0, claimed), max(0, surplus) // supply.slots))
        surplus -= count * supply.slots
        withdrawals.append(count)
    return withdrawals[::-1]


def limit(limits: Limits) -> tuple[str, float]:
    """What holds back, and when it no longer does. The ceiling is lifted by nothing that time alone brings."""
    if limits.blocked_until is not None and (limits.room != 0 or limits.blocked_until == math.inf):
        why = limits.blocked_why if limits.blocked_until == math.inf else f"backoff ({limits.blocked_why})"
        return why, limits.blocked_until
    if limits.room is not None and (limits.tokens is None or limits.room <= limits.tokens):
        return limits.room_is, math.inf
    return "scale_throttle", limits.tokens_at if limits.tokens_at is not None else math.inf
