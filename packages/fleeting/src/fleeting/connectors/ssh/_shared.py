"""One connection per instance, shared by all who use it: dialled by the first, kept for a while after the last.

Where the host allows fewer sessions on a connection than are wanted, there is a second one, and so on.

A command takes three round trips with OpenSSH: one to open a channel, one to start it there, and one until the host
takes what it is to read. So the channel for the next command is opened in advance, if one command has followed another.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Hashable
from contextlib import asynccontextmanager
from math import inf
from typing import TypeVar
from weakref import WeakValueDictionary

import anyio
from anyio.lowlevel import RunVar
from attrs import define, field

from fleeting._errors import ConnectError, Unreachable
from fleeting.connectors.ssh._channel import Channel, NeverBegun, Refused
from fleeting.connectors.ssh._forward import Forward
from fleeting.connectors.ssh._transport import SshTransport

OPEN_TIMEOUT = 60.0
"""Seconds that a host may take to open a channel; a dead one is noticed without this, one that is stuck is not."""


_T = TypeVar("_T")


@define(eq=False)
class Shared:
    """The connections to one instance; when one dies, all are given up, for they lead to the same host."""

    instance: str
    main: SshTransport
    _dial: Callable[[], Awaitable[SshTransport]]
    _more: list[SshTransport] = field(factory=list, init=False)
    _limit: float = field(default=inf, init=False)
    """Sessions that the host allows on one connection, as far as is known."""

    _growing: anyio.Lock = field(factory=anyio.Lock, init=False)

    _commands: int = field(default=0, init=False)
    _spare: tuple[SshTransport, Channel] | None = field(default=None, init=False)
    """What was opened in advance, or is about to be."""

    async def in_session(self, use: Callable[[Channel], Awaitable[_T]]) -> _T:
        """Run a command in a channel, and in a new one where the host closed the first before it began anything.

        Args:
            use: Takes the channel over; raises `NeverBegun`.

        Raises:
            ConnectError: As `session`, and what *use* raises.
        """
        try:
            return await use(await self.session())
        except NeverBegun:
            return await use(await self._new_session())

    async def session(self) -> Channel:
        """Open a channel that can run a command, on whichever connection has room for it; the caller closes it.

        Raises:
            Unreachable: The connection died.
            ConnectError: The host allows no sessions at all.
        """
        channel = await self._opened_in_advance() or await self._new_session()
        self._open_in_advance()
        return channel

    async def _opened_in_advance(self) -> Channel | None:
        """Take what was; None if there is nothing, the host has no room for it, or has closed it by now.

        Hosts close what is idle: OpenSSH with ChannelTimeout, and some appliances.
        """
        spare, self._spare = self._spare, None
        if spare is None or spare[1].is_over:
            return None
        try:
            channel = await self._opened(*spare)
        except Refused:
            self._limit = self._most_sessions
            return None
        channel.in_advance = True
        return None if channel.is_over else channel

    def _open_in_advance(self) -> None:
        """Ask for the channel of the next command, unless this is the only one."""
        self._commands += 1
        if self._commands > 1 and self._spare is None:
            roomy = (each for each in (self.main, *self._more) if each.active and len(each.sessions()) < self._limit)
            if (transport := next(roomy, None)) is not None:
                self._spare = transport, transport.new_channel("session")

    def let_go(self) -> None:
        """Use it no more; a channel that waits for a command would keep the connection open."""
        if self.main.let_go() and self._spare is not None:
            self._spare[1].close()
            self._spare = None

    @property
    def _most_sessions(self) -> int:
        """How many sessions the host has had open on one connection at once."""
        return max(each.most_sessions for each in (self.main, *self._more))

    async def _new_session(self) -> Channel:
        refusing: set[SshTransport] = set()
        while True:
            transport = await self._with_room(refusing)
            try:
                return await self._open(transport, "session")
            except Refused as refused:
                if not transport.most_sessions:
                    raise ConnectError(f"{self.instance} runs no commands: {refused}") from refused
                self._limit = self._most_sessions
                refusing.add(transport)
            finally:
                transport.let_go()

    async def tunnel(self, kind: str, *details: str | int) -> Channel:
        """Open a channel that leads to somewhere on the host; the caller closes it. No limit holds for these.

        Raises:
            Refused: It leads nowhere.
            Unreachable: The connection died.
        """
        return await self._open(self.main, kind, *details)

    async def listen(self, forward: Forward) -> bool:
        """Have the host listen at a port; returns whether it does. The caller leaves the port in any case.

        Raises:
            Unreachable: The connection died, or the host does not answer.
        """
        try:
            with anyio.fail_after(OPEN_TIMEOUT):
                self.main.ask_for_port(forward)
                await self.main.port_answered(forward)
        except TimeoutError:
            raise Unreachable(f"{self.instance} did not answer within {OPEN_TIMEOUT:g} s") from None
        if forward.granted is None:
            raise self.lost("nothing listens")
        return forward.granted

    def lost(self, doing: str) -> Unreachable:
        """Make the error for a connection that died, and give up the others."""
        why = next((each.why_closed for each in (self.main, *self._more) if not each.active and not each.unused), "")
        self.give_up(why or "the host closed it")
        return Unreachable(f"the connection to {self.instance} died ({self.main.why_closed}); {doing}")

    def give_up(self, why: str) -> None:
        """Close them all now."""
        for transport in (self.main, *self._more):
            transport.give_up(why)

    async def _with_room(self, refusing: Collection[SshTransport]) -> SshTransport:
        """Find or dial a connection that takes another session, and hold it.

        Those that have just refused one are passed over, though they seem to have room: a host counts a session for a
        moment longer than it lets us see.
        """
        async with self._growing:
            self._more = [each for each in self._more if each.active]
            for transport in (self.main, *self._more):
                has_room = transport not in refusing and len(transport.sessions()) < self._limit
                if has_room and transport.hold():
                    return transport
            if not self.main.active:
                raise self.lost("nothing was started")
            self._more.append(transport := await self._dial())
            return transport

    async def _open(self, transport: SshTransport, kind: str, *details: str | int) -> Channel:
        return await self._opened(transport, transport.new_channel(kind, *details))

    async def _opened(self, transport: SshTransport, channel: Channel) -> Channel:
        try:
            with anyio.fail_after(OPEN_TIMEOUT):
                await transport.drained()
                await channel.opened()
        except BaseException as error:
            channel.close()
            if isinstance(error, BrokenPipeError):
                raise self.lost("nothing was started") from None
            if isinstance(error, TimeoutError):
                raise Unreachable(f"{self.instance} opened no channel within {OPEN_TIMEOUT:g} s") from None
            raise
        return channel


@define(eq=False, weakref_slot=True)
class _Slot:
    """The place of one instance among those that are connected."""

    lock: anyio.Lock = field(factory=anyio.Lock)
    """Held by the one who dials; the others wait for the connection."""

    shared: Shared | None = None


_SLOTS: RunVar["WeakValueDictionary[Hashable, _Slot]"] = RunVar("shared SSH connections")


@asynccontextmanager
async def shared(key: Hashable, make: Callable[[], Awaitable[Shared]], timeout: float) -> AsyncIterator[Shared]:
    """Use the connection that is known under *key*; make it if there is none, or the one there was has died.

    Raises:
        Unreachable: Somebody else has been dialling for *timeout* seconds.
    """
    slot = _slot(key)
    try:
        with anyio.fail_after(timeout):
            await slot.lock.acquire()
    except TimeoutError:
        raise Unreachable(f"the host could not be reached within {timeout:g} s: other calls are dialling it") from None
    try:
        if slot.shared is None or not slot.shared.main.hold():
            slot.shared = await make()
            slot.shared.main.known_by = slot
        used = slot.shared
    finally:
        slot.lock.release()
    try:
        yield used
    finally:
        used.let_go()


def _slot(key: Hashable) -> _Slot:
    try:
        slots = _SLOTS.get()
    except LookupError:
        _SLOTS.set(slots := WeakValueDictionary())
    return slots.setdefault(key, _Slot())
