"""What performs the decisions of a core. For taskscaler; may change with any minor version."""

from fleeting.runtime._driver import Dial, GroupDriver, ReadyHook
from fleeting.runtime._runtime import Core, Runtime

__all__ = ["Core", "Dial", "GroupDriver", "ReadyHook", "Runtime"]
