"""What the core costs, in virtual time: µs for each job, instance, request or decision, beside 1 to 10,000 others.

Nothing but the core and the script of `_script` runs; what a step would have written and done is only looked at. The
figures of one path are to be flat. Each ends with a ratio, of what its largest size takes to what its reference takes,
measured by turns in the same run, so that it says more than either on a busy machine.
"""

import gc
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import process_time

from _figures import report
from _script import KEEP, POOL, Script, a_script
from attrs import evolve

from taskscaler import NoCapacity, Policy

SIZES = (1, 1_000, 10_000)
ROUNDS = 3
"""Each size is measured so often, and the least counts: what disturbs a machine only ever slows it down."""

JOBS = 500
ONES = 500
"""So many are measured one after the other where one would take no time."""

FLAT = 1.5
"""What a ratio is to stay below: caches miss more often in a larger fleet, and heaps are deeper."""


def spent(act: Callable[[], None], *scripts: Script) -> float:
    """Seconds of computing that it takes, but for those that go into views, and into collecting what is left alone."""
    gc.collect()
    gc.freeze()
    views, start = sum(each.views for each in scripts), process_time()
    act()
    took = process_time() - start - (sum(each.views for each in scripts) - views)
    gc.unfreeze()
    return took


def warm(instances: int) -> float:
    """Jobs one after the other on a fleet that is there, for each."""
    script = a_script(instances)
    return spent(lambda: script.jobs(JOBS, apart=0.05), script) / JOBS


def cold(instances: int) -> float:
    """Jobs that each use up an instance, which is replaced, for each."""
    script = a_script(instances, policy=Policy(idle_count=instances), pool=evolve(POOL, max_use_count=1))
    return spent(lambda: script.jobs(JOBS, apart=5.0), script) / JOBS


def growth(instances: int) -> float:
    """Jobs that all come at once, with no instance there: from the first request to the last release, for each."""
    scripts = [a_script() for _ in range(max(1, ONES // instances))]

    def grow() -> None:
        for script in scripts:
            script.jobs(instances, apart=0.0)

    return spent(grow, *scripts) / len(scripts) / instances


def shutdown(instances: int) -> float:
    """Everything is removed, for each instance."""
    scripts = [a_script(instances) for _ in range(max(1, ONES // instances))]

    def remove() -> None:
        for script in scripts:
            script.perform(script.core.remove_all(script.now).actions)
            script.run(partial(getattr, script, "removed"))

    return spent(remove, *scripts) / len(scripts) / instances


def a_sleeping_fleet(sleepers: int, *, awake: int) -> Script:
    """So many suspended instances, and some that are not; all stay as they are."""
    script = a_script(
        sleepers + awake, policy=Policy(idle_count=awake, idle_time=0.0), pool=evolve(POOL, suspended_count=sleepers)
    )
    asleep = script.core.choices.sleepers["pool"]
    script.run(lambda: asleep.slots(script.now) == sleepers)
    script.perform(script.core.configure([KEEP]).actions)
    return script


def beside_sleepers(sleepers: int) -> float:
    """Jobs on the one instance that is awake, for each."""
    script = a_sleeping_fleet(sleepers, awake=1)
    return spent(lambda: script.jobs(JOBS, apart=0.05), script) / JOBS


def sleeper_decision(sleepers: int) -> float:
    """One decision, for each."""
    script = a_sleeping_fleet(sleepers, awake=1)

    def decide() -> None:
        for _ in range(JOBS):
            script.core.foresee(script.now)

    return spent(decide, script) / JOBS


def waking(sleepers: int) -> float:
    """Jobs that each wake an instance, which then is suspended again, for each."""
    script = a_sleeping_fleet(sleepers, awake=0)
    script.perform(script.core.configure([Policy(idle_time=0.0)]).actions)
    return spent(lambda: script.jobs(JOBS // 5, apart=5.0), script) / (JOBS // 5)


def open_requests(requests: int) -> Script:
    """So many requests for one instance each, which the cloud has accepted, and does not fill."""
    script = a_script()
    script.cloud.delivers = False
    for number in range(requests):
        script.acquire(f"waits-{number}")
        script.now += 0.02
        script.run(lambda: not script.events)
    return script


def withdrawal(requests: int) -> float:
    """One of those who wait gives up, and the request for it is withdrawn, for each of them."""
    script = open_requests(requests)

    def give_up() -> None:
        for number in range(min(requests, JOBS)):
            script.perform(script.core.cancel(f"waits-{number}", script.now).actions)
            script.now += 0.02
            script.run(lambda: not script.events)

    return spent(give_up, script) / min(requests, JOBS)


def expiry(requests: int) -> float:
    """Nobody waits any more for those requests, and nothing comes of them: until the last is given up, for each."""
    script = open_requests(requests)
    plan = script.core.plans["pool"]
    for number in range(requests):
        script.core.cancel(f"waits-{number}", script.now)
    return spent(lambda: script.run(lambda: not plan.outstanding), script) / requests


def reserving(reservations: int) -> float:
    """An instance with a reserved slot is cordoned and uncordoned: the last to reserve waits again, for each time."""
    script = a_script(reservations)
    for number in range(reservations):
        script.perform(script.core.reserve(f"reserved-{number}", script.now).actions)

    def unback() -> None:
        for number in range(JOBS):
            instance = f"old-{number % reservations}"
            script.perform(script.core.cordon(instance, "it is slow", script.now).actions)
            script.perform(script.core.uncordon(instance, script.now).actions)

    return spent(unback, script) / JOBS


def refusals(requests: int) -> float:
    """A reservation that is refused as growth is limited, for each: it reads `limits` of the plan."""
    script = a_script(pool=evolve(POOL, max_instances=requests))
    for number in range(requests):
        script.acquire(f"waits-{number}")

    def refuse() -> None:
        for _ in range(JOBS):
            try:
                script.core.reserve("refused", script.now)
            except NoCapacity:
                continue
            raise AssertionError("there is no slot left")

    return spent(refuse, script) / JOBS


PATHS: Mapping[str, tuple[Callable[[int], float], str, Sequence[int], str]] = {
    "core_warm_us_per_job": (warm, "job", SIZES, "beside so many idle instances"),
    "core_cold_us_per_job": (cold, "job", SIZES, "each uses one of so many up; without views"),
    "core_growth_us_per_instance": (growth, "instance", SIZES, "so many jobs at once; without views"),
    "core_shutdown_us_per_instance": (shutdown, "instance", SIZES, "so many are removed; without views"),
    "core_sleepers_us_per_job": (beside_sleepers, "job", SIZES, "beside so many suspended instances"),
    "core_sleepers_us_per_decision": (sleeper_decision, "decision", SIZES, "beside so many suspended instances"),
    "core_wake_us_per_job": (waking, "job", SIZES, "each wakes one of so many; without views"),
    "core_withdraw_us_per_request": (withdrawal, "request", SIZES, "one of so many open ones"),
    "core_expire_us_per_request": (expiry, "request", SIZES, "so many open ones; without the views"),
    "core_unback_us": (reserving, "time", SIZES, "one of so many kept reservations"),
    "core_limits_us_per_refusal": (refusals, "refusal", SIZES, "so many requests"),
}
"""By name: what is measured, for what it is given, at which sizes, and what the sizes are."""

SHARED = {
    "core_growth_us_per_instance",
    "core_shutdown_us_per_instance",
    "core_withdraw_us_per_request",
    "core_expire_us_per_request",
}
"""Those in which a single one bears what many share: the ratio is that of the two largest sizes."""


def main() -> None:
    """Measure all."""
    for name, (measure, _, sizes, what) in PATHS.items():
        took = dict.fromkeys(sizes, float("inf"))
        for _ in range(ROUNDS):
            for size in sizes:
                took[size] = min(took[size], measure(size))
        for size in sizes:
            report(f"{name}_{size}", took[size] * 1e6, "µs", None, conditions=f"{what}; CPU time, least of {ROUNDS}")
        small, large = sizes[1 if name in SHARED else 0], sizes[-1]
        conditions = f"{large} to {small}, by turns in one run"
        report(f"{name}_ratio", took[large] / took[small], "", FLAT, conditions=conditions)


if __name__ == "__main__":
    main()
