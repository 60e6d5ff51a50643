"""What is no HTTP, or hostile in how it is HTTP, over real sockets: one line each, in time and in little memory."""

from collections.abc import Iterable, Iterator
from itertools import chain, repeat

import anyio
import pytest
from anyio.abc import ByteStream, SocketAttribute
from attrs import frozen

from gitlab_jobs.client import GitLabClient
from tests.golden import Golden

pytestmark = [
    pytest.mark.anyio,
    # httpx leaves its own generators open when an answer is not read to its end, and trio tells of them
    pytest.mark.filterwarnings("ignore:.*async_generator object:pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:Async generator 'http(x|core):ResourceWarning"),
]

HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
PIECE = 1 << 16


@frozen
class Endless:
    """Bytes that come again and again, after others."""

    again: bytes
    first: bytes = b""

    def __iter__(self) -> Iterator[bytes]:
        """From the beginning, each time."""
        return chain([self.first], repeat(self.again))


ANSWERS: dict[str, Iterable[bytes]] = {
    "nothing": [],
    "SSH": [b"SSH-2.0-OpenSSH_9.2\r\n"],
    "binary": [bytes(range(256))],
    "a status that is a word": [b"HTTP/1.1 OK\r\n\r\n"],
    "a status line without end": Endless(b"H" * PIECE),
    "headers without end": Endless(b"X-Header: value\r\n" * 4096, HEAD),
    "a header without end": Endless(b"x" * PIECE, HEAD + b"X-Header: "),
    "a header with a NUL": [HEAD, b"X-Header: a\0b\r\n\r\n"],
    "two lengths": [HEAD, b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab"],
    "a length below 0": [HEAD, b"Content-Length: -1\r\n\r\n"],
    "a length that is longer than the answer": [HEAD, b"Content-Length: 100\r\n\r\nshort"],
    "a chunk of no size": [CHUNKED, b"xyz\r\n"],
    "a chunk of 2^64 bytes": [CHUNKED, b"FFFFFFFFFFFFFFFF\r\nabc"],
    "chunks without end": Endless(b"10000\r\n" + b"x" * PIECE + b"\r\n", CHUNKED),
    "a size of a chunk without end": Endless(b"0" * PIECE, CHUNKED),
    "an encoding that nobody knows": [HEAD, b"Transfer-Encoding: rot13\r\n\r\n"],
}
"""What is sent; then the connection ends."""

SLOW: dict[str, bytes] = {
    "headers that trickle": b"X: y\r\n",
    "continuations without end": b"HTTP/1.1 100 Continue\r\n\r\n",
    "silence": b"",
}
"""What is sent again and again, with a pause, and there is no end."""


async def said(pieces: Iterable[bytes], *, pause: float = 0.0) -> str:
    """Ask a token's owner of a server that answers so; gives what is wrong."""

    async def answer(stream: ByteStream) -> None:
        async with stream:
            with anyio.move_on_after(60):
                try:
                    await stream.receive()
                    for piece in pieces:
                        await stream.send(piece) if piece else await anyio.sleep(pause)
                        await anyio.sleep(pause)
                    await stream.send_eof()
                    while True:  # else the end of the connection may overtake what was sent
                        await stream.receive()
                except (anyio.BrokenResourceError, anyio.EndOfStream):
                    pass

    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, answer)
        port = listener.extra(SocketAttribute.local_port)
        async with GitLabClient(f"http://127.0.0.1:{port}") as client:
            asked = await client.ask("glrt-SECRET")
        tasks.cancel_scope.cancel()
    assert asked.job is None
    line = str(asked.problem)
    assert "SECRET" not in line
    assert "\n" not in line
    assert len(line) < 400
    return line


@pytest.mark.parametrize("name", ANSWERS)
async def test_a_hostile_answer_is_one_line(name: str, golden: Golden, monkeypatch: pytest.MonkeyPatch) -> None:
    """What goes on without end is left at a limit."""
    monkeypatch.setattr("gitlab_jobs._client.MAX_PAYLOAD", 1 << 20)
    golden(f"gitlab_sockets/{name}", await said(ANSWERS[name]))


@pytest.mark.parametrize("name", SLOW)
async def test_a_slow_answer_is_left(name: str, golden: Golden, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the time that a call may take as a whole, though something comes all the time."""
    monkeypatch.setattr("gitlab_jobs._client.LONG_POLL", 0.5)
    golden(f"gitlab_sockets/{name}", await said(Endless(SLOW[name]), pause=0.05))


async def test_nobody_listens(golden: Golden) -> None:
    """The port is free again."""
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
        port = listener.extra(SocketAttribute.local_port)
    async with GitLabClient(f"http://127.0.0.1:{port}") as client:
        problem = str((await client.ask("glrt-SECRET")).problem)
    said, separator, _ = problem.partition(" cannot be reached: ")  # the rest is the backend's
    golden("gitlab_sockets/nobody listens", said + separator)


def test_nothing_else_is_kept(golden: Golden) -> None:
    """For cases that are gone."""
    golden.has_only("gitlab_sockets/", [*ANSWERS, *SLOW, "nobody listens"])
