"""How steps went, as parts of a trace of taskscaler's. Needs ``job-steps[executor]``. Pure.

Inputs, outputs, variables, commands and errors are not shown, masked or not: they are in the results.
"""

from collections import deque
from math import isfinite
from typing import Final

from job_steps._results import LOST, OUT_OF_MEMORY, Resources, Status, StepResult
from taskscaler.tracing import MOST_PARTS, Attributes, Part, harmless

LARGEST: Final = 2**63 - 1
"""That a span can show."""

_NOT_ONE: Final = -2
"""Instead of the number of a part: what was left out."""

_ERRORS: Final = {
    Status.SUCCESS: "",
    Status.FAILURE: "failed",
    Status.CANCELLED: "cancelled",
    Status.RUNNING: "unfinished",
}

_CAUSES: Final = frozenset({OUT_OF_MEMORY, LOST})
"""Of a failure, if they are known: they say more than that it is one. An instance may name any other."""


def parts_of(result: StepResult, *, most: int = MOST_PARTS) -> list[Part]:
    """Make parts of the steps of a run, and of those that they called; the whole, which has no name, is none.

    Args:
        result: Of the whole.
        most: Parts, at least 64. If there are more steps, those that lead to the failure are among the parts, and then
            those that are called by the fewest others; the first says how many were left out.
    """
    to_failure = _to_failure(result)
    parts: list[Part] = []
    left_out, owed = 0, len(to_failure)
    waiting: deque[tuple[StepResult, int, str]] = deque((each, -1, "") for each in result.steps)
    while waiting:
        step, parent, above = waiting.popleft()
        number, path = _NOT_ONE, ""
        is_due = id(step) in to_failure
        if parent != _NOT_ONE and (is_due or len(parts) + owed < most):
            owed -= is_due
            number, path = len(parts), harmless(f"{above}/{step.name}" if above else step.name)
            parts.append(_part(step, parent, path))
        else:
            left_out += 1
        waiting.extend((each, number, path) for each in step.steps)
    if left_out and parts:
        parts[0] = parts[0]._replace(attributes={**parts[0].attributes, "taskscaler.steps_left_out": left_out})
    return parts


def _to_failure(result: StepResult) -> set[int]:
    """Which results lead to the one that made the whole fail, that one included."""
    deepest, lead = result.failed(), set[int]()
    if deepest is None:
        return lead
    above = {id(each): whole for _, whole in result.walk() for each in whole.steps}
    while deepest is not None and deepest is not result:
        lead.add(id(deepest))
        deepest = above.get(id(deepest))
    return lead


def _part(step: StepResult, parent: int, path: str) -> Part:
    known: dict[str, str | int | float | bool] = {"taskscaler.step.path": path}
    if step.reference:
        known["taskscaler.step.function"] = harmless(step.reference)
    if step.exit_code is not None and abs(step.exit_code) <= LARGEST:
        known["process.exit.code"] = step.exit_code
    if step.resources is not None:
        known |= _used(step.resources)
    name = harmless(step.name) or "step"
    error = step.cause if step.cause in _CAUSES else _ERRORS[step.status]
    return Part(name, step.started, step.ended, parent, known, error)


def _used(used: Resources) -> Attributes:
    bytes_ = {
        "taskscaler.peak_memory": used.peak_memory,
        "taskscaler.disk_read": used.read_bytes,
        "taskscaler.disk_written": used.written_bytes,
    }
    known: dict[str, str | int | float | bool] = {
        name: number for name, number in bytes_.items() if 0 <= number <= LARGEST
    }
    if isfinite(used.cpu_seconds):
        known["taskscaler.cpu_time"] = used.cpu_seconds
    return known
