"""``fleeting run``: one command on one instance, its output as it comes."""

import os
import signal
import sys
from collections.abc import Sequence
from typing import BinaryIO

from anyio import to_thread

from fleeting._protocols import Sink
from fleeting._types import Completed
from fleeting.cli._group import OpenGroup
from fleeting.commandline import SIGNALLED

UNABLE = 255
"""The exit status if the command could not be run, as ssh has it."""


async def run_on_instance(group: OpenGroup, *, instance: str, command: str | Sequence[str], stdin: bool) -> int:
    """Run it and return what it exited with."""
    fed = await to_thread.run_sync(sys.stdin.buffer.read) if stdin else None
    info = await group.connect_info(instance)
    out, err = _to(sys.stdout.buffer), _to(sys.stderr.buffer)
    try:
        async with group.driver.dial(info, group.driver.connector) as connection:
            return status_of(await connection.run(command, stdin=fed, stdout=out, stderr=err))
    except BrokenPipeError:
        return SIGNALLED + signal.SIGPIPE


def status_of(completed: Completed) -> int:
    """Tell a command's end as a shell does."""
    if completed.exit_status is not None:
        return completed.exit_status
    number = getattr(signal, completed.signal or "", signal.SIGTERM)
    return SIGNALLED + int(number)


def _to(stream: BinaryIO) -> Sink:
    """Pass bytes on as they are, no faster than they are taken."""

    def write(chunk: bytes) -> None:
        stream.write(chunk)
        stream.flush()

    async def sink(chunk: bytes) -> None:
        try:
            await to_thread.run_sync(write, chunk)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())  # else the interpreter's last flush fails
            raise

    return sink
