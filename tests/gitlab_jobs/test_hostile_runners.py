"""Whatever comes in on a coordinator's socket, it costs a bounded amount, moves no job, and others are served."""

import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import anyio
import httpx
import pytest
from anyio.abc import SocketAttribute, SocketStream
from anyio.lowlevel import checkpoint

from gitlab_jobs import Job
from gitlab_jobs.coordinator import MAX_PATCH
from gitlab_jobs.testing import FakeGitLab, Fault, State
from tests.gitlab_jobs.serving import served

pytestmark = pytest.mark.anyio

UNDER_WAY = 16 << 20
"""Bytes that kernels hold at most between two ends of a connection."""

FIVE_GIB = 5 << 30
API = "/api/v4"


@pytest.fixture
def gitlab(tmp_path: Path) -> FakeGitLab:
    """One with a job that nobody has yet."""
    made = FakeGitLab(tmp_path, accepts=0)
    made.enqueue(Job(id=0, token=""))
    return made


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[SocketStream]:
    """A plain connection, for what no client sends."""
    host, _, port = url.removeprefix("http://").rpartition(":")
    async with await anyio.connect_tcp(host, int(port)) as stream:
        yield stream


@contextmanager
def hung_up_on() -> Iterator[None]:
    """The other end may hang up before all was sent."""
    with suppress(anyio.BrokenResourceError, anyio.EndOfStream):
        yield


async def answer(stream: SocketStream) -> bytes:
    """What comes until the other end hangs up."""
    got = bytearray()
    with hung_up_on():
        while True:
            got += await stream.receive()
    return bytes(got)


async def expect_in_order(gitlab: FakeGitLab, url: str) -> None:
    """A runner gets the job that was there before."""
    assert gitlab.server.jobs[1].state is State.PENDING
    async with httpx.AsyncClient() as client:
        got = await client.post(f"{url}{API}/jobs/request", json={"token": gitlab.runner_token})
    assert (got.status_code, got.json()["id"]) == (201, 1)


def call(method: str, path: str, *headers: str, body: bytes = b"") -> bytes:
    """A request as it goes over the wire, closed after its answer."""
    lines = [f"{method} {API}/{path} HTTP/1.1", "Host: x", "Connection: close", *headers, "", ""]
    return "\r\n".join(lines).encode("latin-1") + body


UPGRADE = ("Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==")

STRANGE = {
    "a WebSocket": (call("GET", "jobs/request", *UPGRADE).replace(b"close", b"Upgrade"), 403),
    "TLS": (bytes.fromhex("1603010200010001fc0303") + b"\r\n\r\n", 400),
    "no host": (b"POST /api/v4/jobs/request HTTP/1.1\r\n\r\n", 400),
    "a large head": (call("POST", "jobs/request", f"X: {'a' * 100_000}"), 431),
    "a negative length": (call("POST", "jobs/request", "Content-Length: -1"), 400),
    "two lengths": (call("POST", "jobs/request", "Content-Length: 2", "Content-Length: 3", body=b"{} "), 400),
    "a length of 4000 digits": (call("PUT", "jobs/1", f"Content-Length: {'9' * 4000}"), 400),
    "an unknown encoding": (call("PATCH", "jobs/1/trace", "Transfer-Encoding: gzip"), 501),
    "a token that is no text": (call("PUT", "jobs/1", "JOB-TOKEN: \xff\xfe", "Content-Length: 2", body=b"{}"), 403),
    "a token of the queue's": (call("GET", "jobs/1/artifacts?token=%ff&direct_download=true"), 403),
    "a path with a NUL": (call("GET", "jobs/1%00/artifacts"), 404),
    "a state that is a list": (call("PUT", "jobs/1", "Content-Length: 13", body=b'{"state":[1]}'), 403),
    "a surrogate": (call("PUT", "jobs/1", "Content-Length: 18", body=rb'{"token":"\ud800"}'), 403),
    "an announced patch of 5 GiB": (call("PATCH", "jobs/1/trace", f"Content-Length: {FIVE_GIB}"), 413),
    "one that waits for a word": (
        call("PATCH", "jobs/1/trace", f"Content-Length: {FIVE_GIB}", "Expect: 100-continue"),
        413,
    ),
    "an announced state of 5 GiB": (call("PUT", "jobs/1", f"Content-Length: {FIVE_GIB}"), 413),
    "an announced file of 5 GiB, and no token": (call("POST", "jobs/1/artifacts", f"Content-Length: {FIVE_GIB}"), 403),
}


@pytest.mark.parametrize("name", STRANGE)
async def test_what_is_strange_is_refused_at_once(gitlab: FakeGitLab, name: str) -> None:
    """Before more of it comes; the next one is served."""
    sent, status = STRANGE[name]
    async with served(gitlab) as url:
        async with connected(url) as stream:
            await stream.send(sent)
            got = await answer(stream)
        got = got.rpartition(b"HTTP/1.1 ")[2]  # who asks whether to go on may be told so by the server
        assert int(got[:3]) == status
        await expect_in_order(gitlab, url)


async def test_an_announced_file_is_refused_at_once(gitlab: FakeGitLab) -> None:
    """By its job, too: what is too large is not waited for."""
    async with served(gitlab) as url:
        async with httpx.AsyncClient() as client:
            job = (await client.post(f"{url}{API}/jobs/request", json={"token": gitlab.runner_token})).json()
        token = f"JOB-TOKEN: {job['token']}"
        async with connected(url) as stream:
            await stream.send(call("POST", "jobs/1/artifacts", token, f"Content-Length: {FIVE_GIB}"))
            assert b" 413 " in await answer(stream)


@pytest.mark.parametrize("path", ["jobs/1/trace", "jobs/1/artifacts"])
async def test_what_never_ends_is_cut_off(gitlab: FakeGitLab, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    """Of a patch or a file without an announced length, as much is read as it may have."""
    monkeypatch.setattr("gitlab_jobs.coordinator.MAX_UPLOAD", MAX_PATCH)
    piece = b"10000\r\n" + bytes(0x10000) + b"\r\n"
    sent = 0
    async with served(gitlab) as url:
        async with httpx.AsyncClient() as client:
            job = (await client.post(f"{url}{API}/jobs/request", json={"token": gitlab.runner_token})).json()
        headers = (
            f"JOB-TOKEN: {job['token']}",
            "Transfer-Encoding: chunked",
            "Content-Type: multipart/form-data; boundary=x",
        )
        method = "PATCH" if path.endswith("trace") else "POST"
        async with connected(url) as stream:
            await stream.send(call(method, path, *headers))
            if method == "POST":
                await stream.send(b'33\r\n--x\r\nContent-Disposition: form-data; name="file"; fi\r\n')
                await stream.send(b'11\r\nlename="a"\r\n\r\n    \r\n')
            with hung_up_on():
                while sent < FIVE_GIB:
                    await stream.send(piece)
                    sent += len(piece)
    assert sent < MAX_PATCH + UNDER_WAY
    assert (gitlab.log(1), gitlab.artifacts) == (b"", {})


@pytest.mark.parametrize(
    "begun",
    [b"POST /api/v4/jobs/request HTT", call("PUT", "jobs/1", "Content-Length: 500", body=b"{")],
    ids=["a head", "a body"],
)
async def test_who_is_slow_is_not_waited_for(gitlab: FakeGitLab, monkeypatch: pytest.MonkeyPatch, begun: bytes) -> None:
    """Many who send a byte now and then hold up nobody, and are hung up on: not in the time that others may need."""
    over = 0

    async def dribble(url: str) -> None:
        nonlocal over
        async with connected(url) as stream:
            await stream.send(begun)
            with hung_up_on():
                while True:
                    await anyio.sleep(0.05)
                    await stream.send(b" ")
        over += 1

    async with served(gitlab) as url, anyio.create_task_group() as tasks:
        for _ in range(30):
            tasks.start_soon(dribble, url)
        await expect_in_order(gitlab, url)
        tasks.cancel_scope.cancel()
    assert over == 0
    monkeypatch.setattr("gitlab_jobs.coordinator.BODY_SECONDS", 0.5)
    async with served(gitlab, idle=0.5) as url, anyio.create_task_group() as tasks:
        for _ in range(30):
            tasks.start_soon(dribble, url)
    assert over == 30


@pytest.mark.parametrize("way", ["closed", "reset", "half closed"])
async def test_polls_end_with_who_made_them(gitlab: FakeGitLab, way: str) -> None:
    """However a runner goes away, its request is held no longer, and the next job is for those who still wait."""
    gitlab.cancel(1)
    gitlab.long_poll = 600
    ticket = str(gitlab.server.version)
    body = f'{{"token":"{gitlab.runner_token}","last_update":"{ticket}"}}'.encode()
    request = call("POST", "jobs/request", f"Content-Length: {len(body)}", body=body)
    async with served(gitlab) as url, connected(url) as waiting:
        await waiting.send(request)
        for _ in range(20):
            async with connected(url) as stream:
                await stream.send(request)
                while gitlab.held < 2:
                    await checkpoint()
                if way == "reset":
                    linger(stream)
                if way == "half closed":
                    await stream.send_eof()
                    while gitlab.held > 1:
                        await checkpoint()
            while gitlab.held > 1:
                await checkpoint()
        number = gitlab.enqueue(Job(id=0, token=""))
        assert f'"id":{number}'.encode() in (await answer(waiting)).replace(b" ", b"")


async def test_a_poll_that_fails_ends_as_it_failed(gitlab: FakeGitLab) -> None:
    """What a backend raises comes out as it is, beside what watches for a hang-up."""
    gitlab.faults = [Fault(call="request")]
    async with httpx.AsyncClient(transport=gitlab.transport()) as client:
        with pytest.raises(httpx.ReadError, match="the connection ended"):
            await client.post(f"http://gitlab.test{API}/jobs/request", json={"token": gitlab.runner_token})


def linger(stream: SocketStream) -> None:
    """Have the connection reset when it is closed."""
    raw = stream.extra(SocketAttribute.raw_socket)
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")


@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        ({"RUNNER-TOKEN": "right"}, {"token": "wrong"}, 201),
        ({"RUNNER-TOKEN": "wrong"}, {"token": "right"}, 403),
        ({"RUNNER-TOKEN": ""}, {"token": "right"}, 201),
        ({"Private-Token": "right"}, {}, 201),
        ({"Job-Token": "right"}, {}, 403),
        ({"Authorization": "Bearer right"}, {}, 403),
        ({}, {"token": "right"}, 201),
        ({}, {"token": ["right"]}, 403),
        ({}, {}, 403),
    ],
)
async def test_which_token_counts(
    gitlab: FakeGitLab, headers: dict[str, str], body: dict[str, object], status: int
) -> None:
    """A header before the body, and none but those that runners of some version send."""

    def written(value: object) -> object:
        return (
            [written(each) for each in value]
            if isinstance(value, list)
            else str(value).replace("right", gitlab.runner_token)
        )

    async with httpx.AsyncClient(transport=gitlab.transport()) as client:
        got = await client.post(
            f"http://gitlab.test{API}/jobs/request",
            headers={name: str(written(value)) for name, value in headers.items()},
            json={name: written(value) for name, value in body.items()},
        )
    assert got.status_code == status


@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        ({"JOB-TOKEN": "right"}, {"token": "wrong"}, 200),
        ({"JOB-TOKEN": "wrong"}, {"token": "right"}, 403),
        ({"Private-Token": "right"}, {"token": "right"}, 200),
        ({"Private-Token": "right"}, {}, 200),
        ({"JOB-TOKEN": "wrong", "Private-Token": "right"}, {}, 403),
        ({"RUNNER-TOKEN": "right"}, {}, 403),
        ({}, {"token": "right"}, 200),
        ({}, {}, 403),
    ],
)
async def test_which_token_of_a_job_counts(
    gitlab: FakeGitLab, headers: dict[str, str], body: dict[str, str], status: int
) -> None:
    """It comes in three places, and the header that is meant for it is the first."""
    async with httpx.AsyncClient(transport=gitlab.transport(), base_url=f"http://gitlab.test{API}/") as client:
        token = (await client.post("jobs/request", json={"token": gitlab.runner_token})).json()["token"]
        said = {"state": "running"} | {name: value.replace("right", token) for name, value in body.items()}
        given = {name: value.replace("right", token) for name, value in headers.items()}
        assert (await client.put("jobs/1", headers=given, json=said)).status_code == status


async def test_a_token_is_good_for_its_job(gitlab: FakeGitLab) -> None:
    """Neither for another one, nor for files of a job that this one does not depend on."""
    gitlab.enqueue(Job(id=0, token=""))
    async with httpx.AsyncClient(transport=gitlab.transport(), base_url=f"http://gitlab.test{API}/") as client:
        mine, other = [
            (await client.post("jobs/request", json={"token": gitlab.runner_token})).json() for _ in range(2)
        ]
        headers = {"JOB-TOKEN": mine["token"]}
        upload = {"file": b"content"}
        assert (await client.post(f"jobs/{other['id']}/artifacts", headers=headers, files=upload)).status_code == 403
        theirs = {"JOB-TOKEN": other["token"]}
        assert (await client.post(f"jobs/{other['id']}/artifacts", headers=theirs, files=upload)).status_code == 201
        for refused in (
            client.get(f"jobs/{other['id']}/artifacts", headers=headers),
            client.put(f"jobs/{other['id']}", headers=headers, json={"state": "success"}),
            client.put(f"jobs/{other['id']}", json={"state": "success", "token": mine["token"]}),
            client.patch(f"jobs/{other['id']}/trace", headers={**headers, "Content-Range": "0-0"}, content=b"x"),
        ):
            assert (await refused).status_code == 403
    assert (gitlab.server.jobs[other["id"]].state, gitlab.log(other["id"])) == (State.RUNNING, b"")


@pytest.mark.parametrize(
    ("content_range", "status"),
    [
        ("0-2", 202),
        ("0-999", 202),
        ("1-3", 416),
        ("2-0", 416),
        ("", 400),
        ("bytes 0-2/3", 400),
        ("0-2/3", 400),
        ("-1-2", 400),
    ],
)
async def test_a_range_that_lies_loses_nothing(gitlab: FakeGitLab, content_range: str, status: int) -> None:
    """Only where a patch begins counts; what does not follow the log is refused, with what there is."""
    async with httpx.AsyncClient(transport=gitlab.transport(), base_url=f"http://gitlab.test{API}/") as client:
        job = (await client.post("jobs/request", json={"token": gitlab.runner_token})).json()
        headers = {"JOB-TOKEN": job["token"], **({"Content-Range": content_range} if content_range else {})}
        got = await client.patch("jobs/1/trace", headers=headers, content=b"abc")
    assert (got.status_code, gitlab.log(1)) == (status, b"abc" if status == 202 else b"")
    if status == 416:
        assert got.headers["Range"] == "0-0"
