"""What GitLab's jobs are called in traces, what they are a part of, and how they ended: pure.

A span shows no variable but the addresses of the job and its pipeline, which GitLab sets itself; the job may set others
of these names, which come later, and are not public.
"""

import math
import re
from collections.abc import Iterable, Mapping
from typing import Final

from attrs import field, frozen

from gitlab_jobs import End, Job, Outcome, Variable
from taskscaler.tracing import CONTEXT, Attributes, SpanContext, context_in, harmless, read_context

LONGEST_QUEUE: Final = 30 * 86400.0
"""Seconds that a job has waited at GitLab, at most, as far as a span shows it."""

OF_SCRIPT: Final = frozenset({"script_failure", "job_execution_timeout"})
"""Reasons for a failure that are the job's own."""

_RESULTS: Final[Mapping[str, str]] = {
    "script_failure": "failure",
    "job_execution_timeout": "timeout",
    "job_canceled": "cancellation",
}
"""OpenTelemetry's words for how a task went, by GitLab's reasons; others are an ``error``."""

_REASON: Final = re.compile("[a-z][a-z_]{0,63}")
_ADDRESS: Final = re.compile(r"https?://[^\s?#@]{1,900}")


def queued(job: Job) -> float:
    """Seconds that GitLab had a job before it handed it out."""
    waited = job.job_info.time_in_queue_seconds
    return min(max(waited, 0.0), LONGEST_QUEUE) if math.isfinite(waited) else 0.0


def names_of(job: Job) -> Attributes:
    """What a job is called; what GitLab does not say is left out."""
    info = job.job_info
    names = {
        "cicd.pipeline.task.name": harmless(info.name),
        "cicd.pipeline.task.run.id": str(job.id),
        "cicd.pipeline.task.run.url.full": _address(job.variables, "CI_JOB_URL", job.id),
        "cicd.pipeline.run.id": str(info.pipeline_id or ""),
        "cicd.pipeline.run.url.full": _address(job.variables, "CI_PIPELINE_URL", info.pipeline_id),
        "taskscaler.gitlab.project": harmless(info.project_full_path),
        "taskscaler.gitlab.project_id": str(info.project_id or ""),
        "taskscaler.gitlab.stage": harmless(info.stage),
    }
    return {name: value for name, value in names.items() if value}


def _address(variables: Iterable[Variable], name: str, number: int) -> str:
    """Where GitLab shows what has a number, as GitLab says itself: first, and to everybody."""
    found = next((each for each in variables if each.key == name and each.public and not each.masked), None)
    is_one = found is not None and _ADDRESS.fullmatch(found.value) and found.value.endswith(f"/{number}")
    return harmless(found.value) if found is not None and is_one else ""


def repeats(job: Job) -> tuple[int, int, str] | None:
    """What a job has in common with those that GitLab runs instead of it; None: nothing that says so."""
    info = job.job_info
    return (info.project_id, info.pipeline_id, info.name) if info.pipeline_id and info.name else None


def brings_context(variables: Iterable[Variable], configured: Iterable[str] = ()) -> bool:
    """Whether whoever wrote a job, or set up its runner, has said what its own spans are a part of."""
    return not {*CONTEXT}.isdisjoint([*(each.key for each in variables), *configured])


def context_of(job: Job) -> SpanContext | None:
    """What a job is a part of, as its variables or else GitLab says; None: nobody does."""
    own = context_in({each.key: each.value for each in job.variables if each.key in CONTEXT})
    above = job.features.tracing
    if own is not None or above is None:
        return own
    return read_context(f"00-{above.trace_id.lower()}-{above.span_parent_id.lower()}-01")


@frozen
class Ending:
    """How a job, or a try at it, ended."""

    error: str = ""
    """What went wrong; empty: nothing."""

    attributes: Attributes = field(factory=dict)
    """What is known of it."""


def ending_of(outcome: Outcome) -> Ending:
    """How it ended that has an outcome."""
    code: Attributes = {} if outcome.exit_code is None else {"process.exit.code": outcome.exit_code}
    if outcome.is_success:
        return Ending("", {"cicd.pipeline.task.run.result": "success", **code})
    reason = outcome.failure_reason or "unknown_failure"
    reason = reason if _REASON.fullmatch(reason) else "unknown_failure"
    result = _RESULTS.get(reason, "error")
    return Ending(reason, {"cicd.pipeline.task.run.result": result, "taskscaler.gitlab.failure_reason": reason, **code})


def ending(outcome: Outcome | None, end: End | None, *, is_stuck: bool = False) -> Ending:
    """How a job ended, as far as that is known: of one that others go on with, it is not."""
    if is_stuck:
        return Ending("stuck", {"cicd.pipeline.task.run.result": "error"})
    if outcome is not None:
        return ending_of(outcome)
    if end is End.REVOKED:
        return Ending("revoked", {"cicd.pipeline.task.run.result": "cancellation"})
    if end is End.GIVEN_UP:
        return Ending("unreported", {"cicd.pipeline.task.run.result": "error"})
    return Ending("", {"taskscaler.left": True})
