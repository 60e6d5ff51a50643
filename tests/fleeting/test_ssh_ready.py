"""Becoming ready and staying healthy over SSH: the provisioner on OpenSSH's own server, with a cloud in memory."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from attrs import evolve

from fleeting import ConnectError, ConnectInfo, LoginRejected, PlanConfig, Provisioner
from fleeting.connectors.ssh import MemoryHostKeys, SshConnector, _dial, generate_key
from fleeting.core import Stage, messages
from fleeting.testing import FakeCloud, FakeGroup
from tests.fleeting.sshd import Server, configured, private, sshd
from tests.time_limits import longer_and_longer

pytestmark = pytest.mark.anyio

HASTY = PlanConfig(
    update_interval_when_expecting=0.02,
    update_interval=0.02,
    heartbeat_interval=0.02,
    backoff_initial=0.01,
    backoff_cap=0.01,
)


class OnServer(FakeGroup):
    """A cloud all of whose instances are one server."""

    def __init__(self, server: Server) -> None:
        """Let it be empty, and nothing take time."""
        super().__init__(FakeCloud())
        self._server = server

    async def connect_info(self, instance: str) -> ConnectInfo:
        """Emit a line about the server."""
        await super().connect_info(instance)
        return evolve(self._server.info, id=instance)


class Watched:
    """A provisioner, and what it told."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.provisioner: Provisioner
        self._told = anyio.Event()

    def tell(self, _: messages.Event) -> None:
        """Hear an event."""
        self._told.set()
        self._told = anyio.Event()

    async def until(self, condition: Callable[[Provisioner], bool]) -> None:
        """Wait for something that shows in the plan."""
        while not condition(self.provisioner):
            with anyio.move_on_after(0.02):
                await self._told.wait()

    async def replace(self) -> None:
        """Wait until there is no instance and there may be another, and ask for it."""
        await self.until(lambda provisioner: not provisioner.instances)
        await self.until(lambda provisioner: provisioner.plan.limits(provisioner.now()).allowed(1) > 0)
        self.provisioner.request(1)


def trouble(provisioner: Provisioner) -> str:
    """Say why nothing is asked for, or was not lately."""
    return provisioner.plan.limits(provisioner.now()).blocked_why


def ready(provisioner: Provisioner) -> set[str]:
    """Name the instances that may be given work."""
    return {each.id for each in provisioner.instances.values() if each.stage is Stage.READY}


@asynccontextmanager
async def provisioning(server: Server, config: PlanConfig = HASTY, **steps: Any) -> AsyncIterator[Watched]:  # noqa: ANN401
    """Provision on the server, and ask for one instance."""
    watched, connector = Watched(), SshConnector(MemoryHostKeys())
    async with Provisioner(
        OnServer(server), config, dial=connector.dial, connector=configured(), on_event=watched.tell, **steps
    ) as watched.provisioner:
        watched.provisioner.request(1)
        yield watched


async def test_a_ready_command_that_fails_replaces_the_instance(tmp_path: Path) -> None:
    """The first one is removed for what the command said, the second passes."""
    command = f"mkdir {tmp_path}/tried && {{ echo no disk >&2; exit 3; }}; rmdir {tmp_path}/tried"
    with sshd(tmp_path / "sshd") as server:
        async with provisioning(server, ready_command=f"[ -e {tmp_path}/tried ] || {{ {command}; }}") as watched:
            await watched.until(lambda provisioner: bool(trouble(provisioner)))
            assert "'instance_ready_command' exited with 3: no disk" in trouble(watched.provisioner)
            assert "mkdir" not in trouble(watched.provisioner)
            await watched.replace()
            await watched.until(lambda provisioner: ready(provisioner) == {"i-2"})


async def test_the_hook_comes_after_the_command_and_may_refuse(tmp_path: Path) -> None:
    """It sees what the command did, is given what it needs to connect, and by a ConnectError replaces the instance."""
    seen = []

    async def hook(info: ConnectInfo) -> None:
        seen.append((info.id, info.key == server.user_key.private, (tmp_path / "prepared").exists()))
        if info.id == "i-1":
            raise ConnectError("it has no docker")

    with sshd(tmp_path / "sshd") as server:
        async with provisioning(server, ready_command=f"touch {tmp_path}/prepared", ready_hook=hook) as watched:
            await watched.until(lambda _: bool(seen))
            await watched.replace()
            await watched.until(lambda provisioner: ready(provisioner) == {"i-2"})
    assert seen == [("i-1", True, True), ("i-2", True, True)]


async def test_a_heartbeat_command_finds_an_ill_host(tmp_path: Path) -> None:
    """While it exits with 0 all is well; then the instance is unhealthy, and its connection is none the worse."""
    with sshd(tmp_path / "sshd") as server:
        async with provisioning(server, heartbeat_command=f"test ! -e {tmp_path}/ill") as watched:
            await watched.until(lambda provisioner: ready(provisioner) == {"i-1"})
            (tmp_path / "ill").touch()
            instance = watched.provisioner.instances["i-1"]
            await watched.until(lambda _: instance.stage is Stage.UNHEALTHY)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have refused logins tried again soon, by the dial and by the provisioner."""
    monkeypatch.setattr(_dial, "KEY_PATIENCE", 0.1)
    monkeypatch.setattr("fleeting.runtime._outcomes.LOGIN_RETRY", 0.05)


@pytest.mark.usefixtures("impatient")
async def test_a_host_may_learn_our_key_late_in_its_boot(tmp_path: Path) -> None:
    """It refuses us for longer than a dial has patience: the plan says so, and goes on once the key is in its place."""
    key = generate_key()
    with sshd(tmp_path / "sshd", user_key=key) as server:
        private(tmp_path / "sshd" / "authorized_keys", "")
        async with provisioning(server, ready_command="true") as watched:
            await watched.until(lambda provisioner: any(each.trouble for each in provisioner.instances.values()))
            instance = watched.provisioner.instances["i-1"]
            assert "refuses the login of" in instance.trouble
            assert instance.stage is Stage.PREPARING
            private(tmp_path / "sshd" / "authorized_keys", key.public)
            await watched.until(lambda provisioner: ready(provisioner) == {"i-1"})


@pytest.mark.usefixtures("impatient")
async def test_a_host_that_never_lets_us_in_is_replaced_when_its_time_is_over(tmp_path: Path) -> None:
    """The reason names the limit and the refusal."""
    with sshd(tmp_path / "sshd") as server:
        private(tmp_path / "sshd" / "authorized_keys", "")
        limits = longer_and_longer(1.0)
        while True:
            limit = next(limits)
            config = evolve(HASTY, instance_ready_timeout=limit)
            async with provisioning(server, config, ready_command="true") as watched:
                await watched.until(lambda provisioner: bool(trouble(provisioner)))
                why = trouble(watched.provisioner)
            assert f"it was not ready within {limit:g} s" in why
            if "refuses" in why:
                break
    assert "refuses the login of" in why


async def test_a_wrong_host_key_is_final(tmp_path: Path) -> None:
    """Somebody else answers: no time is lost with that."""
    with sshd(tmp_path / "sshd") as server:
        impostor = evolve(server, host_key=generate_key().public)
        async with provisioning(impostor, ready_command="true") as watched:
            await watched.until(lambda provisioner: bool(trouble(provisioner)))
            why = trouble(watched.provisioner)
            assert "i-1: it did not become ready" in why
            assert "host key" in why


async def test_a_hook_that_is_refused_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A login that the hook itself needs may come late, too."""
    monkeypatch.setattr("fleeting.runtime._outcomes.LOGIN_RETRY", 0.0)
    tries = []

    async def hook(info: ConnectInfo) -> None:
        tries.append(info.id)
        if len(tries) == 1:
            raise LoginRejected("not yet")

    with sshd(tmp_path / "sshd") as server:
        async with provisioning(server, ready_hook=hook) as watched:
            await watched.until(lambda provisioner: ready(provisioner) == {"i-1"})
    assert tries == ["i-1", "i-1"]
