"""What is said between a manager and the service that runs steps: GitLab's `StepRunner`, and our own `Results`.

Source of names and numbers: the step runner's ``proto/step.proto``, at 0.11.0. Our additions to its messages have
numbers that it will not get to, and which a service that does not know them passes over.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from enum import IntEnum
from typing import Final

from attrs import frozen

from job_steps._protobuf import (
    blob,
    double,
    flag,
    integer,
    many_messages,
    many_texts,
    one_message,
    text,
    text_map,
)

RUN: Final = "/proto.StepRunner/Run"
FOLLOW_LOGS: Final = "/proto.StepRunner/FollowLogs"
STATUS: Final = "/proto.StepRunner/Status"
CLOSE: Final = "/proto.StepRunner/Close"

GET_RESULTS: Final = "/job_steps.Results/Get"
FOLLOW_RESULTS: Final = "/job_steps.Results/Follow"
GET_HELD: Final = "/job_steps.Results/GetHeld"
FOLLOW_HELD: Final = "/job_steps.Results/FollowHeld"
GET_ENVIRONMENT: Final = "/job_steps.Results/GetEnvironment"
DECIDE: Final = "/job_steps.Results/Decide"
ADD_BREAKPOINTS: Final = "/job_steps.Results/AddBreakpoints"


class RunState(IntEnum):
    """How a job is."""

    UNSPECIFIED = 0
    """It has not begun."""

    RUNNING = 1
    SUCCESS = 2
    FAILURE = 3
    CANCELLED = 4
    """Somebody closed it, or its time was over."""

    @property
    def is_over(self) -> bool:
        """Whether it stays like this."""
        return self > RunState.RUNNING


class Cause(IntEnum):
    """Why a job ended that did not do so by itself; GitLab's service does not say."""

    NONE = 0
    """It ended by itself, or has not ended."""

    TIMED_OUT = 1
    """Its time limit was over."""

    LOST = 2
    """Nobody knows how: the agent that ran it was killed."""

    CLOSED = 3
    """Whoever asked for it, or who ended the agent."""


@frozen(kw_only=True)
class VariableMessage:
    """A variable of a CI job."""

    key: str = text(1)
    value: str = text(2)
    file: bool = flag(3)
    """Whether the value is to be in a file, whose path is the variable's value then."""

    masked: bool = flag(4)

    def __repr__(self) -> str:
        """Show no value, which may be a secret."""
        return f"VariableMessage(key={self.key!r})"


@frozen(kw_only=True)
class Job:
    """What of a request only CI jobs have."""

    variables: Sequence[VariableMessage] = many_messages(1, VariableMessage)
    build_dir: str = text(4)


@frozen(kw_only=True)
class RunMessage:
    """`RUN`, whose answer is empty."""

    id: str = text(1)
    work_dir: str = text(2)
    env: Mapping[str, str] = text_map(3)
    job: Job | None = one_message(5, Job)
    steps: str = text(6)
    time_limit: float = double(15001)
    breakpoints: Sequence[str] = many_texts(15002)
    breakpoint_timeout: float = double(15003)
    policy: str = text(15004)


@frozen(kw_only=True)
class ById:
    """`CLOSE`, whose answer is empty; `STATUS` and `GET_HELD`, of all jobs if the id is empty; what follows one job."""

    id: str = text(1)


@frozen(kw_only=True)
class Empty:
    """An answer that says nothing."""


@frozen(kw_only=True)
class FollowLogsMessage:
    """`FOLLOW_LOGS`."""

    id: str = text(1)
    offset: int = integer(2)


@frozen(kw_only=True)
class LogsMessage:
    """One of the answers to that."""

    data: bytes = blob(1)


@frozen(kw_only=True)
class Timestamp:
    """A moment."""

    seconds: int = integer(1)
    nanos: int = integer(2)

    @staticmethod
    def of(moment: datetime | None) -> "Timestamp | None":
        """Write a moment with a zone."""
        if moment is None:
            return None
        since = moment - _EPOCH
        return Timestamp(seconds=since.days * 86400 + since.seconds, nanos=since.microseconds * 1000)

    @property
    def moment(self) -> datetime | None:
        """The moment in UTC; None if no calendar of ours gets there."""
        try:
            return datetime.fromtimestamp(self.seconds, timezone.utc).replace(
                microsecond=min(max(self.nanos, 0) // 1000, 999_999)
            )
        except (OverflowError, ValueError, OSError):
            return None


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)


@frozen(kw_only=True)
class StatusMessage:
    """How one job is."""

    id: str = text(1)
    message: str = text(2)
    status: int = integer(3)
    start_time: Timestamp | None = one_message(5, Timestamp)
    end_time: Timestamp | None = one_message(6, Timestamp)
    cause: int = integer(15001)
    held_time: float = double(15002)
    """Seconds for which it has been held at breakpoints, for which its time limit stood still."""


@frozen(kw_only=True)
class StatusesMessage:
    """The answer to `STATUS`."""

    jobs: Sequence[StatusMessage] = many_messages(1, StatusMessage)


@frozen(kw_only=True)
class ResultsMessage:
    """The answer to `GET_RESULTS`, and each to `FOLLOW_RESULTS`."""

    tree: bytes = blob(1)
    """JSON; empty as long as there is nothing."""

    is_final: bool = flag(2)


@frozen(kw_only=True)
class HeldMessage:
    """A job that is held at a breakpoint."""

    id: str = text(1)
    number: int = integer(2)
    """Of the hold, among those of the job."""

    path: Sequence[str] = many_texts(3)
    when: str = text(4)
    """`before`, `after` or `failure`."""

    ends_in: float = double(5)
    """Seconds until it goes on by itself."""

    result: bytes = blob(6)
    """The step's, as JSON, with secrets masked."""


@frozen(kw_only=True)
class HeldsMessage:
    """The answer to `GET_HELD`, and each to `FOLLOW_HELD`."""

    held: Sequence[HeldMessage] = many_messages(1, HeldMessage)
    is_final: bool = flag(2)
    """Whether the job is over, so that it is not held any more."""


@frozen(kw_only=True)
class ByHold:
    """`GET_ENVIRONMENT`, of a job that is held."""

    id: str = text(1)
    number: int = integer(2)


@frozen(kw_only=True)
class EnvironmentMessage:
    """The answer to that, with nothing masked: for a shell."""

    env: Mapping[str, str] = text_map(1)
    work_dir: str = text(2)


@frozen(kw_only=True)
class DecideMessage:
    """`DECIDE`, whose answer says what was decided before, if it was something else."""

    id: str = text(1)
    number: int = integer(2)
    decision: str = text(3)


@frozen(kw_only=True)
class DecidedMessage:
    """The answer to that."""

    ended: str = text(1)
    """How the hold ended: `continued`, `aborted` or `timed out`."""


@frozen(kw_only=True)
class AddBreakpointsMessage:
    """`ADD_BREAKPOINTS`, whose answer is empty."""

    id: str = text(1)
    breakpoints: Sequence[str] = many_texts(2)
