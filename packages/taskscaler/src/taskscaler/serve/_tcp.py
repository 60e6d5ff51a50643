"""The daemon over TCP, if that is asked for: on which addresses, under which names, and to whom it opens.

Whoever connects has to speak TLS unless all addresses are this machine's own, has to call the daemon by one of its
names, may be no page of a website, and has to know the token. Nothing else is looked at before that: who does not know
the token does not learn which paths there are.
"""

import os
import re
import socket
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from ipaddress import ip_address
from pathlib import Path
from secrets import compare_digest, token_urlsafe
from typing import Any, Self, cast

import anyio
from anyio.abc import ByteStream, SocketAttribute, SocketListener
from anyio.streams.tls import TLSStream
from attrs import define, field, frozen
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from fleeting.plugins import make_private, open_private
from taskscaler._errors import DaemonRefused, SocketRefused
from taskscaler._wire import error_as_data
from taskscaler.serve._listen import BACKLOG
from taskscaler.serve._peers import Peer
from taskscaler.serve._server import HEARING, hear_out, written

MOST_CONNECTIONS = 1024
"""At a time, on each address: strangers, too, may connect, and take none of the places on the Unix socket."""

HANDSHAKE = 15.0
"""Seconds until a connection has agreed on TLS."""

KEEP_ALIVE = (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 30_000))
"""A machine that is gone, as a whole, is noticed after 30 s: in seconds, the last one in milliseconds."""

ROUNDS = 5
"""So many times two ends of TLS 1.3 exchange messages at the most until they agree."""

SHORTEST_TOKEN, LONGEST_TOKEN = 32, 512
_TOKEN = re.compile(rb"[!-~]{%d,%d}" % (SHORTEST_TOKEN, LONGEST_TOKEN))

OWN_NAMES = frozenset({"localhost", "taskscaler", "127.0.0.1", "::1"})
"""What a daemon on this machine's own addresses is called, through a tunnel too."""

_TLS_BEGINS = b"\x16"
"""The first byte of a handshake; no request begins with it."""

_SPEAK_TLS = written(400, "this port speaks TLS only; use https://")


@frozen(kw_only=True)
class Listen:
    """Where to listen, and with what."""

    host: str
    """A name or an address; empty: all addresses."""

    port: int
    """0: one that is free."""

    token: Path | None = None
    """The file with the token, which is made if it is missing; None: it opens nothing to a token."""

    certificate: Path | None = None
    """PEM, with those in between; None: no TLS."""

    key: Path | None = None
    """PEM; None: in the same file."""

    option: str = "--listen"
    """What asked for it."""

    certificate_option: str = "--tls-cert"
    """What names a certificate."""

    called: str = "the daemon"
    """What listens, for people."""

    plaintext: bool = False
    """Whether it listens without TLS for other machines, too, because a proxy before it ends TLS."""


@frozen
class _Keys:
    """What is read from files, and read again when the daemon reloads."""

    token: bytes | None = field(repr=False)
    context: ssl.SSLContext | None
    names: frozenset[str]
    """What the daemon may be called; ``*.`` stands for one more part."""


@define(eq=False)
class Entrance:
    """Lets in over TCP whoever has the token."""

    asked: Listen
    addresses: Sequence[str]
    _keys: _Keys = field(init=False)

    @classmethod
    def of(cls, asked: Listen) -> Self:
        """Prepare it, and make the token if there is none; nobody can come in yet.

        Raises:
            SocketRefused: It would not be safe, or something cannot be used.
        """
        addresses = addresses_of(asked.host, asked.port, asked.option)
        if asked.certificate is None and not asked.plaintext and not all(map(is_own, addresses)):
            where = asked.host or "all addresses"
            raise SocketRefused(
                f"{where}: without TLS, {asked.called} listens on this machine's own addresses only; "
                f"name a certificate with {asked.certificate_option}, or listen on 127.0.0.1"
            )
        self = cls(asked, addresses)
        self.reload()
        return self

    def reload(self) -> None:
        """Read token, certificate and key again; who is connected stays so.

        Raises:
            SocketRefused: One of them cannot be used; those before still apply.
        """
        asked = self.asked
        own = OWN_NAMES if all(map(is_own, self.addresses)) else frozenset[str]()
        context, certified = None, frozenset[str]()
        if asked.certificate is not None:
            context, certified = _tls(asked.certificate, asked.key)
        named = {asked.host.lower()} if asked.host and not _is_wildcard(asked.host) else set[str]()
        token = None if asked.token is None else _token(asked.token)
        self._keys = _Keys(token, context, own | certified | named)

    def url(self, port: int) -> str:
        """Where clients find it; of all addresses, under the name of this machine."""
        host = socket.gethostname() if _is_wildcard(self.asked.host) else self.asked.host
        return f"{'http' if self._keys.context is None else 'https'}://{f'[{host}]' if ':' in host else host}:{port}"

    async def admit(self, stream: ByteStream) -> tuple[ByteStream, Peer]:
        """Agree on TLS.

        Raises:
            SocketRefused: The other end does not want that; it has been told.
            TimeoutError, OSError, anyio.BrokenResourceError, anyio.EndOfStream: It did not come to that.
        """
        keep_alive(stream)
        peer = Peer(os.geteuid(), by_token=True)
        if self._keys.context is None:
            return stream, peer
        with anyio.fail_after(HANDSHAKE):
            first = await stream.receive()
            if not first.startswith(_TLS_BEGINS):
                await stream.send(_SPEAK_TLS)
                await stream.send_eof()
                with anyio.move_on_after(HEARING):
                    await hear_out(stream)
                raise SocketRefused("no TLS")
            begun = _Begun(first, stream)
            context = self._keys.context
            return await TLSStream.wrap(begun, server_side=True, ssl_context=context, standard_compatible=False), peer

    @property
    def is_own(self) -> bool:
        """Whether it is on this machine's own addresses only."""
        return all(map(is_own, self.addresses))

    def check_own(self, option: str) -> None:
        """See that it is, for what *option* asks.

        Raises:
            SocketRefused: It is not.
        """
        if not self.is_own:
            raise SocketRefused(
                f"{option} would show the fleet to all who reach {self.asked.host or 'this machine'}; "
                "leave it out, or listen on 127.0.0.1"
            )

    @property
    def speaks_tls(self) -> bool:
        """Whether nobody on the way can read what is said."""
        return self._keys.context is not None

    def guard(self, app: ASGIApp) -> ASGIApp:
        """Put the door before an application: what comes through has the token."""

        async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
            try:
                self._check(Headers(scope=scope))
            except DaemonRefused as error:
                await _refuse(error, scope, receive, send)
            else:
                await app(scope, receive, send)

        return guarded

    def check_name(self, headers: Headers) -> None:
        """See whether a request is for us.

        Raises:
            DaemonRefused: It calls us by a name that is not ours: somebody may have led a browser here.
        """
        if not is_named(host := headers.get("host", ""), self._keys.names):
            names = ", ".join(sorted(self._keys.names))
            raise DaemonRefused(f"this is not {host[:100]!r}; use one of its names: {names}", status=421)

    def _check(self, headers: Headers) -> None:
        """See whether a request may come in.

        Raises:
            DaemonRefused: It may not.
        """
        self.check_name(headers)
        if "origin" in headers:
            raise DaemonRefused("a page of a website may not ask; use no browser", status=403)
        scheme, _, token = headers.get("authorization", "").partition(" ")
        own = self._keys.token
        known = own is not None and compare_digest(token.strip().encode("latin-1"), own)
        if not (known and scheme.lower() == "bearer"):
            why = "a request over TCP needs the daemon's token; send it as `Authorization: Bearer`"
            raise DaemonRefused(why, status=401)


def is_named(header: str, names: frozenset[str]) -> bool:
    """Whether a ``Host`` is one of the names, whatever the port."""
    host = header[1:].partition("]")[0] if header.startswith("[") else header.partition(":")[0]
    host = host.lower().removesuffix(".")
    return bool(host) and (host in names or f"*.{host.partition('.')[2]}" in names)


@asynccontextmanager
async def listening_on_tcp(entrance: Entrance | None) -> AsyncIterator[Sequence[SocketListener]]:
    """Listen on all addresses of an entrance, while the body runs; None: nowhere.

    Raises:
        SocketRefused: One of them cannot be had.
    """
    async with AsyncExitStack() as stack:
        if entrance is None:
            yield []
            return
        host, port, option = entrance.asked.host, entrance.asked.port, entrance.asked.option
        yield [await listen_at(host, port, each, stack, option) for each in entrance.addresses]


async def listen_at(host: str, port: int, address: str, stack: AsyncExitStack, option: str) -> SocketListener:
    """Listen on one address of a host, until the stack is left; *option*: what named it.

    Raises:
        SocketRefused: It cannot be had.
    """
    try:
        found = await anyio.create_tcp_listener(local_host=address, local_port=port, backlog=BACKLOG)
    except OSError as error:
        raise SocketRefused(
            f"cannot listen on {host or address}:{port} ({error.strerror or error}); name another with {option}"
        ) from error
    stack.push_async_callback(found.aclose)
    return cast("SocketListener", found.listeners[0])


def addresses_of(host: str, port: int, option: str) -> Sequence[str]:
    """Resolve a host that is to be listened on; *option*: what named it.

    Raises:
        SocketRefused: It is none.
    """
    with suppress(ValueError):
        return [str(ip_address(host))]
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:  # the latter of names that cannot be any
        why = f"{host!r} is not a name or an address of this machine ({getattr(error, 'strerror', None) or error})"
        raise SocketRefused(f"{why}; name one with {option}") from error
    return [*dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in found)]


def is_own(address: str) -> bool:
    """Whether an address is this machine's own, which nobody else reaches."""
    return ip_address(address.partition("%")[0]).is_loopback


def _is_wildcard(host: str) -> bool:
    with suppress(ValueError):
        return ip_address(host).is_unspecified
    return not host


def _token(path: Path) -> bytes:
    """Read the token, or make one.

    Raises:
        SocketRefused: There is something else.
    """
    try:
        if not path.parent.exists():
            make_private(path.parent)
        descriptor = open_private(path, os.O_CREAT | os.O_RDWR)
        with os.fdopen(descriptor, "r+b") as file:
            found = file.read(LONGEST_TOKEN + 2)
            if not found:
                found = token_urlsafe(32).encode()
                file.write(found + b"\n")
                file.flush()
                os.fsync(descriptor)
    except OSError as error:
        raise SocketRefused(f"the token cannot be kept in {path} ({error.strerror}); name another file") from error
    if not _TOKEN.fullmatch(token := found.strip()):
        bounds = f"{SHORTEST_TOKEN} to {LONGEST_TOKEN} characters without spaces"
        raise SocketRefused(f"{path} has no token, which is {bounds}; delete it, and one is made")
    return token


def _tls(certificate: Path, key: Path | None) -> tuple[ssl.SSLContext, frozenset[str]]:
    """Read certificate and key, and see for whom they are.

    Raises:
        SocketRefused: They cannot be used.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(certificate, key, password="")
        return context, _names_in(certificate, context)
    except OSError as error:  # ssl.SSLError is one
        why = getattr(error, "verify_message", None) or getattr(error, "reason", None) or error.strerror or error
        raise SocketRefused(
            f"the certificate {certificate} cannot be used for TLS ({why}); name one with its key, in PEM"
        ) from error


def _names_in(certificate: Path, server: ssl.SSLContext) -> frozenset[str]:
    """Ask as a client would, which trusts just this certificate: the library reads none for its owner."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    client.load_verify_locations(certificate)
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    near = client.wrap_bio(back, there)
    far = server.wrap_bio(there, back, server_side=True)
    for _ in range(ROUNDS):
        for end in (near, far):
            with suppress(ssl.SSLWantReadError):
                end.do_handshake()
    found: Any = near.getpeercert() or {}
    return frozenset(str(name).lower() for _, name in found.get("subjectAltName", ()))


def keep_alive(stream: ByteStream) -> None:
    """Have it noticed that the other end is gone."""
    raw = stream.extra(SocketAttribute.raw_socket)
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEP_ALIVE:
        if (option := getattr(socket, name, None)) is not None:  # macOS lacks some
            raw.setsockopt(socket.IPPROTO_TCP, option, value)


async def _refuse(error: DaemonRefused, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer what did not come in."""
    if scope["type"] != "http":  # a websocket: to close it is to answer with 403
        await send({"type": "websocket.close"})
        return
    headers = {"connection": "close", **({"www-authenticate": "Bearer"} if error.status == 401 else {})}  # noqa: PLR2004  (HTTP's)
    await JSONResponse({"error": error_as_data(error)}, error.status, headers)(scope, receive, send)


@define(eq=False)
class _Begun(ByteStream):
    """A connection whose beginning has been read already."""

    _first: bytes
    _stream: ByteStream

    async def receive(self, max_bytes: int = 65536) -> bytes:
        """Give the beginning, then what follows."""
        if self._first:
            first, self._first = self._first[:max_bytes], self._first[max_bytes:]
            return first
        return await self._stream.receive(max_bytes)

    async def send(self, item: bytes) -> None:
        """Send it."""
        await self._stream.send(item)

    async def send_eof(self) -> None:
        """Say that nothing more comes."""
        await self._stream.send_eof()

    async def aclose(self) -> None:
        """Close it."""
        await self._stream.aclose()

    @property
    def extra_attributes(self) -> Any:  # noqa: ANN401  (anyio's)
        """Give those of the socket."""
        return self._stream.extra_attributes
