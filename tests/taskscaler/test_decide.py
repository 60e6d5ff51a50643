"""The scaling decision: against the formulas of the semantics, and what holds whatever the numbers."""

import math
from fractions import Fraction

from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from fleeting import Limits
from taskscaler._decide import Supply, decide, idle_slots
from taskscaler._types import Policy
from tests.taskscaler.strategies import policies, supplies

NOW = 100.0
FREE = Limits(room=None, tokens=None, tokens_at=None, blocked_until=None)
WAITING = st.integers(0, 30)


def a_supply(**changes: object) -> Supply:
    """An empty pool of two slots an instance, without limits."""
    supply = Supply(pool="p", slots=2, kept=0, coming=0, usable=0, in_use=0, excess=0, limits=FREE)
    return evolve(supply, **changes)  # type: ignore[arg-type]


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
    supply = evolve(supply, limits=FREE)
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
    if decision.increase:
        assert not decision.spare
        assert not any(pool.withdraw for pool in decision.pools)
    assert usable - decision.spare >= min(usable, reserved + pending + decision.idle_target)
    withdrawn = sum(each.withdraw * supply.slots for each, supply in zip(decision.pools, pools, strict=True))
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
    supply = evolve(supply, limits=FREE)
    first = decide([supply], 0, pending, policy, NOW)
    second = decide([evolve(supply, coming=supply.coming + first.increase)], 0, pending, policy, NOW)
    assert second.increase == 0
    if first.increase:
        assert not any(pool.withdraw for pool in second.pools)


def test_the_second_pool_takes_what_the_first_may_not() -> None:
    """Pools are asked in their order, each as far as its limits allow."""
    full = evolve(FREE, room=1)
    decision = decide([a_supply(limits=full), a_supply(pool="q", slots=4)], 0, 7, Policy(), NOW)
    assert [pool.increase for pool in decision.pools] == [1, 2]
    assert decision.pools[0].limited_by == "max_instances"


def test_the_least_preferred_pool_withdraws_first() -> None:
    """What is given up goes in the opposite order of preference."""
    decision = decide([a_supply(coming=1), a_supply(pool="q", coming=1)], 0, 2, Policy(), NOW)
    assert [pool.withdraw for pool in decision.pools] == [0, 1]


def test_a_decision_in_words() -> None:
    """It names demand, target, what is asked for and what limits it."""
    limits = evolve(FREE, room=1)
    text = str(decide([a_supply(limits=limits)], 1, 4, Policy(idle_count=1), NOW))
    assert text == (
        "0 in use, 1 reserved, 4 waiting, 1 to keep idle: 6 slots, 1 instance; "
        "p: has 0, wants 3 more, asks for 1, limited by max_instances"
    )
