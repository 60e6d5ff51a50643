"""What settings are worth: static, by a factor, tuned and clairvoyant on one trace, fitted before a date, judged after.

Every row but the clairvoyant's is decided by the core that production runs. All that is chosen is chosen on the days
before the date alone, for 95 % of the jobs to wait at most ten seconds: the best static policy and the best factor from
the grids below, and what ``taskscaler tune`` finds. Then each runs the judged days: boot 60 s, one job at once on an
instance, any number in its life, billing by the second, the removal of the fleet after the last job included.

Without ``--trace``, jobs are made up, and no figure has a target. ``benchmarks/traces/README.md`` says where a real
trace is to be had; ``--judge-from 2024-12-01`` is the date for that one.
"""

import argparse
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from math import ceil, inf
from pathlib import Path

from _figures import report
from attrs import evolve, frozen

from fleeting.plugins import format_duration
from taskscaler import Policy
from taskscaler.config import PoolTable
from taskscaler.simulation import (
    Fleet,
    Jobs,
    Outcome,
    Synthetic,
    parse_columns,
    parse_distribution,
    read_trace,
    simulate,
)
from taskscaler.simulation._bound import Bound, clairvoyant
from taskscaler.simulation._cells import read_time
from taskscaler.simulation._judge import Parts, parted
from taskscaler.simulation._policies import write_policy
from taskscaler.simulation._targets import Target
from taskscaler.simulation._tune import tune

BOOT = 60.0
FLEET = Fleet(pools=(PoolTable(plugin="simulated"),))
TARGET = Target(95.0, 10.0)
TARGET_SHARE = 0.95

DOCUMENTED = Policy(idle_count=5, idle_time=1200.0)
"""The example of GitLab's documentation."""

IDLE_COUNTS = (0, 1, 2, 3, 5)
FACTORS = (0.1, 0.25, 0.5, 1.0)
IDLE_TIMES = tuple(
    60.0 * minutes for minutes in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 15, 17, 20, 25, 30, 45, 60)
)
"""The static grid: each count, and each factor with no count, with each of these; of what learns, the price."""

TIMES_CLAIRVOYANT = 1.95
"""The target of `tuned`, at the target's waiting."""

OF_STATIC = 0.97
"""The target of `adaptive`: its hours as a share of those of the cheapest static policy that lets jobs wait as long."""

AS_LONG = 1.05
"""And that is: at most so many times as long, by the 95th percentile."""

MADE_UP = Synthetic(
    jobs=4000,
    over=9 * 86400.0,
    duration=parse_distribution("lognormal(20s, 100s)"),
    daily=0.8,
    weekend=0.4,
    bursts=0.1,
    burst_jobs=8,
)


@frozen
class Row:
    """One line of the table."""

    name: str
    policy: Policy
    target: float | None = None


def run(policy: Policy, jobs: Jobs) -> Outcome:
    """Run jobs on the fleet with this policy."""
    return simulate(evolve(FLEET, policies=(policy,)), jobs)


def cheapest(
    shapes: Iterator[Callable[[float], Policy]], jobs: Jobs, limit: float = TARGET.seconds
) -> tuple[float, Policy] | None:
    """Of a grid, the cheapest policy with which 95 % of these jobs wait no longer, and its hours; None: there is none.

    A longer idle time costs more and lets jobs wait less, so that of each shape the first that meets it is the one; it
    is found by halving, and not looked for where it would cost more than another that meets the target.
    """
    best: tuple[float, Policy] | None = None
    for shape in shapes:
        low, high = 0, len(IDLE_TIMES) - 1
        while low <= high:
            middle = (low + high) // 2
            policy = shape(IDLE_TIMES[middle])
            outcome = run(policy, jobs)
            is_met = TARGET.of(outcome.waits) <= limit
            is_cheaper = best is None or outcome.instance_hours < best[0]
            if is_met and is_cheaper:
                best = outcome.instance_hours, policy
            elif not is_met and not is_cheaper:
                break
            low, high = (low, middle - 1) if is_met else (middle + 1, high)
    return best


def by_count() -> Iterator[Callable[[float], Policy]]:
    """The shapes that keep a number of slots idle."""
    for count in IDLE_COUNTS:
        yield lambda seconds, count=count: Policy(idle_count=count, idle_time=seconds)  # type: ignore[misc]


def by_factor() -> Iterator[Callable[[float], Policy]]:
    """The shapes that keep a share of those in use idle."""
    for factor in FACTORS:
        yield lambda seconds, factor=factor: Policy(scale_factor=factor, idle_time=seconds)  # type: ignore[misc]


def by_price() -> Iterator[Callable[[float], Policy]]:
    """The shape that learns how long idling pays, by its price."""
    yield lambda seconds: Policy(mode="adaptive", idle_time=seconds)


def rows(fitted: Jobs, since: float, *, is_real: bool) -> Iterator[Row]:
    """Choose what is held against one another, on these jobs alone."""
    yield Row("static_documented", DOCUMENTED)
    for name, shapes in (("scale_factor", by_factor()), ("static_best", by_count()), ("adaptive", by_price())):
        found = cheapest(shapes, fitted)
        if found is not None:
            yield Row(name, found[1])
    best = tune(FLEET, fitted, [TARGET], since=since).best
    yield Row("tuned", best.policy, TIMES_CLAIRVOYANT if is_real else None)


def measure(parts: Parts, *, is_real: bool) -> None:
    """Print a figure for each row, and what else is asked of some."""
    bound, outcomes = clairvoyant(parts.judged, boot=BOOT), {}
    for row in rows(parts.fitted, parts.begins, is_real=is_real):
        outcome = outcomes[row.name] = run(row.policy, parts.judged)
        times = outcome.instance_hours / bound.instance_hours
        report(f"quality_{row.name}", times, "× clairvoyant hours", row.target, conditions=_conditions(row, outcome))  # noqa: RUF001  (it is "times")
        if row.target is not None:
            waited = TARGET.of(outcome.waits)
            report(f"quality_{row.name}_p95_s", waited, "s", TARGET.seconds, conditions="of the same run")
    if "adaptive" in outcomes:
        adaptive = outcomes["adaptive"]
        static = cheapest(by_count(), parts.judged, AS_LONG * TARGET.of(adaptive.waits))
        if static is not None:
            share, words = (
                adaptive.instance_hours / static[0],
                f"{write_policy(static[1])}, the best of the judged days",
            )
            report(
                "quality_adaptive_of_static", share, "of its hours", OF_STATIC if is_real else None, conditions=words
            )
    hours, boots = knows_gaps(parts.judged, 1 - TARGET_SHARE)
    words = f"{hours:.2f} hours, {boots} bought; lets 5 % wait for a boot, and keeps instances through all other gaps"
    report("quality_knows_gaps", hours / bound.instance_hours, "× clairvoyant hours", None, conditions=words)  # noqa: RUF001
    report("quality_clairvoyant", 1.0, "× clairvoyant hours", None, conditions=_of_bound(bound))  # noqa: RUF001


def knows_gaps(jobs: Jobs, share: float) -> tuple[float, int]:
    """Give the hours of a fleet that lets so large a share of the jobs wait for a boot, and the instances it buys.

    As each job takes the instance that fell free last, instances idle for certain times. This fleet knows each of them
    in advance: it removes an instance at once before the longest, as many as there may be jobs that wait, and keeps it
    through all others. Whoever does not know them pays to find out. That jobs may wait for another job's end is left
    aside.
    """
    running: list[float] = []  # when they end, a heap
    free: list[float] = []  # since when, the last at the end
    gaps: list[float] = []
    for submit, duration in sorted(zip(jobs.submits, jobs.durations, strict=True)):
        while running and running[0] <= submit:
            free.append(heappop(running))
        gaps.append(submit - free.pop() if free else inf)
        heappush(running, submit + duration)
    kept = sorted(gaps)[: ceil((1 - share) * len(jobs))]
    boots = len(jobs) - len(kept)
    return (jobs.work + sum(gap for gap in kept if gap < inf) + boots * BOOT) / 3600, boots


def _conditions(row: Row, outcome: Outcome) -> str:
    undone = outcome.undone_share
    churn = "nothing removed" if undone is None else f"{undone:.1%} of the removals undone within a minute"
    waits = (f"p{100 * share:g} {outcome.waits.quantile(share):.3g} s" for share in (0.5, 0.95, 0.99))
    hours = f"{outcome.instance_hours:.2f} hours, {', '.join(waits)}"
    return f"{write_policy(row.policy)}; {hours}, {outcome.bought} bought, {churn}"


def _of_bound(bound: Bound) -> str:
    return f"{bound.instance_hours:.2f} hours, no job waits, {bound.bought} bought, boot {format_duration(BOOT)}"


def main() -> None:
    """Measure on the trace that is given, or on one that is made up."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trace", type=Path, help="as taskscaler simulate takes it")
    parser.add_argument("--columns", default=None, help="likewise")
    parser.add_argument("--judge-from", default=None, help="a time; default: two thirds of the days are fitted to")
    given = parser.parse_args()
    if given.trace is None:
        measure(parted(MADE_UP.make(0), None), is_real=False)
        return
    trace = read_trace(given.trace, parse_columns(given.columns) if given.columns else None)
    cut = None if given.judge_from is None else read_time(given.judge_from)
    measure(parted(trace.jobs, cut), is_real=True)


if __name__ == "__main__":
    main()
