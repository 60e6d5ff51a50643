"""What performs the decisions of a core. For taskscaler; may change with any minor version."""

from fleeting.runtime._driver import Dial, GroupDriver, ReadyHook
from fleeting.runtime._engine import Engine
from fleeting.runtime._shell import Shell

__all__ = ["Dial", "Engine", "GroupDriver", "ReadyHook", "Shell"]
