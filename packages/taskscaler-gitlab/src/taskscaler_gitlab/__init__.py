"""A CI runner for GitLab on any fleet of instances, with no gitlab-runner anywhere.

The command ``taskscaler-gitlab`` is the way in. `read_config` reads the ``config.toml`` that it runs with, for programs
that want to know what would be done with one.
"""

from taskscaler_gitlab._config import ServiceConfig, read_config
from taskscaler_gitlab._settings import CacheSettings, CustomBuildDir, DockerSettings, OwnSettings, RunnerSettings, Top

__all__ = [
    "CacheSettings",
    "CustomBuildDir",
    "DockerSettings",
    "OwnSettings",
    "RunnerSettings",
    "ServiceConfig",
    "Top",
    "read_config",
]
