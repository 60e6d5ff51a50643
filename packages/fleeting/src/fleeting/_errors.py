"""Every error of the suite's lower half, one class per thing a caller would do differently.

FleetingError
├── WrongArguments         correct the command line
├── SystemRefused          see to the disk, the permissions, the path
├── ConfigError            fix the file or the arguments; lists every problem at once
├── PluginNotFound         install or correct the plugin's name
├── PluginBroken           reinstall the plugin, or report it to its author
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
    ├── CommandFailed          the command ran and exited non-zero (only with `check=True`)
    ├── CopyFailed             a file or directory could not be copied to or from an instance
    ├── NameTaken              a detached command of this name was started before: attach to it
    ├── NameUnknown            there is no detached command of this name: it was never started, or is forgotten
    ├── CommandLost            a detached command is over, and nobody knows how it ended
    └── PortTaken              something else listens at this port of an instance: ask for another, or later

Each class has an entry in the catalogue of errors, ``docs/reference/errors.md``; CONTRIBUTING says how to add one.
"""

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, ClassVar

from attrs import evolve, frozen

if TYPE_CHECKING:
    from fleeting._types import Completed

MOST_LINES = 20
"""So many problems of one file are listed: whoever has more has one cause for many, or reads no further."""

LINE_TO_HIDE = 8
"""Characters from which on a line of a command is hidden where a shell repeats it; shorter ones are in many words."""

PART_TO_HIDE = 12
"""Bytes from which on a part of a command is hidden in a line of the shell's own."""

_BY_SHELL = re.compile(rb"^(?:\+{1,9} |[^\s:]{1,99}: +(?:-c: +)?(?:line )?[0-9]{1,9}[: ])[^\n]*", re.MULTILINE)
"""What bash and dash say of a command or trace of it, and where PowerShell says that something went wrong."""

_HIDDEN = b"[the command]"

_PARENT_AND_KEY = re.compile(r'(?:(.*)\.)?("(?:[^"\\]|\\.)*"|.*?)')
"""A key path as the path of its table and the last key, which is quoted if it has to be."""


@frozen
class CatalogueEntry:
    """What the catalogue says of one kind of error."""

    code: str
    """Stable: it never means anything else, and is not used again if the error goes."""

    cause: str
    """What has happened, in general; a sentence."""

    remedy: str
    """What to do, in general; a sentence."""


class FleetingError(Exception):
    """Base class of everything that fleeting raises on purpose.

    Messages say what was found, what was expected and, behind a semicolon, what to do. All can be pickled.
    """

    entry: ClassVar = CatalogueEntry(
        "FL100",
        "A plugin reports a problem that has no error class of its own.",
        "Do what the message says; if it does not say enough, ask the plugin's author.",
    )
    """Inherited by classes that have none of their own, such as those of plugins."""

    def __reduce__(self) -> tuple[object, ...]:
        """Be made again from what it holds: the constructors take parts, not the message."""
        return _made_again, (type(self), self.args, self.__dict__)


def _made_again(cls: type[FleetingError], args: tuple[object, ...], parts: dict[str, object]) -> FleetingError:
    error = cls.__new__(cls, *args)
    error.__dict__.update(parts)
    return error


class WrongArguments(FleetingError):
    """The command line cannot be meant as it is."""

    entry = CatalogueEntry(
        "FL101",
        "A command, an option or an argument is unknown, missing or cannot be used.",
        "Correct the command line; --help lists what a command takes.",
    )


class SystemRefused(FleetingError):
    """The operating system refused to read, make or write something."""

    entry = CatalogueEntry(
        "FL102",
        "The operating system refused to read, make or write a file or directory.",
        "Check the path, its permissions and the free disk space, then run the command again.",
    )

    def __init__(self, error: OSError) -> None:
        """Take what the system said."""
        what = f"{error.filename} cannot be used: " if error.filename else ""
        super().__init__(f"{what}{error.strerror or error}")


class Mistake(Enum):
    """Kinds of things that are wrong in a configuration, by their entries in the catalogue."""

    VALUE = CatalogueEntry(
        "FL110",
        "A value has the right type, but is not allowed here, or not together with the other values.",
        "Write what the message expects.",
    )
    SYNTAX = CatalogueEntry(
        "FL111",
        "The file is not TOML, or not UTF-8.",
        "Correct the file at the place that the message names, or a missing bracket or quote before it.",
    )
    UNKNOWN_KEY = CatalogueEntry(
        "FL112",
        "A key is unknown in its table.",
        "Correct its name, move it to the table it belongs to, or remove it.",
    )
    MISSING_KEY = CatalogueEntry(
        "FL113",
        "A required key is missing.",
        "Add it to the table that the message names.",
    )
    TYPE = CatalogueEntry(
        "FL114",
        "A value has the wrong type for its key.",
        "Write it as the message says: numbers and booleans without quotes, several values in brackets.",
    )
    DURATION = CatalogueEntry(
        "FL115",
        "A value is not a duration.",
        'Write numbers with the units h, m, s or ms, in quotes, such as "90s" or "1h30m".',
    )
    MISSING_FILE = CatalogueEntry(
        "FL116",
        "A file, directory or program that the configuration names does not exist, or cannot be used.",
        "Correct the name or the permissions, or create the file.",
    )
    NOT_INSTALLED = CatalogueEntry(
        "FL120",
        "No installed package provides the plugin that the configuration names.",
        "Correct the name, or install the package into the environment that taskscaler runs in.",
    )


@frozen(kw_only=True)
class ConfigProblem:
    """One thing that is wrong in a configuration."""

    path: str
    """Key path, such as ``autoscaler.policy[1].idle_time``; empty for the file as a whole."""

    found: str
    """The value as TOML writes it, never a secret; without *expected*, a clause that says what is wrong."""

    expected: str = ""
    """What is allowed there; for an unknown key, the known ones."""

    hint: str = ""
    """What to do: the nearest valid key, the string to write; may be empty."""

    mistake: Mistake = Mistake.VALUE
    """Which kind of mistake it is."""

    owner: str = ""
    """Which of several it concerns, by its name, such as ``job "train"``; empty if the path alone says it."""

    record: str = ""
    """Which record of a stream the path is in, such as ``line 3 (job "train")``; empty if it is not in one."""

    def __str__(self) -> str:
        """One line: what is wrong, where, what is expected, what to do."""
        hint = f"; {self.hint}" if self.hint else ""
        return f"{f'{self.record}: ' if self.record else ''}{self._sentence()}{hint}"

    def _sentence(self) -> str:
        table, key = _PARENT_AND_KEY.fullmatch(self.path or "-").groups()  # type: ignore[union-attr]  # always matches
        owner = f" ({self.owner})" if self.owner else ""
        place = "" if not table else f" in {table}{owner}" if "[" in table else f" in [{table}]"
        where = f"{self.path}{owner}: " if self.path else ""
        match self.mistake, self.found, self.expected:
            case Mistake.UNKNOWN_KEY, _, known:
                return f"unknown key `{key}`{place}" + (f" (known keys: {known})" if known else "")
            case Mistake.MISSING_KEY, _, expected:
                return f"missing key `{key}`{place}, expected {expected}"
            case _, found, "":
                return f"{where}{found}"
            case _, "", expected:
                return f"{where}expected {expected}"
            case ((Mistake.MISSING_FILE | Mistake.NOT_INSTALLED), found, expected):
                return f"{where}{found} is not {expected}"
            case _, found, expected:
                return f"{where}expected {expected}, found {found}"


class ConfigError(FleetingError):
    """A configuration cannot be used. Has every problem, not just the first, and lists the first `MOST_LINES`."""

    entry = Mistake.VALUE.value

    def __init__(self, problems: Sequence[ConfigProblem], *, source: str = "") -> None:
        """Take the problems, in the order of the file, at least one, and the file's name."""
        self.problems = tuple(problems)
        self.source = source
        where = f"{source}: " if source else ""
        self.lines = tuple(f"{where}{problem}" for problem in self.problems[:MOST_LINES])
        """One for each problem that is listed."""

        left = len(self.problems) - len(self.lines)
        self.rest = f"and {left} more problem{'s' if left > 1 else ''}" if left else ""
        """What stands below them; empty if all are listed."""

        super().__init__("\n".join([*self.lines, *filter(None, [self.rest])]))


class PluginNotFound(FleetingError):
    """No installed plugin has this name."""

    entry = Mistake.NOT_INSTALLED.value

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
    """A plugin is installed, but cannot be imported or does not behave like a plugin."""

    entry = CatalogueEntry(
        "FL121",
        "A plugin is installed, but cannot be imported or does not behave like a plugin.",
        "Reinstall it with its dependencies, or report the problem to its author.",
    )

    def __init__(self, plugin: str, *, reason: str) -> None:
        """Take the plugin's name and what is wrong with it."""
        self.plugin = plugin
        self.reason = reason
        super().__init__(f"plugin {plugin!r} is installed but cannot be used: {reason}")


class InterfaceMismatch(FleetingError):
    """A plugin was written for a version of the interface that is not supported."""

    entry = CatalogueEntry(
        "FL122",
        "A plugin was written for a version of the plugin interface that this release does not support.",
        "Install matching releases of the plugin and fleeting.",
    )

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

    entry = CatalogueEntry(
        "FL130",
        "The group or the connector does not support the requested operation.",
        "Do without the feature, or use a plugin that supports it.",
    )


class GroupRefused(FleetingError):
    """The group may not be managed as it is; the message says what to change."""

    entry = CatalogueEntry(
        "FL201",
        "The group cannot be managed as it is: it is in use, holds instances of unknown origin, is shared with others,"
        " or lacks a file or program that it needs.",
        "Change what the message names; the group has not been changed.",
    )


class JournalError(FleetingError):
    """The journal could not be opened, read or written."""

    entry = CatalogueEntry(
        "FL202",
        "The file that keeps the fleet's state cannot be read or written, or another manager holds it.",
        "Check disk space and permissions, or stop the other manager, then try again.",
    )


class ProviderError(FleetingError):
    """The cloud refused or failed. Subclasses say what to do; this one means: retry later."""

    entry = CatalogueEntry(
        "FL300",
        "The cloud refused a request, or did not answer it.",
        "Try again later; if it persists, check the cloud's own status page and logs.",
    )


class CapacityUnavailable(ProviderError):
    """The cloud has none of this to give: try another zone, type or pool."""

    entry = CatalogueEntry(
        "FL301",
        "The cloud has no capacity of this kind at the moment.",
        "Wait, or allow another zone, instance type or pool.",
    )


class QuotaExceeded(ProviderError):
    """An account limit is reached; waiting does not help."""

    entry = CatalogueEntry(
        "FL302",
        "A quota of the cloud account is exhausted, and waiting does not help.",
        "Request a higher quota, or lower max_instances.",
    )


class RateLimited(ProviderError):
    """Too many requests."""

    entry = CatalogueEntry(
        "FL303",
        "The cloud received too many requests.",
        "Wait; if it persists, lengthen update_interval, or find out who else uses the account.",
    )

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        """Take the cloud's message and its advice in seconds, if it gave any."""
        self.retry_after = retry_after
        super().__init__(message)


class AuthFailed(ProviderError):
    """Credentials are missing, wrong, or may not do this."""

    entry = CatalogueEntry(
        "FL304",
        "Credentials for the cloud are missing, wrong or expired, or lack a permission.",
        "Correct the credentials, or grant the permissions that the plugin's documentation lists.",
    )


class InstanceNotFound(ProviderError):
    """The cloud does not know the instance (any more)."""

    entry = CatalogueEntry(
        "FL305",
        "The cloud does not know the instance, or no longer knows it.",
        "Do nothing: the instance is replaced if it is needed.",
    )

    def __init__(self, instance: str, *, hint: str = "") -> None:
        """Take the instance's id, and what to do, if that is known."""
        self.instance = instance
        super().__init__(f"instance {instance} does not exist" + (f"; {hint}" if hint else ""))


class OutcomeUnknown(ProviderError):
    """The request may have been carried out: a time-out or a broken connection on a change."""

    entry = CatalogueEntry(
        "FL306",
        "The connection broke during a change, and the cloud may or may not have carried it out.",
        "Do nothing: instances that may exist count until the cloud's own view shows the outcome.",
    )


class ConnectError(FleetingError):
    """An instance could not be reached or used."""

    entry = CatalogueEntry(
        "FL400",
        "A connection to an instance could not be opened or used.",
        "Read the message; check the network, connector_config, and what the image allows.",
    )


class Unreachable(ConnectError):
    """Nothing answers, or an open connection died."""

    entry = CatalogueEntry(
        "FL401",
        "Nothing answers at the instance's address, or an open connection died.",
        "Check network, firewall and connector_config; a batch retries the work elsewhere.",
    )


class HostKeyMismatch(ConnectError):
    """The instance shows another host key than the one pinned for it. Never retried."""

    entry = CatalogueEntry(
        "FL402",
        "The host at the instance's address is not the one seen before, or not the expected one.",
        "Find out who answers there before you connect again; the suite never retries this.",
    )


class LoginRejected(ConnectError):
    """The instance refused the credentials."""

    entry = CatalogueEntry(
        "FL403",
        "The instance refused the user or the credentials.",
        "Correct username, password or key_path in connector_config, or the image's set-up.",
    )


class CommandFailed(ConnectError):
    """A command ended with a non-zero status and the caller asked for an error."""

    entry = CatalogueEntry(
        "FL404",
        "A command on an instance exited with a status other than 0.",
        "Correct the command, or what it needs on the instance; the message shows the end of its output.",
    )

    def __init__(self, command: str, completed: "Completed") -> None:
        """Take the command as given and what came of it."""
        self.command = command
        self.completed = completed
        super().__init__(f"{command!r} {completed.account}")

    @classmethod
    def of_setting(cls, setting: str, command: str, completed: "Completed", *, is_cut: bool = False) -> "CommandFailed":
        """Name the setting that a command stands in, and not the command, for people put secrets into it.

        A shell repeats a line that it does not understand, and parts of one that it traces, or of which something was
        killed: such lines and parts are taken out of what was said. A single word stays, since a shell says so what it
        has not found; so does what the command itself prints.

        Args:
            setting: Its name.
            command: What stands there.
            completed: How it has ended.
            is_cut: Whether the beginning of its error output is missing, so that nobody knows whose the first line is.
        """
        stderr = completed.stderr
        for line in command.splitlines():
            if len(line.strip()) >= LINE_TO_HIDE:
                stderr = stderr.replace(os.fsencode(line.strip()), _HIDDEN)
        text = os.fsencode(command)
        parts = {text[at : at + PART_TO_HIDE] for at in range(len(text) - PART_TO_HIDE + 1)}
        stderr = _BY_SHELL.sub(lambda line: _without(line[0], parts, words=2), stderr)
        if is_cut:
            first, end, rest = stderr.partition(b"\n")
            stderr = _without(first, parts, words=1) + end + rest
        return cls(setting, evolve(completed, stderr=stderr))


def _without(line: bytes, parts: Collection[bytes], *, words: int) -> bytes:
    """Take out of a line what is made of *parts*, all of one size, and has so many words at least."""
    kept, at = bytearray(), 0
    while at < len(line):
        end = at
        while line[end : end + PART_TO_HIDE] in parts:
            end += 1
        if end > at and len(line[at : end + PART_TO_HIDE - 1].split()) >= words:
            kept += _HIDDEN
            at = end + PART_TO_HIDE - 1
        else:
            end = max(end, at + 1)
            kept += line[at:end]
            at = end
    return bytes(kept)


class CopyFailed(ConnectError):
    """A file or directory could not be copied to an instance, or from one."""

    entry = CatalogueEntry(
        "FL405",
        "A file or directory could not be copied to an instance, or from one.",
        "Check the path, the permissions and the disk space on the side that the message names, then copy again.",
    )

    def __init__(self, side: str, why: str) -> None:
        """Take on which side it went wrong, such as ``here`` or ``on i-1``, and what is wrong there."""
        super().__init__(f"the copy failed {side}: {why}")


class NameTaken(ConnectError):
    """A detached command of this name was started before. Attach to it."""

    entry = CatalogueEntry(
        "FL406",
        "A detached command of this name was started on the instance before.",
        "Attach to it, or choose another name; a name is used once.",
    )

    def __init__(self, name: str) -> None:
        """Take the command's name."""
        self.name = name
        super().__init__(f"a detached command named {name!r} was started before; attach to it, or use another name")


class NameUnknown(ConnectError):
    """The instance has no detached command of this name: it was never started there, or is forgotten."""

    entry = CatalogueEntry(
        "FL407",
        "The instance has no detached command of this name.",
        "Check the name and the instance; a command that was forgotten is not there any more.",
    )

    def __init__(self, name: str) -> None:
        """Take the command's name."""
        self.name = name
        super().__init__(f"the instance has no detached command named {name!r}")


class CommandLost(ConnectError):
    """A detached command is over, and nobody knows how it ended."""

    entry = CatalogueEntry(
        "FL408",
        "A detached command is over, and nobody knows how it ended: the host rebooted, for example.",
        "Start it again under another name, if it may run twice.",
    )

    def __init__(self, name: str, why: str) -> None:
        """Take the command's name and what happened to it."""
        self.name = name
        self.why = why
        super().__init__(f"it is unknown how the detached command {name!r} ended: {why}")


class PortTaken(ConnectError):
    """Something else listens at a port of an instance. Ask for another, or again after a while."""

    entry = CatalogueEntry(
        "FL409",
        "Something on the instance already listens at the requested port.",
        "Free the port, or ask for another; one that a lost connection held is free once the host has noticed.",
    )

    def __init__(self, instance: str, host: str, port: int) -> None:
        """Take the instance, and where it was to listen."""
        self.port = port
        super().__init__(
            f"{host or 'its'} port {port} on {instance} is taken; free it, or ask for port 0 to get any free port"
        )


def catalogue() -> Mapping[str, CatalogueEntry]:
    """Every entry, by code, in their order; of packages that are not imported, none."""
    entries = {*(mistake.value for mistake in Mistake), *(kind.entry for kind in _kinds(FleetingError))}
    return {entry.code: entry for entry in sorted(entries, key=lambda entry: entry.code)}


def _kinds(kind: type[FleetingError]) -> Iterator[type[FleetingError]]:
    """Walk over a class and all that are derived from it."""
    yield kind
    for derived in kind.__subclasses__():
        yield from _kinds(derived)
