"""What connections of all protocols have in common: where output goes, and what a command that fails raises."""

import shlex
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, final

from attrs import evolve

from fleeting._errors import CommandFailed, Unsupported
from fleeting._protocols import Sink, Source
from fleeting._types import Completed
from fleeting.connectors._collect import Collector

if TYPE_CHECKING:
    from anyio.abc import ByteStream


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
        out, err = Collector("stdout"), Collector("stderr")
        ended = await self.perform(
            command, stdin=stdin, stdout=stdout or out, stderr=stderr or err, env=env or {}, cwd=cwd
        )
        completed = evolve(ended, stdout=bytes(out.data), stderr=bytes(err.data))
        if check and not completed.ok:
            raise CommandFailed(self.display(command), completed)
        return completed

    @abstractmethod
    async def perform(
        self,
        command: str | Sequence[str],
        *,
        stdin: Source | None,
        stdout: Sink,
        stderr: Sink,
        env: Mapping[str, str],
        cwd: str | None,
    ) -> Completed:
        """Run a command as `Connection.run` says, with its output to the sinks; return how it ended, and no output."""

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
        return Unsupported(f"{self.protocol} has no tunnels, so {target} cannot be reached; use SSH for that")
