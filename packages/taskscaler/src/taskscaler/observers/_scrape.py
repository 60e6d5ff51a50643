"""Where metrics are read: an address on which nothing else is answered, and on which nobody needs to say who they are.

So it is this machine's own unless the user names another; what is shown there has no secret. On this machine's own
address, a page in a browser cannot read it either: it has to be called by a name of this machine. How many may connect,
how slow they may be and how long their requests are has the same bounds as for the daemon's socket.

Nobody says who they are, so nobody may take much of the fleet's time, nor all places: all who ask within a moment get
the same answer, each connection gets one, so many are taken in a second, and the oldest gives way to one too many.
"""

import logging
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from time import perf_counter
from typing import Any, Final, NamedTuple

import anyio
from anyio.abc import ByteStream, SocketAttribute, SocketListener
from attrs import define, field
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from taskscaler.serve import Peer, Server
from taskscaler.serve._tcp import OWN_NAMES, addresses_of, is_named, is_own, keep_alive, listen_at

MOST_CONNECTIONS: Final = 64
"""At a time, on each address: a few servers scrape, and people look."""

PAUSE: Final = 0.005
"""Seconds from one connection until the next is taken; a new one has `MOST_CONNECTIONS` of these until it gives way."""

SHARE: Final = 0.02
"""Of the time, at most, goes into making an answer in each format: it is kept until then."""

LONGEST_KEPT: Final = 5.0
"""Seconds that an answer is kept at most, however long it took."""

_OPENMETRICS: Final = "application/openmetrics-text"

log = logging.getLogger("taskscaler.metrics")

Place = tuple[str, int]
"""Host and port; an empty host means all addresses."""


class _Made(NamedTuple):
    """An answer."""

    body: bytes
    kind: str
    """Its content type."""

    until: float
    """When it is made anew."""


@define
class Answers:
    """What is shown, made no more often than it may take time. Two formats, and no choice within them."""

    registry: CollectorRegistry
    timer: Callable[[], float] = perf_counter
    """Seconds since whenever."""

    _made: dict[str, _Made] = field(factory=dict, init=False)

    def answer(self, accept: str) -> Response:
        """Answer who accepts these formats."""
        wanted = f"{_OPENMETRICS}; version=1.0.0" if _OPENMETRICS in accept else ""
        made = self._made.get(wanted)
        if made is None or self.timer() >= made.until:
            made = self._made[wanted] = self._make(wanted)
        return Response(made.body, headers={"content-type": made.kind})

    def _make(self, wanted: str) -> _Made:
        began = self.timer()
        encode, kind = choose_encoder(wanted)
        body = encode(self.registry)
        ended = self.timer()
        return _Made(body, kind, ended + min(LONGEST_KEPT, (ended - began) / SHARE))


def answering(registry: CollectorRegistry, *, names: frozenset[str]) -> ASGIApp:
    """Make the application.

    Args:
        registry: What is shown.
        names: What it has to be called by; none: anything, as where others reach it.
    """
    answers = Answers(registry)

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # a websocket: to close it is to answer with 403
            await send({"type": "websocket.close"})
            return
        headers = Headers(scope=scope)
        if (names and not is_named(headers.get("host", ""), names)) or "origin" in headers:
            given: Response = PlainTextResponse("a page of a website may not ask\n", 403)
        elif scope["path"] != "/metrics":
            given = PlainTextResponse("the metrics are at /metrics\n", 200 if scope["path"] == "/" else 404)
        elif scope["method"] not in ("GET", "HEAD"):
            given = PlainTextResponse("GET it\n", 405, {"allow": "GET, HEAD"})
        else:
            given = answers.answer(headers.get("accept", ""))
        given.headers["connection"] = "close"
        await given(scope, receive, send)

    return answer


async def _admit(stream: ByteStream) -> tuple[ByteStream, Peer]:
    """Take whoever connects: all share the places."""
    keep_alive(stream)
    return stream, Peer(os.geteuid(), by_token=True)


async def _serve(server: Server, listener: SocketListener) -> None:
    """Answer; whatever goes wrong with that ends nothing else."""
    try:
        await server.serve(listener)
    except OSError as error:
        log.error("metrics_not_served", extra={"error": str(error)})  # noqa: TRY400  (no traceback)


@asynccontextmanager
async def scraped(registry: CollectorRegistry, place: Place) -> AsyncIterator[str]:
    """Show metrics while the body runs.

    Yields:
        The address, with the port that was found if 0 was given.

    Raises:
        SocketRefused: It cannot be listened on.
    """
    host, port = place
    async with AsyncExitStack() as stack:
        addresses = addresses_of(host, port, _OPTION)
        listeners = [await listen_at(host, port, each, stack, _OPTION) for each in addresses]
        names: Any = OWN_NAMES | {host.lower()} if all(map(is_own, addresses)) else frozenset()
        app = answering(registry, names=names)
        servers = [Server(app, MOST_CONNECTIONS, _admit, PAUSE, oldest_gives_way=True) for _ in listeners]
        tasks = await stack.enter_async_context(anyio.create_task_group())
        for server, listener in zip(servers, listeners, strict=True):
            tasks.start_soon(_serve, server, listener)
        try:
            shown = f"[{host}]" if ":" in host else host or "0.0.0.0"  # noqa: S104  (it is what was asked for)
            yield f"http://{shown}:{listeners[0].extra(SocketAttribute.local_port)}/metrics"
        finally:
            with anyio.CancelScope(shield=True):
                for server in servers:
                    await server.close()
            tasks.cancel_scope.cancel()


_OPTION = "--metrics, or with `listen`"
"""Where the address comes from, for people."""
