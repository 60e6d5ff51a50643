"""The stages of a leg as parts of a trace, as marks in its output say that they began and ended: pure."""

from collections.abc import Iterable

from taskscaler.tracing import Attributes, Part
from taskscaler_gitlab.runner._marks import Marks
from taskscaler_gitlab.runner._stages import Stage


def parts_of_stages(stages: Iterable[Stage], marks: Marks) -> tuple[list[int], list[Part]]:
    """Make parts of the stages that have begun, and that people see; returns their numbers, too.

    The same output has the same parts, whoever reads it: the times in it are those of the instance's clock.
    """
    seen = [each for each in stages if each.section and each.number in marks.opened]
    return [each.number for each in seen], [_part(each, marks) for each in seen]


def _part(stage: Stage, marks: Marks) -> Part:
    closed, ended = marks.closed.get(stage.number), marks.ended.get(stage.number)
    error = "stopped" if closed is None else ""
    if ended is not None:
        error = "timed_out" if ended.is_stopped else "failed" if ended.code else ""
    code: Attributes = {} if ended is None else {"process.exit.code": ended.code}
    return Part(stage.section, marks.opened[stage.number], closed, attributes=code, error=error)
