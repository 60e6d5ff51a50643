"""What is foreseen, against what a core does when it is left alone; the state machine of the core compares more."""

from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from math import inf

import pytest
from attrs import evolve

from fleeting import NoticeKind, Preexisting, ScaleThrottle
from fleeting.core import messages
from taskscaler._types import Policy, PoolSettings
from taskscaler.core._mediator import Core
from taskscaler.diagnose._forecast import Next, Upcoming, forecast, in_short
from tests.strategies import EPOCH, NO_THROTTLE, a_plan, of_type, seen
from tests.taskscaler.test_core_machine import Thing, World, next_actions, things

ROUTINE = {Next.LOOK, Next.CHECK, Next.POLICY, Next.TAKEN}


def a_world(policy: Policy | None = None, **changes: object) -> World:
    """One pool without throttle, after its first view."""
    pool = PoolSettings(name="a", scale_throttle=NO_THROTTLE, preexisting=Preexisting.REMOVE)
    world = World([evolve(pool, **changes)], policy or Policy(), 0)  # type: ignore[arg-type]
    world.pass_time(1)
    return world


def after_a_refusal() -> World:
    """The cloud has refused, and is asked again once the backoff is over."""
    world = a_world()
    world.clouds["a"].trouble.append("refused")
    world.submit(inf)
    world.pass_time(1)
    return world


def while_throttled() -> World:
    """Of three that are wanted one was asked for."""
    world = a_world(scale_throttle=ScaleThrottle(limit=0.1, burst=1))
    for _ in range(3):
        world.submit(inf)
    world.pass_time(1)
    return world


def after_an_unanswered_request() -> World:
    """Whether the cloud has heard the request is not known; it is repeated."""
    world = a_world()
    world.clouds["a"].trouble.append("not heard")
    world.submit(inf)
    world.pass_time(1)
    return world


def while_idle() -> World:
    """Two instances have fallen idle, one after the other."""
    world = a_world(Policy(idle_time=50.0))
    world.submit(5.0)
    world.submit(7.0)
    world.pass_time(30)
    return world


def while_a_deletion_goes_unnoticed() -> World:
    """The instance was to be deleted, and no view shows yet that it is."""
    world = a_world()
    world.submit(1.0)
    world.pass_time(10)
    return world


def before_a_preemption() -> World:
    """The instance will go, and one of its two jobs will not be done by then."""
    world = a_world(capacity_per_instance=2, max_instances=1)
    world.submit(inf)
    world.take(world.core.acquire("short", world.now, 50.0))
    world.durations["short"] = inf
    world.pass_time(20)
    (instance,) = world.core.plans["a"].instances
    world.feed("a", messages.Noticed(instance, world.now + 100, NoticeKind.PREEMPTION))
    world.settle()
    return world


def before_a_preemption_of_all() -> World:
    """The instance will go, and its job with it."""
    world = a_world()
    world.submit(inf)
    world.pass_time(20)
    (instance,) = world.core.plans["a"].instances
    world.feed("a", messages.Noticed(instance, world.now + 100, NoticeKind.PREEMPTION))
    world.settle()
    return world


def before_it_is_too_old() -> World:
    """The instance is needed, but it will be too old for more work."""
    world = a_world(Policy(idle_count=1), max_instance_age=100.0)
    world.pass_time(20)
    return world


def while_it_boots() -> World:
    """It will be too late."""
    world = a_world(instance_ready_timeout=5.0)
    world.submit(inf)
    world.pass_time(4)
    return world


def in_the_end() -> World:
    """All that is free is to be removed."""
    world = a_world(Policy(idle_count=3))
    world.submit(inf)
    world.pass_time(30)
    world.take(world.core.stop_handing_out("the end"))
    world.take(world.core.remove_all(world.now))
    return world


Situation = Callable[[], World]

SITUATIONS: Mapping[Situation, set[str]] = {
    after_a_refusal: {"ask"},
    while_throttled: {"ask"},
    after_an_unanswered_request: {"ask"},
    while_idle: {"delete"},
    while_a_deletion_goes_unnoticed: {"delete"},
    before_a_preemption: {"break"},
    before_a_preemption_of_all: {"break", "delete"},
    before_it_is_too_old: {"age"},
    while_it_boots: {"delete"},
    in_the_end: {"delete"},
}


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda situation: str(situation.__name__))
def test_the_next_thing_foreseen_is_what_happens(situation: Situation) -> None:
    """If nothing else happens, that and no more happens then, and nothing but routine before."""
    world = situation()
    foreseen = [item for item in forecast(world.core, world.now) if item.what not in ROUTINE]
    at, happened = next_actions(deepcopy(world.core), world.now, routine=False)
    assert {what for what, _, _ in happened} == SITUATIONS[situation]
    assert foreseen[0].at == at
    assert sorted(all_things(item for item in foreseen if item.at <= at)) == sorted(happened)


def all_things(items: Iterable[Upcoming]) -> list[Thing]:
    """What is done by any of them."""
    return [thing for item in items for thing in things(item)]


def test_a_policy_to_come_and_what_it_leads_to() -> None:
    """An hour before it begins it is told, with the instances that will be asked for at that moment."""
    eight = EPOCH - EPOCH % 86400 + 86400 + 8 * 3600
    now = eight - 5 * 3600
    pool = PoolSettings(name="a", scale_throttle=NO_THROTTLE)
    busy = Policy(periods=("* 8-15 * * *",), idle_count=3, idle_time=600.0)
    core = Core([pool], {"a": a_plan(pool, now=now)}, [Policy(), busy], {}, now)
    core.tick(now)
    core.handle("a", seen(), now)
    core.tick(now + 1)
    told = [item for item in forecast(core, now + 1) if item.what in {Next.POLICY, Next.ASK}]
    assert [(item.what, item.at, item.count) for item in told] == [(Next.POLICY, eight, 0), (Next.ASK, eight, 3)]
    assert "idle_count 3, idle_time 10m from 08:00 (UTC)" in str(told[0])
    asked = [each for at in (eight - 1, eight) for each in of_type(messages.Increase, core.tick(at).actions)]
    assert [each.count for each in asked] == [3]


@pytest.mark.parametrize("idle_count", [0, 1])
def test_what_idles_goes_when_the_policy_that_keeps_it_ends(idle_count: int) -> None:
    """Not by the idle time of a policy that will no longer hold; what that wants is to spare only once it is over."""
    nine = EPOCH - EPOCH % 3600 + 3600
    minute = int(nine % 86400 // 3600)
    busy = Policy(periods=(f"* {minute - 1} * * *",), idle_count=idle_count, idle_time=7200.0)
    world = a_world()
    world.take(world.core.configure([Policy(idle_time=60.0), busy]))
    world.submit(1.0)
    world.pass_time(60)
    idle = world.core.capacity().idle
    going = [item for item in forecast(world.core, world.now) if item.what is Next.GIVE_UP]
    assert [item.at for item in going] == [nine] * (idle - idle_count) + [nine + 60] * idle_count
    world.pass_time(nine - world.now - 0.1)
    assert world.core.capacity().idle == idle > 0
    world.pass_time(0.2)
    assert world.core.capacity().idle == idle_count
    world.pass_time(60)
    assert world.core.capacity().idle == 0


def test_what_happens_together_is_told_together() -> None:
    """The next of each kind, with all that it befalls; the many health checks are left out."""
    world = a_world(Policy(idle_time=50.0), max_use_count=5)
    for _ in range(5):
        world.submit(5.0)
    world.submit(20.0)
    world.pass_time(40)
    told = in_short(forecast(world.core, world.now))
    assert [item.what for item in told] == [Next.GIVE_UP, Next.LOOK]
    assert len(told[0].instances) == 5
    assert "a1, a2, a3 and 2 more are removed (pool a): not needed, and idle for 50s (idle_time)" in str(told[0])
