"""Connections and streams, for threads."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Self

import anyio
from anyio import to_thread
from attrs import frozen

import fleeting
from fleeting import Completed, connectors
from fleeting.plugins import format_duration

if TYPE_CHECKING:
    from anyio.abc import ByteStream

    from taskscaler.sync._lease import Lease

Sink = Callable[[bytes], object]
"""Takes output as it arrives, in order; called in a thread of its own, and the command waits for it."""


@frozen(eq=False)
class Connection:
    """An open way to one instance; `fleeting.Connection` for threads.

    What waits raises `LeaseLost` if the lease is lost meanwhile.
    """

    _connection: fleeting.Connection
    _lease: "Lease"

    def run(
        self,
        command: str | Sequence[str],
        *,
        stdin: bytes | None = None,
        stdout: Sink | None = None,
        stderr: Sink | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        check: bool = False,
        timeout: float | None = None,
    ) -> Completed:
        """Run a command and wait for it; an interrupt ends its whole process tree first.

        Arguments and errors are those of `fleeting.Connection.run`. *timeout* is how many seconds it may take, None:
        as long as it likes; then its process tree is ended, too.

        Raises:
            TimeoutError: It took longer than that.
        """
        out, err = _asynchronous(stdout), _asynchronous(stderr)
        run = partial(self._connection.run, stdin=stdin, stdout=out, stderr=err, env=env, cwd=cwd, check=check)

        async def bounded() -> Completed:
            with anyio.move_on_after(timeout):
                return await run(command)
            raise TimeoutError(f"the command took longer than {format_duration(timeout or 0.0)}, and was ended")

        return self._lease.call(bounded)

    def put(self, source: str | PathLike[str], target: str) -> None:
        """Copy a file or a directory to the instance. Arguments and errors are those of `fleeting.Connection.put`."""
        self._lease.call(self._connection.put, source, target)

    def get(self, source: str, target: str | PathLike[str]) -> None:
        """Copy one from the instance. Arguments and errors are those of `fleeting.Connection.get`."""
        self._lease.call(self._connection.get, source, target)

    def open_unix(self, path: str) -> "Stream":
        """Open a stream to a unix socket on the instance. Raises as `fleeting.Connection.open_unix`."""
        return Stream(self._lease.call(self._connection.open_unix, path), self._lease)

    def open_tcp(self, host: str, port: int) -> "Stream":
        """Open a stream to a TCP port as seen from the instance. Raises as `open_unix`."""
        return Stream(self._lease.call(self._connection.open_tcp, host, port), self._lease)

    @contextmanager
    def listen_tcp(self, host: str, port: int, *, patience: float = 0.0) -> Iterator["PortListener"]:
        """Listen at a TCP port of the instance, whose connections come to us, for as long as the context is open.

        Arguments and errors are those of `fleeting.connectors.listen_tcp`.
        """
        with self._lease.stay_in(connectors.listen_tcp(self._connection, host, port, patience=patience)) as listener:
            yield PortListener(listener, self._lease)

    def wait_closed(self) -> str:
        """Wait until the connection is dead; returns why, in a few words."""
        return self._lease.call(self._connection.wait_closed)


@frozen(eq=False)
class PortListener:
    """A port of an instance; `fleeting.connectors.PortListener` for threads."""

    _listener: connectors.PortListener
    _lease: "Lease"

    @property
    def port(self) -> int:
        """Its number, which the instance has chosen if it was asked for 0."""
        return self._listener.port

    def accept(self) -> "Stream":
        """Wait for the next connection; raises as `fleeting.connectors.PortListener.accept`."""
        return Stream(self._lease.call(self._listener.accept), self._lease)


@frozen(eq=False)
class Stream:
    """Bytes, both ways; a context manager that closes it. Errors are anyio's."""

    _stream: "ByteStream"
    _lease: "Lease"

    def send(self, data: bytes) -> None:
        """Send all of it."""
        self._lease.call(self._stream.send, data)

    def send_eof(self) -> None:
        """Let the other side know that nothing more will be sent."""
        self._lease.call(self._stream.send_eof)

    def receive(self, max_bytes: int = 65536) -> bytes:
        """Wait for data, at least one byte; none if the other side will send nothing more."""

        async def receive() -> bytes:
            try:
                return await self._stream.receive(max_bytes)
            except anyio.EndOfStream:
                return b""

        return self._lease.call(receive)

    def close(self) -> None:
        """Close it."""
        self._lease.call(self._stream.aclose)

    def __enter__(self) -> Self:
        """Use it."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()


def _asynchronous(sink: Sink | None) -> connectors.Sink | None:
    """Call it in a thread, so that one which is slow holds up its own command and nothing else."""
    if sink is None:
        return None

    async def call(chunk: bytes) -> None:
        await to_thread.run_sync(sink, chunk)

    return call
