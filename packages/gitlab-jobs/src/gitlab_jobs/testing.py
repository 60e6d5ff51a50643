"""A GitLab for tests: GitLab's own rules, and faults where you want them.

It is an ASGI application, for a server or for `FakeGitLab.transport`, which needs none. It needs the extra ``server``.
"""

import math
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import anyio
import httpx
from attrs import define, field, frozen
from starlette.applications import Starlette

from gitlab_jobs._payload import Job
from gitlab_jobs._server import ACKNOWLEDGEMENT, TRACE_LIMIT, Reply, Server, State, Stored
from gitlab_jobs._trace import Spool
from gitlab_jobs.coordinator import Upload, application

__all__ = ["URL", "Artifacts", "FakeGitLab", "Fault", "State", "Stored"]

URL = "http://gitlab.test"
"""What clients of `FakeGitLab.transport` call it; no name is looked up."""

_PIECE = 1 << 20
_SUFFIXES = {"zip": ".zip", "gzip": ".gz"}


@frozen(kw_only=True)
class Fault:
    """Something that goes wrong."""

    call: str
    """With which call: ``verify``, ``request``, ``update``, ``append``, ``upload``, ``download``…"""

    reply: Reply | None = None
    """What is answered instead; by default the connection ends without an answer."""

    is_processed: bool = False
    """Whether the call has done its work, and only the answer is another one."""

    after: int = 0
    """So many of these calls go well before."""

    times: int = 1
    """So many go wrong then."""


@frozen(kw_only=True)
class Artifacts:
    """A file that a job left."""

    path: Path
    """Where it is kept."""

    artifact_type: str
    """``archive``, or the kind of report."""

    artifact_format: str
    """``zip``, ``gzip`` or ``raw``."""


class _Broken(Exception):
    """Stands for a connection that ends."""


@define
class _LogFile:
    """A log in a file, which is open only while it is used: there may be thousands."""

    path: Path
    _at: int = 0

    def seek(self, offset: int, /) -> int:
        self._at = offset
        return offset

    def read(self, size: int, /) -> bytes:
        with self.path.open("rb") as file:
            file.seek(self._at)
            return file.read(size)

    def write(self, data: bytes, /) -> int:
        with self.path.open("r+b", buffering=0) as file:
            file.seek(self._at)
            written = file.write(data)
            self._at += written
            return written

    def truncate(self, size: int, /) -> int:
        with self.path.open("ab", buffering=0) as file:
            return file.truncate(size)


@define
class FakeGitLab:
    """A GitLab that hands out jobs: the rules of `gitlab_jobs.coordinator`, with everything kept to look at."""

    directory: Path
    """Where artifacts are kept, and logs if they are not in memory."""

    faults: Iterable[Fault] = ()
    """What goes wrong."""

    long_poll: float = 50.0
    """Seconds that a request for a job is held if the runner has seen all there is [GitLab: Workhorse]."""

    accepts: int = 1
    """So often a final call is accepted with 202 before it is done [GitLab: while the log is being moved]."""

    acknowledgement: float = ACKNOWLEDGEMENT
    """Seconds after which a job that nobody acknowledges is given to another runner [guessed]."""

    trace_limit: int = TRACE_LIMIT
    """Bytes of a log that it takes; the job fails beyond that."""

    logs_on_disk: bool = False
    """Whether logs are kept in the directory, as ``7.log``, and not in memory."""

    server: Server = field(init=False)
    """What it knows."""

    runner_token: str = field(init=False, repr=False)
    """The token of a runner that it knows from the beginning."""

    calls: Counter[str] = field(init=False, factory=Counter)
    """How often each call was made."""

    artifacts: dict[int, list[Artifacts]] = field(init=False, factory=dict)
    """What each job left, by the jobs' numbers."""

    held: int = field(init=False, default=0)
    """How many requests for jobs are held at the moment."""

    refused: int = field(init=False, default=0)
    """How many requests for jobs had a token that nobody knows."""

    _changed: anyio.Event = field(init=False, factory=anyio.Event)

    def __attrs_post_init__(self) -> None:
        """Begin with one runner and no job."""
        self.server = Server(
            lambda: secrets.token_urlsafe(16),
            accepts=self.accepts,
            acknowledgement=self.acknowledgement,
            trace_limit=self.trace_limit,
            spool=self._spool,
        )
        self.runner_token = f"glrt-{secrets.token_urlsafe(16)}"
        self.server.add_runner(self.runner_token)

    # what a test, or an operator, does

    def enqueue(self, job: Job, *, is_ready: bool = True) -> int:
        """Take a job for runners; returns the number that it gets."""
        number = self.server.enqueue(job, is_ready=is_ready)
        self.notify()
        return number

    def cancel(self, number: int) -> None:
        """Cancel a job, as a user does."""
        self.server.cancel(number)
        self.notify()

    def log(self, number: int) -> bytes:
        """What there is of a job's log."""
        return bytes(self.server.jobs[number].trace)

    def _spool(self, number: int) -> Spool | None:
        return _LogFile(self.directory / f"{number}.log") if self.logs_on_disk else None

    async def ended(self, number: int) -> Stored:
        """Wait for the end of a job, and return what became of it."""
        while not (stored := self.server.jobs[number]).state.is_final:
            await self._changed.wait()
        return stored

    def next_change(self) -> anyio.Event:
        """Set as soon as something happens to a job: take it, look, then wait for it, and nothing is missed."""
        return self._changed

    def application(self, *, prefix: str = "") -> Starlette:
        """For an ASGI server."""
        return application(self, prefix=prefix)

    def transport(self) -> httpx.AsyncBaseTransport:
        """For a client in the same event loop, without a server or a socket."""
        return _Transport(httpx.ASGITransport(self.application()))

    def notify(self) -> None:
        """Wake whoever waits for something to happen."""
        self._changed.set()
        self._changed = anyio.Event()

    # what runners do

    async def verify(self, token: str) -> Reply:
        """``POST runners/verify``."""
        return await self._through("verify", lambda: self.server.verify(token))

    async def register(self, token: str, body: Mapping[str, Any]) -> Reply:  # noqa: ARG002  (anybody may)
        """``POST runners``."""
        return await self._through("register", self.server.register)

    async def unregister(self, token: str) -> Reply:
        """``DELETE runners``."""
        return await self._through("unregister", lambda: self.server.unregister(token))

    async def reset(self, token: str) -> Reply:
        """``POST runners/reset_authentication_token``."""
        return await self._through("reset", lambda: self.server.reset(token))

    async def request(self, token: str, body: Mapping[str, Any]) -> Reply:
        """``POST jobs/request``: held while there is nothing new."""
        info, ticket = body.get("info"), body.get("last_update")
        features = info.get("features") if isinstance(info, Mapping) else None
        known = ticket if isinstance(ticket, str) and ticket else None

        def ask() -> Reply:
            return self.server.request(token, features if isinstance(features, Mapping) else {}, anyio.current_time())

        reply = await self._through("request", ask)
        self.refused += reply.status == 403  # noqa: PLR2004  (HTTP's)
        self.held += 1
        try:
            return await self._held(reply, known, ask)
        finally:
            self.held -= 1

    async def _held(self, reply: Reply, known: str | None, ask: Callable[[], Reply]) -> Reply:
        with anyio.move_on_after(self.long_poll):
            while reply.status == 204 and known is not None and not self.server.has_changed(known):  # noqa: PLR2004
                await self._changed_or_lapsed()
                reply = ask()
        return reply

    async def _changed_or_lapsed(self) -> None:
        """Wait for something to happen: also that nobody has acknowledged a job, which is for others then."""
        lapses_at = self.server.lapses_at
        with anyio.move_on_at(math.inf if lapses_at is None else lapses_at):
            await self._changed.wait()

    async def update(self, number: int, token: str, body: Mapping[str, Any]) -> Reply:
        """``PUT jobs/:id``."""
        return await self._through("update", lambda: self.server.update(number, token, body, anyio.current_time()))

    async def append(self, number: int, token: str, content_range: str | None, body: bytes) -> Reply:
        """``PATCH jobs/:id/trace``."""
        now = anyio.current_time()
        return await self._through("append", lambda: self.server.append(number, token, content_range, body, now))

    async def may_upload(self, number: int, token: str) -> Reply | None:
        """``POST jobs/:id/artifacts``, before the file."""
        return self.server.may_upload(number, token)

    async def upload(self, number: int, token: str, upload: Upload) -> Reply:  # noqa: ARG002  (it was checked before)
        """``POST jobs/:id/artifacts``, with the file."""
        suffix = _SUFFIXES.get(upload.artifact_format, "")
        path = self.directory / f"{number}-{len(self.artifacts.get(number, ()))}{suffix}"

        async def keep() -> Reply:
            try:
                async with await anyio.open_file(path, "wb") as file:
                    while piece := await upload.file.read(_PIECE):
                        await file.write(piece)
            except OSError as error:  # a full disk: 500 [guessed]
                path.unlink(missing_ok=True)
                return Reply(status=500, body={"message": f"500 Internal Server Error: {error.strerror}"})
            kept = Artifacts(path=path, artifact_type=upload.artifact_type, artifact_format=upload.artifact_format)
            self.artifacts.setdefault(number, []).append(kept)
            return Reply(status=201, body={"message": "201 Created"})

        return await self._through("upload", keep)

    async def download(self, number: int, token: str) -> Reply | Path:
        """``GET jobs/:id/artifacts``."""
        refusal = self.server.may_download(number, token)
        archives = [each.path for each in self.artifacts.get(number, ()) if each.artifact_type == "archive"]
        missing = Reply(status=404, body={"message": "404 Not found"})
        reply = await self._through("download", lambda: refusal or (Reply(status=200) if archives else missing))
        return archives[-1] if reply.status == 200 else reply  # noqa: PLR2004  (HTTP's)

    async def _through(self, call: str, do: Callable[[], Reply | Awaitable[Reply]]) -> Reply:
        """Do what is asked, unless something goes wrong with it."""
        number = self.calls[call]
        self.calls[call] += 1
        fault = next(
            (each for each in self.faults if each.call == call and 0 <= number - each.after < each.times), None
        )
        if fault is None or fault.is_processed:
            done = do()
            reply = done if isinstance(done, Reply) else await done
            self.notify()
            if fault is None:
                return reply
        if fault.reply is None:
            raise _Broken
        return fault.reply


@define
class _Body(httpx.AsyncByteStream):
    """The body of a request: an iterator that may be left at any piece, since the application may refuse the call."""

    _left: bytes

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        if not self._left:
            raise StopAsyncIteration
        piece, self._left = self._left[:_PIECE], self._left[_PIECE:]
        return piece


@define
class _Transport(httpx.AsyncBaseTransport):
    """Hands requests to the application, and ends a connection where that is to be."""

    _inner: httpx.ASGITransport

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        request.stream = _Body(await request.aread())
        try:
            return await self._inner.handle_async_request(request)
        except _Broken:
            raise httpx.ReadError("the connection ended", request=request) from None
