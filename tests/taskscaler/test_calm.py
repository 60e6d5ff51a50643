"""Decisions that would do nothing are spared, and no others. That none else are, the core's state machine looks at."""

from math import inf

from fleeting import Preexisting
from taskscaler._types import Policy, PoolSettings
from tests.strategies import NO_THROTTLE
from tests.taskscaler.test_core_machine import World

IDLE_TIME = 1000.0


def a_world(*, jobs: int = 0, idle_count: int = 2, max_instances: int = 0) -> World:
    """A fleet that nobody watches, ready, and so many jobs that never end."""
    pool = PoolSettings(
        name="a",
        scale_throttle=NO_THROTTLE,
        preexisting=Preexisting.REMOVE,
        max_instances=max_instances,
        heartbeat_interval=1e9,
        update_interval=1e9,
    )
    world = World([pool], Policy(idle_count=idle_count, idle_time=IDLE_TIME), 0, watched=False)
    for _ in range(jobs):
        world.submit(inf)
    world.pass_time(60)
    return world


def test_a_job_for_which_there_is_enough_leads_to_no_decision() -> None:
    """Nor is the core woken for one. Who reads the decisions finds what it would have said."""
    world = a_world(jobs=1)
    first, core = next(iter(world.running.values())), world.core
    world.done(first)
    core.heed(world.now)
    due, decided = core.wake_at, core.decided
    assert due is not None
    assert due == world.now + IDLE_TIME  # when one goes: only now is there one to spare
    world.submit(inf)
    core.heed(world.now)
    assert (core.wake_at, core.decided) == (due, decided)
    assert core.decisions[-1].demand.in_use == 1
    assert core.decisions[-1].at == world.now
    world.pass_time(2 * IDLE_TIME)
    assert len(world.clouds["a"].machines) == 3
    assert core.decided == decided


def test_a_job_that_leaves_too_few_idle_leads_to_one() -> None:
    """Soon, together with what else comes in a burst."""
    world = a_world()
    decided = world.core.decided
    world.submit(inf)
    world.pass_time(60)
    assert world.core.decided > decided
    assert len(world.clouds["a"].machines) == 3


def test_those_that_wait_at_the_ceiling_are_not_decided_on_one_by_one() -> None:
    """No more can be asked for, whatever is missing; a higher ceiling is asked for at once."""
    world = a_world(jobs=4, max_instances=2)
    decided = world.core.decided
    for _ in range(10):
        world.submit(inf)
        world.pass_time(1)
    assert world.core.decided == decided
    assert world.core.decisions[-1].demand.pending == 12
    assert world.core.decisions[-1].pools[0].limited_by == "max_instances"


def test_what_was_idle_all_along_goes_as_soon_as_it_may() -> None:
    """Though it was seen meanwhile that nothing else is due: it was retained then, and so nothing to be given up."""
    world = a_world(jobs=2, idle_count=0)
    core, began = world.core, world.now
    first, second = world.running.values()
    world.done(first)
    world.done(second)
    world.take(core.retain(first.instance, "an operator looks at it", world.now))
    world.pass_time(IDLE_TIME / 2)
    world.submit(1.0)  # the last to fall idle has it
    world.pass_time(IDLE_TIME / 2 + 100)
    assert world.now < began + 1.5 * IDLE_TIME
    assert len(world.clouds["a"].machines) == 2
    world.take(core.unretain(first.instance, world.now))
    world.pass_time(10)
    assert list(world.clouds["a"].machines) == [second.instance]
