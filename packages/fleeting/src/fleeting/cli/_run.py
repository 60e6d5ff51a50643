"""``fleeting run``: one command on one instance, its output as it comes."""

import sys
from collections.abc import Sequence

from fleeting.cli._group import OpenGroup
from fleeting.cli.streaming import Arriving, run_through


async def run_on_instance(group: OpenGroup, *, instance: str, command: str | Sequence[str], stdin: bool) -> int:
    """Run it and return what it exited with."""
    info = await group.connect_info(instance)
    async with group.driver.calls.dial(info) as connection:
        return await run_through(connection, command, Arriving(sys.stdin.fileno()) if stdin else None)
