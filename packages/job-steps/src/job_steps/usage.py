"""What the steps of a job have used, as taskscaler takes it. Needs ``job-steps[executor]``. Pure."""

from collections.abc import Mapping
from typing import Final, TypeVar

from job_steps._results import LOST, OUT_OF_MEMORY, Resources, Status, StepResult
from taskscaler.executors import StepUse

N = TypeVar("N", int, float)

LARGEST: Final = 1 << 63
"""Above any figure that is one."""

_ENDS: Final[Mapping[Status, str]] = {
    Status.SUCCESS: "succeeded",
    Status.FAILURE: "failed",
    Status.CANCELLED: "cancelled",
    Status.RUNNING: "unfinished",
}


def uses_of(result: StepResult) -> tuple[StepUse, ...]:
    """List the steps of a job that ran something themselves, with what each has used, in their order.

    Those that only called others are left out: what they have used is what these have.

    Args:
        result: Of the whole.
    """
    return tuple(use_of("/".join(path), step) for path, step in result.walk() if path and not step.steps)


def use_of(path: str, step: StepResult) -> StepUse:
    """Say what one step has used, with those that it called; *path*: the names that lead to it."""
    took = None if step.started is None or step.ended is None else max(0.0, step.ended - step.started)
    used: Resources | None = step.resources
    if used is None:
        return StepUse(path=path, ended=_end(step), duration=took)
    return StepUse(
        path=path,
        ended=_end(step),
        duration=took,
        cpu_time=_figure(used.cpu_seconds),
        peak_memory=_figure(used.peak_memory),
        disk_read=_figure(used.read_bytes),
        disk_written=_figure(used.written_bytes),
    )


def _end(step: StepResult) -> str:
    causes = {OUT_OF_MEMORY: "out_of_memory", LOST: "unfinished"}
    return causes.get(step.cause or "", _ENDS[step.status])


def _figure(number: N) -> N | None:
    """What can be one; None: it is not known."""
    return number if 0 <= number < LARGEST else None
