"""One instance, as the plan and the journal know it."""

from enum import Enum

from attrs import define, frozen

from fleeting._types import Notice, State
from fleeting.core._stages import (
    TRANSITIONS,
    Asleep,
    Boot,
    Deletion,
    Held,
    IllegalMove,
    Phase,
    Preparing,
    Ready,
    Removing,
    Sleep,
    Stage,
    Start,
    Unhealthy,
    Waiting,
)

MOST_NOTICES = 8
"""So many announced ends of one instance are kept; clouds announce one, or one and then an earlier one."""


class Origin(Enum):
    """Where an instance came from."""

    REQUESTED = "requested"
    PREEXISTING = "preexisting"
    UNEXPECTED = "unexpected"


class Access(Enum):
    """Whether an instance may be given work."""

    COMING = "coming"
    """Not ready: new, or woken and not ready again."""

    AVAILABLE = "available"
    PAUSED = "paused"
    """No new work for now; running work goes on."""

    CLOSING = "closing"
    """No new work until it is removed; running work may go on."""

    ASLEEP = "asleep"
    LEAVING = "leaving"
    """Being removed, or kept only because it is retained; no work."""


@frozen
class Availability:
    """Whether an instance may be given work, and why not."""

    access: Access
    """Whether the instance may be given work."""

    why: str = ""
    """In a few words, if it may not; else empty."""

    briefly: bool = False
    """Whether the next view is expected to show it again, so that nothing need take its place."""


SUSPECT = "its last heartbeat failed"
"""Why an instance is paused whose heartbeats have to pass before it is given work."""

TOO_OLD = "older than max_instance_age"
"""Why an instance that has reached its age gets no more work."""


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
    """Why it must not be deleted, in the words of the one who said so; None: it may be."""

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
    phase: Phase
    """Its stage, with what is known only there; `move` changes it."""

    intent: str | None = None
    offering: str | None = None
    created_at: float | None = None
    ready_since: float | None = None
    """When it was last ready for the first time, or after it slept."""

    paused: str = ""
    """Why it gets no new work for now, as the views show it; empty if it may."""

    missed: int = 0
    """In how many views in a row it was absent."""

    connection_dead: bool = False
    """Whether a connection to it died since a view last showed it."""

    notices: tuple[Notice, ...] = ()
    """Of when it goes, the earliest first: one that it outlives in its sleep does not take back the others."""

    resume_failures: int = 0
    """How many attempts in a row to resume it came to nothing."""

    retained: str | None = None
    """Why it must not be deleted, in the words of the one who said so; None: it may be."""

    def move(self, phase: Phase) -> None:
        """Enter a stage. Raises `IllegalMove` if the table does not allow it."""
        if phase.stage not in TRANSITIONS[self.phase.stage]:
            raise IllegalMove(f"{phase.stage.value} may not follow {self.phase.stage.value}")
        self.phase = phase

    def announce(self, notice: Notice) -> None:
        """Keep a notice; of many the earliest, so that a cloud that goes on announcing fills nothing."""
        if all(notice.deadline != each.deadline for each in self.notices):
            self.notices = tuple(sorted([*self.notices, notice], key=lambda each: each.deadline)[:MOST_NOTICES])

    @property
    def notice(self) -> Notice | None:
        """The notice that counts: the earliest."""
        return self.notices[0] if self.notices else None

    @property
    def stage(self) -> Stage:
        """Where it stands."""
        return self.phase.stage

    @property
    def up(self) -> bool:
        """Whether the consumer counts on it: it is ready, or was until it turned out unhealthy."""
        return isinstance(self.phase, Ready | Unhealthy)

    @property
    def announced(self) -> bool:
        """Whether the consumer knows of it, awake or asleep, and is owed a `Gone`."""
        match self.phase:
            case Waiting(boot) | Preparing(boot):
                return boot.start is not Start.NEW
            case Ready() | Unhealthy() | Asleep():
                return True
            case Removing() | Held():
                return False

    @property
    def boot(self) -> Boot | None:
        """How it came, or comes, to be ready; None if it neither is nor is on its way."""
        return self.phase.boot if isinstance(self.phase, Waiting | Preparing | Ready) else None

    @property
    def sleep(self) -> Sleep | None:
        """Why it is, or is to be, suspended; None if it is not."""
        match self.phase:
            case Asleep(sleep):
                return sleep
            case Waiting(slept=slept) | Preparing(slept=slept):
                return slept
            case _:
                return None

    @property
    def asleep(self) -> str:
        """Why it is, or is to be, suspended; empty if it is not."""
        return self.sleep.why if self.sleep is not None else ""

    @property
    def removing(self) -> str:
        """Why it is done for; empty if it is not."""
        return self.phase.why if isinstance(self.phase, Removing | Held) else ""

    @property
    def deletion(self) -> Deletion | None:
        """What was done to delete it; None: nothing."""
        return self.phase.deletion if isinstance(self.phase, Removing) else None

    @property
    def trouble(self) -> str:
        """What last kept it from being prepared, though it may pass; empty if it is not being prepared."""
        return self.phase.trouble if isinstance(self.phase, Preparing) else ""

    @property
    def availability(self) -> Availability:
        """Whether it may be given work, from all that is known of it; of several reasons the most lasting one."""
        match self.phase:
            case Ready() as ready:
                return self._availability_when(ready)
            case Waiting() | Preparing():
                return Availability(Access.COMING, self.trouble) if self.trouble else COMING
            case Asleep(sleep):
                return Availability(Access.ASLEEP, sleep.why)
            case Removing(why) | Held(why):
                return Availability(Access.LEAVING, why)
            case Unhealthy(illness):
                return Availability(Access.CLOSING, f"its heartbeats fail: {illness}")

    def _availability_when(self, ready: Ready) -> Availability:
        """Of one that is ready."""
        if self.notices:
            return Availability(Access.CLOSING, self.notices[0].why)
        if ready.too_old:
            return Availability(Access.CLOSING, TOO_OLD)
        if self.paused or ready.suspect:
            return Availability(Access.PAUSED, self.paused or SUSPECT, briefly=self.missed > 0)
        return AVAILABLE

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
            asleep_since=self.sleep.since if self.sleep is not None else None,
        )


AVAILABLE = Availability(Access.AVAILABLE)
COMING = Availability(Access.COMING)
