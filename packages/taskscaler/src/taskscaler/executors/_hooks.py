"""Finds an executor by its entry point's name and imports that one only."""

from collections.abc import Mapping
from typing import Final

from pluggy import HookimplMarker, HookspecMarker

from fleeting.config import ask_plugin, available_plugins, find_plugin
from fleeting.errors import PluginBroken
from fleeting.plugins import structure
from taskscaler.executors._protocol import Executor, ExecutorPlugin

EXECUTORS: Final = "taskscaler.executors"
_PROJECT: Final = "taskscaler"

hookspec = HookspecMarker(_PROJECT)

hookimpl = HookimplMarker(_PROJECT)
"""Marks a plugin module's `taskscaler_executor` function."""


class _Specs:
    @hookspec(firstresult=True)
    def taskscaler_executor(self) -> ExecutorPlugin:  # type: ignore[empty-body]
        """Describe the executor: its schema and how to make it."""


def available_executors() -> list[str]:
    """Name the executors that are installed, in alphabetical order; imports none of them."""
    return available_plugins(EXECUTORS)


def load_executor(name: str, config: Mapping[str, object], *, path: str = "", source: str = "") -> Executor:
    """Make an executor from its plugin's name and settings.

    Args:
        name: The entry point's name, such as ``"instance"``.
        config: The executor's own settings.
        path: Key path of these settings, for messages.
        source: Name of the file, for messages.

    Raises:
        PluginNotFound: Install it, or correct the name.
        PluginBroken: Reinstall it, or report it to its author.
        ConfigError: Correct the settings.
    """
    plugin = find_executor(name)
    return plugin.executor(structure(config, plugin.config, path=path, source=source))


def find_executor(name: str) -> ExecutorPlugin:
    """Find what an executor's plugin says of itself.

    Raises:
        PluginNotFound: Install it, or correct the name.
        PluginBroken: Reinstall it, or report it to its author.
    """
    entry = find_plugin(EXECUTORS, name)
    plugin = ask_plugin(entry, "taskscaler_executor", project=_PROJECT, specs=_Specs)
    if not isinstance(plugin, ExecutorPlugin):
        raise PluginBroken(entry.name, reason=f"its taskscaler_executor hook gives {plugin!r}, not an ExecutorPlugin")
    return plugin
