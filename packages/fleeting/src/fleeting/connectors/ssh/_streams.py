"""Tunnels as byte streams, and the way to a unix socket of a host that forwards none."""

import shlex

import anyio
from anyio.abc import ByteStream
from anyio.lowlevel import checkpoint
from attrs import define

from fleeting._wording import one_line
from fleeting.connectors.ssh._channel import STDERR, Channel
from fleeting.connectors.ssh._run import send

CLOSE_TIMEOUT = 5.0
"""Seconds to hand the last bytes over when a stream is closed."""

READY = b"fleeting-ready\n"
"""What `through_stdio` says on stderr once it is connected."""

MOST_BEFORE_READY = 1 << 20
"""Bytes that may come before that: what start-up files say, and what whoever listens at the socket says at once."""

_PYTHON = """
import os, socket, sys, threading
s = socket.socket(socket.AF_UNIX)
try:
    s.connect(sys.argv[1])
except OSError as e:
    sys.exit(e.strerror)
os.write(2, b"fleeting-ready\\n")
def up():
    while d := os.read(0, 65536):
        s.sendall(d)
    s.shutdown(socket.SHUT_WR)
threading.Thread(target=up, daemon=True).start()
while d := s.recv(65536):
    while d:
        d = d[os.write(1, d):]
"""


def through_stdio(path: str) -> str:
    """Write a command that connects its stdin and stdout with a unix socket, by whatever the host has for that.

    Only Python notices whether anybody answers; with the others, the stream ends at once if nobody does.
    """
    name = shlex.quote(path)
    return (
        f"command -v python3 >/dev/null && exec python3 -I -S -c {shlex.quote(_PYTHON)} {name}\n"
        f"[ -S {name} ] || {{ echo 'there is no socket' >&2; exit 1; }}\n"
        f"command -v socat >/dev/null && {{ echo fleeting-ready >&2; exec socat -t 3600 - UNIX-CONNECT:{name}; }}\n"
        f"command -v nc >/dev/null && {{ echo fleeting-ready >&2; exec nc -U {name}; }}\n"
        "echo 'the host has neither python3, socat nor nc' >&2; exit 127"
    )


class NotConnected(Exception):
    """`through_stdio` did not come to be connected; says why, in one line."""


@define(eq=False)
class ChannelStream(ByteStream):
    """A channel as a stream; what a session writes to stderr is not part of it."""

    _channel: Channel
    _rest: bytes = b""
    """What has come and was not received yet."""

    async def receive(self, max_bytes: int = 65536) -> bytes:
        """Return the next bytes, at least one."""
        if self._rest:
            await checkpoint()
        while not self._rest:
            self._rest = await self._next()
        data, self._rest = self._rest[:max_bytes], self._rest[max_bytes:]
        return data

    async def send(self, item: bytes) -> None:
        """Send bytes; returns when the host has room for more, and the kernel has these."""
        if self._channel.closed:
            raise anyio.ClosedResourceError
        await checkpoint()
        try:
            await send(self._channel, item)
        except BrokenPipeError:
            raise anyio.BrokenResourceError from None

    async def send_eof(self) -> None:
        """Say that nothing more will be sent."""
        self._channel.put_eof()
        await self._channel.drained()

    async def aclose(self) -> None:
        """Close it."""
        self._channel.close()
        self._channel.wakeup.wake()
        with anyio.move_on_after(CLOSE_TIMEOUT, shield=True):
            await self._channel.drained()
        await checkpoint()

    async def _next(self) -> bytes:
        channel = self._channel
        await channel.wakeup.wait_for(lambda: channel.readable or channel.closed)
        if channel.closed:
            raise anyio.ClosedResourceError
        received = channel.take()
        if received is None:
            raise anyio.BrokenResourceError if channel.broken else anyio.EndOfStream
        await self._channel.drained()
        stream, data = received
        return b"" if stream == STDERR else data


async def until_ready(channel: Channel) -> bytes:
    """Wait for `through_stdio` to be connected; returns what has come through the socket by then.

    Raises:
        NotConnected: It has ended instead, or says too much.
    """
    early, said = bytearray(), bytearray()
    while len(early) + len(said) <= MOST_BEFORE_READY:
        await channel.wakeup.wait_for(lambda: channel.readable)
        received = channel.take()
        if received is None:
            last = said.decode(errors="replace").strip().rpartition("\n")[2]
            raise NotConnected(one_line(last) or "the host closed the channel")
        stream, data = received
        if stream != STDERR:
            early += data
            continue
        new = max(0, len(said) - len(READY))  # what is before that was looked at
        said += data
        if said.find(READY, new) >= 0:
            return bytes(early)
    raise NotConnected(f"the host sent more than {MOST_BEFORE_READY >> 20} MiB instead of connecting")
