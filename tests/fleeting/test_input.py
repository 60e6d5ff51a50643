"""What a command reads, where it arrives in chunks, over each connector."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import anyio
import pytest
from anyio.lowlevel import checkpoint
from attrs import define, field

from tests.fleeting.breakable import KINDS, Breakable, connected
from tests.fleeting.local_agents import Heard

pytestmark = pytest.mark.anyio


@pytest.fixture(params=KINDS)
async def breakable(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Breakable]:
    """A connection of each kind."""
    async with connected(request.param, tmp_path) as breakable:
        yield breakable


@define
class Given:
    """Arrives as it is asked for."""

    _chunks: Iterator[bytes]
    asked: int = field(default=0, init=False)
    failure: Exception = field(factory=StopAsyncIteration, init=False)
    """Comes at the end."""

    def __aiter__(self) -> AsyncIterator[bytes]:
        """Give all of it, once."""
        return self

    async def __anext__(self) -> bytes:
        """Give the next chunk."""
        self.asked += 1
        await checkpoint()
        for chunk in self._chunks:
            return chunk
        raise self.failure


async def test_text_has_to_be_encoded(breakable: Breakable) -> None:
    """Which encoding the command reads is for its caller to know."""
    with pytest.raises(TypeError, match="stdin must be bytes, not a string; encode it"):
        await breakable.connection.run("cat", stdin="text")  # type: ignore[arg-type]  # on purpose


class Never:
    """Gives nothing, and does not end."""

    def __aiter__(self) -> AsyncIterator[bytes]:
        """Wait for it."""
        return self

    async def __anext__(self) -> bytes:
        """Wait for ever."""
        await anyio.sleep_forever()
        raise AssertionError


async def test_chunks_arrive_in_order_and_then_the_end(breakable: Breakable) -> None:
    """Empty ones are no end."""
    given = Given(iter([b"one ", b"", b"two ", b"three"]))
    assert (await breakable.connection.run("cat", stdin=given)).stdout == b"one two three"


async def test_it_is_asked_for_as_it_is_read(breakable: Breakable) -> None:
    """A command that does not read has no more of it sent than fits on the way."""
    given = Given(bytes(1 << 20) for _ in range(1000))
    heard = Heard()
    async with anyio.create_task_group() as tasks:
        command = "head -c 1000 >/dev/null; echo read; exec sleep 1000"

        async def run() -> None:
            await breakable.connection.run(command, stdin=given, stdout=heard)

        tasks.start_soon(run)
        await heard.lines(1)
        await anyio.wait_all_tasks_blocked()
        assert given.asked < 20
        tasks.cancel_scope.cancel()


async def test_a_command_need_not_wait_for_it(breakable: Breakable) -> None:
    """It may end before all has come, or anything; then nobody asks for more."""
    assert (await breakable.connection.run("exit 3", stdin=Never())).exit_status == 3
    given = Given(bytes(1 << 16) for _ in range(1000))
    assert (await breakable.connection.run("head -c 1", stdin=given)).ok
    assert given.asked < 1000


async def test_what_it_raises_ends_the_command(breakable: Breakable) -> None:
    """And comes out as it is."""
    given = Given(iter([b"one\n"]))
    given.failure = ZeroDivisionError("of the source")
    heard = Heard()
    with pytest.raises(ZeroDivisionError, match="of the source"):
        await breakable.connection.run("cat; exec sleep 1000", stdin=given, stdout=heard)


async def test_even_a_broken_pipe_of_its_own(breakable: Breakable) -> None:
    """It is not taken for the command's, which nobody is told of."""
    given = Given(iter([b"one"]))
    given.failure = BrokenPipeError("of the source")
    with pytest.raises(BrokenPipeError, match="of the source"):
        await breakable.connection.run("cat", stdin=given)


async def test_a_generator_that_is_not_read_to_its_end_is_closed(breakable: Breakable) -> None:
    """The command ends before it has read all: what the generator holds is let go of by then, not some day."""
    closed = []

    async def endless() -> AsyncIterator[bytes]:
        try:
            while True:
                yield bytes(1 << 16)
        finally:
            closed.append("closed")

    assert (await breakable.connection.run("head -c 1 >/dev/null; exit 3", stdin=endless())).exit_status == 3
    assert closed == ["closed"]
