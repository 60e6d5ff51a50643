"""A connection to an instance of the fake cloud; lives no longer than the instance does."""

import anyio

from fleeting._errors import Unreachable
from fleeting._types import Completed
from fleeting.connectors import BaseConnection, Invocation
from fleeting.testing._cloud import FakeCloud
from fleeting.testing._machine import Command, Machine


class FakeConnection(BaseConnection):
    """What `FakeGroup.dial` gives: commands are played by `FakeCloud.obey`; there are no tunnels."""

    protocol = "the fake protocol"

    def __init__(self, cloud: FakeCloud, machine: Machine) -> None:
        """Connect to an instance that exists."""
        self._cloud = cloud
        self._machine = machine
        self._cuts = machine.cuts
        self._left = False

    def close(self) -> None:
        """End it from this side, with every command that runs over it."""
        self._left = True
        self._cloud.notify()

    async def perform(self, invocation: Invocation) -> Completed:
        """Play a command."""
        stdin = invocation.stdin
        read = stdin if isinstance(stdin, bytes | None) else b"".join([chunk async for chunk in stdin])
        command = Command(command=invocation.command, stdin=read, env=invocation.env, cwd=invocation.cwd)
        completed = await self._play(command)
        await invocation.stdout(completed.stdout)
        await invocation.stderr(completed.stderr)
        return completed

    async def wait_closed(self) -> str:
        """Wait until the instance is gone, or the connection was cut or closed; returns which."""
        while not (why := self._why_closed()):
            await self._cloud.wait_change(until=self._machine.gone_at)
        return why

    def _why_closed(self) -> str:
        """Empty while it is open."""
        if not self._machine.exists(self._cloud.now):
            return f"instance {self._machine.id} is gone"
        if self._machine.cuts != self._cuts:
            return "the connection was cut"
        return "the connection was closed" if self._left else ""

    async def _play(self, command: Command) -> Completed:
        """Run the command for as long as the connection lives."""
        self._check_open()
        self._cloud.commands.append((self._machine.id, command))
        outcome: Completed | Exception | None = None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._cancel_when_closed, tasks.cancel_scope)
            try:
                outcome = await self._cloud.obey(self._machine.id, command)
            except Exception as error:  # noqa: BLE001  (raised below: the task group would wrap it)
                outcome = error
            tasks.cancel_scope.cancel()
        if outcome is None:
            self._check_open()
            raise Unreachable(f"the command on {self._machine.id} was cancelled from within")
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def _cancel_when_closed(self, scope: anyio.CancelScope) -> None:
        await self.wait_closed()
        scope.cancel()

    def _check_open(self) -> None:
        if why := self._why_closed():
            raise Unreachable(why)
