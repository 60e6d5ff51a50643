"""The WinRM connector, on pywinrm (``pip install fleeting[winrm]``).

How the parts lie on each other; each imports only from those below it:

    _connector          dials instances; what plugins and users see
    _connection         one user's use of a host: run; there are no tunnels
    _run                a command in its shell: input, outputs, end
    _shells             the shells of one user on one host: reused, and no more than the quota allows
    _dial               attempts until the host lets us in
    _calls              requests from tasks: one protocol object each, with a deadline, and a way to cut one short
    _wire  _faults      pywinrm's transport with bounds; what went wrong, as our errors
    _command            pure: what is sent to have a command run
"""

from typing import TYPE_CHECKING

from fleeting._hooks import hookimpl
from fleeting._protocols import Connector

if TYPE_CHECKING:
    from fleeting.connectors.winrm._connector import WinrmConnector

__all__ = ["WinrmConnector"]


@hookimpl
def fleeting_connector() -> Connector:
    """Hand the connector to the loader."""
    try:
        import winrm  # noqa: F401  (only to say what to do if it is missing)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("pywinrm is not installed; pip install 'fleeting[winrm]'") from error
    from fleeting.connectors.winrm._connector import WinrmConnector

    return WinrmConnector()


def __getattr__(name: str) -> object:
    """Import what needs pywinrm when it is asked for."""
    if name != "WinrmConnector":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from fleeting.connectors.winrm._connector import WinrmConnector

    return WinrmConnector
