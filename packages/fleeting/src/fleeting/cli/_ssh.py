"""``fleeting ssh``: our terminal becomes one on an instance, for as long as a command runs in it."""

import os
import signal
import sys
import termios
import tty
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import anyio
from anyio import CancelScope
from attrs import define, field

from fleeting._errors import Unsupported
from fleeting._protocols import Connection, OpensTerminals, Terminal
from fleeting.cli._commandline import SIGNALLED
from fleeting.cli._group import OpenGroup
from fleeting.cli._standard import Arriving, passed_on
from fleeting.cli.streaming import run_through, status_of

STDIN, STDOUT = 0, 1

LOGIN_SHELL = 'exec "${SHELL:-/bin/sh}" -l'
"""What reads its commands where there is no terminal."""


async def open_shell(group: OpenGroup, *, instance: str, command: str | Sequence[str] | None) -> int:
    """Open the terminal, and return what the command in it exited with."""
    info = await group.connect_info(instance)
    async with group.driver.calls.dial(info) as connection:
        if os.isatty(STDIN) and os.isatty(STDOUT):
            return await _in_terminal(connection, command, instance)
        return await run_through(connection, LOGIN_SHELL if command is None else command, Arriving(STDIN))


async def _in_terminal(connection: Connection, command: str | Sequence[str] | None, instance: str) -> int:
    if not isinstance(connection, OpensTerminals):
        raise Unsupported(f"the connector for {instance} opens no terminals; use fleeting run")
    columns, rows = os.get_terminal_size(STDIN)
    term = os.environ.get("TERM", "dumb")
    async with connection.open_terminal(command, term=term, columns=columns, rows=rows) as terminal:
        with _raw(STDIN):
            return await _Window(terminal).attend()


@define(eq=False)
class _Window:
    """Our terminal, in front of one on an instance."""

    _terminal: Terminal
    _open: CancelScope = field(factory=CancelScope, init=False)

    async def attend(self) -> int:
        """Show and type until the command ends, or the terminal goes away."""
        async with anyio.create_task_group() as tasks:
            with self._open, passed_on(sys.stdout.buffer) as show:
                tasks.start_soon(self._type)
                await tasks.start(self._heed_resizing)
                while data := await self._terminal.receive():
                    await show(data)
            tasks.cancel_scope.cancel()
        if self._open.cancelled_caught:
            return SIGNALLED + signal.SIGHUP
        return status_of(await self._terminal.wait())

    async def _type(self) -> None:
        """Pass on the keys; a terminal that gives no more of them has gone away."""
        with suppress(OSError):
            async for keys in Arriving(STDIN):
                await self._terminal.send(keys)
        self._open.cancel()

    async def _heed_resizing(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        with anyio.open_signal_receiver(signal.SIGWINCH) as signals:
            task_status.started()
            async for _ in signals:
                await self._terminal.resize(*os.get_terminal_size(STDIN))


@contextmanager
def _raw(descriptor: int) -> Iterator[None]:
    """Have every key come as it is, and nothing done about it here, for as long as the context is open."""
    before = termios.tcgetattr(descriptor)
    tty.setraw(descriptor, termios.TCSADRAIN)  # what was typed already is kept
    try:
        yield
    finally:
        with suppress(termios.error):  # the terminal has gone away
            termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
