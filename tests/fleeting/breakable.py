"""A connection of each kind, for what all of them do alike."""

import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from attrs import frozen

from fleeting import Connection
from fleeting.connectors import OpensTerminals, Terminal
from tests.fleeting import local_agents, sshd
from tests.fleeting.local_agents import agent_of, opened, started

KINDS = "local", "ssh"


@frozen
class Breakable:
    """A connection, and how to lose it."""

    connection: Connection
    lose: Callable[[], None]

    @asynccontextmanager
    async def terminal(self, command: str | list[str] | None, *, term: str = "xterm") -> AsyncIterator[Terminal]:
        """Open a terminal of 100 columns and 40 rows."""
        assert isinstance(self.connection, OpensTerminals)
        async with self.connection.open_terminal(command, term=term, columns=100, rows=40) as terminal:
            yield terminal


@asynccontextmanager
async def connected(kind: str, directory: Path) -> AsyncIterator[Breakable]:
    """Connect to an instance of one's own."""
    if kind == "local":
        async with opened(directory) as group:
            (instance,) = await started(group)
            agent = agent_of(directory, instance)
            async with local_agents.dialled(group, instance) as connection:
                yield Breakable(connection, lambda: os.kill(agent, signal.SIGKILL))
    else:
        with sshd.sshd(directory / "sshd") as server:
            async with sshd.dialled(server.info) as connection:
                yield Breakable(connection, lambda: server.signal(signal.SIGKILL))
