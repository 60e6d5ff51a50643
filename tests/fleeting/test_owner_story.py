"""Managers of one group that come, go and alternate, while its mark cannot always be renewed."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from random import Random

import anyio
import pytest

from fleeting import (
    Capability,
    GroupRefused,
    LoopClock,
    PlanConfig,
    Preexisting,
    ProviderError,
    Provisioner,
)
from fleeting.plugins import Mark
from fleeting.runtime._mark import MARK_LASTS
from fleeting.testing import FakeCloud, FakeGroup, Fault, virtual_time
from tests.taskscaler.scaling import virtual_clock

pytestmark = pytest.mark.anyio
anyio_backend = virtual_time

MARKED = frozenset({Capability.NAMED_CREATE, Capability.OWNER_MARK, Capability.SUSPEND_RESUME})
FAULTS = (
    Fault(refuse=ProviderError("internal error")),
    Fault(refuse=ConnectionError("reset by peer")),
    Fault(slow=30.0),
    Fault(slow=1000.0),
    Fault(lose=True),
)


class Watched(FakeGroup):
    """One whose manager has to own the group whenever it begins to change something."""

    def _check(self) -> None:
        mark = self.cloud.owner_mark
        assert mark is not None, "changed without a mark"
        assert mark.owner == self._owner, "changed in somebody else's group"
        assert mark.until > self.cloud.now, "changed after the mark has expired"

    async def increase(self, count: int, *, intent: str) -> int:
        """As ever, if it is ours."""
        self._check()
        return await super().increase(count, intent=intent)

    async def decrease(self, instances: Sequence[str]) -> Sequence[str]:
        """As ever, if it is ours."""
        self._check()
        return await super().decrease(instances)


class Jumping(LoopClock):
    """One that can be set forward, as after a process was stopped."""

    ahead = 0.0

    def now(self) -> float:
        """Later than it was expected to be."""
        return super().now() + self.ahead


@asynccontextmanager
async def managing(cloud: FakeCloud, seed: int, clock: LoopClock | None = None) -> AsyncIterator[Provisioner]:
    """A manager that adopts what it finds."""
    group = Watched(cloud)
    config = PlanConfig(preexisting=Preexisting.ADOPT, max_instances=5)
    async with Provisioner(
        group,
        config,
        dial=group.dial,
        on_event=lambda _: None,
        random=Random(seed).random,
        clock=clock or virtual_clock(),
    ) as provisioner:
        yield provisioner


async def live(cloud: FakeCloud, chance: Random) -> int:
    """Manage the group again and again, when it can be had; returns how often that was."""
    had, until = 0, anyio.current_time() + 4_000
    while anyio.current_time() < until:
        try:
            async with managing(cloud, chance.randrange(2**32)) as provisioner:
                had += 1
                for _ in range(chance.randrange(1, 30)):
                    provisioner.request(1)
                    provisioner.remove(list(provisioner.instances)[:1], "not needed")
                    if chance.random() < 0.1:
                        cloud.faults.mark_owner.once(chance.choice(FAULTS), times=chance.randrange(1, 40))
                    await anyio.sleep(chance.uniform(0, 60))
        except (GroupRefused, ProviderError):
            await anyio.sleep(chance.uniform(0, 100))
    return had


@pytest.mark.parametrize("seed", range(8))
async def test_nobody_changes_a_group_that_is_not_theirs(seed: int) -> None:
    """Whatever becomes of the mark, whoever asks for a change has it at that moment."""
    cloud, chance = FakeCloud(capabilities=MARKED), Random(seed)
    cloud.clock = virtual_clock()
    had = []

    async def manage() -> None:
        had.append(await live(cloud, chance))

    async with anyio.create_task_group() as managers:
        managers.start_soon(manage)
        managers.start_soon(manage)
    assert sum(had) > 2


@pytest.mark.parametrize("fault", [Fault(slow=10_000), Fault(slow=9, refuse=ProviderError("internal error"))])
async def test_a_mark_is_not_relied_on_once_it_has_expired(fault: Fault) -> None:
    """Not until the call that was to renew it is given up, nor until the next one."""
    cloud = FakeCloud(capabilities=MARKED)
    async with managing(cloud, 1) as provisioner:
        cloud.faults.mark_owner.always(fault)
        await anyio.sleep(MARK_LASTS - 1)
        assert not provisioner.plan.disowned
        await anyio.sleep(2)
        assert provisioner.plan.disowned
        cloud.faults.mark_owner.clear()
        await anyio.sleep(200)
        assert not provisioner.plan.disowned


async def test_a_process_that_was_stopped_changes_nothing_before_its_mark_is_renewed() -> None:
    """It finds its mark expired: others may have come, and gone or not."""
    cloud, clock = FakeCloud(capabilities=MARKED), Jumping()
    cloud.clock = clock
    async with managing(cloud, 1, clock) as provisioner:
        await anyio.sleep(10)
        clock.ahead = 2 * MARK_LASTS
        provisioner.request(1)
        await anyio.sleep(1)
        assert "expired" in provisioner.plan.disowned
        assert not [call for call in cloud.calls if call.method == "increase"]
        await anyio.sleep(MARK_LASTS / 2)
        assert not provisioner.plan.disowned
        provisioner.request(1)
        await anyio.sleep(30)
        assert cloud.alive


async def test_one_who_lost_the_group_hands_it_over_whole() -> None:
    """What the other has made meanwhile is not deleted when the group is ours again, if that is to be adopted."""
    cloud = FakeCloud(capabilities=MARKED)
    async with managing(cloud, 1) as provisioner:
        await anyio.sleep(10)
        cloud.owner_mark = Mark(owner="somebody else", until=cloud.now + 300)
        await anyio.sleep(MARK_LASTS / 2)
        group = provisioner._open.drivers["default"].group
        assert isinstance(group, FakeGroup)
        await FakeGroup.increase(group, 1, intent="theirs")
        await anyio.sleep(500)
        assert not provisioner.plan.disowned
        assert len(cloud.alive) == 1
