"""How sidecars reach us: through the connection to their instance, or at an address that is advertised."""

import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import anyio
from anyio import to_thread
from anyio.abc import ByteStream, SocketAttribute, TaskGroup
from attrs import define, field, frozen

from fleeting import ConnectError, Connection
from fleeting.connectors import listen_tcp
from taskscaler import TaskscalerError
from taskscaler.serve import Peer, Server
from taskscaler_gitlab._settings import OwnSettings
from taskscaler_gitlab.relay._ears import Ears
from taskscaler_gitlab.relay._places import Place, places_of

MOST_STREAMS = 16
"""Connections that a sidecar and its job may have open through a tunnel at a time; further ones wait."""

PATIENCE = 60.0
"""Seconds in which a port has to become free that a lost connection has held."""

MOST_STRANGERS = 1024
"""Connections at a time where others can reach us; they take none of the places of those that come by tunnels."""

_LOOPBACK = "127.0.0.1"

log = logging.getLogger("taskscaler.gitlab")


@frozen(kw_only=True)
class Way:
    """A way for one sidecar."""

    url: str
    """Where it finds us; a path is added to it."""

    port: int
    """Where it is open on its instance; 0: it is not there."""

    listen: str = ""
    """Where we listen, if that is not there."""

    is_sure: bool = True
    """Whether it is known that its sidecar reaches us by it."""

    serve: Callable[[], Awaitable[object]]
    """Keeps it open until this is cancelled, or raises `Unreachable`."""


@frozen
class Tunnels:
    """Answers what comes through tunnels."""

    server: Server
    _tasks: TaskGroup
    """Outlives them: what a sidecar has said needs nobody but GitLab, whether it or its connection is gone."""

    async def answer(self, stream: ByteStream) -> None:
        """Answer over one connection until it ends; who cancels this hangs up, and cuts no call short."""
        over = anyio.Event()
        self._tasks.start_soon(self._answer, stream, over)
        await over.wait()

    async def _answer(self, stream: ByteStream, over: anyio.Event) -> None:
        try:
            await self.server.answer(stream)
        finally:
            over.set()


@frozen
class Tunnel:
    """Through the connection: nothing of ours can be reached from elsewhere."""

    answer: Callable[[ByteStream], Awaitable[object]]
    """Answers what comes through."""

    @asynccontextmanager
    async def open(self, connection: Connection, port: int) -> AsyncIterator[Way]:
        """Open a way, for as long as the context is; at the port where it was before, if it was.

        Raises:
            PortTaken: Somebody else has taken the port meanwhile.
            Unsupported: The instance does not let us listen there.
            Unreachable, ConnectError: It does not listen, for another reason.
        """
        async with listen_tcp(connection, _LOOPBACK, port, patience=PATIENCE if port else 0.0) as listener:

            async def keep_open() -> None:
                await listener.serve(self.answer, at_once=MOST_STREAMS)

            yield Way(url=f"http://{_LOOPBACK}:{listener.port}", port=listener.port, serve=keep_open)


@frozen
class Advertised:
    """At an address that instances, and containers on them, can reach."""

    url: str
    listen: str
    """Where we listen for who comes there."""

    is_sure: bool = True
    """As of its `Way`."""

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Way]:
        """Open a way, for as long as the context is."""
        yield Way(url=self.url, port=0, listen=self.listen, is_sure=self.is_sure, serve=anyio.sleep_forever)


@frozen
class Ways:
    """Opens ways: those that the settings want, and those of sidecars that were started with others."""

    tunnels: Tunnels

    advertised: Advertised | None
    """Where sidecars are to find us; None: through tunnels."""

    ears: Ears
    """Where else we listen."""

    def open(self, connection: Connection) -> AbstractAsyncContextManager[Way]:
        """Open one for a new sidecar, for as long as the context is. Raises as `Tunnel.open`."""
        return Tunnel(self.tunnels.answer).open(connection, 0) if self.advertised is None else self.advertised.open()

    def reopen(self, connection: Connection, port: int, listen: str) -> AbstractAsyncContextManager[Way]:
        """Open the one that a sidecar was started with: it knows no other, whatever the settings say by now.

        Args:
            connection: To its instance.
            port: As of that way.
            listen: Likewise; nothing: that was not noted down.

        Raises:
            ConnectError: We do not listen there any more; or as `Tunnel.open`.
        """
        if port:
            return Tunnel(self.tunnels.answer).open(connection, port)
        hears = self.ears.hears(listen)
        if hears is False:
            where = f"{listen}, where this program cannot" if listen else "an address where this program does not"
            raise ConnectError(f"its sidecar reports to {where} listen any more")
        return Advertised("", listen, is_sure=hears is True).open()


@define
class Listening:
    """A coordinator that listens where the settings say."""

    settings: OwnSettings
    others: Mapping[str, Callable[[], Awaitable[object]]] = field(factory=dict)
    """Where sidecars still report that were started earlier; and what waits until none does."""

    @asynccontextmanager
    async def serve(self, app: Any) -> AsyncIterator[Ways]:  # noqa: ANN401  (an ASGI application)
        """Answer while the context is open.

        Raises:
            SocketRefused: It cannot listen where it should.
        """
        own, tunnels = self.settings, Server(app, admit=_anybody)
        advertised = Advertised(own.advertise_url, own.listen) if own.reach == "url" else None
        async with AsyncExitStack() as stack:
            ears = await self._ears(stack)
            public = {place: Server(app, most=MOST_STRANGERS, admit=_Expected(ears).admit) for place in ears.at}
            tasks = await stack.enter_async_context(anyio.create_task_group())
            for place, server in public.items():
                tasks.start_soon(server.serve, ears.at[place])
            for listen in self.others:
                tasks.start_soon(self._forget_when_over, listen, ears, public)
            try:
                yield Ways(Tunnels(tunnels, tasks), advertised, ears)
            finally:
                with anyio.CancelScope(shield=True):
                    for server in (tunnels, *public.values()):
                        await server.close()
                tasks.cancel_scope.cancel()

    async def _ears(self, stack: AsyncExitStack) -> Ears:
        """Listen, until the stack is left, where we are to be heard, and where others still report if we can."""
        ears = Ears(await to_thread.run_sync(places_of, self.settings.listen) if self.settings.listen else ())
        for listen in self.others:
            ears.others[listen] = await to_thread.run_sync(_places_if_any, listen)
        await ears.listen(stack)
        for listen in self.others:
            if not ears.hears(listen):  # whoever reports there is ended; its job's log says why, if we have its token
                log.warning("not_listening", extra={"address": listen, "error": ears.why_not(listen)})
        return ears

    async def _forget_when_over(self, listen: str, ears: Ears, public: dict[Place, Server]) -> None:
        """Listen there no more once nobody reports there."""
        await self.others[listen]()
        for place, listener in ears.forget(listen).items():
            await public.pop(place).close()
            await listener.aclose()


def _places_if_any(listen: str) -> Sequence[Place]:
    with suppress(TaskscalerError):  # then its name stands for nothing any more
        return places_of(listen)
    return ()


@define
class _Expected:
    """Admits who comes to a listener where we are to be heard: it may be wider, while there is one job more."""

    ears: Ears
    _is_said: bool = False
    """Once is enough: strangers may come again and again."""

    async def admit(self, stream: ByteStream) -> tuple[ByteStream, Peer]:
        """Take a connection as it is.

        Raises:
            ConnectionRefusedError: Nobody is expected there.
        """
        address, port, *_ = stream.extra(SocketAttribute.raw_socket).getsockname()
        if not self.ears.lets_in(Place(address, port)):
            if not self._is_said:
                self._is_said = True
                log.warning("nobody_expected", extra={"address": f"{address} port {port}"})
            raise ConnectionRefusedError(f"nobody is expected at {address} port {port} any more")
        return await _anybody(stream)


async def _anybody(stream: ByteStream) -> tuple[ByteStream, Peer]:
    """Who it is says the token of each call; none has a share of its own in how many may connect."""
    return stream, Peer(os.geteuid())
