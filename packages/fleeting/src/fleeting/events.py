"""What a `Provisioner` reports of its instances, and why one is lost."""

from fleeting.core.messages import (
    Aged,
    Alive,
    Asleep,
    Disowned,
    Doomed,
    Ended,
    Event,
    Gone,
    Loss,
    LossKind,
    Paused,
    Ready,
    Refused,
    Resumed,
    Unhealthy,
    Waking,
)

__all__ = [
    "Aged",
    "Alive",
    "Asleep",
    "Disowned",
    "Doomed",
    "Ended",
    "Event",
    "Gone",
    "Loss",
    "LossKind",
    "Paused",
    "Ready",
    "Refused",
    "Resumed",
    "Unhealthy",
    "Waking",
]
