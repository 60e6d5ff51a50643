"""What sidecars may call: one path for each delivery, and below it the calls of GitLab's that its job needs.

Nothing is kept on the way. A call comes with the token that the first answer has given out, and goes on with the job's
own; who has another one, or another job's, or another delivery's, is refused before anything is sent on.
"""

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from http import HTTPStatus
from typing import Protocol, TypeAlias

import anyio
from anyio.abc import TaskGroup
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from fleeting.plugins import one_line
from gitlab_jobs import GitLabJobsError, Outcome
from gitlab_jobs.client import Passing
from gitlab_jobs.coordinator import MAX_BODY, MAX_PATCH, body_of, job_token, object_in, refuse, runner_token
from taskscaler_gitlab.relay._calls import STATES, said_of_end, to_gitlab, to_sidecar
from taskscaler_gitlab.relay._work import CallRefused, NotYet, RelayWork

CALL, TRANSFER = 60.0, 3600.0
"""Seconds that GitLab has to answer to a call, and that a file may take."""

MOST_CALLS = 16
"""Calls on the path of one delivery that are answered at a time, whoever makes them."""

GATHERED, HELD_BACK = 128 << 10, 0.1
"""Bytes of a file that go on together, at most, and seconds for which they wait for each other while more comes."""

_PREFIX = "/d/{delivery}/api/v4"
_NUMBER = "{number:int}"
_Handler: TypeAlias = Callable[[Request], Awaitable[Response]]

log = logging.getLogger("taskscaler.gitlab")


class Deliveries(Protocol):
    """Finds who answers."""

    def find(self, delivery: str) -> RelayWork | None:
        """The job of a delivery that is under way, or was a moment ago."""
        ...


def application(deliveries: Deliveries) -> Starlette:
    """The routes."""
    calls = _Calls(deliveries)
    routes: tuple[tuple[str, str, _Handler], ...] = (
        ("POST", "jobs/request", calls.request),
        ("PUT", f"jobs/{_NUMBER}", calls.update),
        ("PATCH", f"jobs/{_NUMBER}/trace", calls.append),
        ("POST", f"jobs/{_NUMBER}/artifacts", calls.upload),
        ("GET", f"jobs/{_NUMBER}/artifacts", calls.download),
    )
    return Starlette(
        routes=[Route(f"{_PREFIX}/{path}", handler, methods=[method]) for method, path, handler in routes],
        exception_handlers={
            HTTPException: refuse,
            ClientDisconnect: _nobody_listens,
            GitLabJobsError: _away,
            OSError: _away,
        },
    )


class _Calls:
    """Sees who calls, and passes on what they may."""

    def __init__(self, deliveries: Deliveries) -> None:
        self._deliveries = deliveries

    async def request(self, request: Request) -> Response:
        """``POST jobs/request``."""
        with self._found(request) as (delivery, work), _refusing():
            body = object_in(await body_of(request, MAX_BODY))
            job = await work.give(delivery, runner_token(request, body), body.get("info"))
        if job is None:
            return Response(status_code=HTTPStatus.NO_CONTENT)
        return Response(job, HTTPStatus.CREATED, media_type="application/json")

    async def update(self, request: Request) -> Response:
        """``PUT jobs/:id``."""
        with self._found(request) as (delivery, work):
            raw = await body_of(request, MAX_BODY)
            body = object_in(raw)
            if body.get("state") not in STATES:
                raise HTTPException(HTTPStatus.BAD_REQUEST, f"expected one of {', '.join(STATES)} as the state")
            token = job_token(request, body)
            with work.until_gitlab_answers():
                await _admit(request, delivery, work, token)
                return await self._told(request, work, token, raw, said_of_end(body))

    async def append(self, request: Request) -> Response:
        """``PATCH jobs/:id/trace``."""
        token = job_token(request, {})
        async with self._admitted(request, token) as work:
            raw = await body_of(request, MAX_PATCH)
            with work.until_gitlab_answers():
                return await self._told(request, work, token, raw)

    async def _told(
        self, request: Request, work: RelayWork, token: str, raw: bytes, said: Outcome | None = None
    ) -> Response:
        """Pass on what the sidecar says of its job, and heed the answer."""
        headers = to_gitlab(request.headers, token, is_streamed=False)
        where = request.method, _path(request)
        async with work.shop.client.pass_on(*where, headers=headers, content=raw, seconds=CALL) as got:
            answer = await got.read()
        _see_no_redirect(got)
        await work.heard(got.answer, said, is_update=request.method == "PUT")
        return Response(answer, got.status, to_sidecar(got.status, got.headers, is_ending=work.is_ending))

    async def upload(self, request: Request) -> Response:
        """``POST jobs/:id/artifacts``: as it comes, as fast as GitLab takes it."""
        token = job_token(request, {})
        async with self._admitted(request, token) as work, aclosing(gathered(request.stream())) as stream:
            headers = to_gitlab(request.headers, token, is_streamed=False)  # without a body
            where = request.method, _path(request)
            async with work.shop.client.pass_on(*where, headers=headers, content=stream, seconds=TRANSFER) as got:
                answer = await got.read()
            _see_no_redirect(got)
            return Response(answer, got.status, to_sidecar(got.status, got.headers, is_ending=False))

    async def download(self, request: Request) -> Response:
        """``GET jobs/:id/artifacts``, of a job that this one depends on; where GitLab sends it, it goes by itself."""
        return _Download(self, job_token(request, {}))

    @contextmanager
    def _found(self, request: Request) -> Iterator[tuple[str, RelayWork]]:
        """Find whose call it is, and count it: before anything of its body is read."""
        delivery: str = request.path_params["delivery"]
        work = self._deliveries.find(delivery)
        if work is None:
            raise HTTPException(HTTPStatus.FORBIDDEN)
        if work.calls >= MOST_CALLS:
            raise HTTPException(HTTPStatus.TOO_MANY_REQUESTS, f"expected at most {MOST_CALLS} calls at a time")
        with work.answering():
            yield delivery, work

    @asynccontextmanager
    async def _admitted(self, request: Request, token: str, *, fetches: bool = False) -> AsyncIterator[RelayWork]:
        """Let a call through if it is about the job of its delivery, once GitLab knows that the job runs."""
        with self._found(request) as (delivery, work):
            await _admit(request, delivery, work, token, fetches=fetches)
            yield work


async def _admit(request: Request, delivery: str, work: RelayWork, token: str, *, fetches: bool = False) -> None:
    with _refusing():
        await work.admit(delivery, request.path_params["number"], token, fetches=fetches)


async def gathered(stream: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """Put the pieces of a file together, as large as they may be: each that goes on costs the same.

    One that comes later than `HELD_BACK` after the last goes on at once, so that nobody sees a pause which is none.
    """
    pieces, size, since = [], 0, anyio.current_time()
    async with aclosing(stream):
        async for piece in stream:
            pieces.append(piece)
            size += len(piece)
            now = anyio.current_time()
            if size >= GATHERED or (size and now - since >= HELD_BACK):
                yield b"".join(pieces)
                pieces, size, since = [], 0, anyio.current_time()
    if size:
        yield b"".join(pieces)


class _Download(Response):
    """A file that is passed on while it comes."""

    def __init__(self, calls: _Calls, token: str) -> None:
        """Pass it on to who has this token."""
        super().__init__()
        self._calls = calls
        self._token = token
        self._has_begun = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it, until the other end hangs up."""
        request = Request(scope, receive)
        response: Response | None = None
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_end_with, receive, tasks)
                await self._carry(request, send)
                tasks.cancel_scope.cancel()
        except* HTTPException as group:
            response = await refuse(request, group.exceptions[0])
        except* (GitLabJobsError, OSError) as group:
            if self._has_begun:  # what is cut short has to look like it
                raise
            response = await _away(request, group.exceptions[0])
        if response is not None:
            await response(scope, receive, send)

    async def _carry(self, request: Request, send: Send) -> None:
        token = self._token
        async with self._calls._admitted(request, token, fetches=True) as work:  # noqa: SLF001  (one thing with it)
            headers = to_gitlab(request.headers, token, is_streamed=False)  # without a body
            where = request.method, _path(request)
            async with work.shop.client.pass_on(*where, headers=headers, seconds=TRANSFER) as got:
                back = to_sidecar(got.status, got.headers, is_ending=False, is_download=True)
                raw = [(name.lower().encode(), value.encode("latin-1")) for name, value in back.items()]
                self._has_begun = True
                await send({"type": "http.response.start", "status": got.status, "headers": raw})
                async with got.pieces() as pieces, aclosing(gathered(pieces)) as together:
                    async for piece in together:
                        await send({"type": "http.response.body", "body": piece, "more_body": True})
                await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _end_with(receive: Receive, tasks: TaskGroup) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    tasks.cancel_scope.cancel()


@contextmanager
def _refusing() -> Iterator[None]:
    try:
        yield
    except CallRefused:
        raise HTTPException(HTTPStatus.FORBIDDEN) from None
    except NotYet:
        raise HTTPException(HTTPStatus.BAD_GATEWAY, "GitLab has not answered to the claim yet") from None


def _path(request: Request) -> str:
    """The call, as GitLab has it."""
    path: str = request.scope["path"]  # not of the URL, which some versions put together with the Host header
    rest, query = path.partition("/api/v4/")[2], request.scope["query_string"].decode("latin-1")
    return f"{rest}?{query}" if query else rest


def _see_no_redirect(got: Passing) -> None:
    """A job's token goes to its GitLab alone."""
    if HTTPStatus.MULTIPLE_CHOICES <= got.status < HTTPStatus.BAD_REQUEST:
        log.warning("redirected", extra={"status": got.status})
        raise HTTPException(HTTPStatus.BAD_GATEWAY, "GitLab redirects; use the address that it leads to as the url")


async def _away(_: Request, error: Exception) -> Response:
    log.debug("not_passed_on", extra={"why": one_line(str(error))})
    return JSONResponse({"message": "502 GitLab does not answer"}, HTTPStatus.BAD_GATEWAY)


async def _nobody_listens(_: Request, __: Exception) -> Response:
    return PlainTextResponse("", 499)
