"""Serves a `Cloud` over HTTPS, with an authority of our own, so that the SDK keeps all of its policies."""

import json
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import anyio
import trustme
from anyio.abc import SocketAttribute
from anyio.streams.buffered import BufferedByteReceiveStream
from anyio.streams.tls import TLSListener, TLSStream
from attrs import evolve
from azure.core.credentials import AccessToken

from fleeting.testing import Trouble
from fleeting_azure import AzureConfig, AzureGroup
from tests.fleeting_azure import arm_rules as rules
from tests.fleeting_azure.arm_cloud import Cloud, Mode, Request
from tests.fleeting_azure.arm_rules import SUBSCRIPTION, TOKEN, Refused, Reply

SLOW = 0.3


class Credential:
    """Gives the token that the server wants to see."""

    scopes: tuple[str, ...] = ()

    def get_token(self, *scopes: str, **_: Any) -> AccessToken:  # noqa: ANN401  (as the SDK has it)
        """Give it, and remember for what."""
        self.scopes = scopes
        return AccessToken(TOKEN, 1 << 40)


@cache
def authority() -> trustme.CA:
    """The one that all servers of a run share."""
    return trustme.CA()


@asynccontextmanager
async def running(directory: Path, mode: Mode, **settings: Any) -> AsyncIterator[tuple[Cloud, AzureConfig]]:  # noqa: ANN401  (those of the cloud)
    """Run a cloud on a free port; gives it and what a group needs to find it."""
    cloud = Cloud(mode=mode, **settings)
    certificates = directory / "authority.pem"
    authority().cert_pem.write_to_path(certificates)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority().issue_cert("127.0.0.1").configure_cert(context)
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    async with TLSListener(listener, context, standard_compatible=False) as secure, anyio.create_task_group() as tasks:
        cloud.base = f"https://127.0.0.1:{listener.extra(SocketAttribute.local_port)}"
        config = AzureConfig(
            name="runners",
            subscription_id=SUBSCRIPTION,
            resource_group_name="ci",
            endpoint=cloud.base,
            ca_file=str(certificates),
            timeout=30.0,
        )
        tasks.start_soon(secure.serve, lambda stream: _serve(cloud, stream))
        yield cloud, config
        tasks.cancel_scope.cancel()


def group_of(config: AzureConfig) -> AzureGroup:
    """Make a group that has the token."""
    return AzureGroup(config, credential=Credential())


def trouble(cloud: Cloud, kind: Trouble) -> Callable[[], AbstractAsyncContextManager[None]]:
    """Have a trouble from entering to leaving."""

    @asynccontextmanager
    async def having() -> AsyncIterator[None]:
        cloud.troubles[kind] = anyio.Event()
        try:
            yield
        finally:
            cloud.troubles.pop(kind).set()

    return having


async def _serve(cloud: Cloud, stream: TLSStream) -> None:
    """Answer the requests of one connection."""
    async with stream:
        buffered = BufferedByteReceiveStream(stream)
        try:
            while await _exchange(cloud, stream, buffered):
                pass
        except (anyio.EndOfStream, anyio.IncompleteRead, anyio.BrokenResourceError):
            return


async def _exchange(cloud: Cloud, stream: TLSStream, buffered: BufferedByteReceiveStream) -> bool:
    """Answer one; returns whether the connection is still good."""
    request = await _read(buffered)
    if silence := cloud.troubles.get(Trouble.SILENCE):
        await silence.wait()
        return False
    if Trouble.SLOW in cloud.troubles:
        await anyio.sleep(SLOW)
    reply = cloud.answer(request)
    if late := cloud.troubles.get(Trouble.LATE_ANSWER):
        await late.wait()
        return False
    if cloud.garbles:
        await stream.transport_stream.send(b"It works!" * 9)
    if cloud.garbles or Trouble.LOST_ANSWER in cloud.troubles:
        return False
    if Trouble.GARBAGE in cloud.troubles:
        reply = Reply(502, "<html><h1>Bad gate")
    await stream.send(_written(reply))
    return True


async def _read(buffered: BufferedByteReceiveStream) -> Request:
    head = (await buffered.receive_until(b"\r\n\r\n", 65536)).decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:])}
    body = await buffered.receive_exactly(int(headers.get("content-length", 0)))
    method, target, _ = head[0].split()
    url = urlsplit(target)
    query = dict(parse_qsl(url.query, keep_blank_values=True))
    request = Request(method=method, path=url.path, query=query, headers=headers)
    try:
        return evolve(request, body=rules.read_body(body))
    except Refused as refused:
        return evolve(request, malformed=refused)


def _written(reply: Reply) -> bytes:
    body = (
        b"" if reply.body is None else (reply.body if isinstance(reply.body, str) else json.dumps(reply.body)).encode()
    )
    kind = "text/html" if isinstance(reply.body, str) else "application/json"
    headers = {"Content-Type": kind, "Content-Length": str(len(body)), **reply.headers}
    lines = [f"HTTP/1.1 {reply.status} -", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    return "\r\n".join(lines).encode() + body
