"""What is said where no plugin for a cloud is installed, tested where all of them are."""

from importlib.metadata import EntryPoints

import pytest

from fleeting import _plugins
from fleeting.config import available_groups

CLOUDS = frozenset({"aws", "azure", "googlecloud"})
WITHOUT_CLOUDS = [name for name in available_groups() if name not in CLOUDS]
"""The groups that are still there then."""


def hide_clouds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the plugins for clouds be not installed."""
    installed = _plugins._installed

    def without(kind: str) -> EntryPoints:
        return EntryPoints(entry for entry in installed(kind) if entry.name not in CLOUDS)

    monkeypatch.setattr(_plugins, "_installed", without)
