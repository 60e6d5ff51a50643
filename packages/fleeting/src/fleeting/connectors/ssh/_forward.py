"""A port of the host whose connections come to us, as the reading thread and tasks share it.

A connection there is a channel that the host asks to open. It is answered when somebody accepts it: until then the
host sends nothing, so one that waits costs a few numbers here, and nothing to forget if its peer has gone away.
"""

from collections import deque
from threading import Lock
from typing import Final

from attrs import define, field

from fleeting.connectors._listening import MOST_WAITING
from fleeting.connectors.ssh._channel import Opening
from fleeting.connectors.ssh._wakeup import Wakeup

KIND: Final = "forwarded-tcpip"
"""What such a channel is called."""


@define(eq=False)
class Forward:
    """Its state is written by the reading thread; what tasks change is under the lock."""

    host: str
    """Where the host is to listen, as it was asked to."""

    port: int
    """The port there; 0 until the host has chosen one."""

    wakeup: Wakeup = field(factory=Wakeup, init=False)
    """Rung at whatever happens to it."""

    granted: bool | None = field(default=None, init=False)
    """Whether the host does as it was asked; None until it has answered."""

    widened: bool = field(default=False, init=False)
    """Whether the host said that it listens on all of its addresses instead."""

    left: bool = field(default=False, init=False)
    """Whether nobody wants it any more."""

    broken: bool = field(default=False, init=False)
    """Whether the connection to the host died."""

    _waiting: deque[Opening] = field(factory=deque, init=False)
    _lock: Lock = field(factory=Lock, init=False)

    # --- for the reading thread --------------------------------------------------------------------------

    def answer(self, *, granted: bool, port: int, widened: bool) -> bool:
        """Take the host's answer; returns whether anybody still wants the port."""
        with self._lock:
            self.granted, self.widened = granted, widened
            self.port = self.port or port
            return not self.left

    def take_in(self, opening: Opening) -> bool:
        """Take a connection; False if too many wait."""
        with self._lock:
            if self.left or len(self._waiting) >= MOST_WAITING:
                return False
            self._waiting.append(opening)
        return True

    def mark_broken(self) -> None:
        """The connection to the host has died."""
        self.broken = True
        self.wakeup.wake()

    # --- for tasks ---------------------------------------------------------------------------------------

    @property
    def has_waiting(self) -> bool:
        """Whether a connection waits to be accepted."""
        return bool(self._waiting)

    def accept(self) -> Opening:
        """Take the connection that has waited longest; call it if there is one."""
        with self._lock:
            return self._waiting.popleft()

    def leave(self) -> list[Opening]:
        """Want no more of it; returns the connections that still waited."""
        with self._lock:
            self.left = True
            waiting = list(self._waiting)
            self._waiting.clear()
        self.wakeup.wake()
        return waiting
