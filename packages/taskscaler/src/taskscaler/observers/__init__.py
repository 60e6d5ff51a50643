"""Observers hear of what a scaler does. Third parties add theirs as plugins.

An observer is named in the file, under ``[autoscaler.observers]``, and found through an entry point of the group
``taskscaler.observers`` whose module has a hook::

    from taskscaler.observers import ObserverPlugin, hookimpl

    @hookimpl
    def taskscaler_observer() -> ObserverPlugin:
        return ObserverPlugin(config=MyConfig, observer=MyObserver)
"""

from taskscaler.observers._hooks import ObserverPlugin, available_observers, hookimpl, load_observer

__all__ = ["ObserverPlugin", "available_observers", "hookimpl", "load_observer"]
