"""What the cores take of the processor in a large fleet: many jobs placed at once, one event of one job, one view.

CPU time, of nothing but the cores: what a step would have done is only looked at.
"""

import gc
from collections.abc import Callable
from functools import partial
from time import process_time

from _figures import report
from _script import KEEP, POOL, Script, a_script
from attrs import evolve

from fleeting import Observation, Observed, State
from fleeting.core import messages
from taskscaler.core._slots import Deliver

ROUNDS = 5
"""Each is measured so often, and the least counts: what disturbs a machine only ever slows it down."""

WAITERS, INSTANCES, SLOTS = 50_000, 1_000, 50
MANY = 10_000
PER_INSTANCE = 10
EVENTS = 20_000


def least(measure: Callable[[], float]) -> float:
    """The least of several measurements, without what is left to be collected meanwhile."""
    taken = []
    for _ in range(ROUNDS):
        gc.collect()
        gc.freeze()
        taken.append(measure())
        gc.unfreeze()
    return min(taken)


def placing() -> float:
    """Seconds in which all who wait get their slots, once the instances are ready one after the other."""
    script = a_script(pool=evolve(POOL, capacity_per_instance=SLOTS))
    core, placed = script.core, 0
    waiting = [f"job-{number}" for number in range(WAITERS)]
    for key in waiting:
        core.acquire(key, script.now)
    view = {f"i-{number}": Observed(state=State.RUNNING) for number in range(INSTANCES)}
    core.handle("pool", messages.Updated(Observation(view)), script.now)
    facts = [messages.Prepared(instance) for instance in view]
    start = process_time()
    for fact in facts:
        for action in core.handle("pool", fact, script.now).actions:
            if isinstance(action, Deliver):
                placed += core.deliver(action.lease)
    spent = process_time() - start
    if placed != WAITERS:
        raise AssertionError(f"{placed} of {WAITERS} were placed")
    return spent


def a_large_fleet() -> Script:
    """Half of its slots are in use."""
    script = a_script(MANY, policy=KEEP, pool=evolve(POOL, capacity_per_instance=PER_INSTANCE))
    for number in range(MANY * PER_INSTANCE // 2):
        (deliver,) = script.core.acquire(f"held-{number}", script.now).actions
        script.core.deliver(deliver.lease)
    script.run(lambda: not script.events)
    return script


def event(script: Script) -> float:
    """Seconds for each acquire and each release of one job after the other, with all that comes of it."""
    core, now = script.core, script.now
    start = process_time()
    for number in range(EVENTS // 2):
        now += 0.01
        (deliver,) = core.acquire(f"job-{number}", now).actions
        core.deliver(deliver.lease)
        settle(script, now)
        now += 0.01
        core.release(f"job-{number}", now)
        settle(script, now)
    took = process_time() - start
    script.now = now
    return took / EVENTS


def settle(script: Script, now: float) -> None:
    """As the runtime does: the core is heeded, and ticks if it is due."""
    core = script.core
    core.heed(now)
    at = core.wake_at
    if at is not None and at <= now + 0.006:
        core.tick(at)


def view(script: Script, *, anew: bool) -> float:
    """Seconds for a view that shows what the one before did; *anew*: as other objects, as a cloud's answer does."""
    plan = script.core.plans["pool"]
    shown = script.cloud.shown
    if anew:
        shown = {id_: Observed(state=each.state, intent=each.intent) for id_, each in shown.items()}
    fact = messages.Updated(Observation(shown))
    start = process_time()
    plan.handle(fact, script.now)
    return process_time() - start


def main() -> None:
    """Measure all."""
    conditions = f"{WAITERS} waiters, {INSTANCES} instances of {SLOTS} slots that become ready; CPU time"
    report("place_50000_jobs_s", least(placing), "s", 1.0, conditions=conditions)
    script = a_large_fleet()
    conditions = f"{MANY} instances, {MANY * PER_INSTANCE} slots, half of them in use; CPU time"
    report("event_us_10000", least(partial(event, script)) * 1e6, "µs", 50.0, conditions=conditions)
    conditions = f"{MANY} instances, nothing changed, all objects new; CPU time"
    report("view_ms_10000", least(partial(view, script, anew=True)) * 1e3, "ms", 1.0, conditions=conditions)


if __name__ == "__main__":
    main()
