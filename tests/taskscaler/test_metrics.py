"""Metrics: under the names that GitLab's dashboards query, right, bounded, and at the cost of a few additions."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from math import inf
from pathlib import Path
from textwrap import dedent

import anyio
import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from fleeting import (
    Capability,
    CapacityUnavailable,
    ConfigError,
    JournalError,
    MemoryJournal,
    NoticeKind,
    ProviderError,
    SqliteJournal,
    Unreachable,
    Usage,
)
from fleeting.plugins import structure
from fleeting.runtime._outcomes import class_of
from fleeting.testing import FakeCloud, FakeGroup, Fault, IncreaseFault, virtual_time
from taskscaler import LeaseLost, NoCapacity, Policy, Pool, Taskscaler, config
from taskscaler._errors import SocketRefused
from taskscaler._histogram import Histogram
from taskscaler._jobsfile import read_jobs_file
from taskscaler._meter import BUCKETS, PoolMeter
from taskscaler.executors import MemoryLimit, StepUse
from taskscaler.observers import available_observers, load_observer
from taskscaler.observers._catalogue import ALL, GITLABS, OURS, USES
from taskscaler.observers._scrape import MOST_CONNECTIONS, SHARE, Answers
from taskscaler.observers.metrics import Metrics, MetricsConfig
from tests.taskscaler.metrics_of import read
from tests.taskscaler.scaling import FullDisk, scaling, virtual_clock, work
from tests.time_limits import NEVER_REACHED

pytestmark = pytest.mark.anyio
anyio_backend = virtual_time

FAST = [Policy(idle_time=60)]

KNOWN_TO_GITLAB = {
    "fleeting_provisioner_instances": ("gauge", {"state"}),
    "fleeting_provisioner_max_instances": ("gauge", set()),
    "fleeting_provisioner_missed_updates_total": ("counter", set()),
    "fleeting_provisioner_instance_operations_total": ("counter", {"operation"}),
    "fleeting_provisioner_internal_operations_total": ("counter", {"operation"}),
    "fleeting_provisioner_instance_creation_time_seconds": ("histogram", set()),
    "fleeting_provisioner_instance_is_running_time_seconds": ("histogram", set()),
    "fleeting_provisioner_instance_deletion_time_seconds": ("histogram", set()),
    "fleeting_provisioner_instance_life_duration_seconds": ("histogram", set()),
    "fleeting_taskscaler_tasks": ("gauge", {"state"}),
    "fleeting_taskscaler_max_tasks_per_instance": ("gauge", set()),
    "fleeting_taskscaler_max_use_count_per_instance": ("gauge", set()),
    "fleeting_taskscaler_desired_instances": ("gauge", set()),
    "fleeting_taskscaler_task_operations_total": ("counter", {"operation"}),
    "fleeting_taskscaler_task_instance_readiness_time_seconds": ("histogram", set()),
    "fleeting_taskscaler_scale_operations_total": ("counter", {"operation"}),
}
"""What GitLab's published dashboards query."""


def families(metrics: Metrics) -> Mapping[str, tuple[str, set[str]]]:
    """What a scrape has: each metric's kind and labels, but for those of the client library itself."""
    found = {}
    for family in text_string_to_metric_families(generate_latest(metrics.registry).decode()):
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        name = f"{family.name}_total" if family.type == "counter" else family.name
        if not name.startswith("process_"):
            found[name] = (family.type, labels)
    return found


async def test_gitlabs_dashboards_find_their_names() -> None:
    """Each metric that they query has the name, kind and labels that they expect."""
    metrics = Metrics()
    async with scaling(FakeCloud(), observers=[metrics]):
        found = families(metrics)
    assert {name: found[name] for name in KNOWN_TO_GITLAB} == KNOWN_TO_GITLAB
    assert {each.name: (each.kind, set(each.labels)) for each in GITLABS} == KNOWN_TO_GITLAB


async def test_a_scrape_has_what_the_catalogue_says() -> None:
    """No metric is missing from the catalogue, and none of it from a scrape."""
    metrics = Metrics()
    async with scaling(FakeCloud(), observers=[metrics]) as scaler:
        await work(scaler, "job", 1)
        found = families(metrics)
    said = {each.name: (each.kind, set(each.labels)) for each in (*GITLABS, *OURS, *USES)}
    assert found.keys() == said.keys()
    shown = {name: about for name, about in found.items() if about[1]}  # labels of what never happened are not seen
    assert shown == {name: said[name] for name in shown}


def test_steps_that_are_listed_have_names_in_metrics() -> None:
    """All others are one; of each, all ways to end are there from the beginning."""
    metrics = Metrics(MetricsConfig(steps=("build", "test/unit")))
    ended = {each: 0.0 for each in read(metrics) if each.startswith("taskscaler_steps_total{")}
    assert len(ended) == 3 * 5
    metrics.use_buckets({})
    steps = [StepUse(path=path, ended="failed", cpu_time=2.0) for path in ("build/cc", "test", "test/unit")]
    metrics.meter.uses.ended(Usage(), steps=steps, limit=MemoryLimit(size=32 << 20, by="killed", reached=True))
    found = read(metrics)
    names = ("build", "other", "test/unit")
    assert [found[f'taskscaler_step_cpu_seconds_total{{step="{name}"}}'] for name in names] == [2.0, 2.0, 2.0]
    assert [found[f'taskscaler_steps_total{{state="failed",step="{name}"}}'] for name in names] == [1.0, 1.0, 1.0]
    assert found['taskscaler_job_memory_limit_bytes_sum{by="killed"}'] == 32 << 20
    assert found["taskscaler_memory_kills_total"] == 1.0


@pytest.mark.parametrize("steps", [["a b"], ["a/"], [""], ["other"], ["a"] * 51, ["x" * 257], "build"])
def test_steps_that_cannot_be_are_told(steps: object) -> None:
    """When the file is read."""
    with pytest.raises(ConfigError, match=r"steps"):
        structure({"steps": steps}, MetricsConfig)


async def test_leases_and_reservations_are_counted() -> None:
    """Each operation on slots is counted once, and refusals by whether more could come."""
    metrics = Metrics()
    async with scaling(FakeCloud(), policies=FAST, observers=[metrics], max_instances=1) as scaler:
        await scaler.reserve("a")
        async with scaler.acquire("a"):
            with pytest.raises(NoCapacity) as refusal:
                await scaler.reserve("b")
            assert not refusal.value.possible
            with pytest.raises(NoCapacity):
                await scaler.acquire_lease("c", timeout=1)
            during = read(metrics)
        await scaler.reserve("d")
        await scaler.unreserve("d")
        await scaler.unreserve("d")
        await scaler.acquire_lease("e")
        await scaler.replace("e")
        after = read(metrics)
    tasks = "fleeting_taskscaler_tasks"
    assert during[f'{tasks}{{state="acquired"}}'] == 1
    assert during[f'{tasks}{{state="idle"}}'] == 0
    operations = {
        name: after[f'fleeting_taskscaler_task_operations_total{{operation="{name}"}}']
        for name in ("reserve", "unreserve", "reserve_iop_capacity_failure", "acquire_failure", "replace")
    }
    assert operations == {
        "reserve": 2,
        "unreserve": 1,
        "reserve_iop_capacity_failure": 1,
        "acquire_failure": 1,
        "replace": 1,
    }


async def test_a_reservation_that_may_succeed_later_is_counted_apart() -> None:
    """In preemptive mode a refusal while instances are on their way says that capacity is possible."""
    metrics = Metrics()
    policies = [Policy(idle_count=1, idle_time=60)]
    async with scaling(FakeCloud(boot_time=30), policies=policies, observers=[metrics], max_instances=1) as scaler:
        with pytest.raises(NoCapacity):
            await scaler.reserve("a")
        counted = read(metrics)
    assert counted['fleeting_taskscaler_task_operations_total{operation="reserve_available_capacity_failure"}'] == 1


async def test_times_of_an_instance() -> None:
    """From the request until it is seen, runs and takes jobs; until it is gone once it is deleted; its whole life."""
    metrics = Metrics()
    cloud = FakeCloud(boot_time=30, delete_time=10)
    async with scaling(cloud, policies=FAST, observers=[metrics]) as scaler:
        await work(scaler, "job", 100)
        await anyio.sleep(200)
        found = read(metrics)
    prefix = "fleeting_provisioner_instance"
    for name in ("creation_time", "is_running_time", "deletion_time", "life_duration"):
        assert found[f"{prefix}_{name}_seconds_count"] == 1, name
    ready = found["fleeting_taskscaler_task_instance_readiness_time_seconds_sum"]
    runs, life = found[f"{prefix}_is_running_time_seconds_sum"], found[f"{prefix}_life_duration_seconds_sum"]
    assert 30 <= runs <= ready <= 40
    assert found[f"{prefix}_creation_time_seconds_sum"] < runs
    assert 10 <= found[f"{prefix}_deletion_time_seconds_sum"] <= 20
    assert 160 <= life <= 220
    assert found['taskscaler_instance_seconds_total{pool="default"}'] == pytest.approx(life)
    assert found["taskscaler_queue_wait_seconds_count"] == 1
    assert found["taskscaler_queue_wait_seconds_sum"] == pytest.approx(ready, abs=1)
    operations = "fleeting_provisioner_instance_operations_total"
    assert found[f'{operations}{{operation="create"}}'] == found[f'{operations}{{operation="delete"}}'] == 1
    scalings = "fleeting_taskscaler_scale_operations_total"
    assert found[f'{scalings}{{operation="up"}}'] == found[f'{scalings}{{operation="down"}}'] == 1


async def test_states_of_instances() -> None:
    """An instance is counted where it stands: asked for, on its way, running, on its way out."""
    metrics, seen = Metrics(), list[dict[str, float]]()
    cloud = FakeCloud(boot_time=30, delete_time=10)

    def states() -> dict[str, float]:
        found = read(metrics)
        wanted = ("requested", "creating", "pending", "running", "deleting", "suspended", "unusable")
        return {s: n for s in wanted if (n := found[f'fleeting_provisioner_instances{{state="{s}"}}'])}

    async with scaling(cloud, policies=FAST, observers=[metrics]) as scaler, anyio.create_task_group() as tasks:
        tasks.start_soon(work, scaler, "job", 20)
        for _ in range(150):
            if not seen or seen[-1] != states():
                seen.append(states())
            await anyio.sleep(1)
    assert {"creating": 1} in seen
    assert [each for each in seen if each in ({"running": 1}, {"deleting": 1}, {})][-3:] == [
        {"running": 1},
        {"deleting": 1},
        {},
    ]


async def test_what_the_cloud_takes_is_counted() -> None:
    """A notice, the instance that is lost, and the job that is broken, each once and by its cause."""
    metrics, cloud = Metrics(), FakeCloud(capabilities=frozenset({Capability.NOTICES}))
    async with scaling(cloud, policies=FAST, observers=[metrics]) as scaler:
        with pytest.raises(LeaseLost):
            async with scaler.acquire("job") as lease:
                cloud.notice(lease.instance, in_seconds=100, kind=NoticeKind.PREEMPTION)
                await anyio.sleep(600)
        await anyio.sleep(300)
        found = read(metrics)
    assert found['taskscaler_notices_total{kind="preemption",pool="default"}'] == 1
    assert found['taskscaler_leases_lost_total{cause="preempted"}'] == 1
    assert found['fleeting_taskscaler_task_operations_total{operation="lost"}'] == 1


async def test_calls_that_fail_are_counted_by_their_errors() -> None:
    """A cloud without capacity shows as failed calls of that class, as a limit of growth, and as a wish."""
    metrics, cloud = Metrics(), FakeCloud()
    cloud.faults.increase.always(IncreaseFault(refuse=CapacityUnavailable("none left")))
    async with scaling(cloud, policies=FAST, observers=[metrics]) as scaler:
        with pytest.raises(NoCapacity):
            await scaler.acquire_lease("job", timeout=60)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(work, scaler, "other", 1)
            await anyio.sleep(1)
            found = read(metrics)
            tasks.cancel_scope.cancel()
    failures = found['taskscaler_call_failures_total{call="increase",error="CapacityUnavailable",pool="default"}']
    assert failures >= 1
    assert found['fleeting_provisioner_internal_operations_total{operation="increase_failure"}'] == failures
    assert found['taskscaler_growth_limited{limit="backoff",pool="default"}'] == 1
    assert found['taskscaler_instances_wanted{pool="default"}'] == 1
    assert found['fleeting_taskscaler_tasks{state="pending"}'] == 1


async def test_a_withdrawal_that_fails_is_counted_as_one() -> None:
    """A request that the cloud did not take back shows as a failed call, and as nothing withdrawn."""
    can = frozenset({Capability.NAMED_CREATE, Capability.WITHDRAW})
    metrics, cloud = Metrics(), FakeCloud(capabilities=can, appear_after=1e6)
    cloud.faults.withdraw.always(Fault(refuse=ProviderError("no")))
    async with scaling(cloud, policies=FAST, observers=[metrics]) as scaler:
        with pytest.raises(NoCapacity):
            await scaler.acquire_lease("job", timeout=60)
        await anyio.sleep(120)
        found = read(metrics)
    assert found['fleeting_provisioner_internal_operations_total{operation="withdraw_failure"}'] >= 1
    assert found['fleeting_provisioner_instance_operations_total{operation="withdraw"}'] == 0


async def test_a_ceiling_is_named() -> None:
    """While max_instances keeps jobs waiting, that is the limit of growth, and no other is."""
    metrics = Metrics()
    async with (
        scaling(FakeCloud(), observers=[metrics], max_instances=1) as scaler,
        scaler.acquire("a"),
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(work, scaler, "b", 1)
        await anyio.sleep(1)
        found = read(metrics)
        tasks.cancel_scope.cancel()
    limits = {name: value for name, value in found.items() if name.startswith("taskscaler_growth_limited") and value}
    assert limits == {'taskscaler_growth_limited{limit="max_instances",pool="default"}': 1}
    assert found["fleeting_provisioner_max_instances"] == 1


async def test_a_journal_that_fails_shows() -> None:
    """Commits are timed, failures counted, and while it fails no slot is handed out."""
    metrics, journal = Metrics(), FullDisk()
    async with scaling(FakeCloud(), policies=FAST, observers=[metrics], journal=journal) as scaler:
        await work(scaler, "job", 1)
        before = read(metrics)
        journal.full = True
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(work, scaler, "other", 1)
            await anyio.sleep(3)
            during = read(metrics)
            journal.full = False
        after = read(metrics)
    assert before["taskscaler_journal_commit_seconds_count"] > 0
    assert before["taskscaler_journal_records_total"] > 0
    failing = [found["taskscaler_journal_failing"] for found in (before, during, after)]
    assert failing == [0, 1, 0]
    assert [found["taskscaler_handing_out"] for found in (before, during, after)] == [1, 0, 1]
    assert after["taskscaler_journal_failures_total"] >= 2


async def test_dials_are_counted_by_what_comes_of_them() -> None:
    """Connections that are made, and those that cannot be."""
    metrics = Metrics()
    cloud = FakeCloud()
    async with scaling(cloud, policies=FAST, observers=[metrics]) as scaler, scaler.acquire("job") as lease:
        async with lease.dial() as connection:
            await connection.run("true")
        cloud.cut(lease.instance)
        found = read(metrics)
    assert found['taskscaler_dials_total{outcome="ok"}'] == 1
    assert found["taskscaler_dial_seconds_count"] == 1


async def test_what_an_earlier_manager_counted_is_not_counted_again() -> None:
    """After a restart, an instance that was there has no request of ours, and only its time from now on counts."""
    journal, cloud = MemoryJournal(), FakeCloud()
    policies = [Policy(idle_count=1, idle_time=60)]
    async with scaling(cloud, policies=policies, journal=journal):
        await anyio.sleep(1000)
    metrics = Metrics()
    async with scaling(cloud, policies=policies, journal=journal, observers=[metrics]):
        await anyio.sleep(100)
        found = read(metrics)
    assert found["fleeting_provisioner_instance_creation_time_seconds_count"] == 0
    assert found['fleeting_provisioner_instances{state="running"}'] == 1
    assert found['taskscaler_instance_seconds_total{pool="default"}'] == pytest.approx(100, abs=5)


async def test_seconds_of_sleep_are_not_counted() -> None:
    """Nobody pays for a suspended instance: neither the manager that suspends it counts its sleep, nor the next."""
    journal = MemoryJournal()
    cloud = FakeCloud(capabilities=frozenset({Capability.NAMED_CREATE, Capability.SUSPEND_RESUME}))
    counted = 'taskscaler_instance_seconds_total{pool="default"}'
    for used, least, most in ((True, 60, 150), (False, 0, 5)):
        metrics = Metrics()
        async with scaling(
            cloud, policies=FAST, journal=journal, observers=[metrics], suspended_count=1, suspended_time=1e6
        ) as scaler:
            if used:
                await work(scaler, "job", 20)
            await anyio.sleep(5000)
            found = read(metrics)
        assert found['fleeting_provisioner_instances{state="suspended"}'] == 1
        assert least <= found[counted] <= most


async def test_several_pools() -> None:
    """GitLab's names show all pools together, ours each."""
    metrics, clouds = Metrics(), [FakeCloud(identity="fake/a"), FakeCloud(identity="fake/b")]
    groups = [FakeGroup(cloud) for cloud in clouds]
    pools = [
        Pool(group, name=name, dial=group.dial, max_instances=most, capacity_per_instance=slots)
        for group, name, most, slots in zip(groups, ("spot", "steady"), (1, 3), (1, 2), strict=True)
    ]
    policies = [Policy(idle_count=3, idle_time=60)]
    async with Taskscaler(pools, policies=policies, observers=[metrics], clock=virtual_clock()):
        await anyio.sleep(60)
        found = read(metrics)
    assert found['fleeting_provisioner_instances{state="running"}'] == 2
    assert found['taskscaler_pool_instances{pool="spot",state="running"}'] == 1
    assert found['taskscaler_pool_instances{pool="steady",state="running"}'] == 1
    assert found["fleeting_provisioner_max_instances"] == 4
    assert found["fleeting_taskscaler_max_tasks_per_instance"] == 2


async def test_before_it_is_open_and_after() -> None:
    """A scrape of a scaler that is not open shows what was counted, and nothing that it would have to invent."""
    metrics = Metrics()
    group = FakeGroup(FakeCloud())
    scaler = Taskscaler(Pool(group, dial=group.dial), observers=[metrics], clock=virtual_clock())
    assert "fleeting_provisioner_instances" not in str(read(metrics))
    async with scaler:
        pass
    assert read(metrics)['fleeting_taskscaler_task_operations_total{operation="acquire"}'] == 0


async def test_a_scaler_is_counted_once() -> None:
    """Two observers of metrics on one scaler are refused, because only one of them could count."""
    group = FakeGroup(FakeCloud())
    with pytest.raises(ValueError, match="expected one for metrics, found 2"):
        Taskscaler(Pool(group, dial=group.dial), observers=[Metrics(), Metrics()])


async def test_metrics_hear_of_no_event() -> None:
    """They cost no event for each lease: that there are metrics makes no scaler report anything."""
    group = FakeGroup(FakeCloud())
    scaler = Taskscaler(Pool(group, dial=group.dial), observers=[Metrics()], clock=virtual_clock())
    assert not scaler._observers


# --- from files ----------------------------------------------------------------------------------------------


def jobs_file(path: Path, settings: str) -> Path:
    """A jobs file with these settings of the fleet."""
    file = path / "jobs.toml"
    file.write_text('[autoscaler]\nplugin = "local"\n' + dedent(settings) + '\n[[jobs]]\nname = "a"\nscript = "true"\n')
    return file


def bounds(metrics: Metrics, name: str) -> Sequence[float]:
    """Of a histogram."""
    return metrics.meter.histograms[name].bounds


async def test_labels_and_buckets_come_from_the_file(tmp_path: Path) -> None:
    """The user's labels are on each metric, and the buckets are those that the file has."""
    written = """
        instance_operation_time_buckets = [1, 2]
        instance_deletion_time_buckets = [3, 4.5]
        [autoscaler.observers.metrics]
        labels = { team = "build", site = "b" }
        buckets = { queue_wait = [0.5], instance_readiness_time = [7] }
    """
    file = read_jobs_file(jobs_file(tmp_path, written))
    (metrics,) = file.observers
    assert isinstance(metrics, Metrics)
    file.autoscaler.scaler(file.groups, observers=file.observers)
    assert bounds(metrics, "instance_creation_time") == (1, 2, inf)
    assert bounds(metrics, "instance_deletion_time") == (3, 4.5, inf)
    assert bounds(metrics, "instance_readiness_time") == (7, inf)
    assert bounds(metrics, "instance_life_duration") == (*BUCKETS["instance_life_duration"], inf)
    found = [name for name in read(metrics) if not name.startswith("process_")]
    assert found
    assert all('site="b"' in name and 'team="build"' in name for name in found)


async def test_gitlabs_buckets_are_obeyed(tmp_path: Path) -> None:
    """The six keys of a config.toml mean what they mean to GitLab Runner."""
    file = tmp_path / "config.toml"
    file.write_text(
        '[[runners]]\nname = "r"\nexecutor = "instance"\n[runners.autoscaler]\nplugin = "local"\n'
        "instance_operation_time_buckets = [1, 2]\ninstance_is_running_time_buckets = [5]\n"
        "instance_life_duration_buckets = [9]\n"
    )
    metrics = Metrics()
    config.load(file).scaler(observers=[metrics])
    assert bounds(metrics, "instance_creation_time") == (1, 2, inf)
    assert bounds(metrics, "instance_is_running_time") == (5, inf)
    assert bounds(metrics, "instance_life_duration") == (9, inf)


@pytest.mark.parametrize(
    ("written", "used"),
    [
        ("[0, 1, 5]", (1, 5)),
        (str([*range(1, 101)]), tuple(range(2, 101, 2))),
        ("[-1.0, inf]", BUCKETS["instance_life_duration"]),
        ('"none"', BUCKETS["instance_life_duration"]),
        ("[5, 1]", (1, 5)),
    ],
)
async def test_gitlabs_buckets_end_nothing(written: str, used: tuple[float, ...], tmp_path: Path) -> None:
    """Bounds of which metrics can use only some are no reason to refuse a config.toml; a note says what is used."""
    file = tmp_path / "config.toml"
    file.write_text(
        '[[runners]]\nname = "r"\nexecutor = "instance"\n[runners.autoscaler]\nplugin = "local"\n'
        f"instance_life_duration_buckets = {written}\n"
    )
    metrics, found = Metrics(), config.load(file)
    found.scaler(observers=[metrics])
    assert bounds(metrics, "instance_life_duration") == (*used, inf)
    assert any(note.startswith("instance_life_duration_buckets: metrics have ") for note in found.notes)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ('listen = "9252"', 'expected HOST:PORT, such as "127.0.0.1:9252", found "9252"'),
        ('labels = { state = "x" }', "no metric has already"),
        ('labels = { "a-b" = "x" }', "labels that Prometheus accepts"),
        ("buckets = { queue_wiat = [1] }", "did you mean queue_wait"),
        ("buckets = { queue_wait = [2, 1] }", "above 0 and ascending"),
        ("buckets = { queue_wait = [] }", "above 0 and ascending"),
        ("bukets = {}", "did you mean `buckets`"),
    ],
)
async def test_mistakes_in_settings(settings: str, said: str, tmp_path: Path) -> None:
    """Each is refused before anything starts, with what is expected."""
    with pytest.raises(ConfigError, match="metrics") as refusal:
        read_jobs_file(jobs_file(tmp_path, f"[autoscaler.observers.metrics]\n{settings}"))
    assert said in str(refusal.value)


async def test_the_plugin_is_found() -> None:
    """It is an observer like others, by its name."""
    assert "metrics" in available_observers()
    assert isinstance(load_observer("metrics", {"labels": {"a": "b"}}), Metrics)


# --- what is bounded -----------------------------------------------------------------------------------------


class _OfAPlugin(CapacityUnavailable):
    """What a plugin may raise, under a name of its own."""


@pytest.mark.parametrize(
    ("error", "name"),
    [
        (_OfAPlugin("x"), "CapacityUnavailable"),
        (Unreachable("x"), "Unreachable"),
        (TimeoutError(), "TimeoutError"),
        (ConnectionResetError(), "OSError"),
    ],
)
async def test_classes_of_errors_are_few(error: Exception, name: str) -> None:
    """Whatever a plugin raises, the label is one of our classes': else it could have any number of values."""
    assert class_of(error) == name


async def test_no_label_has_what_jobs_and_clouds_say() -> None:
    """Keys of jobs, ids of instances and words of errors appear nowhere in a scrape."""
    metrics, cloud = Metrics(), FakeCloud()
    cloud.faults.increase.once(IncreaseFault(refuse=CapacityUnavailable("WORDS of a cloud")))
    async with (
        scaling(cloud, policies=FAST, observers=[metrics]) as scaler,
        scaler.acquire("KEY-of-a-job") as lease,
    ):
        instance = lease.instance
        shown = generate_latest(metrics.registry).decode()
    assert not [word for word in ("KEY-of-a-job", "WORDS", instance) if word in shown]


@given(st.lists(st.floats(0, 1e6)), st.sets(st.floats(1e-3, 1e5), min_size=1, max_size=20))
async def test_a_histogram_counts_each_value_once(values: list[float], chosen: set[float]) -> None:
    """Each bucket has what is at most its bound and above the one before."""
    histogram = Histogram(sorted(chosen))
    for value in values:
        histogram.observe(value)
    naive = [sum(value <= bound for value in values) for bound in histogram.bounds]
    assert [sum(histogram.counts[: n + 1]) for n in range(len(naive))] == naive
    assert histogram.total == pytest.approx(sum(values))


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 1000))))
async def test_instance_seconds_never_shrink(steps: list[tuple[bool, float]]) -> None:
    """They are what all lives come to so far, however instances come and go, and never less than before."""
    pool, now, there, ended, shown = PoolMeter(), 1.8e9, list[tuple[float, int]](), 0.0, 0.0
    for comes, passes in steps:
        now += passes
        if comes:
            there.append((now, pool.came(now)))
        elif there:
            since, began = there.pop(len(there) // 2)
            ended += now - since
            before = pool.instance_seconds(now)
            pool.went(began, now)
            assert pool.instance_seconds(now) == before
        found = pool.instance_seconds(now)
        assert found == pytest.approx(ended + sum(now - since for since, _ in there), abs=1e-2)
        assert found >= shown
        shown = found


# --- where they are read -------------------------------------------------------------------------------------


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_an_address_shows_metrics_and_nothing_else() -> None:
    """They are at /metrics, to be read by programs of this machine, and not by pages of websites."""
    metrics, group = Metrics(MetricsConfig(listen="127.0.0.1:0")), FakeGroup(FakeCloud())
    async with (
        Taskscaler(Pool(group, dial=group.dial), observers=[metrics], delete_instances_on_shutdown=False),
        httpx.AsyncClient(trust_env=False) as client,
    ):
        url = metrics.url

        async def status(path: str = "", method: str = "GET", **headers: str) -> int:
            address = url.removesuffix("/metrics") + path if path else url
            return (await client.request(method, address, headers=headers)).status_code

        answer = await client.get(url, headers={"Accept": "application/openmetrics-text; version=1.0.0"})
        assert answer.text.endswith("# EOF\n")
        assert "fleeting_taskscaler_tasks" in answer.text
        assert await status(method="POST") == 405
        assert await status("/") == 200
        assert await status("/v1/status") == 404
        assert await status(host="evil.example") == 403
        assert await status(host="localhost:1") == 200
        assert await status(origin="https://evil.example") == 403
    async with httpx.AsyncClient(trust_env=False) as client:
        with pytest.raises(httpx.ConnectError):
            await client.get(url)


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_an_address_that_is_taken_is_refused() -> None:
    """The scaler does not start, and says which address it is and what to do."""
    metrics, group = Metrics(MetricsConfig(listen="127.0.0.1:0")), FakeGroup(FakeCloud())
    async with Taskscaler(Pool(group, dial=group.dial), observers=[metrics]):
        place = metrics.url.removeprefix("http://").removesuffix("/metrics")
        other, second = FakeGroup(FakeCloud()), Metrics(MetricsConfig(listen=place))
        with pytest.raises(SocketRefused, match=rf"cannot listen on {place} .*; name another with --metrics"):
            async with Taskscaler(Pool(other, dial=other.dial), observers=[second]):
                pass


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_who_may_not_have_the_fleet_is_told_so_although_the_address_is_taken_too(tmp_path: Path) -> None:
    """A second manager of the same file learns who has it; where the address alone is taken, nothing is asked for."""
    cloud = FakeCloud()
    first = Metrics(MetricsConfig(listen="127.0.0.1:0"))
    journal = tmp_path / "journal.db"

    def scaler(cloud: FakeCloud, metrics: Metrics, journal: Path | None) -> Taskscaler:
        kept = None if journal is None else SqliteJournal(journal)
        pool = Pool(FakeGroup(cloud), max_instances=1)
        policies = [Policy(idle_count=1, idle_time=60)]
        return Taskscaler(pool, policies=policies, journal=kept, observers=[metrics])

    async with scaler(cloud, first, journal):
        listen = first.url.removeprefix("http://").removesuffix("/metrics")
        with pytest.raises(JournalError):
            await scaler(cloud, Metrics(MetricsConfig(listen=listen)), journal).__aenter__()
        other = FakeCloud()
        with pytest.raises(SocketRefused):
            await scaler(other, Metrics(MetricsConfig(listen=listen)), None).__aenter__()
        assert not other.machines


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_who_sits_there_keeps_nobody_out() -> None:
    """However many connections sit there with half a request, scrapes are answered, one over each connection."""
    metrics, group = Metrics(MetricsConfig(listen="127.0.0.1:0")), FakeGroup(FakeCloud())
    async with (
        Taskscaler(Pool(group, dial=group.dial), observers=[metrics], delete_instances_on_shutdown=False),
        AsyncExitStack() as idle,
        httpx.AsyncClient(trust_env=False, timeout=NEVER_REACHED) as client,
    ):
        port = httpx.URL(metrics.url).port
        assert port is not None
        for _ in range(MOST_CONNECTIONS + 5):
            stream = await idle.enter_async_context(await anyio.connect_tcp("127.0.0.1", port))
            await stream.send(b"GET /metrics HTTP/1.1\r\n")
        for _ in range(2):
            answer = await client.get(metrics.url)
            assert answer.status_code == 200
            assert answer.headers["connection"] == "close"


async def test_an_answer_is_kept_for_as_long_as_it_was_dear() -> None:
    """Making answers takes a bounded share of the time, however many ask; each format has its own."""
    now, made = [0.0], []

    class Slow(Collector):
        def collect(self) -> Iterable[Metric]:
            now[0] += 0.01
            made.append(now[0])
            return []

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Slow())
    made.clear()
    answers = Answers(registry, lambda: now[0])
    kinds = {answers.answer("application/openmetrics-text; q=0.5").headers["content-type"] for _ in range(1000)}
    kinds |= {answers.answer("*/*").headers["content-type"] for _ in range(1000)}
    assert len(kinds) == len(made) == 2
    now[0] += 0.01 / SHARE
    answers.answer("")
    assert len(made) == 3


async def test_the_page_describes_every_metric() -> None:
    """The reference has each metric with its kind, its labels, and the question that it answers."""
    page = (Path(__file__).parents[2] / "docs/reference/metrics.md").read_text()
    for each in ALL.values():
        labels = ", ".join(f"`{label}`" for label in each.labels)
        assert f"| `{each.name}` | {each.kind} | {labels} | {each.question} |" in page
