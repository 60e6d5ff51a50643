"""Who answers at a fixed host's address: the key is the host's, whichever instance it is for the moment."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
import pytest
from anyio.abc import ByteStream, SocketAttribute

from fleeting import ConnectorConfig, HostKeyMismatch, LoopClock, Settings, dial
from fleeting.connectors.ssh import generate_key
from fleeting.groups.static import Host, StaticConfig, StaticGroup
from tests.fleeting.sshd import private, sshd
from tests.time_limits import NEVER_REACHED

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def relayed(*ports: int) -> AsyncIterator[int]:
    """Listen at one port, and lead the first connection to the first of these, and so on, the rest to the last."""
    left = list(ports)

    async def lead(client: ByteStream) -> None:
        port = left[0] if len(left) == 1 else left.pop(0)
        async with client, await connected(port) as server, anyio.create_task_group() as moving:
            moving.start_soon(pour, client, server)
            await pour(server, client)
            moving.cancel_scope.cancel()

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, lead)
        yield listener.extra(SocketAttribute.local_port)
        tasks.cancel_scope.cancel()


async def connected(port: int) -> ByteStream:
    """Connect to a server that may not listen yet."""
    while True:
        with suppress(OSError):
            return await anyio.connect_tcp("127.0.0.1", port)
        await anyio.sleep(0.05)


async def pour(source: ByteStream, target: ByteStream) -> None:
    """Move what comes until one of them is closed."""
    try:
        async for data in source:
            await target.send(data)
    except (anyio.BrokenResourceError, anyio.ClosedResourceError):
        return


async def test_who_relays_the_first_connection_and_answers_the_second_is_refused(tmp_path: Path) -> None:
    """The group has connected to the host before there was an instance, and later instances are the same host."""
    user_key = generate_key()
    key_path = private(tmp_path / "key", user_key.private)
    with (
        sshd(tmp_path / "host", user_key=user_key) as host,
        sshd(tmp_path / "attacker", user_key=user_key) as attacker,
    ):
        async with relayed(host.port, attacker.port) as port:
            one = Host(address="127.0.0.1", name="one", port=port, username=host.info.user, key_path=str(key_path))
            group = StaticGroup(StaticConfig(hosts=(one,), state_dir=str(tmp_path / "taken")))
            settings = Settings(owner="test", clock=LoopClock(), connector=ConnectorConfig(timeout=NEVER_REACHED))
            await group.init(settings)
            assert await group.increase(1, intent="first") == 1
            # below the XDG_STATE_HOME of whichever test was the first to need the connector
            with pytest.raises(HostKeyMismatch, match=r"when it was first seen, .*/fleeting/host_keys/"):
                async with dial(await group.connect_info("one.1"), settings.connector):
                    pass
            await group.shutdown()
    assert "Accepted" not in (tmp_path / "attacker" / "log").read_text()


async def test_the_port_that_is_dialled_is_part_of_who_the_host_is(tmp_path: Path) -> None:
    """Two servers may have one address; `connector_config` may say the port, too."""
    hosts = (Host(address="a"), Host(address="b", port=2222))
    for connector, aliases in (
        (ConnectorConfig(), ["a:22", "b:2222"]),
        (ConnectorConfig(protocol_port=7), ["a:7", "b:7"]),
    ):
        group = StaticGroup(StaticConfig(hosts=hosts, state_dir=str(tmp_path)))
        await group.init(Settings(owner="test", clock=LoopClock(), connector=connector))
        assert [(await group._info(name, "i")).host_key_alias for name in ("a", "b")] == aliases
        await group.shutdown()
