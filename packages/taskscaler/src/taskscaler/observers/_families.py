"""What was counted, as the client library for Prometheus has it: at each scrape, and at no other time."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from itertools import accumulate
from math import inf
from typing import Any, TypeAlias

from attrs import define
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from taskscaler._histogram import Histogram
from taskscaler._meter import LIMITS, Figures, Meter, PoolFigures
from taskscaler._use_meter import UseMeter
from taskscaler.observers._catalogue import ALL, Described

Values: TypeAlias = Mapping[Any, float]
"""By the values of the labels, as a tuple, or by that of the only one."""


@define
class Families:
    """Makes metrics, with the user's labels on each."""

    constant: Mapping[str, str]
    catalogue: Mapping[str, Described] = ALL

    def one(self, name: str, value: float) -> Metric:
        """Make a gauge or counter without labels of its own."""
        return self.some(name, {(): value})

    def some(self, name: str, values: Values) -> Metric:
        """Make a gauge or counter."""
        about = self.catalogue[name]
        kind = CounterMetricFamily if about.kind == "counter" else GaugeMetricFamily
        made: CounterMetricFamily | GaugeMetricFamily = kind(about.family, about.question, labels=self._labels(about))
        for key, value in values.items():
            made.add_metric(self._values((key,) if isinstance(key, str) else key), float(value))
        return made

    def histogram(self, name: str, found: Histogram) -> Metric:
        """Make a histogram without labels of its own."""
        return self.histograms(name, {(): found})

    def histograms(self, name: str, found: Mapping[tuple[str, ...], Histogram]) -> Metric:
        """Make a histogram."""
        about = self.catalogue[name]
        made = HistogramMetricFamily(about.family, about.question, labels=self._labels(about))
        for key, each in found.items():
            sums = accumulate(each.counts)
            buckets = [
                ("+Inf" if bound == inf else repr(float(bound)), float(count))
                for bound, count in zip(each.bounds, sums, strict=True)
            ]
            made.add_metric(self._values(key), buckets, each.total)
        return made

    def empty(self, about: Iterable[Described]) -> Iterator[Metric]:
        """Name metrics, for a registry to know them."""
        for each in about:
            yield Metric(each.family, each.question, each.kind)

    def _labels(self, about: Described) -> Sequence[str]:
        return [*self.constant, *about.labels]

    def _values(self, values: tuple[str, ...]) -> Sequence[str]:
        return [*self.constant.values(), *values]


def of_meter(make: Families, meter: Meter, now: float | None) -> Iterator[Metric]:
    """Make what was counted. *now*: seconds since the epoch; None while the scaler is not open."""
    meter.settle()
    some, found = make.some, meter.histograms
    yield some("fleeting_provisioner_instance_operations_total", meter.instances)
    yield some("fleeting_provisioner_internal_operations_total", meter.calls)
    for name in ("creation_time", "is_running_time", "deletion_time", "life_duration"):
        yield make.histogram(f"fleeting_provisioner_instance_{name}_seconds", found[f"instance_{name}"])
    yield some("fleeting_taskscaler_task_operations_total", meter.tasks)
    yield make.histogram("fleeting_taskscaler_task_instance_readiness_time_seconds", found["instance_readiness_time"])
    yield some("fleeting_taskscaler_scale_operations_total", meter.scalings)
    for name in ("queue_wait", "dial", "journal_commit"):
        yield make.histogram(f"taskscaler_{name}_seconds", found[name])
    yield some("taskscaler_leases_lost_total", meter.broken)
    yield some("taskscaler_dials_total", meter.dials)
    pools = meter.pools.items()
    yield some("taskscaler_notices_total", {(n, kind): c for n, pool in pools for kind, c in pool.notices.items()})
    yield some("taskscaler_instances_lost_total", {(n, why): c for n, pool in pools for why, c in pool.losses.items()})
    if now is not None:
        yield some("taskscaler_instance_seconds_total", {name: pool.instance_seconds(now) for name, pool in pools})
        views = {name: max(0.0, now - pool.viewed_at) for name, pool in pools if pool.viewed_at is not None}
        yield some("taskscaler_view_age_seconds", views)
        removals = {name: max(0.0, now - next(iter(pool.removals.values()), now)) for name, pool in pools}
        yield some("taskscaler_oldest_deletion_seconds", removals)
    yield some("taskscaler_build_info", {version("taskscaler"): 1})


def of_uses(make: Families, uses: UseMeter) -> Iterator[Metric]:
    """Make what jobs and their steps have used."""
    yield make.one("taskscaler_job_cpu_seconds_total", uses.cpu_seconds)
    yield make.one("taskscaler_job_written_bytes_total", uses.written)
    yield make.histogram("taskscaler_job_peak_memory_bytes", uses.peaks)
    yield make.histograms("taskscaler_job_memory_limit_bytes", _by_one(uses.limits))
    yield make.one("taskscaler_memory_kills_total", uses.kills)
    yield make.some("taskscaler_steps_total", uses.steps)
    yield make.some("taskscaler_step_seconds_total", uses.step_seconds)
    yield make.some("taskscaler_step_cpu_seconds_total", uses.step_cpu_seconds)
    yield make.histograms("taskscaler_step_peak_memory_bytes", _by_one(uses.step_peaks))
    yield make.some("taskscaler_step_read_bytes_total", uses.step_read)
    yield make.some("taskscaler_step_written_bytes_total", uses.step_written)


def _by_one(found: Mapping[str, Histogram]) -> Mapping[tuple[str, ...], Histogram]:
    """Of one label."""
    return {(value,): each for value, each in found.items()}


def of_figures(make: Families, figures: Figures) -> Iterator[Metric]:
    """Make what is so at the moment."""
    some, one, pools = make.some, make.one, figures.pools
    states = {state: sum(pool.instances[state] for pool in pools) for state in pools[0].instances}
    yield some("fleeting_provisioner_instances", states)
    yield one("fleeting_provisioner_max_instances", figures.ceiling or 0)
    yield one("fleeting_provisioner_missed_updates_total", sum(pool.missed for pool in pools))
    yield some("fleeting_taskscaler_tasks", _tasks(figures))
    yield one("fleeting_taskscaler_max_tasks_per_instance", max(pool.slots for pool in pools))
    yield one("fleeting_taskscaler_max_use_count_per_instance", _uses(pools))
    yield one("fleeting_taskscaler_desired_instances", figures.desired)
    waiting_since = figures.at if figures.waiting_since is None else figures.waiting_since
    yield one("taskscaler_oldest_wait_seconds", max(0.0, figures.at - waiting_since))
    yield one("taskscaler_promised_reservations", figures.capacity.promised)
    yield one("taskscaler_handing_out", figures.is_handing_out)
    yield from _of_pools(make, pools)
    yield one("taskscaler_journal_records_total", figures.writes)
    yield one("taskscaler_journal_failures_total", figures.commit_failures)
    yield one("taskscaler_journal_failing", figures.is_journal_failing)


def _of_pools(make: Families, pools: Sequence[PoolFigures]) -> Iterator[Metric]:
    some = make.some
    yield some(
        "taskscaler_pool_instances", {(p.name, state): count for p in pools for state, count in p.instances.items()}
    )
    yield some("taskscaler_pool_max_instances", {p.name: p.ceiling or 0 for p in pools})
    yield some("taskscaler_instances_wanted", {p.name: p.growth.wanted for p in pools})
    yield some(
        "taskscaler_growth_limited", {(p.name, limit): limit == p.growth.limit for p in pools for limit in LIMITS}
    )
    holds = {(p.name, hold): count for p in pools for hold, count in (("cordon", p.cordoned), ("retain", p.retained))}
    yield some("taskscaler_held_instances", holds)
    yield some("taskscaler_update_interval_seconds", {p.name: p.update_interval for p in pools})
    yield some("taskscaler_group_disowned", {p.name: p.is_disowned for p in pools})
    failures = {(p.name, *key): count for p in pools for key, count in p.failures.items()}
    yield some("taskscaler_call_failures_total", failures)


def _tasks(figures: Figures) -> Mapping[str, float]:
    found = figures.capacity
    return {
        state: getattr(found, state)
        for state in ("idle", "pending", "acquired", "reserved", "unavailable", "unhealthy", "suspended")
    }


def _uses(pools: Sequence[PoolFigures]) -> int:
    """The largest limit of uses; 0 if one of the pools has none."""
    uses = [pool.uses for pool in pools]
    return max(uses) if all(uses) else 0
