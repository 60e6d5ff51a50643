"""The way to the page: who gets in, what they are given, and what they may change.

The page itself, without anything of the fleet, is for everybody who may connect: there is no secret in it. All else
needs a pass, which a browser has as a cookie that no script reads and no other site's page can have sent; it gets one
for the secret of a link, which stands behind the ``#`` of the address and so in nobody's log. What changes something
has to come from the page, and to bring along what only the page was told, once: browsers send a cookie to whatever
listens on another port of the same host, so that whoever has only the cookie may only look.
"""

import logging
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from hashlib import sha256
from importlib.resources import files
from typing import Any, Final, Protocol

from attrs import define, field, frozen
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fleeting import Clock
from fleeting.plugins import structure
from taskscaler._errors import DaemonRefused
from taskscaler._scaler import Taskscaler
from taskscaler._wire import error_as_data
from taskscaler.serve import _bodies as bodies
from taskscaler.serve._app import read_json, refused
from taskscaler.serve._page._passes import LINK_LASTS, PASS_LASTS, Pass, Passes, name_of
from taskscaler.serve._page._watch import MOST_LOOKING, Watch, written
from taskscaler.serve._peers import Peer
from taskscaler.serve._pieces import Pieces
from taskscaler.serve._tcp import Entrance

HEADERS: Final[Mapping[str, str]] = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
"""Of every answer."""

CSRF = "x-taskscaler-csrf"
"""The header with what a change has to bring along."""

HOLDS: Final = ("cordon", "uncordon", "retain", "unretain")
"""What may be done to an instance."""

_KINDS: Final = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}

_NO_PASS: Final = "this needs a link to the status page, which is good once; `taskscaler link` prints one"  # noqa: S105  (no password)

log = logging.getLogger("taskscaler.page")


class Fleet(Protocol):
    """What may be changed of the daemon."""

    scaler: Taskscaler

    async def drain(self, timeout: float | None, *, delete: bool) -> bool:
        """Hand out no more slots, and end with the last lease."""
        ...


@frozen
class _Asset:
    """A file of the page."""

    body: bytes
    kind: str
    tag: str


def read_assets() -> Mapping[str, _Asset]:
    """Read all files of the page: they are part of the package."""
    assets = {}
    for each in files("taskscaler.serve._page").joinpath("static").iterdir():
        kind = _KINDS.get(each.name.rpartition(".")[2])
        if kind is not None:
            body = each.read_bytes()
            assets[each.name] = _Asset(body, kind, f'"{sha256(body).hexdigest()[:16]}"')
    return assets


@define(eq=False)
class Door:
    """Shows one daemon's fleet to browsers."""

    entrance: Entrance
    watch: Watch
    explain: Callable[[Peer, bodies.Explain], Awaitable[Mapping[str, object]]]
    """Answers what is asked about an instance or a job."""

    fleet: Fleet
    clock: Clock
    without_link: bool = False
    """Whether everybody who can connect may look."""

    port: int = field(default=0, init=False)
    """Where it listens; known once it does."""

    passes: Passes = field(factory=Passes, init=False)
    _assets: Mapping[str, _Asset] = field(factory=read_assets, init=False)

    @property
    def url(self) -> str:
        """Where browsers find it."""
        return self.entrance.url(self.port)

    def link(self, *, changes: bool) -> dict[str, object]:
        """Make a link that is good once, for one who may only look, or change something, too."""
        secret = self.passes.link(self.clock.now(), changes=changes)
        log.info("page_link_made", extra={"link": name_of(secret), "changes": changes})
        return {"url": f"{self.url}/#link={secret}", "seconds": LINK_LASTS, "changes": changes}

    def app(self) -> ASGIApp:
        """Make the application."""
        routes = [
            Route("/", self._index),
            Route("/assets/{name}", self._asset),
            Route("/session", self._answering(self._session)),
            Route("/session", self._answering(self._enter), methods=["POST"]),
            Route("/session", self._answering(self._leave), methods=["DELETE"]),
            Route("/stream", self._answering(self._stream)),
            Route("/explain", self._answering(self._explain)),
            *(Route(f"/{verb}", self._answering(self._hold), methods=["POST"]) for verb in HOLDS),
            Route("/drain", self._answering(self._drain), methods=["POST"]),
        ]
        inner = Starlette(routes=routes, exception_handlers={HTTPException: _no_such_page})

        async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":  # a websocket: to close it is to answer with 403
                await send({"type": "websocket.close"})
                return
            try:
                self._check(Headers(scope=scope), scope["method"], scope["path"])
                app: ASGIApp = inner
            except DaemonRefused as error:
                app = JSONResponse({"error": error_as_data(error)}, error.status, {"connection": "close"})
            await app(scope, receive, _with_headers(send))

        return guarded

    # --- who asks ----------------------------------------------------------------------------------------

    def _check(self, headers: Headers, method: str, path: str) -> None:
        """See whether a request is for us, and from our own page.

        Raises:
            DaemonRefused: It is not.
        """
        self.entrance.check_name(headers)
        scheme = "https" if self.entrance.speaks_tls else "http"
        origin, own = headers.get("origin"), f"{scheme}://{headers['host']}"
        changes = method not in ("GET", "HEAD")
        if (origin is None and changes) or (origin is not None and origin.lower() != own.lower()):
            raise DaemonRefused("only the status page itself may ask; no other site's page may", status=403)
        is_page = path == "/" or path.startswith("/assets/")
        if not is_page and headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            raise DaemonRefused("only the status page itself may ask; no other site's page may", status=403)

    def _cookie(self, request: Request) -> str:
        """What the cookie is called: browsers keep those of all ports of a host together.

        It is the port that the browser sees: that of a tunnel's near end, which may not be ours.
        """
        port = request.headers["host"].rpartition(":")[2]
        tls = self.entrance.speaks_tls
        seen = port if re.fullmatch("[0-9]{1,5}", port) else "443" if tls else "80"
        return f"{'__Host-' if tls else ''}taskscaler-{seen}"

    def _secret(self, request: Request) -> str:
        return request.cookies.get(self._cookie(request), "")

    def _found(self, request: Request) -> Pass | None:
        return self.passes.find(self._secret(request), self.clock.now())

    def _until(self, request: Request) -> float:
        """Until when somebody may look.

        Raises:
            DaemonRefused: They may not.
        """
        if (found := self._found(request)) is not None:
            return found.until
        if self.without_link:
            return self.clock.now() + PASS_LASTS
        raise DaemonRefused(_NO_PASS, status=401)

    def _check_change(self, request: Request) -> Pass:
        """See whether somebody may change something; returns who.

        Raises:
            DaemonRefused: They may not, or it is not they who ask.
        """
        self._until(request)
        found = self._found(request)
        if found is None or not found.changes:
            why = "this link is for looking only; `taskscaler link --changes` prints one for changes"
            raise DaemonRefused(why, status=403)
        if not found.permits(request.headers.get(CSRF, "")):
            why = (
                "this tab may only look, as the link was opened in another; `taskscaler link --changes` prints another"
            )
            raise DaemonRefused(why, status=403)
        return found

    def _answering(self, answer: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            try:
                return await answer(request)
            except ClientDisconnect:
                return Response(status_code=499)
            except Exception as error:  # noqa: BLE001  (each request ends nothing but itself)
                return refused(error, request)

        return endpoint

    # --- what they are given -----------------------------------------------------------------------------

    async def _index(self, request: Request) -> Response:
        if self.without_link or self._found(request):
            self.watch.expect()
        return self._file(request, "index.html")

    async def _asset(self, request: Request) -> Response:
        return self._file(request, request.path_params["name"])

    def _file(self, request: Request, name: str) -> Response:
        asset = self._assets.get(name)
        if asset is None:
            raise HTTPException(404)
        headers = {"etag": asset.tag, "cache-control": "no-cache"}
        if request.headers.get("if-none-match") == asset.tag:
            return Response(status_code=304, headers=headers)
        return Response(asset.body, headers=headers, media_type=asset.kind)

    async def _session(self, request: Request) -> Response:
        """Tell whether changes are permitted, and whether they are to this tab; never again what permits them."""
        self._until(request)
        found = self._found(request)
        here = found is not None and found.permits(request.headers.get(CSRF, ""))
        return _told_once({"entered": found is not None, "changes": found is not None and found.changes, "here": here})

    async def _enter(self, request: Request) -> Response:
        """Trade the secret of a link for a pass."""
        asked: Any = await read_json(request)
        traded = self.passes.trade(str(asked.get("link", "")), self.clock.now())
        if traded is None:
            raise DaemonRefused(
                "this link is not good any more: it was used, or is too old; `taskscaler link` prints another",
                status=403,
            )
        found = traded.found
        response = _told_once({"changes": found.changes, "csrf": traded.csrf if found.changes else None})
        tls = self.entrance.speaks_tls
        response.set_cookie(
            self._cookie(request),
            traded.secret,
            max_age=int(PASS_LASTS),
            path="/",
            secure=tls,
            httponly=True,
            samesite="strict",
        )
        log.info("page_entered", extra={"link": found.name, "changes": found.changes})
        return response

    async def _leave(self, request: Request) -> Response:
        self.passes.end(self._secret(request))
        response = JSONResponse({})
        response.delete_cookie(
            self._cookie(request), path="/", secure=self.entrance.speaks_tls, httponly=True, samesite="strict"
        )
        return response

    async def _stream(self, request: Request) -> Response:
        """Tell what changes; strangers, if they may look at all, leave room for those who came by a link."""
        until = self._until(request)
        most = MOST_LOOKING if self._found(request) else MOST_LOOKING * 3 // 4
        if request.method == "HEAD" or self.watch.looking >= most:
            return Response(_FULL, headers={"cache-control": "no-store"}, media_type="text/event-stream")
        return Pieces("text/event-stream", self._told(request, until), self.watch.counted)

    async def _told(self, request: Request, until: float) -> AsyncGenerator[bytes]:
        """Tell what changes, for as long as whoever looks may."""
        async with aclosing(self.watch.told(until)) as told:
            async for piece in told:
                if not (self.without_link or self._found(request)):
                    return
                yield piece

    async def _explain(self, request: Request) -> Response:
        self._until(request)
        asked = structure(bodies.of_query(request.query_params, bodies.Explain), bodies.Explain)
        answer = await self.explain(request.state.peer, asked)
        return JSONResponse(answer, headers={"cache-control": "no-store"})

    # --- what they may change ----------------------------------------------------------------------------

    async def _hold(self, request: Request) -> Response:
        found = self._check_change(request)
        verb = request.url.path.strip("/")
        asked = structure(await read_json(request), bodies.OfInstance)
        hold = getattr(self.fleet.scaler, verb)
        await (hold(asked.instance, asked.why) if verb in ("cordon", "retain") else hold(asked.instance))
        log.info("page_changed", extra={"what": verb, "instance": asked.instance, "link": found.name})
        self.watch.look_again()
        return JSONResponse({})

    async def _drain(self, request: Request) -> Response:
        """Begin to drain; who asks need not wait for the end."""
        found = self._check_change(request)
        structure(await read_json(request), bodies.Nothing)
        log.info("page_changed", extra={"what": "drain", "link": found.name})
        await self.fleet.drain(0.0, delete=False)
        self.watch.look_again()
        return JSONResponse({})


_FULL: Final = b"retry: 10000\n\n" + written(
    "full", {"why": "too many browsers look at this page already; it is tried again"}
)


def _told_once(data: Mapping[str, object]) -> Response:
    return JSONResponse(data, headers={"cache-control": "no-store"})


def _with_headers(send: Send) -> Send:
    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers[name] = value
        await send(message)

    return sent


async def _no_such_page(_: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    refusal = DaemonRefused("there is nothing here; the page is at /", status=status)
    return JSONResponse({"error": error_as_data(refusal)}, status)
