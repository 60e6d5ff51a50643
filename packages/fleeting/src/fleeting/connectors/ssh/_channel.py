"""One channel of a connection: what the reading thread puts in, tasks take out.

Paramiko's own channels wait in threads, drop the signal that ended a command, and have no word for unix sockets.
"""

from threading import Lock
from typing import Final, Protocol

import paramiko
from attrs import define, field, frozen
from paramiko.common import (
    MSG_CHANNEL_CLOSE,
    MSG_CHANNEL_DATA,
    MSG_CHANNEL_EOF,
    MSG_CHANNEL_EXTENDED_DATA,
    MSG_CHANNEL_FAILURE,
    MSG_CHANNEL_OPEN_FAILURE,
    MSG_CHANNEL_OPEN_SUCCESS,
    MSG_CHANNEL_REQUEST,
    MSG_CHANNEL_SUCCESS,
    MSG_CHANNEL_WINDOW_ADJUST,
    cMSG_CHANNEL_CLOSE,
    cMSG_CHANNEL_DATA,
    cMSG_CHANNEL_EOF,
    cMSG_CHANNEL_FAILURE,
    cMSG_CHANNEL_OPEN,
    cMSG_CHANNEL_OPEN_SUCCESS,
    cMSG_CHANNEL_REQUEST,
    cMSG_CHANNEL_WINDOW_ADJUST,
)

from fleeting._wording import one_line
from fleeting.connectors.ssh._arrivals import Arrivals
from fleeting.connectors.ssh._wakeup import Wakeup

WINDOW: Final = 2 << 20
"""Bytes that the host may send ahead of who reads, and so what a channel that nobody reads holds at most."""

CHUNK: Final = 1 << 18
"""Bytes that are taken out at most in one go."""

LARGEST_PACKET: Final = 1 << 18
"""Bytes that are sent in one packet at most, whatever the host would take: each is copied on its way."""

PACKET_MARGIN: Final = 64
"""Bytes of a packet that are no data."""

_ANSWERS: Final = (MSG_CHANNEL_SUCCESS, MSG_CHANNEL_FAILURE, MSG_CHANNEL_DATA, MSG_CHANNEL_EXTENDED_DATA)
"""What a host sends once it has begun or refused a command, and not before."""

_LONGEST_SIGNAL: Final = 32
"""Bytes of a signal's name."""

PROHIBITED: Final = 1
"""The protocol's number for a channel that is not allowed."""

SHORTAGE: Final = 4
"""The same for one too many."""

STDOUT: Final = 0
STDERR: Final = 1


class Refused(Exception):
    """The host does not open a channel."""

    def __init__(self, reason: int, words: str) -> None:
        """Take the protocol's number for the reason, and the host's words."""
        self.reason = reason
        super().__init__(one_line(words))


def message(kind: bytes, *fields: str | bytes | int) -> paramiko.Message:
    """Put a message together: strings with their lengths, numbers in four bytes, truth in one."""
    made = paramiko.Message()
    made.add_byte(kind)
    for value in fields:
        if isinstance(value, bool):
            made.add_boolean(value)
        elif isinstance(value, int):
            made.add_int(value)
        else:
            made.add_string(value)
    return made


@frozen
class Opening:
    """The host's end of a channel, as it describes it when the channel is opened."""

    number: int
    """What the host calls it."""

    room: int
    """Bytes that it takes for now."""

    packet: int
    """Bytes that it takes in one packet."""

    @classmethod
    def read(cls, data: paramiko.Message) -> "Opening":
        """Take it out of a message."""
        return cls(data.get_int(), data.get_int(), data.get_int())

    @property
    def takes_data(self) -> bool:
        """Whether a packet has room for any."""
        return self.packet > PACKET_MARGIN


class NeverBegun(Exception):
    """The host closed a channel that was opened in advance, before anything was begun in it."""


class Carrier(Protocol):
    """The connection, as its channels see it."""

    channels: dict[int, "Channel"]
    """By number, until the host has closed them."""

    def post(self, data: paramiko.Message) -> None:
        """Send a message; blocks nobody."""
        ...

    async def drained(self) -> None:
        """Return once all that was posted has left, or never will."""
        ...

    def wake_soon(self, wakeup: Wakeup) -> None:
        """Wake once all is dealt with that has arrived; for the reading thread."""
        ...


@define(eq=False)
class Channel:
    """Its state is written by the reading thread; what tasks change is under the lock."""

    _carrier: Carrier
    id: int
    kind: str
    wakeup: Wakeup = field(factory=Wakeup, init=False)
    """Rung at whatever happens to it."""

    refused: Refused | None = field(default=None, init=False)
    broken: bool = field(default=False, init=False)
    """Whether the connection died before all was said."""

    failed: bool = field(default=False, init=False)
    """Whether the host refused what was asked for in the channel: to run a command, or to open a terminal."""

    exit_status: int | None = field(default=None, init=False)
    exit_signal: str | None = field(default=None, init=False)
    unread: bool = field(default=False, init=False)
    """Whether nobody reads at the other end any more."""

    is_over: bool = field(default=False, init=False)
    """Whether nothing more will come, not even how the command ended."""

    closed: bool = field(default=False, init=False)
    """Whether we are done with it."""

    comes_from: object = field(default=None, init=False)
    """The port of the host that it leads from, if it does."""

    in_advance: bool = field(default=False, init=False)
    """Whether it was open before there was a use for it: a host may close what is idle."""

    _answered: bool = field(default=False, init=False)
    """Whether the host has begun what was asked for in it, or refused."""

    _ended: bool = field(default=False, init=False)
    """Whether no more data will come."""

    _received: Arrivals = field(factory=Arrivals, init=False)
    _credit: int = field(default=WINDOW, init=False)
    """Bytes that the host may still send."""

    _taken: int = field(default=0, init=False)
    """Bytes that were taken since the host was last granted room."""

    _remote_id: int | None = field(default=None, init=False)
    """The host's number for it; None until it was opened."""

    _room: int = field(default=0, init=False)
    """Bytes that the host still takes."""

    _packet: int = field(default=0, init=False)
    _sent_eof: bool = field(default=False, init=False)
    _sent_close: bool = field(default=False, init=False)
    _lock: Lock = field(factory=Lock, init=False)

    # --- for tasks ---------------------------------------------------------------------------------------

    def ask(self, *details: str | int) -> None:
        """Ask the host to open it."""
        self._carrier.post(message(cMSG_CHANNEL_OPEN, self.kind, self.id, *details))

    def confirm(self, opening: "Opening", window: int, packet: int) -> None:
        """Open it, as the host has asked."""
        with self._lock:
            self._lead_to(opening)
            self._post(cMSG_CHANNEL_OPEN_SUCCESS, self.id, window, packet)

    async def opened(self) -> None:
        """Wait for the host's answer; who does not wait for it closes the channel.

        Raises:
            Refused: It said no.
            BrokenPipeError: It never will answer.
        """
        await self.wakeup.wait_for(lambda: self.was_opened or self.refused or self.broken)
        if self.refused:
            raise self.refused
        if self.broken:
            raise BrokenPipeError

    @property
    def was_opened(self) -> bool:
        """Whether the host has opened it."""
        return self._remote_id is not None

    def check_begun(self) -> None:
        """Find out about one that is over; what died with its connection may have been begun.

        Raises:
            NeverBegun: The host had closed it before it could begin what was asked for.
        """
        if self.in_advance and self.is_over and not (self._answered or self.exited or self.broken):
            raise NeverBegun

    async def begun(self) -> None:
        """Wait until the host has begun what was asked for, or never will.

        Raises:
            NeverBegun: As `check_begun`.
        """
        await self.wakeup.wait_for(lambda: self._answered or self.is_over)
        self.check_begun()

    def request(self, kind: str, *details: str | bytes | int) -> None:
        """Make a request; whether the host does it shows in `failed`."""
        self._send(cMSG_CHANNEL_REQUEST, kind, True, *details)

    def notify(self, kind: str, *details: str | bytes | int) -> None:
        """Make a request that nobody has to answer."""
        self._send(cMSG_CHANNEL_REQUEST, kind, False, *details)

    @property
    def exited(self) -> bool:
        """Whether it is known how the command ended."""
        return self.exit_status is not None or self.exit_signal is not None

    @property
    def readable(self) -> bool:
        """Whether `take` has something, or never will."""
        return bool(self._received) or self._ended

    @property
    def ended(self) -> bool:
        """Whether no more data will come."""
        return self._ended

    @property
    def may_send(self) -> bool:
        """Whether the host may send more before anything is taken."""
        return self._credit > 0

    @property
    def held(self) -> int:
        """Bytes that `take` has by now."""
        return self._received.held

    def take(self) -> tuple[int, bytes] | None:
        """Return which stream, and its next bytes; None at the end. Call it when `readable`."""
        if not self._received:
            return None
        with self._lock:
            stream, data = self._received.take(CHUNK)
        self._acknowledge(len(data))
        return stream, data

    @property
    def writable(self) -> bool:
        """Whether `put` takes something, or fails."""
        return self._room > 0 or self._sent_close or self.unread

    def put(self, data: memoryview) -> int:
        """Send as much as the host takes now, and return how much that is.

        Raises:
            BrokenPipeError: Nobody reads it any more.
        """
        with self._lock:
            if self._sent_eof or self._sent_close or self.unread:
                raise BrokenPipeError
            count = min(len(data), self._room, self._packet)
            self._room -= count
            if count:
                self._post(cMSG_CHANNEL_DATA, bytes(data[:count]))
        return count

    async def drained(self) -> None:
        """Return once what was sent has left. Await it after whatever sends: it is what holds a fast sender up."""
        await self._carrier.drained()

    def put_eof(self) -> None:
        """Say that nothing more will be sent."""
        with self._lock:
            due = not (self._sent_eof or self._sent_close)
            self._sent_eof = True
            if due:
                self._post(cMSG_CHANNEL_EOF)

    def close(self) -> None:
        """Be done with it; what still comes is thrown away."""
        self.closed = True
        with self._lock:
            self._received.clear()
            self._post_close()

    def _send(self, kind: bytes, *fields: str | bytes | int) -> None:
        """Send a message about it, unless it is closed."""
        with self._lock:
            if not self._sent_close:
                self._post(kind, *fields)

    def _post_close(self) -> None:
        """Send the last message about it, if that was not done; under the lock."""
        if not self._sent_close:
            self._post(cMSG_CHANNEL_CLOSE)
        self._sent_close = True

    def _post(self, kind: bytes, *fields: str | bytes | int) -> None:
        """Send a message about it, once it was opened.

        Under the lock: sshd hangs up on who sends anything about a channel after having closed it, and the reading
        thread closes it when the host does.
        """
        if self._remote_id is not None:
            self._carrier.post(message(kind, self._remote_id, *fields))

    def _acknowledge(self, count: int) -> None:
        with self._lock:
            self._taken += count
            if self._taken < WINDOW // 4 or self._sent_close or self._ended:
                return
            due, self._taken = self._taken, 0
            self._credit += due
            self._post(cMSG_CHANNEL_WINDOW_ADJUST, due)

    # --- for the reading thread --------------------------------------------------------------------------

    def handle(self, kind: int, data: paramiko.Message) -> None:
        """Take in a message of the host's."""
        self._answered = self._answered or kind in _ANSWERS
        if kind == MSG_CHANNEL_DATA:
            self._receive(STDOUT, data.get_binary())
        elif kind == MSG_CHANNEL_EXTENDED_DATA:
            data.get_int()  # the only kind there is, stderr
            self._receive(STDERR, data.get_binary())
        elif kind == MSG_CHANNEL_WINDOW_ADJUST:
            with self._lock:
                self._room += data.get_int()
        elif kind == MSG_CHANNEL_REQUEST:
            self._take_request(data)
        elif kind == MSG_CHANNEL_OPEN_SUCCESS:
            self._take_opening(data)
        elif kind == MSG_CHANNEL_OPEN_FAILURE:
            self.refused = Refused(data.get_int(), text(data))
            self._carrier.channels.pop(self.id, None)
        elif kind == MSG_CHANNEL_FAILURE:
            self.failed = self.is_over = self._ended = True
        elif kind == MSG_CHANNEL_EOF:
            self._ended = True
        elif kind == MSG_CHANNEL_CLOSE:
            self._take_close()
        self._carrier.wake_soon(self.wakeup)

    def mark_broken(self) -> None:
        """The connection has died."""
        self._carrier.channels.pop(self.id, None)
        with self._lock:
            self.broken = not (self._ended and self.exited)
            self.is_over = self._ended = self.unread = True
        self.wakeup.wake()

    def _receive(self, stream: int, data: bytes) -> None:
        with self._lock:
            self._credit -= len(data)
            if self._credit < 0:
                raise paramiko.SSHException("the host sent more data than allowed")
            if not self._sent_close:
                self._received.put(stream, data)

    def _take_opening(self, data: paramiko.Message) -> None:
        opening = Opening.read(data)
        with self._lock:
            self._lead_to(opening)
            if self._sent_close:  # who asked for it did not wait
                self._post(cMSG_CHANNEL_CLOSE)
        if not opening.takes_data:
            raise paramiko.SSHException("the host accepts no data")

    def _lead_to(self, opening: "Opening") -> None:
        self._remote_id, self._room = opening.number, opening.room
        self._packet = min(opening.packet, LARGEST_PACKET) - PACKET_MARGIN

    def _take_request(self, data: paramiko.Message) -> None:
        """Take in how the command ended; whoever wants an answer only asks whether we are there."""
        kind, wants_answer = text(data), data.get_boolean()
        if kind == "exit-status":
            self.exit_status = data.get_int()
        elif kind == "exit-signal":
            self.exit_signal = one_line(f"SIG{text(data)}", _LONGEST_SIGNAL)
        elif kind == "eow@openssh.com":
            self.unread = True
        if wants_answer:
            self._send(cMSG_CHANNEL_FAILURE)

    def _take_close(self) -> None:
        self.is_over = self._ended = self.unread = True
        self._carrier.channels.pop(self.id, None)
        with self._lock:
            self._post_close()


def text(data: paramiko.Message) -> str:
    """Read a text, which the host may have written in any encoding."""
    return data.get_binary().decode(errors="replace")
