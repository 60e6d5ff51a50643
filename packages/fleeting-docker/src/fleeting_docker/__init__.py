"""A group whose instances are containers with an SSH server on one Docker host.

What is where::

    _group      the group: what is asked, made and shown
    _container  pure: what the API is asked to make, and what its states mean
    _image      the instances' image: the user's own, or made from this machine's OpenSSH
"""

from fleeting import GroupPlugin, hookimpl
from fleeting_docker._config import DockerGroupConfig
from fleeting_docker._group import DockerGroup

__all__ = ["DockerGroup", "DockerGroupConfig"]


@hookimpl
def fleeting_group() -> GroupPlugin:
    """Describe the group to the loader."""
    return GroupPlugin(config=DockerGroupConfig, group=DockerGroup)
