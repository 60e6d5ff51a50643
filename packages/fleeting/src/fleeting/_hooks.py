"""What a plugin module may answer, and the mark by which pluggy knows its answers."""

from pluggy import HookimplMarker, HookspecMarker

from fleeting._protocols import Connector, GroupPlugin

_hookspec = HookspecMarker("fleeting")

hookimpl = HookimplMarker("fleeting")
"""Marks a plugin module's `fleeting_group` or `fleeting_connector` function."""


class Specs:
    """A module implements the one that its entry point is about."""

    @_hookspec(firstresult=True)
    def fleeting_group(self) -> GroupPlugin:  # type: ignore[empty-body]
        """Describe the instance group: its schema and how to make it."""

    @_hookspec(firstresult=True)
    def fleeting_connector(self) -> Connector:  # type: ignore[empty-body]
        """Make the connector for the protocol that the entry point is named after."""
