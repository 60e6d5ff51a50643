"""The vocabulary: what crosses the border between a plugin, the cores and the user.

Everything here is plain data. Values that are handed out are frozen. Times are float seconds since the
epoch on the injected `Clock`, durations are float seconds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import Enum
from os.path import expanduser
from typing import Protocol

from attrs import Attribute, field, frozen
from attrs.validators import ge, gt, le, optional

from fleeting._arguments import in_words
from fleeting._durations import Duration, span
from fleeting._errors import Unsupported
from fleeting._wording import in_units, one_line

INTERFACE_VERSION = 1
"""The version of the plugin interface that this release defines."""

SUPPORTED_INTERFACE_VERSIONS = (1,)
"""The current version and, once there is one, the previous."""

_FINGERPRINT = re.compile("[0-9A-Fa-f]{2}(:?[0-9A-Fa-f]{2}){31}")


class Clock(Protocol):
    """Where the suite learns the time; injected, so that tests and the simulator own it."""

    def now(self) -> float:
        """Seconds since the epoch. Never goes back while the process lives."""
        ...

    async def sleep_until(self, at: float) -> None:
        """Return once `now` is *at* or later."""
        ...


class State(Enum):
    """An instance as the cloud shows it."""

    CREATING = "creating"
    RUNNING = "running"
    SUSPENDING = "suspending"
    SUSPENDED = "suspended"
    RESUMING = "resuming"
    DELETING = "deleting"
    DELETED = "deleted"
    FAILED = "failed"

    __hash__ = object.__hash__  # Enum's own is Python, and each view asks of each instance


@frozen(kw_only=True)
class Observed:
    """One instance in the cloud's view."""

    state: State
    """What the cloud says that it is doing."""

    created_at: float | None = None
    """When the cloud says it was created, seconds since the epoch, if it says so."""

    intent: str | None = None
    """The intent that asked for it, if the cloud can carry one."""

    offering: str | None = None
    """Where and what it is, such as ``eu-west-1a/m5.large/spot``; free text, stable."""


class ProblemKind(Enum):
    """Why asked-for capacity is not coming."""

    CAPACITY = "capacity"
    QUOTA = "quota"
    IMAGE = "image"
    AUTHORISATION = "authorisation"
    OTHER = "other"


@frozen(kw_only=True)
class Problem:
    """The cloud's own word on why it does not deliver."""

    kind: ProblemKind
    """What is wrong, as far as it matters to the one who asks."""

    message: str
    """In the cloud's own words."""

    since: float | None = None
    """When it was first met, seconds since the epoch; the same problem keeps its `since`."""

    offering: str | None = None
    """Which offering it concerns; None for the whole group."""


@frozen
class Observation:
    """The cloud's whole view of the group, complete or not given at all."""

    instances: Mapping[str, Observed]
    """By id. An instance that is not here is, as far as the cloud knows now, not there."""

    problems: Sequence[Problem] = ()
    """Why what was asked for is not coming; empty if nothing is known to be wrong."""

    max_size: int | None = None
    """The cloud's own ceiling now, where it may be changed while the group is open; None: what `GroupInfo` says."""

    @classmethod
    def of(cls, states: Mapping[str, State]) -> Observation:
        """The simple case: ids and states, nothing else known."""
        return cls({instance: Observed(state=state) for instance, state in states.items()})


class Capability(Enum):
    """What only some clouds can do; each promises something that conformance checks."""

    NAMED_CREATE = "named_create"
    """`increase` is idempotent per intent, and instances carry the intent."""

    WITHDRAW = "withdraw"
    """The group also has ``withdraw(count) -> int`` (`Withdraws`)."""

    SUSPEND_RESUME = "suspend_resume"
    """The group also has ``suspend`` and ``resume`` (`Suspends`)."""

    NOTICES = "notices"
    """The group also has ``notices()`` (`GivesNotice`), or its `GroupInfo` a `notice_probe`."""

    OWNER_MARK = "owner_mark"
    """The group can carry an expiring record of who manages it (`MarksOwner`)."""

    PRICES = "prices"
    """The group knows what an offering costs (`ReportsPrices`)."""


@frozen(kw_only=True)
class Mark:
    """Who manages a group, as it stands on the group itself."""

    owner: str
    """`Settings.owner` of the manager that put it there."""

    until: float
    """Seconds since the epoch; it expires then. Infinity: it is there, and when it expires cannot be read."""


@frozen(kw_only=True)
class GroupInfo:
    """What a group says of itself when it is opened."""

    identity: str
    """The cloud resource itself: account, region, name. The manager's lock is taken on it."""

    max_size: int | None = None
    """The cloud's own ceiling, if it has one. An `Observation` with another one takes its place."""

    max_size_is: str = "the cloud's own limit"
    """What `max_size` is, in words for users, where it is set elsewhere: ``the number of hosts``."""

    interface_version: int = INTERFACE_VERSION
    """Of the plugin interface that the group was written for."""

    capabilities: frozenset[Capability] = frozenset()
    """What the group can do beyond the seven methods."""

    advice: Sequence[str] = ()
    """What init found that should be changed at the cloud, one sentence each."""

    notice_probe: str | None = None
    """A shell command that prints, on the instance itself, what the cloud announces there; None: there is none.

    It prints a line ``KIND SECONDS`` for each notice, with the value of a `NoticeKind` and how long from now the
    instance has left, such as ``preemption 112``; nothing if nothing is announced. It exits with 0 in both cases, ends
    by itself within 5 s, and needs no more than a POSIX shell and curl.
    """


def _from_home(path: str | None) -> str | None:
    return path and expanduser(path)  # noqa: PTH111  (a Path raises where there is no home)


def _is_fingerprint(_: object, __: Attribute[str | None], value: str | None) -> None:
    if value is not None and not _FINGERPRINT.fullmatch(value):
        raise ValueError("a SHA-256 fingerprint: 64 hexadecimal digits, with colons or without")


@frozen(kw_only=True, field_transformer=in_words)
class ConnectorConfig:
    """How to connect: overrides what the plugin reports, or fills what it cannot know.

    The names, meanings and defaults are those of GitLab's ``connector_config``; `keepalive_misses` and what follows
    `use_external_addr` are ours.
    """

    os: str | None = None
    """The instance's operating system. None: what the group reports."""

    arch: str | None = None
    """The instance's processor. None: what the group reports."""

    protocol: str | None = None
    """Which connector reaches instances. None: the one that the group reports."""

    protocol_port: int | None = field(default=None, validator=optional([ge(1), le(65535)]))
    """Where it listens. None: what the group reports, or the protocol's own."""

    username: str | None = None
    """Whom to log in as. None: what the group reports."""

    password: str | None = field(default=None, repr=False)
    """A secret. None: what the group reports."""

    key_path: str | None = field(default=None, converter=_from_home)
    """The file of a private key; ``~`` is the user's home."""

    use_static_credentials: bool = False
    """Whether the group makes no credentials of its own, and what is set here is all there is."""

    keepalive: Duration = field(default=30.0, validator=gt(0))
    """Seconds of silence on an open connection after which a sign of life is asked for."""

    keepalive_misses: int = field(default=3, validator=ge(2))
    """How many such silences in a row end the connection."""

    timeout: Duration = field(default=600.0, validator=gt(0))
    """Seconds that dialling may take, retries included."""

    use_external_addr: bool = False
    """Whether to use the external address; an instance that has only an internal one is reached there in any case."""

    known_hosts: str | None = None
    """OpenSSH's file of known hosts; with it, a host that is not in there is refused. None: a host's key is pinned."""

    use_agent: bool = False
    """Whether the keys of the user's SSH agent are tried too."""

    allow_password_to_unknown_host: bool = False
    """Whether SSH may send the password to a host whose key nobody has reported, configured or pinned."""

    ca_file: str | None = None
    """PEM file of the authorities that may sign a WinRM host's certificate; None: those that the public trusts."""

    certificate: str | None = field(default=None, validator=_is_fingerprint)
    """SHA-256 of the certificate that a WinRM host shows, in hexadecimal; with it, no authority is asked."""

    allow_plaintext: bool = False
    """Whether WinRM may show the password and all data to everybody on the way."""


@frozen(kw_only=True)
class Settings:
    """What a group is given when it is opened."""

    owner: str
    """Who manages: an id of this manager, to be put on what it creates; the same when its journal is opened again."""

    clock: Clock
    """Gives the time, in seconds since the epoch."""

    connector: ConnectorConfig = ConnectorConfig()
    """What the user has said about connections."""

    observe_only: bool = False
    """Whether the group is opened only to be looked at, maybe beside its manager; see `InstanceGroup.init`."""

    def refuse_if_observing(self) -> None:
        """To be called first by whatever asks the cloud for a change.

        Raises:
            Unsupported: The group was opened to observe only.
        """
        if self.observe_only:
            raise Unsupported("the group was opened to observe only; open it to manage it")


@frozen(kw_only=True)
class ConnectInfo:
    """All that is needed to connect to one instance. Secrets stay out of its `repr`."""

    id: str
    """The instance's id."""

    os: str = "linux"
    """Its operating system: ``linux``, ``darwin``, ``windows``."""

    arch: str = "amd64"
    """Its processor: ``amd64``, ``arm64``."""

    protocol: str = "ssh"
    """Which connector reaches it: ``ssh``, ``winrm``, ``winrm+https``, ``local``, or one of a plugin's."""

    internal_addr: str | None = None
    """A host name, an IP address, or a socket path, as the protocol has it."""

    external_addr: str | None = None
    """As `internal_addr`, but reached from outside of the instance's network."""

    port: int | None = None
    """None: the protocol's own default."""

    user: str | None = None
    """Whom to log in as. None: as the protocol has it."""

    password: str | None = field(default=None, repr=False)
    """A secret. None: there is none, or it is not needed."""

    key: str | None = field(default=None, repr=False)
    """A private key in OpenSSH's or PEM's text form."""

    host_key: str | None = None
    """The public host key as one ``type base64`` line, if it could be learnt."""

    pin_host_key: bool = False
    """Whether somebody on the instance can change what is reported as its `host_key`, as on a console: the first report
    is then pinned, and a later one that differs is refused."""

    host_key_alias: str | None = None
    """What the host key is pinned under, for machines that outlive the instance, such as a fixed host's address.
    None: the instance."""

    expires_at: float | None = None
    """When the credentials end, seconds since the epoch; fetched again after that."""


class NoticeKind(Enum):
    """What the cloud announces."""

    PREEMPTION = "preemption"
    MAINTENANCE = "maintenance"
    REBALANCE = "rebalance"


@frozen(kw_only=True)
class Notice:
    """The cloud says that an instance will go."""

    instance: str
    """Its id."""

    deadline: float
    """When it goes, seconds since the epoch."""

    kind: NoticeKind = NoticeKind.PREEMPTION
    """Why it will go."""

    @property
    def why(self) -> str:
        """In words."""
        return f"{self.kind.value} announced"


LAST_WORDS = 500
"""So many characters of what a command said are enough to show why it failed."""

_BYTES_READ = 8 * LAST_WORDS
"""Bytes at the end of what it said in which they are, and the blanks behind them."""


@frozen(kw_only=True)
class Usage:
    """What a command has used, as far as its instance says; see the page about results for what each figure counts."""

    cpu_time: float | None = None
    """Seconds of CPU, on all CPUs together; None: not known."""

    peak_memory: int | None = None
    """Bytes of memory of the largest of its processes; None: not known."""

    disk_written: int | None = None
    """Bytes that it has sent towards a disk; None: not known."""

    @property
    def account(self) -> str:
        """In words, as far as it is known: ``1m15s of CPU, 3 MiB of memory at most``; empty: nothing is."""
        parts = (
            None if self.cpu_time is None else f"{span(self.cpu_time)} of CPU",
            None if self.peak_memory is None else f"{in_units(self.peak_memory)} of memory at most",
            None if self.disk_written is None else f"{in_units(self.disk_written)} written",
        )
        return ", ".join(filter(None, parts))


@frozen(kw_only=True)
class Completed:
    """What came of a command on an instance."""

    exit_status: int | None
    """None if it was ended by a signal."""

    signal: str | None = None
    """Such as ``SIGKILL``; None if it exited by itself."""

    stdout: bytes = b""
    """What was collected; empty if a sink was given."""

    stderr: bytes = b""
    """What the command wrote to its error output, unless that was streamed."""

    cut: int = 0
    """Bytes at the end of a detached command's output that the instance did not keep; 0: it kept all."""

    usage: Usage = field(default=Usage(), eq=False)
    """What a detached command has used; of others nothing is known. It does not make two that ended alike differ."""

    @property
    def ok(self) -> bool:
        """Whether it exited with 0."""
        return self.exit_status == 0

    @property
    def outcome(self) -> str:
        """In words: ``exited with 3``, ``was ended by SIGKILL``."""
        return f"was ended by {self.signal}" if self.exit_status is None else f"exited with {self.exit_status}"

    @property
    def account(self) -> str:
        """The outcome, and the end of what it said on its error output: ``exited with 3: no such user``."""
        said = self.stderr[-_BYTES_READ:].decode(errors="replace").strip()[-LAST_WORDS:]
        return f"{self.outcome}: {one_line(said)}" if said else self.outcome
