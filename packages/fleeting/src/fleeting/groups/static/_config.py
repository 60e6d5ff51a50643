"""The settings of the `static` group."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import attrs
from attrs import field, frozen
from attrs.validators import gt, le, min_len, optional

from fleeting import ConnectInfo, Duration
from fleeting.connectors.ssh import names_its_type
from fleeting.groups._rules import A_NAME, NAME, is_name
from fleeting.plugins import is_absolute, state_home

LONGEST_RESET = 240.0
"""Seconds; the manager gives up on any change after 300."""

_PORTS = range(1, 65536)


def _is_port(_: object, __: "attrs.Attribute[int | None]", value: int | None) -> None:
    if value is not None and value not in _PORTS:
        raise ValueError(f"{_PORTS[0]} to {_PORTS[-1]}")


def _is_host_key(_: object, __: "attrs.Attribute[str | None]", value: str | None) -> None:
    if value is not None and not names_its_type(*[*value.split(), "", ""][:2]):
        raise ValueError("a public key as in a .pub file: its type and base64, on one line")


@frozen(kw_only=True)
class HostSettings:
    """How to connect to a host. None: as the whole group says, and if that says nothing, as `Host.info` has it."""

    protocol: str | None = None
    """Which connector reaches the host. None: SSH, or WinRM where `os` is ``windows``."""

    port: int | None = field(default=None, validator=_is_port, metadata={"aliases": ("protocol_port",)})
    """Where it listens. None: the protocol's own."""

    username: str | None = None
    """Whom to log in as. None: what `connector_config` says."""

    password: str | None = field(default=None, repr=False)
    """A secret. None: what `connector_config` says."""

    key_path: str | None = None
    """File with the private key; a leading ``~`` is the manager's home directory."""

    host_key: str | None = field(default=None, validator=_is_host_key)
    """The host's public key as one ``type base64`` line."""

    os: str | None = field(default=None, validator=optional(min_len(1)))
    """The host's operating system. None: ``linux``."""

    arch: str | None = field(default=None, validator=optional(min_len(1)))
    """The host's processor. None: ``amd64``."""


@frozen(kw_only=True)
class Host(HostSettings):
    """One of ``[[plugin_config.hosts]]``."""

    address: str = field(validator=min_len(1))
    """Host name, IP address or socket path, as the protocol has it."""

    name: str | None = field(default=None, validator=optional(is_name))
    """Begins the ids of its instances. None: the address."""

    def __attrs_post_init__(self) -> None:
        """Have a name that ids can begin with."""
        if not NAME.fullmatch(self.id):
            raise ValueError(f"a name, because the address is not {A_NAME}")

    @property
    def id(self) -> str:
        """What it is called."""
        return self.address if self.name is None else self.name

    @property
    def place(self) -> str:
        """Distinguishes one machine from another."""
        return self.address if self.port is None else f"{self.address}:{self.port}"

    def info(self, instance: str) -> ConnectInfo:
        """How to connect to it; without the key, which lies in a file."""
        system = self.os or "linux"
        return ConnectInfo(
            id=instance,
            os=system,
            arch=self.arch or "amd64",
            protocol=self.protocol or ("winrm" if system == "windows" else "ssh"),
            internal_addr=self.address,
            port=self.port,
            user=self.username,
            password=self.password,
            host_key=self.host_key,
        )


@frozen(kw_only=True)
class StaticConfig(HostSettings):
    """What ``plugin_config`` may say for ``plugin = "static"``; its `HostSettings` hold for all hosts."""

    hosts: tuple[Host, ...] = field()
    """The hosts; each has an address, and its own values for what is set above."""

    name: str = field(default="default", validator=is_name)
    """Distinguishes one group from another; a host belongs into one group only."""

    state_dir: str | None = field(default=None, validator=is_absolute)
    """Where it is remembered which hosts are taken, absolute; made if it does not exist. None: below the user's
    own directory for state."""

    reset_command: str | None = field(default=None, validator=optional(min_len(1)))
    """Run on a host that is given back, through the connector; it is taken again only once that has succeeded."""

    reset_timeout: Duration = field(default=60.0, validator=[gt(0), le(LONGEST_RESET)])
    """Seconds that connecting for the reset, and the reset, may take."""

    @hosts.validator
    def _check_hosts(self, _: object, hosts: Sequence[Host]) -> None:
        if not hosts:
            raise ValueError("at least one host")
        if twice := _repeated(host.id for host in hosts):
            raise ValueError("hosts with different names", twice, " twice")
        if twice := _repeated(host.place for host in hosts):
            raise ValueError("hosts that differ in address or port", twice, " twice")

    @property
    def root(self) -> Path:
        """The directory of the group.

        Raises:
            RuntimeError: It is not set, and the user has no home directory.
        """
        base = state_home() / "fleeting" / "static" if self.state_dir is None else Path(self.state_dir)
        return base / self.name

    def complete(self, host: Host) -> Host:
        """The host, with what the group says where the host says nothing."""
        names = [attribute.name for attribute in attrs.fields(HostSettings)]
        return attrs.evolve(host, **{name: getattr(self, name) for name in names if getattr(host, name) is None})


def _repeated(names: Iterable[str]) -> str:
    """One that is there more than once; empty if none is."""
    return next((name for name, times in Counter(names).items() if times > 1), "")
