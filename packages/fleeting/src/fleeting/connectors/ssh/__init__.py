"""The SSH connector, on paramiko's cryptography (``pip install fleeting[ssh]``).

How the parts lie on each other; each imports only from those below it:

    _connector              dials instances; what plugins and users see
    _connection             one user's use of a connection: run, open_unix, open_tcp, listen_tcp
    _listener               a port of the host, and why it gives us none
    _run  _streams          a command in its channel; a channel as a stream
    _shared                 one connection per instance, more where sessions are limited
    _dial                   attempts until one is logged in
    _connect  _host_keys  _keys    sockets; who answers; who we are
    _transport              paramiko's transport without its waits; supervision
    _channel  _forward      what tasks and the reading thread share of a channel; of a port of the host
    _transport_socket       the socket: never blocks who sends, and notices silence
    _wakeup                 from threads to the event loop
    _arrivals               pure: what has come in a channel and was not taken
    _command  _known_hosts  _printed    pure: what is sent to the shell; OpenSSH's file; what a boot prints
    _sockets                pure: what Linux says of the sockets that listen
"""

from typing import TYPE_CHECKING

from fleeting._hooks import hookimpl
from fleeting._protocols import Connector

if TYPE_CHECKING:
    from fleeting.connectors.ssh._connector import SshConnector
    from fleeting.connectors.ssh._host_keys import FileHostKeys, HostKeys, MemoryHostKeys
    from fleeting.connectors.ssh._keys import KeyPair, generate_key, read_key_pair
    from fleeting.connectors.ssh._printed import best_host_key, names_its_type, printed_host_key

_PARTS = {
    "FileHostKeys": "_host_keys",
    "HostKeys": "_host_keys",
    "KeyPair": "_keys",
    "MemoryHostKeys": "_host_keys",
    "SshConnector": "_connector",
    "best_host_key": "_printed",
    "generate_key": "_keys",
    "names_its_type": "_printed",
    "printed_host_key": "_printed",
    "read_key_pair": "_keys",
}

__all__ = [
    "FileHostKeys",
    "HostKeys",
    "KeyPair",
    "MemoryHostKeys",
    "SshConnector",
    "best_host_key",
    "generate_key",
    "names_its_type",
    "printed_host_key",
    "read_key_pair",
]


@hookimpl
def fleeting_connector() -> Connector:
    """Hand the connector to the loader."""
    try:
        import paramiko  # noqa: F401  (only to say what to do if it is missing)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("paramiko is not installed; pip install 'fleeting[ssh]'") from error
    from fleeting.connectors.ssh._connector import SshConnector

    return SshConnector()


def __getattr__(name: str) -> object:
    """Import what needs paramiko when it is asked for."""
    if name not in _PARTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_PARTS[name]}"), name)
