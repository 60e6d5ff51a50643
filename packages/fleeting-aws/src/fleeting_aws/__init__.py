"""A group of instances that an Amazon EC2 Auto Scaling group makes and ends.

_group       the group: what is asked of AWS, in which order
_launch      launching: how much is asked for where, under which client token, and what an answer means
_config      the settings, and the clients that they make: the only way to the SDK
_translate   pure: what AWS answers, as states, problems, errors, advice and connection details
"""

from fleeting import GroupPlugin, hookimpl
from fleeting_aws._config import AwsConfig
from fleeting_aws._group import AwsGroup

__all__ = ["AwsConfig", "AwsGroup"]


@hookimpl
def fleeting_group() -> GroupPlugin:
    """Describe the group to the loader."""
    return GroupPlugin(config=AwsConfig, group=AwsGroup)
