"""The shells of one user on one host.

A host allows a user so many shells, 30 by default, and a shell belongs to one environment and one directory. One that
has done its work is used again for the same; one of another kind makes room where none is left. Who comes when all are
in use waits for his turn.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from random import uniform

import anyio
from attrs import define, field

from fleeting._errors import ConnectError, Unreachable
from fleeting.connectors.winrm._calls import Calls
from fleeting.connectors.winrm._command import Line, Place
from fleeting.connectors.winrm._faults import OPERATION_QUOTA, SHELL_GONE, SHELL_QUOTA, Fault, OperationTimeout, refused

SHELLS = 25
"""How many we ask a host for: Windows allows a user 25 or 30, by its release, and some are somebody else's."""

USES = 50
"""Commands that a shell may run: what all shells of a user have done counts toward a quota of 1500 while they last."""

QUOTA_PATIENCE = 60.0
"""Seconds to wait for a shell while none is ours, and the host allows no other."""

LONGEST_PAUSE = 2.0
"""Seconds between looks whether the host allows another."""

END_TIMEOUT = 8.0
"""Seconds for the end of a command or of a shell."""

SUSPECT_TIMEOUT = 2.0
"""The same where the last that was heard of the host is that it does not answer."""

IDLE_TIMEOUT = 900
"""Seconds of silence after which the host itself ends a shell: what a manager that was killed has left."""

UTF8 = 65001
"""The code page."""


@define(eq=False)
class Shell:
    """A shell on the host."""

    id: str
    place: Place
    uses: int = 0


@define(eq=False)
class Shells:
    """All that we have there."""

    calls: Calls
    limit: int = SHELLS
    users: int = field(default=0, init=False)
    """How many connections share them."""

    _turns: anyio.Semaphore = field(init=False)
    """Held while a shell is used."""

    _idle: list[Shell] = field(factory=list, init=False)
    _opened: int = field(default=0, init=False)
    _changed: anyio.Event = field(factory=anyio.Event, init=False)
    """Set when a shell was given back or is gone."""

    @_turns.default
    def _make_turns(self) -> anyio.Semaphore:
        return anyio.Semaphore(self.limit)

    @asynccontextmanager
    async def started(self, line: Line) -> AsyncIterator[tuple[Shell, str]]:
        """Start a command; yields its shell and its id. On leaving the shell is kept, if the command has ended well.

        Raises:
            Fault: The host could not start it.
        """
        async with self._turns:
            shell, command = await self._start(line)
            try:
                yield shell, command
                is_well = await self._end_command(shell, command)
            except BaseException:
                with anyio.move_on_after(self._patience, shield=True):
                    await self._end_command(shell, command)
                    await self._delete(shell)
                raise
            if is_well and shell.uses < USES:
                self._give_back(shell)
            else:
                await self._delete(shell)

    async def warm_up(self) -> None:
        """Have one ready: whoever gets that is let in. A quota is no reason to turn away."""
        with suppress(_Exhausted):
            self._idle.append(await self._open(Place()))

    async def close(self) -> None:
        """End all; those in use are ended by who uses them."""
        async with anyio.create_task_group() as tasks:
            for shell in self._idle:
                tasks.start_soon(self._delete, shell)
            self._idle.clear()

    @property
    def _patience(self) -> float:
        """Seconds for the end of what was started; a host that cannot be reached is not worth many."""
        return min(END_TIMEOUT, SUSPECT_TIMEOUT) if self.calls.is_suspect else END_TIMEOUT

    async def _start(self, line: Line) -> tuple[Shell, str]:
        """Start it in a shell; in a new one, if there is something wrong with one that was used before."""
        while True:
            shell = await self._take(line.place)
            try:
                return shell, await self._command(shell, line)
            except Fault as fault:
                if shell.uses == 0 or fault.code not in (SHELL_GONE, OPERATION_QUOTA):
                    self._give_back(shell)
                    raise
                await self._delete(shell)

    async def _command(self, shell: Shell, line: Line) -> str:
        """Send the command. If that fails, nobody knows whether it runs, so its shell goes, with all that is in it."""
        try:
            command = await self.calls(
                lambda protocol: protocol.run_command(
                    shell.id,
                    line.command,
                    [line.arguments] if line.arguments else [],
                    console_mode_stdin=False,
                    skip_cmd_shell=not line.by_shell,
                )
            )
        except Fault:
            raise
        except BaseException as error:
            with anyio.move_on_after(self._patience, shield=True):
                await self._delete(shell)
            if isinstance(error, OperationTimeout):
                raise Unreachable(f"{self.calls.host} did not confirm that the command started; it may have") from error
            raise
        shell.uses += 1
        return command

    async def _take(self, place: Place) -> Shell:
        for shell in reversed(self._idle):
            if shell.place == place:
                self._idle.remove(shell)
                return shell
        if self._opened >= self.limit:
            await self._delete(self._idle.pop(0))
        return await self._open_in_time(place)

    async def _open_in_time(self, place: Place) -> Shell:
        """Open one, waiting for others to end theirs where the host allows no more."""
        pause, deadline = 0.1, anyio.current_time() + QUOTA_PATIENCE
        while True:
            try:
                return await self._open(place)
            except _Exhausted as exhausted:
                if self._idle:
                    await self._delete(self._idle.pop(0))
                    continue
                if self._opened:
                    deadline = anyio.current_time() + QUOTA_PATIENCE
                elif anyio.current_time() >= deadline:
                    raise ConnectError(str(exhausted)) from exhausted
            with anyio.move_on_after(pause * uniform(0.5, 1.0)):  # noqa: S311  (spreads attempts, keeps no secret)
                await self._changed.wait()
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _open(self, place: Place) -> Shell:
        """Ask for a shell. One that comes for somebody who was cancelled meanwhile is ended at once."""
        made: list[str] = []
        self._opened += 1
        try:
            await self.calls(
                lambda protocol: made.append(
                    protocol.open_shell(
                        working_directory=place.cwd,
                        env_vars=dict(place.env),
                        codepage=UTF8,
                        idle_timeout=f"PT{IDLE_TIMEOUT}S",
                    )
                ),
                grace=END_TIMEOUT,
            )
            return Shell(made[0], place)
        except BaseException as error:
            if made:
                with anyio.move_on_after(END_TIMEOUT, shield=True):
                    await self._delete(Shell(made[0], place))
            else:
                self._opened -= 1
            match error:
                case Fault(code=code) if code in (SHELL_QUOTA, OPERATION_QUOTA):
                    raise _Exhausted(f"{self.calls.host} allows no more shells: {error.reason}") from error
                case Fault() if place == Place() or error.exit_status is None:
                    raise refused(error, self.calls.host) from error
                case OperationTimeout():
                    raise Unreachable(f"{self.calls.host} did not open a shell in time") from error
            raise

    def _give_back(self, shell: Shell) -> None:
        self._idle.append(shell)
        self._note_change()

    async def _end_command(self, shell: Shell, command: str) -> bool:
        """End it if it runs; else only let the host forget it. Returns whether that was answered."""
        with anyio.move_on_after(self._patience / 2), suppress(OperationTimeout, ConnectError):
            with suppress(Fault):  # it is not there any more
                await self.calls(lambda protocol: protocol.cleanup_command(shell.id, command))
            return True
        return False

    async def _delete(self, shell: Shell) -> None:
        """End a shell, and what runs in it; what cannot be ended is left to the host."""
        try:
            with anyio.move_on_after(self._patience / 2), suppress(Fault, OperationTimeout, ConnectError):
                await self.calls(lambda protocol: protocol.close_shell(shell.id, close_session=False))
        finally:
            self._opened -= 1
            self._note_change()

    def _note_change(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()


class _Exhausted(Exception):
    """The host allows this user no more shells; says so."""
