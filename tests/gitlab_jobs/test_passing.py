"""Calls that are made for somebody else: once, as they come, and to this GitLab alone."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from attrs import define, field

from gitlab_jobs import Job, Refused, Unreachable
from gitlab_jobs.client import GitLabClient
from gitlab_jobs.testing import URL, FakeGitLab

pytestmark = [
    pytest.mark.anyio,
    # httpx leaves its own generators open when an answer is not read to its end, and trio tells of them
    pytest.mark.filterwarnings("ignore:.*async_generator object .*Stream:pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:Async generator 'httpx:ResourceWarning"),
]


@define
class Transport(httpx.AsyncBaseTransport):
    """A GitLab that always says the same, and sees how a body comes."""

    status: int
    body: bytes = b""
    headers: dict[str, str] = field(factory=dict)
    sizes: list[int] = field(factory=list)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Answer."""
        assert isinstance(request.stream, httpx.AsyncByteStream)
        async for piece in request.stream:
            self.sizes.append(len(piece))
        return httpx.Response(self.status, headers=self.headers, stream=Body([self.body[:1000], self.body[1000:]]))


@define
class Body(httpx.AsyncByteStream):
    """It comes in pieces, and may be left at any of them."""

    pieces: list[bytes]

    def __aiter__(self) -> AsyncIterator[bytes]:
        """Give one after the other."""
        return self

    async def __anext__(self) -> bytes:
        """Give the next one."""
        if not self.pieces:
            raise StopAsyncIteration
        return self.pieces.pop(0)


def answering(status: int, body: bytes = b"", **headers: str) -> GitLabClient:
    """A client of a GitLab that always says the same."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return GitLabClient(URL, transport=Transport(status, body, named))


async def test_a_call_goes_on_as_it_is(tmp_path: Path) -> None:
    """Its token, its range, its body; and the answer comes back with what matters for the job."""
    gitlab = FakeGitLab(tmp_path)
    number = gitlab.enqueue(Job(id=0, token=""))
    async with GitLabClient(URL, transport=gitlab.transport()) as client:
        asked = await client.ask(gitlab.runner_token)
        assert asked.job is not None
        headers = {"JOB-TOKEN": asked.job.token, "Content-Range": "0-4"}
        path = f"jobs/{number}/trace?debug_trace=false"
        async with client.pass_on("PATCH", path, headers=headers, content=b"hello", seconds=5) as got:
            assert (got.status, got.answer.held, await got.read()) == (202, "0-5", b"")
    assert gitlab.log(number) == b"hello"


async def test_a_busy_gitlab_is_asked_once() -> None:
    """Who asks decides whether to ask again."""
    async with answering(503) as client, client.pass_on("PUT", "jobs/1", headers={}, seconds=5) as got:
        assert got.status == 503


async def test_a_redirect_is_not_followed() -> None:
    """It is for who asked to go there, with a token of its own."""
    where = "https://elsewhere.example.com/file"
    async with answering(302, Location=where) as client, client.pass_on("GET", "x", headers={}, seconds=5) as got:
        assert (got.status, got.headers["Location"]) == (302, where)


async def test_a_page_is_no_answer() -> None:
    """Something else answers in GitLab's place."""
    async with answering(200, b"<html>", Content_Type="text/html") as client:
        with pytest.raises(Unreachable, match="a page for a browser"):
            async with client.pass_on("PUT", "jobs/1", headers={}, seconds=5):
                pass


async def test_an_answer_is_bounded_and_comes_piece_by_piece() -> None:
    """What is read at once may have so many bytes; what is carried has no end."""
    async with answering(200, b"x" * 3000) as client:
        async with client.pass_on("GET", "jobs/1/artifacts", headers={}, seconds=5) as got, got.pieces() as pieces:
            assert b"".join([piece async for piece in pieces]) == b"x" * 3000
        with pytest.raises(Refused, match="more than 1000 bytes"):
            async with client.pass_on("GET", "jobs/1/artifacts", headers={}, seconds=5) as got:
                await got.read(1000)


async def test_a_body_comes_piece_by_piece() -> None:
    """It is never whole on the way."""
    transport = Transport(201)

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield b"x" * 1000

    client = GitLabClient(URL, transport=transport)
    async with client, client.pass_on("POST", "x", headers={}, content=pieces(), seconds=5) as got:
        assert got.status == 201
    assert transport.sizes == [1000] * 3
