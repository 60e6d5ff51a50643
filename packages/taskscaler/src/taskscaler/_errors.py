"""What goes wrong with jobs and slots, one class per thing a caller would do differently.

FleetingError
└── TaskscalerError
    ├── NoCapacity        no slot, and why; `possible` tells whether one can still come
    ├── KeyInUse          use another key, or release the one that holds it
    ├── NotSuspended      no lease sleeps under the key; it may have been lost
    ├── NoSuchInstance    look at `instances()`; it may be gone, or going
    └── LeaseLost         the slot is gone; the work may be tried again
"""

from fleeting import FleetingError, Loss


class TaskscalerError(FleetingError):
    """Base class of everything that taskscaler raises on purpose."""


class NoCapacity(TaskscalerError):
    """There is no slot."""

    def __init__(self, why: str, *, possible: bool = False) -> None:
        """Take the reason, and whether a slot may come later, so that asking again makes sense."""
        self.possible = possible
        super().__init__(why)


class KeyInUse(TaskscalerError):
    """The key holds a slot, is reserved, or waits already."""

    def __init__(self, key: str) -> None:
        """Take the key."""
        self.key = key
        super().__init__(f"key {key!r} is in use; release it, or use another")


class NotSuspended(TaskscalerError):
    """No lease is suspended under this key."""

    def __init__(self, key: str) -> None:
        """Take the key."""
        self.key = key
        super().__init__(f"no lease is suspended under the key {key!r}; its instance may have been lost")


class NoSuchInstance(TaskscalerError):
    """No instance of this name can be cordoned or retained."""

    def __init__(self, instance: str, why: str) -> None:
        """Take the name that was given, and what is wrong with it."""
        self.instance = instance
        super().__init__(why)


class LeaseLost(TaskscalerError):
    """The slot was taken away while it was held."""

    def __init__(self, key: str, instance: str, loss: Loss) -> None:
        """Take the lease's key, its instance and why it was lost."""
        self.key = key
        self.instance = instance
        self.loss = loss
        super().__init__(f"{key} lost its slot on {instance} ({loss})")
