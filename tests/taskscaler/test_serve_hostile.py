"""Forty hostile requests over a real socket: each gets one clear refusal, and changes nothing."""

import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from anyio import to_thread

from fleeting.testing import FakeCloud
from taskscaler.serve import _server
from taskscaler.serve._app import LARGEST_BODY
from taskscaler.serve._peers import Peer
from taskscaler.serve._server import LONGEST_HEAD
from tests.taskscaler.calling import Fleet
from tests.taskscaler.daemons import daemon

pytestmark = pytest.mark.anyio

ID = "taskscaler-client: " + "a" * 32
JSON = "content-type: application/json"


def request(line: str, *headers: str, body: str | bytes = b"", host: str = "host: localhost") -> bytes:
    """Write a request as it goes over the wire."""
    content = body.encode() if isinstance(body, str) else body
    length = [f"content-length: {len(content)}"] if content and not any("encoding" in each for each in headers) else []
    named = [*([host] if host else []), *headers, *length]
    return "\r\n".join([line, *named, "connection: close", "", ""]).encode() + content


def post(verb: str, body: str | bytes, *headers: str) -> bytes:
    """Send JSON, or what is none, as a client."""
    return request(f"POST /v1/{verb} HTTP/1.1", ID, JSON, *headers, body=body)


CHUNKED = "transfer-encoding: chunked"
HOSTILE: dict[str, tuple[bytes, int]] = {
    "no HTTP": (b"hello\r\n\r\n", 400),
    "binary": (bytes(range(1, 256)) * 4 + b"\r\n\r\n", 400),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\r\n\r\n", 400),
    "a header that never ends": (b"GET /v1/status HTTP/1.1\r\nhost: localhost\r\nx: " + b"x" * (LONGEST_HEAD + 1), 431),
    "ten thousand headers": (request("GET /v1/status HTTP/1.1", *[f"x-{each}: y" for each in range(10_000)]), 431),
    "a header with a null": (b"GET /v1/status HTTP/1.1\r\nhost: localhost\r\nx: \x00\r\n\r\n", 400),
    "a header that is folded": (b"GET /v1/status HTTP/1.1\r\nconnection: close\r\nhost: localhost\r\n x\r\n\r\n", 421),
    "no host": (request("GET /v1/status HTTP/1.1", host=""), 400),
    "two hosts": (request("GET /v1/status HTTP/1.1", "host: evil.example"), 400),
    "another host": (request("GET /v1/status HTTP/1.1", host="host: evil.example"), 421),
    "a host that begins like ours": (request("GET /v1/status HTTP/1.1", host="host: localhost.evil.example"), 421),
    "a foreign origin": (request("GET /v1/status HTTP/1.1", "origin: https://evil.example"), 403),
    "a null origin": (request("GET /v1/status HTTP/1.1", "origin: null"), 403),
    "a preflight": (request("OPTIONS /v1/acquire HTTP/1.1", "access-control-request-method: POST"), 405),
    "a path that is not there": (request("GET /v1/secrets HTTP/1.1"), 404),
    "a path out of the tree": (request("GET /v1/../../etc/passwd HTTP/1.1"), 404),
    "an absolute target": (request("GET http://evil.example/v1/status HTTP/1.1"), 404),
    "a wrong method": (request("DELETE /v1/status HTTP/1.1"), 405),
    "a method of nobody's": (request("BREW /v1/status HTTP/1.1"), 405),
    "a connect": (request("CONNECT localhost:22 HTTP/1.1"), 404),
    "a websocket": (
        b"GET /v1/events HTTP/1.1\r\nhost: localhost\r\nupgrade: websocket\r\nconnection: upgrade\r\n%s\r\n"
        % b"sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n",
        403,
    ),
    "no client": (request("POST /v1/acquire HTTP/1.1", JSON, body='{"key": "k", "request": "1"}'), 400),
    "a client that is no secret": (
        request("POST /v1/acquire HTTP/1.1", "taskscaler-client: me", JSON, body='{"key": "k", "request": "1"}'),
        400,
    ),
    "a client that was never opened": (post("acquire", '{"key": "k", "request": "1"}'), 404),
    "a body that is too large": (post("client", b"x" * (LARGEST_BODY + 1)), 413),
    "a chunk that is too large": (
        post("client", b"%x\r\n" % (LARGEST_BODY + 1) + b"x" * (LARGEST_BODY + 1) + b"\r\n0\r\n\r\n", CHUNKED),
        413,
    ),
    "a chunk of no size": (post("client", b"z\r\n", CHUNKED), 400),
    "no JSON": (post("client", "{"), 400),
    "no text": (post("client", b"\xff\xfe{}"), 400),
    "an array": (post("client", "[]"), 400),
    "deep JSON": (post("client", "[" * 30_000), 400),
    "not a number": (post("client", '{"ttl": NaN}'), 400),
    "without end": (post("client", '{"ttl": 1e999}'), 400),
    "a huge number": (post("client", '{"ttl": ' + "9" * 5000 + "}"), 400),
    "a bound that is too long": (post("client", '{"ttl": 601}'), 400),
    "a wrong type": (post("client", '{"ttl": "soon"}'), 400),
    "an unknown key": (post("client", '{"tll": 5}'), 400),
    "too many leases": (post("client", json.dumps({"leases": ["k"] * 1001})), 400),
    "a key that a terminal obeys": (post("cordon", '{"instance": "\\u001b[2J"}'), 400),
    "a key that is no text": (post("cordon", '{"instance": "\\ud800"}'), 400),
    "a key that is too long": (post("cordon", json.dumps({"instance": "k" * 513})), 400),
    "a lease that is kept for nothing": (post("keep", '{"key": "k", "lease": "l", "ttl": 0}'), 400),
    "stopping what nobody keeps": (post("stop", '{"key": "k"}'), 404),
    "stopping what is too long": (post("stop", json.dumps({"key": "k" * 513})), 400),
    "stopping a batch's lease": (post("stop", '{"key": "batch:1:a"}'), 403),
    "stopping with a name": (post("stop", '{"key": "k", "name": "another"}'), 400),
    "an unknown instance": (post("retain", '{"instance": "nope"}'), 404),
    "a question with unknown parts": (request("GET /v1/explain?what=all HTTP/1.1"), 400),
    "two lengths": (
        request("POST /v1/client HTTP/1.1", ID, JSON, "content-length: 2", "content-length: 40", body=""),
        400,
    ),
}


@asynccontextmanager
async def served(path: Path) -> AsyncIterator[Fleet]:
    """A daemon that holds still."""
    async with daemon(path, FakeCloud()) as fleet:
        before = await fleet.scaler.capacity()
        yield fleet
        assert await fleet.scaler.capacity() == before
        assert len(fleet.holders.clients) == 0
        assert fleet.drained == []


def exchange(path: Path, sent: bytes) -> bytes:
    """Send something, and give all that comes back until the other end hangs up or says no more."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        try:
            connection.sendall(sent)
        except (BrokenPipeError, ConnectionResetError):
            """It has heard enough."""
        connection.shutdown(socket.SHUT_WR)
        found = b""
        try:
            while chunk := connection.recv(65536):
                found += chunk
        except ConnectionResetError:
            """The same."""
        return found


async def test_forty_hostile_requests_are_refused_and_change_nothing(tmp_path: Path) -> None:
    """Each by its status, with a code and a sentence where HTTP itself was spoken; then the daemon serves as before."""
    path = tmp_path / "s.sock"
    assert len(HOSTILE) >= 40
    wrong = {}
    async with served(path):
        for name, (sent, status) in HOSTILE.items():
            answer = await to_thread.run_sync(exchange, path, sent)
            found = int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.1 ") else answer[:60]
            if found != status:
                wrong[name] = (found, status)
            elif body := answer.partition(b"\r\n\r\n")[2]:
                error = json.loads(body)["error"]
                assert error["code"], name
                assert error["message"], name
        assert wrong == {}
        assert b" 200 " in await to_thread.run_sync(exchange, path, request("GET /v1/status HTTP/1.1"))


async def test_a_stranger_is_refused_whatever_they_ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user who got at the socket all the same is no operator."""
    monkeypatch.setattr(_server, "peer_of", lambda _: Peer(4002, 1))
    async with served(tmp_path / "s.sock"):
        for verb in ("drain", "reload"):
            answer = await to_thread.run_sync(exchange, tmp_path / "s.sock", post(verb, "{}"))
            assert b" 403 " in answer
