"""How steps went: a tree of results, as a value, as data for JSON, and back.

What is sensitive is masked before it comes here.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any

from attrs import asdict, evolve, field, frozen

from job_steps._errors import ResultInvalid
from job_steps._sizes import in_units
from job_steps._values import Value, checked

MAX_DEPTH = 64
"""Levels of results that are read."""

MAX_RESULTS = 20_000
"""Results in one tree that is read: a run has half as many steps."""

_LAST_MOMENT = 253_402_300_800.0
"""The first second that no calendar of ours has."""

FIGURES = ("cpu_seconds", "peak_memory", "read_bytes", "written_bytes")
"""The names of those of resources."""

OUT_OF_MEMORY = "out_of_memory"
"""The cause of what was killed because it needed more memory than there was for it."""

LOST = "lost"
"""The cause of what nobody knows how it ended: the program that ran it was killed."""


@frozen(kw_only=True)
class OutOfMemory:
    """That a command was killed because it needed more memory than there was for it."""

    had: int
    """Bytes that it had then, or at most before, with all that it had started."""
    allowed: int | None
    """The limit of its memory; None if that was not what ended it, but the memory of its machine or container."""

    def __str__(self) -> str:
        """Say so behind the name of what was killed."""
        had = in_units(self.had)
        if self.allowed is None:
            return f"there was not enough memory on its machine, or in its container; it had {had}"
        return f"it needed more memory than its limit `memory` allows, which is {in_units(self.allowed)}; it had {had}"


class Status(Enum):
    """How far a step is."""

    RUNNING = "running"
    SUCCESS = "success"
    FAILURE = "failure"
    CANCELLED = "cancelled"


@frozen(kw_only=True)
class Resources:
    """What commands have used: each itself, and all that it has waited for; not what still runs in the background."""

    cpu_seconds: float = 0.0
    """Of processors, in user and system mode."""
    peak_memory: int = 0
    """Bytes, of the process that had most at once. Linux counts what a process had before it became the command: it is
    never less than what the program that runs the steps has, 30 MiB or so in an agent."""
    read_bytes: int = 0
    """Read from disks; what was in memory does not count."""
    written_bytes: int = 0
    """Written to disks."""
    by_cgroup: tuple[str, ...] = ()
    """The names of those of these figures that control groups have counted, of all processes that the commands have
    started; `peak_memory` is what all had at once then, with what the kernel kept of files for them."""

    @staticmethod
    def of_all(each: "Iterable[Resources]") -> "Resources":
        """Add up what several have used, one after the other."""
        used = [*each]
        return Resources(
            cpu_seconds=sum(one.cpu_seconds for one in used),
            peak_memory=max((one.peak_memory for one in used), default=0),
            read_bytes=sum(one.read_bytes for one in used),
            written_bytes=sum(one.written_bytes for one in used),
            by_cgroup=tuple(name for name in FIGURES if used and all(name in one.by_cgroup for one in used)),
        )


@frozen(kw_only=True)
class StepResult:
    """How one step went, with those that it called."""

    name: str = ""
    """The step's; empty for the whole."""
    status: Status = Status.RUNNING
    """How far it is."""
    reference: str = ""
    """Where its function comes from, expressions replaced; empty for the whole."""
    container: str = ""
    """The image of the container that it ran in; empty if it ran where its caller did."""
    inputs: Mapping[str, Value] = field(factory=dict)
    """What the function was given, defaults included."""
    env: Mapping[str, str] = field(factory=dict)
    """Variables that the step and the function set, with what came out of expressions."""
    outputs: Mapping[str, Value] = field(factory=dict)
    """What it returned."""
    exports: Mapping[str, str] = field(factory=dict)
    """Variables that it set for the steps after it."""
    command: tuple[str, ...] = ()
    """What was run; empty for a function that has steps."""
    work_dir: str = ""
    """Where."""
    exit_code: int | None = None
    """Of the command; 128 and the signal's number if one ended it; None if it was not started, or has not ended."""
    error: str | None = None
    """Why it failed."""
    cause: str | None = None
    """`out_of_memory` or `lost`; None if it is neither."""
    started: float | None = None
    """In seconds since 1970."""
    ended: float | None = None
    """In seconds since 1970; None if it has not."""
    resources: Resources | None = None
    """What it and those below it have used; None if nothing has ended that used any."""
    steps: "tuple[StepResult, ...]" = ()
    """Of the steps that it called, in their order, as far as they have begun."""

    def as_dict(self, *, times: bool = True) -> dict[str, Any]:
        """Return it as JSON has it; without times and resources, equal runs of deterministic steps give equal data."""
        data: dict[str, Any] = {
            "name": self.name,
            "status": self.status.value,
            "reference": self.reference,
            **({"container": self.container} if self.container else {}),
            "inputs": dict(self.inputs),
            "env": dict(self.env),
            "outputs": dict(self.outputs),
            "exports": dict(self.exports),
            "command": list(self.command),
            "work_dir": self.work_dir,
            "exit_code": self.exit_code,
            "error": self.error,
            "cause": self.cause,
        }
        if times:
            used = None if self.resources is None else asdict(self.resources)
            data |= {"started": self.started, "ended": self.ended, "resources": used}
        return data | {"steps": [each.as_dict(times=times) for each in self.steps]}

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> "StepResult":
        """Read what `as_dict` has written; keys of later versions are left out.

        Raises:
            ResultInvalid: It is no result.
        """
        try:
            _check_size(data)
            return _read(data, 0)
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
            raise ResultInvalid(f"not the result of steps: {type(error).__name__}: {error}") from error

    def scrubbed(self, scrub: Callable[[str], str]) -> "StepResult":
        """Return it with something done to all texts in which a secret may be."""

        def texts(value: Value) -> Value:
            if isinstance(value, str):
                return scrub(value)
            if isinstance(value, Mapping):
                return {scrub(key): texts(each) for key, each in value.items()}
            return [texts(each) for each in value] if isinstance(value, Sequence) else value

        return evolve(
            self,
            name=scrub(self.name),
            reference=scrub(self.reference),
            container=scrub(self.container),
            work_dir=scrub(self.work_dir),
            inputs={scrub(name): texts(each) for name, each in self.inputs.items()},
            outputs={scrub(name): texts(each) for name, each in self.outputs.items()},
            env={scrub(name): scrub(each) for name, each in self.env.items()},
            exports={scrub(name): scrub(each) for name, each in self.exports.items()},
            command=tuple(scrub(each) for each in self.command),
            error=None if self.error is None else scrub(self.error),
            cause=None if self.cause is None else scrub(self.cause),
            steps=tuple(each.scrubbed(scrub) for each in self.steps),
        )

    def failed(self) -> "StepResult | None":
        """Find the step that made the whole fail: the deepest; None if none did."""
        if self.status is Status.SUCCESS:
            return None
        below = next((found for each in self.steps if (found := each.failed())), None)
        return below or (self if self.status is Status.FAILURE else None)

    def lost(self, error: str, ended: Status = Status.RUNNING) -> "StepResult":
        """Return it as what is known of it once nobody knows how it went on: what had not ended has failed so.

        Args:
            error: Why.
            ended: What it says of that; `Status.CANCELLED` if the program that ran it could still end it.
        """
        if self.status is not ended:
            return self
        steps = tuple(each.lost(error, ended) for each in self.steps)
        return evolve(self, status=Status.FAILURE, error=error, cause=LOST, steps=steps)

    def at(self, path: Sequence[str]) -> "StepResult":
        """Find the result of a step by the names that lead to it; the last, of several of a name.

        Raises:
            KeyError: There is none.
        """
        here = self
        for name in path:
            below = next((each for each in reversed(here.steps) if each.name == name), None)
            if below is None:
                raise KeyError("/".join(path))
            here = below
        return here

    def walk(self) -> "Iterator[tuple[tuple[str, ...], StepResult]]":
        """Go through the tree, each result before those below it, with the names that lead to it."""
        waiting: list[tuple[tuple[str, ...], StepResult]] = [((), self)]
        while waiting:
            path, each = waiting.pop()
            yield path, each
            waiting += [((*path, below.name), below) for below in reversed(each.steps)]

    def without_times(self) -> "StepResult":
        """Return it without what differs from one run to the next: resources neither."""
        steps = tuple(each.without_times() for each in self.steps)
        return evolve(self, started=None, ended=None, resources=None, steps=steps)


def _check_size(data: Mapping[str, Any]) -> None:
    """Raises ValueError if there are more results in it than any run has."""
    waiting, count = [data], 0
    while waiting:
        count += 1
        if count > MAX_RESULTS:
            raise ValueError(f"more than {MAX_RESULTS} steps")
        waiting += waiting.pop().get("steps", ())


def _amount(number: float, limit: float) -> float:
    """Return what cannot be below zero; raises ValueError if it is, or is nothing that could have been measured."""
    if not 0 <= number < limit:
        raise ValueError(f"{number:g}, which nothing can have")
    return number


def _read(data: Mapping[str, Any], depth: int) -> StepResult:
    if depth > MAX_DEPTH:
        raise ValueError(f"more than {MAX_DEPTH} levels")
    return StepResult(
        name=_text(data["name"]),
        status=Status(data["status"]),
        reference=_text(data.get("reference", "")),
        container=_text(data.get("container", "")),
        inputs={_text(key): checked(value) for key, value in data.get("inputs", {}).items()},
        env=_texts(data.get("env", {})),
        outputs={_text(key): checked(value) for key, value in data.get("outputs", {}).items()},
        exports=_texts(data.get("exports", {})),
        command=tuple(_text(each) for each in data.get("command", ())),
        work_dir=_text(data.get("work_dir", "")),
        exit_code=None if (code := data.get("exit_code")) is None else int(_amount(int(code), 256)),
        error=None if (error := data.get("error")) is None else _text(error),
        cause=None if (cause := data.get("cause")) is None else _text(cause),
        started=None if (started := data.get("started")) is None else _amount(float(started), _LAST_MOMENT),
        ended=None if (ended := data.get("ended")) is None else _amount(float(ended), _LAST_MOMENT),
        resources=None if (used := data.get("resources")) is None else _resources(used),
        steps=tuple(_read(each, depth + 1) for each in data.get("steps", ())),
    )


def _resources(data: Mapping[str, Any]) -> Resources:
    whole = {name: int(_amount(int(data[name]), 2**63)) for name in FIGURES[1:]}
    by_cgroup = tuple(name for name in FIGURES if name in data.get("by_cgroup", ()))
    return Resources(cpu_seconds=_amount(float(data["cpu_seconds"]), 2**63), by_cgroup=by_cgroup, **whole)


def _texts(data: Mapping[str, Any]) -> dict[str, str]:
    return {_text(key): _text(value) for key, value in data.items()}


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{type(value).__name__} where a string was expected")
    return value
