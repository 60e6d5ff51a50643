"""Instances that run detached commands, for tests, with where they keep them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from fleeting.connectors import PosixConnection
from tests.fleeting import local_agents
from tests.fleeting.sshd import dialled, sshd


@asynccontextmanager
async def connected(directory: Path) -> AsyncIterator[tuple[PosixConnection, Path]]:
    """Connect to an instance; returns where its commands are kept, too."""
    async with local_agents.connected(directory) as connection:
        assert isinstance(connection, PosixConnection)
        yield connection, Path(connection.detached_directory)


@asynccontextmanager
async def connected_over_ssh(directory: Path, *variables: str) -> AsyncIterator[tuple[PosixConnection, Path]]:
    """The same over SSH, where nobody but the shells there ends anything, with more variables."""
    home = directory / "home"
    home.mkdir()
    with sshd(directory / "sshd", f"SetEnv {' '.join([f'HOME={home} SHLVL=5', *variables])}") as server:
        async with dialled(server.info) as connection:
            assert isinstance(connection, PosixConnection)
            yield connection, home / ".fleeting" / "detached"


async def ignore(_: bytes) -> None:
    """Take output."""


async def begun(connection: PosixConnection, name: str) -> int:
    """Start a command that runs on, and return its process id once it has one."""
    await connection.start(name, "echo $$; exec sleep 1000")
    heard = b""
    with anyio.CancelScope() as scope:

        async def hear(chunk: bytes) -> None:
            nonlocal heard
            heard += chunk
            if heard.endswith(b"\n"):
                scope.cancel()

        await connection.attach(name, output=hear)
    return int(heard)


async def lines_of(path: Path, count: int) -> list[str]:
    """Wait for so many lines of a file."""
    file, text = anyio.Path(path), ""
    while text.count("\n") < count:
        await anyio.sleep(local_agents.POLL)
        text = await file.read_text()
    return text.splitlines()
