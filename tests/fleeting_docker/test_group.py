"""The group of containers, beyond the contract: real logins, its image, and what it says when it cannot."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from math import inf
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from fleeting import AuthFailed, GroupRefused, LoopClock, ProviderError, Settings
from fleeting.plugins import Mark
from fleeting_docker import DockerGroup, DockerGroupConfig, _image
from tests.fleeting.sshd import dialled
from tests.fleeting_docker_engine.daemons import IMAGE, Daemon

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("nothing_left")]


@asynccontextmanager
async def opened(docker: Daemon, **config: Any) -> AsyncIterator[DockerGroup]:  # noqa: ANN401  (the settings know their types)
    """Open a group; in the end nothing of it is left."""
    group = DockerGroup(DockerGroupConfig(**{"name": f"test-{uuid4().hex[:8]}", "socket": docker.socket, **config}))
    await group.init(Settings(owner="test", clock=LoopClock()))
    try:
        yield group
    finally:
        await group.decrease([*(await group.update()).instances])
        await group.shutdown()


async def test_an_instance_is_reached_over_ssh_with_keys_of_its_own(docker: Daemon, tmp_path: Path) -> None:
    """The host key is known beforehand; tunnels lead to sockets in the instance; limits hold."""
    volumes = (f"{docker.socket}:/var/run/docker.sock", f"{tmp_path}:/shared:ro")
    async with opened(docker, volumes=volumes, memory=64 << 20) as group:
        assert await group.increase(2, intent="a") == 2
        one, other = [await group.connect_info(name) for name in (await group.update()).instances]
        assert one.host_key != other.host_key
        assert one.key != other.key
        async with dialled(one) as connection:
            done = await connection.run("cat /proc/self/cgroup >/dev/null; id -u; touch /shared/x 2>&1; hostname")
            said = done.stdout.decode()
            assert said.startswith("0\n")
            assert "Read-only file system" in said
            async with await connection.open_unix("/var/run/docker.sock") as stream:
                await stream.send(b"GET /_ping HTTP/1.0\r\n\r\n")
                assert b"200 OK" in await stream.receive()


async def test_an_image_is_made_of_a_directory_and_made_once_of_this_machine(docker: Daemon, tmp_path: Path) -> None:
    """Without a registry; one that is named must be there."""
    async with docker.engine() as engine:
        first = await _image.ensure(engine, DockerGroupConfig())
        assert await _image.ensure(engine, DockerGroupConfig()) == first
        (tmp_path / "etc").mkdir()
        (tmp_path / "etc" / "motd").write_text("hello")
        config = DockerGroupConfig(name="of-a-directory", root_file_system=str(tmp_path))
        made = await _image.ensure(engine, config)
        assert (await engine.ask("GET", f"/images/{made}/json"))["RootFS"]["Layers"]
        await engine.ask("DELETE", f"/images/{made}")
        with pytest.raises(GroupRefused, match=r"does not have the image nosuch:1; pull it there, or leave image out"):
            await _image.ensure(engine, DockerGroupConfig(image="nosuch:1"))
        with pytest.raises(GroupRefused, match=r"/nosuch cannot be read: No such file or directory; correct it"):
            await _image.ensure(engine, DockerGroupConfig(root_file_system="/nosuch"))


async def test_what_cannot_be_started_is_told_and_not_left(docker: Daemon) -> None:
    """An image without an SSH server, here; the daemon's words say it."""
    async with opened(docker, image=IMAGE) as group:
        assert await group.increase(1, intent="a") == 1  # Docker's init starts, and only then finds nothing to run
        (name,) = (await group.update()).instances
        async with docker.engine() as engine:
            await engine.ask("POST", f"/containers/{name}/wait")
        with pytest.raises(ProviderError, match="is not running: its state is exited"):
            await group.connect_info(name)
    async with opened(docker, network="nosuch") as group:
        with pytest.raises(ProviderError, match="network nosuch not found"):
            await group.increase(1, intent="a")
        assert (await group.update()).instances == {}


async def test_a_daemon_that_is_not_there_or_not_for_us_is_told(tmp_path: Path) -> None:
    """With what to do about it."""
    socket = tmp_path / "docker.sock"
    group = DockerGroup(DockerGroupConfig(socket=str(socket)))
    with pytest.raises(ProviderError, match=r"socket: No such file or directory .*; start the Docker daemon"):
        await group.init(Settings(owner="test", clock=LoopClock()))
    error = ProviderError("x")
    error.__cause__ = PermissionError(13, os.strerror(13))
    told = group._translated(error, changes=True)
    assert isinstance(told, AuthFailed)
    assert (
        str(told)
        == f"this user may not use {socket}; become a member of the group that it belongs to (docker), or set socket"
    )


async def test_a_mark_is_a_volume_and_its_renewal_another(docker: Daemon) -> None:
    """At any moment there is one at least; one that nobody can read proves nobody's death."""
    name = f"test-{uuid4().hex[:8]}"
    async with opened(docker, name=name, owner_mark=True) as group, docker.engine() as engine:
        await group.mark_owner(1000.0)
        await group.mark_owner(500.4)
        assert await group.read_marks() == [Mark(owner="test", until=500.0)]
        labels = {"fleeting.mark": name, "fleeting.owner": "other", "fleeting.until": "soon"}
        await engine.ask("POST", "/volumes/create", json={"Labels": labels})
        assert sorted(await group.read_marks(), key=str) == [
            Mark(owner="other", until=inf),
            Mark(owner="test", until=500.0),
        ]
        await group.mark_owner(900.0)
        assert await group.read_marks() == [Mark(owner="test", until=900.0)]
        await group.mark_owner(None)
        assert await group.read_marks() == []
