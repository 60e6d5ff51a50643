"""One instance, as the plan and the journal know it."""

from enum import Enum
from math import inf

from attrs import define, frozen

from fleeting._types import NoticeKind, State


class Origin(Enum):
    """Where an instance came from."""

    REQUESTED = "requested"
    PREEXISTING = "preexisting"
    UNEXPECTED = "unexpected"


class Stage(Enum):
    """An instance as the plan sees it."""

    WAITING = "waiting"
    """Not running yet, or not yet being prepared."""

    PREPARING = "preparing"
    READY = "ready"
    UNHEALTHY = "unhealthy"
    ASLEEP = "asleep"
    """Suspended, or about to be. Woken, it is WAITING again."""

    REMOVING = "removing"
    HELD = "held"
    """Done for, but not to be deleted for now: it is retained, or the plan only observes."""


@frozen(kw_only=True)
class InstanceRecord:
    """An instance, as the journal keeps it."""

    pool: str
    origin: Origin
    intent: str | None
    first_seen: float
    removing: str
    """Why it is being removed; empty if it is not."""

    retained: str | None = None
    """Why it must not be deleted, in the words of whoever said so; None: it may be."""

    asleep: str = ""
    """Why it is, or is to be, suspended; empty if it is not."""

    asleep_since: float | None = None


@frozen(kw_only=True)
class LostRecord:
    """A gone instance that must not be used again should it show up."""

    pool: str
    until: float


@define
class Instance:
    """One instance, as the plan knows it."""

    id: str
    origin: Origin
    first_seen: float
    state: State
    stage: Stage = Stage.WAITING
    intent: str | None = None
    offering: str | None = None
    created_at: float | None = None
    ready_since: float | None = None
    trouble: str = ""
    """What last kept it from being prepared, though it may pass."""

    prepared: bool = False
    """Whether it passed the readiness steps."""

    announced: bool = False
    """Whether those on top were told of it, awake or asleep, and are owed a `Gone`."""

    paused: str = ""
    """Why it gets no new work for now; empty if it may."""

    missed: int = 0
    """In how many views in a row it was absent."""

    connection_dead: bool = False
    cut_off: bool = False
    """Whether a connection died since the last heartbeat: if the next one fails too, no more are waited for."""

    failures: int = 0
    """Heartbeats failed in a row."""

    suspect: bool = False
    """Whether it gets no new work until a heartbeat passes: the last one failed, and with work each has to pass."""

    deadline: float | None = None
    """When it goes, if notice was given."""

    notice: NoticeKind = NoticeKind.PREEMPTION
    """Which, if it was given."""

    asleep: str = ""
    """Why it is, or is to be, suspended; empty if it is not."""

    asleep_since: float | None = None
    resume_failures: int = 0
    """How many attempts in a row to resume it came to nothing."""

    resumed: bool = False
    """Whether we had it resumed when it was last on its way to being ready."""

    coming_since: float | None = None
    """When it was asked for, or to be resumed; None if that is not known."""

    unsure_since: float = -inf
    """From when on a view has to be to show whether it runs: nobody knows what came of a call."""

    removing: str = ""
    """Why it is done for; empty if it is not."""

    retained: str | None = None
    """Why it must not be deleted, in the words of whoever said so; None: it may be."""

    removal_asked_at: float | None = None
    """When its deletion was decided on last; a journal that fails may delay the call."""

    removal_tries: int = 0
    """How often its deletion was decided on: more than once, and it had no effect yet."""

    removal_sent: bool = False
    """Whether the cloud was asked."""

    @property
    def up(self) -> bool:
        """Whether those on top count on it: it is ready, or was until it turned out unhealthy."""
        return self.stage in {Stage.READY, Stage.UNHEALTHY}

    def record(self, pool: str) -> InstanceRecord:
        """For the journal."""
        return InstanceRecord(
            pool=pool,
            origin=self.origin,
            intent=self.intent,
            first_seen=self.first_seen,
            removing=self.removing,
            retained=self.retained,
            asleep=self.asleep,
            asleep_since=self.asleep_since,
        )
