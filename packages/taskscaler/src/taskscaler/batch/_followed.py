"""The jobs of a batch as traces: what a job is called there, and how it and each try went. Pure, but for the tracer."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Final

from attrs import frozen

from fleeting import Clock
from taskscaler._span import CONTEXT, Attributes, SpanContext, context_in, harmless, kind
from taskscaler._tracer import Trace, Tracer, current, within
from taskscaler.batch._attempts import Attempt
from taskscaler.batch._job import Job
from taskscaler.batch._job_state import JobState
from taskscaler.batch._record import JobRecord
from taskscaler.batch._state import BatchState
from taskscaler.executors import JobSpec

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

    def job(self, job: Job, state: BatchState, clock: Clock, *, is_kept: bool = False) -> AbstractContextManager[None]:
        """Follow a job while the body sees it through.

        Its ids are made of what is written down of it: a later command goes on with the same spans. Of what the one
        before has begun, nobody knows when; it is within what the job had since it is to be run.

        Args:
            job: The job.
            state: Of its batch.
            clock: Says the time.
            is_kept: Whether there is a slot for it in which its last try may run on.
        """
        parent = context_in(job.spec.env) or self.parent or self.tracer.surroundings()
        if parent is None and not self.tracer.follows_alone:
            return within(self.tracer.begin("job"))
        return self._job(job, state, clock, parent, is_kept=is_kept)

    @contextmanager
    def _job(
        self, job: Job, state: BatchState, clock: Clock, parent: SpanContext | None, *, is_kept: bool
    ) -> Iterator[None]:
        record = state[job.name]
        begun = [each for each in record.attempts if each.started >= record.asked]
        seed = f"{state.id} {record.asked!r} {job.name}" if state.id else ""
        trace = self.tracer.begin("job", record.asked if begun else None, parent=parent, seed=seed)
        if not trace.is_followed:
            with within(trace):
                yield
            return
        trace.note(self._names(job, state.id))
        if begun and record.interrupted and not is_kept:
            trace.begin_try(_began(record), number=len(record.attempts))
            trace.end_try(clock.now(), *_end_of_try(begun[-1]))
        try:
            with within(trace):
                yield
        finally:
            if state[job.name].state in _RESULTS:
                trace.end(clock.now(), *_end_of(state[job.name]))
            else:
                trace.leave()

    def _names(self, job: Job, batch: str) -> Attributes:
        """What the job is called."""
        names: dict[str, str | int | float | bool] = {
            "cicd.pipeline.task.name": job.name,
            "cicd.pipeline.task.run.id": f"{batch}/{job.name}",
            "cicd.pipeline.run.id": batch,
        }
        if self.pipeline:
            names["cicd.pipeline.name"] = harmless(self.pipeline)
        if job.group:
            names["taskscaler.group"] = job.group
        return names


def following_of(scaler: object) -> Following | None:
    """Follow the jobs of a batch as the scaler follows leases; None: it does not."""
    tracer = getattr(scaler, "tracer", None)
    return Following(tracer=tracer) if isinstance(tracer, Tracer) else None


@contextmanager
def followed_try(job: Job, state: BatchState, clock: Clock, *, is_kept: bool = False) -> Iterator[None]:
    """Follow a try at the job that this task is at, if that is followed; one that runs on is the same try."""
    trace = current()
    if not isinstance(trace, Trace) or not trace.is_followed:
        yield
        return
    record = state[job.name]
    before, last = len(record.attempts), record.last_attempt
    if is_kept and last is not None and last.detached and record.interrupted:
        number = before
        trace.begin_try(_began(record), number=number)
        trace.expect_run(since=last.started)
    else:
        number = before + 1
        trace.begin_try(clock.now(), number=number)
    try:
        yield
    finally:
        last = record.last_attempt
        if last is None or len(record.attempts) != number:
            trace.end_try(clock.now(), "" if record.state is JobState.RUNNING else record.state.value)
        elif last.state is JobState.RUNNING:
            trace.leave_try()
        else:
            trace.end_try(clock.now(), *_end_of_try(last), has_run_badly=last.state in _OF_ITSELF)


def _began(record: JobRecord) -> float:
    """When a job's last try began, at the earliest: when the one before had ended."""
    before = record.retried_attempts
    return max(record.asked, (before[-1].ended or before[-1].started) if before else 0.0)


def traced(spec: JobSpec) -> JobSpec:
    """Have what a job runs join the trace that the job is in; a state that could not be read belongs to none."""
    trace = current()
    return spec.with_env(trace.env, without=CONTEXT) if isinstance(trace, Trace) else spec


def _end_of(record: JobRecord) -> tuple[str, Attributes]:
    """How a job ended: the error, and what is known."""
    error = "" if record.state is JobState.SUCCEEDED else record.state.value
    return error, {"cicd.pipeline.task.run.result": _RESULTS[record.state], "taskscaler.tries": len(record.attempts)}


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
