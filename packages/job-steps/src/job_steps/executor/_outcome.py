"""From what a service says of the steps of a job to what became of the job: pure."""

import re
from collections.abc import Sequence

from fleeting import Usage
from job_steps import StepResult
from job_steps._results import OUT_OF_MEMORY
from job_steps.client import Cause, JobStatus, RunState
from job_steps.executor._list import SCRIPT
from job_steps.executor._options import ONLY_STEP
from taskscaler.executors import JobOutcome, Verdict

_EXIT = re.compile(r"exit status ([0-9]{1,3})\b")
"""How GitLab's step-runner says it, at the end of a message."""


def outcome_of(status: JobStatus, result: StepResult | None, *, timed_out: str) -> JobOutcome:
    """Say what became of a job whose steps have ended, otherwise than by being lost.

    Args:
        status: What the service says of all of them.
        result: What it says of each; None if it does not.
        timed_out: The reason to give if they took too long.
    """
    if status.state is RunState.SUCCESS:
        return JobOutcome(verdict=Verdict.SUCCEEDED, exit_code=0)
    if status.cause is Cause.TIMED_OUT:
        return JobOutcome(verdict=Verdict.TIMED_OUT, why=timed_out)
    path, failed = _failed(result) if result is not None else ("", None)
    if failed is None or not path:
        code = failed.exit_code if failed is not None else None
        why = (failed.error if failed is not None else None) or status.message or "its steps did not succeed"
        return JobOutcome(verdict=Verdict.FAILED, exit_code=_code_in(why) if code is None else code, why=why)
    why = _how(failed) if path in (SCRIPT, ONLY_STEP) else f"the step `{path}` {_how(failed)}"
    return JobOutcome(verdict=Verdict.FAILED, exit_code=failed.exit_code or None, why=why)


def usage_of(result: StepResult | None) -> Usage:
    """What a job has used, as far as its results say."""
    used = None if result is None else result.resources
    if used is None:
        return Usage()
    return Usage(cpu_time=used.cpu_seconds, peak_memory=used.peak_memory, disk_written=used.written_bytes)


def _failed(result: StepResult) -> tuple[str, StepResult | None]:
    """Find the step that made the whole fail, and the names that lead to it."""
    deepest = result.failed()
    path = next((names for names, each in result.walk() if each is deepest), ())
    return "/".join(path), deepest


def _how(failed: StepResult) -> str:
    if failed.cause == OUT_OF_MEMORY and failed.error:
        return failed.error.removeprefix("the command ")
    if failed.exit_code:
        return f"exited with {failed.exit_code}"
    return f"failed: {failed.error}" if failed.error else "failed"


def _code_in(message: str) -> int | None:
    found: Sequence[str] = _EXIT.findall(message)
    return int(found[-1]) if found else None
