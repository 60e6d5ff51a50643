"""The client of the Engine API: frames, versions, and daemons that misbehave."""

from collections.abc import Awaitable, Callable
from struct import pack
from typing import Any

import anyio
import pytest
from anyio.abc import ByteStream
from hypothesis import given
from hypothesis import strategies as st

from fleeting_docker_engine import STDERR, STDOUT, Demultiplexer, Engine, EngineRefused, EngineUnreachable
from tests.fleeting_docker_engine.daemons import Daemon

PING = b"HTTP/1.1 200 OK\r\nApi-Version: 1.45\r\nContent-Length: 2\r\n\r\nOK"


@given(frames=st.lists(st.tuples(st.sampled_from([STDOUT, STDERR]), st.binary(max_size=50))), piece=st.integers(1, 40))
def test_outputs_are_told_apart_whatever_the_pieces(frames: list[tuple[int, bytes]], piece: int) -> None:
    """Nothing is lost, nothing is held back, nothing is empty."""
    data = b"".join(pack(">BxxxL", output, len(content)) + content for output, content in frames)
    demultiplexer = Demultiplexer()
    told = [each for at in range(0, len(data), piece) for each in demultiplexer.feed(data[at : at + piece])]
    assert all(content for _, content in told)
    for output in (STDOUT, STDERR):
        expected = b"".join(content for which, content in frames if which == output)
        assert b"".join(content for which, content in told if which == output) == expected


def speaking(*answers: bytes) -> Callable[[], Awaitable[ByteStream]]:
    """Make a daemon that gives these answers, one to each request, and hangs up after the last."""

    async def dial() -> ByteStream:
        left = list(answers)
        ready = anyio.Event()

        class Canned(ByteStream):
            async def receive(self, max_bytes: int = 65536) -> bytes:
                await ready.wait()
                if not left:
                    raise anyio.EndOfStream
                return left.pop(0)[:max_bytes]

            async def send(self, item: bytes) -> None:
                await anyio.lowlevel.checkpoint()
                ready.set()

            async def send_eof(self) -> None:
                """Not used."""

            async def aclose(self) -> None:
                await anyio.lowlevel.checkpoint()

        return Canned()

    return dial


async def asked(*answers: bytes) -> Any:  # noqa: ANN401  (JSON)
    """Ask such a daemon something, after the ping."""
    async with Engine(speaking(*answers)) as engine:
        return await engine.ask("GET", "/x")


@pytest.mark.anyio
async def test_the_version_is_the_older_of_ours_and_the_daemon_s(docker: Daemon) -> None:
    """A real one says which; one that is too old is refused with what to do."""
    async with docker.engine() as engine:
        told = await engine.ask("GET", "/version")
        assert engine.version == min(told["ApiVersion"], "1.51")
    with pytest.raises(EngineRefused, match=r"its API has version 1\.40; upgrade Docker to 20\.10"):
        await asked(PING.replace(b"1.45", b"1.40"))


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("answers", "why"),
    [
        ([], "its answer is truncated"),
        ([b"220 mail.example ESMTP\r\n\r\n"], "not a Docker daemon"),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"], "not a Docker daemon"),
        ([PING, b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>"], "instead of JSON"),
        ([PING, b"HTTP/1.1 200 OK\r\nContent-Length: 60\r\n\r\n{"], "its answer is truncated"),
        ([PING, b"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\ngone"], "HTTP status 404"),
    ],
)
async def test_a_daemon_that_answers_nonsense_is_an_error_of_ours(answers: list[bytes], why: str) -> None:
    """Whatever comes, no other error gets out."""
    with pytest.raises((EngineRefused, EngineUnreachable), match=why):
        await asked(*answers)


@pytest.mark.anyio
async def test_connections_are_used_again_and_closed_in_the_end(docker: Daemon) -> None:
    """Also after an error that the daemon has answered with; not while an answer is still coming."""
    async with docker.engine() as engine:
        for _ in range(2):
            with pytest.raises(EngineRefused):
                await engine.ask("GET", "/containers/nosuch/json")
        (idle,) = engine._idle
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(engine.ask, "GET", "/info")
        assert idle in engine._idle
        assert len(engine._idle) == 3
    assert engine._idle == []
