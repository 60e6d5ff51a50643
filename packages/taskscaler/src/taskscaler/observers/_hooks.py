"""Finds an observer by its entry point's name and imports that one only."""

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

from attrs import frozen
from pluggy import HookimplMarker, HookspecMarker

from fleeting.config import ask_plugin, available_plugins, find_plugin
from fleeting.errors import PluginBroken
from fleeting.plugins import structure
from taskscaler._observe import ScalerObserver

OBSERVERS: Final = "taskscaler.observers"
_PROJECT: Final = "taskscaler"

hookspec = HookspecMarker(_PROJECT)

hookimpl = HookimplMarker(_PROJECT)
"""Marks a plugin module's `taskscaler_observer` function."""


@frozen(kw_only=True)
class ObserverPlugin:
    """What a plugin's `taskscaler_observer` hook returns."""

    config: type[Any]
    """The attrs class that is the schema of the observer's settings."""

    observer: Callable[[Any], ScalerObserver]
    """Makes the observer from an instance of `config`; connects to nothing. One that is an async context manager is
    entered before the first event, and left after the last."""


class _Specs:
    @hookspec(firstresult=True)
    def taskscaler_observer(self) -> ObserverPlugin:  # type: ignore[empty-body]
        """Describe the observer: its schema and how to make it."""


def available_observers() -> list[str]:
    """Name the observers that are installed, in alphabetical order; imports none of them."""
    return available_plugins(OBSERVERS)


def load_observer(
    name: str,
    config: Mapping[str, object],
    *,
    path: str = "",
    source: str = "",
    bare_numbers: Literal["refuse", "nanoseconds"] = "refuse",
) -> ScalerObserver:
    """Make an observer from its plugin's name and settings.

    Args:
        name: The entry point's name, such as ``"webhook"``.
        config: The observer's own settings.
        path: Key path of these settings, for messages.
        source: Name of the file, for messages.
        bare_numbers: As `fleeting.structure`.

    Raises:
        PluginNotFound: Install it, or correct the name.
        PluginBroken: Reinstall it, or report it to its author.
        ConfigError: Correct the settings.
    """
    entry = find_plugin(OBSERVERS, name)
    plugin = ask_plugin(entry, "taskscaler_observer", project=_PROJECT, specs=_Specs)
    if not isinstance(plugin, ObserverPlugin):
        raise PluginBroken(entry.name, reason=f"its taskscaler_observer hook gives {plugin!r}, not an ObserverPlugin")
    return plugin.observer(structure(config, plugin.config, path=path, source=source, bare_numbers=bare_numbers))
