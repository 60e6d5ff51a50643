"""What the plan waits for: each timer means one thing."""

from enum import StrEnum
from typing import NamedTuple


class Due(StrEnum):
    """What is to be done once its time has come."""

    VIEW = "view"
    """Fetch the cloud's view."""

    PREPARE = "prepare"
    """Run the readiness steps again, which have failed."""

    READY = "ready"
    """Give up an instance that is not ready."""

    HEARTBEAT = "heartbeat"
    AGE = "age"
    """Report that an instance has reached its age."""

    SUSPENDED = "suspended"
    """Give up suspending an instance that still runs."""

    RESUMED = "resumed"
    """Give up resuming an instance that still sleeps."""

    DELETE = "delete"
    """Ask for an instance's deletion, again."""

    DECREASE = "decrease"
    """Ask for queued deletions, though the cloud has not answered the last call."""

    ASK = "ask"
    """Repeat a request for instances that was never answered."""

    ANSWERED = "answered"
    """Give up what is queued behind a request for instances that the cloud should have answered by now."""

    APPEARED = "appeared"
    """See whether what was requested has appeared."""

    RETURNED = "returned"
    """Forget instances that are gone, and have not come back."""

    __hash__ = str.__hash__  # Enum's own is Python, and each look at a timer hashes its key


class Timer(NamedTuple):
    """What is to be done, and with what."""

    due: Due
    id: str = ""
    """Of the instance or intent; empty for the group."""


VIEW = Timer(Due.VIEW)
DECREASE = Timer(Due.DECREASE)
ANSWERED = Timer(Due.ANSWERED)
RETURNED = Timer(Due.RETURNED)
OF_A_LIFE = (Due.READY, Due.RESUMED, Due.HEARTBEAT, Due.PREPARE, Due.AGE, Due.SUSPENDED)
"""What is not to be done any more with an instance that is done for, or falls asleep."""
