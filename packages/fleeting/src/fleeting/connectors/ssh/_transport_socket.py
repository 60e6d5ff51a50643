"""The socket under a transport: quick with small packets, never blocks who sends, and notices silence."""

import errno
import select
import socket
from collections.abc import Callable
from contextlib import suppress
from math import inf
from threading import Lock, get_ident
from time import monotonic

from attrs import define, field

READ_SIZE = 1 << 18
"""Bytes that are read in one go: paramiko asks for each packet in two bites, which would be two system calls."""

LONGEST_PACKET = 1 << 18
"""Bytes of a packet: OpenSSH's limit. The protocol promises 35000."""

GREETING = 1 << 16
"""Bytes that a host may send before its part of the key exchange is known: lines of text as long as it likes, else."""

MOST_ANSWERS = 1 << 20
"""Bytes of answers that a host may leave unread: it may ask as often as it likes whether we are there."""

_QUICKACK: int | None = getattr(socket, "TCP_QUICKACK", None)


@define(eq=False)
class TransportSocket:
    """What paramiko takes for a socket; read by its thread alone, written by any.

    What the kernel does not take at once is kept here. The reading thread sends it on before it waits; a task that
    has left something waits for `drained` itself, so that nothing depends on the reader waking up.
    """

    _socket: socket.socket
    patience: Callable[[], float] = field(default=lambda: 1.0, init=False)
    """For how many seconds `recv` waits for something before it reports the silence."""

    on_silence: Callable[[int], None] = field(default=lambda _: None, init=False)
    """Called by the reading thread with the number of silences in a row; what it raises ends the connection."""

    on_glut: Callable[[str], None] = field(default=lambda _: None, init=False)
    """Called by the reading thread, with the reason, before it hangs up on a host that does not read."""

    allowance: float = field(default=GREETING, init=False)
    """Bytes that the host may still send; infinite once it was lifted."""

    _silences: int = field(default=0, init=False)
    _reader: int = field(default=0, init=False)
    """The reading thread's number."""

    _answers: int = field(default=0, init=False)
    """Bytes that the reading thread has sent since the kernel last had everything."""

    _poll: select.poll = field(factory=select.poll, init=False)
    before_wait: Callable[[], None] = field(default=lambda: None, init=False)
    """Called by the reading thread when it has dealt with all that it had read."""

    _received: bytes = field(default=b"", init=False)
    _position: int = field(default=0, init=False)
    _unsent: bytearray = field(factory=bytearray, init=False)
    _sending: Lock = field(factory=Lock, init=False)
    _closed: bool = field(default=False, init=False)
    """Under this name paramiko looks for it."""

    def __attrs_post_init__(self) -> None:
        """Set the socket up."""
        self._socket.setblocking(False)
        with suppress(OSError):  # the socket of a jump is no TCP socket
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._acknowledge()

    # --- what paramiko calls -----------------------------------------------------------------------------

    def settimeout(self, seconds: float) -> None:
        """Take no notice: `patience` is the time-out, and paramiko's would wake the thread ten times a second."""

    def recv(self, size: int) -> bytes:
        """Wait for bytes, at most *size*; none at the end.

        Raises:
            OSError: More is asked for than a packet may have, or the connection is broken.
        """
        if size > LONGEST_PACKET:  # paramiko believes any length, and would keep that much
            raise ConnectionAbortedError(errno.ECONNABORTED, f"the host announced a packet of {size} bytes")
        self._reader = get_ident()
        if self._position == len(self._received):
            self._fill()
        data = self._received[self._position : self._position + size]
        self._position += len(data)
        self.allowance -= len(data)
        if self.allowance < 0:
            raise ConnectionAbortedError(
                errno.ECONNABORTED, f"the host sent more than {GREETING >> 10} KiB, but no key"
            )
        return data

    def lift_allowance(self) -> None:
        """Let the host send as much as it likes from now on."""
        self.allowance = inf

    def send(self, data: bytes) -> int:
        """Take all of it."""
        with self._sending:
            self._unsent += data
            self._flush()
            self._count_answer(len(data))
        return len(data)

    def close(self) -> None:
        """End the conversation, and wake whoever waits for it; the reading thread closes the socket by `release`."""
        self._closed = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    # --- what the rest of the connector calls ------------------------------------------------------------

    @property
    def drained(self) -> bool:
        """Whether the kernel has all that was sent."""
        return not self._unsent or self._closed

    def flush(self) -> None:
        """Let the kernel take what it can.

        Raises:
            OSError: The connection is broken.
        """
        with self._sending:
            self._flush()

    def watched(self) -> socket.socket:
        """A descriptor of the caller's own, which becomes writable when there is room, and when all is over."""
        return self._socket.dup()

    def release(self) -> None:
        """Close the socket; the reading thread is done with it."""
        self.close()
        self._socket.close()

    def _fill(self) -> None:
        self._received, self._position = b"", 0
        self.before_wait()
        deadline = monotonic() + self.patience()
        while True:
            try:
                self._received = self._socket.recv(READ_SIZE)
            except BlockingIOError:
                if not self._wait(deadline - monotonic()):
                    self._silences += 1
                    self.on_silence(self._silences)
                    raise TimeoutError from None  # then paramiko sees to its own affairs, and calls again
            else:
                self._silences = 0
                self._acknowledge()
                return

    def _wait(self, seconds: float) -> bool:
        """Wait for something to read, and for room for what is left to send; False if the time ran out."""
        self._poll.register(self._socket, select.POLLIN if self.drained else select.POLLIN | select.POLLOUT)
        ready = bool(self._poll.poll(max(seconds, 0.0) * 1e3))
        if ready and not self.drained:
            self.flush()
        return ready

    def _flush(self) -> None:
        while self._unsent:
            try:
                sent = self._socket.send(self._unsent)
            except BlockingIOError:
                return
            del self._unsent[:sent]

    def _count_answer(self, size: int) -> None:
        """Hang up on a host that asks and asks, and reads none of the answers: nobody waits for it, so they pile up."""
        if not self._unsent:
            self._answers = 0
        elif get_ident() == self._reader:
            self._answers += size
            if self._answers > MOST_ANSWERS:
                self.on_glut("the host does not read the answers that it asks for")
                self._unsent.clear()
                self.close()

    def _acknowledge(self) -> None:
        """Acknowledge what has come at once; the kernel forgets to after each answer of ours.

        Until a session starts, which on a connection for tunnels alone is never, sshd holds a small packet back while
        the one before is unacknowledged, and by itself our side's kernel acknowledges 40 ms late.
        """
        if _QUICKACK is not None:
            with suppress(OSError):  # the socket of a jump is no TCP socket
                self._socket.setsockopt(socket.IPPROTO_TCP, _QUICKACK, 1)
