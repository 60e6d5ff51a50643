"""Requests to a daemon: JSON in, JSON out, streams where the API streams."""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from math import inf
from typing import Any, Self, TypedDict, TypeVar, Unpack
from urllib.parse import quote, urlencode

import anyio
from anyio import to_thread
from anyio.abc import ByteStream
from anyio.lowlevel import checkpoint
from attrs import define, field

from fleeting.connectors import Sink
from fleeting.plugins import format_duration, one_line
from fleeting_docker_engine._answers import Progress, parsed, structured
from fleeting_docker_engine._archives import OVERHEAD, only_file
from fleeting_docker_engine._errors import EngineMalformed, EngineRefused, EngineUnreachable
from fleeting_docker_engine._wire import SWITCHING, Body, Headers, Wire

NEWEST = (1, 51)
"""The newest version of the API that this client was written for; an older daemon is spoken to in its own."""

OLDEST = (1, 41)
"""Docker 20.10's: what is asked for here is the same since then."""

LONGEST_ANSWER = 1 << 22
"""Bytes of JSON that are still taken for an answer: a list of a thousand containers has half as many."""

QUICKLY_READ = 1 << 16
"""Bytes up to which an answer is read in the event loop's own thread."""

LONGEST_LINE = 1 << 16
"""The same for a line of progress, and for why something is refused."""

Dial = Callable[[], Awaitable[ByteStream]]
"""Opens a stream to the daemon's socket."""

Query = Mapping[str, object]

T = TypeVar("T")


class Request(TypedDict, total=False):
    """What `Engine.ask` takes beside method and path."""

    query: Query | None
    """Lists, tables and booleans are written as the API wants them."""

    json: object
    """The body as JSON."""

    body: Body
    """Or an archive."""

    headers: Headers
    """More of them."""

    patience: float | None
    """Seconds that it may take, if other than usual; `math.inf`: any number."""


@define(eq=False)
class Engine:
    """A daemon, for the time of a context: leaving it closes all connections.

    Every method may raise:
        EngineRefused: The daemon's own word, with its status.
        EngineUnreachable: The connection broke or the daemon took too long; what it did is unknown.
        EngineMalformed: So it is if the answer is not as the API has it, or longer than any answer should be.
    """

    _dial: Dial
    patience: float = 120.0
    """Seconds that the daemon may take for an answer, where it does not stream."""

    version: str = field(default="", init=False)
    """Of the API that is spoken."""

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

    async def ask(self, method: str, path: str, **request: Unpack[Request]) -> Any:  # noqa: ANN401  (JSON)
        """Make a request, and return what it answers: JSON of any kind, or None if nothing.

        Args:
            method: Such as ``POST``.
            path: Below the version, such as ``/containers/json``; made of `quoted` parts.
            request: The rest, as `Request` has it.
        """
        return await self._answer(parsed, method, path, **request)

    async def ask_for(self, kind: type[T], method: str, path: str, **request: Unpack[Request]) -> T:
        """Make a request as `ask`, and return what it answers as a value.

        Args:
            kind: What belongs there: a schema of `fleeting_docker_engine`, or a tuple of one.
            method: As there, with what follows.
            path: As there.
            request: As there.
        """

        def read(body: bytearray, endpoint: str) -> T:
            return structured(parsed(body, endpoint), kind, endpoint)

        return await self._answer(read, method, path, **request)

    async def _answer(
        self,
        read: Callable[[bytearray, str], T],
        method: str,
        path: str,
        *,
        query: Query | None = None,
        json: object = None,
        body: Body = b"",
        headers: Headers = (),
        patience: float | None = None,
    ) -> T:
        """Make a request and read its answer; in a thread if that takes a while."""
        endpoint = f"{method} {path}"
        async with (
            self._in_time(self.patience if patience is None else patience),
            self._asked(method, path, query, data=json, body=body, headers=headers) as wire,
        ):
            answer = await _body_of(wire, endpoint)
        if len(answer) > QUICKLY_READ:
            return await to_thread.run_sync(read, answer, endpoint)
        return read(answer, endpoint)

    async def download(
        self, path: str, sink: Sink, *, query: Query | None = None, patience: float | None = None
    ) -> None:
        """Get what is not JSON, such as an archive, piece by piece.

        Args:
            path: As for `ask`.
            sink: Gets the pieces.
            query: As for `ask`.
            patience: Seconds for which the daemon may be silent, if other than usual; once it has begun to answer,
                `math.inf` is for what comes as it is made, such as the log of what runs.
        """
        silence = self.patience if patience is None else patience
        async with self._in_time(self.patience) as scope, self._asked("GET", path, query) as wire:
            scope.deadline = anyio.current_time() + silence
            while data := await wire.receive():
                scope.deadline = inf  # it is the sink's turn, which is the caller's affair
                await sink(data)
                scope.deadline = anyio.current_time() + silence

    async def read_file(self, container: str, path: str, *, limit: int) -> bytes | None:
        """Read a small file of a container's; None if it is none, or has more than *limit* bytes.

        Whoever works in the container decides what is there, so no more is received than that.
        """
        archive = bytearray()

        async def store(chunk: bytes) -> None:
            archive.extend(chunk)
            if len(archive) > limit + OVERHEAD:
                raise _EnoughError

        with suppress(_EnoughError):
            async with self._in_time(self.patience):
                await self.download(f"/containers/{quoted(container)}/archive", store, query={"path": path})
            content = only_file(bytes(archive))
            return content if content is not None and len(content) <= limit else None
        return None

    async def progress(self, method: str, path: str, *, query: Query, body: Body = b"", headers: Headers = ()) -> None:
        """Make a request that reports its progress, line by line. It takes as long as it takes: bound it.

        Raises:
            EngineRefused: Also if it fails half-way, which only a line says.
        """
        endpoint = f"{method} {path}"
        async with (
            self._asked(method, path, query, body=body, headers=headers) as wire,
            aclosing(_lines_of(wire, endpoint)) as lines,
        ):
            async for line in lines:
                progress = parsed(line, endpoint)
                if (progress is not None and not isinstance(progress, dict)) or (progress and "error" in progress):
                    raise EngineRefused(500, structured(progress, Progress, endpoint).error)

    @asynccontextmanager
    async def attached(self, container: str) -> AsyncIterator[Wire]:
        """Be connected with a container's outputs; attached before it is started, nothing is missed.

        The daemon passes on what comes, holds back the container while nobody reads, and stores nothing.
        """
        query = {"stream": True, "stdout": True, "stderr": True}
        upgrade = [("Connection", "Upgrade"), ("Upgrade", "tcp")]
        path = f"/containers/{quoted(container)}/attach"
        async with (
            self._in_time(self.patience) as scope,
            self._asked("POST", path, query, headers=upgrade, expected=SWITCHING) as wire,
        ):
            scope.deadline = inf
            yield wire

    @asynccontextmanager
    async def _in_time(self, limit: float) -> AsyncIterator[anyio.CancelScope]:
        """Give the body so many seconds, or as the deadline of its scope says in the end."""
        with anyio.move_on_after(limit) as scope:
            yield scope
        if scope.cancelled_caught:
            raise EngineUnreachable(f"the Docker daemon did not answer within {format_duration(limit)}")

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
                raise EngineRefused(status, await _message_of(wire, status))
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
        endpoint = "GET /_ping"
        async with self._in_time(self.patience), self._asked("GET", "/_ping") as wire:
            version = wire.headers.get("api-version", "")
            await _body_of(wire, endpoint)
        return version

    def _choose(self, version: str) -> str:
        try:
            major, minor = version.split(".")
            theirs = (int(major), int(minor))
        except ValueError as error:
            raise EngineUnreachable("what answers at the socket is not a Docker daemon") from error
        if theirs < OLDEST:
            raise EngineRefused(
                400,
                f"its API has version {one_line(version, 40)}; upgrade Docker to 20.10 (API 1.41) or later",
            )
        return ".".join(map(str, min(theirs, NEWEST)))


def quoted(part: str) -> str:
    """Make a name part of a path."""
    return quote(part, safe="")


def _headers(content: Body, kind: str, more: Headers) -> Headers:
    length = ("Content-Length", str(len(content))) if isinstance(content, bytes) else ("Transfer-Encoding", "chunked")
    type_ = [("Content-Type", kind)] if content else []
    return [("Host", "docker"), *type_, length, *more]


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


class _EnoughError(Exception):
    """More has come than is wanted."""


async def _body_of(wire: Wire, endpoint: str) -> bytearray:
    body = bytearray()
    while data := await wire.receive():
        body += data
        if len(body) > LONGEST_ANSWER:
            raise EngineMalformed(endpoint, "an endless answer", f"at most {LONGEST_ANSWER >> 20} MiB")
    return body


async def _lines_of(wire: Wire, endpoint: str) -> AsyncGenerator[bytes, None]:
    """Receive line by line, without keeping any; the last one may lack its end."""
    rest = b""
    while data := await wire.receive():
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            await checkpoint()  # one read can bring twenty thousand
            yield line
        if len(rest) > LONGEST_LINE:
            raise EngineMalformed(endpoint, "an endless line", f"lines of at most {LONGEST_LINE >> 10} KiB")
    yield rest


async def _message_of(wire: Wire, status: int) -> str:
    """Learn why a request is refused, if the answer is of reasonable length."""
    body = bytearray()
    while len(body) <= LONGEST_LINE and (data := await wire.receive()):
        body += data
    try:
        return str(json.loads(body)["message"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return f"HTTP status {status}"
