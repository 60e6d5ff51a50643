"""What jobs and their steps have used, counted. Pure, and nothing but sums, as the rest of the meter.

What a step is called is its job's to choose, so it is no label, but for the names that the operator has listed: each
costs a few dozen series, of which Prometheus keeps every one.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from fleeting import Usage
from taskscaler._histogram import Histogram
from taskscaler._uses import LIMITED_BY, OUT_OF_MEMORY, STEP_ENDS, MemoryLimit, StepUse

SIZES: Final = tuple(float(1 << power) for power in range(24, 37))
"""Upper bounds in bytes, for memory: 16 MiB to 64 GiB."""

OTHER: Final = "other"
"""Stands for all steps that are not listed."""

MOST_NAMED: Final = 50
"""Steps that may be listed."""


class UseMeter:
    """What jobs used so far. Its numbers only ever grow."""

    def __init__(self, steps: Iterable[str] = ()) -> None:
        """Start at nought.

        Args:
            steps: The names that lead to steps, with slashes between, which are counted by themselves, each with the
                steps that it called.
        """
        self._names = frozenset(steps)
        names = (*sorted(self._names), OTHER)
        self.cpu_seconds = 0.0
        self.written = 0
        self.peaks = Histogram(SIZES)
        self.limits = {by: Histogram(SIZES) for by in LIMITED_BY}
        """Bytes that jobs might have, by where that came from."""

        self.kills = 0
        """Jobs of which something was killed for lack of memory."""

        self.steps: Counter[tuple[str, str]] = Counter({(name, end): 0 for name in names for end in STEP_ENDS})
        """By their names and how they ended."""

        self.step_seconds = dict.fromkeys(names, 0.0)
        self.step_cpu_seconds = dict.fromkeys(names, 0.0)
        self.step_read = dict.fromkeys(names, 0)
        self.step_written = dict.fromkeys(names, 0)
        self.step_peaks = {name: Histogram(SIZES) for name in names}

    def ended(self, usage: Usage, *, limit: MemoryLimit | None = None, steps: Sequence[StepUse] = ()) -> None:
        """A job is over, or a try at one.

        Args:
            usage: What it has used.
            limit: How much memory it might have.
            steps: What each of its steps has used.
        """
        self.cpu_seconds += usage.cpu_time or 0.0
        self.written += usage.disk_written or 0
        if usage.peak_memory is not None:
            self.peaks.observe(usage.peak_memory)
        if limit is not None:
            self.limits[limit.by].observe(limit.size)
        was_killed = limit is not None and limit.reached
        self.kills += was_killed or any(step.ended == OUT_OF_MEMORY for step in steps)
        for step in steps:
            self._add(step, self._name(step.path))

    def _add(self, step: StepUse, name: str) -> None:
        if step.ended:
            self.steps[name, step.ended] += 1
        self.step_seconds[name] += step.duration or 0.0
        self.step_cpu_seconds[name] += step.cpu_time or 0.0
        self.step_read[name] += step.disk_read or 0
        self.step_written[name] += step.disk_written or 0
        if step.peak_memory is not None:
            self.step_peaks[name].observe(step.peak_memory)

    def _name(self, path: str) -> str:
        """Which of the names a step counts under: the longest that leads to it."""
        while path and path not in self._names:
            path = path.rpartition("/")[0]
        return path or OTHER
