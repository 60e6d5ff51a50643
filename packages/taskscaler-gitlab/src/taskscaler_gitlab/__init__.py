"""A CI runner for GitLab on any fleet of instances, with no gitlab-runner anywhere.

The command ``taskscaler-gitlab`` is the way in. `read_config` reads the ``config.toml`` that it runs with, for programs
that want to know what would be done with one.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from taskscaler_gitlab._config import ServiceConfig, read_config
    from taskscaler_gitlab._settings import (
        CacheSettings,
        CustomBuildDir,
        DockerSettings,
        OwnSettings,
        RunnerSettings,
        Top,
    )

_ON_DEMAND = {
    "CacheSettings": "taskscaler_gitlab._settings",
    "CustomBuildDir": "taskscaler_gitlab._settings",
    "DockerSettings": "taskscaler_gitlab._settings",
    "OwnSettings": "taskscaler_gitlab._settings",
    "RunnerSettings": "taskscaler_gitlab._settings",
    "ServiceConfig": "taskscaler_gitlab._config",
    "Top": "taskscaler_gitlab._settings",
    "read_config": "taskscaler_gitlab._config",
}
"""All that is here, by where it is: a command that gitlab-runner calls for each stage of a job needs none."""

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


if not TYPE_CHECKING:  # else mypy would take every name for one that is here

    def __getattr__(name: str) -> object:
        """Import a name when it is asked for."""
        if name not in _ON_DEMAND:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        found = globals()[name] = getattr(import_module(_ON_DEMAND[name]), name)
        return found
