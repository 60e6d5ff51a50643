"""The daemon over TCP: who gets in, what they may do, and what becomes of those who may not."""

import json
import socket
import ssl
import stat
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import anyio
import pytest
import trustme
from anyio import to_thread
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from fleeting.errors import WrongArguments
from fleeting.plugins import place_to_listen
from fleeting.testing import FakeCloud
from taskscaler import remote, sync
from taskscaler._errors import DaemonRefused, SocketRefused
from taskscaler._socket import find_socket
from taskscaler._url import TOKEN_FILE, DaemonUrl
from taskscaler.cli._ask import ask
from taskscaler.serve._server import LONGEST_HEAD
from taskscaler.serve._tcp import Entrance, Listen, is_named
from tests.taskscaler.calling import Fleet
from tests.taskscaler.daemons import daemon
from tests.taskscaler.services import command
from tests.taskscaler.test_serve_hostile import ID, JSON, request

pytestmark = pytest.mark.anyio

TOKEN = "t" * 40
BEARER = f"authorization: Bearer {TOKEN}"
STATUS = "GET /v1/status HTTP/1.1"
ACQUIRE = b'{"key": "k", "request": "1"}'


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    """Sign certificates."""
    return trustme.CA()


@pytest.fixture
def asked(tmp_path: Path) -> Listen:
    """Where to listen, without TLS."""
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    return Listen(host="127.0.0.1", port=0, token=tmp_path / "token")


@pytest.fixture
def with_tls(asked: Listen, authority: trustme.CA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Listen:
    """The same with TLS, by a certificate that clients trust here."""
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    return certified(asked, authority.issue_cert("127.0.0.1", "build.example", "*.builds.example"), tmp_path)


def certified(asked: Listen, certificate: trustme.LeafCert, directory: Path) -> Listen:
    """Take a certificate, its key in the same file."""
    certificate.private_key_and_cert_chain_pem.write_to_path(str(directory / "tls.pem"))
    return evolve(asked, certificate=directory / "tls.pem")


def token_of(listen: Listen) -> Path:
    """The file with the token, which a status page would not need."""
    assert listen.token is not None
    return listen.token


@asynccontextmanager
async def served(asked: Listen, **settings: int) -> AsyncIterator[Fleet]:
    """A daemon that holds still, on both ways in."""
    async with daemon(token_of(asked).with_name("s.sock"), FakeCloud(), tcp=asked, **settings) as fleet:  # type: ignore[arg-type]
        before = await fleet.scaler.capacity()
        yield fleet
        assert await fleet.scaler.capacity() == before
        assert len(fleet.holders.clients) == 0
        assert fleet.drained == []


def exchange(port: int, sent: bytes, tls: Callable[[socket.socket], socket.socket] = lambda plain: plain) -> bytes:
    """Send something, and give all that comes back until the other end hangs up."""
    with socket.create_connection(("127.0.0.1", port)) as plain, tls(plain) as connection:
        try:
            connection.sendall(sent)
        except (BrokenPipeError, ConnectionResetError):
            """It has heard enough."""
        found = b""
        try:
            while chunk := connection.recv(65536):
                found += chunk
        except (ConnectionResetError, ssl.SSLEOFError):
            """The same."""
        return found


def trusting(name: str) -> Callable[[socket.socket], socket.socket]:
    """Speak TLS with a daemon of that name."""
    return partial(ssl.create_default_context().wrap_socket, server_hostname=name)


HOSTILE: dict[str, tuple[bytes, int]] = {
    "no token": (request(STATUS), 401),
    "an empty token": (request(STATUS, "authorization: Bearer "), 401),
    "a wrong token": (request(STATUS, f"authorization: Bearer {'x' * 40}"), 401),
    "the beginning of the token": (request(STATUS, f"authorization: Bearer {TOKEN[:-1]}"), 401),
    "more than the token": (request(STATUS, f"{BEARER}t"), 401),
    "the token in another scheme": (request(STATUS, f"authorization: Basic {TOKEN}"), 401),
    "the token without a scheme": (request(STATUS, f"authorization: {TOKEN}"), 401),
    "the token in the address": (request(f"GET /v1/status?token={TOKEN} HTTP/1.1"), 401),
    "the token as the client": (request(STATUS, f"taskscaler-client: {TOKEN}"), 401),
    "a token that is no text": (
        request(STATUS).replace(b"\r\n\r\n", b"\r\nauthorization: Bearer \xff\xfe\r\n\r\n"),
        401,
    ),
    "no token for a path that is not there": (request("GET /v1/secrets HTTP/1.1"), 401),
    "no token for a wrong method": (request("BREW /v1/status HTTP/1.1"), 401),
    "no token for an acquire": (request("POST /v1/acquire HTTP/1.1", ID, JSON, body=ACQUIRE), 401),
    "no token for a drain": (request("POST /v1/drain HTTP/1.1", JSON, body="{}"), 401),
    "no token for a batch": (request("POST /v1/batches?name=j HTTP/1.1", body=b"x" * 100_000), 401),
    "no token for a websocket": (
        request("GET /v1/events HTTP/1.1", "upgrade: websocket", "sec-websocket-version: 13").replace(
            b"connection: close", b"connection: upgrade\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ=="
        ),
        403,
    ),
    "another host": (request(STATUS, BEARER, host="host: evil.example"), 421),
    "a host that begins like ours": (request(STATUS, BEARER, host="host: 127.0.0.1.evil.example"), 421),
    "a host that is a wildcard": (request(STATUS, BEARER, host="host: *"), 421),
    "an empty host": (request(STATUS, BEARER, host="host: "), 421),
    "a foreign origin": (request(STATUS, BEARER, "origin: https://evil.example"), 403),
    "our own origin": (request(STATUS, BEARER, "origin: http://localhost"), 403),
    "a preflight": (request("OPTIONS /v1/acquire HTTP/1.1", "origin: null"), 403),
    "credentials": (request("POST /v1/dial HTTP/1.1", BEARER, ID, JSON, body='{"key": "k", "lease": "1"}'), 403),
    "a header that never ends": (f"{STATUS}\r\nhost: localhost\r\nx: {'x' * LONGEST_HEAD}".encode(), 431),
    "no HTTP": (b"hello\r\n\r\n", 400),
    "TLS where there is none": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
}


def problem(answer: bytes, status: int) -> str:
    """Say what is wrong with a refusal; nothing if it is one, with a code and a sentence if it has a body."""
    if not answer.startswith(b"HTTP/1.1 %d " % status):
        return f"not {status}: {answer[:60]!r}"
    if body := answer.partition(b"\r\n\r\n")[2]:
        error = json.loads(body)["error"]
        return "" if error["code"] and error["message"] and TOKEN not in body.decode() else str(error)
    return ""


async def test_strangers_are_refused_and_change_nothing(asked: Listen) -> None:
    """Each with one clear refusal; with the token, under our name, one is served."""
    async with served(asked) as fleet:
        for name, (sent, status) in HOSTILE.items():
            answer = await to_thread.run_sync(exchange, fleet.port, sent)
            assert problem(answer, status) == "", name
        for host in ("localhost", "127.0.0.1:80", "LOCALHOST.", "[::1]:8443"):
            answer = await to_thread.run_sync(exchange, fleet.port, request(STATUS, BEARER, host=f"host: {host}"))
            assert b" 200 " in answer, host


async def test_strangers_are_refused_under_tls(with_tls: Listen) -> None:
    """The same requests have the same answers; who does not speak TLS is told so, and nothing else."""
    async with served(with_tls) as fleet:
        ours = "host: 127.0.0.1"
        for name in ("no token", "a wrong token", "a foreign origin", "another host", "credentials"):
            sent = HOSTILE[name][0].replace(b"host: localhost", ours.encode())
            answer = await to_thread.run_sync(exchange, fleet.port, sent, trusting("127.0.0.1"))
            assert problem(answer, HOSTILE[name][1]) == "", name
        plain = await to_thread.run_sync(exchange, fleet.port, request(STATUS, BEARER, host=ours))
        assert problem(plain, 400) == ""
        assert b"use https://" in plain
        noise = await to_thread.run_sync(exchange, fleet.port, b"\x16\x03\x01\x00\x05hello" * 10)
        assert b"HTTP" not in noise
        for host in ("127.0.0.1", "build.example", "1.builds.example:8443"):
            answer = await to_thread.run_sync(
                exchange, fleet.port, request(STATUS, BEARER, host=f"host: {host}"), trusting("127.0.0.1")
            )
            assert b" 200 " in answer, host


@pytest.mark.parametrize("fixture", ["asked", "with_tls"])
async def test_a_connection_too_many_is_told_so(fixture: str, request: pytest.FixtureRequest) -> None:
    """In TLS, too, where that is spoken; the socket's places are not taken."""
    listen: Listen = request.getfixturevalue(fixture)
    tls = trusting("127.0.0.1") if listen.certificate else lambda plain: plain
    async with served(listen, most=1) as fleet, await anyio.connect_tcp("127.0.0.1", fleet.port):
        await anyio.wait_all_tasks_blocked()
        answer = await to_thread.run_sync(exchange, fleet.port, b"", tls)
        assert problem(answer, 503) == ""
        async with remote.connect(token_of(listen).with_name("s.sock")) as scaler:
            assert (await scaler.capacity()).acquired == 0


async def test_a_program_acquires_over_tcp(with_tls: Listen, tmp_path: Path) -> None:
    """With the names of the local scaler; what it may not is to connect to instances."""
    async with daemon(tmp_path / "s.sock", FakeCloud(), tcp=with_tls) as fleet:
        async with remote.connect(fleet.url, token_file=with_tls.token) as scaler, scaler.acquire("a") as lease:
            assert (await scaler.capacity()).acquired == 1
            assert [view.slots for view in await scaler.instances()] == [("a",)]
            await scaler.cordon(lease.instance, "a disk")
            await scaler.uncordon(lease.instance)
            with pytest.raises(DaemonRefused, match="on the daemon's Unix socket only"):
                await lease.connect_info()
        assert (await fleet.scaler.capacity()).acquired == 0


async def test_threads_and_commands_ask_over_tcp(
    with_tls: Listen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the address in TASKSCALER_SOCKET, with the token of a file."""
    async with daemon(tmp_path / "s.sock", FakeCloud(), tcp=with_tls) as fleet:
        monkeypatch.setenv(TOKEN_FILE, str(with_tls.token))

        def work() -> None:
            with sync.connect(fleet.url) as scaler, scaler.acquire("a"):
                assert scaler.capacity().acquired == 1
            assert ask(None, "GET", "/capacity")["acquired"] == 0
            status, said = command("instances", "--json", "--socket", fleet.url)
            assert (status, len(json.loads(said)["instances"])) == (0, 1)
            status, said = command("lease", "--remote", "--", "true")
            assert (status, "over TCP, the daemon lets nobody connect to its instances" in said) == (255, True)
            (tmp_path / "jobs.toml").write_text("[[jobs]]\nname = 'a'\nscript = 'true'\n")
            status, said = command("run", str(tmp_path / "jobs.toml"), "--daemon")
            assert (status, "with taskscaler submit" in said) == (1, True)

        monkeypatch.setenv("TASKSCALER_SOCKET", fleet.url)
        await to_thread.run_sync(work)


async def test_token_and_certificate_are_exchanged_while_it_runs(
    with_tls: Listen, authority: trustme.CA, tmp_path: Path
) -> None:
    """With a reload, as policies are; files that cannot be used leave the old ones in force."""
    async with served(with_tls) as fleet:
        entrance = fleet.entrance
        assert entrance is not None
        good = request(STATUS, f"authorization: Bearer {'n' * 40}", host="host: other.example")
        ask_it = partial(exchange, fleet.port, good, trusting("127.0.0.1"))
        assert problem(await to_thread.run_sync(ask_it), 421) == ""
        token_of(with_tls).write_text("n" * 40)
        certified(with_tls, authority.issue_cert("127.0.0.1", "other.example"), tmp_path)
        await to_thread.run_sync(entrance.reload)
        assert b" 200 " in await to_thread.run_sync(ask_it)
        token_of(with_tls).write_text("short")
        with pytest.raises(SocketRefused, match="has no token"):
            await to_thread.run_sync(entrance.reload)
        assert b" 200 " in await to_thread.run_sync(ask_it)


def test_the_token_is_made_for_us_alone(tmp_path: Path) -> None:
    """In a directory that is made as well, and the next daemon has the same; one that others could read is hidden."""
    file = tmp_path / "tokens" / "fleet"
    entrance = Entrance.of(Listen(host="127.0.0.1", port=0, token=file))
    token = file.read_text()
    assert len(token.strip()) >= 32
    assert token.strip() not in repr(entrance)
    file.chmod(0o644)
    entrance.reload()
    assert file.read_text() == token
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


async def test_elsewhere_than_on_this_machine_it_takes_tls(asked: Listen, tmp_path: Path) -> None:
    """All addresses are elsewhere; a socket that cannot be had, and files that are none, are named."""
    for host in ("0.0.0.0", "::", "", "192.0.2.1"):  # noqa: S104  (refused)
        with pytest.raises(SocketRefused, match="without TLS, the daemon listens on this machine's own addresses only"):
            async with daemon(tmp_path / "s.sock", FakeCloud(), tcp=evolve(asked, host=host)):
                raise AssertionError
    for listen, why in (
        (evolve(asked, host="192.0.2.1", certificate=tmp_path / "tls.pem"), "tls.pem cannot be used for TLS"),
        (evolve(asked, certificate=asked.token), "cannot be used for TLS"),
    ):
        with pytest.raises(SocketRefused, match=why):
            async with daemon(tmp_path / "s.sock", FakeCloud(), tcp=listen):
                raise AssertionError
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = evolve(asked, port=other.getsockname()[1])
        with pytest.raises(SocketRefused, match="cannot listen on"):
            async with daemon(tmp_path / "s.sock", FakeCloud(), tcp=taken):
                raise AssertionError


async def test_a_machine_that_is_gone_is_noticed(asked: Listen) -> None:
    """It closes nothing, so the system has to ask: what its clients held goes back soon after."""
    entrance = Entrance.of(asked)
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        accepting = listener.listeners[0]
        async with await anyio.connect_tcp("127.0.0.1", port), await accepting.accept() as stream:  # type: ignore[attr-defined]
            await entrance.admit(stream)
            raw = stream.extra(anyio.abc.SocketAttribute.raw_socket)
            assert raw.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            assert raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 15


@pytest.mark.parametrize(
    ("given", "place"),
    [
        ("127.0.0.1:8443", ("127.0.0.1", 8443)),
        ("[::1]:80", ("::1", 80)),
        (":8443", ("", 8443)),
        ("build.example:0", ("build.example", 0)),
    ],
)
def test_where_to_listen_is_read(given: str, place: tuple[str, int]) -> None:
    """A host and a port, either of which may be left to the system."""
    assert place_to_listen(given) == place


@pytest.mark.parametrize("given", ["8443", "::1:80", "a:b", "a:65536", "https://a:1", "u@a:1", "[x]:1", "a:1 ", ""])
def test_what_is_no_place_to_listen_is_refused(given: str) -> None:
    """With what it should look like."""
    with pytest.raises(ValueError, match="HOST:PORT, such as"):
        place_to_listen(given)


@given(st.sampled_from(["a.example", "*.b.example", "::1"]), st.text(max_size=20))
def test_only_the_names_are_ours(name: str, header: str) -> None:
    """Whatever is sent as a host: it is one of the names, but for case, a port and a last dot; a star is one part."""
    host = header.lower()
    bare = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    bare = bare.removesuffix(".")
    wild = name.startswith("*.") and bare.partition(".")[2] == name[2:]
    assert is_named(header, frozenset({name})) == (bare == name or wild)


def test_addresses_that_would_give_the_token_away_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also what is no address of a daemon; a secret in one is not repeated."""
    monkeypatch.delenv(TOKEN_FILE, raising=False)
    for url, why in (
        ("http://build.example:8443", "unencrypted"),
        ("https://user:secret@build.example", "no user and no password"),
        ("https://build.example/v1", "not the address of a daemon"),
        ("https://build.example:99999", "not the address of a daemon"),
        ("https://", "not the address of a daemon"),
        ("https://build.example", f"name the file that has it with {TOKEN_FILE}"),
    ):
        with pytest.raises(WrongArguments, match=why) as error:
            find_socket(url)
        assert "secret" not in str(error.value)
    place = find_socket("HTTPS://Build.Example", tmp_path / "token")
    assert (str(place), isinstance(place, DaemonUrl)) == ("https://build.example:443", True)
    with pytest.raises(WrongArguments, match="cannot be read"):
        remote.connect("http://[::1]:80", token_file=tmp_path / "token")._link.socket.headers()  # type: ignore[union-attr]
    (tmp_path / "token").write_text("two words")
    with pytest.raises(WrongArguments, match="has no token"):
        place.headers()  # type: ignore[union-attr]
