"""Sockets that are read when somebody receives: what ends a wait on one ends nothing else."""

import socket
from contextlib import suppress

import anyio
import pytest
from anyio.lowlevel import checkpoint

from fleeting.runtime import PulledStream

pytestmark = pytest.mark.anyio


async def receive(stream: PulledStream) -> None:
    """Receive, or learn that it was closed."""
    with suppress(anyio.ClosedResourceError):
        await stream.receive()


async def send(stream: PulledStream) -> None:
    """Send more than the kernel takes, or learn that it was closed."""
    with suppress(anyio.ClosedResourceError):
        await stream.send(bytes(1 << 24))


@pytest.mark.parametrize("is_closed", [True, False], ids=["closed", "cancelled"])
async def test_a_wait_that_ends_as_something_comes_ends_alone(
    caplog: pytest.LogCaptureFixture,
    is_closed: bool,  # noqa: FBT001
) -> None:
    """Of anyio's own Unix sockets, asyncio then logs an InvalidStateError, which nobody can catch."""
    for _ in range(10):
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with theirs:
            stream = PulledStream(ours)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(receive, stream)
                tasks.start_soon(send, stream)
                await anyio.wait_all_tasks_blocked()
                theirs.recv(1 << 20)
                theirs.send(b"x")
                await checkpoint()  # so that it is seen to have come when what follows has already happened
                if is_closed:
                    await stream.aclose()
                else:
                    tasks.cancel_scope.cancel()
            await stream.aclose()
    assert not caplog.records
