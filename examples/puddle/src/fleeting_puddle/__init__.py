"""Instances of Puddle, a small cloud, for fleeting."""

from fleeting import GroupPlugin, hookimpl

from fleeting_puddle._config import PuddleConfig as PuddleConfig
from fleeting_puddle._group import PuddleGroup as PuddleGroup


@hookimpl
def fleeting_group() -> GroupPlugin:
    """Describe the plugin: its settings, and how to make a group from them."""
    return GroupPlugin(config=PuddleConfig, group=PuddleGroup, secrets=frozenset({"token"}))
