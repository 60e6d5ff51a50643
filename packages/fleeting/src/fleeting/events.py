"""What a `Provisioner` reports of its instances, whether one may be given work, and why one is lost."""

from fleeting.core._instance import Access, Availability
from fleeting.core.messages import Alive, Changed, Disowned, Ended, Event, Gone, Loss, LossKind, Refused

__all__ = [
    "Access",
    "Alive",
    "Availability",
    "Changed",
    "Disowned",
    "Ended",
    "Event",
    "Gone",
    "Loss",
    "LossKind",
    "Refused",
]
