"""Ways to reach an instance, one module per protocol; and what a connector is made of, for authors of others."""

from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

import anyio
from attrs import evolve

from fleeting._errors import LoginRejected
from fleeting._plugins import load_connector
from fleeting._protocols import (
    KEPT_OUTPUT,
    Connection,
    Connector,
    Detached,
    ForwardsPorts,
    OpensTerminals,
    ReportsSystem,
    RunsDetached,
    Sink,
    Source,
    StartsAttached,
    Terminal,
)
from fleeting._types import ConnectInfo, ConnectorConfig

if TYPE_CHECKING:
    from fleeting.connectors._base import BaseConnection, Invocation
    from fleeting.connectors._collect import Beginning, Collector, Ending
    from fleeting.connectors._detached_posix import PosixConnection
    from fleeting.connectors._listening import PortListener, listen_tcp
    from fleeting.connectors._pipe_output import PipeOutput
    from fleeting.connectors._stdin import arriving, reading
    from fleeting.connectors._usage import REPORT_USAGE, read_usage

_ON_DEMAND = {
    "REPORT_USAGE": "fleeting.connectors._usage",
    "BaseConnection": "fleeting.connectors._base",
    "Beginning": "fleeting.connectors._collect",
    "Collector": "fleeting.connectors._collect",
    "Ending": "fleeting.connectors._collect",
    "Invocation": "fleeting.connectors._base",
    "PipeOutput": "fleeting.connectors._pipe_output",
    "PortListener": "fleeting.connectors._listening",
    "PosixConnection": "fleeting.connectors._detached_posix",
    "arriving": "fleeting.connectors._stdin",
    "listen_tcp": "fleeting.connectors._listening",
    "read_usage": "fleeting.connectors._usage",
    "reading": "fleeting.connectors._stdin",
}
"""What connectors are made of, by where it is: who only connects needs nothing of it before it has a connection."""

__all__ = [
    "KEPT_OUTPUT",
    "REPORT_USAGE",
    "BaseConnection",
    "Beginning",
    "Collector",
    "Connector",
    "Detached",
    "Ending",
    "ForwardsPorts",
    "Invocation",
    "OpensTerminals",
    "PipeOutput",
    "PortListener",
    "PosixConnection",
    "ReportsSystem",
    "RunsDetached",
    "Sink",
    "Source",
    "StartsAttached",
    "Terminal",
    "arriving",
    "listen_tcp",
    "overridden",
    "read_usage",
    "reading",
]

if not TYPE_CHECKING:  # else mypy would take every name for one that is here

    def __getattr__(name: str) -> object:
        """Import a name when it is asked for."""
        if name not in _ON_DEMAND:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        found = globals()[name] = getattr(import_module(_ON_DEMAND[name]), name)
        return found


_DEFAULTS = ConnectorConfig()
_SSH = "ssh"


def dial(info: ConnectInfo, config: ConnectorConfig = _DEFAULTS) -> AbstractAsyncContextManager[Connection]:
    """Connect to an instance, with the connector for the protocol that *info* names.

    Args:
        info: From the group's `connect_info`.
        config: Says how long it may take; what it overrides in *info* is the caller's business.

    Raises:
        PluginNotFound: No installed connector speaks the protocol.
        Unreachable, HostKeyMismatch, LoginRejected: On entering.
    """
    return load_connector(info.protocol).dial(info, config)


async def overridden(info: ConnectInfo, config: ConnectorConfig) -> ConnectInfo:
    """Let what the user configured win over what the plugin reports.

    Raises:
        OSError: The file with the key cannot be read.
        LoginRejected: It holds no text.
    """
    key = await _key_in(config.key_path) if config.key_path is not None else None
    return evolve(
        info,
        os=config.os or info.os,
        arch=config.arch or info.arch,
        protocol=config.protocol or _protocol(info, config.os),
        port=config.protocol_port or info.port,
        user=config.username or info.user,
        password=config.password or info.password,
        key=key or info.key,
    )


def _protocol(info: ConnectInfo, configured_os: str | None) -> str:
    """Windows speaks WinRM unless somebody says otherwise; a group that names the system names the protocol too."""
    is_news = configured_os == "windows" and info.os != "windows"
    return "winrm" if is_news and info.protocol == _SSH else info.protocol


async def _key_in(path: str) -> str:
    try:
        return await anyio.Path(path).read_text("ascii")
    except UnicodeDecodeError:
        raise LoginRejected(f"the private key in {path} is not text; convert it to OpenSSH's format") from None
