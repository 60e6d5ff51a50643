"""Requests to a daemon: JSON in, JSON out, streams where the API streams."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Self
from urllib.parse import quote, urlencode

import anyio
from anyio.abc import ByteStream
from attrs import define, field

from fleeting import Sink, format_duration
from fleeting_docker.engine._errors import EngineRefused, EngineUnreachable
from fleeting_docker.engine._wire import SWITCHING, Body, Headers, Wire

NEWEST = (1, 51)
"""The newest version of the API that this client was written for; an older daemon is spoken to in its own."""

OLDEST = (1, 41)
"""Docker 20.10's: what is asked for here is the same since then."""

LONGEST_ANSWER = 1 << 26
"""Bytes of JSON that are still taken for an answer."""

Dial = Callable[[], Awaitable[ByteStream]]
"""Opens a stream to the daemon's socket."""

Query = Mapping[str, object]


@define(eq=False)
class Engine:
    """A daemon, for the time of a context: leaving it closes all connections.

    Every method may raise:
        EngineRefused: The daemon's own word, with its status.
        EngineUnreachable: The connection broke or the daemon took too long; what it did is unknown.
    """

    _dial: Dial
    patience: float = 120.0
    """Seconds that the daemon may take for an answer, where it does not stream."""

    version: str = field(default="", init=False)
    _idle: list[Wire] = field(factory=list, init=False)

    async def __aenter__(self) -> Self:
        """Connect, and agree on a version."""
        try:
            self.version = self._choose(await self._ping())
        except BaseException:
            await self.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close all connections."""
        await self.aclose()

    async def aclose(self) -> None:
        """Close all connections, whatever is cancelled."""
        while self._idle:
            await self._idle.pop().aclose()

    async def ask(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        json: object = None,
        body: Body = b"",
        headers: Headers = (),
        patience: float | None = None,
    ) -> Any:  # noqa: ANN401  (JSON)
        """Make a request, and return what it answers: JSON, or None if nothing.

        Args:
            method: Such as ``POST``.
            path: Below the version, such as ``/containers/json``; made of `quoted` parts.
            query: Lists, tables and booleans are written as the API wants them.
            json: The body as JSON.
            body: Or an archive.
            headers: More of them.
            patience: Seconds that it may take, if other than usual; `math.inf`: any number.
        """
        limit = self.patience if patience is None else patience
        with anyio.move_on_after(limit):
            async with self._asked(method, path, query, data=json, body=body, headers=headers) as wire:
                return _parsed(await _body_of(wire))
        raise EngineUnreachable(f"the Docker daemon did not answer within {format_duration(limit)}")

    async def download(self, path: str, sink: Sink, *, query: Query | None = None) -> None:
        """Get what is not JSON, such as an archive, piece by piece."""
        async with self._asked("GET", path, query) as wire:
            while data := await wire.receive():
                await sink(data)

    async def progress(
        self, method: str, path: str, *, query: Query, body: Body = b"", headers: Headers = ()
    ) -> Sequence[Mapping[str, Any]]:
        """Make a request that tells how it gets on, line by line; returns the lines.

        Raises:
            EngineRefused: Also if it fails half-way, which only a line tells.
        """
        async with self._asked(method, path, query, body=body, headers=headers) as wire:
            lines = [json.loads(line) for line in (await _body_of(wire)).splitlines() if line]
        for line in lines:
            if "error" in line:
                raise EngineRefused(500, line["error"])
        return lines

    @asynccontextmanager
    async def attached(self, container: str) -> AsyncIterator[Wire]:
        """Be connected with a container's outputs; attached before it is started, nothing is missed.

        The daemon passes on what comes, holds back the container while nobody reads, and stores nothing.
        """
        query = {"stream": True, "stdout": True, "stderr": True}
        upgrade = [("Connection", "Upgrade"), ("Upgrade", "tcp")]
        path = f"/containers/{quoted(container)}/attach"
        async with self._asked("POST", path, query, headers=upgrade, expected=SWITCHING) as wire:
            yield wire

    @asynccontextmanager
    async def _asked(
        self,
        method: str,
        path: str,
        query: Query | None = None,
        *,
        data: object = None,
        body: Body = b"",
        headers: Headers = (),
        expected: int | None = None,
    ) -> AsyncIterator[Wire]:
        """Have a request answered well; the body is still to be received."""
        wire = self._idle.pop() if self._idle else await self._connect()
        try:
            target = f"/v{self.version}{path}" if self.version else path
            content = body if data is None else json.dumps(data).encode()
            kind = "application/x-tar" if data is None else "application/json"
            status = await wire.ask(method, _with_query(target, query), _headers(content, kind, headers), content)
            if status >= 400 or (expected and status != expected):  # noqa: PLR2004  (HTTP's own border)
                raise EngineRefused(status, _message(await _body_of(wire), status))
            yield wire
        finally:
            if wire.is_reusable:
                wire.recycle()
                self._idle.append(wire)
            else:
                await wire.aclose()

    async def _connect(self) -> Wire:
        try:
            return Wire(await self._dial())
        except OSError as error:
            raise EngineUnreachable(f"nobody answers at the Docker daemon's socket: {error.strerror}") from error

    async def _ping(self) -> str:
        with anyio.move_on_after(self.patience):
            async with self._asked("GET", "/_ping") as wire:
                told = wire.headers.get("api-version", "")
                await _body_of(wire)
                return told
        raise EngineUnreachable(f"the Docker daemon did not answer within {format_duration(self.patience)}")

    def _choose(self, told: str) -> str:
        try:
            major, minor = told.split(".")
            theirs = (int(major), int(minor))
        except ValueError as error:
            raise EngineUnreachable("whoever answers at the socket is no Docker daemon") from error
        if theirs < OLDEST:
            raise EngineRefused(400, f"its API has version {told}, at least 1.41 (Docker 20.10) is needed; upgrade it")
        return ".".join(map(str, min(theirs, NEWEST)))


def quoted(part: str) -> str:
    """Make a name part of a path."""
    return quote(part, safe="")


def _headers(content: Body, kind: str, more: Headers) -> Headers:
    length = ("Content-Length", str(len(content))) if isinstance(content, bytes) else ("Transfer-Encoding", "chunked")
    told = [("Content-Type", kind)] if content else []
    return [("Host", "docker"), *told, length, *more]


def _with_query(target: str, query: Query | None) -> str:
    return f"{target}?{urlencode({name: _value(value) for name, value in query.items()})}" if query else target


def _value(value: object) -> str:
    match value:
        case bool():
            return "1" if value else "0"
        case str() | int():
            return str(value)
        case _:
            return json.dumps(value)


async def _body_of(wire: Wire) -> bytes:
    body = bytearray()
    while data := await wire.receive():
        body += data
        if len(body) > LONGEST_ANSWER:
            raise EngineUnreachable("the answer has no end; is this a Docker daemon?")
    return bytes(body)


def _parsed(body: bytes) -> Any:  # noqa: ANN401  (JSON)
    if not body.strip():
        return None
    try:
        return json.loads(body)
    except ValueError as error:
        raise EngineUnreachable("what was answered is no JSON; is this a Docker daemon?") from error


def _message(body: bytes, status: int) -> str:
    try:
        return str(json.loads(body)["message"])
    except (ValueError, TypeError, KeyError):
        return f"HTTP status {status}"
