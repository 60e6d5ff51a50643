"""What goes into the plan and what comes out of it: commands, facts, actions, events. Ids and values only.

For those who drive a `Plan` themselves, as the provisioner, taskscaler and the simulator do. Everybody
else needs none of this.
"""

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

from fleeting._types import NoticeKind, Observation

# --- commands: what the consumer wants -------------------------------------------------------------------


class Tick(NamedTuple):
    """Do what is due."""


class Request(NamedTuple):
    """Ask for *count* more instances, or for as many of them as `limits` allow now."""

    count: int  # type: ignore[assignment]  # (hides the tuple's own method, which nobody wants here)


class TakeBack(NamedTuple):
    """Take back up to *count* unfilled requests, where the group can; one call at a time."""

    count: int  # type: ignore[assignment]  # (hides the tuple's own method, which nobody wants here)


class Remove(NamedTuple):
    """Delete these, each for its reason, in one call; none may hold a slot in use. Passes over unknown ones."""

    reasons: Mapping[str, str]


class Retain(NamedTuple):
    """Ask no more for the deletion of this known instance, whatever the reason; it must not be asked for yet."""

    instance: str
    why: str


class Unretain(NamedTuple):
    """Undo `Retain`: if there was a reason to delete it meanwhile, that happens now."""

    instance: str


class PutToSleep(NamedTuple):
    """Suspend these, each for its reason, in one call; none may run any work. Passes over what is not ready.

    That of one that somebody else has suspended is only noted.
    """

    reasons: Mapping[str, str]


class Wake(NamedTuple):
    """Let these run again, in one call. Passes over those that are not known to be suspended."""

    instances: tuple[str, ...]


class AskHeartbeat(NamedTuple):
    """Ask for a heartbeat now, unless one is being asked for; `Alive` or `Changed` brings the answer."""

    instance: str


class Crowded(NamedTuple):
    """Whether there are, or may be, more instances than there may be over all groups; then no request is repeated."""

    crowded: bool


class ShutDown(NamedTuple):
    """From now on deletions are retried at the shutdown's own interval."""


Command = Tick | Request | TakeBack | Remove | Retain | Unretain | PutToSleep | Wake | AskHeartbeat | Crowded | ShutDown


# --- facts: what happened outside -----------------------------------------------------------------------


class Updated(NamedTuple):
    """The cloud's view was fetched."""

    observation: Observation
    changed: tuple[str, ...] | None = None
    """Ids of at least those instances that the view before showed otherwise, or only one of the two shows; with them a
    view costs no more than they do. None: not known, and all are compared."""


class UpdateFailed(NamedTuple):
    """The cloud's view could not be fetched."""

    error: str
    retry_after: float | None = None


class Increased(NamedTuple):
    """The cloud accepted *accepted* instances for the intent."""

    intent: str
    accepted: int


class IncreaseFailed(NamedTuple):
    """The cloud refused, or whether it did is not known."""

    intent: str
    error: str
    outcome_known: bool = True
    retry_after: float | None = None


class NotAsked(NamedTuple):
    """The cloud was not asked for the intent's instances: what was decided waited for the journal for too long."""

    intent: str


class Decreased(NamedTuple):
    """Of those asked for, the cloud accepted these deletions."""

    asked: tuple[str, ...]
    accepted: tuple[str, ...]


class DecreaseFailed(NamedTuple):
    """The cloud took none of these deletions, or said nothing."""

    asked: tuple[str, ...]
    error: str
    retry_after: float | None = None


class Withdrawn(NamedTuple):
    """Of those asked for, so many unfilled requests were taken back."""

    asked: int
    taken: int
    has_failed: bool = False
    """Whether the call failed, so that nothing is known to be taken."""


class SuspendAccepted(NamedTuple):
    """Of those asked for, the cloud accepted to suspend these."""

    asked: tuple[str, ...]
    accepted: tuple[str, ...]


class SuspendFailed(NamedTuple):
    """The cloud suspends none of these, or said nothing."""

    asked: tuple[str, ...]
    error: str
    retry_after: float | None = None


class ResumeAccepted(NamedTuple):
    """Of those asked for, the cloud accepted to let these run again."""

    asked: tuple[str, ...]
    accepted: tuple[str, ...]


class ResumeFailed(NamedTuple):
    """The cloud lets none of these run again, or said nothing."""

    asked: tuple[str, ...]
    error: str
    retry_after: float | None = None


class Prepared(NamedTuple):
    """The instance can be connected to and passed every readiness step."""

    instance: str


class PrepareFailed(NamedTuple):
    """A readiness step failed. Not *final*: it may pass when tried again."""

    instance: str
    error: str
    final: bool = True
    retry_after: float | None = None


class HeartbeatPassed(NamedTuple):
    """The instance is healthy."""

    instance: str


class HeartbeatFailed(NamedTuple):
    """The instance did not show that it is healthy."""

    instance: str
    error: str


class Noticed(NamedTuple):
    """The cloud announced that the instance will go at *deadline*."""

    instance: str
    deadline: float
    kind: NoticeKind


class Disowned(NamedTuple):
    """The group is not known to be ours any more: nothing may be changed there. Empty *error*: it is ours again.

    A fact, and an event as well: the consumer must hand out nothing new there.
    """

    error: str


class ConnectionDied(NamedTuple):
    """An open connection to the instance broke."""

    instance: str
    error: str


Fact = (
    Updated
    | UpdateFailed
    | Increased
    | IncreaseFailed
    | NotAsked
    | Decreased
    | DecreaseFailed
    | Withdrawn
    | SuspendAccepted
    | SuspendFailed
    | ResumeAccepted
    | ResumeFailed
    | Prepared
    | PrepareFailed
    | HeartbeatPassed
    | HeartbeatFailed
    | Noticed
    | Disowned
    | ConnectionDied
)


# --- actions: what the shell is to do; each ends in one of the facts above ------------------------------


class Update(NamedTuple):
    """Fetch the cloud's view."""

    pool: str


class Increase(NamedTuple):
    """Ask for *count* more under the intent."""

    pool: str
    intent: str
    count: int  # type: ignore[assignment]  # (hides the tuple's own method, which nobody wants here)


class Decrease(NamedTuple):
    """Delete these, none of which holds a slot in use."""

    pool: str
    instances: tuple[str, ...]


class Withdraw(NamedTuple):
    """Take back up to *count* unfilled requests."""

    pool: str
    count: int  # type: ignore[assignment]  # (hides the tuple's own method, which nobody wants here)


class Suspend(NamedTuple):
    """Suspend these, on which nothing runs."""

    pool: str
    instances: tuple[str, ...]


class Resume(NamedTuple):
    """Let these, which are suspended, run again."""

    pool: str
    instances: tuple[str, ...]


class Prepare(NamedTuple):
    """Fetch the connection details and run the readiness steps."""

    pool: str
    instance: str


class Heartbeat(NamedTuple):
    """See whether the instance is healthy."""

    pool: str
    instance: str


class Forget(NamedTuple):
    """Stop whatever is under way for the instance; it is gone or going, or to sleep. Has no outcome."""

    pool: str
    instance: str


Action = Update | Increase | Decrease | Withdraw | Suspend | Resume | Prepare | Heartbeat | Forget


# --- events: what changed, for the core on top ----------------------------------------------------------


class LossKind(Enum):
    """Why work on an instance cannot go on."""

    VANISHED = "vanished"
    """The cloud no longer shows it."""

    DELETED = "deleted"
    """Somebody else deleted it."""

    FAILED = "failed"
    """The cloud reports it as failed."""

    PREEMPTED = "preempted"
    UNHEALTHY = "unhealthy"
    KILLED = "killed"
    """An operator, or a shutdown that would not wait."""


class Loss(NamedTuple):
    """Why work on an instance cannot go on, and the particulars."""

    kind: LossKind
    detail: str = ""

    def __str__(self) -> str:
        """In words."""
        return self.detail or self.kind.value


class Changed(NamedTuple):
    """Something that matters to work has changed: the instance's `availability`, its notice, whether it is retained.

    Also its stage. Comes once per step and instance, after all other events; what has changed is to be read from the
    plan.
    """

    instance: str


class Alive(NamedTuple):
    """A heartbeat of the instance has passed; emitted only where work is given after that alone."""

    instance: str


class Gone(NamedTuple):
    """The instance is lost to work. Comes only if it was ready or asleep, and once."""

    instance: str
    loss: Loss | None
    """None: it was removed because we asked for it."""


class Ended(NamedTuple):
    """The instance is no more, whether or not it ever was ready. The last that is heard of it."""

    instance: str


class Refused(NamedTuple):
    """Instances stood in the group before the first increase and may be neither used nor removed."""

    instances: tuple[str, ...]


Event = Changed | Alive | Gone | Ended | Refused | Disowned
