"""Whatever an instance sends to the relay over a real socket: it costs little, and a sidecar goes on beside it."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import anyio
import httpx
import pytest
from anyio.abc import SocketStream
from anyio.lowlevel import checkpoint

from gitlab_jobs.coordinator import MAX_PATCH
from gitlab_jobs.testing import State
from taskscaler_gitlab.relay._routes import MOST_CALLS, application
from taskscaler_gitlab.relay._ways import Listening
from tests.taskscaler_gitlab.test_relay_routes import DELIVERY, SECRET, Counter, counter, tunnelled
from tests.taskscaler_gitlab.test_relay_ways import open_port

__all__ = ["counter"]

pytestmark = pytest.mark.anyio

UNDER_WAY = 16 << 20
"""Bytes that kernels hold at most between two ends of a connection."""

FIVE_GIB = 5 << 30
GONE = anyio.BrokenResourceError, anyio.EndOfStream


@asynccontextmanager
async def listening(counter: Counter) -> AsyncIterator[str]:
    """Listen as for tunnels; gives the path of the socket."""
    async with tunnelled(counter) as path:
        yield path


def call(method: str, path: str, *headers: str, body: bytes = b"", delivery: str = DELIVERY) -> bytes:
    """A request as it goes over the wire, closed after its answer."""
    lines = [f"{method} /d/{delivery}/api/v4/{path} HTTP/1.1", "Host: us", "Connection: close", *headers, "", ""]
    return "\r\n".join(lines).encode("latin-1") + body


async def answer(stream: SocketStream) -> bytes:
    """What comes until the other end hangs up."""
    got = bytearray()
    with suppress(*GONE):
        while True:
            got += await stream.receive()
    return bytes(got)


async def expect_that_the_sidecar_goes_on(counter: Counter, path: str) -> None:
    """A piece of the log goes through."""
    headers = {"JOB-TOKEN": counter.job.token, "Content-Range": f"{len(counter.gitlab.log(1))}-9"}
    async with httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(uds=path)) as http:
        url = f"http://us/d/{DELIVERY}/api/v4/jobs/1/trace"
        assert (await http.patch(url, content=b"more", headers=headers)).status_code == 202


async def until_idle(counter: Counter) -> None:
    """Wait until no call is under way."""
    while counter.work.calls:
        await checkpoint()


UPGRADE = ("Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==")

STRANGE = {
    "a WebSocket": (call("GET", "jobs/request", *UPGRADE).replace(b"close", b"Upgrade"), 403),
    "TLS": (bytes.fromhex("1603010200010001fc0303") + b"\r\n\r\n", 400),
    "a large head": (call("POST", "jobs/request", f"X: {'a' * 100_000}"), 431),
    "a patch of 5 GiB of nobody's": (call("PATCH", "jobs/1/trace", f"Content-Length: {FIVE_GIB}"), 403),
    "a patch of 5 GiB": (call("PATCH", "jobs/1/trace", "JOB-TOKEN: {}", f"Content-Length: {FIVE_GIB}"), 413),
    "a state of 5 GiB": (call("PUT", "jobs/1", "JOB-TOKEN: {}", f"Content-Length: {FIVE_GIB}"), 413),
    "a poll of nobody's": (call("POST", "jobs/request", "Content-Length: 1000", delivery="d2"), 403),
    "a state of nobody's": (call("PUT", "jobs/1", "Content-Length: 1000", delivery="d2"), 403),
    "a poll of 5 GiB": (call("POST", "jobs/request", f"Content-Length: {FIVE_GIB}"), 413),
    "a token that is no text": (call("PATCH", "jobs/1/trace", "JOB-TOKEN: \xff\xfe", "Content-Length: 0"), 403),
    "another delivery": (call("PATCH", "jobs/1/trace", "JOB-TOKEN: {}", "Content-Length: 0", delivery="%00"), 403),
    "no delivery": (call("PATCH", "jobs/1/trace", "JOB-TOKEN: {}", "Content-Length: 0", delivery=""), 404),
    "a way out": (call("GET", "../../../../jobs/1/artifacts", "JOB-TOKEN: {}"), 404),
    "a way out, hidden": (call("GET", "jobs/1/%2e%2e/2/artifacts", "JOB-TOKEN: {}"), 404),
    "a call of nobody's": (call("DELETE", "runners", "JOB-TOKEN: {}"), 404),
}


@pytest.mark.parametrize("name", STRANGE)
async def test_what_is_strange_is_refused_at_once(counter: Counter, name: str) -> None:
    """Nothing of it goes on to GitLab, and the sidecar's own call does."""
    sent, status = STRANGE[name]
    await counter.poll()
    async with listening(counter) as path:
        async with await anyio.connect_unix(path) as stream:
            await stream.send(sent.replace(b"{}", counter.job.token.encode()))
            got = await answer(stream)
        assert int(got.removeprefix(b"HTTP/1.1 ")[:3]) == status
        assert {each.method for each in counter.recorder.seen} <= {"PUT"}  # the claim, if the token was right
        await expect_that_the_sidecar_goes_on(counter, path)


async def test_a_patch_that_never_ends_is_cut_off(counter: Counter) -> None:
    """As much of it is read as a patch may have, and nothing of it reaches GitLab."""
    await counter.poll()
    piece, sent = b"10000\r\n" + bytes(0x10000) + b"\r\n", 0
    async with listening(counter) as path:
        async with await anyio.connect_unix(path) as stream:
            headers = f"JOB-TOKEN: {counter.job.token}", "Content-Range: 0-9", "Transfer-Encoding: chunked"
            await stream.send(call("PATCH", "jobs/1/trace", *headers))
            with suppress(*GONE):
                while sent < FIVE_GIB:
                    await stream.send(piece)
                    sent += len(piece)
        await until_idle(counter)
        await expect_that_the_sidecar_goes_on(counter, path)
    assert sent < MAX_PATCH + UNDER_WAY
    assert counter.gitlab.log(1) == b"more"


async def test_who_is_slow_is_not_waited_for(counter: Counter, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bodies that come a byte at a time take the places of one job, for a while."""
    monkeypatch.setattr("gitlab_jobs.coordinator.BODY_SECONDS", 0.5)
    await counter.poll()
    settings, port = open_port()
    over = 0

    async def dribble() -> None:
        nonlocal over
        async with await anyio.connect_tcp("127.0.0.1", port) as stream:
            headers = f"JOB-TOKEN: {counter.job.token}", "Content-Range: 0-9", "Content-Length: 500"
            await stream.send(call("PATCH", "jobs/1/trace", *headers))
            with suppress(*GONE):
                while True:
                    await anyio.sleep(0.05)
                    await stream.send(b" ")
        over += 1

    async with Listening(settings).serve(application(counter.relays)):
        async with anyio.create_task_group() as tasks:
            for _ in range(30):
                tasks.start_soon(dribble)
        await until_idle(counter)
    assert over == 30
    assert (await counter.patch(b"more")).status_code == 202


async def test_bodies_of_who_has_not_said_who_it_is_are_bounded(counter: Counter) -> None:
    """Polls and states count before anything of them is read; further calls come again later."""
    await counter.poll()
    async with AsyncExitStack() as opened, listening(counter) as path:
        for number in range(MOST_CALLS):
            stream = await opened.enter_async_context(await anyio.connect_unix(path))
            method, where = (("POST", "jobs/request"), ("PUT", "jobs/1"))[number % 2]
            await stream.send(call(method, where, "Content-Length: 1000000", body=bytes(1000)))
        while counter.work.calls < MOST_CALLS:
            await checkpoint()
        for method, where in (("POST", "jobs/request"), ("PUT", "jobs/1"), ("PATCH", "jobs/1/trace")):
            async with await anyio.connect_unix(path) as stream:
                await stream.send(call(method, where, "Content-Length: 1000000"))
                assert (await answer(stream)).startswith(b"HTTP/1.1 429")
        await opened.aclose()
        await until_idle(counter)
        await expect_that_the_sidecar_goes_on(counter, path)


async def test_who_speaks_http_2_makes_few_calls_at_a_time(counter: Counter) -> None:
    """No sidecar does, but the server would: what it announces bounds how many bodies a connection can have open."""
    preface, no_settings = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", bytes.fromhex("000000040000000000")
    async with listening(counter) as path, await anyio.connect_unix(path) as stream:
        await stream.send(preface + no_settings)
        got = b""
        while len(got) < 9 or len(got) < 9 + int.from_bytes(got[:3], "big"):
            got += await stream.receive()
    pairs = got[9 : 9 + int.from_bytes(got[:3], "big")]
    found = {int.from_bytes(pairs[at : at + 2], "big"): pairs[at + 2 : at + 6] for at in range(0, len(pairs), 6)}
    assert got[3] == 4  # settings
    assert int.from_bytes(found[3], "big") <= MOST_CALLS  # concurrent streams


async def test_an_upload_that_breaks_off_is_none(counter: Counter) -> None:
    """GitLab keeps no half of a file, and nothing waits for the other half."""
    await counter.poll()
    head = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
    async with listening(counter) as path:
        for _ in range(3):
            async with await anyio.connect_unix(path) as stream:
                headers = f"JOB-TOKEN: {counter.job.token}", "Content-Type: multipart/form-data; boundary=x"
                await stream.send(call("POST", "jobs/1/artifacts", *headers, "Content-Length: 1000000", body=head))
                await stream.send(bytes(100_000))
                while not counter.work.calls:
                    await checkpoint()
            await until_idle(counter)
        await expect_that_the_sidecar_goes_on(counter, path)
    assert 1 not in counter.gitlab.artifacts


async def test_a_download_that_nobody_reads_is_given_up(counter: Counter) -> None:
    """Whoever hangs up in the middle of a file leaves nothing open."""
    counter.gitlab.artifacts[2][0].path.write_bytes(bytes(32 << 20))
    await counter.poll()
    async with listening(counter) as path:
        for _ in range(3):
            async with await anyio.connect_unix(path) as stream:
                await stream.send(call("GET", "jobs/2/artifacts", "JOB-TOKEN: glcbt-two"))
                assert (await stream.receive()).startswith(b"HTTP/1.1 200")
            await until_idle(counter)
        await expect_that_the_sidecar_goes_on(counter, path)
    assert counter.gitlab.server.jobs[1].state is State.RUNNING


async def test_polls_of_strangers_give_nothing_away(counter: Counter) -> None:
    """Neither a token of GitLab's runner nor the job's own is the one for this poll."""
    for secret in ("", "x", counter.gitlab.runner_token, counter.job.token, SECRET + "x"):
        assert (await counter.poll(secret)).status_code == 403
    assert (await counter.poll()).status_code == 201
