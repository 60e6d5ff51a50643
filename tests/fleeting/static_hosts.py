"""Hosts for the `static` group in tests: agents of a `local` group, which the `local` connector reaches."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from attrs import frozen

from fleeting import Connection, LoopClock, Settings, dial
from fleeting.groups.static import Host, StaticConfig, StaticGroup
from tests.fleeting import local_agents


@frozen
class Hosts:
    """Some machines, and the directory in which a group remembers who has them."""

    directory: Path
    agents: Sequence[str]

    @property
    def state_file(self) -> Path:
        """What the group remembers."""
        return self.directory / "state" / "default" / "hosts.json"

    def host(self, number: int, **settings: Any) -> Host:  # noqa: ANN401
        """One of them, as it is configured; numbers start at 1."""
        address = self.directory / "machines" / self.agents[number - 1] / "agent.sock"
        return Host(name=f"host-{number}", address=str(address), protocol="local", **settings)

    def config(self, **settings: Any) -> StaticConfig:  # noqa: ANN401
        """Settings for a group of all of them."""
        hosts = tuple(self.host(number + 1) for number in range(len(self.agents)))
        return StaticConfig(**{"hosts": hosts, "state_dir": str(self.directory / "state"), **settings})

    @asynccontextmanager
    async def opened(self, *, observe_only: bool = False, **settings: Any) -> AsyncIterator[StaticGroup]:  # noqa: ANN401
        """Open a group of them, and close it."""
        group = StaticGroup(self.config(**settings))
        await group.init(Settings(owner="test", clock=LoopClock(), observe_only=observe_only))
        try:
            yield group
        finally:
            await group.shutdown()

    def kill(self, number: int) -> None:
        """End a machine for good."""
        local_agents.kill(local_agents.agent_of(self.directory / "machines", self.agents[number - 1]))

    @asynccontextmanager
    async def on(self, number: int) -> AsyncIterator[Connection]:
        """Connect to one, past the group."""
        async with dial(self.host(number).info("test")) as connection:
            yield connection

    async def run(self, number: int, command: str) -> str:
        """Run a command on one, past the group."""
        async with self.on(number) as connection:
            return (await connection.run(command, check=True)).stdout.decode()


@asynccontextmanager
async def running(directory: Path, count: int) -> AsyncIterator[Hosts]:
    """Start so many machines, and leave none."""
    async with local_agents.opened(directory / "machines") as group:
        yield Hosts(directory, await local_agents.started(group, count))
