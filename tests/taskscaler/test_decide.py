"""The scaling decision: against the formulas of the semantics, and what holds whatever the numbers."""

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleeting import GroupInfo, PlanConfig
from fleeting.core import Limits, build_plan
from fleeting.journal import Recovered
from taskscaler._types import Policy
from taskscaler.core._decide import OVER_ALL, Supply, decide, idle_slots
from tests.taskscaler.strategies import limits, policies, supplies

NOW = 100.0
FREE = Limits(room=None, tokens=None, tokens_at=None, blocked_until=None)
WAITING = st.integers(0, 30)


def a_supply(**changes: object) -> Supply:
    """An empty pool of two slots an instance, without limits."""
    supply = Supply(pool="p", slots=2, kept=0, coming=0, usable=0, in_use=0, excess=0, limits=FREE)
    return supply._replace(**changes)  # type: ignore[arg-type]


@given(policies, st.integers(0, 200))
def test_idle_slots_follow_the_formula(policy: Policy, in_use: int) -> None:
    """`idle_count`, or in use times the factor: at most the limit, if there is one, and at least `idle_count`."""
    factor = Fraction(str(policy.scale_factor))
    wanted = math.ceil(in_use * factor)
    if policy.scale_factor_limit:
        wanted = min(wanted, policy.scale_factor_limit)
    assert idle_slots(policy, in_use) == max(policy.idle_count, wanted)


@given(supplies(), policies, WAITING, WAITING)
def test_one_pool_grows_to_the_target(supply: Supply, policy: Policy, reserved: int, pending: int) -> None:
    """What is there, coming and asked for makes ceil((demand + idle target) / capacity), if nothing limits it."""
    supply = supply._replace(limits=FREE, stranded=0)
    decision = decide([supply], reserved, pending, policy, NOW)
    demand = supply.in_use + reserved + pending
    target = math.ceil((demand + idle_slots(policy, supply.in_use)) / supply.slots)
    assert decision.increase == max(0, target - supply.kept - supply.coming)
    assert decision.target_instances == target


@given(st.lists(supplies(), min_size=1, max_size=3), policies, WAITING, WAITING)
def test_the_decision_explains_itself(pools: list[Supply], policy: Policy, reserved: int, pending: int) -> None:
    """A pool asks for less than is wanted exactly if it names what limits it; and limits are kept."""
    decision = decide(pools, reserved, pending, policy, NOW)
    for pool, supply in zip(decision.pools, pools, strict=True):
        assert bool(pool.limited_by) == (pool.increase < pool.wanted)
        assert pool.increase == supply.limits.allowed(pool.wanted)
        if supply.limits.room is not None:
            assert pool.increase <= supply.limits.room
        if supply.limits.tokens is not None:
            assert pool.increase <= supply.limits.tokens
        if supply.limits.blocked_until is not None:
            assert pool.increase == 0
    assert decision.look_again_at > NOW


@given(st.lists(supplies(), min_size=1, max_size=3), policies, WAITING, WAITING)
def test_it_never_grows_and_shrinks_at_once(pools: list[Supply], policy: Policy, reserved: int, pending: int) -> None:
    """Whoever asks for more has nothing to spare and nothing to withdraw; who spares can do without."""
    decision = decide(pools, reserved, pending, policy, NOW)
    usable = sum(pool.usable for pool in pools)
    unwanted = [(each.withdraw - each.moved, supply.slots) for each, supply in zip(decision.pools, pools, strict=True)]
    if decision.increase:
        assert not decision.spare
        assert not any(count for count, _ in unwanted)
    assert usable - decision.spare >= min(usable, reserved + pending + decision.idle_target)
    withdrawn = sum(count * slots for count, slots in unwanted)
    coming = sum(pool.coming * pool.slots for pool in pools)
    if withdrawn:
        assert usable + coming - withdrawn >= reserved + pending + decision.idle_target


@given(st.lists(supplies(), min_size=1, max_size=3), policies, WAITING, WAITING)
def test_more_waiting_never_asks_for_less(pools: list[Supply], policy: Policy, reserved: int, pending: int) -> None:
    """Monotone in what waits: in each pool no smaller increase, nothing more to spare."""
    less, more = (decide(pools, reserved, waiting, policy, NOW) for waiting in (pending, pending + 1))
    for few, many in zip(less.pools, more.pools, strict=True):
        assert many.increase >= few.increase
    assert more.spare <= less.spare
    assert more.target >= less.target


@given(supplies(), policies, WAITING)
def test_one_decision_is_enough(supply: Supply, policy: Policy, pending: int) -> None:
    """Once what was asked for is counted as coming, the same numbers ask for nothing more."""
    supply = supply._replace(limits=FREE, stranded=0)
    first = decide([supply], 0, pending, policy, NOW)
    second = decide([supply._replace(coming=supply.coming + first.increase)], 0, pending, policy, NOW)
    assert second.increase == 0
    if first.increase:
        assert not any(pool.withdraw for pool in second.pools)


def test_the_second_pool_takes_what_the_first_may_not() -> None:
    """Pools are asked in their order, each as far as its limits allow."""
    full = FREE._replace(room=1)
    decision = decide([a_supply(limits=full), a_supply(pool="q", slots=4)], 0, 7, Policy(), NOW)
    assert [pool.increase for pool in decision.pools] == [1, 2]
    assert decision.pools[0].limited_by == "max_instances"


@pytest.mark.parametrize(
    ("ours", "theirs", "words"),
    [
        (2, 3, "max_instances"),
        (3, 3, "max_instances"),
        (4, 3, "the number of hosts"),
        (0, 3, "the number of hosts"),
        (3, None, "max_instances"),
    ],
)
def test_the_limit_that_holds_is_named(ours: int, theirs: int | None, words: str) -> None:
    """That a group has three hosts is no setting of ours, and no cloud's."""
    info = GroupInfo(identity="x", max_size=theirs, max_size_is="the number of hosts")
    plan = build_plan(PlanConfig(max_instances=ours), info, Recovered(epoch=1), 0.0, random=lambda: 0.5)
    limits = FREE._replace(room=0, room_is=plan.ceiling_is)
    assert plan.ceiling_is == words
    assert decide([a_supply(limits=limits)], 0, 2, Policy(), NOW).pools[0].limited_by == words


def test_the_least_preferred_pool_withdraws_first() -> None:
    """What is given up goes in the opposite order of preference."""
    decision = decide([a_supply(coming=1), a_supply(pool="q", coming=1)], 0, 2, Policy(), NOW)
    assert [pool.withdraw for pool in decision.pools] == [0, 1]


@given(st.lists(supplies(), min_size=1, max_size=3), policies, WAITING, WAITING, st.none() | st.integers(0, 10))
def test_the_ceiling_over_all_pools_is_kept(
    pools: list[Supply], policy: Policy, reserved: int, pending: int, room: int | None
) -> None:
    """No more than that is asked for; what there is room for goes to those who come first."""
    free, decision = (decide(pools, reserved, pending, policy, NOW, room=most) for most in (None, room))
    assert decision.increase <= (free.increase if room is None else room)
    for limited, unlimited in zip(decision.pools, free.pools, strict=True):
        if limited.limited_by == OVER_ALL:
            assert decision.increase == room
            break
        assert limited.increase == unlimited.increase


@given(st.lists(supplies(), min_size=1, max_size=3), policies, WAITING)
def test_nothing_is_bought_twice(pools: list[Supply], policy: Policy, pending: int) -> None:
    """What is asked for and what may still come of earlier requests are less than one instance more than is wanted."""
    decision = decide(pools, 0, pending, policy, NOW)
    coming = sum(pool.usable + pool.arriving for pool in pools)
    asked = [(each.increase, supply.slots) for each, supply in zip(decision.pools, pools, strict=True) if each.increase]
    if asked:
        needed = pending + decision.idle_target
        assert coming + sum(count * slots for count, slots in asked) < needed + max(slots for _, slots in asked)


@given(st.lists(supplies(), min_size=1, max_size=3), policies, WAITING)
def test_what_is_stranded_moves_as_far_as_others_can_take_it(pools: list[Supply], policy: Policy, pending: int) -> None:
    """Only unfilled requests of pools that fail are taken back for others, and never more than these have room for."""
    decision = decide(pools, 0, pending, policy, NOW)
    room = moved = 0
    for each, supply in zip(decision.pools, pools, strict=True):
        assert 0 <= each.moved <= each.withdraw <= max(supply.coming, supply.stranded)
        moved += each.moved * supply.slots
        room += (supply.takes - each.increase) * supply.slots
        assert not each.moved or supply.limits.blocked_until is not None
    assert moved <= room


def test_what_the_first_pool_does_not_deliver_is_taken_back_before_the_second_is_asked() -> None:
    """One decision withdraws; when that is answered, the next asks the other."""
    fails = a_supply(coming=3, stranded=3, limits=FREE._replace(blocked_until=500.0, blocked_why="no capacity"))
    first = decide([fails, a_supply(pool="q")], 0, 6, Policy(), NOW)
    assert [(pool.withdraw, pool.increase) for pool in first.pools] == [(3, 0), (0, 0)]
    second = decide([fails._replace(coming=0, stranded=0), a_supply(pool="q")], 0, 6, Policy(), NOW)
    assert [(pool.withdraw, pool.increase) for pool in second.pools] == [(0, 0), (0, 3)]


def test_what_nobody_else_can_serve_stays_where_it_was_asked_for() -> None:
    """A pool that fails may still be the first to deliver."""
    fails = a_supply(coming=3, stranded=3, limits=FREE._replace(blocked_until=500.0))
    full = a_supply(pool="q", limits=FREE._replace(room=1))
    assert [pool.withdraw for pool in decide([fails], 0, 6, Policy(), NOW).pools] == [0]
    assert [pool.withdraw for pool in decide([fails, full], 0, 6, Policy(), NOW).pools] == [1, 0]


def test_what_is_stranded_moves_once_others_can_take_it() -> None:
    """Nothing else may happen by then: the decision says when the other pool may be asked."""
    fails = a_supply(coming=3, stranded=3, limits=FREE._replace(blocked_until=NOW + 500))
    throttled = a_supply(pool="q", limits=FREE._replace(tokens=1, tokens_at=NOW + 20))
    failing = a_supply(pool="q", limits=FREE._replace(blocked_until=NOW + 60))
    for other, withdrawn, again in ((throttled, 1, 20), (failing, 0, 60), (a_supply(pool="q"), 3, math.inf)):
        decision = decide([fails, other], 0, 6, Policy(), NOW)
        assert (decision.pools[0].withdraw, decision.look_again_at - NOW) == (withdrawn, again)


def test_a_decision_in_words() -> None:
    """It names demand, target, what is asked for and what limits it."""
    limits = FREE._replace(room=1)
    text = str(decide([a_supply(limits=limits)], 1, 4, Policy(idle_count=1), NOW))
    assert text == (
        "6 slots, 1 instance (1 reserved, 4 waiting, 1 to keep idle); p has 0, needs 3 more, requests 1: max_instances"
    )


POOLS = ("p", "q", "r")


@st.composite
def bound_demands(draw: st.DrawFn) -> tuple[list[Supply], dict[tuple[str, ...], int]]:
    """Pools of different names, and how many wait for a slot of which of them."""
    pools = [draw(supplies())._replace(pool=name) for name in POOLS[: draw(st.integers(2, 3))]]
    names = st.lists(st.sampled_from([each.pool for each in pools]), min_size=1, max_size=3, unique=True).map(tuple)
    return pools, draw(st.dictionaries(names, st.integers(1, 8), max_size=3))


@given(bound_demands(), policies, WAITING, WAITING)
def test_who_is_bound_gets_what_the_pools_allow(
    demand: tuple[list[Supply], dict[tuple[str, ...], int]], policy: Policy, reserved: int, others: int
) -> None:
    """Each set of pools has, or asks for, a slot for each who is bound within it to some pool without a limit.

    Who is bound to pools that each name a limit has to wait, although others of the set may be without one.
    """
    pools, bound = demand
    decision = decide(pools, reserved, others + sum(bound.values()), policy, NOW, bound=bound)
    free = {each.pool for each in decision.pools if not (each.limited_by or each.moved)}
    for names in bound:
        served = sum(count for other, count in bound.items() if set(other) <= set(names) and free & set(other))
        own = [(each, supply) for each, supply in zip(decision.pools, pools, strict=True) if each.pool in names]
        has = sum(
            supply.usable + supply.arriving - each.withdraw * supply.slots + each.wake + each.increase * supply.slots
            for each, supply in own
        )
        assert has >= served


@given(bound_demands(), policies, WAITING, WAITING)
def test_limits_are_kept_and_named_whoever_is_bound(
    demand: tuple[list[Supply], dict[tuple[str, ...], int]], policy: Policy, reserved: int, others: int
) -> None:
    """A pool is asked for no more than it allows, and names what limits it exactly if it is asked for less."""
    pools, bound = demand
    decision = decide(pools, reserved, others + sum(bound.values()), policy, NOW, bound=bound, room=4)
    assert decision.increase <= 4
    for each, supply in zip(decision.pools, pools, strict=True):
        assert each.increase <= supply.limits.allowed(each.wanted)
        assert bool(each.limited_by) == (each.increase < each.wanted)
        assert each.withdraw <= supply.coming


@st.composite
def crowded(draw: st.DrawFn) -> tuple[list[Supply], dict[tuple[str, ...], int]]:
    """The same, where there is little, and nothing stranded."""
    pools, bound = draw(bound_demands())
    few, held_back = st.integers(0, 2), st.just(FREE) | limits()
    scarce = [each._replace(usable=draw(few), coming=draw(few), stranded=0, limits=draw(held_back)) for each in pools]
    return scarce, bound


@given(crowded(), policies, WAITING, WAITING, st.integers(0, 6))
def test_as_much_room_is_made_as_those_who_are_bound_use(
    demand: tuple[list[Supply], dict[tuple[str, ...], int]], policy: Policy, reserved: int, others: int, room: int
) -> None:
    """With so much more, they get what they would without a ceiling over all pools; whatever else is called for."""
    pools, bound = demand
    waiting = sum(bound.values())
    free = decide(pools, 0, waiting, Policy(), NOW, bound=bound)
    alone = decide(pools, 0, waiting, Policy(), NOW, bound=bound, room=room)
    assert alone.displaced == max(0, free.increase - room)
    enough = decide(pools, 0, waiting, Policy(), NOW, bound=bound, room=room + alone.displaced)
    assert [pool.increase for pool in enough.pools] == [pool.increase for pool in free.pools]
    among = decide(pools, reserved, waiting + others, policy, NOW, bound=bound, room=room)
    assert among.displaced == alone.displaced
    soon = decide(pools, reserved, waiting + others, policy, NOW, bound=bound, room=room, room_to_come=among.displaced)
    assert not soon.displaced


def test_idle_slots_make_room_for_who_is_bound_to_another_pool() -> None:
    """Else they would keep the place for ever; but not where that pool's own limit lets it have no more."""
    idle, other = a_supply(kept=2, usable=4), a_supply(pool="q")
    decision = decide([idle, other], 0, 3, Policy(idle_count=4), NOW, bound={("q",): 3}, room=0)
    assert (decision.displaced, decision.pools[1].limited_by, decision.spare) == (2, OVER_ALL, 0)
    assert not decide([idle, other], 0, 3, Policy(idle_count=9), NOW, room=0).displaced
    full = other._replace(limits=FREE._replace(room=0))
    assert not decide([idle, full], 0, 3, Policy(idle_count=4), NOW, bound={("q",): 3}, room=0).displaced


def test_who_is_bound_to_one_pool_does_not_buy_in_another() -> None:
    """Idle slots of the preferred pool are no use to them, and stay to spare."""
    idle = a_supply(kept=3, usable=6)
    decision = decide([idle, a_supply(pool="q")], 0, 3, Policy(), NOW, bound={("q",): 3})
    assert [pool.increase for pool in decision.pools] == [0, 2]
    assert decision.spare == 6


def test_what_is_on_its_way_for_those_who_are_bound_is_not_taken_back() -> None:
    """Elsewhere it is."""
    pools = [a_supply(coming=2), a_supply(pool="q", coming=1)]
    decision = decide(pools, 0, 2, Policy(), NOW, bound={("q",): 2})
    assert [pool.withdraw for pool in decision.pools] == [2, 0]


def test_stranded_requests_of_those_who_are_bound_move_within_their_pools() -> None:
    """To the next that they name, and nowhere else."""
    stuck = a_supply(pool="q", coming=1, stranded=1, limits=FREE._replace(blocked_until=NOW + 9, blocked_why="none"))
    pools = [a_supply(), stuck, a_supply(pool="r")]
    either = decide(pools, 0, 2, Policy(), NOW, bound={("q", "r"): 2})
    assert [(pool.increase, pool.withdraw) for pool in either.pools] == [(0, 0), (0, 1), (1, 0)]
    alone = decide(pools, 0, 2, Policy(), NOW, bound={("q",): 2})
    assert [(pool.increase, pool.withdraw) for pool in alone.pools] == [(0, 0), (0, 0), (0, 0)]
