"""Agents that tests start by hand, and what they ask of services that run steps."""

import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
from anyio.abc import ByteStream, Process
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from attrs import define

from fleeting import Connection
from fleeting.connectors import RunsDetached
from job_steps._zipapp import zipapp
from job_steps.client import StepRunnerClient, step_runner


def place(home: Path) -> None:
    """Leave what `place_agent` leaves on an instance with this Python, which compiles it: a second each time."""
    placed = zipapp()
    directory = home / placed.name
    directory.mkdir(parents=True)
    (directory / "agent.pyz").write_bytes(placed.data)
    (directory / "python").write_text(f"{sys.executable}\n")
    subprocess.run([sys.executable, directory / "agent.pyz", "check"], check=True)


@asynccontextmanager
async def agent(
    placed: Path, directory: Path, *, files: int | None = None, options: Sequence[str] = ()
) -> AsyncIterator[tuple[Process, StepRunnerClient]]:
    """An agent of what was placed, with its own directory, with options, and with as many open files as it may have."""
    limit = f"ulimit -n {files} || exit; " if files else ""
    started = (sys.executable, f"{placed}/{zipapp().name}/agent.pyz", "serve", str(directory), *options)
    command = ("/bin/sh", "-c", f'{limit}exec "$@"', "sh", *started)
    async with await anyio.open_process(command, stderr=None) as process:
        assert process.stdout is not None
        said = await process.stdout.receive()
        try:
            async with step_runner(await anyio.connect_unix(said.split()[1].decode())) as client:
                yield process, client
        finally:
            with suppress(ProcessLookupError):
                process.terminate()


async def end_agents(connection: Connection) -> None:
    """End what was started on an instance to outlive whoever is connected, which would wait an hour for more to do."""
    assert isinstance(connection, RunsDetached)
    for command in await connection.list_detached():
        await connection.kill(command.name)


async def log_of(client: StepRunnerClient, job: str, offset: int = 0) -> bytes:
    """Follow a job to its end."""
    return b"".join([piece async for piece in client.follow_logs(job, offset)])


async def log_until(client: StepRunnerClient, job: str, text: bytes) -> bytes:
    """Follow a job until it has written something; returns all by then."""
    heard = b""
    async for piece in client.follow_logs(job):
        heard += piece
        if text in heard:
            break
    return heard


@define(eq=False)
class MemoryStream(ByteStream):
    """One end of a connection in memory."""

    incoming: MemoryObjectReceiveStream[bytes]
    outgoing: MemoryObjectSendStream[bytes]

    async def send(self, item: bytes) -> None:
        """Send bytes."""
        await self.outgoing.send(item)

    async def receive(self, max_bytes: int = 65536) -> bytes:
        """Receive what was sent at once."""
        return await self.incoming.receive()

    async def send_eof(self) -> None:
        """Send nothing any more."""
        self.outgoing.close()

    async def aclose(self) -> None:
        """End it."""
        self.outgoing.close()
        self.incoming.close()


def memory_streams() -> tuple[MemoryStream, MemoryStream]:
    """Make a connection in memory; returns its ends."""
    to_one, from_other = anyio.create_memory_object_stream[bytes](100)
    to_other, from_one = anyio.create_memory_object_stream[bytes](100)
    return MemoryStream(from_one, to_one), MemoryStream(from_other, to_other)
