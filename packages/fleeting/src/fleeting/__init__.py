"""Groups of cloud instances: a protocol, plugins for it, and what keeps a group as it should be.

How the parts lie on each other; each imports only from those below it:

    _provisioner            a group kept at a size, for those who need no slots or jobs
    runtime/                opens, runs and closes; performs a plan's actions on a group; commits, then performs
    core/                   pure: instances and intents of one group
    journal/  _plugins      what outlives the process; plugins by name
    connectors/  groups/    ways to an instance; the groups that need no cloud
    _types  _protocols  _errors
"""

from typing import TYPE_CHECKING

from fleeting._batches import accepted, ask_in_batches
from fleeting._clock import LoopClock
from fleeting._durations import Duration, format_duration, parse_duration
from fleeting._errors import (
    AuthFailed,
    CapacityUnavailable,
    CatalogueEntry,
    CommandFailed,
    ConfigError,
    ConfigProblem,
    ConnectError,
    CopyFailed,
    FleetingError,
    GroupRefused,
    HostKeyMismatch,
    InstanceNotFound,
    InterfaceMismatch,
    JournalError,
    LoginRejected,
    Mistake,
    OutcomeUnknown,
    PluginBroken,
    PluginNotFound,
    ProviderError,
    QuotaExceeded,
    RateLimited,
    SystemRefused,
    Unreachable,
    Unsupported,
    WrongArguments,
    catalogue,
)
from fleeting._offload import Offload, undone_on_failure
from fleeting._plugins import (
    ask_plugin,
    available_groups,
    available_plugins,
    find_plugin,
    load_connector,
)
from fleeting._plugins import load_group as load
from fleeting._protocols import (
    Connection,
    Connector,
    GivesNotice,
    GroupPlugin,
    InstanceGroup,
    MarksOwner,
    OpensTerminals,
    Sink,
    Source,
    Suspends,
    TellsSystem,
    Terminal,
    Withdraws,
)
from fleeting._provisioner import Provisioner
from fleeting._structure import structure
from fleeting._types import (
    INTERFACE_VERSION,
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
)
from fleeting.connectors import dial
from fleeting.core._building import build_plan, refusal_of
from fleeting.core._instance import Instance, InstanceRecord, Origin, Stage
from fleeting.core._intents import Intent
from fleeting.core._plan import PLAN_RECORDS, Limits, Plan
from fleeting.core._plan_config import PlanConfig, Preexisting, ScaleThrottle
from fleeting.core._step import NOTHING, Drop, Put, Step, Write
from fleeting.core._timers import Timers
from fleeting.core.messages import Loss, LossKind
from fleeting.journal._journal import Journal, MemoryJournal, Placed, Recovered
from fleeting.runtime._driver import Dial, GroupDriver, ReadyHook
from fleeting.runtime._engine import Engine
from fleeting.runtime._shell import Shell

if TYPE_CHECKING:
    from fleeting._hooks import hookimpl
    from fleeting.journal._sqlite import SqliteJournal

_ON_DEMAND = {"hookimpl": "fleeting._hooks", "SqliteJournal": "fleeting.journal._sqlite"}
"""What brings pluggy or SQLite along, by where it is: not everybody needs them."""

__all__ = [
    "INTERFACE_VERSION",
    "NOTHING",
    "PLAN_RECORDS",
    "AuthFailed",
    "Capability",
    "CapacityUnavailable",
    "CatalogueEntry",
    "Clock",
    "CommandFailed",
    "Completed",
    "ConfigError",
    "ConfigProblem",
    "ConnectError",
    "ConnectInfo",
    "Connection",
    "Connector",
    "ConnectorConfig",
    "CopyFailed",
    "Dial",
    "Drop",
    "Duration",
    "Engine",
    "FleetingError",
    "GivesNotice",
    "GroupDriver",
    "GroupInfo",
    "GroupPlugin",
    "GroupRefused",
    "HostKeyMismatch",
    "Instance",
    "InstanceGroup",
    "InstanceNotFound",
    "InstanceRecord",
    "Intent",
    "InterfaceMismatch",
    "Journal",
    "JournalError",
    "Limits",
    "LoginRejected",
    "LoopClock",
    "Loss",
    "LossKind",
    "MarksOwner",
    "MemoryJournal",
    "Mistake",
    "Notice",
    "NoticeKind",
    "Observation",
    "Observed",
    "Offload",
    "OpensTerminals",
    "Origin",
    "OutcomeUnknown",
    "Placed",
    "Plan",
    "PlanConfig",
    "PluginBroken",
    "PluginNotFound",
    "Preexisting",
    "Problem",
    "ProblemKind",
    "ProviderError",
    "Provisioner",
    "Put",
    "QuotaExceeded",
    "RateLimited",
    "ReadyHook",
    "Recovered",
    "ScaleThrottle",
    "Settings",
    "Shell",
    "Sink",
    "Source",
    "SqliteJournal",
    "Stage",
    "State",
    "Step",
    "Suspends",
    "SystemRefused",
    "TellsSystem",
    "Terminal",
    "Timers",
    "Unreachable",
    "Unsupported",
    "Withdraws",
    "Write",
    "WrongArguments",
    "accepted",
    "ask_in_batches",
    "ask_plugin",
    "available_groups",
    "available_plugins",
    "build_plan",
    "catalogue",
    "dial",
    "find_plugin",
    "format_duration",
    "hookimpl",
    "load",
    "load_connector",
    "parse_duration",
    "refusal_of",
    "structure",
    "undone_on_failure",
]


def __getattr__(name: str) -> object:
    """Import what is not always needed when it is asked for."""
    if name not in _ON_DEMAND:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_ON_DEMAND[name]), name)
