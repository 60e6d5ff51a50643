"""What an executor says of a job's steps and of its memory limit, beside how it ended. Pure.

A job may have thousands of steps: `dearest` makes few of them, without losing what all have used together.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import nlargest
from itertools import zip_longest
from typing import Any, Final, TypeVar

from attrs import Attribute, asdict, evolve, field, fields_dict, frozen
from attrs.validators import instance_of

from fleeting import Usage
from fleeting.plugins import in_units, one_line, span

N = TypeVar("N", int, float)

MOST_STEPS: Final = 10
"""That are told of one job one by one."""

OUT_OF_MEMORY: Final = "out_of_memory"
"""How a step has ended that was killed because it needed more memory than there was for it."""

STEP_ENDS: Final = ("succeeded", "failed", OUT_OF_MEMORY, "cancelled", "unfinished")
"""How a step may have ended."""

LIMITED_BY: Final = ("usual", "measured", "killed")
"""What a memory limit may come from: the settings, what earlier runs needed, or that one of them was killed."""

LARGEST: Final = 1 << 63
"""Above any size or duration that is one."""

LONGEST_PATH: Final = 256
"""Bytes of the names that lead to a step."""


def _shortened(path: str) -> str:
    return one_line(path, LONGEST_PATH)


def _amount(_: object, about: "Attribute[Any]", value: object) -> None:
    """See that a figure is one, or not known."""
    if value is None and about.default is None:
        return
    is_whole = about.name in ("peak_memory", "disk_read", "disk_written", "size", "count")
    if not isinstance(value, int if is_whole else (int, float)) or not 0 <= value < LARGEST:
        raise ValueError("a whole number that is not negative" if is_whole else "a number that is not negative")


def _one_of(words: Sequence[str]) -> Callable[[object, "Attribute[str]", str], None]:
    def check(_: object, __: "Attribute[str]", value: str) -> None:
        if value not in words:
            raise ValueError(f"one of {', '.join(each for each in words if each)}")

    return check


@frozen(kw_only=True)
class StepUse:
    """What a step of a job has used that ran something itself; or several, all together."""

    path: str = field(default="", converter=_shortened)
    """The names that lead to it, with slashes between; empty: several steps that have no name together."""

    ended: str = field(default="", validator=_one_of(("", *STEP_ENDS)))
    """One of `STEP_ENDS`: ``succeeded``, ``failed``, ``out_of_memory``, ``cancelled`` or ``unfinished``; empty for
    several."""

    count: int = field(default=1, validator=_amount)
    """How many steps this is."""

    duration: float | None = field(default=None, validator=_amount)
    """Seconds that it took; None: not known."""

    cpu_time: float | None = field(default=None, validator=_amount)
    """Seconds of CPU, on all CPUs together; None: not known."""

    peak_memory: int | None = field(default=None, validator=_amount)
    """Bytes of memory that it had at the most at once, or its largest process; None: not known."""

    disk_read: int | None = field(default=None, validator=_amount)
    """Bytes that it has read from disks; None: not known."""

    disk_written: int | None = field(default=None, validator=_amount)
    """Bytes that it has written to disks; None: not known."""

    @staticmethod
    def read(data: Mapping[str, Any]) -> "StepUse":
        """Read it as it was written down; keys of later releases are left out.

        Raises:
            ValueError, TypeError: It is none.
        """
        return StepUse(**{name: value for name, value in data.items() if name in fields_dict(StepUse)})


@frozen(kw_only=True)
class MemoryLimit:
    """How much memory a job might have, and where that comes from."""

    size: int = field(validator=_amount)
    """Bytes."""

    by: str = field(default="usual", validator=_one_of(LIMITED_BY))
    """``usual``: it is that of the settings; ``measured``: earlier runs of the job needed so much; ``killed``: one of
    them was killed for lack of memory."""

    why: str = field(default="", converter=one_line)
    """The same in a few words; empty if it is the usual one."""

    reached: bool = field(default=False, validator=instance_of(bool))
    """Whether the job, or a process of its, was killed because it needed more."""

    @staticmethod
    def read(data: Mapping[str, Any] | None) -> "MemoryLimit | None":
        """Read it as it was written down, if it was.

        Raises:
            ValueError, TypeError: It is none.
        """
        if data is None:
            return None
        return MemoryLimit(**{name: value for name, value in data.items() if name in fields_dict(MemoryLimit)})


MOST_CPUS: Final = 4096
"""Of one machine."""

MOST_MEMORY: Final = 1 << 47
"""Bytes of one machine: 128 TiB."""

MOST_PER_SECOND: Final = 1 << 38
"""Bytes that a machine can read from disks, or write: 256 GiB."""

_SLACK: Final = 60.0
"""Seconds by which a job may seem to have taken longer where it ran: clocks are set."""

_BOUNDS: Final[Mapping[str, Callable[[float], float]]] = {
    "duration": lambda seconds: seconds,
    "cpu_time": lambda seconds: seconds * MOST_CPUS,
    "peak_memory": lambda _: MOST_MEMORY,
    "disk_read": lambda seconds: seconds * MOST_PER_SECOND,
    "disk_written": lambda seconds: seconds * MOST_PER_SECOND,
}
"""What a job can have had at the most that took so many seconds."""


def possible_usage(usage: Usage, seconds: float) -> Usage:
    """Leave out what no job can have used that took so long: figures come from where it ran, and it may lie."""
    known = {name: value for name, value in asdict(usage).items() if value is not None}
    return Usage(**{name: value for name, value in known.items() if 0 <= value <= _bound(name, seconds)})


def possible_steps(steps: Sequence[StepUse], seconds: float) -> Sequence[StepUse]:
    """Likewise of its steps: if one of them, or all together, cannot have used so much, of none it is known."""
    whole = together(steps)
    wrong: dict[str, Any] = {name: None for name in _BOUNDS if (getattr(whole, name) or 0) > _bound(name, seconds)}
    return [evolve(step, **wrong) for step in steps] if wrong else steps


def _bound(name: str, seconds: float) -> float:
    return _BOUNDS[name](max(0.0, seconds) + _SLACK)


def limit_in_words(limit: MemoryLimit) -> str:
    """Say how much memory a job might have, what set that, and whether it was too little."""
    return f"{in_units(limit.size)}{f', {limit.why}' if limit.why else ''}{'; it needed more' if limit.reached else ''}"


def together(steps: Iterable[StepUse], *, path: str = "") -> StepUse:
    """Add up what several have used, one after the other: of memory, the most that any had."""
    each = [*steps]
    return StepUse(
        path=path,
        count=sum(one.count for one in each),
        duration=_known(sum, (one.duration for one in each)),
        cpu_time=_known(sum, (one.cpu_time for one in each)),
        peak_memory=_known(max, (one.peak_memory for one in each)),
        disk_read=_known(sum, (one.disk_read for one in each)),
        disk_written=_known(sum, (one.disk_written for one in each)),
    )


def _known(combine: Callable[[Iterable[N]], N], values: Iterable[N | None]) -> N | None:
    """Combine what is known, of which the sum may be too much to be one; None: nothing is."""
    known = [value for value in values if value is not None]
    return min(combine(known), LARGEST - 1) if known else None


_MEASURES: Final[Sequence[Callable[[StepUse], float | None]]] = (
    lambda step: step.duration,
    lambda step: step.cpu_time,
    lambda step: step.peak_memory,
    lambda step: step.disk_read,
    lambda step: step.disk_written,
)


def dearest(steps: Sequence[StepUse], most: int = MOST_STEPS) -> tuple[StepUse, ...]:
    """Keep those that took longest or used most of something, in their order; the last are all others together.

    Args:
        steps: Of a job, or of several.
        most: How many are left at the most, the others among them; at least 2.
    """
    if len(steps) <= most and all(step.path for step in steps[:-1]):
        return tuple(steps)
    named = [number for number, step in enumerate(steps) if step.path]
    ranks = [_rank(steps, named, measure, most) for measure in _MEASURES]
    kept = dict.fromkeys(number for rank in zip_longest(*ranks) for number in rank if number is not None)
    chosen = sorted([*kept][: most - 1])
    left = set(range(len(steps))) - set(chosen)
    others = (together(steps[number] for number in left),) if left else ()
    return (*(steps[number] for number in chosen), *others)


def _rank(
    steps: Sequence[StepUse], named: Sequence[int], measure: Callable[[StepUse], float | None], most: int
) -> Sequence[int]:
    """Number those that used most by one measure; of those that used as much, those that took longest."""
    used = [number for number in named if measure(steps[number])]
    return nlargest(most, used, key=lambda number: (measure(steps[number]), steps[number].duration or 0.0))


def by_path(steps: Iterable[StepUse]) -> Sequence[StepUse]:
    """Put steps of the same name together, of several jobs, in the order in which they come up."""
    found: dict[str, list[StepUse]] = {}
    for step in steps:
        found.setdefault(step.path, []).append(step)
    return [evolve(each[0], ended="") if len(each) == 1 else together(each, path=path) for path, each in found.items()]


def in_words(steps: Sequence[StepUse]) -> Sequence[str]:
    """Say where the time, the CPU, the memory and the bytes went: a line for each, the longest first."""
    whole = together(steps)
    longest_first = sorted(steps, key=lambda step: (not step.path, -(step.duration or 0.0)))
    lines = [_line(step, whole) for step in longest_first]
    return lines if len(lines) < 2 else (f"{whole.count} in all: {_account(whole)}", *lines)  # noqa: PLR2004


def _line(step: StepUse, whole: StepUse) -> str:
    name = step.path or f"{step.count} others"
    ended = "" if step.ended in ("", "succeeded") else f" ({step.ended.replace('_', ' ')})"
    often = f" ({step.count} times)" if step.path and step.count > 1 else ""
    return f"{name}{often}{ended}: {_account(step, whole)}"


def _account(step: StepUse, whole: StepUse | None = None) -> str:
    parts = (took_in_words(step, whole), used_in_words(step, whole))
    return ", ".join(filter(None, parts)) or "nothing is known"


def took_in_words(step: StepUse, whole: StepUse | None = None) -> str:
    """Say how long a step took, and which share of the whole that is, if it is not all; empty: it is not known."""
    if step.duration is None:
        return ""
    return f"{span(step.duration)}{_share(step.duration, _duration_of(whole, step))}"


def used_in_words(step: StepUse, whole: StepUse | None = None) -> str:
    """Say what a step has used, with its share of the CPU time; empty: nothing, or that is not known."""
    whole_cpu = None if whole is None or whole.count == step.count else whole.cpu_time
    cpu = None if step.cpu_time is None else f"{span(step.cpu_time)} of CPU{_share(step.cpu_time, whole_cpu)}"
    read = f"{in_units(step.disk_read)} read" if step.disk_read else ""
    peak = Usage(peak_memory=step.peak_memory).account
    written = Usage(disk_written=step.disk_written).account if step.disk_written else ""
    return ", ".join(filter(None, (cpu, peak, read, written)))


def _duration_of(whole: StepUse | None, step: StepUse) -> float | None:
    return None if whole is None or whole.count == step.count else whole.duration


def _share(part: float, whole: float | None) -> str:
    return f" ({part / whole:.0%})" if whole else ""
