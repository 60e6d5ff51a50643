"""What performs the decisions of a core. For taskscaler; may change with any minor version."""

from fleeting.runtime._driver import GroupDriver
from fleeting.runtime._instances import Dial, InstanceCalls, ReadyHook, Upkeep
from fleeting.runtime._runtime import Core, Runtime

__all__ = ["Core", "Dial", "GroupDriver", "InstanceCalls", "ReadyHook", "Runtime", "Upkeep"]
