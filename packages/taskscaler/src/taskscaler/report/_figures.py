"""What a run comes to in figures: waiting, running, use of what there was, and what it cost. Pure."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import ceil
from statistics import median
from typing import Self, TypeVar

from attrs import frozen

from taskscaler._cost import Tariff, cost_of_runs
from taskscaler._recorded_run import RecordedRun
from taskscaler._uses import StepUse, by_path, dearest
from taskscaler.batch import Begun, Ended, JobState, RecordedEvent, Resumed
from taskscaler.report._timeline import Phase, Timeline

HOUR = 3600.0

N = TypeVar("N", int, float)


@frozen(kw_only=True)
class Spread:
    """How some durations lie, in seconds."""

    median: float
    """Half take no longer."""

    p95: float
    """19 of 20 were no longer than this: one of the durations themselves."""

    max: float
    """None takes longer."""

    @classmethod
    def of(cls, durations: Iterable[float]) -> Self | None:
        """Of durations, in any order; None if there are none."""
        sorted_ = sorted(durations)
        if not sorted_:
            return None
        return cls(median=median(sorted_), p95=sorted_[ceil(0.95 * len(sorted_)) - 1], max=sorted_[-1])


@frozen(kw_only=True)
class Figures:
    """The figures of a run. Durations are seconds; a share is from 0 to 1, None of nothing."""

    duration: float
    """From the opening of the fleet until it was last heard of, whoever watched."""

    paused: float
    """How much of that lies between two commands that ran the batch."""

    jobs: int
    """As many as are known of."""

    states: Mapping[str, int]
    """How many jobs stand in each state; only those that occur."""

    retried: int
    """Jobs that were tried more than once."""

    waited: Spread | None
    """From the beginning of the batch to the first try, of the jobs that were tried."""

    ran: Spread | None
    """How long the last try took, of the jobs whose last try has ended."""

    instances: int
    """That were there at any time."""

    lost: int
    """Instances that failed or vanished."""

    booted: Spread | None
    """From when an instance was first seen until it was ready, of those that came so far."""

    instance_time: float
    """All instances' existence, which is the sum of the next six."""

    boot_time: float
    """From when an instance is first seen until it is ready."""

    busy_time: float
    """With at least one job."""

    idle_time: float
    """Ready, without a job."""

    leaving_time: float
    """From when a deletion is asked for until the instance is gone."""

    held_time: float
    """Of no more use, but to be kept."""

    unwatched_time: float
    """While no manager was there to see."""

    slot_time: float
    """Slots in use, all added up."""

    utilisation: float | None
    """Slots in use, of those that were ready."""

    utilisation_overall: float | None
    """Slots in use, of those that existed: boot and removal count as unused."""

    cpu_time: float | None
    """Of all tries whose use is known; None: of none it is."""

    peak_memory: int | None
    """Bytes: the most of any try whose use is known; None likewise."""

    disk_written: int | None
    """Bytes of all tries whose use is known; None likewise."""

    steps: Sequence[StepUse]
    """What steps of that name have used, in all tries: those that used most, and the others together."""

    price_per_hour: float | None
    """Of one instance, in whatever money, for this report; None: not given."""

    priced: float | None
    """What the instances come to at the prices of their pools; None: a pool has none, or they are in several
    currencies."""

    currency: str
    """Of that, as the pools name it; empty: not known, or a price was given for this report."""

    @property
    def instance_hours(self) -> float:
        """What is paid for."""
        return self.instance_time / HOUR

    @property
    def cost(self) -> float | None:
        """At the price for this report, else at those of the pools; None without any."""
        return self.priced if self.price_per_hour is None else self.instance_hours * self.price_per_hour

    @property
    def cost_per_job(self) -> float | None:
        """All that was paid, over the jobs that succeeded; None without a price, or where none did."""
        succeeded = self.states.get(JobState.SUCCEEDED.value, 0)
        return self.cost / succeeded if self.cost is not None and succeeded else None


def figure_out(run: RecordedRun, timeline: Timeline, *, price_per_hour: float | None = None) -> Figures:
    """Work out the figures of a run, whose timeline this is."""
    rows = timeline.rows
    tried = [job for job in run.jobs.values() if job.attempts]
    tries = [attempt for job in tried for attempt in job.attempts]
    tariffs = _tariffs(run.events)
    priced = cost_of_runs((tariffs.get(row.pool, Tariff()), row.runs) for row in rows)
    slot_time = sum(row.slot_time for row in rows)
    return Figures(
        duration=timeline.duration,
        paused=run.state.paused,
        jobs=len(run.jobs),
        states=Counter(job.state.value for job in run.jobs.values()),
        retried=sum(len(job.attempts) > 1 for job in tried),
        waited=Spread.of(job.attempts[0].started - run.started for job in tried),
        ran=Spread.of(job.attempts[-1].duration for job in tried if job.attempts[-1].ended is not None),
        instances=len(rows),
        lost=sum(row.lost for row in rows),
        booted=Spread.of(row.time(Phase.BOOT) for row in rows if row.time(Phase.READY)),
        instance_time=sum(row.time() for row in rows),
        boot_time=sum(row.time(Phase.BOOT) for row in rows),
        busy_time=sum(row.busy for row in rows),
        idle_time=sum(row.idle for row in rows),
        leaving_time=sum(row.time(Phase.LEAVING) for row in rows),
        held_time=sum(row.time(Phase.HELD) for row in rows),
        unwatched_time=sum(row.time(Phase.UNWATCHED) for row in rows),
        slot_time=slot_time,
        utilisation=_share(slot_time, sum(row.slots * row.time(Phase.READY) for row in rows)),
        utilisation_overall=_share(slot_time, sum(row.slots * row.time() for row in rows)),
        cpu_time=_of_known(sum, (each.cpu_time for each in tries)),
        peak_memory=_of_known(max, (each.peak_memory for each in tries)),
        disk_written=_of_known(sum, (each.disk_written for each in tries)),
        steps=dearest(by_path(step for event in run.events if isinstance(event, Ended) for step in event.steps)),
        price_per_hour=price_per_hour,
        priced=None if price_per_hour is not None or priced is None else priced[0],
        currency="" if price_per_hour is not None or priced is None else priced[1],
    )


def _tariffs(events: Iterable[RecordedEvent]) -> Mapping[str, Tariff]:
    """How the instances of each pool are paid for, as the last command has it."""
    return {pool.name: pool.tariff for event in events if isinstance(event, Begun | Resumed) for pool in event.pools}


def _of_known(combine: Callable[[Iterable[N]], N], values: Iterable[N | None]) -> N | None:
    """Combine what is known; None if nothing is."""
    known = [value for value in values if value is not None]
    return combine(known) if known else None


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None
