"""GitLab Runner's own metrics, of our runner: what GitLab's dashboards query, without a word of a job's."""

import logging
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from attrs import evolve
from prometheus_client import CollectorRegistry, generate_latest

from fleeting import ConfigError
from gitlab_jobs import Job, Outcome
from gitlab_jobs.client import Reporting
from gitlab_jobs.testing import FakeGitLab
from taskscaler import Lease
from taskscaler.observers.metrics import Metrics
from taskscaler_gitlab import read_config
from taskscaler_gitlab._metrics import RunnerMetrics, Standing, endpoint_of, runner_label
from tests.taskscaler.metrics_of import read
from tests.taskscaler_gitlab.cells_here import cell
from tests.taskscaler_gitlab.services import FILE, PLACE, Held, Scripted, a_job, serving

pytestmark = [
    pytest.mark.anyio,
    # as in test_service.py
    pytest.mark.filterwarnings("ignore:.*async_generator object .*Stream:pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:Async generator 'httpx:ResourceWarning"),
]


STANDING = Standing(jobs={}, requests=0, most_requests=1, wanted_requests=1.0, concurrent=1, limit=0)
"""A runner that does nothing."""

STAGED = ("get_sources", "step_script", "other")
"""Of the jobs here."""


@pytest.fixture
def gitlab(tmp_path: Path) -> FakeGitLab:
    """One that answers at once."""
    return FakeGitLab(tmp_path / "gitlab", long_poll=0.05, accepts=0)


def without(labels: Mapping[str, str], metrics: Metrics) -> Mapping[str, float]:
    """All samples, without labels that all of them have."""
    found = {}
    for name, value in read(metrics).items():
        for label, given in labels.items():
            name = name.replace(f'{label}="{given}",', "").replace(f'{label}="{given}"', "")  # noqa: PLW2901
        found[name.replace(",}", "}").replace("{}", "")] = value
    return found


async def fail(_: Job, __: Lease, ___: Reporting) -> Outcome:
    """Fail for a reason that GitLab does not know."""
    return Outcome(is_success=False, failure_reason="made up by nobody")


async def test_what_a_runner_does_is_shown(gitlab: FakeGitLab, tmp_path: Path) -> None:
    """Jobs where they stand, how they ended and how long they took and waited, and what GitLab answered."""
    metrics, held, runs = Metrics(), Held(), Scripted()
    runs.script, runs.stages = held, {"get_sources": 2.0, "step_script": 40.0, "step_made up": 1.0}
    number = gitlab.enqueue(a_job())
    async with serving(tmp_path, gitlab, runs=runs, metrics=metrics) as bench:
        labels = {
            "runner": runner_label(gitlab.runner_token),
            "runner_name": bench.service.config.runner.name,
            "system_id": bench.service._system_id,
        }
        await held.begun.wait()
        during = without(labels, metrics)
        held.go.set()
        await gitlab.ended(number)
        runs.script = fail
        failing = gitlab.enqueue(a_job("fails"))
        await gitlab.ended(failing)
        await bench.until(lambda: not bench.service.running)
        after = without(labels, metrics)
        shown = generate_latest(metrics.registry).decode()
    assert during['gitlab_runner_jobs{executor_stage="executing",stage="executing",state="running"}'] == 1
    assert during["gitlab_runner_concurrent"] == 4
    assert during['fleeting_taskscaler_tasks{state="acquired"}'] == 1
    assert after["gitlab_runner_jobs_total"] == 2
    assert after["gitlab_runner_job_duration_seconds_count"] == 2
    assert after["gitlab_runner_job_queue_duration_seconds_count"] == 2
    stages = {stage: after[f'gitlab_runner_job_stage_duration_seconds_sum{{stage="{stage}"}}'] for stage in STAGED}
    assert stages == {"get_sources": 4, "step_script": 80, "other": 2}
    assert after['gitlab_runner_job_stage_duration_seconds_bucket{le="3.0",stage="get_sources"}'] == 2
    assert after['gitlab_runner_job_stage_duration_seconds_bucket{le="30.0",stage="step_script"}'] == 0
    assert after['gitlab_runner_failed_jobs_total{failure_reason="other"}'] == 1
    statuses = 'gitlab_runner_api_request_statuses_total{endpoint="request_job",method="post",status="201"}'
    assert after[statuses] == 2
    answers = 'gitlab_runner_api_request_duration_seconds_count{endpoint="update_job",method="put",status_class="2xx"}'
    assert after[answers] >= 2
    assert after['gitlab_runner_worker_processing_failures_total{failure_type="job_failure"}'] == 1
    assert after["gitlab_runner_worker_feeds_total"] >= 2
    assert after["gitlab_runner_worker_slots_number"] == 4
    assert gitlab.runner_token not in shown
    assert not [word for word in ("made up", "fails", *gitlab.runner_token.split("-")[1:]) if word in shown]


async def test_each_of_several_gitlabs_is_shown(tmp_path: Path) -> None:
    """Its jobs, what it answers, and whether it is asked; a runner of one GitLab has no more series than before."""
    metrics, held = Metrics(), Held()
    good, wrong = cells = [cell(tmp_path, "good"), cell(tmp_path, "wrong")]
    (tmp_path / "wrong.token").write_text("glrt-wrong")
    number = good.gitlab.enqueue(a_job())
    name = "taskscaler_gitlab_cell_{}"

    def of(which: str) -> dict[str, float]:
        samples = (each for family in metrics.registry.collect() for each in family.samples)
        return {each.labels["cell"]: each.value for each in samples if each.name == name.format(which)}

    async with serving(tmp_path, good.gitlab, cells=cells, runs=Scripted(held), metrics=metrics) as bench:
        await bench.until(lambda: of("asked") == {"good": 1, "wrong": 0} and of("jobs") == {"good": 1, "wrong": 0})
        held.go.set()
        await good.gitlab.ended(number)
        await bench.until(lambda: of("jobs") == {"good": 0, "wrong": 0} and of("requests")["good"] == 1)
        assert of("jobs_total") == {"good": 1, "wrong": 0}
        value, meter = metrics.registry.get_sample_value, bench.service._meter
        refused = {**(meter.labels if meter else {}), "cell": "wrong", "status_class": "4xx"}
        await bench.until(lambda: value(name.format("answers_total"), refused) == wrong.gitlab.calls.total())
        shown = {each.name for each in metrics.registry.collect() if each.name.startswith(name.format(""))}
    page = (Path(__file__).parents[2] / "docs" / "reference" / "metrics.md").read_text()
    assert {each.removesuffix("_total") for each in re.findall(r"`(taskscaler_gitlab_cell_\w+)`", page)} == shown


@pytest.mark.parametrize(
    ("call", "endpoint"),
    [
        ("POST jobs/request", "request_job"),
        ("PUT jobs/17", "update_job"),
        ("PATCH jobs/17/trace", "patch_trace"),
        ("POST jobs/17/artifacts", "upload_artifacts"),
        ("GET jobs/17/artifacts", "download_artifacts"),
        ("POST runners/verify", "verify_runner"),
        ("GET jobs/17/whatever/else", "other"),
        ("DELETE projects/1", "other"),
    ],
)
async def test_endpoints_are_few(call: str, endpoint: str) -> None:
    """A call is counted by what it is about, not by the job's number nor by a path that a sidecar made up."""
    assert endpoint_of(call) == endpoint


async def test_statuses_are_few() -> None:
    """A status that HTTP does not know is counted with all others of that kind."""
    registry = CollectorRegistry()
    shown = RunnerMetrics(registry, {"runner": "x"}, lambda: STANDING)
    for status in range(600, 999):
        shown.answered("PUT jobs/1", status, 0.1)
    assert (
        registry.get_sample_value(
            "gitlab_runner_api_request_statuses_total",
            {"runner": "x", "endpoint": "update_job", "method": "put", "status": "other"},
        )
        == 399
    )


async def test_requests_are_bounded_by_what_came_of_earlier_ones() -> None:
    """The configuration's limit, what it pays to have, and what may be had, as GitLab Runner calls them."""
    registry = CollectorRegistry()
    RunnerMetrics(registry, {"runner": "x"}, lambda: evolve(STANDING, most_requests=4, wanted_requests=2.2))
    limits = [
        registry.get_sample_value(f"gitlab_runner_request_concurrency_{which}_limit", {"runner": "x"})
        for which in ("hard", "adaptive", "used")
    ]
    assert limits == [4, 2.2, 3]


async def test_what_is_logged_is_counted_while_the_runner_runs() -> None:
    """By its level, from warnings up, and no longer once it has ended."""
    registry = CollectorRegistry()
    shown = RunnerMetrics(registry, {"runner": "x"}, lambda: STANDING)
    log = logging.getLogger("taskscaler.gitlab")
    with shown.errors.attached():
        for say in (log.info, log.warning, log.warning, log.error, log.critical):
            say("happened")
    log.warning("happened later")
    counts = {
        level: registry.get_sample_value("gitlab_runner_errors_total", {"runner": "x", "level": level})
        for level in ("warning", "error", "fatal", "panic")
    }
    assert counts == {"warning": 2, "error": 1, "fatal": 1, "panic": 0}


async def test_calls_that_are_repeated_are_counted_by_what_they_are_about() -> None:
    """Not by the job's number."""
    registry = CollectorRegistry()
    shown = RunnerMetrics(registry, {"runner": "x"}, lambda: STANDING)
    for number in range(5):
        shown.retried(f"PATCH jobs/{number}/trace")
    labels = {"runner": "x", "path": "patch_trace", "method": "patch"}
    assert registry.get_sample_value("gitlab_runner_api_request_retries_total", labels) == 5


async def test_the_page_has_every_name(gitlab: FakeGitLab, tmp_path: Path) -> None:
    """And says of GitLab Runner's other names why they are not there."""
    metrics = Metrics()
    async with serving(tmp_path, gitlab, metrics=metrics):
        shown = {each.name for each in metrics.registry.collect() if each.name.startswith("gitlab_runner_")}
    page = (Path(__file__).parents[2] / "docs" / "reference" / "metrics.md").read_text()
    rows, _, absent = page.partition("## GitLab's jobs")[2].partition("not there:")
    named = {name.removesuffix("_total") for name in re.findall(r"`(gitlab_runner_\w+)`", rows)}
    assert named == shown
    assert not {name.removesuffix("_total") for name in re.findall(r"`(gitlab_runner_\w+)`", absent)} & shown


async def test_listen_address_is_checked(tmp_path: Path) -> None:
    """GitLab's key is read, and what is no address is one mistake of the file."""
    path = tmp_path / "config.toml"
    place = PLACE.format(url="https://gitlab.example.com", token="t")
    text = FILE.format(place=place, concurrent=1, more="", kind="instance")
    path.write_text(f'listen_address = ":9252"\n{text}')
    assert read_config(path).top.listen_address == ":9252"
    path.write_text(f'listen_address = "[::1]:9252"\n{text}')
    assert read_config(path).top.listen_address == "[::1]:9252"
    for wrong in ("9252", "::1:9252", "[::1]:99999"):
        path.write_text(f'listen_address = "{wrong}"\n{text}')
        with pytest.raises(ConfigError, match="listen_address"):
            read_config(path)
