"""The suite against a real cloud: only when asked, never more instances than allowed, and nothing is left."""

import signal
import subprocess
import sys
from contextlib import suppress
from inspect import getattr_static
from pathlib import Path

import anyio
import pytest
from attrs import evolve

from fleeting import GroupInfo, GroupRefused, InstanceGroup, Settings
from fleeting.testing import FakeCloud, FakeGroup, IncreaseFault, NotChecked, UpdateFault, virtual_time
from fleeting.testing._harness import new_intent
from fleeting.testing._spending import NOBODY_KNOWS, SpendingGuard
from tests.conformance.test_fake import harness_for
from tests.conformance.test_local import living

anyio_backend = virtual_time

SUITE = """
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from fleeting.groups.local import LocalConfig, LocalGroup
from fleeting.testing import GroupConformance, Harness


@pytest.fixture
def anyio_backend():
    return "asyncio"


class TestLive(GroupConformance):
    pytestmark = [pytest.mark.anyio, pytest.mark.live]

    @pytest.fixture
    def make_harness(self, spending_guard):
        @asynccontextmanager
        async def make():
            config = LocalConfig(directory={directory!r}, boot_time={boot_time})
            harness = Harness(make=lambda: LocalGroup(config), deadline=240, settle=0.1, poll=0.01)
            async with spending_guard.watch(harness) as harness:
                yield harness

        return make
"""


def start(directory: Path, *arguments: str, boot_time: float = 0) -> "subprocess.Popen[str]":
    """Run the suite over a local group, as the author of a plugin would over a cloud."""
    suite = directory / "test_it.py"
    suite.write_text(SUITE.format(directory=str(directory / "group"), boot_time=boot_time))
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "fleeting.testing.live",
        "-p",
        "no:cacheprovider",
        "-rs",
        *arguments,
    ]
    return subprocess.Popen([*command, suite], cwd=directory, stdout=subprocess.PIPE, text=True)


@pytest.mark.anyio
async def test_no_more_instances_than_allowed_are_asked_for() -> None:
    """What is on its way counts, what came before does not, and a repeat asks for nothing new."""
    cloud = FakeCloud(appear_after=20)
    cloud.launch(2)
    guard = SpendingGuard(3)
    async with guard.watch(harness_for(cloud)) as harness, harness.opened() as probe:
        intent = new_intent()
        assert await probe.group.increase(2, intent=intent) == 2
        assert await probe.group.increase(2, intent=intent) == 2
        with pytest.raises(NotChecked, match="more than 3"):
            await probe.group.increase(2, intent=new_intent())
        assert await probe.group.increase(1, intent=new_intent()) == 1
        assert len(cloud.alive) == 5
    assert len(cloud.alive) == 2
    assert guard.left == {}


@pytest.mark.anyio
async def test_what_may_have_been_carried_out_counts() -> None:
    """A lost answer is as good as an instance."""
    cloud = FakeCloud(appear_after=20)
    cloud.faults.increase.once(IncreaseFault(lose=True))
    async with SpendingGuard(1).watch(harness_for(cloud)) as harness, harness.opened() as probe:
        with suppress(Exception):
            await probe.group.increase(1, intent=new_intent())
        with pytest.raises(NotChecked):
            await probe.group.increase(1, intent=new_intent())


@pytest.mark.anyio
async def test_what_was_cut_off_and_does_not_show_itself_counts_no_more() -> None:
    """A check may cancel as many requests as it likes, if it waits long enough in between."""
    cloud = FakeCloud(latency={"increase": 10})
    async with SpendingGuard(1).watch(harness_for(cloud)) as harness, harness.opened() as probe:
        for _ in range(3):
            with anyio.move_on_after(1):
                await probe.group.increase(1, intent=new_intent())
            with pytest.raises(NotChecked):
                await probe.group.increase(1, intent=new_intent())
            await probe.rest(harness.settle)
        (instance,) = await probe.grow(1)
        await probe.rest(harness.deadline)
        with pytest.raises(NotChecked):
            await probe.group.increase(1, intent=new_intent())
        await probe.remove([instance])
        assert len(await probe.grow(1)) == 1


@pytest.mark.anyio
async def test_a_guarded_group_has_the_methods_of_its_capabilities() -> None:
    """Where Python looks for those of a protocol, from 3.12 on: not in what ``__getattr__`` makes up."""
    async with SpendingGuard(1).watch(harness_for(FakeCloud())) as harness:
        group = harness.make()
        found = [getattr_static(group, name, None) for name in ("withdraw", "suspend", "mark_owner", "notices")]
        assert None not in found
        assert isinstance(group, InstanceGroup)


class _Broken(FakeGroup):
    """Cannot look, once it has been closed, for a reason of its own."""

    async def shutdown(self) -> None:
        self.cloud.faults.update.always(UpdateFault(refuse=KeyError("status")))


@pytest.mark.anyio
async def test_a_broken_plugin_does_not_keep_the_others_from_being_cleared_up() -> None:
    """It is named, and they are gone."""
    guard = SpendingGuard(1)
    broken, sound = FakeCloud(identity="broken"), FakeCloud(identity="sound")
    async with (
        guard.watch(evolve(harness_for(broken, _Broken), deadline=30)) as one,
        guard.watch(harness_for(sound)) as other,
        other.opened(keep=True) as probe,
    ):
        async with one.opened(keep=True):
            pass
        await probe.grow(1)
    assert guard.left == {"broken": NOBODY_KNOWS}
    assert sound.alive == frozenset()


@pytest.mark.anyio
async def test_who_interrupts_the_clearing_up_is_told_what_may_be_left() -> None:
    """Whatever was not got to."""
    guard = SpendingGuard(2)
    cloud = FakeCloud(delete_time=20)
    async with guard.watch(harness_for(cloud)) as harness, harness.opened(keep=True) as probe:
        await probe.grow(1)
        with anyio.move_on_after(5):
            await guard.sweep()
        assert guard.left == {cloud.identity: NOBODY_KNOWS}
    assert guard.left == {}


@pytest.mark.anyio
async def test_what_cannot_be_removed_is_named() -> None:
    """So that somebody else does it."""
    cloud = FakeCloud()
    guard = SpendingGuard(1)
    async with guard.watch(evolve(harness_for(cloud), deadline=30)) as harness, harness.opened(keep=True) as probe:
        (instance,) = await probe.grow(1)
        cloud.hang(instance)
    assert guard.left == {cloud.identity: [instance]}


class _Exclusive(FakeGroup):
    """Lets one manager in at a time, as a group does that takes a lock."""

    async def init(self, settings: Settings) -> GroupInfo:
        if self.cloud.identity in HELD:
            raise GroupRefused(f"{self.cloud.identity} is managed by another process")
        HELD.add(self.cloud.identity)
        return await super().init(settings)

    async def shutdown(self) -> None:
        HELD.discard(self.cloud.identity)
        await super().shutdown()


HELD: set[str] = set()
"""Identities of the clouds that somebody manages."""


@pytest.mark.anyio
async def test_what_a_check_left_open_is_closed_before_it_is_cleared_up() -> None:
    """An interrupted check closes nothing, and the clearing up must not be refused for it."""
    cloud = FakeCloud(identity="exclusive")
    guard = SpendingGuard(1)
    harness = harness_for(cloud, _Exclusive)
    async with guard.watch(harness) as guarded:
        group = guarded.make()
        await group.init(guarded.settings)
        assert await group.increase(1, intent=new_intent()) == 1
    assert guard.left == {}
    assert cloud.alive == frozenset()


def test_without_being_asked_nothing_is_spent(tmp_path: Path) -> None:
    """Every test is skipped, and says how to run it."""
    process = start(tmp_path)
    said, _ = process.communicate()
    assert process.returncode == 0
    assert "pass --live" in said
    assert not (tmp_path / "group").exists()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    """What was being checked is removed before pytest ends."""
    process = start(tmp_path, "--live", "-k", "increase_brings", boot_time=60)
    while not list((tmp_path / "group").glob("*/agent.pid")):  # the request for it is over then, and it is waited for
        assert process.poll() is None
    there = living(tmp_path / "group")
    process.send_signal(number)
    said, _ = process.communicate()
    assert there
    assert process.returncode == pytest.ExitCode.INTERRUPTED, said
    assert living(tmp_path / "group") == set()
