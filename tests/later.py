"""Modules that are dear to import, such as clouds' SDKs, imported by the first test that uses them.

Each of pytest's workers collects all tests, and runs a part of them.
"""

from importlib import import_module
from typing import Any


class Later:
    """Stands for a module: ``compute: Any = Later("google.cloud.compute_v1")``."""

    def __init__(self, name: str) -> None:
        """Import nothing yet."""
        self._name = name

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  (whatever there is in the module)
        """Something of the module. What is private is not asked for by tests, but by pytest of all that it collects."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(import_module(self._name), name)
