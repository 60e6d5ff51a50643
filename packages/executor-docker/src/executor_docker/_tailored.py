"""How much memory a job gets, by what its earlier runs needed. Pure.

A run that was killed for lack of memory says no more than that its limit was too low; all others that came to an end
say what they needed. What the kernel counts includes the file cache, which grows to any limit: so without a kill,
nothing raises a limit above what it has been.
"""

import math
from collections.abc import Sequence
from typing import Final

from attrs import frozen

from executor_docker._sizes import in_words

REMEMBERED: Final = 20
"""Runs of a job that count."""

ENOUGH: Final = 5
"""Runs whose need is known, before a limit is made of them: fewer may all have been unusual."""

SHARE: Final = 0.95
"""Of runs, that had enough with what is taken for the need."""

MARGIN: Final = 1.2
"""What a job gets, as a multiple of its need."""

USUAL, MEASURED, KILLED = "usual", "measured", "killed"
"""What sets a limit: the settings, what earlier runs needed, or that one of them was killed."""

_WHOLE: Final = 1 << 20


@frozen(kw_only=True)
class Run:
    """What is remembered of one run of a job."""

    unit: str
    """Its id."""

    peak: int
    """Bytes that it had at the most at once."""

    limit: int
    """Bytes that it might have; 0: as much as there was."""

    killed: bool
    """Whether it, or a process of its, was killed because it had reached that limit."""


@frozen(kw_only=True)
class Tailored:
    """A limit, and where it comes from."""

    memory: int
    """Bytes."""

    by: str = USUAL
    """What sets it: `USUAL`, `MEASURED` or `KILLED`."""

    why: str = ""
    """In a few words; empty: nothing is known of earlier runs, and it is the usual one."""

    @property
    def notice(self) -> str:
        """One line for the job's log; empty: there is nothing to say."""
        return f"Memory limit: {in_words(self.memory)} ({self.why})" if self.why else ""


def remembering(runs: Sequence[Run], new: Run) -> Sequence[Run]:
    """Add a run, once, and forget those that do not count any more."""
    if any(run.unit == new.unit for run in runs):
        return runs
    return [*runs, new][-REMEMBERED:]


def need_of(runs: Sequence[Run]) -> int | None:
    """Give the 95th percentile (nearest rank) of what runs needed, in bytes; None: of too few is anything known."""
    peaks = sorted(run.peak for run in runs if not run.killed)
    return peaks[math.ceil(SHARE * len(peaks)) - 1] if len(peaks) >= ENOUGH else None


def tailor(runs: Sequence[Run], *, usual: int | None, least: int, most: int) -> Tailored:
    """Say how much memory the next run gets.

    Args:
        runs: Earlier ones, the latest last.
        usual: Bytes that the job would have otherwise; None: no limit, so it has *most* until more is known.
        least: Bytes below which no limit is lowered.
        most: Bytes above which none is raised.
    """
    runs = runs[-REMEMBERED:]
    start = min(most, usual or most)
    too_little = max((run.limit for run in runs if run.killed), default=0)
    raised = max(2 * too_little, start) if too_little else 0  # what was measured has misled: not below the usual limit
    need = need_of(runs)
    measured = start if need is None else math.ceil(need * MARGIN / _WHOLE) * _WHOLE
    ceiling = min(most, max(start, raised, *(run.limit for run in runs), 0))
    memory = min(max(measured, raised, least), ceiling)
    if too_little and raised >= measured:
        doubled = raised == 2 * too_little
        by, how = KILLED, "at which an earlier run was killed"
        why = f"twice the {in_words(too_little)} {how}" if doubled else f"more than the {in_words(too_little)} {how}"
    elif need is not None:
        known = sum(not run.killed for run in runs)
        by, why = MEASURED, f"{MARGIN} times the {in_words(need)} that 95% of the last {known} runs needed"
    else:
        return Tailored(memory=start)
    if memory < max(measured, raised):
        why += f", but at most {in_words(memory)}"
    elif memory > max(measured, raised):
        why += f", but at least {in_words(memory)}"
    return Tailored(memory=memory, by=by, why=why)
