"""Trees of results that come out of containers, where job code may say anything: what is believed of them. Pure.

A tree that no run has would do harm beyond its step: the results of the job as a whole have limits, and whoever reads
them would read nothing.
"""

from attrs import evolve

from job_steps._errors import StepFailed
from job_steps._results import Status, StepResult
from job_steps._values import weight_of


def weight_of_tree(result: StepResult, *, levels: int, steps: int) -> int:
    """See that a run can have a tree; returns how much is in it, as `weight_of` counts.

    Args:
        result: Of a function in a container.
        levels: How many levels of steps it may have below it.
        steps: How many results it may have, its own among them.

    Raises:
        StepFailed: No run can.
    """
    weight = 0
    for number, (path, each) in enumerate(result.walk()):
        if number >= steps:
            raise StepFailed(f"what runs in the container reports more than {steps} steps")
        if len(path) > levels:
            raise StepFailed(f"what runs in the container reports more than {levels} levels of steps")
        weight += weight_of([each.inputs, each.env, each.outputs, each.exports, each.command])
        weight += weight_of([each.name, each.reference, each.container, each.work_dir, each.error, each.cause])
    return weight


def check_over(result: StepResult) -> None:
    """See that a step that is said to have succeeded is over.

    Raises:
        StepFailed: Something of it still runs.
    """
    if any(each.status is not Status.SUCCESS for _, each in result.walk()):
        raise StepFailed("what runs in the container reports a success with steps that have not succeeded")


def in_time(result: StepResult, began: float, now: float) -> StepResult:
    """Have everything happen between two moments: it was not before the step began, and is no prophecy."""

    def moved(moment: float | None) -> float | None:
        return None if moment is None else min(max(moment, began), now)

    steps = tuple(in_time(each, began, now) for each in result.steps)
    return evolve(result, started=moved(result.started), ended=moved(result.ended), steps=steps)
