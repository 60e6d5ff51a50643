"""What a lease gets: its use of a host."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import anyio
from attrs import define, field

from fleeting._durations import format_duration
from fleeting._errors import ConnectError, Unreachable
from fleeting._types import Completed, ConnectorConfig
from fleeting.connectors._base import BaseConnection, Invocation
from fleeting.connectors.winrm._command import compose, display
from fleeting.connectors.winrm._faults import Fault, refused
from fleeting.connectors.winrm._run import Running
from fleeting.connectors.winrm._shells import Shells


@define(eq=False)
class WinrmConnection(BaseConnection):
    """One user's view of a host. There is no standing connection: it is closed when we say so, or the host is dead."""

    protocol = "WinRM"
    display = staticmethod(display)

    _shells: Shells
    _why_closed: str = field(default="", init=False)
    _closed: anyio.Event = field(factory=anyio.Event, init=False)

    @property
    def os(self) -> str:
        """As `ReportsSystem.os`."""
        return "windows"

    async def perform(self, invocation: Invocation) -> Completed:
        """Run a command; a string is run by cmd.exe. No signal ever ends one."""
        self._check_open()
        line = compose(invocation.command, env=invocation.env, cwd=invocation.cwd)
        try:
            async with self._shells.started(line) as (shell, started):
                status = await Running(self._shells.calls, shell.id, started).attend(invocation)
        except Fault as fault:
            status = self._status_of(fault)
            await invocation.stderr(f"{fault.reason}\n".encode())
        return Completed(exit_status=status)

    async def wait_closed(self) -> str:
        """Wait until it is closed or the host is dead; returns which."""
        await self._closed.wait()
        return self._why_closed

    def close(self, why: str = "it was closed locally") -> None:
        """Use it no more; who waits for the end learns of it."""
        if not self._closed.is_set():
            self._why_closed = why
            self._closed.set()

    @asynccontextmanager
    async def supervised(self, config: ConnectorConfig) -> AsyncIterator[None]:
        """Find out while the context is open if the host dies; what is raised within comes out as it is."""
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._supervise, config.keepalive, config.keepalive_misses)
                yield
                tasks.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None

    async def _supervise(self, interval: float, misses: int) -> None:
        """Ask a host that was silent for a sign of life, and give it up if it stays so."""
        calls, asked_at = self._shells.calls, 0.0
        while anyio.current_time() < calls.heard_at + misses * interval:
            await anyio.sleep_until(max(calls.heard_at, asked_at) + interval)
            asked_at = anyio.current_time()
            if asked_at >= calls.heard_at + interval:
                with suppress(ConnectError), anyio.move_on_after(interval):
                    await calls.ask_for_schemes()
        self.close(f"the host was silent for {format_duration(misses * interval)}")
        calls.give_up()

    def _status_of(self, fault: Fault) -> int:
        """What a command has exited with that the host could not start.

        Raises:
            ConnectError: It is not to do with the command.
        """
        if fault.exit_status is None:
            raise refused(fault, self._shells.calls.host) from fault
        return fault.exit_status

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise Unreachable(f"the connection to {self._shells.calls.host} is closed: {self._why_closed}")
