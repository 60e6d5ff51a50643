"""The group of containers keeps the contract, on a real daemon, whose trouble is made on the way to it."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import anyio
import pytest

from fleeting import ConnectInfo, LoopClock, Settings
from fleeting.connectors.ssh import MemoryHostKeys, SshConnector
from fleeting.testing import (
    Check,
    DetachedConformance,
    DialInstance,
    GroupConformance,
    Harness,
    MakeDial,
    MakeHarness,
)
from fleeting_docker import DockerGroup, DockerGroupConfig
from tests.conformance.harnesses import call_timeout
from tests.fleeting.sshd import configured, dialled
from tests.fleeting_docker.groups import clear_away, harness
from tests.fleeting_docker_engine.daemons import Daemon


class TestDocker(GroupConformance):
    """The suite, with room for three, and real containers."""

    @pytest.fixture
    def make_harness(self, docker: Daemon, tmp_path: Path, check: Check) -> MakeHarness:
        """Make a group of its own on the daemon, and leave no container of it."""

        @asynccontextmanager
        async def make() -> AsyncIterator[Harness]:
            async with harness(docker, tmp_path, call_timeout(check, 3.0)) as made:
                yield made

        return make


@pytest.fixture(scope="module")
def container(docker: Daemon) -> Iterator[ConnectInfo]:
    """Run an instance for all checks, where all but sshd is busybox."""
    name = f"test-{uuid4().hex[:8]}"

    async def start() -> ConnectInfo:
        group = DockerGroup(DockerGroupConfig(name=name, socket=docker.socket))
        await group.init(Settings(owner="test", clock=LoopClock()))
        await group.increase(1, intent="a")
        (instance,) = (await group.update()).instances
        info = await group.connect_info(instance)
        async with dialled(info) as connection:  # once it listens
            assert (await connection.run("exec /bin/sh --help 2>&1 | head -n 1")).stdout.startswith(b"BusyBox")
        return info

    try:
        yield anyio.run(start)
    finally:
        anyio.run(clear_away, docker, name)


class TestContainer(DetachedConformance):
    """Containers as they are reached, and what they run beyond a connection's end, with no shell but busybox's.

    On one backend: the connector is that of `test_connectors.TestSsh`, and only what it reaches differs.
    """

    @pytest.fixture
    def anyio_backend(self) -> str:
        """The one of them."""
        return "trio"

    @pytest.fixture
    def make_dial(self, container: ConnectInfo) -> MakeDial:
        """Log in to the one container, by a connection for each check."""

        @asynccontextmanager
        async def make() -> AsyncIterator[DialInstance]:
            connector = SshConnector(MemoryHostKeys())
            yield lambda: connector.dial(container, configured())
            async with connector.dial(container, configured()) as connection:
                left = await connection.run("ls -A .fleeting/detached 2>/dev/null; ps -o args | grep '[t]ee '")
                assert left.stdout == b""

        return make
