"""A real Prometheus scrapes a live fleet: what dashboards ask for is there, and alerts fire and resolve.

One story is played for all tests here: jobs come and go on a fleet of which something goes wrong, one thing after the
other. What is asked afterwards is asked of the whole story.
"""

import json
import re
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from math import isnan
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from anyio import to_thread
from attrs import define, field

from fleeting import Capability, CapacityUnavailable, LoopClock, ProviderError, ScaleThrottle, Usage
from fleeting.testing import DecreaseFault, FakeCloud, FakeGroup, Fault, IncreaseFault, UpdateFault
from taskscaler import LeaseLost, Policy, Pool, Taskscaler
from taskscaler._cost import Spending, Tariff
from taskscaler._meter import CALLS, INSTANCES, TASKS
from taskscaler._uses import LIMITED_BY
from taskscaler.batch import JobChanged, JobState
from taskscaler.dashboards import ALERTS, ROWS, alert_rules
from taskscaler.executors import MemoryLimit, StepUse
from taskscaler.observers._batches import OfBatches
from taskscaler.observers._catalogue import BATCHES, COSTS, GITLABS, OURS, USES, Described
from taskscaler.observers._costs import OfCosts
from taskscaler.observers.metrics import Metrics, MetricsConfig
from taskscaler_gitlab._metrics import RunnerMetrics, Standing
from tests.e2e.prometheus import Prometheus, program, prometheus
from tests.taskscaler.metrics_of import read
from tests.taskscaler.scaling import FullDisk

pytestmark = [pytest.mark.slow, pytest.mark.needs("prometheus", "promtool"), pytest.mark.timeout(600)]

WINDOW = "2s"
"""Over which rates are taken here, by dashboards and alerts alike."""

AT_ONCE = [
    alert._replace(
        lasts="0s",
        expression=re.sub("> (600|900|3600)$", "> 1", alert.expression.replace("[15m]", f"[{WINDOW}]")),
    )
    for alert in ALERTS
]
"""The same alerts, but sooner."""

METRICS = (*GITLABS, *OURS, *USES, *BATCHES, *COSTS)


@define
class Story:
    """What was played, for the tests to ask about."""

    server: Prometheus
    fired: list[str] = field(factory=list)
    """Alerts that fired when they should, and resolved."""

    began: float = 0.0
    ended: float = 0.0
    shown: Mapping[str, float] = field(factory=dict)
    """What the fleet itself showed at the end, when nothing moved any more."""

    stored: Mapping[str, float | None] = field(factory=dict)
    """What Prometheus had of it then."""

    def series(self, expression: str) -> Sequence[Mapping[str, Any]]:
        """Ask for what was so in the story; series of numbers that are none are left out."""
        filled = expression.replace("$__rate_interval", WINDOW).replace("$job", ".*").replace("[1d]", f"[{WINDOW}]")
        found = self.server.over_time(filled, self.began, self.ended)
        return [each for each in found if not all(isnan(float(value)) for _, value in each["values"])]

    def labels(self, expression: str, label: str) -> set[str]:
        """Values that a label has in the answer."""
        return {each["metric"][label] for each in self.series(expression)}


_CAN = frozenset({Capability.NAMED_CREATE, Capability.NOTICES})

# --- the story -----------------------------------------------------------------------------------------------


@define
class Play:
    """A fleet on a cloud in memory, in real time, and what is done to it."""

    story: Story
    metrics: Metrics = field(factory=lambda: Metrics(MetricsConfig(listen="127.0.0.1:0")))
    cloud: FakeCloud = field(factory=lambda: FakeCloud(capabilities=_CAN))
    journal: FullDisk = field(factory=FullDisk)
    scaler: Taskscaler = field(init=False)
    batches: OfBatches = field(init=False)
    runner: RunnerMetrics = field(init=False)
    """Of GitLab's jobs; what it hears of here, its own tests have it hear from a runner."""

    def __attrs_post_init__(self) -> None:
        """Prepare it."""
        group = FakeGroup(self.cloud)
        spending = Spending.at({"default": Tariff(price_per_hour=3.6, currency="EUR")})
        costs = OfCosts(self.metrics.families, lambda: spending.so_far(LoopClock().now()))
        self.metrics.registry.register(costs)
        pool = Pool(
            group,
            dial=group.dial,
            max_instances=3,
            scale_throttle=ScaleThrottle(limit=-1),
            update_interval=0.1,
            update_interval_when_expecting=0.02,
            deletion_retry_interval=0.1,
            backoff_initial=0.1,
            backoff_cap=0.2,
        )
        self.scaler = Taskscaler(
            pool,
            policies=[Policy(idle_time=0.3)],
            journal=self.journal,
            observers=[self.metrics, spending.hear],
            delete_instances_on_shutdown=True,
        )
        labels = {"runner": "abc", "runner_name": "fleet", "system_id": "r_1"}
        jobs = {("running", "executing"): 2}
        standing = Standing(jobs=jobs, requests=1, most_requests=2, wanted_requests=1.5, concurrent=4, limit=0)
        self.runner = RunnerMetrics(self.metrics.registry, labels, lambda: standing)
        self.batches = OfBatches(self.metrics.families, list)
        self.metrics.registry.register(self.batches)

    async def work(self, key: str, seconds: float = 0.05) -> None:
        """Hold a slot, and use it; an instance may be taken away meanwhile."""
        with suppress(LeaseLost):
            async with self.scaler.acquire(key) as lease, lease.dial() as connection:
                await connection.run("true")
                await anyio.sleep(seconds)

    @asynccontextmanager
    async def held(self, count: int) -> AsyncIterator[None]:
        """Have so many jobs hold slots, or wait for them, while the body runs."""
        async with anyio.create_task_group() as tasks:
            for number in range(count):
                tasks.start_soon(self.work, f"held-{number}", 1e3)
            yield
            tasks.cancel_scope.cancel()

    @property
    def running(self) -> list[str]:
        """Instances that run, as the cloud has them."""
        return sorted(self.cloud.alive)

    @property
    def announced(self) -> int:
        """Instances that the cloud announced to take away."""
        return self.metrics.meter.pools["default"].notices.total()

    @property
    def in_use(self) -> int:
        """Slots that jobs hold."""
        figures = self.metrics.look()
        assert figures is not None
        return figures.capacity.acquired

    async def a_few_jobs(self) -> None:
        """Jobs come and go, and so do instances."""
        for number in range(3):
            async with anyio.create_task_group() as tasks:
                for job in range(4):
                    tasks.start_soon(self.work, f"job-{number}-{job}")
            self.use_up()
            self.runner.answered("POST jobs/request", 201, 0.1)
            self.runner.job_taken(5.0)
            self.runner.job_ended("script_failure", 60.0)
            self.runner.stages_ended({"step_script": 50.0})
            await anyio.sleep(0.3)  # a rate is taken between two scrapes
        await self.scaler.reserve("reserved", timeout=60)
        await self.scaler.unreserve("reserved")
        await self.wait(lambda: not self.running)

    def use_up(self) -> None:
        """Have jobs use something, as whoever runs them says it."""
        used = {"cpu_time": 1.5, "peak_memory": 40 << 20, "disk_written": 4096}
        step = StepUse.read({"path": "build", "ended": "succeeded", "duration": 2.0, "disk_read": 512, **used})
        usage = Usage(cpu_time=1.5, peak_memory=40 << 20, disk_written=4096)
        for by in LIMITED_BY:
            limit = MemoryLimit(size=64 << 20, by=by, reached=by == "killed")
            self.metrics.meter.uses.ended(usage, limit=limit, steps=[step])

    async def wait(self, is_so: Callable[[], bool]) -> None:
        """Wait until something is so."""
        while True:
            if is_so():
                return
            await anyio.sleep(0.02)

    async def alert(self, name: str, *, firing: bool) -> None:
        """Wait until an alert fires, or does not any more."""
        while True:
            if bool(await self._query(f'ALERTS{{alertname="{name}",alertstate="firing"}}')) is firing:
                break
            await anyio.sleep(0.05)
        if not firing:
            self.story.fired.append(name)

    async def _query(self, expression: str) -> Sequence[Mapping[str, Any]]:
        return await to_thread.run_sync(self.story.server.query, expression)

    @asynccontextmanager
    async def firing(self, *names: str) -> AsyncIterator[None]:
        """See alerts fire while the body's trouble lasts, at its end, and resolve once it is over."""
        yield
        for name in names:
            await self.alert(name, firing=True)

    async def fires_while(self, name: str, trouble: Callable[[], Awaitable[object]]) -> None:
        """See an alert fire while something happens over and over, and resolve once it does not.

        What is counted within a short time is over when a busy machine looks.
        """

        async def over_and_over() -> None:
            while True:
                await trouble()
                await anyio.sleep(0.1)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(over_and_over)
            await self.alert(name, firing=True)
            tasks.cancel_scope.cancel()
        await self.alert(name, firing=False)

    async def resolved(self, *names: str) -> None:
        """See alerts resolve."""
        for name in names:
            await self.alert(name, firing=False)

    async def too_little(self) -> None:
        """Jobs wait: for a ceiling to be raised, for the cloud to have something."""
        faults = self.cloud.faults
        async with self.held(5), self.firing("TaskscalerJobsWait", "TaskscalerAtCeiling"):
            pass
        await self.resolved("TaskscalerJobsWait", "TaskscalerAtCeiling")

        await self.wait(lambda: not self.running)
        faults.increase.always(IncreaseFault(refuse=CapacityUnavailable("none left")))
        async with self.held(3), self.firing("TaskscalerCloudRefuses"):
            pass
        faults.increase.clear()
        await self.resolved("TaskscalerCloudRefuses")

    async def lose_three(self) -> None:
        """Have the cloud take three instances that are in use; it announces one of them."""
        before = self.announced
        async with self.held(3):
            await self.wait(lambda: self.in_use == 3)
            self.cloud.notice(self.running[0], in_seconds=1e3)
            await self.wait(lambda: self.announced > before)
            for instance in self.running:
                self.cloud.vanish(instance)
            await self.wait(lambda: not self.in_use)

    async def gone_or_never_there(self) -> None:
        """Instances are taken away, or never become ready, or nobody can say whether they are there."""
        faults = self.cloud.faults
        await self.fires_while("TaskscalerInstancesLost", self.lose_three)

        faults.connect_info.always(Fault(refuse=ProviderError("no address yet")))
        async with self.held(2), self.firing("TaskscalerInstancesNotReady"):
            pass
        faults.connect_info.clear()
        await self.resolved("TaskscalerInstancesNotReady")

        faults.update.always(UpdateFault(slow=3))
        async with self.firing("TaskscalerViewStale"):
            pass
        faults.update.clear()
        await self.resolved("TaskscalerViewStale")

    async def not_as_it_should(self) -> None:
        """The disk is full, instances stay, and jobs fail."""
        faults = self.cloud.faults
        self.journal.full = True
        async with self.held(1), self.firing("TaskscalerJournalFailing", "TaskscalerNotHandingOut"):
            pass
        self.journal.full = False
        await self.resolved("TaskscalerJournalFailing", "TaskscalerNotHandingOut")

        async with self.held(1):
            await self.wait(lambda: self.in_use == 1)
            instance = next(iter(self.running))
            async with self.firing("TaskscalerInstancesRetained"):
                await self.scaler.retain(instance)
            await self.scaler.unretain(instance)
            await self.resolved("TaskscalerInstancesRetained")
            faults.decrease.always(DecreaseFault(hang=True))
        async with self.firing("TaskscalerDeletionsStuck"):
            pass
        faults.decrease.clear()
        for machine in list(self.cloud.machines):
            self.cloud.release(machine)
        await self.resolved("TaskscalerDeletionsStuck")

        await self.fires_while("TaskscalerGitlabRefuses", self.gitlab_refuses)
        await self.fires_while("TaskscalerJobsFail", self.jobs_fail)

    async def gitlab_refuses(self) -> None:
        """Have GitLab refuse a call."""
        self.runner.answered("POST jobs/request", 403, 0.1)

    async def jobs_fail(self) -> None:
        """Have jobs of a batch end, most of them badly."""
        for state in (JobState.SUCCEEDED, JobState.FAILED, JobState.FAILED):
            record: Any = SimpleNamespace(state=state)
            self.batches.changed(JobChanged(at=0.0, record=record))

    async def play(self) -> None:
        """All of it."""
        now = LoopClock().now
        await self.alert("TaskscalerAbsent", firing=True)
        async with self.scaler:
            self.story.server.scrape(self.metrics.url)
            await self.resolved("TaskscalerAbsent")
            self.story.began = now()
            await self.a_few_jobs()
            await self.too_little()
            await self.gone_or_never_there()
            await self.not_as_it_should()
            await self.a_few_jobs()
            self.story.ended = now()
            await self.come_to_rest()

    async def come_to_rest(self) -> None:
        """Note what is shown, and what is stored of it, as soon as these are the same."""
        while True:
            shown = {name: value for name, value in read(self.metrics).items() if _rests(name)}
            stored = {name: await self._stored(name) for name in shown}
            self.story.shown, self.story.stored = shown, stored
            if stored == shown:
                return
            await anyio.sleep(0.1)

    async def _stored(self, name: str) -> float | None:
        found = await self._query(name)
        return float(found[0]["value"][1]) if len(found) == 1 else None


def _rests(name: str) -> bool:
    """Whether a sample of GitLab's stays as it is when nothing happens; views of the cloud go on."""
    return name.startswith("fleeting_") and "_bucket" not in name and "update" not in name


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    """Play it, once."""
    with prometheus(tmp_path_factory.mktemp("prometheus"), AT_ONCE) as server:
        told = Story(server)
        anyio.run(Play(told).play)
        yield told


# --- what can be asked of it ---------------------------------------------------------------------------------


def test_prometheus_has_what_the_fleet_shows(story: Story) -> None:
    """Under GitLab's names, each series that is shown is stored, under the same labels and with the same value."""
    assert story.stored == story.shown
    assert len(story.shown) > 60


def as_dashboards_ask(metric: Described) -> Sequence[str]:
    """Query a metric as a dashboard would: gauges as they are, counters as rates, histograms as quantiles."""
    by = f"by ({', '.join(metric.labels)}) " if metric.labels else ""
    if metric.kind == "gauge":
        return [f"sum {by}({metric.name})"]
    if metric.kind == "counter":
        return [f"sum {by}(rate({metric.name}[{WINDOW}]))", f"sum {by}(increase({metric.name}[{WINDOW}]))"]
    whole = f"sum by (le) (rate({metric.name}_bucket[{WINDOW}]))"
    mean = f"rate({metric.name}_sum[{WINDOW}]) / rate({metric.name}_count[{WINDOW}])"
    return [f"histogram_quantile({quantile}, {whole})" for quantile in (0.5, 0.95, 0.99)] + [mean]


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_every_metric_answers(metric: Described, story: Story) -> None:
    """Asked as a dashboard would, each metric gives numbers, with all of its labels."""
    for expression in as_dashboards_ask(metric):
        found = story.series(expression)
        assert found, expression
        if metric.kind != "histogram":
            assert all(set(each["metric"]) == set(metric.labels) for each in found), expression


@pytest.mark.parametrize(
    ("expression", "label", "values"),
    [
        (
            "sum by (state) (fleeting_provisioner_instances)",
            "state",
            {"requested", "creating", "pending", "running", "deleting", "suspended", "unusable"},
        ),
        (
            "sum by (state) (fleeting_taskscaler_tasks)",
            "state",
            {"idle", "pending", "acquired", "reserved", "unavailable", "unhealthy", "suspended"},
        ),
        (f"sum by (operation) (rate(fleeting_taskscaler_task_operations_total[{WINDOW}]))", "operation", {*TASKS}),
        (
            f"sum by (operation) (rate(fleeting_provisioner_instance_operations_total[{WINDOW}]))",
            "operation",
            {*INSTANCES},
        ),
        (f"sum by (operation) (rate(fleeting_provisioner_internal_operations_total[{WINDOW}]))", "operation", {*CALLS}),
        (
            f"sum by (operation) (rate(fleeting_taskscaler_scale_operations_total[{WINDOW}]))",
            "operation",
            {"up", "down"},
        ),
        (
            f"sum by (failure_type) (rate(gitlab_runner_worker_processing_failures_total[{WINDOW}]))",
            "failure_type",
            {"no_free_executor", "job_failure", "other"},
        ),
        (
            f"sum by (level) (increase(gitlab_runner_errors_total[{WINDOW}]))",
            "level",
            {"warning", "error", "fatal", "panic"},
        ),
        (
            f"sum by (path) (rate(gitlab_runner_api_request_retries_total[{WINDOW}]))",
            "path",
            {"request_job", "update_job", "patch_trace"},
        ),
    ],
)
def test_states_and_operations(expression: str, label: str, values: set[str], story: Story) -> None:
    """Asked by state and by operation, each that there is has its series from the beginning, also at nought."""
    assert story.labels(expression, label) == values


PANELS = [
    pytest.param(query, id=f"{panel.title}, {query.legend}")
    for row in ROWS
    for panel in row.panels
    for query in panel.queries
]


@pytest.mark.parametrize("query", PANELS)
def test_every_query_of_the_dashboard_answers(query: Any, story: Story) -> None:  # noqa: ANN401  (a `Query`)
    """Each gives numbers in a story in which all that happens, and the labels that its legend shows."""
    found = story.series(query.expression)
    assert found
    wanted = set(re.findall(r"{{(\w+)}}", query.legend))
    assert all(wanted <= set(each["metric"]) for each in found)


def test_alerts_fire_and_resolve(story: Story) -> None:
    """Each that can be provoked here fired while its trouble lasted, and resolved when that was over."""
    assert set(story.fired) == {alert.name for alert in ALERTS} - {"TaskscalerGroupDisowned"}


# --- and of their spans of time ------------------------------------------------------------------------------

BAD_FOR: Mapping[str, tuple[str, str, str]] = {
    "TaskscalerAbsent": ("fleeting_taskscaler_tasks", "_x30 1x60", ""),
    "TaskscalerJournalFailing": ("taskscaler_journal_failing", "1x30 0x60", ""),
    "TaskscalerGroupDisowned": ("taskscaler_group_disowned", "1x30 0x60", 'pool="a"'),
    "TaskscalerNotHandingOut": ("taskscaler_handing_out", "0x30 1x60", ""),
    "TaskscalerJobsWait": ("taskscaler_oldest_wait_seconds", "960x30 0x60", ""),
    "TaskscalerAtCeiling": ("taskscaler_growth_limited", "1x30 0x60", 'pool="a",limit="max_instances"'),
    "TaskscalerCloudRefuses": ("taskscaler_growth_limited", "1x30 0x60", 'pool="a",limit="backoff"'),
    "TaskscalerViewStale": ("taskscaler_view_age_seconds", "2000x30 5x60", 'pool="a"'),
    "TaskscalerInstancesNotReady": (
        "fleeting_provisioner_internal_operations_total",
        "0+1x30 30x60",
        'operation="prepare_failure"',
    ),
    "TaskscalerInstancesLost": ("taskscaler_instances_lost_total", "0+1x30 30x60", 'pool="a",cause="vanished"'),
    "TaskscalerDeletionsStuck": ("taskscaler_oldest_deletion_seconds", "3700x30 0x60", 'pool="a"'),
    "TaskscalerInstancesRetained": ("taskscaler_held_instances", "1x2000 0x60", 'pool="a",hold="retain"'),
    "TaskscalerJobsFail": ("taskscaler_job_outcomes_total", "0+1x30 30x60", 'state="failed"'),
    "TaskscalerGitlabRefuses": (
        "gitlab_runner_api_request_statuses_total",
        "0+1x30 30x60",
        'endpoint="request_job",status="403"',
    ),
}
"""For each alert a series that is bad from the beginning, each minute, and good later."""

ALWAYS: Mapping[str, str] = {"TaskscalerViewStale": "taskscaler_update_interval_seconds"}
"""What else an alert's expression has, for each pool, of a value that never changes."""

INTERVAL = 900
"""That value: seconds."""

BUSY: Mapping[str, str] = {
    'fleeting_taskscaler_tasks{job="fleet",instance="x",state="pending"}': "3x300",
    'taskscaler_pool_instances{job="fleet",instance="x",pool="a",state="deleting"}': "1x300",
    'taskscaler_oldest_wait_seconds{job="fleet",instance="x"}': "50 20 60 40 " * 75,
    'taskscaler_oldest_deletion_seconds{job="fleet",instance="x",pool="a"}': "90 30 120 60 " * 75,
    'taskscaler_view_age_seconds{job="fleet",instance="x",pool="a"}': "0+60x14 0+60x14 " * 10,
    'taskscaler_update_interval_seconds{job="fleet",instance="x",pool="a"}': "900x300",
    'taskscaler_handing_out{job="fleet",instance="x"}': "1x300",
    'taskscaler_growth_limited{job="fleet",instance="x",pool="a",limit="max_instances"}': "1 0 0 " * 100,
}
"""Each minute of a fleet that is well: some job always waits for a boot, some instance is always being deleted."""

MINUTES = {"s": 1 / 60, "m": 1, "h": 60, "d": 1440}


def test_alerts_wait_for_as_long_as_they_say(tmp_path: Path) -> None:
    """None fires before its time, each does when that has passed, and each resolves once all is well again."""
    _check(tmp_path, [one for alert in ALERTS for one in _of_alert(alert.name, alert.lasts)])
    assert BAD_FOR.keys() == {alert.name for alert in ALERTS}


def test_a_fleet_that_is_busy_and_well_is_left_alone(tmp_path: Path) -> None:
    """No alert fires, for hours, on a fleet whose jobs always wait a little, and which always deletes something."""
    series = [{"series": name, "values": values.strip()} for name, values in BUSY.items()]
    silent = [
        {"expr": 'ALERTS{alertstate="firing"}', "eval_time": f"{minute}m", "exp_samples": []}
        for minute in range(0, 290, 5)
    ]
    _check(tmp_path, [{"name": "busy", "interval": "1m", "input_series": series, "promql_expr_test": silent}])


def _check(tmp_path: Path, tests: Sequence[Mapping[str, Any]]) -> None:
    """Have promtool evaluate the rules."""
    (tmp_path / "rules.yaml").write_text(alert_rules())
    (tmp_path / "test.yaml").write_text(
        json.dumps({"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": tests})
    )
    done = subprocess.run(
        [program("promtool"), "test", "rules", str(tmp_path / "test.yaml")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def _of_alert(name: str, lasts: str) -> Iterator[Mapping[str, Any]]:
    metric, values, labels = BAD_FOR[name]
    where = ",".join(filter(None, ['job="fleet"', 'instance="x"', labels]))
    series = [{"series": f"{metric}{{{where}}}", "values": values}]
    if name in ALWAYS:
        series.append({"series": f"{ALWAYS[name]}{{{where}}}", "values": f"{INTERVAL}x200"})
    waits = int(lasts[:-1]) * MINUTES[lasts[-1]]
    bad = max(int(number) for number in re.findall(r"x(\d+) ", values))
    window = 15 if "+" in values else 0
    firing = f'count(ALERTS{{alertname="{name}",alertstate="firing"}})'
    checks = [(bad - 1, True), (bad + window + 10, False)] + ([(waits - 1, False)] if waits > 1 else [])
    yield {
        "name": name,
        "interval": "1m",
        "input_series": series,
        "promql_expr_test": [
            {
                "expr": firing,
                "eval_time": f"{int(minute)}m",
                "exp_samples": [{"labels": "{}", "value": 1}] if fires else [],
            }
            for minute, fires in checks
        ],
    }


def test_the_files_are_as_their_readers_want_them(tmp_path: Path) -> None:
    """Prometheus reads the rules, and the dashboard has the panels that Grafana draws, each in a place of its own."""
    from tests.taskscaler.services import command

    status, printed = command("dashboards", str(tmp_path / "new"))
    assert status == 0
    assert [Path(line).name for line in printed.splitlines()] == ["taskscaler-dashboard.json", "taskscaler-alerts.yaml"]
    rules = str(tmp_path / "new" / "taskscaler-alerts.yaml")
    subprocess.run([program("promtool"), "check", "rules", rules], check=True, capture_output=True)
    board = json.loads((tmp_path / "new" / "taskscaler-dashboard.json").read_text())
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) == sum(1 + len(row.panels) for row in ROWS)
    assert len({(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}) == len(panels)
