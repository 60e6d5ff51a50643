"""Every error of the suite's lower half, one class per thing a caller would do differently.

FleetingError
├── ConfigError            fix the file or the arguments; lists every problem at once
├── PluginNotFound         install or correct the plugin's name
├── PluginBroken           reinstall the plugin, or tell its author
├── InterfaceMismatch      install a plugin (or a fleeting) of a matching version
├── Unsupported            this group or connector cannot do that, ever
├── GroupRefused           the group is not in a state we may manage; says what to change
├── JournalError           the journal could not be read or written
├── ProviderError          the cloud said no, or said nothing
│   ├── CapacityUnavailable    try another zone, type or pool
│   ├── QuotaExceeded          ask for a higher quota; waiting does not help
│   ├── RateLimited            wait `retry_after` seconds
│   ├── AuthFailed             fix credentials or permissions
│   ├── InstanceNotFound       the instance is gone (success, for a deletion)
│   └── OutcomeUnknown         the request may or may not have been carried out
└── ConnectError           an instance could not be reached or used
    ├── Unreachable            nothing answers, or the connection died; may be retried
    ├── HostKeyMismatch        never retried: somebody else answers
    ├── LoginRejected          credentials refused
    └── CommandFailed          the command ran and exited non-zero (only with `check=True`)
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attrs import frozen

if TYPE_CHECKING:
    from fleeting._types import Completed


class FleetingError(Exception):
    """Base class of everything that fleeting raises on purpose."""


@frozen(kw_only=True)
class ConfigProblem:
    """One thing that is wrong in a configuration."""

    path: str
    """Key path, such as ``autoscaler.policy[1].idle_time``; empty for the file as a whole."""

    found: str
    """What stands there, in a few words, never a secret's value."""

    expected: str
    """What may stand there."""

    hint: str = ""
    """What to do: the nearest valid key, the string to write; may be empty."""

    def __str__(self) -> str:
        """One line: path, found, expected, hint."""
        where = f"{self.path}: " if self.path else ""
        hint = f"; {self.hint}" if self.hint else ""
        return f"{where}found {self.found}, expected {self.expected}{hint}"


class ConfigError(FleetingError):
    """A configuration cannot be used. Lists every problem, not just the first."""

    def __init__(self, problems: Sequence[ConfigProblem], *, source: str = "") -> None:
        """Take the problems, in the order of the file, at least one, and the file's name."""
        self.problems = tuple(problems)
        self.source = source
        where = f"{source}: " if source else ""
        super().__init__("\n".join(f"{where}{problem}" for problem in self.problems))


class PluginNotFound(FleetingError):
    """No installed plugin has this name."""

    def __init__(
        self, name: str, *, kind: str, available: Sequence[str], distribution: str = "", hint: str = ""
    ) -> None:
        """Take what was asked for, and what is known of it.

        Args:
            name: The plugin's.
            kind: The entry-point group that was searched.
            available: The names that there are.
            distribution: What to install, if the name is right; empty if nobody knows it.
            hint: What else to do.
        """
        self.name = name
        self.kind = kind
        self.available = tuple(available)
        self.distribution = distribution
        self.hint = f"pip install {distribution}" if distribution else hint
        known = ", ".join(self.available) or "none"
        tail = f"; {self.hint}" if self.hint else ""
        super().__init__(f"no plugin {name!r} for {kind} is installed (installed: {known}){tail}")


class PluginBroken(FleetingError):
    """A plugin is installed, but cannot be imported or does not answer as a plugin does."""

    def __init__(self, plugin: str, *, reason: str) -> None:
        """Take the plugin's name and what is wrong with it."""
        self.plugin = plugin
        self.reason = reason
        super().__init__(f"plugin {plugin!r} is installed but cannot be used: {reason}")


class InterfaceMismatch(FleetingError):
    """A plugin was written for a version of the interface that is not supported."""

    def __init__(self, plugin: str, *, found: int, supported: Sequence[int]) -> None:
        """Take the plugin's name, the version it states and those that are supported."""
        self.plugin = plugin
        self.found = found
        self.supported = tuple(supported)
        newer = found > max(supported)
        remedy = "install a newer fleeting" if newer else f"install a newer release of the {plugin} plugin"
        versions = " or ".join(str(version) for version in self.supported)
        super().__init__(
            f"plugin {plugin!r} was written for interface version {found}, this fleeting supports {versions}; {remedy}"
        )


class Unsupported(FleetingError):
    """The group or connector cannot do this, now or later."""


class GroupRefused(FleetingError):
    """The group may not be managed as it is; the message says what to change."""


class JournalError(FleetingError):
    """The journal could not be opened, read or written."""


class ProviderError(FleetingError):
    """The cloud refused or failed. Subclasses say what to do; this one means: retry later."""


class CapacityUnavailable(ProviderError):
    """The cloud has none of this to give: try another zone, type or pool."""


class QuotaExceeded(ProviderError):
    """An account limit is reached; waiting does not help."""


class RateLimited(ProviderError):
    """Too many requests."""

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        """Take the cloud's message and its advice in seconds, if it gave any."""
        self.retry_after = retry_after
        super().__init__(message)


class AuthFailed(ProviderError):
    """Credentials are missing, wrong, or may not do this."""


class InstanceNotFound(ProviderError):
    """The cloud does not know the instance (any more)."""

    def __init__(self, instance: str) -> None:
        """Take the instance's id."""
        self.instance = instance
        super().__init__(f"instance {instance} does not exist")


class OutcomeUnknown(ProviderError):
    """The request may have been carried out: a time-out or a broken connection on a change."""


class ConnectError(FleetingError):
    """An instance could not be reached or used."""


class Unreachable(ConnectError):
    """Nothing answers, or an open connection died."""


class HostKeyMismatch(ConnectError):
    """The instance shows another host key than the one pinned for it. Never retried."""


class LoginRejected(ConnectError):
    """The instance refused the credentials."""


class CommandFailed(ConnectError):
    """A command ended with a non-zero status and the caller asked for an error."""

    def __init__(self, command: str, completed: "Completed") -> None:
        """Take the command as given and what came of it."""
        self.command = command
        self.completed = completed
        tail = completed.stderr.decode(errors="replace").strip()[-500:]
        super().__init__(f"{command!r} {completed.outcome}" + (f": {tail}" if tail else ""))
