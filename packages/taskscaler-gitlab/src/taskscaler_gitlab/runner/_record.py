"""What is written down about a job that runs, so that the next manager goes on with it.

Each change is on disk before what it is about happens. Nothing of the job's output is here, masked or not: that is read
again from the instance. What is said in the log beside it has no secrets, and is said in the same words again.
"""

import json
import os
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from attrs import asdict, astuple, define, field, frozen

from fleeting import Usage
from fleeting.plugins import make_private, open_private, write_whole
from gitlab_jobs import Outcome
from job_steps import ResultInvalid, StepResult
from taskscaler.executors import MemoryLimit
from taskscaler_gitlab.runner._errors import RecordUnreadable
from taskscaler_gitlab.runner._options import shown
from taskscaler_gitlab.runner._stages import Ended

N = TypeVar("N", int, float)

DIRECTORY = "run"
"""Below the job's own directory."""

_FILE = "record.json"

RESULTS = "step-results.json"
"""What the file is called that says how a job's steps went: where a leg leaves it, and beside the job's log."""

AGENT_KILLED = "the agent that ran it was killed, by one of the job's steps or from outside"
"""Why a step is lost."""

MAX_RESULTS = 16 << 20
"""Bytes of how a job's steps went that are read."""

VERSION = 1
"""Of what is in it: raised when a release before this one could not resume a job by it."""


@define(kw_only=True)
class LegRecord:
    """One command on the instance that was, or is to be, started."""

    kind: str
    """Which part of the job it is."""

    name: str
    """The try's, for `Reattaches`."""

    began: float
    """Seconds since the epoch."""

    ended: float = 0.0
    """When it ended with a section open, in seconds since the epoch."""

    is_over: bool = False
    """Whether all of its output is in the log, and what it left here."""

    is_timed_out: bool = False
    """Whether it was ended because the job's time was over."""

    is_lost: bool = False
    """Whether it ended before it was through."""

    why: str = ""
    """What its executor says of that, or of files that it does not bring."""


@frozen
class StepsSpan:
    """What the spans of a job's steps are a part of."""

    id: int
    began: float
    ended: float
    offset: float
    """Seconds by which the instance's clock is behind ours, as far as that shows."""


@define(kw_only=True)
class Record:
    """What is known of a job."""

    path: Path
    """The directory."""

    nonce: str = field(factory=lambda: secrets.token_hex(8), repr=False)
    """Marks our lines in the output."""

    began: float = 0.0
    """When the job was begun here, in seconds since the epoch."""

    home: str = ""
    """Where commands start on the instance."""

    architecture: str = ""
    """The instance's, as GitLab writes it."""

    agent: str = ""
    """Where what runs steps is on the instance; empty if the job has none."""

    python: str = ""
    """What runs that."""

    agent_problem: str = ""
    """Why it cannot run there."""

    legs: list[LegRecord] = field(factory=list)
    ended: dict[int, Ended] = field(factory=dict)
    """How stages have ended, in legs that are over."""

    begun: set[int] = field(factory=set)
    """The stages that had begun there."""

    is_canceled: bool = False
    """Whether the job was stopped because GitLab wanted that."""

    log_size: int = 0
    """Bytes of the log that are there for good: all up to the end of the last leg that is over."""

    sent: dict[int, str] = field(factory=dict)
    """Artifacts that need nothing any more, by their numbers: what went wrong with each, or nothing."""

    is_uploading: bool = False
    """Whether the log says that artifacts are sent."""

    has_uploaded: bool = False
    """Whether it says that that is over."""

    said: list[str] = field(factory=list)
    """What we have said in the log after the last leg."""

    usage: Usage = field(default=Usage())
    """What the legs that are over have used, all together."""

    memory_limit: MemoryLimit | None = None
    """How much memory the leg with the job's script might have; or one, that needed more."""

    took: dict[str, float] = field(factory=dict)
    """Seconds that each stage of those that are over took, by GitLab's names."""

    steps_in: StepsSpan | None = None
    """The span of the stage that has run the job's steps, if it was followed, until theirs are below it."""

    outcome: Outcome | None = None
    """How the job ended."""

    def add_usage(self, usage: Usage) -> None:
        """Note what one more leg has used: after the others, so that the most memory is that of one of them."""
        self.usage = Usage(
            cpu_time=_together(sum, self.usage.cpu_time, usage.cpu_time),
            peak_memory=_together(max, self.usage.peak_memory, usage.peak_memory),
            disk_written=_together(sum, self.usage.disk_written, usage.disk_written),
        )

    def add_limit(self, limit: MemoryLimit | None, *, has_script: bool) -> None:
        """Note how much memory a leg might have: of the one with the script, and of one that needed more."""
        if limit is not None and (has_script or limit.reached):
            self.memory_limit = limit

    def add_time(self, stage: str, seconds: float) -> None:
        """Note that a stage took so long, or so much longer."""
        self.took[stage] = self.took.get(stage, 0.0) + max(0.0, seconds)

    def keep_results(self, left: Path) -> StepResult | None:
        """Keep beside the job's log how its steps went, if what it has left says so, and return it; blocks.

        What had not ended when the job had is lost: their agent was killed.

        Raises:
            OSError: It cannot be written.
        """
        found = read_results(left)
        result = None if found is None else found.lost(AGENT_KILLED)
        if result is not None:
            write_whole(self.path.parent / RESULTS, json.dumps(result.as_dict()).encode())
        return result

    def save(self) -> None:
        """Write it down; blocks."""
        state = {
            "version": VERSION,
            "nonce": self.nonce,
            "began": self.began,
            "home": self.home,
            "architecture": self.architecture,
            "agent": self.agent,
            "python": self.python,
            "agent_problem": self.agent_problem,
            "legs": [asdict(leg) for leg in self.legs],
            "ended": [[number, end.code, end.is_stopped] for number, end in self.ended.items()],
            "begun": sorted(self.begun),
            "is_canceled": self.is_canceled,
            "log_size": self.log_size,
            "sent": list(self.sent.items()),
            "is_uploading": self.is_uploading,
            "has_uploaded": self.has_uploaded,
            "said": self.said,
            "usage": astuple(self.usage),
            "memory_limit": None if self.memory_limit is None else asdict(self.memory_limit),
            "took": self.took,
            "steps_in": None if self.steps_in is None else astuple(self.steps_in),
            "outcome": _outcome_as_json(self.outcome),
        }
        draft = self.path / f"{_FILE}.draft"
        with open(draft, "w", encoding="utf-8", opener=open_private) as file:
            json.dump(state, file)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self.path / _FILE)

    @classmethod
    def load(cls, directory: Path) -> "Record":
        """Read what is known of a job, or begin; blocks.

        Raises:
            RecordUnreadable: What is there is damaged, or was written by a later release.
            OSError: The directory cannot be used.
        """
        path = directory / DIRECTORY
        make_private(path)
        try:
            text = (path / _FILE).read_bytes()
        except FileNotFoundError:
            return cls(path=path)
        try:
            state = json.loads(text)
            version = state.get("version", VERSION)
            if version == VERSION:
                return _read(path, state)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise RecordUnreadable(f"{path / _FILE} is damaged; the job cannot be resumed") from error
        raise RecordUnreadable(
            f"{path / _FILE}: expected version {VERSION}, found {shown(str(version))}; the job cannot be resumed, use"
            " the release that began it"
        )


def read_results(path: Path) -> StepResult | None:
    """Read how steps went, which nobody has looked at yet; None: nothing says so. Blocks."""
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            data = file.read(MAX_RESULTS + 1)
        return None if len(data) > MAX_RESULTS else StepResult.from_dict(json.loads(data))
    except (OSError, ValueError, RecursionError, ResultInvalid):
        return None


def kept_log(directory: Path) -> int:
    """Say how many bytes of a job's log stay after a restart; `run_job` writes what comes after them again; blocks.

    Raises as `Record.load`.
    """
    return Record.load(directory).log_size


def has_begun(directory: Path) -> bool:
    """Say whether anything of a job may have been started on its instance; blocks. Raises as `Record.load`."""
    return bool(Record.load(directory).legs)


def usage_of(directory: Path) -> Usage:
    """Say what a job has used so far; blocks. Raises as `Record.load`."""
    return Record.load(directory).usage


def memory_limit_of(directory: Path) -> MemoryLimit | None:
    """Say how much memory a job might have, if it had a limit; blocks. Raises as `Record.load`."""
    return Record.load(directory).memory_limit


def stages_of(directory: Path) -> Mapping[str, float]:
    """Say how many seconds each stage of a job has taken, by GitLab's names; blocks. Raises as `Record.load`."""
    return Record.load(directory).took


def _together(combine: Callable[[Iterable[N]], N], first: N | None, second: N | None) -> N | None:
    """Combine what is known."""
    known = [each for each in (first, second) if each is not None]
    return combine(known) if known else None


def _read(path: Path, state: Mapping[str, Any]) -> Record:
    plain = (
        *("nonce", "began", "home", "architecture", "is_canceled", "log_size"),
        *("is_uploading", "has_uploaded", "said"),
    )
    return Record(
        path=path,
        legs=[LegRecord(**leg) for leg in state["legs"]],
        sent=dict(state["sent"]),
        ended={number: Ended(code, is_stopped=is_stopped) for number, code, is_stopped in state["ended"]},
        begun=set(state["begun"]),
        usage=_usage(*state.get("usage", (None, None, None))),  # earlier releases did not know
        memory_limit=MemoryLimit.read(state.get("memory_limit")),
        took={str(stage): float(seconds) for stage, seconds in state.get("took", {}).items()},
        steps_in=None if (found := state.get("steps_in")) is None else StepsSpan(int(found[0]), *map(float, found[1:])),
        outcome=_outcome(state["outcome"]),
        agent=str(state.get("agent", "")),  # likewise
        python=str(state.get("python", "")),
        agent_problem=str(state.get("agent_problem", "")),
        **{name: state[name] for name in plain},
    )


def _usage(cpu_time: float | None, peak_memory: int | None, disk_written: int | None) -> Usage:
    return Usage(
        cpu_time=None if cpu_time is None else float(cpu_time),
        peak_memory=None if peak_memory is None else int(peak_memory),
        disk_written=None if disk_written is None else int(disk_written),
    )


def _outcome_as_json(outcome: Outcome | None) -> Sequence[object] | None:
    return None if outcome is None else [outcome.is_success, outcome.failure_reason, outcome.exit_code]


def _outcome(state: Sequence[Any] | None) -> Outcome | None:
    if state is None:
        return None
    is_success, reason, code = state
    return Outcome(is_success=is_success, failure_reason=reason, exit_code=code)
