"""What goes wrong in pywinrm and below it, as what a caller would do about it.

The numbers are Windows's own: those of WinRM (``wsmerror.h``) as they are, those of the system (``winerror.h``) also
with 0x80070000 added.
"""

from collections.abc import Mapping

import requests
from attrs import frozen
from winrm.exceptions import (
    AuthenticationError,
    WinRMOperationTimeoutError,
    WinRMTransportError,
    WSManFaultError,
)

from fleeting._errors import ConnectError, FleetingError, HostKeyMismatch, LoginRejected, Unreachable
from fleeting._wording import one_line
from fleeting.connectors.winrm._wire import TooMuch

_SYSTEM = 0x80070000
SHELL_QUOTA = 0x803381A5
"""This user may have no more shells."""

OPERATION_QUOTA = 0x803381A6
"""This user may have no more operations. Those of a shell count for as long as it is there, ended or not."""

SHELL_GONE = 0x8033805B
"""There is no such shell, or no such command in it."""

ABORTED = 995
"""The operation was ended because the command was."""

BUSY = 170
"""What was sent before is still under way."""

_DENIED = 5
_STATUS: Mapping[int, int] = {2: 127, 3: 127, 267: 127, _DENIED: 126, 193: 126, 740: 126}
"""What a shell would exit with, by why Windows could not start a program: no such file, path or directory; denied, no
program, for administrators only."""

_UNAVAILABLE = 503


@frozen
class Fault(Exception):
    """The service refused a request, and said so as the protocol has it. It is well, and we may go on."""

    code: int
    """0 if there was none."""

    reason: str

    @property
    def exit_status(self) -> int | None:
        """What a command that could not be started exits with; None if that is not what went wrong."""
        return _STATUS.get(self.code)


class OperationTimeout(Exception):
    """Nothing happened for as long as a request may take; ask again."""


def translated(error: Exception, host: str) -> Exception:
    """Make ours of what was raised; *host* names it in errors."""
    match error:
        case FleetingError():
            return error
        case WinRMOperationTimeoutError():
            return OperationTimeout()
        case WSManFaultError():
            return _fault(error)
        case AuthenticationError() | PermissionError():
            return LoginRejected(f"{host} refuses the user or the password")
        case requests.exceptions.SSLError():
            return _about_tls(error, host)
    return Unreachable(f"{host} {one_line(_trouble(error))}")


def _trouble(error: Exception) -> str:
    """Say what is wrong with a host; it may answer anything, and pywinrm raise anything then."""
    match error:
        case requests.exceptions.ReadTimeout() | requests.exceptions.ConnectTimeout():
            return "does not answer"
        case requests.exceptions.ConnectionError():
            return f"cannot be reached: {_innermost(error)}"
        case WinRMTransportError() if error.code == _UNAVAILABLE:
            return "has a WinRM service that is not available (HTTP status 503)"
        case WinRMTransportError():
            return f"answers with HTTP status {error.code}, unlike any WinRM service"
        case TooMuch() | OSError():
            return f"cannot be understood: {error}"
    return f"gives an answer that is not WinRM ({type(error).__name__})"


def refused(fault: Fault, host: str) -> ConnectError:
    """Say what the host refuses, where there is nothing to do about it."""
    if fault.code == _DENIED:
        return LoginRejected(f"{host} denies access to this user: {fault.reason}; make it a member of Administrators")
    return ConnectError(f"{host} refuses: {fault.reason}")


def _fault(error: WSManFaultError) -> Fault:
    code = error.wsman_fault_code or 0
    return Fault(code - _SYSTEM if code & 0xFFFF0000 == _SYSTEM else code, one_line(error.reason or ""))


def _about_tls(error: Exception, host: str) -> ConnectError:
    what = one_line(_innermost(error))
    if "certificate verify failed" in what or "ingerprint" in what or "doesn't match" in what:
        return HostKeyMismatch(f"{host} shows a certificate that is not trusted: {what}; set ca_file or certificate")
    return Unreachable(f"{host} has a TLS problem: {what}")


def _innermost(error: BaseException) -> str:
    """What the error at the root says; requests and urllib3 wrap it several times."""
    while (inner := _inner(error)) is not None:
        error = inner
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).strip().rstrip(".")


def _inner(error: BaseException) -> BaseException | None:
    for candidate in (getattr(error, "reason", None), *error.args[:2], error.__cause__):
        if isinstance(candidate, BaseException):
            return candidate
    return None
