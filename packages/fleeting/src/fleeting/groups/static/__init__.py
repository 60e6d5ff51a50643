"""A fixed list of hosts as a group: taking one makes an instance, giving it back ends that instance."""

from fleeting import GroupPlugin, hookimpl
from fleeting.groups.static._config import Host, StaticConfig
from fleeting.groups.static._group import StaticGroup

__all__ = ["Host", "StaticConfig", "StaticGroup"]


@hookimpl
def fleeting_group() -> GroupPlugin:
    """Describe the group to the loader."""
    return GroupPlugin(config=StaticConfig, group=StaticGroup, secrets=frozenset({"password"}))
