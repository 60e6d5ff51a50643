"""``taskscaler top``: the fleet of a daemon in the terminal, kept up to date; or one look at it."""

import os
import sys
from functools import partial
from importlib.util import find_spec

from fleeting.cli import outcome
from fleeting.errors import WrongArguments
from taskscaler._socket import Place, find_socket
from taskscaler.cli._ask import ask, check_installed


def top(socket: Place | None, *, once: bool) -> int:
    """Show the fleet until the user quits, or once; return the exit status."""
    return outcome(partial(_once if once or not _is_terminal() else _live, socket))


def _is_terminal() -> bool:
    """Whether there is one to draw on, and to read keys from."""
    return sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")


def _once(socket: Place | None) -> int:
    check_installed()
    from taskscaler.cli._top._plain import print_once

    return print_once(find_socket(socket))


def _live(socket: Place | None) -> int:
    if find_spec("textual") is None:
        install = "pip install 'taskscaler[top]'"
        raise WrongArguments(f"this needs textual, which is not installed; {install}, or use --once")
    place = find_socket(socket)
    ask(place, "GET", "/status")  # which is an error if nobody answers
    from taskscaler.cli._top._app import show

    return show(place)
