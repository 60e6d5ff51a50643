"""One instance of the fake cloud, and what the cloud keeps on record of its use."""

import math
from collections.abc import Mapping, Sequence
from typing import Literal

from attrs import define, field, frozen

from fleeting._types import State

Method = Literal[
    "init",
    "update",
    "increase",
    "decrease",
    "connect_info",
    "heartbeat",
    "withdraw",
    "suspend",
    "resume",
    "mark_owner",
    "read_marks",
    "dial",
    "shutdown",
]


@frozen
class Call:
    """One call that a group made to the cloud."""

    method: Method
    """The method's name."""

    at: float
    """Seconds since the epoch, when the call began."""

    arguments: Mapping[str, object]
    """What it was called with, in order."""


@frozen(kw_only=True)
class Command:
    """One command that was run on an instance, as `Connection.run` took it."""

    command: str | Sequence[str]
    """As it was given to `Connection.run`."""

    stdin: bytes | None = None
    """Everything that the command was given to read."""

    env: Mapping[str, str] = field(factory=dict)
    """As it was given to `Connection.run`."""

    cwd: str | None = None
    """As it was given to `Connection.run`."""


@frozen(kw_only=True)
class Bill:
    """One instance that existed, for as long as it did."""

    instance: str
    """Its id."""

    offering: str | None
    """What it was bought as."""

    intent: str | None
    """The intent that asked for it, whether or not the cloud shows it; None: nobody asked."""

    since: float
    """Seconds since the epoch; minus infinity: before the group was first opened."""

    until: float | None
    """None: it still exists."""


@define(kw_only=True)
class Machine:
    """One instance, from being asked for to being forgotten; times are seconds since the epoch."""

    id: str
    """Its id."""

    intent: str | None
    """Of the request that it came from; None if it was put there."""

    offering: str | None
    """What it was bought as."""

    exists_at: float
    """When it begins to exist."""

    shown_at: float
    """When views begin to show it."""

    runs_at: float
    """When it is running."""

    suspend_at: float = math.inf
    """When it was asked to suspend."""

    suspended_at: float = math.inf
    """When it is suspended."""

    resume_at: float = math.inf
    """When it was asked to resume."""

    resumed_at: float = math.inf
    """When it runs again."""

    ended_at: float = math.inf
    """When its deletion was asked for."""

    gone_at: float = math.inf
    """When it no longer exists."""

    forgotten_at: float = math.inf
    """When views no longer show it."""

    broken: bool = False
    """Whether it fails instead of running."""

    hangs: bool = False
    """Whether it will hang in deleting once it is asked to go."""

    sickness: str = ""
    """Why its heartbeats fail; empty if they pass."""

    cuts: int = 0
    """How often its connections were cut."""

    def state(self, now: float) -> State | None:
        """What the cloud shows; None: nothing."""
        if not self.shown_at <= now < self.forgotten_at:
            return None
        if now >= self.gone_at:
            return State.DELETED
        if now >= self.ended_at:
            return State.DELETING
        if now < self.runs_at:
            return State.CREATING
        return State.FAILED if self.broken else self._wakefulness(now)

    def _wakefulness(self, now: float) -> State:
        """How far it is with the last time that it was suspended, if it ever was."""
        if now >= self.resume_at:
            return State.RUNNING if now >= self.resumed_at else State.RESUMING
        if now >= self.suspend_at:
            return State.SUSPENDED if now >= self.suspended_at else State.SUSPENDING
        return State.RUNNING

    def exists(self, now: float) -> bool:
        """Whether it is there, shown or not."""
        return self.exists_at <= now < self.gone_at
