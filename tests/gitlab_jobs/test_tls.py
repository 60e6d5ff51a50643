"""GitLab behind TLS, over real sockets: whose certificate is trusted, and what is said of one that is not."""

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import anyio
import pytest
import trustme
from anyio.abc import ByteStream
from anyio.streams.tls import TLSListener

from gitlab_jobs import Unreachable
from gitlab_jobs.client import GitLabClient

pytestmark = pytest.mark.anyio

ANSWER = b'HTTP/1.1 200 OK\r\ncontent-length: 25\r\nconnection: close\r\n\r\n{"id": 7, "token": "t-x"}'
HOST = "127.0.0.1"


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    """Sign certificates."""
    return trustme.CA()


def trusting(authority: trustme.CA) -> ssl.SSLContext:
    """What a client trusts that was given the authority's certificate."""
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


@asynccontextmanager
async def served(certificate: trustme.LeafCert | None) -> AsyncIterator[int]:
    """Answer every request on a port, in TLS if there is a certificate."""

    async def answer(stream: ByteStream) -> None:
        async with stream:
            await stream.receive()
            await stream.send(ANSWER)

    async with await anyio.create_tcp_listener(local_host=HOST) as plain, anyio.create_task_group() as tasks:
        listener: anyio.abc.Listener[anyio.abc.ByteStream] = plain
        if certificate is not None:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            certificate.configure_cert(context)
            listener = TLSListener(plain, context, standard_compatible=False)
        tasks.start_soon(listener.serve, answer)
        yield plain.extra(anyio.abc.SocketAttribute.local_port)
        tasks.cancel_scope.cancel()


async def verified(port: int, tls: ssl.SSLContext | None, scheme: str = "https") -> int:
    """Ask about a token; gives the runner's number."""
    async with GitLabClient(f"{scheme}://{HOST}:{port}", tls=tls or True) as client:
        return (await client.verify("glrt-x")).id


async def test_a_certificate_of_an_authority_that_is_trusted(authority: trustme.CA) -> None:
    """It is what `tls` is for, where GitLab's is a company's own."""
    async with served(authority.issue_cert(HOST)) as port:
        assert await verified(port, trusting(authority)) == 7


@pytest.mark.parametrize(
    ("names", "days", "trusted", "said"),
    [
        (
            [HOST],
            1,
            False,
            "cannot be trusted: unable to get local issuer certificate; if it is the right one, pass a context",
        ),
        (["gitlab.test"], 1, True, "cannot be trusted: IP address mismatch, certificate is not valid for '127.0.0.1'"),
        ([HOST], -1, True, "cannot be trusted: certificate has expired; "),
    ],
    ids=["of nobody known", "of another host", "expired"],
)
async def test_a_certificate_that_cannot_be_trusted(
    authority: trustme.CA,
    names: list[str],
    days: int,
    trusted: bool,  # noqa: FBT001  (a parameter of pytest's)
    said: str,
) -> None:
    """The error says what is wrong with it, of whom, and what to do; the token has not left."""
    ends = datetime.now(tz=UTC) + timedelta(days=days)
    certificate = authority.issue_cert(*names, not_before=ends - timedelta(days=2), not_after=ends)
    async with served(certificate) as port:
        with pytest.raises(Unreachable) as error:
            await verified(port, trusting(authority) if trusted else None)
    assert str(error.value).startswith(f"POST runners/verify: the certificate of {HOST} ")
    assert said in str(error.value)
    assert "\n" not in str(error.value)


async def test_a_port_without_tls(authority: trustme.CA) -> None:
    """Said as such, and not as what a library of TLS makes of HTTP."""
    async with served(None) as port:
        with pytest.raises(Unreachable, match=f"POST runners/verify: {HOST} does not speak TLS there; check the"):
            await verified(port, trusting(authority))


async def test_tls_where_none_is_expected(authority: trustme.CA) -> None:
    """Nothing hangs, and the error is one of ours."""
    async with served(authority.issue_cert(HOST)) as port:
        with pytest.raises(Unreachable, match=r"^POST runners/verify: .*disconnected"):
            await verified(port, None, scheme="http")
