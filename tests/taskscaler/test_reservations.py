"""Reservations of runners that mostly find no job: neither do they keep a fleet, nor buy one, nor starve.

The core over simulated clouds, as in `test_core_machine`, with runners that reserve, ask for a job, and give
up or go on.
"""

from collections.abc import Sequence

import pytest
from attrs import define, evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from fleeting.core import messages
from taskscaler._errors import NoCapacity
from taskscaler._types import Policy, PoolSettings
from taskscaler.core._decide import idle_slots
from taskscaler.core._slots import Deliver
from tests.strategies import of_type, seeds
from tests.taskscaler.strategies import policies, pool_settings
from tests.taskscaler.test_core_machine import World, a_world


@define
class Runners:
    """Some that ask, all the time, whether there is a job."""

    world: World
    asks_for: float
    """Seconds between a reservation and the coordinator's answer."""

    pause: float
    """Seconds after that."""

    jobs: int = 0
    """At the coordinator."""

    refused: int = 0

    def begin(self, number: int) -> None:
        """From now on so many of them do."""
        for each in range(number):
            self.world.after(each * 0.1, self.reserve)

    def reserve(self) -> None:
        """Begin another round."""
        world, key = self.world, f"runner-{next(self.world.numbers)}"
        try:
            world.take(world.core.reserve(key, world.now))
        except NoCapacity:
            self.refused += 1
            world.after(self.pause, self.reserve)
        else:
            world.after(self.asks_for, lambda: self.hear(key))

    def hear(self, key: str) -> None:
        """There is a job, which runs in the slot that was reserved, or none."""
        world = self.world
        if self.jobs:
            self.jobs -= 1
            world.durations[key] = 5.0
            world.take(world.core.acquire(key, world.now))
        else:
            world.take(world.core.unreserve(key, world.now))
        world.after(self.pause, self.reserve)


def lasting(pools: Sequence[PoolSettings]) -> list[PoolSettings]:
    """The same, of instances that wear out for no other reason."""
    return [evolve(pool, max_use_count=0, max_instance_age=0.0) for pool in pools]


@settings(max_examples=12, derandomize=True)
@given(pool_settings(), policies, st.integers(1, 6), st.sampled_from([(2.0, 5.0), (30.0, 1.0)]), seeds)
def test_a_fleet_that_was_too_large_shrinks_to_what_is_kept_idle_and_stays_so(
    pools: list[PoolSettings], policy: Policy, runners: int, pace: tuple[float, float], seed: int
) -> None:
    """However many runners ask, and however seldom nobody does: no job comes, and nothing is bought for them."""
    world = World(lasting(pools), policy, seed)
    for _ in range(8):
        world.submit(5.0)
    world.pass_time(1.0)
    Runners(world, *pace).begin(runners)
    world.pass_time(400)
    before = len(world.changes)
    world.pass_time(60)
    assert world.changes[before:] == [], "it churns"
    ledger, kept_idle = world.core.ledger, idle_slots(policy, 0)
    for node in ledger.nodes.values():
        if node.usable:
            assert ledger.usable - node.usable < kept_idle, f"{node.id} is not needed, and stays"


@settings(max_examples=12, derandomize=True)
@given(pool_settings(), policies.filter(lambda policy: policy.idle_count or not policy.preemptive), seeds)
def test_every_job_finds_a_runner(pools: list[PoolSettings], policy: Policy, seed: int) -> None:
    """Refusing some reservations starves nobody, whatever is on its way out at the moment."""
    world = World(lasting(pools), policy, seed)
    runners = Runners(world, asks_for=3.0, pause=3.0)
    runners.begin(3)
    for _ in range(2):
        world.pass_time(50)
        runners.jobs += 5
    world.pass_time(300)
    assert runners.jobs == 0
    assert not world.durations


@pytest.mark.parametrize("preemptive", [True, False])
def test_what_is_reserved_stays_for_as_long_as_it_is_in_preemptive_mode(*, preemptive: bool) -> None:
    """The promise is a slot that is ready. Else it is one that can be created, and the acquire brings it."""
    world = a_world(Policy(idle_time=30.0, preemptive_mode=preemptive))
    world.submit(5.0)
    world.pass_time(20)
    world.take(world.core.reserve("runner", world.now))
    world.pass_time(500)
    assert len(world.clouds["a"].machines) == int(preemptive)
    world.durations["runner"] = 5.0
    step = world.core.acquire("runner", world.now)
    assert bool(of_type(Deliver, step.actions)) is preemptive
    world.take(step)
    world.pass_time(60)
    assert not world.durations


def test_what_is_due_to_go_is_not_reserved_any_more_but_all_else_is() -> None:
    """One instance at a time: the others serve whoever asks until it is their turn."""
    world = a_world(Policy(idle_count=1, idle_time=30.0, preemptive_mode=True), capacity_per_instance=2)
    for _ in range(6):
        world.submit(5.0)
    world.pass_time(15)
    usable = world.core.capacity().idle
    assert usable >= 6
    reserved = [f"runner-{number}" for number in range(usable)]
    for key in reserved:
        world.take(world.core.reserve(key, world.now))
    world.pass_time(200)
    assert world.core.capacity().reserved == usable, "what was promised is kept"
    for key in reserved[:2]:
        world.take(world.core.unreserve(key, world.now))
    with pytest.raises(
        NoCapacity, match=r"^what is idle is about to be removed \(2 idle, \d+ reserved\); ask"
    ) as refused:
        world.core.reserve("late", world.now)
    assert refused.value.possible
    world.pass_time(1)
    assert world.core.capacity().idle == 0
    assert world.core.capacity().reserved == usable - 2


def test_a_reservation_that_holds_a_slot_makes_nobody_else_wait_for_ever() -> None:
    """Whoever waits behind it gets another instance, though reservations buy none."""
    world = a_world(max_instances=3)
    world.pass_time(1)
    world.take(world.core.reserve("runner", world.now))
    world.submit(5.0)
    world.pass_time(60)
    assert not world.durations
    assert len(of_type(messages.Increase, world.changes)) == 2


def test_where_it_is_not_throttled_a_reservation_is_demand() -> None:
    """It buys its instance, and keeps it: a job is certain to follow."""
    world = a_world(reservation_throttling=False)
    world.pass_time(1)
    world.take(world.core.reserve("runner", world.now))
    world.pass_time(300)
    (_,) = world.clouds["a"].machines
    assert world.core.decisions[-1].demand.reserved == 1


def test_a_refusal_says_what_there_is() -> None:
    """Slots by state, also those that are not ready yet; all of them together are what may exist."""
    world = a_world(max_instances=3)
    for _ in range(2):
        world.submit(1000.0)
    world.pass_time(20)
    lease = next(iter(world.running.values()))
    world.take(world.core.mark_suspect(lease.pool, lease.instance, "it is slow", world.now))
    world.submit(1000.0)
    world.pass_time(1)
    world.submit(1000.0)
    with pytest.raises(
        NoCapacity, match=r"^every possible slot is taken or reserved \(2 acquired, 1 unready\); rel"
    ) as no:
        world.core.reserve("runner", world.now)
    assert not no.value.possible
    assert no.value.capacity is not None
    assert (no.value.capacity.acquired, no.value.capacity.unready, no.value.capacity.pending) == (2, 1, 2)
    world.take(world.core.stop_handing_out("the scaler is draining"))
    with pytest.raises(NoCapacity, match=r"^the scaler is draining$") as no:
        world.core.reserve("runner", world.now)
    assert no.value.capacity == world.core.capacity()


def test_all_of_a_burst_of_reservations_costs_no_more_than_the_ceiling() -> None:
    """Fifty runners before a fleet of five: five are let in, and none of it is bought before a job comes."""
    world = a_world(max_instances=5)
    runners = Runners(world, asks_for=10.0, pause=5.0)
    runners.begin(50)
    world.pass_time(8)
    assert world.core.ledger.reserved == 5
    assert runners.refused >= 45
    world.pass_time(100)
    assert not world.clouds["a"].machines
    runners.jobs = 40
    world.pass_time(12)
    assert 1 <= sum(world.clouds["a"].asked.values()) <= 5
