"""A daemon that answers whatever a test wants: HTTP on a unix socket, by h11, with nothing behind it."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import h11
from anyio.abc import ByteStream
from attrs import define, field

from fleeting_docker_engine import Engine, Entry, tar_of
from fleeting_docker_engine._wire import receive_from

PING = [("Api-Version", "1.45")]

STATE = {"Status": "running", "Running": True, "Paused": False, "OOMKilled": False, "ExitCode": 0, "Health": None}
"""Source, of this and what follows: the examples in the Engine API's reference, cut to what is read here."""

LABELS = {"fleeting.group": "default", "fleeting.owner": "me", "fleeting.host-key": "ssh-ed25519 AAAA"}

CONTAINER = {
    "Id": "8dfafdbc3a40",
    "State": STATE,
    "Config": {"Labels": LABELS, "User": "worker"},
    "NetworkSettings": {"Ports": {"22/tcp": [{"HostIp": "127.0.0.1", "HostPort": "32768"}], "80/tcp": None}},
}

LISTED = {
    "Id": "8dfafdbc3a40",
    "Names": ["/default-8dfafdbc3a40"],
    "State": "running",
    "Created": 1367854155,
    "Labels": {**LABELS, "taskscaler.unit": "x", "taskscaler.run": "y"},
}

ANSWERS: Mapping[str, Any] = {
    "GET /info": {"ID": "7TRN:IPZB", "Architecture": "x86_64", "NCPU": 4, "MemTotal": 2095882240},
    "GET /containers/json": [LISTED],
    "GET /containers/*/json": CONTAINER,
    "GET /containers/*/stats": {
        "cpu_stats": {"cpu_usage": {"total_usage": 100215355}},
        "memory_stats": {"usage": 6537216, "max_usage": 6651904},
    },
    "GET /images/*/json": {"Id": "sha256:ec3f0931a6e6", "Config": {"User": "worker", "Labels": None}},
    "GET /networks": [{"Id": "f2de39df4171", "Name": "bridge", "Labels": {"taskscaler.unit": "x"}}],
    "GET /volumes": {"Volumes": [{"Name": "tardis", "Labels": {"taskscaler.unit": "x"}}], "Warnings": None},
    "GET /volumes/*": {"Name": "tardis", "Labels": None},
    "POST /containers/create": {"Id": "e90e34656806", "Warnings": []},
    "POST /containers/*/wait": {"StatusCode": 0},
    "POST /images/create": {"status": "Pulling from library/busybox"},
    "POST /networks/create": {"Id": "22be93d5babb"},
    "POST /volumes/create": {"Name": "tardis"},
}
"""What a daemon that is well answers, by method and path; an asterisk is any name."""

FILE = tar_of({"passwd": Entry(b"root:x:0:0:root:/root:/bin/sh\nworker:x:1000:1001::/:/bin/sh\n")})
"""What it answers where an archive belongs."""

Answer = Callable[[str], "bytes | None"]
"""The body of an answer to a request, by method and path as in `ANSWERS`; None: what a daemon that is well answers."""


def endpoint(method: str, target: str) -> str:
    """Which of the API's endpoints is asked, without version, names and query."""
    kind, *rest = target.partition("?")[0].split("/")[2:]
    if rest and rest[0] not in ("json", "create"):
        rest[0] = "*"
    return f"{method} /{'/'.join((kind, *rest))}"


@define
class Liar:
    """Such a daemon, for one test."""

    answer: Answer
    asked: list[str] = field(factory=list)

    async def serve(self, client: ByteStream) -> None:
        """Answer one request after the other."""
        http = h11.Connection(h11.SERVER)
        with suppress(h11.RemoteProtocolError):  # who hangs up half-way
            while (request := await self._request(http, client)) is not None:
                await self._reply(http, client, request)

    async def _request(self, http: h11.Connection, client: ByteStream) -> h11.Request | None:
        request: h11.Request | None = None
        while True:
            event = http.next_event()
            if event is h11.NEED_DATA:
                http.receive_data(await receive_from(client))
            elif isinstance(event, h11.Request):
                request = event
                if (b"upgrade", b"tcp") in request.headers:
                    return request
            elif isinstance(event, h11.EndOfMessage | h11.ConnectionClosed):
                return request

    async def _reply(self, http: h11.Connection, client: ByteStream, request: h11.Request) -> None:
        target = request.target.decode()
        if target.endswith("/_ping"):
            await self._send(http, client, b"OK", PING)
            return
        asked = endpoint(request.method.decode(), target)
        self.asked.append(asked)
        body = self.answer(asked)
        if asked.endswith("/attach"):
            await client.send(b"HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n" + (body or b""))
            await client.aclose()
        elif body is None and asked.endswith("/archive"):
            await self._send(http, client, FILE, [])
        else:
            await self._send(http, client, json.dumps(ANSWERS.get(asked)).encode() if body is None else body, [])

    async def _send(
        self, http: h11.Connection, client: ByteStream, body: bytes, headers: list[tuple[str, str]]
    ) -> None:
        length = ("Content-Length", str(len(body)))
        parts: list[h11.Event] = [h11.Response(status_code=200, headers=[*headers, length]), h11.Data(data=body)]
        for part in (*parts, h11.EndOfMessage()):
            await client.send(http.send(part) or b"")
        http.start_next_cycle()


@asynccontextmanager
async def serving(path: Path, serve: Callable[[ByteStream], Awaitable[None]]) -> AsyncIterator[None]:
    """Serve whoever connects to a socket, until they have hung up; who serves is not cancelled."""

    async def served(client: ByteStream) -> None:
        with suppress(anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            async with client:
                await serve(client)

    await anyio.Path(path).unlink(missing_ok=True)
    async with (
        anyio.create_task_group() as clients,
        await anyio.create_unix_listener(path) as listener,
        anyio.create_task_group() as accepting,
    ):
        accepting.start_soon(listener.serve, served, clients)
        yield
        accepting.cancel_scope.cancel()


@asynccontextmanager
async def lying(directory: Path, answer: Answer) -> AsyncIterator[tuple[str, Liar]]:
    """Run such a daemon; yields where its socket is."""
    liar = Liar(answer)
    async with serving(directory / "liar.sock", liar.serve):
        yield str(directory / "liar.sock"), liar


@asynccontextmanager
async def lied_to(directory: Path, body: bytes) -> AsyncIterator[Engine]:
    """Use a client of a daemon that answers this to everything but its first request."""
    async with lying(directory, lambda _: body) as (socket, _), Engine(partial(anyio.connect_unix, socket)) as engine:
        yield engine


@asynccontextmanager
async def answered(directory: Path, answer: bytes, *, more: bytes = b"") -> AsyncIterator[tuple[Engine, list[int]]]:
    """Use a client of somebody who answers these bytes to everything but its first request.

    Args:
        directory: For the socket.
        answer: Head and body.
        more: Sent after that again and again, for as long as it is received.

    Yields:
        The client, and how many bytes of the last were sent each time.
    """
    sent = []

    async def serve(client: ByteStream) -> None:
        await receive_from(client)
        await client.send(b"HTTP/1.1 200 OK\r\nApi-Version: 1.45\r\nContent-Length: 2\r\n\r\nOK")
        await receive_from(client)
        await client.send(answer)
        while more:
            await client.send(more)
            sent.append(len(more))
        await receive_from(client)

    async with serving(directory / "sock", serve), Engine(partial(anyio.connect_unix, directory / "sock")) as engine:
        yield engine, sent
