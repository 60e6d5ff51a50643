"""An instance that is a directory of this machine, for what needs a shell and tar and nothing else."""

from pathlib import Path
from typing import NoReturn

import anyio

from fleeting import Completed
from fleeting.connectors import BaseConnection, Invocation, arriving


class Here(BaseConnection):
    """A connection to it."""

    protocol = "none"

    def __init__(self, home: Path) -> None:
        """Have commands start in a directory."""
        self._home = home

    async def perform(self, invocation: Invocation) -> Completed:
        """Run a command, once all of its input is there."""
        read = b"".join([chunk async for chunk in arriving(invocation.stdin)]) if invocation.stdin is not None else b""
        cwd = invocation.cwd or self._home
        done = await anyio.run_process(invocation.command, input=read, check=False, cwd=cwd)
        await invocation.stdout(done.stdout)
        await invocation.stderr(done.stderr)
        return Completed(exit_status=done.returncode)

    async def wait_closed(self) -> NoReturn:
        """It never is."""
        while True:
            await anyio.sleep_forever()
