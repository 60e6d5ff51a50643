"""A GitLab that answers what it is told to, however strange, for tests of what comes of it."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from itertools import repeat
from pathlib import Path
from typing import TypeAlias

import anyio
import httpx
from attrs import define

from gitlab_jobs.client import GitLabClient

SECRET = "SECRET"
Case: TypeAlias = Callable[[Path], Awaitable[str]]
Given: TypeAlias = httpx.Response | Exception


def one_line(text: str) -> str:
    """An error has one line, of bearable length, without anything secret."""
    assert "\n" not in text
    assert len(text) < 1200
    assert SECRET not in text
    return text


@define
class Stream(httpx.AsyncByteStream):
    """A body in these pieces, with a pause before each."""

    pieces: Iterable[bytes]
    pause: float = 0.0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """All of them."""
        for piece in self.pieces:
            await anyio.sleep(self.pause)
            yield piece


def text(status: int, content: bytes | str = b"", /, **headers: str) -> httpx.Response:
    """An answer; headers with underscores for dashes."""
    named = {key.replace("_", "-"): value for key, value in headers.items()}
    body = content.encode() if isinstance(content, str) else content
    return httpx.Response(status, headers=named, stream=Stream([body]))


def slow(status: int = 200, **headers: str) -> httpx.Response:
    """One whose body never ends: a byte each ten seconds."""
    return httpx.Response(status, headers=headers, stream=Stream(repeat(b" "), pause=10.0))


def flood(status: int = 200, **headers: str) -> httpx.Response:
    """One whose body never ends, as fast as it can be read."""
    return httpx.Response(status, headers=headers, stream=Stream(repeat(bytes(1 << 20))))


def away(to: str, status: int = 307) -> httpx.Response:
    """A redirect."""
    return text(status, Location=to)


HTML = text(200, "<!DOCTYPE html><title>Sign in</title>", Content_Type="text/html; charset=utf-8")
RESET = httpx.ReadError("the connection was reset")


@define
class Scripted:
    """A GitLab that gives these answers, one after the other and then the last one again, and what it was asked."""

    answers: list[Given]
    seen: list[tuple[float, httpx.Request]]

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        """Answer."""
        await request.aread()
        self.seen.append((anyio.current_time(), request))
        given = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(given, Exception):
            raise given
        assert isinstance(given.stream, Stream)
        return httpx.Response(given.status_code, headers=given.headers, stream=given.stream)

    def client(self) -> GitLabClient:
        """Somebody who asks it."""
        return GitLabClient("https://gitlab.test", transport=httpx.MockTransport(self))

    def times(self) -> str:
        """When it was asked."""
        return ", ".join(f"{at - self.seen[0][0]:g}" for at, _ in self.seen)


def scripted(*answers: Given) -> Scripted:
    """With nothing seen yet."""
    return Scripted(list(answers), [])
