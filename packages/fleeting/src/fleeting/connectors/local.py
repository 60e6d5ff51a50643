"""The connector of the `local` group: commands on pipes that the client and the command share directly.

All who are connected to an agent at one time share what they need for that: a connection whose end is the agent's end,
and one for each command at a time, on which others follow.
"""

import os
import socket
from collections.abc import AsyncIterable, AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, contextmanager, suppress
from io import FileIO
from weakref import WeakValueDictionary

import anyio
from anyio.abc import ByteStream, SocketAttribute, UNIXSocketStream
from anyio.lowlevel import RunVar
from attrs import define, field, frozen

from fleeting._durations import format_duration
from fleeting._errors import ConnectError, Unreachable
from fleeting._hooks import hookimpl
from fleeting._protocols import Connection, Connector, Sink, Source, Terminal
from fleeting._types import Completed, ConnectInfo, ConnectorConfig
from fleeting._wording import one_line
from fleeting.connectors._base import Invocation
from fleeting.connectors._detached_posix import PosixConnection
from fleeting.connectors._listening import PortListener
from fleeting.connectors._listening_here import listening_here
from fleeting.connectors._pipe_output import PipeOutput
from fleeting.connectors._pty import LocalTerminal, on_terminal, pty
from fleeting.connectors._stdin import arriving, reading
from fleeting.groups.local import _client
from fleeting.groups.local._agent import DETACHED

LOGIN_SHELL = 'exec "${SHELL:-/bin/sh}" -l'

END_TIMEOUT = 5.0
"""Seconds that a cancelled command is waited for; the agent kills what is left after `_agent.GRACE`."""


PIPE_ROOM = 4096
"""Bytes that an empty pipe takes at once on every system: POSIX's least is 512, but Linux's and BSD's are a page."""


@hookimpl
def fleeting_connector() -> Connector:
    """Hand the connector to the loader."""
    return LocalConnector()


class LocalConnector:
    """Speaks to the agents of the `local` group."""

    @asynccontextmanager
    async def dial(self, info: ConnectInfo, config: ConnectorConfig) -> AsyncIterator[Connection]:
        """Connect to the agent that listens at ``info.internal_addr``, or share what others have of it."""
        path = info.internal_addr
        if path is None:
            raise Unreachable(f"{info.id} has no address; the group's connect_info must return one")
        try:
            with anyio.fail_after(config.timeout):
                shared = await _shared(path)
        except TimeoutError as error:
            patience = format_duration(config.timeout)
            raise Unreachable(f"the agent of {info.id} did not answer within {patience}") from error
        connection = LocalConnection(info.id, shared)
        try:
            yield connection
        finally:
            connection.close()
            await shared.let_go()


@define(eq=False)
class _Shared:
    """What all share who are connected to one agent."""

    path: str
    held: UNIXSocketStream
    """Ends when the agent does."""

    known_by: object
    """Lives for as long as this: weak references to it find this."""

    _users: int = field(default=1, init=False)
    _idle: list[UNIXSocketStream] = field(factory=list, init=False)
    """Each leads to a runner that waits for another command."""

    def hold(self) -> bool:
        """Use it as well; False if that is too late."""
        if not self._users or _has_ended(self.held):
            return False
        self._users += 1
        return True

    async def let_go(self) -> None:
        """Use it no more; the last one closes it."""
        self._users -= 1
        if not self._users:
            self.known_by = None
            with anyio.CancelScope(shield=True):
                for stream in (self.held, *self._idle):
                    await stream.aclose()

    async def take(self) -> UNIXSocketStream:
        """Get hold of somebody who runs a command.

        Raises:
            Unreachable: There is no agent.
        """
        while self._idle:
            stream = self._idle.pop()
            if not _has_ended(stream):
                return stream
            await stream.aclose()
        return await _client.connect(self.path)

    async def give_back(self, stream: UNIXSocketStream) -> None:
        """Let others have one whose command has ended."""
        if self._users:
            self._idle.append(stream)
        else:
            await stream.aclose()


@define(eq=False, weakref_slot=True)
class _Place:
    """The place of one agent among those that are connected."""

    lock: anyio.Lock = field(factory=anyio.Lock)
    """Held by the one who connects; the others wait for that."""

    shared: _Shared | None = None


_PLACES: RunVar["WeakValueDictionary[str, _Place]"] = RunVar("shared connections to local agents")


async def _shared(path: str) -> _Shared:
    """Use what others have of an agent; connect to it if there is nothing."""
    try:
        places = _PLACES.get()
    except LookupError:
        _PLACES.set(places := WeakValueDictionary())
    place = places.setdefault(path, _Place())
    async with place.lock:
        if place.shared is None or not place.shared.hold():
            place.shared = _Shared(path, await _reach(path), place)
        return place.shared


def _has_ended(stream: UNIXSocketStream) -> bool:
    """Whether the other side has hung up, though it had nothing to say."""
    try:
        stream.extra(SocketAttribute.raw_socket).recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


async def _reach(path: str) -> UNIXSocketStream:
    """Connect, and make sure that somebody answers."""
    stream = await _client.connect(path)
    try:
        await _client.ping(stream)
    except BaseException:
        await stream.aclose()
        raise
    return stream


@define(eq=False)
class LocalConnection(PosixConnection):
    """One user's view of what is shared."""

    protocol = "the local protocol"

    _instance: str
    _shared: _Shared
    _closed: bool = field(default=False, init=False)
    _waiting: set[anyio.CancelScope] = field(factory=set, init=False)
    """Those who wait for the end."""

    async def perform(self, invocation: Invocation) -> Completed:
        """Run a command; a program that cannot be started exits with 127 or 126, as in a shell."""
        return await self._run("run", invocation)

    lets_sessions_go = False
    """The agent ends all that a command leaves."""

    async def launch(self, script: str, stdin: Source, said: Sink, complaint: Sink) -> Completed:
        """Run what starts a detached command; the agent lets go on what that leaves running."""
        invocation = Invocation(command=script, stdin=stdin, stdout=said, stderr=complaint, env={}, cwd=None)
        return await self._run("launch", invocation)

    @property
    def detached_directory(self) -> str:
        """In that of the instance, with which it goes."""
        return os.path.join(os.path.dirname(self._shared.path), DETACHED)  # noqa: PTH118, PTH120  (as the agent has it)

    async def _run(self, operation: str, invocation: Invocation) -> Completed:
        argv, env = _argv(invocation.command), dict(invocation.env)
        request = _client.encode(op=operation, argv=argv, env=env, cwd=invocation.cwd)
        with _pipes(invocation) as pipes:
            try:
                outcome = await self._perform(request, pipes, is_alone=operation == "launch")
            except ExceptionGroup as group:
                raise group.exceptions[0] from None  # what a sink has raised
        return self._completed(outcome)

    @asynccontextmanager
    async def open_terminal(
        self, command: str | Sequence[str] | None, *, term: str, columns: int, rows: int
    ) -> AsyncIterator[Terminal]:
        """Run a command in a terminal of this host, as `OpensTerminals.open_terminal` says."""
        self._check_open()
        with pty(columns, rows) as (ours, theirs):
            argv = on_terminal(os.ttyname(theirs.fileno()), _argv(LOGIN_SHELL if command is None else command))
            request = _client.encode(op="run", argv=argv, env={"TERM": term}, cwd=None)
            async with await _client.connect(self._shared.path) as stream:
                try:
                    await stream.send_fds(request, [theirs] * 3)
                    theirs.close()
                    yield LocalTerminal(ours, lambda: self._outcome(stream))
                finally:
                    ours.close()
                    with anyio.move_on_after(END_TIMEOUT, shield=True):
                        await _hang_up(stream)

    async def open_unix(self, path: str) -> ByteStream:
        """Connect directly: the instance is this host."""
        try:
            return await anyio.connect_unix(path)
        except OSError as error:
            raise Unreachable(f"nothing answers at {path}: {error.strerror}") from error

    async def open_tcp(self, host: str, port: int) -> ByteStream:
        """Connect directly: the instance is this host."""
        try:
            return await anyio.connect_tcp(host, port)
        except OSError as error:
            raise Unreachable(f"nothing answers at {host} port {port}: {error}") from error

    def listen_tcp(self, host: str, port: int) -> AbstractAsyncContextManager[PortListener]:
        """Listen directly: the instance is this host."""
        self._check_open()
        return listening_here(self._instance, host, port, self.wait_closed)

    async def wait_closed(self) -> str:
        """Wait for the agent's end."""
        held = self._shared.held.extra(SocketAttribute.raw_socket)
        with anyio.CancelScope() as waiting:
            self._waiting.add(waiting)
            try:
                if not self._closed:
                    with held.dup() as watched:  # each who waits needs a descriptor of its own
                        await anyio.wait_readable(watched)
            finally:
                self._waiting.discard(waiting)
        return "it was closed locally" if self._closed else f"the agent of {self._instance} ended"

    def close(self) -> None:
        """Use it no more; who waits for the end learns of it."""
        self._closed = True
        for waiting in self._waiting:
            waiting.cancel()

    async def _perform(self, request: bytes, pipes: "_Pipes", *, is_alone: bool) -> _client.Answer:
        """Have the agent run it, and see it through; whatever goes wrong here, the command is ended first.

        Args:
            request: For the agent, or for who runs a command.
            pipes: Go with it.
            is_alone: Whether who runs this runs nothing else, neither before nor after it.
        """
        self._check_open()
        stream = await (_client.connect(self._shared.path) if is_alone else self._shared.take())
        try:
            await stream.send_fds(request, pipes.theirs)
            pipes.close_theirs()
            outcome = await _attend(stream, pipes)
        except anyio.BrokenResourceError as error:
            await stream.aclose()
            raise self._lost() from error
        except BaseException:
            with anyio.CancelScope(shield=True):
                with anyio.move_on_after(END_TIMEOUT):
                    await _hang_up(stream)
                await stream.aclose()
            raise
        if is_alone or outcome is None or outcome.error:  # it has hung up, or will
            await stream.aclose()
        else:
            await self._shared.give_back(stream)
        if outcome is None:
            raise self._lost()
        return outcome

    async def _outcome(self, stream: UNIXSocketStream) -> Completed:
        """Wait for what came of a command that writes to a terminal."""
        outcome = await _client.receive(stream)
        if outcome is None:
            raise self._lost()
        return self._completed(outcome)

    def _completed(self, outcome: _client.Answer) -> Completed:
        """How a command ended.

        Raises:
            ConnectError: It was not started.
            Unreachable: What the agent answers does not say so.
        """
        if outcome.error:
            raise ConnectError(f"the agent of {self._instance} refused a command: {one_line(outcome.error)}")
        if outcome.exit_status is None and outcome.signal is None:
            raise Unreachable(f"the agent of {self._instance} did not report how the command ended")
        return Completed(exit_status=outcome.exit_status, signal=outcome.signal)

    def _check_open(self) -> None:
        if self._closed:
            raise Unreachable(f"the connection to {self._instance} is closed")

    def _lost(self) -> Unreachable:
        return Unreachable(f"the agent of {self._instance} ended; it is unknown whether the command had ended")


def _argv(command: str | Sequence[str]) -> list[str]:
    return ["/bin/sh", "-c", command] if isinstance(command, str) else list(command)


async def _attend(stream: UNIXSocketStream, pipes: "_Pipes") -> _client.Answer | None:
    """Feed and drain the command until the agent reports its end, and all of its output was taken."""
    async with anyio.create_task_group() as tasks:
        if not pipes.is_fed:
            tasks.start_soon(pipes.feed)
        for output in pipes.outputs:
            tasks.start_soon(output.pump)
        outcome = await _client.receive(stream)
        pipes.end()
    return outcome


async def _hang_up(stream: UNIXSocketStream) -> None:
    """Have the agent end the command's process tree, and wait until it has."""
    with suppress(OSError, anyio.BrokenResourceError, Unreachable):
        await stream.send_eof()
        await _client.receive(stream)


@frozen
class _Pipes:
    """Both ends of what connects us with one command."""

    theirs: Sequence[FileIO]
    """Its stdin, stdout and stderr."""

    outputs: Sequence[PipeOutput]
    _input: FileIO
    _stdin: AsyncIterable[bytes]
    _feeding: anyio.CancelScope = field(factory=anyio.CancelScope, init=False)

    def feed_at_once(self, stdin: Source | None) -> None:
        """Write all of its input if there is so little that a pipe with nothing in it has room for it."""
        if stdin is None or (isinstance(stdin, bytes) and len(stdin) <= PIPE_ROOM):
            self._input.write(stdin or b"")
            self._input.close()

    @property
    def is_fed(self) -> bool:
        """Whether all of its input is written."""
        return self._input.closed

    async def feed(self) -> None:
        """Write its input, as fast as it reads, for as long as it reads."""
        with self._feeding, self._input:
            async with reading(self._stdin) as chunks:
                async for chunk in chunks:
                    if not await self._write(chunk):
                        return

    async def _write(self, chunk: bytes) -> bool:
        """Write all of it; False if nobody reads it."""
        rest = memoryview(chunk)
        with suppress(BrokenPipeError):
            while rest:
                await anyio.wait_writable(self._input)
                rest = rest[self._input.write(rest) or 0 :]
            return True
        return False

    def close_theirs(self) -> None:
        """Let go of its ends once it has them: else the end of its output would never be seen."""
        for end in self.theirs:
            end.close()

    def end(self) -> None:
        """Stop waiting for a command that has ended."""
        self._feeding.cancel()
        for output in self.outputs:
            output.end()


@contextmanager
def _pipes(invocation: Invocation) -> Iterator[_Pipes]:
    """Open the pipes for one command, and close on leaving what is still open."""
    with ExitStack() as ends:

        def pipe() -> tuple[FileIO, FileIO]:
            reader, writer = os.pipe()
            return ends.enter_context(FileIO(reader, "r")), ends.enter_context(FileIO(writer, "w"))

        (their_in, feed), (out, their_out), (err, their_err) = pipe(), pipe(), pipe()
        for end in (feed, out, err):
            os.set_blocking(end.fileno(), False)
        outputs = (PipeOutput(out, invocation.stdout), PipeOutput(err, invocation.stderr))
        pipes = _Pipes((their_in, their_out, their_err), outputs, feed, arriving(invocation.stdin))
        pipes.feed_at_once(invocation.stdin)
        yield pipes
