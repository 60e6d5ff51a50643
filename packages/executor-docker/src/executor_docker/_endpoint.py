"""How the daemon on an instance is reached, and what is wrong when nobody answers at its end."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial

import anyio
from anyio.abc import ByteStream, TaskGroup
from anyio.lowlevel import checkpoint
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from attrs import define, field

from executor_docker._config import DockerConfig
from executor_docker._errors import DockerError
from fleeting import ConnectError, Connection, Unreachable, Unsupported
from fleeting_docker_engine import Dial, Engine, EngineRefused, EngineUnreachable

_LOOK = """
[ -e "$1" ] || exit 3
[ -S "$1" ] || exit 4
[ -r "$1" ] && [ -w "$1" ] || exit 5
"""

_WRONG = {
    3: "there is no Docker daemon's socket {socket} on {instance}; start dockerd there, or set socket",
    4: "{socket} on {instance} is not a socket; set socket in [executors.docker]",
    5: "the user of the connection may not use {socket} on {instance}; make the user a member of its group (docker)",
    0: "the Docker daemon on {instance} is not running: nothing answers at {socket}; start it",
}
"""By the exit status of `_LOOK`."""


@asynccontextmanager
async def daemon(connection: Connection, config: DockerConfig, instance: str) -> AsyncIterator[Engine]:
    """Reach the daemon on an instance.

    Raises:
        DockerError: There is none that answers us, and why.
        Unreachable: The connection to the instance is dead.
    """
    async with _commands_on(connection, config) as commands:
        engine = Engine(partial(_either, partial(connection.open_unix, config.socket), commands.dial))
        try:
            await engine.__aenter__()
        except (EngineUnreachable, Unreachable) as error:
            if commands.failed:
                remedy = "install that command there, or set stdio_command"
                raise DockerError(
                    f"no way to reach the Docker daemon on {instance}: {commands.failed}; {remedy}"
                ) from error
            raise await _diagnosis(connection, config.socket, instance, error) from error
        except EngineRefused as error:
            raise DockerError(f"the Docker daemon on {instance} cannot be used: {error.message}") from error
        try:
            yield engine
        finally:
            await engine.aclose()


async def _diagnosis(connection: Connection, socket: str, instance: str, error: Exception) -> ConnectError:
    """Find out by looking at the socket; what `Connection.run` raises says that the instance itself is gone."""
    completed = await connection.run(("/bin/sh", "-c", _LOOK, "sh", socket))
    wrong = _WRONG.get(completed.exit_status if completed.exit_status is not None else -1)
    if wrong is None:
        return DockerError(f"the Docker daemon on {instance} cannot be reached: {error}")
    return DockerError(wrong.format(socket=socket, instance=instance))


@asynccontextmanager
async def _commands_on(connection: Connection, config: DockerConfig) -> AsyncIterator["_Commands"]:
    """Be ready to run commands, for connections that have no tunnels; what is raised meanwhile is raised as it is."""
    try:
        async with _Commands.running(connection, config) as commands:
            yield commands
    except BaseExceptionGroup as group:
        error = _only_one(group)
        raise error from error.__cause__


async def _either(dial: Dial, otherwise: Dial) -> ByteStream:
    try:
        return await dial()
    except Unsupported:
        return await otherwise()


def _only_one(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Take out what was raised from the group that tasks wrap it in."""
    error = group.exceptions[0]
    if len(group.exceptions) > 1:
        return group
    return _only_one(error) if isinstance(error, BaseExceptionGroup) else error


@define
class _Commands:
    """Opens streams that are the input and output of a command each."""

    _connection: Connection
    _command: Sequence[str]
    _tasks: TaskGroup
    failed: str = field(default="", init=False)
    """How the last command went wrong that did not end well by itself; empty if none did."""

    @classmethod
    @asynccontextmanager
    async def running(cls, connection: Connection, config: DockerConfig) -> AsyncIterator["_Commands"]:
        command = [part.replace("{socket}", config.socket) for part in config.stdio_command]
        async with anyio.create_task_group() as tasks:
            yield cls(connection, command, tasks)
            tasks.cancel_scope.cancel()

    async def dial(self) -> ByteStream:
        """Start the command."""
        up, down = anyio.create_memory_object_stream[bytes](), anyio.create_memory_object_stream[bytes]()
        scope = anyio.CancelScope()
        self._tasks.start_soon(self._run, scope, up[1], down[0])
        return _CommandStream(up[0], down[1], scope)

    async def _run(
        self,
        scope: anyio.CancelScope,
        up: MemoryObjectReceiveStream[bytes],
        down: MemoryObjectSendStream[bytes],
    ) -> None:
        with scope, up, down, suppress(ConnectError, anyio.BrokenResourceError):  # whoever reads notices the end
            completed = await self._connection.run(self._command, stdin=up, stdout=down.send)
            self.failed = "" if completed.ok else f"{self._command[0]} {completed.account}"


@define(eq=False)
class _CommandStream(ByteStream):
    """The input and output of a command that runs meanwhile."""

    _up: MemoryObjectSendStream[bytes]
    _down: MemoryObjectReceiveStream[bytes]
    _scope: anyio.CancelScope
    _rest: bytes = field(default=b"", init=False)

    async def receive(self, max_bytes: int = 65536) -> bytes:
        if self._rest:
            await checkpoint()
        data = self._rest or await self._down.receive()
        self._rest = data[max_bytes:]
        return data[:max_bytes]

    async def send(self, item: bytes) -> None:
        await self._up.send(item)

    async def send_eof(self) -> None:
        self._up.close()

    async def aclose(self) -> None:
        self._up.close()
        self._down.close()
        self._scope.cancel()
