"""Streams that take nothing any more, while nothing of that is seen where they are read."""

import anyio
import pytest
from attrs import define

from job_steps import _grpc_driver
from job_steps._grpc_client import connect
from job_steps._grpc_server import Respond, serve
from job_steps.client import ConnectionLost
from tests.job_steps.agents import MemoryStream, memory_streams
from tests.time_limits import NEVER_REACHED

pytestmark = pytest.mark.anyio


@define(eq=False)
class OneWay(MemoryStream):
    """A stream that may fail to send, and goes on to receive."""

    is_broken: bool = False

    async def send(self, item: bytes) -> None:
        """Send, or fail to."""
        if self.is_broken:
            raise anyio.BrokenResourceError("no way there")
        await super().send(item)


def _streams() -> tuple[OneWay, MemoryStream]:
    ours, theirs = memory_streams()
    return OneWay(ours.incoming, ours.outgoing), theirs


async def test_a_call_ends_with_its_connection_when_nothing_can_be_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not wait for its own time: the one under way, and every later one."""
    monkeypatch.setattr(_grpc_driver, "_LAST_LOOK", 0.0)
    begun, is_given_up = anyio.Event(), anyio.Event()

    async def hang(*_: object) -> None:
        begun.set()
        try:
            await anyio.sleep_forever()
        finally:
            is_given_up.set()

    ours, theirs = _streams()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(serve, theirs, {"/t.T/Hang": hang})
        async with connect(ours) as client:

            async def call() -> None:
                with pytest.raises(ConnectionLost, match="has ended: it broke: no way there"):
                    await client.call("/t.T/Hang", b"", timeout=NEVER_REACHED)

            async with anyio.create_task_group() as calls:
                calls.start_soon(call)
                await begun.wait()
                ours.is_broken = True
                calls.start_soon(call)
            await call()
        await is_given_up.wait()


async def test_what_has_arrived_is_read_when_nothing_can_be_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer to a call, of which the service need not hear that there is room for more."""
    monkeypatch.setattr(_grpc_driver, "_LAST_LOOK", NEVER_REACHED)
    answer = bytes(200 << 10)

    async def say(_: bytes, respond: Respond) -> None:
        ours.is_broken = True
        await respond(answer)

    ours, theirs = _streams()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(serve, theirs, {"/t.T/Say": say})
        async with connect(ours) as client:
            assert await client.call("/t.T/Say", b"", timeout=NEVER_REACHED) == answer
