"""Groups of cloud instances: a protocol, plugins for it, and what keeps a group as it should be.

Here is what users and authors of plugins need. For fewer of them there are `fleeting.plugins`, `fleeting.connectors`,
`fleeting.archives`, `fleeting.events`, `fleeting.errors` and `fleeting.testing`. All of these are stable.
`fleeting.core`, `fleeting.runtime`, `fleeting.journal`, `fleeting.config` and `fleeting.cli` are for taskscaler: they
may change with any minor version.

How the parts lie on each other; each imports only from those below it:

    _provisioner            a group kept at a size, for those who need no slots or jobs
    runtime/                opens, runs and closes; performs a plan's actions on a group; commits, then performs
    core/                   pure: instances and intents of one group
    journal/  _plugins      what outlives the process; plugins by name
    connectors/  groups/    connections to an instance; the groups that need no cloud
    _types  _protocols  _errors
"""

from typing import TYPE_CHECKING

from fleeting._clock import LoopClock
from fleeting._durations import Duration
from fleeting._errors import (
    AuthFailed,
    CapacityUnavailable,
    CommandFailed,
    ConfigError,
    ConnectError,
    FleetingError,
    GroupRefused,
    HostKeyMismatch,
    InstanceNotFound,
    JournalError,
    LoginRejected,
    OutcomeUnknown,
    PluginNotFound,
    ProviderError,
    QuotaExceeded,
    RateLimited,
    Unreachable,
    Unsupported,
)
from fleeting._plugins import load_group as load
from fleeting._protocols import (
    Connection,
    GroupPlugin,
    InstanceGroup,
)
from fleeting._types import (
    Capability,
    Clock,
    Completed,
    ConnectInfo,
    ConnectorConfig,
    GroupInfo,
    Notice,
    NoticeKind,
    Observation,
    Observed,
    Problem,
    ProblemKind,
    Settings,
    State,
    Usage,
)

if TYPE_CHECKING:
    from fleeting._hooks import hookimpl
    from fleeting._provisioner import Provisioner
    from fleeting.connectors import dial
    from fleeting.core._plan_config import PlanConfig, Preexisting, ScaleThrottle
    from fleeting.journal._journal import Journal, MemoryJournal
    from fleeting.journal._sqlite import SqliteJournal

_ON_DEMAND = {
    "Journal": "fleeting.journal._journal",
    "MemoryJournal": "fleeting.journal._journal",
    "PlanConfig": "fleeting.core._plan_config",
    "Preexisting": "fleeting.core._plan_config",
    "Provisioner": "fleeting._provisioner",
    "ScaleThrottle": "fleeting.core._plan_config",
    "SqliteJournal": "fleeting.journal._sqlite",
    "dial": "fleeting.connectors",
    "hookimpl": "fleeting._hooks",
}
"""What brings the cores, the connectors, pluggy or SQLite along, by where it is: not everybody needs them."""

__all__ = [
    "AuthFailed",
    "Capability",
    "CapacityUnavailable",
    "Clock",
    "CommandFailed",
    "Completed",
    "ConfigError",
    "ConnectError",
    "ConnectInfo",
    "Connection",
    "ConnectorConfig",
    "Duration",
    "FleetingError",
    "GroupInfo",
    "GroupPlugin",
    "GroupRefused",
    "HostKeyMismatch",
    "InstanceGroup",
    "InstanceNotFound",
    "Journal",
    "JournalError",
    "LoginRejected",
    "LoopClock",
    "MemoryJournal",
    "Notice",
    "NoticeKind",
    "Observation",
    "Observed",
    "OutcomeUnknown",
    "PlanConfig",
    "PluginNotFound",
    "Preexisting",
    "Problem",
    "ProblemKind",
    "ProviderError",
    "Provisioner",
    "QuotaExceeded",
    "RateLimited",
    "ScaleThrottle",
    "Settings",
    "SqliteJournal",
    "State",
    "Unreachable",
    "Unsupported",
    "Usage",
    "dial",
    "hookimpl",
    "load",
]


if not TYPE_CHECKING:  # else mypy would take every name for one that is here

    def __getattr__(name: str) -> object:
        """Import what is not always needed when it is asked for."""
        if name not in _ON_DEMAND:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        found = globals()[name] = getattr(import_module(_ON_DEMAND[name]), name)
        return found
