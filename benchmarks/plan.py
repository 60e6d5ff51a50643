"""What the pure plan spends on each kind of event, with 1 to 10,000 instances.

The figures of one kind are to be flat: what one event costs may not grow with the fleet. A view is one event that shows
every instance; so it, and growth, are given for each instance.
"""

from collections.abc import Callable
from functools import partial
from itertools import count
from time import perf_counter

from _figures import best_of, report

from fleeting import GroupInfo, Observation, Observed, PlanConfig, ScaleThrottle, State
from fleeting.core import Plan, build_plan, messages
from fleeting.journal import Recovered

EVENTS = 3_000
"""Heartbeats and notices of one measurement; views are as many as show as many instances."""

SIZES = (1, 1_000, 10_000)
NOW = 1_700_000_000.0
CONFIG = PlanConfig(scale_throttle=ScaleThrottle(limit=-1))


def a_plan() -> Plan:
    """A plan of an empty group that has been seen once."""
    numbers = count(1)
    plan = build_plan(
        CONFIG, GroupInfo(identity="bench"), Recovered(epoch=1), NOW, random=lambda: next(numbers) % 97 / 97
    )
    plan.tick(NOW)
    plan.handle(messages.Updated(Observation({})), NOW)
    return plan


def view_of(instances: int) -> messages.Updated:
    """As a cloud gives it: new objects each time."""
    return messages.Updated(
        Observation({f"i-{each}": Observed(state=State.RUNNING, created_at=NOW) for each in range(instances)})
    )


def ready(instances: int) -> Plan:
    """A plan of instances that were asked for, and are ready."""
    plan = a_plan()
    ask(plan, instances)
    plan.handle(view_of(instances), NOW)
    for each in range(instances):
        plan.handle(messages.Prepared(f"i-{each}"), NOW)
    return plan


def ask(plan: Plan, instances: int) -> None:
    """Each with an intent of its own."""
    for _ in range(instances):
        (increase,) = (each for each in plan.request(1, NOW).actions if isinstance(each, messages.Increase))
        plan.handle(messages.Increased(increase.intent, 1), NOW)


def unchanged_view(instances: int) -> float:
    """Instances of views that show what the last one showed, a second."""
    plan, views = ready(instances), [view_of(instances) for _ in range(max(3, 30_000 // instances // 10))]
    plan.handle(view_of(instances), NOW)
    start = perf_counter()
    for view in views:
        plan.handle(view, NOW)
    return len(views) * instances / (perf_counter() - start)


def heartbeats(instances: int) -> float:
    """Heartbeats that are asked for and pass, a second."""
    plan, at = ready(instances), NOW
    plan.handle(messages.UpdateFailed("not looked at here", 1e9), NOW)
    passed, start = 0, perf_counter()
    while passed < EVENTS:
        at = max(at, plan.wake_at or 0.0)
        for action in plan.tick(at).actions:
            if isinstance(action, messages.Heartbeat):
                plan.handle(messages.HeartbeatPassed(action.instance), at)
                passed += 1
    return passed / (perf_counter() - start)


def growth(instances: int) -> float:
    """New instances of one view that are matched by time, each to an intent of its own, a second."""
    plan, view = a_plan(), view_of(instances)
    ask(plan, instances)
    start = perf_counter()
    plan.handle(view, NOW)
    return instances / (perf_counter() - start)


def connections(instances: int) -> float:
    """Connections that die, and the heartbeats that answer, a second: events of one instance."""
    plan = ready(instances)
    start = perf_counter()
    for number in range(EVENTS):
        instance = f"i-{number % instances}"
        plan.handle(messages.ConnectionDied(instance, "reset by peer"), NOW)
        plan.handle(messages.HeartbeatPassed(instance), NOW)
    return EVENTS / (perf_counter() - start)


FIGURES: dict[str, tuple[Callable[[int], float], str]] = {
    "plan_view_unchanged": (unchanged_view, "instances/s"),
    "plan_heartbeat_passed": (heartbeats, "heartbeats/s"),
    "plan_growth_by_time": (growth, "instances/s"),
    "plan_event_of_one": (connections, "events/s"),
}


if __name__ == "__main__":
    for name, (measure, unit) in FIGURES.items():
        for size in SIZES:
            report(f"{name}_per_s_{size}", best_of(5, partial(measure, size)), unit, None)
