"""The jobs of a batch as traces: what a job is called there, and how it and each try went. Pure, but for the tracer."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from attrs import frozen

from fleeting import Clock
from taskscaler._tracer import (
    CONTEXT,
    Attributes,
    SpanContext,
    Trace,
    Tracer,
    context_in,
    current,
    harmless,
    kind,
    within,
)
from taskscaler.batch._attempts import Attempt
from taskscaler.batch._job import Job
from taskscaler.batch._job_state import JobState
from taskscaler.batch._record import JobRecord
from taskscaler.batch._state import BatchState

_RESULTS: Final[Mapping[JobState, str]] = {
    JobState.SUCCEEDED: "success",
    JobState.FAILED: "failure",
    JobState.TIMED_OUT: "timeout",
    JobState.LOST: "error",
    JobState.NO_CAPACITY: "error",
    JobState.CANCELLED: "cancellation",
    JobState.SKIPPED: "skip",
}
"""OpenTelemetry's words for how a task went, ``cicd.pipeline.task.run.result``."""


_OF_ITSELF: Final = frozenset({JobState.FAILED, JobState.TIMED_OUT})
"""How a try ends that had its chance."""


@frozen(kw_only=True)
class Following:
    """How the jobs of a batch are followed, if they are."""

    tracer: Tracer
    parent: SpanContext | None = None
    """What the batch is a part of, unless a job says what it is a part of itself."""

    pipeline: str = ""
    """What the batch is called."""

    @contextmanager
    def job(self, job: Job, state: BatchState, clock: Clock) -> Iterator[None]:
        """Follow a job while the body sees it through."""
        parent = context_in(job.spec.env) or self.parent or self.tracer.surroundings()
        trace = self.tracer.begin("job", parent=parent)
        if not trace.is_followed:
            with within(trace):
                yield
            return
        trace.note(self._names(job, state.id))
        try:
            with within(trace):
                yield
        finally:
            trace.end(clock.now(), *_end_of(state[job.name]))

    def _names(self, job: Job, batch: str) -> Attributes:
        """What the job is called."""
        names: dict[str, str | int | float | bool] = {
            "cicd.pipeline.task.name": job.name,
            "cicd.pipeline.task.run.id": f"{batch}/{job.name}",
            "cicd.pipeline.run.id": batch,
        }
        if self.pipeline:
            names["cicd.pipeline.name"] = self.pipeline
        if job.group:
            names["taskscaler.group"] = job.group
        return names


def following_of(scaler: object) -> Following | None:
    """Follow the jobs of a batch as the scaler follows leases; None: it does not."""
    tracer = getattr(scaler, "tracer", None)
    return Following(tracer=tracer) if isinstance(tracer, Tracer) else None


@contextmanager
def followed_try(job: Job, state: BatchState, clock: Clock) -> Iterator[None]:
    """Follow a try at the job that this task is at, if that is followed."""
    trace = current()
    if not isinstance(trace, Trace) or not trace.is_followed:
        yield
        return
    record = state[job.name]
    before = len(record.attempts)
    trace.begin_try(clock.now())
    try:
        yield
    finally:
        last = record.last_attempt
        if last is not None and len(record.attempts) > before:
            trace.end_try(clock.now(), *_end_of_try(last), has_run_badly=last.state in _OF_ITSELF)
        else:
            trace.end_try(clock.now(), "" if record.state is JobState.RUNNING else record.state.value)


def traced(job: Job) -> Job:
    """Have what a job runs join the trace that the job is in; a state that could not be read belongs to none."""
    trace = current()
    return job.with_env(trace.env, without=CONTEXT) if isinstance(trace, Trace) else job


def _end_of(record: JobRecord) -> tuple[str, Attributes]:
    """How a job ended: the error, and what is known; of one that is left to a later command, nothing."""
    result = _RESULTS.get(record.state)
    if result is None:
        return "", {"taskscaler.left": True}
    error = "" if record.state is JobState.SUCCEEDED else record.state.value
    return error, {"cicd.pipeline.task.run.result": result, "taskscaler.tries": len(record.attempts)}


def _end_of_try(last: Attempt) -> tuple[str, Attributes]:
    """How a try ended, and what it used."""
    known: dict[str, str | int | float | bool] = {}
    facts = {
        "process.exit.code": last.exit_code,
        "taskscaler.cpu_time": last.cpu_time,
        "taskscaler.peak_memory": last.peak_memory,
        "taskscaler.disk_written": last.disk_written,
    }
    known |= {name: value for name, value in facts.items() if value is not None}
    if last.why:
        known["taskscaler.why"] = kind(last.why) if last.state is JobState.LOST else harmless(last.why)
    is_well = last.state in (JobState.SUCCEEDED, JobState.RUNNING)  # the latter: it is left to a later command
    return "" if is_well else last.state.value, known
