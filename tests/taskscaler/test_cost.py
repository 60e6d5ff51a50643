"""What instances have cost: as a function of what became of them, and in words."""

from collections.abc import Sequence
from math import ceil

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleeting import MemoryJournal
from fleeting.testing import FakeCloud, virtual_time
from taskscaler import InstanceEvent, Policy
from taskscaler._cost import HOUR, PoolCost, Spending, Tariff, cost_as_data, in_all
from taskscaler.cli._operate import cost_rows
from tests.taskscaler.scaling import scaling, virtual_clock

anyio_backend = virtual_time

STATES = ["creating", "pending", "running", "deleting", "unusable", "suspended", "resuming", "gone"]
POOLS = {
    "cheap": Tariff(price_per_hour=0.5, currency="EUR", minimum_billing=60.0, billing_increment=1.0),
    "dear": Tariff(price_per_hour=3.0, currency="EUR", billing_increment=HOUR),
    "unknown": Tariff(),
}

events = st.lists(
    st.builds(
        InstanceEvent,
        at=st.integers(0, 20_000).map(float),
        pool=st.sampled_from(sorted(POOLS)),
        instance=st.sampled_from(["i-1", "i-2"]),
        state=st.sampled_from(STATES),
    ),
    max_size=30,
).map(lambda found: sorted(found, key=lambda event: event.at))


def runs_of(pool: str, happened: Sequence[InstanceEvent], now: float) -> list[float]:
    """How long the instances of a pool ran each time: looked at one by one, second by second in effect."""
    runs = []
    for instance in ("i-1", "i-2"):
        began = None
        for event in happened:
            if (event.pool, event.instance) != (pool, instance):
                continue
            runs_now = event.state not in ("gone", "suspended", "resuming")
            if runs_now and began is None:
                began = event.at
            elif not runs_now and began is not None:
                runs.append(event.at - began)
                began = None
        runs += [] if began is None else [now - began]
    return runs


@given(events, st.integers(20_000, 40_000).map(float))
def test_costs_are_those_of_all_runs(happened: list[InstanceEvent], now: float) -> None:
    """Each run is billed by itself, with its minimum and in whole increments; what runs still costs what it has."""
    spending = Spending.at(POOLS)
    for event in happened:
        spending.take(event)
    costs = spending.so_far(now)
    assert [*costs] == [*POOLS]
    for pool, tariff in POOLS.items():
        runs = runs_of(pool, happened, now)
        billed = [ceil(max(each, tariff.minimum_billing) / tariff.billing_increment) for each in runs]
        assert costs[pool].instance_time == pytest.approx(sum(runs))
        assert costs[pool].billed_time == pytest.approx(sum(billed) * tariff.billing_increment)
        price = tariff.price_per_hour
        assert costs[pool].cost == (None if price is None else pytest.approx(costs[pool].billed_time / HOUR * price))
    assert spending.so_far(now) == costs  # looking changes nothing
    assert (in_all(costs.values()) is None) == bool(costs["unknown"].instance_time)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.floats(0, 10_000))),
    st.sampled_from([0.1, 0.3, 1.0, 60.0]),
    st.sampled_from([0.0, 0.7, 90.0]),
)
def test_costs_never_shrink(steps: list[tuple[int, float]], increment: float, minimum: float) -> None:
    """Whoever looks between two events never sees less than before, not by a rounding either."""
    tariff = Tariff(price_per_hour=0.7, billing_increment=increment, minimum_billing=minimum)
    spending, now, runs, shown = Spending.at({"p": tariff}), 1.8e9, set[int](), PoolCost(tariff=tariff)
    for number, passes in steps:
        now += passes
        runs ^= {number}
        before = spending.so_far(now)["p"]
        state = "running" if number in runs else "gone"
        spending.take(InstanceEvent(at=now, pool="p", instance=f"i-{number}", state=state))
        after = spending.so_far(now)["p"]
        for seen, then in ((shown, before), (before, after)):
            assert seen.instance_time <= then.instance_time
            assert seen.billed_time <= then.billed_time
        shown = after


@given(
    st.lists(st.floats(1, 20_000), max_size=6),
    st.floats(1, 20_000),
    st.sampled_from([1.0, 60.0, HOUR]),
    st.sampled_from([0.0, 60.0, HOUR, 5000.0]),
)
def test_restarts_cost_nothing(ran: list[float], last: float, increment: float, minimum: float) -> None:
    """However often a manager starts anew, all of them together come to what one of them would have."""
    tariff = Tariff(price_per_hour=1.0, minimum_billing=minimum, billing_increment=increment)
    first_seen = now = 1.8e9
    billed, kept = 0.0, None
    for seconds in [*ran, last]:
        spending = Spending.at({"p": tariff})
        spending.take(InstanceEvent(at=now, pool="p", instance="i", state="creating", kept_since=kept))
        spending.take(InstanceEvent(at=now + min(seconds, 1.0), pool="p", instance="i", state="running"))
        now, kept = now + seconds, first_seen
        billed += spending.so_far(now)["p"].billed_time
    assert billed == pytest.approx(tariff.billed(now - first_seen), abs=1e-3)


@pytest.mark.parametrize("state", ["gone", "suspended"])
def test_what_was_left_and_is_not_there_costs_nothing(state: str) -> None:
    """A new manager knows of an instance from its journal; it may have ended, or may sleep."""
    spending = Spending.at({"dear": POOLS["dear"]})
    spending.take(InstanceEvent(at=1e6, pool="dear", instance="i", state="creating", kept_since=1.0))
    assert spending.so_far(1e6 + 50)["dear"].cost == 0
    spending.take(InstanceEvent(at=1e6 + 60, pool="dear", instance="i", state=state))
    assert spending.so_far(2e6)["dear"].cost == 0
    spending.take(InstanceEvent(at=2e6, pool="dear", instance="i", state="running"))
    assert spending.so_far(2e6 + 1)["dear"].cost == 3.0  # a run of its own


def test_what_was_being_deleted_is_paid_for_until_it_is_gone() -> None:
    """No further event says that it is still there."""
    spending = Spending.at({"dear": POOLS["dear"]})
    spending.take(InstanceEvent(at=7000.0, pool="dear", instance="i", state="deleting", kept_since=0.0))
    assert spending.so_far(7100)["dear"].cost == 0.0
    assert spending.so_far(7300)["dear"].cost == 3.0


@pytest.mark.anyio
async def test_a_manager_charges_only_what_its_predecessor_did_not() -> None:
    """With a minimum of an hour, an instance of three managers in 50 minutes comes to one hour."""
    journal, cloud, costs = MemoryJournal(), FakeCloud(), list[float]()
    for _ in range(3):
        spending, clock = Spending.at({"default": POOLS["dear"]}), virtual_clock()
        policies = [Policy(idle_count=1, idle_time=60)]
        async with scaling(cloud, policies=policies, journal=journal, observers=[spending.hear]):
            await anyio.sleep(1000)
            costs.append(spending.so_far(clock.now())["default"].cost or 0.0)
    assert costs == [3.0, 0.0, 0.0]


@given(st.floats(0, 1e7), st.floats(0, 1e5), st.sampled_from([1.0, 60.0, 3600.0]))
def test_what_is_billed_is_enough_and_not_too_much(seconds: float, minimum: float, increment: float) -> None:
    """Less than an increment more than the instance ran, or than the minimum."""
    billed = Tariff(minimum_billing=minimum, billing_increment=increment).billed(seconds)
    assert -1e-3 <= billed - max(seconds, minimum) < increment + 1e-3


def test_without_a_price_nobody_says_that_it_cost_nothing() -> None:
    """Neither of the pool nor of all; instance-hours are known all the same."""
    known = PoolCost(tariff=POOLS["cheap"]).with_run(7200.0)
    unknown = PoolCost(tariff=Tariff()).with_run(1800.0)
    assert [*cost_rows(cost_as_data({"a": known, "b": unknown}))] == [
        ("cost", "a: 2.00 instance-hours, 1.00 EUR at 0.5 an hour"),
        ("cost", "b: 0.5 instance-hours, price unknown"),
        ("cost", "in all: 2.50 instance-hours, price unknown, at least in part"),
    ]
    assert [*cost_rows(cost_as_data({"a": known, "b": known}))][-1] == (
        "cost",
        "in all: 4.00 instance-hours, 2.00 EUR",
    )
    assert [*cost_rows(cost_as_data({"b": PoolCost(tariff=Tariff())}))] == [
        ("cost", "b: 0 instance-hours, price unknown")
    ]


def test_currencies_are_not_added_up() -> None:
    """Each has its own sum."""
    other = PoolCost(tariff=Tariff(price_per_hour=1.0, currency="USD")).with_run(3600.0)
    euros = PoolCost(tariff=POOLS["cheap"]).with_run(3600.0)
    assert in_all([other, euros, euros]) == {"USD": 1.0, "EUR": 1.0}
