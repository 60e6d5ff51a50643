"""Clients that take their time, in virtual time: whose heads and bodies do not come."""

from pathlib import Path

import anyio
import pytest

from fleeting.testing import FakeCloud, virtual_time
from taskscaler.serve._app import BODY_TIMEOUT
from taskscaler.serve._server import IDLE
from tests.taskscaler.daemons import client, daemon

pytestmark = pytest.mark.anyio
anyio_backend = virtual_time


async def test_a_head_that_comes_byte_by_byte_is_not_waited_for(tmp_path: Path) -> None:
    """The connection is closed when the bound has passed, however busy it looks; others are served meanwhile."""
    path, cloud = tmp_path / "s.sock", FakeCloud()
    async with daemon(path, cloud), await anyio.connect_unix(path) as slow, client(path, cloud) as scaler:
        began = anyio.current_time()
        with pytest.raises((anyio.BrokenResourceError, anyio.EndOfStream)):
            for byte in b"GET /v1/status HTTP/1.1\r\n" + b"x-long: y\r\n" * 100:
                await slow.send(bytes([byte]))
                await anyio.sleep(1)
                await scaler.capacity()
        assert anyio.current_time() - began < 2 * IDLE


async def test_a_body_that_does_not_come_is_not_waited_for(tmp_path: Path) -> None:
    """The request is refused."""
    path = tmp_path / "s.sock"
    head = b"POST /v1/client HTTP/1.1\r\nhost: localhost\r\ntaskscaler-client: %s\r\ncontent-length: 100\r\n\r\n{"
    async with daemon(path, FakeCloud()), await anyio.connect_unix(path) as slow:
        began = anyio.current_time()
        await slow.send(head % (b"a" * 32))
        assert b" 408 " in await slow.receive()
        assert BODY_TIMEOUT <= anyio.current_time() - began < BODY_TIMEOUT + 1
