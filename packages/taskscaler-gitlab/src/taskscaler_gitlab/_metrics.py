"""GitLab Runner's own metrics, of our runner: under the names that GitLab's dashboards query, for Prometheus.

No label has what a job says: endpoints, stages and reasons are those that are listed here, and anything else is
``other``. A token is in none of them: the label ``runner`` stands for it.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from http import HTTPStatus
from importlib.metadata import version
from math import ceil
from typing import Final

from attrs import define, field, frozen
from prometheus_client import CollectorRegistry, Histogram
from prometheus_client import Counter as Counting
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

REASONS: Final = frozenset({
    "script_failure", "runner_system_failure", "job_execution_timeout", "job_canceled", "runner_unsupported",
    "runner_interrupted", "image_pull_failure", "configuration_error", "unknown_failure", "api_failure",
    "runner_configuration_error", "runner_provisioning_timeout", "stuck_or_timeout_failure",
})  # fmt: skip
"""Why jobs fail, in GitLab's words; others are counted as ``other``."""

STAGES: Final = frozenset({
    "prepare_script", "get_sources", "restore_cache", "download_artifacts", "step_script", "step_release",
    "after_script", "archive_cache", "archive_cache_on_failure", "upload_artifacts_on_success",
    "upload_artifacts_on_failure", "cleanup_file_variables",
})  # fmt: skip
"""Of jobs, by GitLab Runner's names; others, which are steps that a job has named, are counted as ``other``."""

_ENDPOINTS: Final[Mapping[str, str]] = {
    "POST jobs/request": "request_job",
    "POST runners/verify": "verify_runner",
    "POST runners": "register_runner",
    "POST runners/reset_authentication_token": "reset_token",
}
_OF_JOBS: Final[Mapping[tuple[str, str], str]] = {
    ("PUT", ""): "update_job",
    ("PATCH", "trace"): "patch_trace",
    ("POST", "artifacts"): "upload_artifacts",
    ("GET", "artifacts"): "download_artifacts",
}

_OF_CELLS: Final = "taskscaler_gitlab_cell_"

_DURATIONS: Final = (30, 60, 300, 600, 1800, 3600, 7200, 10800, 18000, 36000)
_QUEUES: Final = (1, 3, 10, 30, 60, 120, 300, 900, 1800, 3600)
_ANSWERS: Final = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


@frozen
class CellStanding:
    """How it stands with one of several GitLabs."""

    jobs: int
    """That run, or will."""

    requests: int
    """For jobs, under way."""

    is_asked: bool
    """Whether it is asked as others are: it is not left out because it does not answer, nor has refused the token too
    often."""


@frozen
class Standing:
    """How a runner stands."""

    jobs: Mapping[tuple[str, str], int]
    """By state (``pending``, ``running``) and what is done with them."""

    requests: int
    """For jobs, under way."""

    most_requests: int
    """That there may be, by the configuration."""

    wanted_requests: float
    """That what came of earlier ones suggests, before it is rounded up."""

    concurrent: int
    limit: int
    """0: any number."""

    cells: Mapping[str, CellStanding] = field(factory=dict)
    """If it asks several GitLabs, each of them by its name."""


def endpoint_of(call: str) -> str:
    """What a call is about, such as ``PATCH jobs/17/trace``, in one of a few words."""
    if (known := _ENDPOINTS.get(call)) is not None:
        return known
    method, _, path = call.partition(" ")
    first, _, rest = path.partition("/")
    return _OF_JOBS.get((method, rest.partition("/")[2]), "other") if first == "jobs" else "other"


def runner_label(token: str) -> str:
    """Stand for a runner's token: nobody can tell it from that."""
    return sha256(token.encode()).hexdigest()[:9]


class LoggedErrors(logging.Handler):
    """Counts what is logged, by GitLab Runner's names of levels."""

    def __init__(self) -> None:
        """Start at nought."""
        super().__init__(logging.WARNING)
        self.counts: Counter[str] = Counter(dict.fromkeys(("warning", "error", "fatal", "panic"), 0))

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Count while the body runs."""
        loggers = [logging.getLogger(name) for name in ("fleeting", "taskscaler", "gitlab_jobs")]
        for logger in loggers:
            logger.addHandler(self)
        try:
            yield
        finally:
            for logger in loggers:
                logger.removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Count it."""
        level = "fatal" if record.levelno >= logging.CRITICAL else record.levelname.lower()
        self.counts[level if level in self.counts else "error"] += 1


@define(eq=False)
class RunnerMetrics(Collector):
    """Counts what a runner does; shown in a registry."""

    registry: CollectorRegistry
    labels: Mapping[str, str]
    """On each: ``runner``, ``runner_name`` and ``system_id``."""

    look: Callable[[], Standing]
    taken: int = field(default=0, init=False)
    queue_size: int = field(default=0, init=False)
    """Of GitLab's queue, when it handed out the last job."""

    queue_depth: int = field(default=0, init=False)
    """How many jobs GitLab looked at, to find the last one."""

    turns: int = field(default=0, init=False)
    """How often it was the runner's turn to ask."""

    silences: int = field(default=0, init=False)
    """How often GitLab refused the runner so often that it is asked again only after a long time."""

    unforeseen: int = field(default=0, init=False)
    """Requests for jobs that failed in a way that nobody foresaw."""

    retries: Counter[tuple[str, ...]] = field(init=False)
    """By endpoint and method."""

    cells_taken: Counter[str] = field(factory=Counter, init=False)
    """Jobs of each GitLab."""

    cells_answers: Counter[tuple[str, ...]] = field(factory=Counter, init=False)
    """Answers of each GitLab by their class."""

    errors: LoggedErrors = field(factory=LoggedErrors, init=False)
    failed: Counter[str] = field(init=False)
    _durations: Histogram = field(init=False)
    _queues: Histogram = field(init=False)
    _stages: Histogram = field(init=False)
    _statuses: Counting = field(init=False)
    _answers: Histogram = field(init=False)

    def __attrs_post_init__(self) -> None:
        """Start at nought."""
        self.failed = Counter(dict.fromkeys((*sorted(REASONS), "other"), 0))
        self.retries = Counter({("request_job", "post"): 0, ("update_job", "put"): 0, ("patch_trace", "patch"): 0})
        self._durations = self._histogram("job_duration", "How long do jobs take?", _DURATIONS)
        self._queues = self._histogram("job_queue_duration", "How long did jobs wait at GitLab?", _QUEUES)
        self._stages = self._histogram("job_stage_duration", "How long do stages of jobs take?", _QUEUES, ["stage"])
        more = ("endpoint", "status_class", "method")
        self._answers = self._histogram("api_request_duration", "How long does GitLab take to answer?", _ANSWERS, more)
        self._statuses = Counting(
            "gitlab_runner_api_request_statuses",
            "What does GitLab answer?",
            [*self.labels, "endpoint", "status", "method"],
            registry=self.registry,
        )
        for histogram in (self._durations, self._queues):
            histogram.labels(**self.labels)  # so that it is there before the first job
        self.registry.register(self)

    def _histogram(self, name: str, question: str, bounds: Iterable[float], more: Iterable[str] = ()) -> Histogram:
        labels = [*self.labels, *more]
        return Histogram(f"gitlab_runner_{name}_seconds", question, labels, buckets=[*bounds], registry=self.registry)

    def job_taken(self, queued: float, *, cell: str = "", size: int = 0, depth: int = 0) -> None:
        """GitLab has handed out a job.

        Args:
            queued: Seconds that it waited there.
            cell: Which GitLab, if there are several.
            size: Jobs that waited with it.
            depth: Jobs that GitLab looked at before it found this one.
        """
        self.taken += 1
        self.cells_taken[cell] += 1
        self.queue_size, self.queue_depth = max(0, size), max(0, depth)
        self._queues.labels(**self.labels).observe(max(0.0, queued))

    def job_ended(self, reason: str, duration: float | None) -> None:
        """A job is over; *reason*: why it failed, empty if it did not. None: it never ran."""
        if reason:
            self.failed[reason if reason in REASONS else "other"] += 1
        if duration is not None:
            self._durations.labels(**self.labels).observe(max(0.0, duration))

    def stages_ended(self, took: Mapping[str, float]) -> None:
        """A job's stages are over: the seconds of each, by GitLab's names."""
        for stage, seconds in took.items():
            known = stage if stage in STAGES else "other"
            self._stages.labels(**self.labels, stage=known).observe(max(0.0, seconds))

    def answered(self, call: str, status: int, seconds: float, cell: str = "") -> None:
        """GitLab has answered a call, such as ``POST jobs/request``; *cell*: which one, if there are several."""
        about = {"endpoint": endpoint_of(call), "method": call.partition(" ")[0].lower()}
        known = status in HTTPStatus._value2member_map_
        self._statuses.labels(**self.labels, **about, status=str(status) if known else "other").inc()
        class_ = f"{status // 100}xx" if known else "other"
        self._answers.labels(**self.labels, **about, status_class=class_).observe(seconds)
        self.cells_answers[cell, class_] += 1

    def retried(self, call: str) -> None:
        """A call is made again, because GitLab was busy."""
        self.retries[endpoint_of(call), call.partition(" ")[0].lower()] += 1

    def collect(self) -> Iterable[Metric]:
        """Make what is so at the moment, and what has a name that the client library would not take."""
        now = self.look()
        labels = [*self.labels, "state", "stage", "executor_stage"]
        jobs = GaugeMetricFamily(
            "gitlab_runner_jobs", "How many jobs are there, and where do they stand?", labels=labels
        )
        for (state, stage), count in now.jobs.items():
            jobs.add_metric([*self.labels.values(), state, stage, stage], count)
        yield jobs
        yield self._counter("jobs", "How many jobs were taken?", {(): self.taken})
        reasons: dict[tuple[str, ...], float] = {(reason,): count for reason, count in self.failed.items()}
        yield self._counter("failed_jobs", "How many jobs failed, and why?", reasons, ["failure_reason"])
        yield self._gauge("concurrent", "How many jobs may run at once?", now.concurrent)
        yield self._gauge("limit", "How many may run of this runner? 0: any number.", now.limit)
        yield self._gauge("request_concurrency", "How many requests for jobs are under way?", now.requests)
        yield from self._of_requests(now)
        yield from self._of_workers(now)
        if now.cells:
            yield from self._of_cells(now.cells)
        for name, question, value in (
            ("size", "How many jobs waited at GitLab when it handed out the last one?", self.queue_size),
            ("depth", "How many jobs did GitLab look at to find the last one?", self.queue_depth),
        ):
            yield self._gauge(f"job_queue_{name}", question, value)
        levels: dict[tuple[str, ...], float] = {(level,): count for level, count in self.errors.counts.items()}
        yield self._counter("errors", "How many warnings and errors are in the log?", levels, ["level"])
        info = GaugeMetricFamily(
            "gitlab_runner_version_info", "Which release is this?", labels=[*self.labels, "name", "version"]
        )
        info.add_metric([*self.labels.values(), "taskscaler-gitlab", version("taskscaler-gitlab")], 1)
        yield info

    def _of_requests(self, now: Standing) -> Iterable[Metric]:
        """How many there may be at a time, and how often they are repeated."""
        used = max(1, min(now.most_requests, ceil(now.wanted_requests)))
        for name, question, value in (
            ("hard", "How many may there be, by the configuration?", now.most_requests),
            ("adaptive", "How many does it pay to have, by the outcome of the last ones?", now.wanted_requests),
            ("used", "How many may there be now?", used),
        ):
            yield self._gauge(f"request_concurrency_{name}_limit", question, value)
        none: dict[tuple[str, ...], float] = {(): 0}
        yield self._counter("request_concurrency_exceeded", "How many were too many? None ever is.", none)
        question = "How often is a call repeated, because GitLab was busy?"
        yield self._counter("api_request_retries", question, self.retries, ["path", "method"])

    def _of_workers(self, now: Standing) -> Iterable[Metric]:
        """What GitLab Runner's workers would count."""
        yield self._gauge("worker_slots_number", "How many jobs may run at once?", now.concurrent)
        yield self._counter("worker_feeds", "How often was it the runner's turn to ask?", {(): self.turns})
        why: dict[tuple[str, ...], float] = {
            ("no_free_executor",): 0,  # it asks only once a slot is reserved
            ("job_failure",): sum(self.failed.values()),
            ("other",): self.unforeseen,
        }
        question = "How often did a turn come to nothing, or its job fail?"
        yield self._counter("worker_processing_failures", question, why, ["failure_type"])
        question = "How often did GitLab refuse the runner's token so often that it rests?"
        yield self._counter("worker_health_check_failures", question, {(): self.silences})

    def _of_cells(self, cells: Mapping[str, CellStanding]) -> Iterable[Metric]:
        """Each of several GitLabs, which GitLab Runner has not: by names of our own."""
        gauges: Mapping[str, tuple[str, Callable[[CellStanding], float]]] = {
            "jobs": ("How many of the runner's jobs are of which GitLab?", lambda each: each.jobs),
            "requests": ("How many requests for jobs are open to which GitLab?", lambda each: each.requests),
            "asked": ("Is the GitLab asked for jobs? 0: it is left out, or has refused the token.", _asked),
        }
        for name, (question, value) in gauges.items():
            made = GaugeMetricFamily(f"{_OF_CELLS}{name}", question, labels=[*self.labels, "cell"])
            for cell, standing in cells.items():
                made.add_metric([*self.labels.values(), cell], value(standing))
            yield made
        taken: dict[tuple[str, ...], float] = {(each,): self.cells_taken[each] for each in cells}
        answers: dict[tuple[str, ...], float] = {
            **dict.fromkeys([(each, "2xx") for each in cells], 0),
            **self.cells_answers,
        }
        yield self._counter("jobs", "How many jobs were taken of which GitLab?", taken, ["cell"], of=_OF_CELLS)
        more = ["cell", "status_class"]
        yield self._counter("answers", "What does which GitLab answer?", answers, more, of=_OF_CELLS)

    def describe(self) -> Iterable[Metric]:
        """Name nothing: of GitLab's names, a gauge and a counter differ in ``_total`` alone."""
        return ()

    def _gauge(self, name: str, question: str, value: float) -> Metric:
        made = GaugeMetricFamily(f"gitlab_runner_{name}", question, labels=[*self.labels])
        made.add_metric([*self.labels.values()], value)
        return made

    def _counter(
        self,
        name: str,
        question: str,
        values: Mapping[tuple[str, ...], float],
        more: Iterable[str] = (),
        of: str = "gitlab_runner_",
    ) -> Metric:
        made = CounterMetricFamily(f"{of}{name}", question, labels=[*self.labels, *more])
        for key, value in values.items():
            made.add_metric([*self.labels.values(), *key], value)
        return made


def _asked(cell: CellStanding) -> float:
    return float(cell.is_asked)
