"""Groups of cloud instances: a protocol, plugins for it, and what keeps a group as it should be.

How the parts lie on each other; each imports only from those below it:

    _provisioner            a group kept at a size, for those who need no slots or jobs
    _shell                  opens, runs and closes: groups, journal, core
    _driver   _engine       performs a plan's actions on a group; commits, then performs
    _plan                   pure: instances and intents of one group
    _journal  _hooks        what outlives the process; plugins by name
    connectors/  groups/    ways to an instance; the groups that need no cloud
    facts  _step  _types  _protocols  _errors
"""

from fleeting._clock import LoopClock
from fleeting._config import structure
from fleeting._driver import Dial, GroupDriver, ReadyHook
from fleeting._durations import Duration, format_duration, parse_duration
from fleeting._engine import Engine
from fleeting._errors import (
    AuthFailed,
    CapacityUnavailable,
    CommandFailed,
    ConfigError,
    ConfigProblem,
    ConnectError,
    FleetingError,
    GroupRefused,
    HostKeyMismatch,
    InstanceNotFound,
    InterfaceMismatch,
    JournalError,
    LoginRejected,
    OutcomeUnknown,
    PluginBroken,
    PluginNotFound,
    ProviderError,
    QuotaExceeded,
    RateLimited,
    Unreachable,
    Unsupported,
)
from fleeting._hooks import ask_plugin, available_groups, available_plugins, find_plugin, hookimpl, load_connector
from fleeting._hooks import load_group as load
from fleeting._intents import Intent, IntentState
from fleeting._journal import Journal, MemoryJournal, Recovered
from fleeting._offload import Offload
from fleeting._plan import Instance, Limits, Origin, Plan, PlanConfig, Preexisting, ScaleThrottle, Stage
from fleeting._protocols import (
    Connection,
    Connector,
    GivesNotice,
    GroupPlugin,
    InstanceGroup,
    Sink,
    Withdraws,
)
from fleeting._provisioner import Provisioner, build_plan, refusal_of
from fleeting._shell import Shell
from fleeting._step import NOTHING, Drop, Put, Step, Write
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
from fleeting.facts import Loss, LossKind

__all__ = [
    "INTERFACE_VERSION",
    "NOTHING",
    "AuthFailed",
    "Capability",
    "CapacityUnavailable",
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
    "Intent",
    "IntentState",
    "InterfaceMismatch",
    "Journal",
    "JournalError",
    "Limits",
    "LoginRejected",
    "LoopClock",
    "Loss",
    "LossKind",
    "MemoryJournal",
    "Notice",
    "NoticeKind",
    "Observation",
    "Observed",
    "Offload",
    "Origin",
    "OutcomeUnknown",
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
    "Stage",
    "State",
    "Step",
    "Unreachable",
    "Unsupported",
    "Withdraws",
    "Write",
    "ask_plugin",
    "available_groups",
    "available_plugins",
    "build_plan",
    "dial",
    "find_plugin",
    "format_duration",
    "hookimpl",
    "load",
    "load_connector",
    "parse_duration",
    "refusal_of",
    "structure",
]
