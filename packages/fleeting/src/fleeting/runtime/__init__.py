"""What performs the decisions of a core. For taskscaler; may change with any minor version."""

from typing import TYPE_CHECKING

from fleeting.runtime._calls import CloudCall
from fleeting.runtime._driver import GroupDriver
from fleeting.runtime._instances import Dial, InstanceCalls, ReadyHook, Upkeep
from fleeting.runtime._mark import MARK_LASTS
from fleeting.runtime._runtime import Core, Runtime, owner_of

if TYPE_CHECKING:
    from fleeting._pulled import PulledStream, accept

__all__ = [
    "MARK_LASTS",
    "CloudCall",
    "Core",
    "Dial",
    "GroupDriver",
    "InstanceCalls",
    "PulledStream",
    "ReadyHook",
    "Runtime",
    "Upkeep",
    "accept",
    "owner_of",
]

if not TYPE_CHECKING:  # else mypy would take every name for one that is here

    def __getattr__(name: str) -> object:
        """Import what serves sockets when it is asked for."""
        if name not in {"PulledStream", "accept"}:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from fleeting import _pulled

        return getattr(_pulled, name)
