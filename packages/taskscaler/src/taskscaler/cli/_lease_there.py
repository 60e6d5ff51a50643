"""A command on the instance of a lease: at once, or left running there and followed later."""

import shlex
import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import anyio
from attrs import define, frozen

from fleeting import ConnectError, Connection, Unreachable, Unsupported
from fleeting.cli import SIGNALLED
from fleeting.cli.streaming import Arriving, passed_on, run_through, status_of
from fleeting.connectors import RunsDetached, Sink
from fleeting.errors import NameTaken, NameUnknown
from taskscaler._left_there import (
    command_name,
    directory_of,
    end_registered,
    is_posix,
    is_running,
    registering,
    remove_directory,
)
from taskscaler.cli._bring_along import bring, find_tree
from taskscaler.cli._work_tree import WorkTree

if TYPE_CHECKING:
    from taskscaler import Lease
    from taskscaler._wire import KeptFacts

PAUSES: Final = (0.0, 1.0, 3.0)
"""Seconds to wait before a command is attached to again after the connection broke: it runs on meanwhile."""


@frozen(kw_only=True)
class There:
    """A lease's place on its instance."""

    lease: "Lease"
    kept: "KeptFacts | None"
    """How it is kept beyond this process; None: not at all, so nothing may be left there."""

    again: bool
    """Whether it was used before."""

    async def run(self, command: str | Sequence[str], stdin: Arriving | None, tree: WorkTree | None) -> int:
        """Run a command whose outputs are ours; returns the exit status.

        Should this process be killed, the daemon ends the command, if the lease is kept.
        """
        async with self.lease.dial() as connection:
            if self.kept is None:
                return await run_through(connection, command, stdin)
            await self._end_left(connection)
            cwd = await self._directory(connection, tree)
            if not is_posix(connection):
                return await run_through(connection, command, stdin)
            return await run_through(connection, registering(self._name, command, cwd), stdin)

    async def end_left(self) -> None:
        """End what a command that was killed here has left running there."""
        async with self.lease.dial() as connection:
            await self._end_left(connection)

    async def clean_up(self) -> None:
        """Leave nothing of a command that has ended, where nothing else was left."""
        async with self.lease.dial() as connection:
            await remove_directory(connection, self._name)

    async def start(self, command: str | Sequence[str], stdin: Arriving | None, tree: WorkTree | None) -> None:
        """Start a command that runs on when this process has ended.

        Raises:
            ConnectError: It could not be started, or one runs already.
            Unsupported: The instance cannot do that.
        """
        async with self.lease.dial() as connection:
            detached = _detached(connection, self.lease)
            name = command_name(self._name)
            await self._end_left(connection)
            if self.again:
                if await is_running(connection, self._name):
                    key = shlex.quote(self.lease.key)
                    hint = f"`taskscaler attach {key}` follows it, `taskscaler stop {key}` ends it"
                    raise ConnectError(f"a command runs in {self.lease.key} already; {hint}")
                await detached.forget(name)
            cwd = await self._directory(connection, tree)
            try:
                await detached.start(name, command, stdin=stdin, cwd=cwd)
            except NameTaken as error:
                raise ConnectError(f"a command was left in {self.lease.key} meanwhile; attach to that") from error

    async def follow(self, offset: int) -> int:
        """Pass the output of the command that was left there on to ours, to its end; returns its exit status.

        Args:
            offset: How many bytes not to pass on.

        Raises:
            ConnectError: No command was left there, or nobody knows how it ended.
            Unreachable: The connection broke again and again.
        """
        try:
            with passed_on(sys.stdout.buffer) as out:
                return await self._follow(_Counted(out, offset))
        except BrokenPipeError:
            return SIGNALLED + signal.SIGPIPE

    async def _follow(self, output: "_Counted") -> int:
        name = command_name(self._name)
        for pause in (*PAUSES, None):
            try:
                async with self.lease.dial() as connection:
                    completed = await _detached(connection, self.lease).attach(name, offset=output.size, output=output)
            except NameUnknown as error:
                hint = f"start one with `taskscaler lease -d --remote --key {shlex.quote(self.lease.key)} -- COMMAND`"
                raise ConnectError(f"no command was left running in {self.lease.key}; {hint}") from error
            except Unreachable:
                if pause is None:
                    raise
                await anyio.sleep(pause)
            else:
                if completed.cut:
                    print(  # noqa: T201  (for who reads)
                        f"taskscaler attach: {completed.cut} bytes of its output were not kept on the instance",
                        file=sys.stderr,
                    )
                return status_of(completed)
        raise AssertionError("the last try raises")

    @property
    def _name(self) -> str:
        if self.kept is None:
            raise AssertionError("nothing is left there by a lease that is not kept")
        return self.kept.name

    async def _end_left(self, connection: Connection) -> None:
        if self.again and is_posix(connection):
            await end_registered(connection, self._name)

    async def _directory(self, connection: Connection, tree: WorkTree | None) -> str | None:
        """Where the command runs: in the tree that is brought, or was before; None: where commands start."""
        if tree is not None:
            return await bring(connection, tree, directory_of(self._name), again=self.again)
        return await find_tree(connection, directory_of(self._name)) if self.again and self.kept else None


@define
class _Counted:
    """Passes output on, and knows how much there was."""

    _output: Sink
    size: int

    async def __call__(self, chunk: bytes) -> None:
        """Pass it on."""
        await self._output(chunk)
        self.size += len(chunk)


def _detached(connection: Connection, lease: "Lease") -> RunsDetached:
    """Give what can leave commands running.

    Raises:
        Unsupported: The instance cannot.
    """
    if isinstance(connection, RunsDetached):
        return connection
    raise Unsupported(f"{lease.instance} cannot run commands that outlive the connection; run it without -d")
