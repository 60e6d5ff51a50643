"""The embedded default: a group whose instances are processes of this host."""

from fleeting import GroupPlugin, hookimpl
from fleeting.groups.local._config import LocalConfig
from fleeting.groups.local._group import LocalGroup

__all__ = ["LocalConfig", "LocalGroup"]


@hookimpl
def fleeting_group() -> GroupPlugin:
    """Describe the group to the loader."""
    return GroupPlugin(config=LocalConfig, group=LocalGroup)
