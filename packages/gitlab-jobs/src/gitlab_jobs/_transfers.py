"""Artifacts, to GitLab and from it: streamed, bounded, and our token for nobody but GitLab."""

import secrets
from collections.abc import AsyncGenerator, AsyncIterable, Mapping
from contextlib import aclosing, suppress
from http import HTTPStatus
from pathlib import Path
from urllib.parse import urlencode

import anyio
import httpx

from gitlab_jobs._errors import NotKept, Refused, Unreachable
from gitlab_jobs._http import MAX_ANSWER, Http, Received, is_redirect, location, origin, pieces, read
from gitlab_jobs._job import is_page
from gitlab_jobs._payload import Artifact, Dependency, Job

MAX_ARTIFACTS = 1 << 30
"""Bytes of an archive that is fetched, unless the caller says otherwise."""

SECONDS = 3600.0
"""How long one transfer may take."""

_PIECE = 64 << 10
_TRIES, _TRIES_IF_BUSY, _PAUSE = 3, 6, 1.0
_MOST_REDIRECTS = 5
_FATAL_UPLOAD = frozenset({400, 401, 403, 405, 413})
_FATAL_DOWNLOAD = frozenset({401, 403, 404})


async def upload(http: Http, job: Job, artifact: Artifact, file: Path, *, filename: str) -> None:
    """Send a file as a part of a form; repeated a few times.

    What kind of file it is, is said in the address, where GitLab Runner has it, and in the form, where others look.
    """
    kind = {"artifact_format": artifact.artifact_format, "artifact_type": artifact.artifact_type}
    kind = {key: each for key, each in kind.items() if each}
    query = kind | ({"expire_in": artifact.expire_in} if artifact.expire_in else {})
    name = f"POST jobs/{job.id}/artifacts"
    url = http.base.join(f"jobs/{job.id}/artifacts?{urlencode(query)}")
    boundary = secrets.token_hex(16)
    headers = {"JOB-TOKEN": job.token, "Content-Type": f"multipart/form-data; boundary={boundary}"}
    attempt = 1
    while True:
        error: Refused | Unreachable
        try:
            async with aclosing(_form(file, filename, boundary, kind)) as form:
                received = await _post(http, url, headers, form, name)
            if received.status == HTTPStatus.CREATED:
                return
            error = received.refused(name)
            most = _TRIES_IF_BUSY if received.status == HTTPStatus.SERVICE_UNAVAILABLE else _TRIES
            if received.status in _FATAL_UPLOAD or is_redirect(received.status):
                raise error
        except Unreachable as found:
            error, most = found, _TRIES
        if attempt >= most:
            raise error
        attempt += 1
        await anyio.sleep(_PAUSE)


async def _post(
    http: Http, url: httpx.URL, headers: Mapping[str, str], form: AsyncIterable[bytes], name: str
) -> Received:
    async with http.open("POST", url, headers, form, seconds=SECONDS, name=name) as got:
        return Received(status=got.status_code, headers=got.headers, body=await read(got, MAX_ANSWER, name))


async def download(http: Http, dependency: Dependency, to: Path, *, limit: int) -> int:
    """Fetch an archive; the first try may lead to where GitLab keeps it, the others have GitLab bring it."""
    for attempt in range(_TRIES):
        try:
            return await _fetch(http, dependency, to, limit=limit, direct=attempt == 0)
        except Refused as error:
            if error.status in _FATAL_DOWNLOAD or error.status < HTTPStatus.BAD_REQUEST or attempt == _TRIES - 1:
                raise
        except Unreachable:
            if attempt == _TRIES - 1:
                raise
        await anyio.sleep(_PAUSE)
    raise AssertionError("unreachable")  # pragma: no cover


async def _fetch(http: Http, dependency: Dependency, to: Path, *, limit: int, direct: bool) -> int:
    name = f"GET jobs/{dependency.id}/artifacts"
    url = http.base.join(f"jobs/{dependency.id}/artifacts{'?direct_download=true' if direct else ''}")
    for _ in range(_MOST_REDIRECTS + 1):
        ours = origin(url) == origin(http.base)
        headers = {"JOB-TOKEN": dependency.token} if ours else {}
        async with http.open("GET", url, headers, seconds=SECONDS, name=name) as got:
            if got.status_code == HTTPStatus.OK:
                if is_page(got.headers):
                    raise Refused(f"{name}: found a page for a browser instead of an archive", status=HTTPStatus.OK)
                return await _save(got, to, limit, name)
            body = await read(got, MAX_ANSWER, name)
            if not is_redirect(got.status_code):
                raise Received(status=got.status_code, headers=got.headers, body=body).refused(name)
            target = location(url, got, name)
        if url.scheme == "https" and target.scheme != "https":
            raise Refused(f"{name}: GitLab redirects from https to http", status=HTTPStatus.FOUND)
        url = target
    raise Refused(f"{name}: GitLab redirects more than {_MOST_REDIRECTS} times", status=HTTPStatus.FOUND)


async def _save(got: httpx.Response, to: Path, limit: int, name: str) -> int:
    """Write it to a file, which is there if all of it is."""
    size, is_whole, is_ours = 0, False, False
    try:
        async with await anyio.open_file(to, "wb") as file, pieces(got) as chunks:
            is_ours = to.is_file()  # noqa: ASYNC240  (it is open, and no device)
            async for chunk in chunks:
                size += len(chunk)
                if size > limit:
                    raise Refused(f"{name}: the archive has more than {limit} bytes", status=got.status_code)
                await file.write(chunk)
        is_whole = True
    except OSError as error:
        raise NotKept(f"{name}: {to} cannot be written: {error.strerror or error}") from None
    finally:
        if is_ours and not is_whole:
            with suppress(OSError):
                to.unlink(missing_ok=True)  # noqa: ASYNC240  (also if this is being cancelled)
    return size


async def _form(file: Path, filename: str, boundary: str, fields: Mapping[str, str]) -> AsyncGenerator[bytes, None]:
    for key, value in fields.items():
        yield f'--{boundary}\r\nContent-Disposition: form-data; name="{key}"\r\n\r\n{value}\r\n'.encode()
    quoted = filename.replace("\\", "_").replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A")
    yield (
        f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="{quoted}"\r\n'
        "Content-Type: application/octet-stream\r\n\r\n"
    ).encode()
    async with await anyio.open_file(file, "rb") as opened:
        while chunk := await opened.read(_PIECE):
            yield chunk
    yield f"\r\n--{boundary}--\r\n".encode()
