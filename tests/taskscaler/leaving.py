"""Instances of the fake cloud on which commands can be left running, as far as the daemon looks at them."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

import anyio
from attrs import define, field

from fleeting import Completed, ConnectInfo, ConnectorConfig
from fleeting.connectors import Detached, Sink, Source
from fleeting.testing import FakeCloud, FakeConnection, FakeGroup


@define
class Left:
    """What is left on all of them."""

    cloud: FakeCloud
    running: set[str] = field(factory=set)
    """Names of commands."""

    ended: set[str] = field(factory=set)
    forgotten: list[str] = field(factory=list)
    looks: int = 0
    """How often somebody has looked."""

    look_time: float = 0.0
    """Seconds that looking takes."""

    @asynccontextmanager
    async def dial(self, info: ConnectInfo, config: ConnectorConfig) -> AsyncIterator["LeavingConnection"]:
        """Connect, as `FakeGroup.dial` does."""
        async with FakeGroup(self.cloud).dial(info, config) as connection:
            yield LeavingConnection(self, connection)


class LeavingConnection(FakeConnection):
    """A `RunsDetached`, of which only what the daemon does is played."""

    def __init__(self, left: Left, connection: FakeConnection) -> None:
        """Be the same connection."""
        super().__init__(connection._cloud, connection._machine)
        self._left_there = left

    async def start(
        self,
        name: str,
        command: str | Sequence[str],
        *,
        stdin: Source | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        keep: int = 0,
    ) -> None:
        """Nobody does so here."""
        raise NotImplementedError

    async def attach(self, name: str, *, offset: int = 0, output: Sink) -> Completed:
        """Nobody does so here."""
        raise NotImplementedError

    async def list_detached(self) -> Sequence[Detached]:
        """Give those that run and those that have ended."""
        self._check_open()
        self._left_there.looks += 1
        await anyio.sleep(self._left_there.look_time)
        over = Completed(exit_status=0)
        left = self._left_there
        return [*map(_running, left.running), *(Detached(name=name, completed=over) for name in left.ended)]

    async def kill(self, name: str) -> None:
        """End it."""
        self._left_there.running.remove(name)
        self._left_there.ended.add(name)

    async def forget(self, name: str) -> None:
        """Remove it."""
        self._left_there.ended.remove(name)
        self._left_there.forgotten.append(name)


def _running(name: str) -> Detached:
    return Detached(name=name)
