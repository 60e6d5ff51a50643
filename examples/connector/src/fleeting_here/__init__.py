"""A connector for the protocol `here`: an instance is a directory of this machine, and its address the path."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from signal import SIGKILL, Signals

import anyio
from anyio.abc import ByteReceiveStream, ByteSendStream, Process

from fleeting import Completed, ConnectInfo, ConnectorConfig, Unreachable, hookimpl
from fleeting.connectors import BaseConnection, Invocation, Sink, arriving, reading


@hookimpl
def fleeting_connector() -> "HereConnector":
    """Hand the connector to fleeting."""
    return HereConnector()


class HereConnector:
    """Speaks the protocol."""

    @asynccontextmanager
    async def dial(self, info: ConnectInfo, _: ConnectorConfig) -> AsyncIterator["HereConnection"]:
        """Make sure that the instance is there; at the end, wake those who wait for the connection to close."""
        if not await anyio.Path(info.internal_addr or "").is_dir():
            raise Unreachable(f"{info.id} has no directory {info.internal_addr}; make it, or correct the address")
        connection = HereConnection(str(info.internal_addr))
        try:
            yield connection
        finally:
            connection.closed.set()


class HereConnection(BaseConnection):
    """Runs commands; there are no tunnels, because a client that is here needs none."""

    protocol = "the protocol here"

    def __init__(self, directory: str) -> None:
        """Commands start in the directory."""
        self.directory = directory
        self.closed = anyio.Event()

    async def perform(self, invocation: Invocation) -> Completed:
        """Run a command in a process group of its own, which ends with it."""
        if self.closed.is_set():
            raise Unreachable("the connection is closed")
        command, cwd = invocation.command, invocation.cwd or self.directory
        argv = ["/bin/sh", "-c", command] if isinstance(command, str) else command
        try:
            env = {**os.environ, **invocation.env}
            process = await anyio.open_process(argv, cwd=cwd, env=env, start_new_session=True)
        except OSError as error:  # no error of the connection's: the command fails as it would in a shell
            await invocation.stderr(str(error).encode())
            return Completed(exit_status=127)
        status = await _attend(process, invocation)
        if status < 0:
            return Completed(exit_status=None, signal=Signals(-status).name)
        return Completed(exit_status=status)

    async def wait_closed(self) -> str:
        """Wait until it is closed; this machine does not end before us."""
        await self.closed.wait()
        return "it was closed locally"


async def _attend(process: Process, invocation: Invocation) -> int:
    """Feed and drain a process until it has ended, and with it its group; raises what a sink raises."""
    feeding = anyio.CancelScope()

    async def feed(pipe: ByteSendStream | None) -> None:
        if pipe is not None:
            with feeding, suppress(anyio.BrokenResourceError):  # a command need not read its input
                async with reading(arriving(invocation.stdin)) as chunks:
                    async for chunk in chunks:
                        await pipe.send(chunk)
            await pipe.aclose()

    async def pump(pipe: ByteReceiveStream | None, sink: Sink) -> None:
        if pipe is not None:
            async for chunk in pipe:
                await sink(chunk)

    try:
        async with process, anyio.create_task_group() as tasks:
            tasks.start_soon(feed, process.stdin)
            tasks.start_soon(pump, process.stdout, invocation.stdout)
            tasks.start_soon(pump, process.stderr, invocation.stderr)
            try:
                await process.wait()
            finally:  # also if it was cancelled, or a sink failed
                feeding.cancel()
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, SIGKILL)
    except ExceptionGroup as group:
        raise group.exceptions[0] from None
    return process.returncode or 0
