"""Instance groups on Azure: virtual machine scale sets, uniform and flexible.

    _group    the group: asks Azure, through its own SDK, in worker threads
    _arm      pure: what Azure answers, in fleeting's words
    _config   the settings

The SDK is imported when a group is opened, and not before.
"""

from fleeting import GroupPlugin, hookimpl
from fleeting_azure._config import AzureConfig
from fleeting_azure._group import AzureGroup

__all__ = ["AzureConfig", "AzureGroup"]


@hookimpl
def fleeting_group() -> GroupPlugin:
    """Describe the group to the loader."""
    return GroupPlugin(config=AzureConfig, group=AzureGroup)
