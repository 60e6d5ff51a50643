"""What connections of all protocols have in common: where output goes, and what a command that fails raises."""

import shlex
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, final

from attrs import evolve, field, frozen

from fleeting._arguments import as_given
from fleeting._arguments import check as check_argument
from fleeting._errors import CommandFailed, Unsupported
from fleeting._protocols import Sink, Source
from fleeting._types import Completed
from fleeting.connectors._collect import Collector

if TYPE_CHECKING:
    from anyio.abc import ByteStream


@frozen(kw_only=True)
class Invocation:
    """What a caller of `Connection.run` asks for, with nothing left out: each field is explained there."""

    command: str | Sequence[str]
    """A shell command line, or a program and its arguments."""

    stdin: Source | None = field(repr=False)
    """`arriving` makes chunks of either kind."""

    stdout: Sink
    """Gets the output as it arrives; so does *stderr*."""

    stderr: Sink
    """Gets the error output as it arrives."""

    env: Mapping[str, str] = field(repr=False)
    """Not shown in messages: people put tokens here."""

    cwd: str | None
    """Working directory, absolute; None: the instance's own default."""


class BaseConnection(ABC):
    """A `Connection` whose subclass performs commands, waits for its end, and opens tunnels if its protocol has any."""

    __slots__ = ()

    protocol: ClassVar[str]
    """What people call it, for messages."""

    @final
    async def run(
        self,
        command: str | Sequence[str],
        *,
        stdin: Source | None = None,
        stdout: Sink | None = None,
        stderr: Sink | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        check: bool = False,
    ) -> Completed:
        """Run a command, as `Connection.run` says."""
        if not isinstance(command, str | Sequence):
            raise TypeError(f"command: expected a string or a sequence of strings, found {as_given(command)}")
        check_argument("command", command, str if isinstance(command, str) else Sequence[str])
        check_argument("env", env, Mapping[str, str] | None, secret=True)
        check_argument("cwd", cwd, str | None)
        check_argument("check", check, bool)
        out, err = Collector("stdout"), Collector("stderr")
        ended = await self.perform(
            Invocation(command=command, stdin=stdin, stdout=stdout or out, stderr=stderr or err, env=env or {}, cwd=cwd)
        )
        completed = evolve(ended, stdout=bytes(out.data), stderr=bytes(err.data))
        if check and not completed.ok:
            raise CommandFailed(self.display(command), completed)
        return completed

    @final
    async def put(self, source: str | PathLike[str], target: str) -> None:
        """Copy to the instance, as `Connection.put` says."""
        from fleeting.connectors._files import put

        await put(self, Path(source), target)

    @final
    async def get(self, source: str, target: str | PathLike[str]) -> None:
        """Copy from the instance, as `Connection.get` says."""
        from fleeting.connectors._files import get

        await get(self, source, Path(target), into=str(target).endswith("/"))

    @abstractmethod
    async def perform(self, invocation: Invocation) -> Completed:
        """Run a command as `Connection.run` says; return how it ended, and no output, which goes to the sinks."""

    @staticmethod
    def display(command: str | Sequence[str]) -> str:
        """Show a command on one line, for messages."""
        return command if isinstance(command, str) else shlex.join(command)

    async def open_unix(self, path: str) -> "ByteStream":
        """Refuse: the protocol has no tunnels unless the subclass opens them."""
        raise self._no_tunnel(path)

    async def open_tcp(self, host: str, port: int) -> "ByteStream":
        """Refuse: the protocol has no tunnels unless the subclass opens them."""
        raise self._no_tunnel(f"{host} port {port}")

    @abstractmethod
    async def wait_closed(self) -> str:
        """Wait until the connection is dead, as `Connection.wait_closed` says; returns why."""

    def _no_tunnel(self, target: str) -> Unsupported:
        return Unsupported(f"{self.protocol} does not support tunnels, so {target} cannot be reached; use SSH")
