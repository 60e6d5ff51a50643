"""Where a daemon listens, and where its clients look for it."""

import os
from pathlib import Path
from typing import TypeAlias

from fleeting.plugins import state_home
from taskscaler._errors import DaemonRefused, NoDaemon
from taskscaler._url import DaemonUrl, is_url

Place: TypeAlias = Path | DaemonUrl
"""Where a daemon is reached."""

LONGEST = 103
"""Bytes of a socket's path: Linux has room for 107, macOS for 103."""

GROUP_DIRECTORY = Path("/run/taskscaler")
"""Where sockets are that a group of users shares."""


def socket_directory() -> Path:
    """Where the user's own sockets are: below the runtime directory, or else below the one for state.

    Raises:
        NoDaemon: There is neither.
    """
    given = Path(os.environ.get("XDG_RUNTIME_DIR", ""))
    if given.is_absolute():
        return given / "taskscaler"
    try:
        return state_home() / "taskscaler"
    except RuntimeError as error:
        raise NoDaemon("there is no directory for sockets; set XDG_RUNTIME_DIR, or use --socket") from error


def find_socket(
    given: str | os.PathLike[str] | DaemonUrl | None = None, token_file: str | os.PathLike[str] | None = None
) -> Place:
    """Find the daemon to ask: the one that is named, in TASKSCALER_SOCKET if nowhere else; or the only one.

    Args:
        given: A path, or an address such as ``https://build.example:8443``.
        token_file: For an address: the file with the token. None: as TASKSCALER_TOKEN_FILE has it.

    Raises:
        NoDaemon: There is none, or there are several and none was named.
        WrongArguments: The address cannot be used, or there is no token for it.
    """
    if isinstance(given, DaemonUrl):
        return given
    if named := given or os.environ.get("TASKSCALER_SOCKET"):
        return DaemonUrl.of(str(named), token_file) if is_url(str(named)) else Path(named)
    directory = socket_directory()
    found = sorted(path for path in directory.glob("*.sock") if path.is_socket())
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(map(str, found))
        raise NoDaemon(f"several daemons have sockets here: {names}; name one with --socket or TASKSCALER_SOCKET")
    raise NoDaemon(
        f"no daemon has a socket in {directory}; start one with `taskscaler serve FLEET.toml`,"
        " or name its socket with --socket or TASKSCALER_SOCKET"
    )


def is_ours(socket: Place) -> bool:
    """Whether the daemon there lets us connect to its instances: on the socket of our own user; also if it is away."""
    if isinstance(socket, DaemonUrl):
        return False
    try:
        return os.geteuid() in (0, socket.stat().st_uid)
    except OSError:
        return True  # which is not there: to be said where it is asked


def check_ours(socket: Place, instead: str) -> None:
    """See that we may connect to the instances of the daemon with a socket, before a slot is taken.

    Args:
        socket: Its path.
        instead: What others can do.

    Raises:
        DaemonRefused: It is another user's, or is reached over TCP.
    """
    if isinstance(socket, DaemonUrl):
        raise DaemonRefused(f"over TCP, the daemon lets nobody connect to its instances; {instead}")
    if not is_ours(socket):
        raise DaemonRefused(
            f"the daemon at {socket} belongs to another user, who alone may connect to its instances; {instead}"
        )
