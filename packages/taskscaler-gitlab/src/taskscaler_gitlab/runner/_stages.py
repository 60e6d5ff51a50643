"""From a job to its stages, and from what became of them to what became of the job: pure.

The order is GitLab Runner's: sources, caches, artifacts of other jobs, the script's steps, ``after_script``, then the
caches and artifacts of this job. What fails before the script ends the job without it; a step that fails ends the
script, but not what comes after it.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum

from attrs import field, frozen

AFTER_SCRIPT = "after_script"

_LAST_CODE = 128
"""Exit codes above it are those of signals."""


class Phase(Enum):
    """What a stage is for."""

    BEFORE = "before"
    """It makes the script possible: if it fails, nothing else of the job runs but what is late."""

    SCRIPT = "script"
    """A step of the job's own."""

    AFTER = "after"
    """The job's own, once its script is over; its end is none of the job's."""

    LATE = "late"
    """It keeps what the job leaves."""


class When(Enum):
    """After what a stage runs."""

    ON_SUCCESS = "on_success"
    ON_FAILURE = "on_failure"
    ALWAYS = "always"

    def fits(self, *, has_failed: bool) -> bool:
        """Whether it runs now."""
        return self is When.ALWAYS or (self is When.ON_FAILURE) == has_failed

    @classmethod
    def of(cls, word: str, default: "When | None" = None) -> "When":
        """Read a job's word for it; by default on success."""
        return cls(word) if word in {each.value for each in cls} else default or cls.ON_SUCCESS


@frozen(kw_only=True)
class Stage:
    """A part of a job, which a shell of its own runs."""

    number: int
    """Of this stage in the job."""

    phase: Phase

    section: str = ""
    """What GitLab's page calls it; empty: it is none of what people see."""

    title: str = ""
    """The line that it begins with."""

    script: str = field(repr=False)
    """What runs: for the job's own shell if it is the job's own, else for any POSIX shell."""

    when: When = When.ALWAYS
    """Of a step, and of what is late."""

    allow_failure: bool = False
    """Of a step: whether it may fail."""

    attempts: int = 1
    """Of what comes before: how often it is tried."""

    retry: str = field(default="", repr=False)
    """What runs before another attempt."""

    timeout: float | None = None
    """Seconds, of what comes after."""

    is_counted: bool = True
    """Whether its failure makes a job fail that would have succeeded."""


@frozen
class Ended:
    """How a stage has ended."""

    code: int
    """Its exit code."""

    is_stopped: bool = False
    """Whether it was stopped because its time was over."""


class Cause(Enum):
    """Why a job did not succeed."""

    SCRIPT = "script"
    """A stage has failed: its exit code is the job's."""

    TIMEOUT = "timeout"
    """A step took too long."""

    SYSTEM = "system"
    """Its directories could not be made on the instance, which is what the first stage does."""

    LOST = "lost"
    """What runs the stages ended without a word."""


@frozen
class Verdict:
    """What became of a job, as far as its stages say."""

    cause: Cause | None = None
    """Why it failed; None: it did not."""

    stage: Stage | None = None
    """The one that failed first."""

    code: int = 0
    """Its exit code."""


def judge(stages: Sequence[Stage], ended: Mapping[int, Ended], begun: Iterable[int] = ()) -> Verdict:
    """Say what became of a job whose stages have ended like this; those that are missing did not run."""
    failed: Verdict | None = None
    for stage in stages:
        end = ended.get(stage.number)
        if end is None:
            if stage.number in begun and stage.phase is not Phase.AFTER:
                return failed or Verdict(Cause.LOST, stage)
        elif failed is None and (end.code or end.is_stopped) and _matters(stage, end):
            failed = Verdict(_cause(stage, end), stage, end.code)
    return failed or Verdict()


def filled_in(
    stages: Sequence[Stage], ended: Mapping[int, Ended], begun: int | None, code: int | None
) -> Mapping[int, Ended]:
    """Say how stages have ended that ran through while the end of their output was not kept.

    Args:
        stages: What ran.
        ended: How stages have ended, as far as the output says.
        begun: The one that had begun last, as far as it says.
        code: What all of it has exited with: that of the first failure. None, or that of a signal: it was killed.

    Returns:
        The same with the others, or only the same if not all ran through.
    """
    if begun is None or code is None or code > _LAST_CODE:
        return ended
    missing = {stage.number: Ended(0) for stage in stages if stage.number not in ended}
    if begun in missing and judge(stages, ended).cause is None:
        missing[begun] = Ended(code)
    return {**ended, **missing}


def _matters(stage: Stage, end: Ended) -> bool:
    return stage.is_counted and (end.is_stopped or not stage.allow_failure)


def _cause(stage: Stage, end: Ended) -> Cause:
    if stage.phase is Phase.SCRIPT and end.is_stopped:
        return Cause.TIMEOUT
    return Cause.SYSTEM if stage.number == 0 else Cause.SCRIPT
