"""The static group, over hosts that are agents of a local one."""

import json
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from attrs import evolve, frozen

from fleeting import (
    Completed,
    ConfigError,
    ConnectInfo,
    Connection,
    ConnectorConfig,
    GroupRefused,
    InstanceNotFound,
    LoopClock,
    PluginNotFound,
    ProblemKind,
    ProviderError,
    Settings,
    State,
    Unsupported,
    dial,
    load,
)
from fleeting.connectors import Sink
from fleeting.connectors._collect import Collector
from fleeting.groups.static import Host, StaticConfig, StaticGroup
from fleeting.groups.static._group import _about
from fleeting.plugins import HasHosts
from tests.fleeting import static_hosts
from tests.fleeting.static_hosts import Hosts

pytestmark = pytest.mark.anyio


@pytest.fixture
async def hosts(tmp_path: Path) -> AsyncIterator[Hosts]:
    """Start two hosts."""
    async with static_hosts.running(tmp_path, 2) as hosts:
        yield hosts


async def states(group: StaticGroup) -> dict[str, State]:
    """What the group shows."""
    return {instance: each.state for instance, each in (await group.update()).instances.items()}


async def troubles(group: StaticGroup) -> list[str]:
    """What the group says is wrong."""
    return [problem.message for problem in (await group.update()).problems]


# --- taking and giving back -----------------------------------------------------------------------------


async def test_each_taking_of_a_host_is_an_instance_of_its_own(hosts: Hosts) -> None:
    """Ids count up, hosts take turns, and there are no more instances than hosts."""
    async with hosts.opened() as group:
        assert await group.increase(3, intent="one") == 2
        assert await states(group) == {"host-1.1": State.RUNNING, "host-2.1": State.RUNNING}
        assert await group.increase(1, intent="two") == 0
        assert await group.decrease(["host-2.1", "host-1.1"]) == ["host-2.1", "host-1.1"]
        for number in range(2):
            assert await group.increase(1, intent=f"three-{number}") == 1
        assert await states(group) == {"host-1.2": State.RUNNING, "host-2.2": State.RUNNING}


async def test_two_requests_at_once_never_meet_at_a_host(hosts: Hosts) -> None:
    """Each gets one of its own."""
    async with hosts.opened() as group:
        async with anyio.create_task_group() as requests:
            for number in range(3):
                requests.start_soon(partial(group.increase, 1, intent=f"intent-{number}"))
        shown = (await group.update()).instances
        assert shown.keys() == {"host-1.1", "host-2.1"}
        assert len({each.intent for each in shown.values()}) == 2


async def test_what_is_taken_survives_a_restart(hosts: Hosts) -> None:
    """The next manager sees the same instances under the same intents, and gives nobody their ids or hosts again."""
    async with hosts.opened() as group:
        await group.increase(1, intent="before")
        shown = await group.update()
    async with hosts.opened() as group:
        assert await group.update() == shown
        assert await group.increase(1, intent="before") == 1
        assert await group.update() == shown
        await group.decrease(list(shown.instances))
    async with hosts.opened() as group:
        await group.increase(2, intent="after")
        assert await states(group) == {"host-1.2": State.RUNNING, "host-2.1": State.RUNNING}


async def test_two_managers_never_have_the_same_hosts(hosts: Hosts) -> None:
    """The second is refused while the first lives, and told what to do."""
    async with hosts.opened():
        with pytest.raises(
            GroupRefused, match=r"managed by another process or pool; .* set another plugin_config\.name"
        ):
            async with hosts.opened():
                pass
    async with hosts.opened():
        pass


async def test_who_observes_sees_what_the_manager_changes(hosts: Hosts) -> None:
    """From the moment on, without a trace: before anybody manages the group there is nothing, and stays nothing."""
    async with hosts.opened(observe_only=True) as observer:
        assert await states(observer) == {}
        assert not hosts.state_file.parent.exists()
        async with hosts.opened() as group:
            await group.increase(1, intent="one")
            assert await observer.update() == await group.update()
            await group.decrease(["host-1.1"])
            assert await states(observer) == {}
        with pytest.raises(Unsupported, match="opened to observe only"):
            await observer.increase(1, intent="two")
        hosts.state_file.write_text("{")
        with pytest.raises(ProviderError, match="is damaged"):
            await observer.update()


async def test_a_host_that_cannot_be_reached_is_not_taken(hosts: Hosts) -> None:
    """Another is taken in its place, the group says what is wrong, since when, and no more once it answers."""
    hosts.kill(1)
    async with hosts.opened() as group:
        assert await group.increase(2, intent="one") == 1
        assert list(await states(group)) == ["host-2.1"]
        (problem,) = (await group.update()).problems
        assert problem.message.startswith("host-1 cannot be reached and is not used: ")
        assert (problem.kind, problem.offering) == (ProblemKind.OTHER, "host-1")
        assert await group.increase(1, intent="two") == 0
        (later,) = (await group.update()).problems
        assert evolve(later, message=problem.message) == problem  # a dying host hangs up first, and refuses then


async def test_hosts_can_be_tried_by_who_only_observes(hosts: Hosts) -> None:
    """All of them in their order, taken or not, each as its instance would be reached; and none is taken by that."""
    async with hosts.opened() as group, hosts.opened(observe_only=True) as observer:
        await group.increase(1, intent="one")
        (instance,) = await states(group)
        assert isinstance(observer, HasHosts)
        infos = await observer.hosts()
        assert [info.id for info in infos] == ["host-1", "host-2"]
        assert evolve(infos[0], id=instance) == await group.connect_info(instance)
        for info in infos:
            async with dial(info) as connection:
                assert (await connection.run("true")).ok
        assert (await observer.update()).instances.keys() == {instance}


async def test_a_heartbeat_connects_to_the_host(hosts: Hosts) -> None:
    """It passes while the host answers, and fails once that is dead."""
    async with hosts.opened() as group:
        await group.increase(1, intent="one")
        await group.heartbeat("host-1.1")
        hosts.kill(1)
        with pytest.raises(ProviderError, match="host-1 cannot be reached: "):
            await group.heartbeat("host-1.1")


def test_a_host_that_cannot_be_reached_is_named_once() -> None:
    """Whether or not the connector's error does."""
    ssh = "host-1 (10.0.0.1 port 22) could not be reached within 8 s: Connection refused"
    assert _about("host-1", ssh) == ssh
    assert _about("host-1", "the agent hung up") == "host-1 cannot be reached: the agent hung up"


@frozen
class Wordy:
    """A connection to a host that prints 20 MB before each command, as start-up files of a login shell may."""

    _inner: Connection

    async def run(self, command: str, *, stdout: Sink | None = None, stderr: Sink | None = None) -> Completed:
        """Print, then run it."""
        collected = Collector("stdout"), Collector("stderr")
        for sink in (stdout or collected[0], stderr or collected[1]):
            for _ in range(20):
                await sink(bytes(1_000_000))
        return await self._inner.run(command)


async def test_what_a_host_prints_when_it_is_looked_at_fills_nothing(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody needs it; to collect it would take 32 MiB for each host at each look."""

    @asynccontextmanager
    async def to_wordy(info: ConnectInfo, config: ConnectorConfig) -> AsyncIterator[Wordy]:
        async with dial(info, config) as connection:
            yield Wordy(connection)

    monkeypatch.setattr("fleeting.groups.static._group.dial", to_wordy)
    async with hosts.opened() as group:
        assert await group.increase(2, intent="one") == 2
        await group.heartbeat("host-1.1")


# --- reset ----------------------------------------------------------------------------------------------


async def test_a_host_is_reset_before_it_is_free(hosts: Hosts) -> None:
    """The command runs there; what one job left is gone when the next comes."""
    async with hosts.opened(reset_command="rm left; pwd > was-reset") as group:
        await group.increase(1, intent="one")
        await hosts.run(1, "touch left")
        assert await group.decrease(["host-1.1"]) == ["host-1.1"]
        assert await states(group) == {}
        assert await hosts.run(1, "ls") == "was-reset\n"


async def test_a_host_whose_reset_fails_is_not_used_until_one_succeeds(hosts: Hosts) -> None:
    """It stays an instance that is being deleted, over restarts; asked again, it is reset again."""
    reset = "test -e repaired || { echo 'disk full' >&2; exit 3; }"
    async with hosts.opened(reset_command=reset) as group:
        await group.increase(2, intent="one")
        await hosts.run(2, "touch repaired")
        assert await group.decrease(["host-1.1", "host-2.1"]) == ["host-2.1"]
        assert await states(group) == {"host-1.1": State.DELETING}
        said = "host-1 is not used before it is reset, and that failed: 'reset_command' exited with 3: disk full"
        assert await troubles(group) == [said]
        assert await group.increase(2, intent="two") == 1
    async with hosts.opened(reset_command=reset) as group:
        assert (await states(group))["host-1.1"] is State.DELETING
        await hosts.run(1, "touch repaired")
        assert await group.decrease(["host-1.1"]) == ["host-1.1"]
        assert await troubles(group) == []
        assert await group.increase(1, intent="three") == 1


async def test_a_reset_may_print_as_much_as_it_likes(hosts: Hosts) -> None:
    """As every command of the settings; of what one that failed has said, the end tells why."""
    noise = "head -c 20000000 /dev/zero | tee /dev/stderr"
    async with hosts.opened(reset_command=f"{noise}; test -e fine || {{ echo; echo no disk >&2; exit 3; }}") as group:
        await group.increase(2, intent="one")
        await hosts.run(2, "touch fine")
        assert await group.decrease(["host-1.1", "host-2.1"]) == ["host-2.1"]
        (said,) = await troubles(group)
        assert said.endswith("'reset_command' exited with 3: no disk")


async def test_a_reset_that_takes_too_long_has_failed(hosts: Hosts) -> None:
    """It is ended on the host."""
    async with hosts.opened(reset_command="echo $$ > pid; exec sleep 1000", reset_timeout=0.2) as group:
        await group.increase(1, intent="one")
        assert await group.decrease(["host-1.1"]) == []
        (said,) = await troubles(group)
        assert said.endswith("that failed: it took longer than 200ms")
    assert await hosts.run(1, "! kill -0 $(cat pid) 2> error; cat error") != ""


async def test_a_reset_under_way_is_not_begun_twice(hosts: Hosts) -> None:
    """Who asks again meanwhile hears that it is not accepted yet."""
    async with hosts.opened(reset_command="echo reset >> resets; until test -e go; do sleep 0.01; done") as group:
        await group.increase(1, intent="one")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(group.decrease, ["host-1.1"])
            await hosts.run(1, "until test -e resets; do sleep 0.01; done")
            assert await group.decrease(["host-1.1"]) == []
            await hosts.run(1, "touch go")
        assert await states(group) == {}
    assert await hosts.run(1, "cat resets") == "reset\n"


async def test_a_reset_that_was_broken_off_is_done_by_the_next_manager(hosts: Hosts) -> None:
    """What is remembered is written before the command is run."""
    async with hosts.opened(reset_command="touch begun; until test -e go; do sleep 0.01; done") as group:
        await group.increase(1, intent="one")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(group.decrease, ["host-1.1"])
            await hosts.run(1, "until test -e begun; do sleep 0.01; done")
            tasks.cancel_scope.cancel()
    async with hosts.opened(reset_command="touch reset") as group:
        assert await states(group) == {"host-1.1": State.DELETING}
        assert await group.decrease(["host-1.1"]) == ["host-1.1"]
    assert "reset" in (await hosts.run(1, "ls")).split()


async def test_a_host_that_moved_is_reset_before_it_is_used(hosts: Hosts) -> None:
    """Under its new address it may be another machine: nobody goes on with the old one's instance there."""
    async with hosts.opened(hosts=(hosts.host(1),)) as group:
        await group.increase(1, intent="one")
    moved = Host(name="host-1", address=hosts.host(2).address, protocol="local")
    async with hosts.opened(hosts=(moved,), reset_command="touch reset") as group:
        assert await states(group) == {"host-1.1": State.DELETING}
        assert await group.increase(1, intent="two") == 0
        assert await group.decrease(["host-1.1"]) == ["host-1.1"]
        assert await group.increase(1, intent="two") == 1
    assert await hosts.run(2, "ls") == "reset\n"


# --- the state ------------------------------------------------------------------------------------------


async def test_the_state_is_for_its_owner_s_eyes(hosts: Hosts) -> None:
    """The file has mode 0600 in a directory of mode 0700, and holds no secret."""
    configured = (hosts.host(1, password="hunter2"),)
    async with hosts.opened(hosts=configured) as group:
        await group.increase(1, intent="one")
        file = hosts.state_file
        modes = [stat.S_IMODE(path.stat().st_mode) for path in (file, file.parent)]
        assert modes == [0o600, 0o700]
        assert "hunter2" not in file.read_text()


async def test_the_state_is_kept_below_the_user_s_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Unless the settings say otherwise, and each group has its own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    config = StaticConfig(hosts=(Host(address="a"),), name="lab")
    assert config.root == tmp_path / "fleeting" / "static" / "lab"


DAMAGED = {
    "no JSON": "{",
    "no table": "[]",
    "no hosts": '{"version": 1}',
    "half a host": '{"version": 1, "hosts": {"host-1": {}}}',
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
async def test_a_damaged_state_is_refused(hosts: Hosts, content: str) -> None:
    """Nobody guesses who has which host."""
    async with hosts.opened():
        pass
    hosts.state_file.write_text(content)
    with pytest.raises(GroupRefused, match=r"hosts\.json is damaged; .* move it away"):
        async with hosts.opened():
            pass
    hosts.state_file.unlink()
    async with hosts.opened():
        pass


async def test_the_state_of_a_newer_release_is_refused(hosts: Hosts) -> None:
    """It may mean something else."""
    async with hosts.opened():
        pass
    hosts.state_file.write_text(json.dumps({"version": 2, "hosts": {}}))
    with pytest.raises(GroupRefused, match=r"written by a newer fleeting \(format 2\)"):
        async with hosts.opened():
            pass


async def test_nothing_is_taken_that_cannot_be_remembered(hosts: Hosts) -> None:
    """A state that cannot be written changes nothing, and the group goes on once it can."""
    async with hosts.opened() as group:
        obstacle = hosts.state_file.with_name(".hosts.json.part")
        obstacle.mkdir()
        with pytest.raises(ProviderError, match=r"hosts\.json cannot be written: .*; check disk space and permissions"):
            await group.increase(1, intent="one")
        assert await states(group) == {}
        obstacle.rmdir()
        assert await group.increase(1, intent="one") == 1


async def test_a_host_that_cannot_be_written_off_stays_given_back(hosts: Hosts) -> None:
    """The reset succeeded, but nobody would remember: it is done once more, later."""
    obstacle = hosts.state_file.with_name(".hosts.json.part")
    async with hosts.opened(reset_command=f"mkdir -p {obstacle}") as group:
        await group.increase(1, intent="one")
        assert await group.decrease(["host-1.1"]) == []
        assert await states(group) == {"host-1.1": State.DELETING}
        (said,) = await troubles(group)
        assert "cannot be written" in said
        obstacle.rmdir()


# --- settings -------------------------------------------------------------------------------------------


async def test_connection_details_are_those_of_the_host_or_else_of_the_group(tmp_path: Path) -> None:
    """The host's own settings win, the key is read when it is needed, and secrets stay out of sight."""
    key = tmp_path / "key"
    key.write_text("first")
    config = StaticConfig(
        hosts=(Host(address="10.0.0.1", username="root", port=2222, host_key="ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAA"),),
        username="ci",
        password="hunter2",
        key_path=str(key),
        protocol="local",
        arch="arm64",
        state_dir=str(tmp_path),
    )
    group = StaticGroup(config)
    await group.init(Settings(owner="test", clock=LoopClock()))
    group._assignments = group._assignments.take(["10.0.0.1"], "intent", 0.0)
    key.write_text("second")
    info = await group.connect_info("10.0.0.1.1")
    assert (info.user, info.port, info.host_key, info.arch) == (
        "root",
        2222,
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAA",
        "arm64",
    )
    assert (info.password, info.key, info.internal_addr) == ("hunter2", "second", "10.0.0.1")
    assert "hunter2" not in repr(config) + repr(info)
    await group.shutdown()


@pytest.mark.parametrize(("os_", "protocol"), [(None, "ssh"), ("linux", "ssh"), ("windows", "winrm")])
async def test_the_protocol_follows_from_the_system(os_: str | None, protocol: str) -> None:
    """Unless it is set, as everywhere."""
    assert Host(address="a", os=os_).info("a.1").protocol == protocol


async def test_a_key_that_cannot_be_read_is_told_of_at_once(hosts: Hosts, tmp_path: Path) -> None:
    """Not only when a job is waiting."""
    with pytest.raises(GroupRefused, match=r"the key of host host-1 cannot be read: .*/missing: .*correct key_path"):
        async with hosts.opened(hosts=(hosts.host(1, key_path=str(tmp_path / "missing")),)):
            pass
    with pytest.raises(GroupRefused, match=r"the key of host host-1 cannot be read: /.*/missing: "):
        async with hosts.opened(hosts=(hosts.host(1, key_path="missing"),)):
            pass
    (tmp_path / "binary").write_bytes(b"\xff")
    with pytest.raises(GroupRefused, match=r"it is not a text file"):
        async with hosts.opened(hosts=(hosts.host(1, key_path=str(tmp_path / "binary")),)):
            pass


async def test_a_protocol_that_nobody_speaks_is_told_of_at_once(hosts: Hosts) -> None:
    """Also one that the pool's settings ask for."""
    group = StaticGroup(hosts.config())
    with pytest.raises(PluginNotFound, match="telnet"):
        await group.init(
            Settings(owner="test", clock=LoopClock(), connector=ConnectorConfig(protocol="telnet")),
        )


async def test_an_instance_that_was_given_back_is_gone(hosts: Hosts) -> None:
    """Also when its host has another one."""
    async with hosts.opened() as group:
        await group.increase(2, intent="one")
        await group.decrease(["host-1.1"])
        await group.increase(1, intent="two")
        for call in (group.connect_info, group.heartbeat):
            with pytest.raises(InstanceNotFound):
                await call("host-1.1")
            await call("host-1.2")


MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "no hosts": ({"hosts": []}, "plugin_config.hosts: expected at least one host"),
    "nothing at all": ({}, "missing key `hosts` in [plugin_config]"),
    "no address": ({"hosts": [{"name": "a"}]}, "missing key `address` in plugin_config.hosts[0]"),
    "a name twice": (
        {"hosts": [{"address": "a"}, {"address": "b", "name": "a"}]},
        'different names, found "a" twice',
    ),
    "a host twice": (
        {"hosts": [{"address": "a"}, {"address": "a", "name": "b"}]},
        'hosts that differ in address or port, found "a" twice',
    ),
    "no name": ({"hosts": [{"address": "fe80::1"}]}, "a name, because the address is not 1 to 64 letters"),
    "a bad name": ({"hosts": [{"address": "a", "name": "a/b"}]}, "plugin_config.hosts[0].name: expected "),
    "a bad port": ({"hosts": [{"address": "a", "port": 0}]}, "expected 1 to 65535"),
    "a long reset": ({"hosts": [{"address": "a"}], "reset_timeout": "5m"}, "plugin_config.reset_timeout"),
    "no public key": ({"hosts": [{"address": "a", "host_key": "ssh-rsa AAAA"}]}, "expected a public key as in a .pub"),
    "half a public key": ({"hosts": [{"address": "a"}], "host_key": "ssh-rsa"}, "its type and base64, on one line"),
    "a relative path": ({"hosts": [{"address": "a"}], "state_dir": "here"}, "expected an absolute path"),
    "a secret": (
        {"hosts": [{"address": "a", "password": 1234}]},
        "expected a string, found an integer",
    ),
}


@pytest.mark.parametrize(("table", "said"), MISTAKES.values(), ids=MISTAKES)
async def test_a_mistake_in_the_settings_is_told_in_one_sentence(table: dict[str, Any], said: str) -> None:
    """Where it is, what was found, what was expected; never a secret."""
    with pytest.raises(ConfigError) as raised:
        load("static", table)
    assert said in str(raised.value)
    assert "1234" not in str(raised.value)


async def test_hosts_are_loaded_from_a_file_s_tables() -> None:
    """As TOML gives them, under GitLab's names for ports too."""
    table = {"username": "ci", "hosts": [{"address": "build-1.example"}, {"address": "::1", "name": "b", "port": 22}]}
    group = load("static", table)
    assert isinstance(group, StaticGroup)
    assert [host.place for host in group._hosts.values()] == ["build-1.example", "::1:22"]
    assert {host.username for host in group._hosts.values()} == {"ci"}
