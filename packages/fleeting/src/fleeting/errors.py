"""Errors that few catch by name, and the catalogue that every error of the suite is in.

What plugins raise and most programs catch is in `fleeting` itself.
"""

from fleeting._errors import (
    CatalogueEntry,
    CommandLost,
    ConfigProblem,
    CopyFailed,
    InterfaceMismatch,
    Mistake,
    NameTaken,
    NameUnknown,
    PluginBroken,
    PortTaken,
    SystemRefused,
    WrongArguments,
    catalogue,
)

__all__ = [
    "CatalogueEntry",
    "CommandLost",
    "ConfigProblem",
    "CopyFailed",
    "InterfaceMismatch",
    "Mistake",
    "NameTaken",
    "NameUnknown",
    "PluginBroken",
    "PortTaken",
    "SystemRefused",
    "WrongArguments",
    "catalogue",
]
