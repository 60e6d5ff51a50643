"""The `local` group, with real agents."""

import gc
import os
import signal
import stat
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

import fleeting
from fleeting import (
    Capability,
    ConfigError,
    GroupRefused,
    InstanceNotFound,
    LoopClock,
    ProviderError,
    Settings,
    State,
    Unsupported,
)
from fleeting.groups.local import LocalConfig, LocalGroup, _group, _instance
from fleeting.plugins import structure
from tests.fleeting.local_agents import (
    agent_of,
    content,
    dialled,
    kill,
    names,
    open_descriptors,
    opened,
    seen,
    started,
    watched,
)

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def succeeding(group: LocalGroup) -> AsyncIterator[LocalGroup]:
    """Close the group and open it as the manager that comes after another; in the end the other way round."""
    await group.shutdown()
    successor = LocalGroup(LocalConfig(directory=str(group._config.root)))
    await successor.init(Settings(owner="successor", clock=LoopClock()))
    try:
        yield successor
    finally:
        await successor.shutdown()
        await group.init(Settings(owner="test", clock=LoopClock()))


async def states(group: LocalGroup) -> dict[str, State]:
    """What the group shows, by id."""
    return {instance: each.state for instance, each in (await group.update()).instances.items()}


def mode(path: Path) -> int:
    """Permission bits of a file."""
    return stat.S_IMODE(path.stat().st_mode)


async def test_init_tells_the_directory_and_what_the_group_can_do(tmp_path: Path) -> None:
    """The identity is the directory on this host, however the path to it is written."""
    (tmp_path / "link").symlink_to(tmp_path)
    group = LocalGroup(LocalConfig(directory=str(tmp_path / "link" / "group"), max_size=5))
    info = await group.init(Settings(owner="test", clock=LoopClock()))
    assert info.identity == f"local:{os.uname().nodename}:{tmp_path / 'group'}"
    assert (info.max_size, set(info.capabilities)) == (5, {Capability.NAMED_CREATE, Capability.SUSPEND_RESUME})
    await group.shutdown()


async def test_everything_is_for_our_own_eyes(tmp_path: Path) -> None:
    """Directories are 0700, the socket is 0600."""
    async with opened(tmp_path / "group") as group:
        (instance,) = await started(group)
        home = tmp_path / "group" / instance
        assert [mode(path) for path in (home.parent, home, home / "work")] == [0o700] * 3
        assert mode(home / "agent.sock") == 0o600


@pytest.mark.parametrize("unsafe", ["writable", "link", "file"])
async def test_refuses_a_directory_that_is_not_ours_alone(tmp_path: Path, unsafe: str) -> None:
    """Where others may put things, or what is no directory, no group is opened."""
    root = tmp_path / "group"
    if unsafe == "writable":
        root.mkdir()
        root.chmod(0o770)
    elif unsafe == "link":
        root.symlink_to(tmp_path)
    else:
        root.touch()
    with pytest.raises(GroupRefused, match=f"{root} (cannot be made|belongs to or can be written by another user)"):
        await LocalGroup(LocalConfig(directory=str(root))).init(Settings(owner="test", clock=LoopClock()))


def test_the_default_directory_is_stable_and_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a directory, it is where no other user can take its place, as one could in ``/tmp``."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert LocalConfig(name="ci").root == tmp_path / "fleeting" / "local" / "ci"
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert LocalConfig(name="ci").root == Path("/home/me/.local/state/fleeting/local/ci")


async def test_a_user_without_a_home_is_told_to_name_a_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Containers run under user ids that nobody has heard of."""

    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", nowhere)
    with pytest.raises(GroupRefused, match="there is no home directory for the instances; set directory"):
        await LocalGroup(LocalConfig()).init(Settings(owner="test", clock=LoopClock()))


def test_settings_come_from_a_table() -> None:
    """Durations are written as in GitLab's files."""
    table = {"name": "ci", "boot_time": "1.5s", "orphan_ttl": "2m", "max_size": 3}
    assert structure(table, LocalConfig) == LocalConfig(name="ci", boot_time=1.5, orphan_ttl=120.0, max_size=3)
    assert isinstance(fleeting.load("local", table), LocalGroup)


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("name", "../x", "1 to 64 letters"),
        ("directory", "here", "an absolute path"),
        ("boot_time", 1, "a duration"),
        ("max_size", 0, "at least 1"),
    ],
)
def test_settings_that_cannot_be_are_refused(key: str, value: object, expected: str) -> None:
    """Each mistake is told with its key and what may stand there."""
    with pytest.raises(ConfigError, match=f"plugin_config.{key}: expected {expected}.*, found "):
        fleeting.load("local", {key: value})


async def test_an_instance_is_created_then_runs(tmp_path: Path) -> None:
    """It is seen at once, with its intent and the time, and runs once its agent listens."""
    async with opened(tmp_path) as group:
        before = LoopClock().now()
        assert await group.increase(1, intent="one") == 1
        ((instance, observed),) = (await group.update()).instances.items()
        assert observed.state in (State.CREATING, State.RUNNING)
        assert observed.intent == "one"
        assert observed.created_at is not None
        assert before - 1 < observed.created_at < LoopClock().now() + 1
        view = await seen(group, lambda view: view[instance].state is State.RUNNING)
        assert view.keys() == {instance}


async def test_booting_takes_its_time(tmp_path: Path) -> None:
    """Until its boot time is over an instance is being created, even when all else is ready; it can be ended."""
    async with opened(tmp_path, boot_time=3600) as group:
        await group.increase(1, intent="slow")
        (instance,) = await states(group)
        await seen(group, lambda _: content(tmp_path / instance / "agent.pid") not in (None, ""))
        assert await states(group) == {instance: State.CREATING}
        with watched(agent_of(tmp_path, instance)) as (agent,):
            await group.decrease([instance])
            await agent.ended()


async def test_an_instance_can_be_ended_as_soon_as_it_is_there(tmp_path: Path) -> None:
    """An agent that could not take a signal yet finds out by itself."""
    async with opened(tmp_path) as group:
        await group.increase(3, intent="three")
        doomed = list(await states(group))
        assert await group.decrease(doomed) == doomed
        assert set((await states(group)).values()) <= {State.DELETING}
        await seen(group, lambda view: not view)
        assert names(tmp_path) == []


async def test_one_intent_is_carried_out_once(tmp_path: Path) -> None:
    """A repeat asks for nothing new, in this manager's life or the next one's, and even if all are gone."""
    async with opened(tmp_path) as group:
        (first, _) = await started(group, 2, intent="mine")
        assert await group.increase(2, intent="mine") == 2
        assert await group.increase(1, intent="mine") == 1
        async with succeeding(group) as successor:
            assert await successor.increase(2, intent="mine") == 2
            assert {each.intent for each in (await successor.update()).instances.values()} == {"mine"}
        assert len(await states(group)) == 2
        await group.decrease([first])
        await seen(group, lambda view: first not in view)
        assert await group.increase(2, intent="mine") == 2
        assert len(await states(group)) == 1


async def test_a_full_group_accepts_what_there_is_room_for(tmp_path: Path) -> None:
    """Beyond `max_size` a part is accepted, then nothing, and again something when there is room."""
    async with opened(tmp_path, max_size=2) as group:
        assert await group.increase(1, intent="a") == 1
        assert await group.increase(3, intent="b") == 1
        assert await group.increase(3, intent="c") == 0
        (first, *_) = await states(group)
        await group.decrease([first])
        await seen(group, lambda view: first not in view)
        assert await group.increase(1, intent="c") == 1


async def test_decrease_ends_these_and_no_others(tmp_path: Path) -> None:
    """Those named go, with their directories; the rest runs on."""
    async with opened(tmp_path) as group:
        doomed, spared = await started(group, 2)
        assert await group.decrease([doomed, "unknown", "../elsewhere"]) == [doomed, "unknown", "../elsewhere"]
        await seen(group, lambda view: doomed not in view)
        assert await states(group) == {spared: State.RUNNING}
        assert names(tmp_path) == [spared]


async def test_what_is_no_longer_shown_is_gone(tmp_path: Path) -> None:
    """An instance stays in view, as being deleted, until its agent has ended and its directory is gone."""
    async with opened(tmp_path) as group:
        instances = await started(group, 3)
        with watched(*(agent_of(tmp_path, instance) for instance in instances)) as agents:
            await group.decrease(instances)
            assert set((await states(group)).values()) <= {State.DELETING}
            await seen(group, lambda view: not view)
            assert names(tmp_path) == []
            for agent in agents:
                await agent.ended()


async def test_a_second_decrease_kills(tmp_path: Path) -> None:
    """An agent that does not listen to SIGTERM is killed when it is asked again."""
    async with opened(tmp_path) as group:
        (instance,) = await started(group)
        pid = agent_of(tmp_path, instance)
        kill(pid, signal.SIGSTOP)
        with watched(pid) as (agent,):
            await group.decrease([instance])
            assert await states(group) == {instance: State.DELETING}
            await group.decrease([instance])
            await agent.ended()
        await seen(group, lambda view: not view)
        assert names(tmp_path) == []


async def test_an_agent_that_dies_is_reported_once(tmp_path: Path) -> None:
    """An instance lost to `kill -9` is deleted in one view and absent in the next, and its directory is gone."""
    async with opened(tmp_path) as group:
        victim, survivor = await started(group, 2)
        with watched(agent_of(tmp_path, victim)) as (agent,):
            kill(agent_of(tmp_path, victim))
            await agent.ended()
        assert await states(group) == {victim: State.DELETED, survivor: State.RUNNING}
        assert await states(group) == {survivor: State.RUNNING}
        assert names(tmp_path) == [survivor]


async def test_what_was_lost_while_nobody_looked_is_reported_too(tmp_path: Path) -> None:
    """The next manager is told of an instance that died between the two."""
    async with opened(tmp_path) as group:
        (instance,) = await started(group)
        with watched(agent_of(tmp_path, instance)) as (agent,):
            kill(agent_of(tmp_path, instance))
            await agent.ended()
        async with succeeding(group) as successor:
            assert await states(successor) == {instance: State.DELETED}


async def test_connect_info_leads_to_the_agent(tmp_path: Path) -> None:
    """A running instance tells where it listens and what it is."""
    async with opened(tmp_path) as group:
        (instance,) = await started(group)
        info = await group.connect_info(instance)
        assert (info.id, info.protocol) == (instance, "local")
        assert info.internal_addr == str(tmp_path / instance / "agent.sock")
        async with dialled(group, instance) as connection:
            assert (await connection.run("uname -s")).stdout.decode().strip().lower() == info.os


async def test_who_is_gone_is_not_found(tmp_path: Path) -> None:
    """Neither an unknown instance nor a dead one can be connected to or is healthy."""
    async with opened(tmp_path) as group:
        (dead,) = await started(group)
        with watched(agent_of(tmp_path, dead)) as (agent,):
            kill(agent_of(tmp_path, dead))
            await agent.ended()
        for instance in (dead, "unknown"):
            with pytest.raises(InstanceNotFound):
                await group.connect_info(instance)
            with pytest.raises(InstanceNotFound):
                await group.heartbeat(instance)


async def test_heartbeat_needs_an_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that answers is healthy, one that hangs is not."""
    monkeypatch.setattr(_group, "HEARTBEAT_TIMEOUT", 0.05)
    async with opened(tmp_path) as group:
        (instance,) = await started(group)
        kill(agent_of(tmp_path, instance), signal.SIGSTOP)
        with pytest.raises(ProviderError, match=f"the agent of {instance} does not answer"):
            await group.heartbeat(instance)
        monkeypatch.undo()
        kill(agent_of(tmp_path, instance), signal.SIGCONT)
        await group.heartbeat(instance)


async def test_a_restart_meets_the_instances(tmp_path: Path) -> None:
    """Instances outlive their manager, and the next one takes them over as they are."""
    async with opened(tmp_path, orphan_ttl=0.3) as group:
        (instance,) = await started(group)
        before = await group.update()
        async with dialled(group, instance) as connection, succeeding(group) as successor:
            assert (await connection.run("sleep 0.5")).ok  # longer than it would live without the successor
            assert await successor.update() == before


async def test_one_manager_at_a_time(tmp_path: Path) -> None:
    """A second one is refused, in the same process or another, until the first has closed the group."""
    async with opened(tmp_path) as group:
        second = LocalGroup(LocalConfig(directory=str(tmp_path)))
        with pytest.raises(GroupRefused, match="managed by another process or pool; end that one first"):
            await second.init(Settings(owner="second", clock=LoopClock()))
        async with succeeding(group):
            with pytest.raises(GroupRefused):
                await group.init(Settings(owner="test", clock=LoopClock()))


async def test_shutdown_takes_an_empty_directory_along(tmp_path: Path) -> None:
    """The group's directory goes with the last instance, or stays as long as there is one."""
    root = tmp_path / "group"
    async with opened(root) as group:
        (instance,) = await started(group)
        async with succeeding(group):
            pass
        assert names(tmp_path) == ["group"]
        await group.heartbeat(instance)
    assert names(tmp_path) == []


async def test_the_directory_goes_even_if_instances_end_after_shutdown(tmp_path: Path) -> None:
    """Whoever leaves last, manager or agent, removes the group's directory."""
    root = tmp_path / "group"
    async with opened(root) as group:
        instances = await started(group, 3)
        with watched(*(agent_of(root, instance) for instance in instances)) as agents:
            await group.decrease(instances)
            await group.shutdown()
            for agent in agents:
                await agent.ended()
        assert names(tmp_path) == []


async def test_the_directory_may_vanish_while_it_is_empty(tmp_path: Path) -> None:
    """A program that clears old temporary files away does not stop the group from growing."""
    async with opened(tmp_path / "group") as group:
        (tmp_path / "group").rmdir()
        assert await states(group) == {}
        assert await group.increase(1, intent="after") == 1


async def test_a_cancelled_increase_leaves_only_what_is_shown(tmp_path: Path) -> None:
    """However many agents were started when the caller gave up, all of them are in the view."""
    async with opened(tmp_path) as group:
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(lambda: group.increase(3, intent="cut short"))
                await anyio.wait_all_tasks_blocked()
                scope.cancel()
        assert sorted(await states(group)) == names(tmp_path)
        assert await group.increase(3, intent="cut short") == len(await states(group)) == 3


async def test_a_failed_start_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If no agent can be started, the error says so, and nothing is shown or left."""
    async with opened(tmp_path) as group:
        with monkeypatch.context() as patch:
            patch.setattr(sys, "executable", "/no/such/python")
            with pytest.raises(ProviderError, match="no agent could be started"):
                await group.increase(2, intent="again")
        assert names(tmp_path) == []
        assert await group.increase(2, intent="again") == 2


async def test_leftovers_of_a_crash_are_cleared_away(tmp_path: Path) -> None:
    """Half made and half removed instances disappear; what is not the group's is left alone."""
    for name in (".new-test-1", ".gone-test-2", "somebodys"):
        (tmp_path / name / "work").mkdir(parents=True)
        (tmp_path / name / "work").chmod(0o500)
    (tmp_path / "notes.txt").touch()
    async with opened(tmp_path) as group:
        assert await states(group) == {}
        assert names(tmp_path) == ["notes.txt", "somebodys"]


async def test_nothing_is_held_after_shutdown(tmp_path: Path) -> None:
    """A closed group costs no descriptor, and no zombie once its agents have ended."""
    async with opened(tmp_path):
        pass  # what the event loop opens once
    gc.collect()  # what tests before this one have left open is not to be closed in between
    before, others = open_descriptors(), {*_instance._children}  # the agents of tests before this one may still end
    async with opened(tmp_path) as group:
        instances = await started(group, 2)
        with watched(*(agent_of(tmp_path, instance) for instance in instances)) as agents:
            await group.decrease(instances)
            for agent in agents:
                await agent.ended()
    assert open_descriptors() <= before
    assert _instance._children <= others


async def test_a_manager_that_only_looked_in_keeps_no_orphan_alive(tmp_path: Path) -> None:
    """One that is refused, again and again, does not put off the end of what it was refused for."""
    async with opened(tmp_path, orphan_ttl=1.0) as group:
        (instance,) = await started(group)
        with watched(agent_of(tmp_path, instance)) as (agent,):
            await group.shutdown()  # from now on the agent's time runs, and it may be gone when we look next
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_look_in, tmp_path)
                await agent.ended()
                tasks.cancel_scope.cancel()
        await group.init(Settings(owner="test", clock=LoopClock()))


async def test_observing_leaves_everything_as_it_is(tmp_path: Path) -> None:
    """Who observes sees what the manager sees, whole and half made; it makes, clears away and locks nothing."""
    root = tmp_path / "group"
    async with _observing(root) as observer:
        assert await states(observer) == {}
    assert names(tmp_path) == []
    async with opened(root) as group, _observing(root) as observer:
        (instance, killed) = await started(group, 2)
        (root / ".gone-test-1").mkdir()
        with watched(agent_of(root, killed)) as (agent,):
            kill(agent_of(root, killed))
            await agent.ended()
        for _ in range(2):
            assert await states(observer) == {instance: State.RUNNING, killed: State.DELETED}
        for change in (lambda: observer.increase(1, intent="mine"), lambda: observer.decrease([instance])):
            with pytest.raises(Unsupported, match="opened to observe only"):
                await change()
        assert names(root) == sorted([".gone-test-1", instance, killed])


async def test_an_observer_keeps_no_orphan_alive(tmp_path: Path) -> None:
    """Without a manager an instance ends, whoever looks at it."""
    async with opened(tmp_path, orphan_ttl=0.2) as group:
        await started(group)
        await group.shutdown()
        async with _observing(tmp_path) as observer:
            await seen(observer, lambda view: not view)
        await group.init(Settings(owner="test", clock=LoopClock()))


async def test_an_observer_trusts_no_directory_of_others(tmp_path: Path) -> None:
    """What another user can write into is no group of ours, to look at neither."""
    await anyio.Path(tmp_path).chmod(0o770)
    with pytest.raises(GroupRefused, match="can be written by another user"):
        async with _observing(tmp_path):
            pass


@asynccontextmanager
async def _observing(directory: Path) -> AsyncIterator[LocalGroup]:
    """Open the group to observe only."""
    group = LocalGroup(LocalConfig(directory=str(directory)))
    await group.init(Settings(owner="observer", clock=LoopClock(), observe_only=True))
    yield group
    await group.shutdown()


async def _look_in(directory: Path) -> None:
    """Open and close the group for as long as there is one."""
    while True:
        with anyio.CancelScope(shield=True):
            group = LocalGroup(LocalConfig(directory=str(directory)))
            await group.init(Settings(owner="impatient", clock=LoopClock()))
            await group.shutdown()
        await anyio.sleep(0.2)  # without a pause, a look may take a second on a busy machine, and is a manager's then
