"""Google Cloud's managed instance groups, zonal and regional.

_group     the group: what is asked of Google through its SDK, in which order, within what time
_answers   pure: what Google's answers mean here, and what is written where an instance looks for it
_config    the settings
"""

from fleeting import GroupPlugin, hookimpl
from fleeting_gcp._config import GcpConfig
from fleeting_gcp._group import GcpGroup

__all__ = ["GcpConfig", "GcpGroup"]


@hookimpl
def fleeting_group() -> GroupPlugin:
    """Describe the group to the loader."""
    return GroupPlugin(config=GcpConfig, group=GcpGroup)
