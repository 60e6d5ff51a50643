"""One call to GitLab: bounded in bytes and time, repeated if it is busy, never redirected to somebody else."""

import json
import logging
import random
import ssl
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, cast

import anyio
import httpx
from attrs import frozen

from gitlab_jobs._errors import Refused, Unreachable
from gitlab_jobs._job import is_page
from gitlab_jobs._polling import ATTEMPTS, is_retried, seconds_to_wait

MAX_ANSWER = 1 << 20
"""Bytes of an answer that is not a job."""

MAX_MESSAGE = 300
"""Characters of what GitLab says that are repeated in an error."""

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_SAME_METHOD = frozenset({307, 308})
_MOST_REDIRECTS = 3
_NO_TLS = frozenset({"WRONG_VERSION_NUMBER", "UNKNOWN_PROTOCOL", "RECORD_LAYER_FAILURE", "HTTP_REQUEST"})
"""What OpenSSL's releases make of an answer that is no TLS."""


IDLE = 600.0
"""Seconds in which nothing comes, or can be sent, after which a call is given up, however long it may take; GitLab
Runner waits as long for the beginning of an answer."""

_log = logging.getLogger("gitlab_jobs")


@frozen(kw_only=True)
class Received:
    """An answer, read to its end."""

    status: int
    """The HTTP status."""

    headers: Mapping[str, str]
    """Its headers; their names in any case."""

    body: bytes
    """What it says."""

    is_retried: bool = False
    """Whether an earlier answer said that the call might be repeated."""

    def refused(self, call: str) -> Refused:
        """What to raise if this is not the answer that was wanted."""
        if is_page(self.headers):
            what = " with a page for a browser; check the address, and what stands between"
        elif is_redirect(self.status):
            what = f", a redirect{_whither(self.headers)}; use the address that it leads to as the url"
        else:
            what = _message(self.body)
        return Refused(f"{call}: GitLab answered {self.status}{what}", status=self.status)


@frozen(kw_only=True)
class Call:
    """What is asked."""

    method: str
    """Of HTTP."""

    path: str
    """Below ``/api/v4/``."""

    headers: Mapping[str, str]
    """With the token."""

    content: bytes | None = None
    """The body."""

    most: int = MAX_ANSWER
    """Bytes that the answer may have."""

    seconds: float = 60.0
    """How long one try may take."""

    patience: float = 60.0
    """How long to wait at most between two tries, whatever GitLab asks for."""

    attempts: int = ATTEMPTS
    """So often it is made at most."""

    @property
    def name(self) -> str:
        """What errors call it."""
        return f"{self.method} {self.path.partition('?')[0]}"


Observer = Callable[[str, int, float], None]
"""Hears of each answer: the call, such as ``POST jobs/request``, its status, and after how many seconds it began."""


class Http:
    """Calls to one GitLab."""

    def __init__(self, base: httpx.URL, http: httpx.AsyncClient) -> None:
        """Call below this address."""
        self.base = base
        self.http = http
        self.observer: Observer | None = None
        self.on_retry: Callable[[str], None] | None = None
        """Hears of each call that is made again, as the observer calls it."""

    async def call(self, call: Call) -> Received:
        """Make a call; again if the answer is that GitLab is busy.

        Raises:
            Unreachable: There was no answer, or none that could be read.
        """
        attempt, is_repeated = 1, False
        while True:
            received = await self._once(call)
            if attempt >= call.attempts or not is_retried(received.status):
                return Received(
                    status=received.status, headers=received.headers, body=received.body, is_retried=is_repeated
                )
            wall = datetime.now(tz=UTC).timestamp()
            seconds = seconds_to_wait(attempt, received.headers, wall=wall, random=random.random())  # noqa: S311  (no secret)
            _log.debug("busy", extra={"call": call.name, "status": received.status, "wait_s": seconds})
            if self.on_retry is not None:
                self.on_retry(call.name)
            await anyio.sleep(min(seconds, call.patience))
            attempt, is_repeated = attempt + 1, True

    async def _once(self, call: Call) -> Received:
        url, redirects = self.base.join(call.path), 0
        while True:
            where = (call.method, url, call.headers, call.content)
            async with self.open(*where, seconds=call.seconds, name=call.name) as got:
                body = await read(got, call.most, call.name)
                if got.status_code not in _SAME_METHOD or redirects == _MOST_REDIRECTS:
                    return Received(status=got.status_code, headers=got.headers, body=body)
                url, redirects = self._redirected(url, got, call.name), redirects + 1

    @asynccontextmanager
    async def open(
        self,
        method: str,
        url: httpx.URL,
        headers: Mapping[str, str],
        content: bytes | AsyncIterable[bytes] | None = None,
        *,
        seconds: float,
        name: str,
    ) -> AsyncIterator[httpx.Response]:
        """Send a request, and have its answer until the block is left; all of that within the time."""
        if not all(each.isascii() and each.isprintable() and each == each.strip() for each in headers.values()):
            raise Refused(f"{name}: the token has a character that no header can have", status=HTTPStatus.BAD_REQUEST)
        headers = {"Accept-Encoding": "identity", **headers}
        request = self.http.build_request(method, url, headers=headers, content=content, timeout=min(seconds, IDLE))
        begun = anyio.current_time()
        try:
            with anyio.fail_after(seconds):
                response = await self.http.send(request, stream=True, follow_redirects=False)
                if self.observer is not None:
                    self.observer(name, response.status_code, anyio.current_time() - begun)
                try:
                    yield response
                finally:
                    with anyio.move_on_after(1, shield=True):
                        await response.aclose()
        except TimeoutError:
            raise Unreachable(f"{name}: no answer from {self.base.host} within {seconds:g} s") from None
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError) as error:
            raise Unreachable(f"{name}: {_reason(error, url)}") from error

    def _redirected(self, url: httpx.URL, got: httpx.Response, name: str) -> httpx.URL:
        """Where a call goes on: with our token, so nowhere else than to this GitLab."""
        target = location(url, got, name)
        if origin(target) != origin(self.base):
            raise Refused(
                f"{name}: GitLab redirects to {_address(target)}, where our token does not belong;"
                " use that address as the url if it is right",
                status=got.status_code,
            )
        return target


def is_redirect(status: int) -> bool:
    """Whether what was asked for is elsewhere."""
    return status in _REDIRECTS


def location(url: httpx.URL, got: httpx.Response, name: str) -> httpx.URL:
    """Where an answer redirects to."""
    try:
        target = url.join(got.headers.get("Location", ""))
    except httpx.InvalidURL:
        target = url.copy_with(scheme="about")
    if target.scheme not in ("http", "https") or not target.host:
        raise Refused(f"{name}: GitLab redirects to an address that cannot be used", status=got.status_code)
    return target


def origin(url: httpx.URL) -> tuple[str, str, int | None]:
    """What has to be the same for a token to go there."""
    return url.scheme, url.host, url.port or {"http": 80, "https": 443}.get(url.scheme)


async def read(got: httpx.Response, most: int, name: str) -> bytes:
    """A body of at most so many bytes."""
    body = bytearray()
    async with pieces(got) as chunks:
        async for chunk in chunks:
            body += chunk
            if len(body) > most:
                raise Refused(f"{name}: the answer has more than {most} bytes", status=got.status_code)
    return bytes(body)


def pieces(got: httpx.Response) -> "aclosing[AsyncGenerator[bytes, None]]":
    """A body as it comes; what reads it may stop at any piece."""
    return aclosing(cast("AsyncGenerator[bytes, None]", got.aiter_raw()))


def _whither(headers: Mapping[str, str]) -> str:
    """Where a redirect leads, without what its path may say."""
    try:
        target = httpx.URL(headers.get("Location", ""))
    except httpx.InvalidURL:
        return ""
    return f" to {_address(target)}" if target.host else ""


def _address(url: httpx.URL) -> str:
    return _shown(f"{url.scheme}://{url.netloc.decode(errors='replace')}")


def _message(body: bytes) -> str:
    """What GitLab says is wrong, on one line."""
    try:
        found: Any = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    message = (found.get("message") or found.get("error")) if isinstance(found, dict) else None
    if isinstance(message, dict):
        fields = ((key, each if isinstance(each, list) else [each]) for key, each in message.items())
        message = "; ".join(f"{key} {', '.join(map(str, each))}" for key, each in fields)
    if not isinstance(message, str) or not message:
        return ""
    return f": {_shown(message)}"


def _shown(text: str) -> str:
    """The beginning of what somebody else has written, on one line."""
    return "".join(letter if letter.isprintable() else " " for letter in text[:MAX_MESSAGE])


def _reason(error: Exception, url: httpx.URL) -> str:
    """Why there is no answer, on one line; what a certificate lacks lies below what httpx raises."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLError):
        cause = cause.__cause__ or cause.__context__
    if isinstance(cause, ssl.SSLCertVerificationError):
        why = cause.verify_message.rstrip(".")
        advice = "if it is the right one, pass a context that trusts its authority as tls"
        return f"the certificate of {url.host} cannot be trusted: {why}; {advice}"
    if cause is not None and cause.reason in _NO_TLS:
        return f"{url.host} does not speak TLS there; check the address, or begin it with http://"
    why = _shown((str(error) or type(error).__name__).partition("\n")[0]).rstrip(".")
    return f"{url.host} cannot be reached: {why}" if isinstance(error, httpx.ConnectError) else why
