"""A command on an instance whose outputs, and input, are this process's."""

import signal
import sys
from collections.abc import Sequence

from fleeting._protocols import Connection, Source
from fleeting._types import Completed
from fleeting.cli._commandline import SIGNALLED
from fleeting.cli._standard import Arriving, passed_on

__all__ = ["UNABLE", "Arriving", "passed_on", "run_through", "status_of"]

UNABLE = 255
"""The exit status if the command could not be run, as ssh has it."""


async def run_through(
    connection: Connection, command: str | Sequence[str], stdin: Source | None, *, cwd: str | None = None
) -> int:
    """Run a command whose outputs are ours; the other arguments are those of `Connection.run`."""
    try:
        with passed_on(sys.stdout.buffer) as out, passed_on(sys.stderr.buffer) as err:
            return status_of(await connection.run(command, stdin=stdin, stdout=out, stderr=err, cwd=cwd))
    except BrokenPipeError:
        return SIGNALLED + signal.SIGPIPE


def status_of(completed: Completed) -> int:
    """Turn a command's end into an exit status as a shell does."""
    if completed.exit_status is not None:
        return completed.exit_status
    number = getattr(signal, completed.signal or "", signal.SIGTERM)
    return SIGNALLED + int(number)
