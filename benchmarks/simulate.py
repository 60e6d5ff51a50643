"""A day of 4,000,000 jobs in virtual time: how long it takes on one core, and the memory.

Jobs come by the time of day, run for six minutes on the mean, and instances boot in a minute: once where instances are
used again and again, and once where each runs one job. Each figure is taken in a process of its own. A profile of a
smaller run of the same kind is printed before it: the time that each function takes itself, in the share of all.

Then two bursts of jobs a year apart, with instances that idle in between: what quiet time costs.
"""

import argparse
import cProfile
import gc
import json
import pstats
import resource
import subprocess
import sys
from pathlib import Path
from time import perf_counter, process_time

from _figures import report

from fleeting.cli._commandline import YOUNG
from taskscaler import Policy
from taskscaler.config import PoolTable
from taskscaler.simulation import Exponential, Fleet, Jobs, Outcome, Synthetic, simulate

JOBS = 4_000_000
DAY = 86400.0
PROFILED = 100_000
"""So many jobs are run under the profiler, at the same rate."""

SHOWN = 12
"""Functions of a profile."""

FLEETS = {
    "jobs": Fleet(pools=(PoolTable(plugin="simulated"),), policies=(Policy(idle_count=200, idle_time=1200.0),)),
    "once": Fleet(
        pools=(PoolTable(plugin="simulated", max_use_count=1),), policies=(Policy(idle_count=200, idle_time=1200.0),)
    ),
}
TARGETS = {"jobs": 100.0, "once": 300.0}

QUIET = "quiet"
YEAR = 365 * DAY
IDLE_FLEET = Fleet(pools=(PoolTable(plugin="simulated"),), policies=(Policy(idle_count=20, idle_time=1200.0),))
QUIET_TARGET = 0.5


def some_jobs(number: int) -> Jobs:
    """So many of a day's jobs: fewer take a part of the day."""
    return Synthetic(jobs=number, over=DAY * number / JOBS, duration=Exponential(360.0), daily=0.8).make(0)


def run(kind: str, number: int) -> Outcome:
    """Run so many jobs on that fleet."""
    return simulate(FLEETS[kind], some_jobs(number))


def profile(kind: str, number: int) -> None:
    """Print where the time goes."""
    jobs = some_jobs(number)
    profiler = cProfile.Profile()
    profiler.runcall(simulate, FLEETS[kind], jobs)
    stats = pstats.Stats(profiler).get_stats_profile()
    ordered = sorted(stats.func_profiles.items(), key=lambda each: -each[1].tottime)[:SHOWN]
    share = {
        f"{Path(each.file_name).name}:{each.line_number} {name}": round(each.tottime / stats.total_tt, 3)
        for name, each in ordered
    }
    print(json.dumps({"profile": f"simulate_4m_{kind}", "of_jobs": number, "share_of_time": share}), flush=True)


def measure(kind: str, number: int) -> None:
    """Run it in this process, and print seconds and MiB."""
    gc.set_threshold(YOUNG)  # as every command does
    jobs = some_jobs(number)
    took, cpu = perf_counter(), process_time()
    outcome = simulate(FLEETS[kind], jobs)
    took, cpu = perf_counter() - took, process_time() - cpu
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    figures = {
        "s": took,
        "cpu_s": cpu,
        "rss_mib": rss,
        "bought": outcome.bought,
        "peak": outcome.peak_instances,
        "decisions": outcome.decisions,
        "p95": outcome.waits.quantile(0.95),
    }
    print(json.dumps(figures), flush=True)


def measure_quiet_year() -> None:
    """Report the seconds of a simulation of two bursts that are a year apart."""
    jobs = Jobs.of((at + second, 30.0) for at in (0.0, YEAR) for second in range(100))
    took, cpu = perf_counter(), process_time()
    outcome = simulate(IDLE_FLEET, jobs)
    took, cpu = perf_counter() - took, process_time() - cpu
    conditions = (
        f"{len(jobs)} jobs, {outcome.instance_hours:.0f} instance-hours, {outcome.pools[0].calls} calls;"
        f" {cpu:.4g} s of CPU time"
    )
    report("simulate_quiet_year_s", took, "s", QUIET_TARGET, conditions=conditions)


def main() -> None:
    """Measure all of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=JOBS, help="fewer are run at the same rate, and reported as such")
    parser.add_argument("--only", choices=[*FLEETS, QUIET], help="only this fleet, or only the quiet year")
    parser.add_argument("--measure", choices=FLEETS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        measure(given.measure, given.jobs)
        return
    whole = given.jobs == JOBS
    for kind in [each for each in FLEETS if given.only in {None, each}]:
        profile(kind, min(PROFILED, given.jobs))
        command = [sys.executable, __file__, "--measure", kind, "--jobs", str(given.jobs)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        found = json.loads(done.stdout)
        conditions = (
            f"{given.jobs} jobs, {JOBS} a day, {found['bought']} instances bought, {found['peak']} at most,"
            f" {found['decisions']} decisions, p95 {found['p95']:.3g} s; {found['cpu_s']:.4g} s of CPU time,"
            f" {found['s'] / given.jobs * 1e6:.3g} µs a job"
        )
        name = f"simulate_4m_{kind}" if whole else f"simulate_{given.jobs}_{kind}"
        report(f"{name}_s", found["s"], "s", TARGETS[kind] if whole else None, conditions=conditions)
        if kind == "jobs":
            report(
                f"{name}_rss_mib", found["rss_mib"], "MiB", 2048.0 if whole else None, conditions="peak of the process"
            )
    if given.only in {None, QUIET}:
        measure_quiet_year()


if __name__ == "__main__":
    main()
