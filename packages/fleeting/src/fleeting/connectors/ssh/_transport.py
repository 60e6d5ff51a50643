"""Paramiko's transport without its waits: key exchange and encryption are paramiko's, the rest is ours.

One thread per connection reads; it is paramiko's. It never blocks on a send and never waits for the event loop: what
it learns it puts where tasks find it, and wakes those. Tasks send by themselves, which does not block them either.
The same thread sees to the connection: it pings a silent host, and hangs up on one that stays silent, or when nobody
has used the connection for a while.

Of paramiko's private names this uses `_handler_table`, `_parse_debug` and `_log`; its socket has the `_closed` that
paramiko asks for.
"""

import errno
import logging
import socket
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from threading import Lock, current_thread
from time import monotonic
from typing import Any, cast

import anyio
import paramiko
from paramiko.common import (
    MSG_CHANNEL_CLOSE,
    MSG_CHANNEL_DATA,
    MSG_CHANNEL_EOF,
    MSG_CHANNEL_EXTENDED_DATA,
    MSG_CHANNEL_FAILURE,
    MSG_CHANNEL_OPEN,
    MSG_CHANNEL_OPEN_FAILURE,
    MSG_CHANNEL_OPEN_SUCCESS,
    MSG_CHANNEL_REQUEST,
    MSG_CHANNEL_SUCCESS,
    MSG_CHANNEL_WINDOW_ADJUST,
    MSG_KEXINIT,
    MSG_NEWKEYS,
    MSG_REQUEST_FAILURE,
    MSG_REQUEST_SUCCESS,
    cMSG_CHANNEL_OPEN_FAILURE,
    cMSG_GLOBAL_REQUEST,
)

from fleeting._wording import one_line
from fleeting.connectors.ssh._channel import PROHIBITED, SHORTAGE, WINDOW, Channel, Opening, message, text
from fleeting.connectors.ssh._forward import KIND, Forward
from fleeting.connectors.ssh._transport_socket import TransportSocket
from fleeting.connectors.ssh._wakeup import Wakeup

CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "aes128-ctr", "aes256-ctr")
"""Ours is the order that counts, and GCM is twice as fast; CBC and triple DES are not offered."""

DIGESTS = (
    "hmac-sha2-256-etm@openssh.com",
    "hmac-sha2-512-etm@openssh.com",
    "hmac-sha2-256",
    "hmac-sha2-512",
)

MAX_PACKET = 32768
"""Bytes of data that we take in one packet; every implementation must manage as many."""

MOST_HELD_BACK = 4096
"""Messages that may wait for the end of an exchange of keys when the reading thread adds another: tasks wait after
each of theirs, answers to a host do not."""

_WIDENED = b"overridden by server GatewayPorts"
"""How sshd says, in passing, that it listens on all of its addresses though it was asked for one."""

_CHANNEL_MESSAGES = (
    MSG_CHANNEL_OPEN_SUCCESS,
    MSG_CHANNEL_OPEN_FAILURE,
    MSG_CHANNEL_WINDOW_ADJUST,
    MSG_CHANNEL_DATA,
    MSG_CHANNEL_EXTENDED_DATA,
    MSG_CHANNEL_EOF,
    MSG_CHANNEL_CLOSE,
    MSG_CHANNEL_REQUEST,
    MSG_CHANNEL_SUCCESS,
    MSG_CHANNEL_FAILURE,
)

log = logging.getLogger("fleeting.ssh")


class SshTransport(paramiko.Transport):
    """One SSH connection. It is closed once nobody holds it any more, after a while."""

    active: bool
    """Whether it lives; paramiko's, and missing from its stubs, as is what follows."""

    _handler_table: dict[int, Callable[[paramiko.Message], None]]

    def __init__(self, sock: socket.socket, *, linger: float) -> None:
        """Take the connected socket over; *linger* is for how many seconds a connection that nobody holds is kept."""
        self.transport_socket = TransportSocket(sock)
        super().__init__(cast("socket.socket", self.transport_socket))
        options = self.get_security_options()
        options.ciphers = CIPHERS
        options.digests = DIGESTS
        self.wakeup = Wakeup()
        """Rung when a phase of the dialling is over, after a key exchange, and at the end."""

        self.channels: dict[int, Channel] = {}
        self._next_id = 0
        self.most_sessions = 0
        """How many sessions the host has had open for us at once; counted by the reading thread, which misses none."""

        self._forwards: dict[tuple[str, int], Forward] = {}
        """Ports of the host that it listens at for us; the reading thread's."""

        self._unanswered: deque[Callable[[paramiko.Message | None], object]] = deque()
        """Who hears of the answers to our requests about the connection; those come in the order of the requests."""

        self._asking = Lock()
        self._widened = False
        self._to_wake: set[Wakeup] = set()
        self.transport_socket.before_wait = self._wake_all
        self.transport_socket.on_glut = self._give_up_for
        self._held_back: deque[paramiko.Message] = deque()
        self._draining: anyio.Lock | None = None
        self._linger = linger
        self._interval = 1.0
        self._misses = 0
        self._holders = 1
        self._holding = Lock()
        self._used_at = 0.0
        self._given_up = ""
        self.unused = False
        """Whether it was closed because nobody needed it any more."""

        self.known_by: object = None
        """Lives for as long as the connection: weak references to it find the connection."""

        self._begin_exchange = self._handler_table[MSG_KEXINIT]
        self._handler_table[MSG_KEXINIT] = self._on_exchange
        self._accept_new_keys = self._handler_table[MSG_NEWKEYS]
        self._handler_table[MSG_NEWKEYS] = self._on_new_keys
        self._handler_table[MSG_REQUEST_SUCCESS] = self._on_granted
        self._handler_table[MSG_REQUEST_FAILURE] = self._on_denied
        self._handler_table[MSG_CHANNEL_OPEN] = self._on_open
        for kind in _CHANNEL_MESSAGES:
            self._handler_table[kind] = _Dispatch(self, kind)

    def run(self) -> None:
        """Read until the end; paramiko starts a thread with it."""
        try:
            super().run()
        finally:
            self.packetizer.complete_handshake()  # else a timer of paramiko's keeps the process alive
            self.transport_socket.release()
            for channel in list(self.channels.values()):
                channel.mark_broken()
            for forward in list(self._forwards.values()):
                forward.mark_broken()
            self._wake_all()
            self.wakeup.wake()
            self.known_by = None

    # --- who uses it -------------------------------------------------------------------------------------

    def hold(self) -> bool:
        """Keep it from being closed; False if that is too late. The one who made it holds it already."""
        with self._holding:
            if not self.active or self.unused or self._given_up:
                return False
            self._holders += 1
            return True

    def let_go(self) -> bool:
        """Take a hold back; returns whether that was the last one."""
        with self._holding:
            self._holders -= 1
            self._used_at = monotonic()
            is_last = not self._holders
        if is_last:
            self.ping()  # the answer wakes the reading thread, which then waits no longer than the connection lingers
        return is_last

    def give_up(self, why: str) -> None:
        """Close it now."""
        self._given_up = self._given_up or why
        self.close()

    @property
    def why_closed(self) -> str:
        """In a few words; empty while it is open."""
        if self.active:
            return ""
        return self._given_up or _words(self.saved_exception)

    async def wait_closed(self) -> str:
        """Wait for the end, and return why it came."""
        await self.wakeup.wait_for(lambda: not self.active)
        return self.why_closed

    # --- supervision -------------------------------------------------------------------------------------

    def supervise(self, interval: float, misses: int) -> None:
        """From now on ping the host when it was silent for *interval* seconds, and hang up after *misses* times."""
        self._interval, self._misses = interval, misses
        self.transport_socket.on_silence = self._on_silence
        self.transport_socket.patience = self._patience
        self.ping()  # as in let_go

    def _patience(self) -> float:
        """Seconds until the reading thread has something to see to, if the host stays silent."""
        in_use = self._holders or self.channels
        return self._interval if in_use else min(self._interval, self._linger)

    def ping(self) -> None:
        """Ask for an answer; it is no use but to be heard."""
        self._ask(_ignore, "keepalive@openssh.com")

    def _on_silence(self, silences: int) -> None:
        """Called by the reading thread: hang up, or ask for a sign of life."""
        if self._lingered():
            raise self._hang_up("it was unused")
        if silences >= self._misses:
            raise self._hang_up(f"the host was silent for {silences * self._interval:g} s")
        self.ping()

    def _lingered(self) -> bool:
        """Whether nobody has held or used it for long enough; if so, nobody can hold it any more."""
        with self._holding:
            if self._holders or self.channels:
                self._used_at = monotonic()
                return False
            self.unused = monotonic() >= self._used_at + self._linger
            return self.unused

    def _give_up_for(self, why: str) -> None:
        self._given_up = why

    def _hang_up(self, why: str) -> OSError:
        self._given_up = why
        return ConnectionAbortedError(errno.ECONNABORTED, why)

    # --- sending -----------------------------------------------------------------------------------------

    def post(self, data: paramiko.Message) -> None:
        """Send a message, or have it sent once the keys are exchanged; blocks nobody, whichever thread calls."""
        with self.clear_to_send_lock:
            if self._held_back or not self.clear_to_send.is_set():
                if len(self._held_back) >= MOST_HELD_BACK and current_thread() is self:
                    raise self._hang_up("the host sends requests instead of exchanging keys")
                self._held_back.append(data)
            else:
                self._send_now(data)

    async def drained(self) -> None:
        """Return once all that was posted is with the kernel, or never will be."""
        if self._held_back:
            await self.wakeup.wait_for(lambda: not (self._held_back and self.active))
        if not self.transport_socket.drained:
            self._draining = self._draining or anyio.Lock()
            async with self._draining:
                await self._drain()

    async def _drain(self) -> None:
        with suppress(OSError), self.transport_socket.watched() as room:  # the descriptor outlives the connection
            while not self.transport_socket.drained:
                await anyio.wait_writable(room)
                self.transport_socket.flush()

    def _send_now(self, data: paramiko.Message) -> None:
        with suppress(EOFError):  # the connection is broken, which the reading thread will find
            self.packetizer.send_message(data)

    def _on_exchange(self, data: paramiko.Message) -> None:
        self.transport_socket.lift_allowance()
        self._begin_exchange(data)

    def _on_new_keys(self, data: paramiko.Message) -> None:
        self._accept_new_keys(data)
        with self.clear_to_send_lock:
            while self._held_back:
                self._send_now(self._held_back.popleft())
        self.wakeup.wake()

    # --- requests about the connection -------------------------------------------------------------------

    def _ask(self, heard: Callable[[paramiko.Message | None], object], kind: str, *details: str | int) -> None:
        """Make a request; *heard* gets the answer, or None for a refusal, in the reading thread."""
        with self._asking:
            self._unanswered.append(heard)
            self.post(message(cMSG_GLOBAL_REQUEST, kind, True, *details))

    def _on_granted(self, data: paramiko.Message) -> None:
        if self._unanswered:
            self._unanswered.popleft()(data)

    def _on_denied(self, _: paramiko.Message) -> None:
        if self._unanswered:
            self._unanswered.popleft()(None)

    # --- ports of the host -------------------------------------------------------------------------------

    def ask_for_port(self, forward: Forward) -> None:
        """Ask the host to listen; what came of that shows in *forward*, unless the connection dies."""
        self._ask(partial(self._on_port, forward), "tcpip-forward", forward.host, forward.port)

    async def port_answered(self, forward: Forward) -> None:
        """Wait until the host has answered, or never will."""
        await self.drained()
        await self.wakeup.wait_for(lambda: forward.granted is not None or not self.active)

    def accept_at(self, forward: Forward) -> Channel:
        """Open a channel for the connection that has waited longest; call it if one waits."""
        channel = self._new_channel(KIND)
        channel.comes_from = forward
        channel.confirm(forward.accept(), WINDOW, MAX_PACKET)
        if not self.active:
            channel.mark_broken()
        return channel

    def accepted(self, forward: Forward) -> list[Channel]:
        """List the channels that came from a port, until the host has closed them."""
        return [channel for channel in list(self.channels.values()) if channel.comes_from is forward]

    async def leave_port(self, forward: Forward) -> None:
        """Have the host listen no more, and turn away those who wait; returns once it has answered."""
        for opening in forward.leave():
            self._refuse(opening, PROHIBITED)
        if forward.granted:
            stopped: list[object] = []
            self._stop_listening(forward, stopped.append)
            await self.drained()
            await self.wakeup.wait_for(lambda: stopped or not self.active)

    def _stop_listening(self, forward: Forward, heard: Callable[[object], object]) -> None:
        def tell(_: paramiko.Message | None) -> None:
            self._forwards.pop((forward.host, forward.port), None)
            heard(None)
            self.wakeup.wake()

        self._ask(tell, "cancel-tcpip-forward", forward.host, forward.port)

    def _on_port(self, forward: Forward, data: paramiko.Message | None) -> None:
        port = forward.port if data is None or forward.port else data.get_int()
        wanted = forward.answer(granted=data is not None, port=port, widened=self._widened)
        self._widened = False
        if data is not None and wanted:
            self._forwards[forward.host, port] = forward
        elif data is not None:  # who asked for it did not wait
            self._stop_listening(forward, _ignore)
        self.wakeup.wake()

    def _on_open(self, data: paramiko.Message) -> None:
        """The host wants a channel, which it gets for a connection at a port that we have asked for, and else not."""
        kind, opening = text(data), Opening.read(data)
        forward = self._forward_at(text(data), data.get_int()) if kind == KIND else None
        if forward is None or not opening.takes_data:
            self._refuse(opening, PROHIBITED)
        elif forward.take_in(opening):
            self.wake_soon(forward.wakeup)
        else:
            self._refuse(opening, SHORTAGE)

    def _forward_at(self, host: str, port: int) -> Forward | None:
        """Find who listens there; hosts differ in how they write an address, so the only one at a port will do."""
        at_port = [each for each in list(self._forwards.values()) if each.port == port]
        return self._forwards.get((host, port)) or (at_port[0] if len(at_port) == 1 else None)

    def _refuse(self, opening: Opening, reason: int) -> None:
        self.post(message(cMSG_CHANNEL_OPEN_FAILURE, opening.number, reason, "", "en"))

    def _parse_debug(self, data: paramiko.Message) -> None:
        data.get_boolean()
        self._widened = self._widened or _WIDENED in data.get_binary()

    # --- channels ----------------------------------------------------------------------------------------

    def new_channel(self, kind: str, *details: str | int) -> Channel:
        """Ask for a channel of this kind; await its `opened`."""
        channel = self._new_channel(kind)
        channel.ask(WINDOW, MAX_PACKET, *details)
        if not self.active:
            channel.mark_broken()
        return channel

    def _new_channel(self, kind: str) -> Channel:
        self._next_id += 1
        channel = self.channels[self._next_id] = Channel(self, self._next_id, kind)
        return channel

    def sessions(self) -> list[Channel]:
        """List the channels that are there to run commands, until the host has closed them."""
        return [channel for channel in list(self.channels.values()) if channel.kind == "session"]

    def count_sessions(self) -> None:
        """Take down how many are open now; for the reading thread."""
        self.most_sessions = max(self.most_sessions, sum(channel.was_opened for channel in self.sessions()))

    def wake_soon(self, wakeup: Wakeup) -> None:
        """Wake once all is dealt with that has arrived: waking tasks for each packet costs more than the packet."""
        self._to_wake.add(wakeup)

    def _wake_all(self) -> None:
        while self._to_wake:
            self._to_wake.pop().wake()

    def _log(self, level: int, msg: Any, *args: Any) -> None:  # noqa: ANN401  (paramiko's signature)
        """Keep paramiko's voice down: what matters of it is in our errors, and it logs trace-backs of each."""
        if log.isEnabledFor(logging.DEBUG):
            log.debug("paramiko", extra={"severity": level, "said": str(msg) % args if args else str(msg)})


class _Dispatch:
    """Hands the messages of one kind to the channels they are for."""

    def __init__(self, transport: SshTransport, kind: int) -> None:
        self._transport = transport
        self._kind = kind

    def __call__(self, data: paramiko.Message) -> None:
        channel = self._transport.channels.get(data.get_int())
        if channel is not None:
            channel.handle(self._kind, data)
            if self._kind == MSG_CHANNEL_OPEN_SUCCESS:
                self._transport.count_sessions()


def _ignore(_: object) -> None:
    """Hear an answer that is no use."""


def _words(error: Exception | None) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return one_line(str(error or "")) or "the host closed the connection"
