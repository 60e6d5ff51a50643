"""What operators ask of a daemon: what its fleet does, and to do something else."""

import sys
from typing import TYPE_CHECKING

import click

from fleeting.cli import Commands, as_duration
from taskscaler.cli._commands._options import DAEMON_EPILOG, JSON, SOCKET

if TYPE_CHECKING:
    from taskscaler._socket import Place

commands = Commands()


@commands.command(epilog=DAEMON_EPILOG, short_help="Print a link to a daemon's status page.")
@click.option("--changes", is_flag=True, help="Let who opens it cordon, retain and drain, too.")
@SOCKET
@JSON
def link(socket: "Place | None", *, changes: bool, as_json: bool) -> None:
    """Print a link that opens the status page of a daemon in one browser, once, within 5 minutes.

    The daemon shows the page where --http of `taskscaler serve` says. Who has opened the link may look for 12 hours.
    """
    from taskscaler.cli import _operate

    sys.exit(_operate.link(socket, changes=changes, as_json=as_json))


@commands.command(epilog=DAEMON_EPILOG, short_help="Show a daemon and its fleet on one screen.")
@SOCKET
@JSON
def status(socket: "Place | None", *, as_json: bool) -> None:
    """Show the daemon: its pools and slots, who waits, for what, and why."""
    from taskscaler.cli import _operate

    sys.exit(_operate.status(socket, as_json=as_json))


@commands.command(epilog=DAEMON_EPILOG, short_help="List the instances of a daemon's fleet.")
@SOCKET
@JSON
def instances(socket: "Place | None", *, as_json: bool) -> None:
    """List the instances of the daemon's fleet, oldest first."""
    from taskscaler.cli import _operate

    sys.exit(_operate.instances(socket, as_json=as_json))


@commands.command(epilog=DAEMON_EPILOG, short_help="Watch a daemon's fleet in the terminal.")
@click.option("--once", is_flag=True, help="Print the fleet as it is now, as plain text, and exit.")
@SOCKET
def top(socket: "Place | None", *, once: bool) -> None:
    """Watch the daemon's fleet: its instances and slots, what runs and what waits, and what was decided, as it happens.

    Sort with s, filter with /, explain the chosen row with Enter; c cordons an instance and r retains it, after asking
    you. ? shows all keys, q quits.

    Without a terminal, it prints the fleet once, as with --once.
    """
    from taskscaler.cli._top import top as show

    sys.exit(show(socket, once=once))


def _hold(verb: str, undo: str, summary: str, details: str) -> click.Command:
    """Make a command that marks an instance, or takes the mark away."""

    @click.argument("instance", metavar="INSTANCE")
    @click.option("--why", default="", help="The reason, for people to read.")
    @click.option("--undo", "undone", is_flag=True, help=f"Undo an earlier {verb}.")
    @SOCKET
    @JSON
    def command(instance: str, why: str, *, undone: bool, socket: "Place | None", as_json: bool) -> None:
        from taskscaler.cli import _operate

        sys.exit(_operate.hold(socket, undo if undone else verb, instance, why, as_json=as_json))

    command.__doc__ = details
    return commands.command(verb, epilog=DAEMON_EPILOG, short_help=summary)(command)


cordon = _hold(
    "cordon",
    "uncordon",
    "Give an instance of a daemon's fleet no new work.",
    "Give an instance no new work, even after a restart of the daemon. What runs there goes on. INSTANCE is its id, or "
    "POOL/ID.",
)


retain = _hold(
    "retain",
    "unretain",
    "Keep an instance of a daemon's fleet from being deleted.",
    "Keep an instance from being deleted, whatever happens, even after a restart of the daemon. INSTANCE is its id, or "
    "POOL/ID.",
)


@commands.command(epilog=DAEMON_EPILOG, short_help="Have a daemon ask for no more jobs.")
@click.option("--undo", "undone", is_flag=True, help="Have it ask again.")
@SOCKET
@JSON
def pause(*, undone: bool, socket: "Place | None", as_json: bool) -> None:
    """Have a daemon with jobs from elsewhere ask for no more of them, even after a restart. What is there goes on.

    That is `taskscaler-gitlab run`, which gets its jobs from GitLab. The fleet stays as it is, and serves others.
    """
    from taskscaler.cli import _operate

    sys.exit(_operate.pause(socket, undone=undone, as_json=as_json))


@commands.command(epilog=DAEMON_EPILOG, short_help="Have a daemon end with its last lease.")
@click.option(
    "--timeout", metavar="DURATION", callback=as_duration, help="How long to wait for that.  [default: for ever]"
)
@click.option("--delete", is_flag=True, help="Delete the instances, too.")
@SOCKET
@JSON
def drain(socket: "Place | None", *, timeout: float | None, delete: bool, as_json: bool) -> None:
    """Hand out no more slots, wait until no lease is held, and end the daemon."""
    from taskscaler.cli import _operate

    sys.exit(_operate.drain(socket, timeout, delete=delete, as_json=as_json))


@commands.command(epilog=DAEMON_EPILOG, short_help="Have a daemon read its file again.")
@SOCKET
@JSON
def reload(socket: "Place | None", *, as_json: bool) -> None:
    """Have the daemon take over the policies as they are in its file now.

    All else that has changed in the file is named: it takes effect when the daemon is restarted.
    """
    from taskscaler.cli import _operate

    sys.exit(_operate.reload(socket, as_json=as_json))
