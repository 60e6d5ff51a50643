"""The stages of a job as spans, as its output says that they begin and end."""

from collections.abc import Mapping
from typing import Final

from attrs import define, field

from fleeting import Clock
from taskscaler.tracing import Attributes, Trace
from taskscaler_gitlab.runner._marks import Marks
from taskscaler_gitlab.runner._stages import Ended

MOST: Final = 1000
"""Spans of one leg: a job can write marks of its own, as many as it likes."""


@define
class StageSpans:
    """Those of one leg."""

    _trace: Trace | None
    _names: Mapping[int, str]
    """What stages are called, by their numbers; those without a name have no span."""

    _clock: Clock
    _begun: dict[int, float] = field(factory=dict, init=False)
    _left: int = field(default=MOST, init=False)

    def hear(self, marks: Marks) -> None:
        """Take what marks have said since."""
        trace, heard = self._trace, [*marks.heard]
        marks.heard.clear()
        if trace is None or not trace.is_followed or not heard:
            return
        now = self._clock.now()
        for number, ended in heard:
            if ended is None:
                self._begun[number] = now
            elif (began := self._begun.pop(number, None)) is not None:
                self._add(trace, number, began, now, ended)

    def end(self) -> None:
        """The leg is over, and with it what was under way."""
        trace, now = self._trace, self._clock.now()
        if trace is not None and trace.is_followed:
            for number, began in self._begun.items():
                self._add(trace, number, began, now, None)
        self._begun.clear()

    def _add(self, trace: Trace, number: int, began: float, now: float, ended: Ended | None) -> None:
        name = self._names.get(number)
        if not name or not self._left:
            return
        self._left -= 1
        error = "stopped" if ended is None else "timed_out" if ended.is_stopped else "failed" if ended.code else ""
        code: Attributes = {} if ended is None else {"process.exit.code": ended.code}
        trace.add_to_run(name, began, now, code, error)
