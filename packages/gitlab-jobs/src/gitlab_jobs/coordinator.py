"""GitLab's side of the job protocol as an ASGI application: any program can be the GitLab of its runners.

The application checks what comes in, holds long polls, and streams files; what the answers are, a `Backend` decides.
It needs the extra ``server``.
"""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import anyio
from attrs import frozen
from python_multipart.exceptions import MultipartParseError
from starlette.applications import Starlette
from starlette.datastructures import FormData, QueryParams, UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from gitlab_jobs._errors import PayloadInvalid
from gitlab_jobs._json import decode_object, encode_job
from gitlab_jobs._payload import Job
from gitlab_jobs._server import Reply

__all__ = [
    "MAX_BODY",
    "MAX_PATCH",
    "Backend",
    "Reply",
    "Upload",
    "application",
    "body_of",
    "job_token",
    "object_in",
    "refuse",
    "runner_token",
]

MAX_BODY = 1 << 20
"""Bytes of a call's JSON."""

MAX_PATCH = 4 << 20
"""Bytes of a patch; runners send one mebibyte."""

MAX_UPLOAD = 1 << 30
"""Bytes of an artifact."""

BODY_SECONDS, UPLOAD_SECONDS = 60.0, 3600.0
"""Within which a body, or a file, has to be here."""

_LONGEST_LENGTH = 20
"""Digits of a number of bytes that are looked at."""

_NUMBER = "{number:int}"


@frozen(kw_only=True)
class Upload:
    """A file that a job leaves."""

    filename: str
    """What the runner calls it; not to be trusted as a path."""

    artifact_type: str
    """``archive``, or the kind of report."""

    artifact_format: str
    """``zip``, ``gzip`` or ``raw``."""

    file: UploadFile
    """Its content, for as long as the call lasts."""


class Backend(Protocol):
    """What decides; each method is a call, and a `Reply` its answer. Tokens come from header or body."""

    async def verify(self, token: str) -> Reply:
        """``POST runners/verify``."""

    async def register(self, token: str, body: Mapping[str, Any]) -> Reply:
        """``POST runners``."""

    async def unregister(self, token: str) -> Reply:
        """``DELETE runners`` or ``runners/managers``."""

    async def reset(self, token: str) -> Reply:
        """``POST runners/reset_authentication_token``."""

    async def request(self, token: str, body: Mapping[str, Any]) -> Reply:
        """``POST jobs/request``, for as long as there is none; it is cancelled when the runner hangs up."""

    async def update(self, number: int, token: str, body: Mapping[str, Any]) -> Reply:
        """``PUT jobs/:id``."""

    async def append(self, number: int, token: str, content_range: str | None, body: bytes) -> Reply:
        """``PATCH jobs/:id/trace``."""

    async def may_upload(self, number: int, token: str) -> Reply | None:
        """``POST jobs/:id/artifacts``, before anything of the file is read: the refusal, if it is one."""

    async def upload(self, number: int, token: str, upload: Upload) -> Reply:
        """The same, with the file."""

    async def download(self, number: int, token: str) -> Reply | Path:
        """``GET jobs/:id/artifacts``: the file."""


_Handler: TypeAlias = Callable[[Request], Awaitable[Response]]


def application(backend: Backend, *, prefix: str = "") -> Starlette:
    """The routes, below *prefix* if runners have a path in their URL."""
    calls = _Calls(backend)
    routes: tuple[tuple[str, str, _Handler], ...] = (
        ("POST", "runners/verify", calls.verify),
        ("POST", "runners", calls.register),
        ("DELETE", "runners", calls.unregister),
        ("DELETE", "runners/managers", calls.unregister),
        ("POST", "runners/reset_authentication_token", calls.reset),
        ("POST", "jobs/request", calls.request),
        ("PUT", f"jobs/{_NUMBER}", calls.update),
        ("PATCH", f"jobs/{_NUMBER}/trace", calls.append),
        ("POST", f"jobs/{_NUMBER}/artifacts", calls.upload),
        ("GET", f"jobs/{_NUMBER}/artifacts", calls.download),
    )
    return Starlette(
        routes=[Route(f"{prefix}/api/v4/{path}", handler, methods=[method]) for method, path, handler in routes],
        exception_handlers={HTTPException: refuse, ClientDisconnect: _nobody_listens},
    )


class _Calls:
    """Reads a call, has it decided, and writes the answer."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def verify(self, request: Request) -> Response:
        token, _ = await _runner(request)
        return _answer(await self._backend.verify(token))

    async def register(self, request: Request) -> Response:
        return _answer(await self._backend.register(*await _runner(request)))

    async def unregister(self, request: Request) -> Response:
        token, _ = await _runner(request)
        return _answer(await self._backend.unregister(token))

    async def reset(self, request: Request) -> Response:
        token, _ = await _runner(request)
        return _answer(await self._backend.reset(token))

    async def request(self, request: Request) -> Response:
        token, body = await _runner(request)
        reply: Reply | None = None
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_end_when_hung_up, request, tasks.cancel_scope)
                reply = await self._backend.request(token, body)
                tasks.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        return _answer(reply) if reply is not None else Response(status_code=204)

    async def update(self, request: Request) -> Response:
        body = await _object(request)
        return _answer(await self._backend.update(_number(request), job_token(request, body), body))

    async def append(self, request: Request) -> Response:
        body = await body_of(request, MAX_PATCH)
        content_range = request.headers.get("Content-Range")
        return _answer(await self._backend.append(_number(request), job_token(request, {}), content_range, body))

    async def upload(self, request: Request) -> Response:
        number, token = _number(request), job_token(request, {})
        refusal = await self._backend.may_upload(number, token)
        if refusal is not None:
            return _answer(refusal)
        _check_announced(request, MAX_UPLOAD)
        limited = Request(request.scope, _limited(request, MAX_UPLOAD))
        try:
            with anyio.fail_after(UPLOAD_SECONDS):
                async with limited.form(max_files=1, max_fields=8) as form:
                    upload = _upload(form, request.query_params)
                    return _answer(await self._backend.upload(number, token, upload))
        except TimeoutError:
            raise HTTPException(408, f"expected the file within {UPLOAD_SECONDS:g} s") from None
        except (MultiPartException, MultipartParseError) as error:
            raise HTTPException(400, f"expected a form with a file ({error})") from None
        except OSError as error:  # where parts are kept while they come
            raise HTTPException(500, error.strerror or "the file cannot be kept") from None

    async def download(self, request: Request) -> Response:
        found = await self._backend.download(_number(request), job_token(request, {}))
        if not isinstance(found, Path):
            return _answer(found)
        if not await anyio.Path(found).is_file():
            raise HTTPException(404, "the file is gone")
        return FileResponse(found, filename=found.name, media_type="application/octet-stream")


def _upload(form: FormData, query: QueryParams) -> Upload:
    """A file, and what it is: GitLab Runner says it in the address, others in the form."""
    file = form.get("file")
    if not isinstance(file, UploadFile):
        raise HTTPException(400, "expected a part named file")

    def said(name: str, otherwise: str) -> str:
        found = query.get(name) or form.get(name)
        return found if isinstance(found, str) and found else otherwise

    return Upload(
        filename=file.filename or "artifacts.zip",
        artifact_type=said("artifact_type", "archive"),
        artifact_format=said("artifact_format", "zip"),
        file=file,
    )


async def _runner(request: Request) -> tuple[str, Mapping[str, Any]]:
    """The token of a runner, and what it says."""
    body = await _object(request)
    return runner_token(request, body), body


def runner_token(request: Request, body: Mapping[str, Any]) -> str:
    """The token of a runner, empty if there is none: runners up to 15 have it in the body alone."""
    return _token(request, body, "RUNNER-TOKEN", "PRIVATE-TOKEN")


def job_token(request: Request, body: Mapping[str, Any]) -> str:
    """The token of a job, empty if there is none.

    Runners up to 15 have it in the body of ``PUT`` alone, and those of 17 there and in the header of a runner's.
    """
    return _token(request, body, "JOB-TOKEN", "PRIVATE-TOKEN")


def _token(request: Request, body: Mapping[str, Any], *headers: str) -> str:
    given = [request.headers[each] for each in headers if request.headers.get(each)]
    in_body = body.get("token") or request.query_params.get("token")
    found = given[0] if given else in_body
    return found if isinstance(found, str) else ""


def _number(request: Request) -> int:
    number: int = request.path_params["number"]
    return number


async def _object(request: Request) -> Mapping[str, Any]:
    return object_in(await body_of(request, MAX_BODY))


def object_in(body: bytes) -> Mapping[str, Any]:
    """Read a call's JSON, which has to be an object; answers 400 if it is none."""
    try:
        return decode_object(body)
    except PayloadInvalid as error:
        raise HTTPException(400, str(error)) from None


async def body_of(request: Request, most: int) -> bytes:
    """Read a call's body; answers 413 if it has more bytes than that, 408 if it takes too long."""
    _check_announced(request, most)
    body = bytearray()
    try:
        with anyio.fail_after(BODY_SECONDS):
            async with aclosing(request.stream()) as chunks:
                async for chunk in chunks:
                    body += chunk
                    if len(body) > most:
                        raise HTTPException(413, f"expected at most {most} bytes")
    except TimeoutError:
        raise HTTPException(408, f"expected the whole of it within {BODY_SECONDS:g} s") from None
    return bytes(body)


def _check_announced(request: Request, most: int) -> None:
    """Refuse what is too large before any of it is read."""
    announced = request.headers.get("Content-Length", "")
    if announced.isascii() and announced.isdigit() and (len(announced) > _LONGEST_LENGTH or int(announced) > most):
        raise HTTPException(413, f"expected at most {most} bytes, found {announced[:_LONGEST_LENGTH]}")


async def _end_when_hung_up(request: Request, scope: anyio.CancelScope) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    scope.cancel()


def _limited(request: Request, most: int) -> Callable[[], Awaitable[Any]]:
    """The parts of a body as they come, until there are too many bytes."""
    size = 0

    async def receive() -> Any:  # noqa: ANN401  (ASGI's)
        nonlocal size
        message = await request.receive()
        size += len(message.get("body", b""))
        if size > most:
            raise HTTPException(413, f"expected at most {most} bytes")
        return message

    return receive


def _answer(reply: Reply) -> Response:
    headers = dict(reply.headers)
    if isinstance(reply.body, Job):
        return Response(encode_job(reply.body), reply.status, headers, media_type="application/json")
    if isinstance(reply.body, bytes):
        return Response(reply.body, reply.status, headers)
    if reply.body is not None:
        return JSONResponse(reply.body, reply.status, headers)
    return Response(status_code=reply.status, headers=headers)


async def refuse(_: Request, error: Exception) -> Response:
    """Answer as GitLab does to what it does not take."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    detail = error.detail if isinstance(error, HTTPException) else ""
    return JSONResponse({"message": f"{status} {detail}"}, status)


async def _nobody_listens(_: Request, __: Exception) -> Response:
    return PlainTextResponse("", 499)
