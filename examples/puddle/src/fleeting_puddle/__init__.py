"""Instances of Puddle, for fleeting."""

from fleeting import GroupPlugin, hookimpl

from fleeting_puddle._config import Config as Config
from fleeting_puddle._group import Group as Group


@hookimpl
def fleeting_group() -> GroupPlugin:
    """Describe the plugin: its settings, and how to make a group from them."""
    return GroupPlugin(config=Config, group=Group, secrets=frozenset({"token"}))
