"""What a lease gets: its use of the shared connection."""

import os
import secrets
import shlex
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import anyio
from anyio.abc import ByteStream
from attrs import define, field

from fleeting._errors import ConnectError, Unreachable, Unsupported
from fleeting._protocols import Sink, Source, Terminal
from fleeting._types import Completed
from fleeting.connectors._base import Invocation
from fleeting.connectors._detached_posix import PosixConnection
from fleeting.connectors._listening import PortListener, check_place
from fleeting.connectors._stdin import preceded
from fleeting.connectors.ssh._channel import PROHIBITED, Channel, Refused
from fleeting.connectors.ssh._command import PidReader, compose, ending
from fleeting.connectors.ssh._listener import SshListener, listening
from fleeting.connectors.ssh._run import END_TIMEOUT, Running
from fleeting.connectors.ssh._shared import OPEN_TIMEOUT, Shared
from fleeting.connectors.ssh._streams import ChannelStream, NotConnected, through_stdio, until_ready
from fleeting.connectors.ssh._terminal import ChannelTerminal, request_terminal


@define(eq=False)
class SshConnection(PosixConnection):
    """One user's view of a connection; closing it closes the connection only if nobody else uses that."""

    protocol = "SSH"

    _shared: Shared
    _closed: bool = field(default=False, init=False)
    _listeners: set[SshListener] = field(factory=set, init=False)

    async def perform(self, invocation: Invocation) -> Completed:
        """Run a command; what cannot be started exits with 127 or 126."""
        return await self._attend(invocation, self._end_group)

    async def launch(self, script: str, stdin: Source, said: Sink, complaint: Sink) -> Completed:
        """Run what starts a detached command; sshd ends nothing, so it is enough that we do not."""
        invocation = Invocation(command=script, stdin=stdin, stdout=said, stderr=complaint, env={}, cwd=None)
        return await self._attend(invocation, None)

    async def _attend(self, invocation: Invocation, end_group: Callable[[int], Awaitable[bool]] | None) -> Completed:
        """Run a command, and end what has to be ended as *end_group* does it, if anything has."""
        self._check_open()
        mark = f"fleeting-{secrets.token_hex(8)}"
        line, first = compose(invocation.command, env=invocation.env, cwd=invocation.cwd, mark=mark)
        stdin = preceded(first, invocation.stdin)

        async def perform_in(channel: Channel) -> Completed:
            running = Running(channel, end_group, self._ask, PidReader(mark))
            try:
                await running.attend(line, stdin, invocation.stdout, invocation.stderr)
            except BaseException:
                with anyio.move_on_after(END_TIMEOUT, shield=True):
                    await running.end()
                raise
            finally:
                channel.close()
            return Completed(**self._outcome(channel))

        return await self._shared.in_session(perform_in)

    @asynccontextmanager
    async def open_terminal(
        self, command: str | Sequence[str] | None, *, term: str, columns: int, rows: int
    ) -> AsyncIterator[Terminal]:
        """Run a command in a terminal, as `OpensTerminals.open_terminal` says; sshd ends it when it hangs up."""
        self._check_open()
        line = None if command is None else compose(command, env={}, cwd=None, mark="")[0]
        channel = await self._shared.session()
        try:
            request_terminal(channel, line, term=term, columns=columns, rows=rows)
            await channel.drained()
            yield ChannelTerminal(channel, lambda: self._outcome_in_terminal(channel))
        finally:
            channel.close()
            with anyio.move_on_after(END_TIMEOUT, shield=True):
                await channel.drained()

    async def open_unix(self, path: str) -> ByteStream:
        """Open a stream to a unix socket: forwarded, or moved through a command where the host forwards none."""
        self._check_open()
        try:
            return ChannelStream(await self._shared.tunnel("direct-streamlocal@openssh.com", path, "", 0))
        except Refused:  # sshd does not say whether it may not, or nobody answers
            return await self._shared.in_session(partial(self._open_through_stdio, path))

    async def open_tcp(self, host: str, port: int) -> ByteStream:
        """Open a stream to a TCP port as seen from the instance."""
        self._check_open()
        try:
            return ChannelStream(await self._shared.tunnel("direct-tcpip", host, port, "127.0.0.1", 0))
        except Refused as refused:
            name = self._shared.instance
            if refused.reason == PROHIBITED:
                raise Unsupported(f"{name} allows no TCP forwarding; set AllowTcpForwarding in its sshd") from refused
            raise Unreachable(f"nothing answers at {host} port {port} as seen from {name}: {refused}") from refused

    @asynccontextmanager
    async def listen_tcp(self, host: str, port: int) -> AsyncIterator[PortListener]:
        """Listen at a port of the instance, by remote forwarding, as `ForwardsPorts.listen_tcp` says."""
        self._check_open()
        check_place(host, port)
        async with listening(self._shared, self, host, port, lambda: self._closed) as listener:
            self._listeners.add(listener)
            try:
                yield listener
            finally:
                self._listeners.discard(listener)

    async def wait_closed(self) -> str:
        """Wait until the connection is dead; returns why."""
        main = self._shared.main
        await main.wakeup.wait_for(lambda: self._closed or not main.active)
        return "it was closed locally" if self._closed else main.why_closed

    def close(self) -> None:
        """Use it no more; who waits for the end learns of it."""
        self._closed = True
        self._shared.main.wakeup.wake()
        for listener in self._listeners:
            listener.look()

    def _check_open(self) -> None:
        if self._closed:
            raise Unreachable(f"the connection to {self._shared.instance} is closed")

    def _outcome(self, channel: Channel) -> dict[str, Any]:
        """How a command ended.

        Raises:
            Unreachable: Nobody knows.
            ConnectError: It was not started.
        """
        name = self._shared.instance
        if channel.failed:
            raise ConnectError(f"{name} refuses to run commands for this user")
        if channel.broken:
            raise self._shared.lost("it is unknown whether the command had ended")
        if not channel.exited:
            raise Unreachable(f"{name} closed the session without reporting how the command ended")
        return {"exit_status": channel.exit_status, "signal": channel.exit_signal}

    def _outcome_in_terminal(self, channel: Channel) -> Completed:
        if channel.failed:
            name = self._shared.instance
            raise ConnectError(f"{name} opens no terminal for this user; check PermitTTY in its sshd settings")
        return Completed(**self._outcome(channel))

    async def _open_through_stdio(self, path: str, channel: Channel) -> ChannelStream:
        try:
            with anyio.fail_after(OPEN_TIMEOUT):
                await start(channel, through_stdio(path))
                return ChannelStream(channel, await until_ready(channel))
        except BaseException as error:
            channel.close()
            if isinstance(error, NotConnected | TimeoutError):
                channel.check_begun()
                why = str(error) or f"it took more than {OPEN_TIMEOUT:g} s to connect"
                raise Unreachable(f"nothing answers at {path} on {self._shared.instance}: {why}") from None
            raise

    async def _end_group(self, pid: int) -> bool:
        """End a process group on the host."""
        return await self._try_to_run(ending(pid))

    async def _ask(self) -> bool:
        """See whether the host answers."""
        return await self._try_to_run(":")

    async def _try_to_run(self, script: str) -> bool:
        """Run a script on the host; if that fails, so it is. Returns whether the host has answered."""
        with suppress(ConnectError):
            return await self._shared.in_session(partial(_run_to_its_end, script))
        return False


async def _run_to_its_end(script: str, channel: Channel) -> bool:
    """Run a script that says nothing of use. Returns whether it ended by itself."""
    try:
        await start(channel, script)
        channel.put_eof()
        await channel.wakeup.wait_for(lambda: channel.exited or channel.is_over)
        channel.check_begun()
        return channel.exited
    finally:
        channel.close()


async def start(channel: Channel, script: str) -> None:
    """Start a script that needs neither its own environment nor to be ended."""
    channel.request("exec", os.fsencode(shlex.join(["exec", "/bin/sh", "-c", script])))
    await channel.drained()
