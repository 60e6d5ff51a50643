"""What a fleet would cost that knew all jobs in advance, and what one costs that never shrinks. Pure; O(n log n).

The clairvoyant knows when each job comes and how long it takes, and no job may wait. It buys an instance one boot
before a job that nobody else can run, and between two jobs it keeps the instance, or removes it and buys another in
time for the next, whichever is cheaper: a gap costs its length, and at most a boot. So all that is open is which job
takes over from which. As what a gap costs is concave in its length, gaps that lie within one another cost less than
ones that overlap: each job takes the instance that fell free last. Instances are paid for from when they are asked for,
and to the end of the last job they run.

It bounds what fleets cost that let no job wait. One that lets jobs wait can cost less, in the extreme a single instance
that runs them one by one: so costs are compared next to what was waited.
"""

from heapq import heappop, heappush
from math import ceil

from attrs import frozen

from taskscaler.simulation._jobs import Jobs

HOUR = 3600.0


@frozen(kw_only=True)
class Bound:
    """A fleet that could have been."""

    instance_hours: float
    bought: int
    """Instances, over all time."""

    peak: int
    """The most of them that jobs ran on at once."""


def clairvoyant(jobs: Jobs, *, boot: float, capacity: int = 1, max_use_count: int = 0) -> Bound:
    """Find the least that a fleet can cost that lets no job wait.

    With one slot per instance and no use limit, or a limit of 1, a fleet could have been as cheap. Otherwise none need
    be: with more slots, each counts for its share of an instance, as if each could be kept by itself; with a limit, the
    boots of as many instances as the jobs use up are paid for, if that comes to more than the gaps do.

    Args:
        jobs: In any number; durations are not negative.
        boot: Seconds from when an instance is asked for until it is ready.
        capacity: Slots of an instance.
        max_use_count: Jobs that an instance may run in its life; 0: any number.
    """
    work = jobs.work
    running: list[float] = []  # when they end, a heap
    free: list[float] = []  # since when, the last at the end
    gaps, boots, peak = 0.0, 0, 0
    for submit, duration in sorted(zip(jobs.submits, jobs.durations, strict=True)):
        while running and running[0] <= submit:
            free.append(heappop(running))
        gap = submit - free.pop() if free else boot
        if gap < boot:
            gaps += gap
        else:
            boots += 1
        heappush(running, submit + duration)
        peak = max(peak, len(running))
    seconds = (work + gaps + boots * boot) / capacity
    bought = ceil(boots / capacity)
    if max_use_count:
        fewest = ceil(len(jobs) / max_use_count)
        bought = max(bought, fewest)
        seconds = max(seconds, work / capacity + fewest * boot)
    return Bound(instance_hours=seconds / HOUR, bought=bought, peak=ceil(peak / capacity))


def always_max(jobs: Jobs, *, boot: float, capacity: int = 1) -> Bound:
    """Say what a fleet costs that has as many instances all the time as the highest peak of the jobs takes.

    It exists from one boot before the first job to the end of the last. Arguments as of `clairvoyant`.
    """
    if not len(jobs):
        return Bound(instance_hours=0.0, bought=0, peak=0)
    peak = clairvoyant(jobs, boot=boot, capacity=capacity).peak
    last = max(map(float.__add__, jobs.submits, jobs.durations))
    return Bound(instance_hours=peak * (last - jobs.begins + boot) / HOUR, bought=peak, peak=peak)
