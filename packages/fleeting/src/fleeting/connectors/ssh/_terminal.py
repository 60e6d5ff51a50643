"""A terminal on the host: a channel with a pty in it."""

from collections.abc import Callable
from contextlib import suppress
from typing import Final

from attrs import define

from fleeting._types import Completed
from fleeting.connectors.ssh._channel import Channel
from fleeting.connectors.ssh._run import send

_NO_MODES: Final = b"\0"
"""The host's own settings for how a terminal behaves hold; the window is all that we know of ours."""


def request_terminal(channel: Channel, line: bytes | None, *, term: str, columns: int, rows: int) -> None:
    """Ask for a terminal, and for a command in it; None: the login shell."""
    channel.request("pty-req", term, columns, rows, 0, 0, _NO_MODES)
    if line is None:
        channel.request("shell")
    else:
        channel.request("exec", line)


@define(eq=False)
class ChannelTerminal:
    """See `Terminal`."""

    _channel: Channel
    _outcome: Callable[[], Completed]
    """How the command ended, once that is known."""

    async def receive(self) -> bytes:
        """Wait for what it writes."""
        await self._channel.wakeup.wait_for(lambda: self._channel.readable)
        received = self._channel.take()
        if received is None:
            return b""
        await self._channel.drained()
        return received[1]

    async def send(self, data: bytes) -> None:
        """Type something."""
        with suppress(BrokenPipeError):
            await send(self._channel, data)

    async def resize(self, columns: int, rows: int) -> None:
        """Report the new size of the window."""
        self._channel.notify("window-change", columns, rows, 0, 0)
        await self._channel.drained()

    async def wait(self) -> Completed:
        """How the command ended."""
        await self._channel.wakeup.wait_for(lambda: self._channel.exited or self._channel.is_over)
        return self._outcome()
