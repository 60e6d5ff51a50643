"""Ways to reach an instance, one module per protocol."""

from contextlib import AbstractAsyncContextManager

from fleeting._plugins import load_connector
from fleeting._protocols import Connection
from fleeting._types import ConnectInfo, ConnectorConfig

_DEFAULTS = ConnectorConfig()


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
