"""One protocol object of pywinrm, with bounds that it lacks: for one thread at a time.

pywinrm waits as long as a host keeps sending something, reads whatever it sends, goes where it redirects, takes proxies
from the environment, and encrypts for a connection that may have been replaced meanwhile.
"""

import socket
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Literal

from attrs import define, field, frozen
from requests import PreparedRequest, Request, Response, Session
from requests.adapters import HTTPAdapter
from urllib3 import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.connection import HTTPConnection, HTTPSConnection
from winrm.exceptions import WinRMTransportError
from winrm.protocol import Protocol
from winrm.transport import Transport

LONGEST_ANSWER = 1 << 20
"""Bytes of one answer; we ask hosts for at most 150 KiB."""

CONNECT_TIMEOUT = 10.0
"""Seconds to connect to a host that may not even refuse."""

_HEAD = 512
"""Bytes within which an answer says what it is."""

Auth = Literal["ntlm", "basic"]


class Stale(Exception):
    """The connection was closed while it was idle; nothing has been sent."""


class NoEnvelope(Exception):
    """The host answers something that is no message of the protocol."""


class TooMuch(Exception):
    """The host sends more than an answer can be."""


@frozen(kw_only=True)
class RequestSettings:
    """Where to send requests, and as whom."""

    endpoint: str
    user: str
    password: str = field(repr=False)
    ca_file: str | None
    fingerprint: str | None
    """Of the only certificate that is accepted, SHA-256 in hexadecimal; None: one that an authority vouches for."""

    operation_timeout: float
    """Seconds after which the host answers in any case."""

    patience: float
    """Seconds that the answer may take beyond that."""

    @property
    def is_encrypted(self) -> bool:
        """Whether TLS is spoken."""
        return self.endpoint.startswith("https:")


@define(eq=False)
class Line:
    """The connection under a wire, so that another thread can cut it."""

    _sock: socket.socket | None = field(default=None, init=False)
    _connections: list[HTTPConnection] = field(factory=list, init=False)
    is_cut: bool = field(default=False, init=False)
    may_replace: bool = field(default=True, init=False)
    """Whether a connection that was lost may be replaced by another one."""

    def hold(self, connection: HTTPConnection, sock: socket.socket) -> None:
        """Watch a connection from now on. A copy of the descriptor: TLS takes the socket itself apart."""
        self.let_go()
        self._connections.append(connection)
        self._sock = sock.dup()
        if self.is_cut:
            self.cut()

    def cut(self) -> None:
        """Make whoever waits for the connection wait no more."""
        self.is_cut = True
        if (sock := self._sock) is not None:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def let_go(self) -> None:
        """Forget the connection."""
        sock, self._sock = self._sock, None
        if sock is not None:
            sock.close()

    def close(self) -> None:
        """Close the connection; requests leaves one open on which an answer was not read to its end."""
        while self._connections:
            self._connections.pop().close()
        self.let_go()


class _Adapter(HTTPAdapter):
    """One connection, which can be cut, to a host with the right certificate."""

    def __init__(self, line: Line, fingerprint: str | None) -> None:
        self._line, self._fingerprint = line, fingerprint
        super().__init__(pool_connections=1, pool_maxsize=1)

    def init_poolmanager(self, *args: Any, **options: Any) -> None:  # noqa: ANN401  (requests' own)
        if self._fingerprint:
            options["assert_fingerprint"] = self._fingerprint
        super().init_poolmanager(*args, **options)
        self.poolmanager.pool_classes_by_scheme = _pools(self._line)

    def send(self, request: PreparedRequest, *args: Any, **options: Any) -> Response:  # noqa: ANN401  (requests' own)
        response = super().send(request, *args, **options)
        stream = response.raw.stream
        response.raw.stream = lambda *sizes, **how: _bounded(stream(*sizes, **how))
        return response


def _bounded(chunks: Iterator[bytes]) -> Iterator[bytes]:
    size = 0
    for chunk in chunks:
        size += len(chunk)
        if size > LONGEST_ANSWER:
            raise TooMuch(f"it sends more than {LONGEST_ANSWER >> 10} KiB in one answer")
        yield chunk


def _pools(line: Line) -> dict[str, type[HTTPConnectionPool]]:
    """Pools of connections that hand their sockets to *line*."""

    class Held(HTTPConnection):
        def _new_conn(self) -> socket.socket:
            if not line.may_replace:
                raise Stale
            sock = super()._new_conn()
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            line.hold(self, sock)
            return sock

        def close(self) -> None:
            line.let_go()
            super().close()

    class HeldSecure(Held, HTTPSConnection):
        pass

    class Plain(HTTPConnectionPool):
        ConnectionCls = Held

    class Secure(HTTPSConnectionPool):
        ConnectionCls = HeldSecure

    return {"http": Plain, "https": Secure}


class _Transport(Transport):
    """pywinrm's, on the adapter."""

    def __init__(self, settings: RequestSettings, auth: Auth, line: Line) -> None:
        self._settings, self._line = settings, line
        super().__init__(
            endpoint=settings.endpoint,
            username=settings.user,
            password=settings.password,
            auth_method=auth,
            ca_trust_path=None,  # type: ignore[arg-type]  # pywinrm's documentation has it: no path from the environment
            read_timeout_sec=round(settings.operation_timeout + settings.patience),
            message_encryption="always" if auth == "ntlm" and not settings.is_encrypted else "never",
            proxy=None,
        )

    def build_session(self) -> Session:
        return self.session or prepared(super().build_session(), self._settings, self._line)

    def setup_encryption(self, session: Session) -> None:
        prepared(session, self._settings, self._line)
        super().setup_encryption(session)
        self._line.may_replace = False

    def send_message(self, message: str | bytes) -> bytes:
        text = message if isinstance(message, str) else message.decode()
        try:
            answer = super().send_message(text.replace("\r", "&#13;"))  # XML's readers make line feeds of them
        except WinRMTransportError as error:  # which has a fault in it, if the host answers one
            refuse_entities(error.response_text)
            raise
        refuse_entities(answer)
        return answer


def refuse_entities(answer: str | bytes) -> None:
    """Refuse XML that declares names for text: a few of them can stand for a hundred megabytes. SOAP forbids them.

    In UTF-16, which every reader of XML knows, the same letters have NULs between them. Python's reader knows no other
    encoding that writes them in another way than ASCII.

    Raises:
        NoEnvelope: It does.
    """
    text = answer if isinstance(answer, bytes) else answer.encode(errors="replace")
    if b"<!DOCTYPE" in text.replace(b"\0", b""):
        raise NoEnvelope


def prepared(session: Session, settings: RequestSettings, line: Line) -> Session:
    """Let a session use our connection, and take nothing from the environment."""
    if not isinstance(session.get_adapter(settings.endpoint), _Adapter):
        session.trust_env = False
        session.verify = False if settings.fingerprint else settings.ca_file or True
        session.headers["Accept-Encoding"] = "identity"
        session.max_redirects = 0  # nobody else gets our credentials
        session.mount(settings.endpoint, _Adapter(line, settings.fingerprint))
    return session


class _Protocol(Protocol):
    """pywinrm's, which takes an answer without anything in it for one that says nothing."""

    def send_message(self, message: str) -> bytes:
        answer = super().send_message(message)
        if b"Envelope" not in answer[:_HEAD]:
            raise NoEnvelope
        return answer


@define(eq=False)
class Wire:
    """A protocol object with the line that it uses."""

    protocol: Protocol
    line: Line
    used_at: float = field(default=0.0, init=False)
    """When it was last used, by the event loop's clock."""

    @classmethod
    def to(cls, settings: RequestSettings, auth: Auth) -> "Wire":
        """Make one; connects to nothing yet."""
        line = Line()
        operation_timeout = max(1, round(settings.operation_timeout))
        protocol = _Protocol(
            endpoint=settings.endpoint,
            transport=auth,
            username=settings.user,
            password=settings.password,
            operation_timeout_sec=operation_timeout,
            read_timeout_sec=operation_timeout + max(1, round(settings.patience)),
            proxy=None,
        )
        protocol.transport = _Transport(settings, auth, line)
        return cls(protocol, line)

    def close(self) -> None:
        """Close the connection."""
        self.protocol.transport.close_session()
        self.line.close()


def ask_for_schemes(settings: RequestSettings, line: Line) -> str:
    """Ask, as nobody, who may log in and how; returns what the host offers, in lower case.

    The host proves who it is before anything else, if it can.
    """
    with prepared(Session(), settings, line) as session:
        request = session.prepare_request(Request("POST", settings.endpoint, data=b""))
        response = session.send(request, timeout=(CONNECT_TIMEOUT, settings.patience), allow_redirects=False)
        if response.status_code != 401:  # noqa: PLR2004  (HTTP's)
            raise ConnectionError(f"it answers with HTTP status {response.status_code}, unlike any WinRM service")
        return str(response.headers.get("WWW-Authenticate", "")).lower()
