"""Commands that have a slot of a daemon's fleet: `lease`, and what is done with leases that are kept."""

import sys
from typing import TYPE_CHECKING

import click

from fleeting.cli import Commands, as_duration
from taskscaler.cli._commands._options import DAEMON_EPILOG, JSON, SOCKET

if TYPE_CHECKING:
    from taskscaler._socket import Place

commands = Commands()


def _bound(_: click.Context, parameter: click.Parameter, given: str | None) -> float | None:
    """Read for how long a lease is kept that nobody uses."""
    from taskscaler._kept_bounds import check_bound

    seconds = as_duration(_, parameter, given)
    try:
        check_bound("it", seconds)
    except ValueError as error:
        raise click.BadParameter(f"{str(error).removeprefix('it: ')}; name a time within that") from error
    return seconds


@commands.command(
    epilog="Exit status: COMMAND's own, 128 plus the number of the signal that ended it, 254 if its slot was lost, 255 "
    "if it got no slot or could not be run, 2 if the arguments are wrong. With -d: 0 if COMMAND was started.",
    short_help="Run a command that has a slot of a daemon's fleet.",
)
@click.argument("command", metavar="-- COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option(
    "--key",
    metavar="KEY",
    help="What the slot is acquired under; one command at a time. A slot that was kept under KEY is used again.  "
    "[default: a new one]",
)
@click.option(
    "--timeout",
    metavar="DURATION",
    callback=as_duration,
    help="How long to wait for a slot.  [default: the fleet's instance_acquire_timeout]",
)
@click.option("--remote", is_flag=True, help="Run COMMAND on the slot's instance, not here.")
@click.option("--stdin", "-i", is_flag=True, help="With --remote: pass standard input on to COMMAND.")
@click.option(
    "--sync",
    is_flag=True,
    help="With --remote: bring the git working tree along, changes included, and run COMMAND in it. Files that git "
    "ignores, and .git, stay here.",
)
@click.option(
    "--detach",
    "-d",
    is_flag=True,
    help="With --remote: start COMMAND and leave it running. `taskscaler attach KEY` follows it, `taskscaler stop KEY` "
    "ends it.",
)
@click.option("--keep", is_flag=True, help="Keep the slot when COMMAND has ended, for the next command with this KEY.")
@click.option(
    "--ttl",
    metavar="DURATION",
    callback=_bound,
    help="With --keep or -d: how long the slot is kept while nobody is using it or attached to it, at most 168h.  "
    "[default: 8h]",
)
@click.option(
    "--idle-timeout",
    metavar="DURATION",
    callback=_bound,
    help="With --keep or -d: the same, but a command that was left running counts as use.  [default: only --ttl "
    "counts]",
)
@SOCKET
def lease(
    command: tuple[str, ...],
    key: str | None,
    timeout: float | None,
    *,
    remote: bool,
    stdin: bool,
    sync: bool,
    detach: bool,
    keep: bool,
    ttl: float | None,
    idle_timeout: float | None,
    socket: "Place | None",
) -> None:
    """Wait for a slot, run COMMAND, and give the slot back when it ends, however it ends.

    COMMAND runs on this machine. Its environment names the slot: TASKSCALER_KEY, TASKSCALER_POOL, TASKSCALER_INSTANCE,
    TASKSCALER_SLOT, and for the daemon's own user where the instance is: TASKSCALER_PROTOCOL,
    TASKSCALER_INTERNAL_ADDR, TASKSCALER_EXTERNAL_ADDR, TASKSCALER_PORT and TASKSCALER_USER, as far as they are known.
    One word is a line for the shell; several words are a program and its arguments, without a shell.

    With --keep or -d, the slot outlives this command, and the daemon: it is kept until nobody has used it for --ttl,
    or until `taskscaler stop KEY`. `taskscaler leases` lists such slots.

    Ctrl-C and SIGTERM reach COMMAND here, and end it with --remote; while it waits for a slot, they end the wait. A
    command that was started with -d runs on, whatever happens here.
    """
    for given, name, why in (
        (stdin, "--stdin", "a command here reads standard input anyway"),
        (sync, "--sync", "a command here has the working tree anyway"),
        (detach, "-d", "use nohup, tmux or systemd-run to leave a command running here"),
    ):
        if given and not remote:
            raise click.UsageError(f"{name} needs --remote; {why}")
    for bound, name in ((ttl, "--ttl"), (idle_timeout, "--idle-timeout")):
        if bound is not None and not (keep or detach):
            raise click.UsageError(f"{name} needs --keep or -d; without them the slot goes back with COMMAND")
    from taskscaler.cli._lease import Wish, run_leased

    wish = Wish(
        command=command[0] if len(command) == 1 else command,
        key=key,
        timeout=timeout,
        there=remote,
        stdin=stdin,
        sync=sync,
        leave=detach,
        keep=keep,
        ttl=ttl,
        idle_timeout=idle_timeout,
    )
    sys.exit(run_leased(wish, socket))


@commands.command(
    epilog="Exit status: the command's own, 128 plus the number of the signal that ended it or this, 254 if its slot "
    "was lost, 255 if there is no such command or it cannot be reached, 2 if the arguments are wrong.",
    short_help="Follow a command that was left running in a lease.",
)
@click.argument("key", metavar="KEY")
@click.option(
    "--offset",
    metavar="BYTES",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Bytes of the output that are not printed again.",
)
@SOCKET
def attach(key: str, offset: int, *, socket: "Place | None") -> None:
    """Print the output of the command that `taskscaler lease -d` has left running under KEY, until it ends.

    Its standard output and standard error come as one stream. When it has ended, the slot is given back, unless it was
    to be kept (--keep). Ctrl-C leaves the command running; `taskscaler stop KEY` ends it.
    """
    from taskscaler.cli import _kept

    sys.exit(_kept.attach(key, socket, offset=offset))


@commands.command(epilog=DAEMON_EPILOG, short_help="End a lease that is kept, and the command in it.")
@click.argument("key", metavar="KEY")
@SOCKET
@JSON
def stop(key: str, *, socket: "Place | None", as_json: bool) -> None:
    """End the lease that is kept under KEY: the command in it, its files on the instance, and the slot goes back.

    A command that uses the lease, here or attached to it, is ended, too.
    """
    from taskscaler.cli import _kept

    sys.exit(_kept.stop(key, socket, as_json=as_json))


@commands.command(epilog=DAEMON_EPILOG, short_help="List the leases of a daemon.")
@SOCKET
@JSON
def leases(socket: "Place | None", *, as_json: bool) -> None:
    """List leases and who has them. The daemon's own user sees all of them, other users see their own."""
    from taskscaler.cli import _kept

    sys.exit(_kept.list_leases(socket, as_json=as_json))
