"""Running one command in a channel: its input, its outputs to their sinks, its end, and how it is ended."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from math import inf

import anyio
from attrs import define, field

from fleeting._protocols import Sink, Source
from fleeting.connectors._stdin import arriving, reading
from fleeting.connectors.ssh._channel import STDERR, STDOUT, WINDOW, Channel
from fleeting.connectors.ssh._command import PidReader

LEFTOVER_PATIENCE = 0.5
"""Seconds after the end of a command for its outputs to end too, before what holds them open is ended."""

HELD_BACK = 4 * WINDOW
"""Bytes that a host may have read and not sent while it waits for us to take some: of each stream it reads about a
window ahead, and the pipes behind hold up to a mebibyte each. It sends them in turns."""

END_TIMEOUT = 8.0
"""Seconds that the end of a cancelled command is waited for."""


@define(eq=False)
class Running:
    """A command whose channel is open."""

    _channel: Channel
    _end_group: Callable[[int], Awaitable[bool]] | None
    """Ends a process group on the host; returns whether that was answered. None: what was started is to go on."""

    _ask: Callable[[], Awaitable[bool]]
    """Has the host do nothing; returns whether that was answered."""

    _pid: PidReader
    _looked_at: float | None = field(default=None, init=False)
    """When it was first seen that the command had ended, or somebody else who writes was last ended."""

    _left: float = field(default=inf, init=False)
    """Bytes that may still be the command's."""

    async def attend(self, line: bytes, stdin: Source | None, stdout: Sink, stderr: Sink) -> None:
        """Start it, and see it through; raises what a sink raises.

        Raises:
            NeverBegun: It was not started, and nothing was taken from its input.
        """
        self._channel.request("exec", line)
        if not stdin:
            self._channel.put_eof()
            await self._channel.drained()
            await self._pump(stdout, stderr)
            self._channel.check_begun()
            return
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._feed, stdin)
                await self._pump(stdout, stderr)
                tasks.cancel_scope.cancel()
        except ExceptionGroup as group:
            raise group.exceptions[0] from None
        self._channel.check_begun()

    async def end(self) -> None:
        """End it, with all of its process group."""
        await self._until_pid_is_known()
        if self._pid.pid is not None and self._end_group:
            await self._end_group(self._pid.pid)

    async def _feed(self, stdin: Source) -> None:
        """Send its input, as fast as it reads, for as long as it reads; what is taken cannot be given back."""
        await self._channel.begun()
        async with reading(arriving(stdin)) as chunks:
            async for chunk in chunks:
                if not await self._write(chunk):
                    return
        self._channel.put_eof()
        await self._channel.drained()

    async def _write(self, chunk: bytes) -> bool:
        """Send all of it; False if nobody reads it."""
        with suppress(BrokenPipeError):
            await send(self._channel, chunk)
            return True
        return False

    async def _pump(self, stdout: Sink, stderr: Sink) -> None:
        """Hand its outputs on in the order in which they came, until they end."""
        while received := await self._next():
            stream, data = received
            if stream == STDERR:
                data = self._pid.feed(data)
            if data:
                await (stdout if stream == STDOUT else stderr)(data)
            await self._channel.drained()
        if rest := self._pid.rest():
            await stderr(rest)
        await self._channel.wakeup.wait_for(lambda: self._channel.exited or self._channel.is_over)

    async def _next(self) -> tuple[int, bytes] | None:
        """Wait for output; once the command has ended, what it left behind may not keep us waiting.

        What holds the outputs open is ended. That is done twice: answers come in order, so the second one proves that
        nothing of what was written is still on its way, however slow the network is. A host that is busy may report the
        end of a command seconds before all that it has printed, its process id, too: then there is nothing to be ended,
        but it is asked all the same.
        """
        channel = self._channel
        await channel.wakeup.wait_for(lambda: channel.readable or channel.exited)
        if channel.exited and not channel.ended:
            await self._end_what_goes_on_writing()
            if self._left <= 0:
                return None
        for _ in range(2):
            if not await self._readable_within(LEFTOVER_PATIENCE):
                await self._end_or_ask()
        received = channel.take()
        self._left -= len(received[1]) if received else 0
        return received

    async def _end_what_goes_on_writing(self) -> None:
        """It does not fall silent, so nobody waits for it to.

        What has left the process group writes on: but the answer proves that of the command's own output nothing is
        on its way any more, unless the host waits for us to take some first. Then there is only so much of it. Asking
        again would be no better: whoever writes without a pause has filled the window before the answer comes.
        """
        now = anyio.current_time()
        self._looked_at = now if self._looked_at is None else self._looked_at
        if self._left < inf or self._pid.pid is None or now < self._looked_at + LEFTOVER_PATIENCE:
            return
        answered = await self._end_or_ask()
        self._looked_at = anyio.current_time()
        if answered:
            self._left = self._channel.held + (0 if self._channel.may_send else HELD_BACK)

    async def _end_or_ask(self) -> bool:
        """Have the host end what may hold the outputs open, if that is known; returns whether it has answered."""
        if self._pid.pid is None or self._end_group is None:
            return await self._ask()
        return await self._end_group(self._pid.pid)

    async def _readable_within(self, seconds: float) -> bool:
        if self._channel.readable:
            return True
        with anyio.move_on_after(seconds):
            await self._channel.wakeup.wait_for(lambda: self._channel.readable)
        return self._channel.readable

    async def _until_pid_is_known(self) -> None:
        """Read on until the process id comes; nobody wants the outputs any more."""
        channel = self._channel
        while self._pid.is_looking:
            await channel.wakeup.wait_for(lambda: channel.readable)
            received = channel.take()
            if received is None:
                return
            stream, data = received
            if stream == STDERR:
                self._pid.feed(data)


async def send(channel: Channel, data: bytes) -> None:
    """Send data as fast as it is taken; whoever is at the other end may have stopped reading.

    Raises:
        BrokenPipeError: The channel is closed.
    """
    rest = memoryview(data)
    while rest:
        await channel.wakeup.wait_for(lambda: channel.writable)
        rest = rest[channel.put(rest) :]
        await channel.drained()
