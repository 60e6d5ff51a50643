"""The fake group keeps the contract, however slow and eventual its cloud is."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from fleeting import Capability
from fleeting.testing import FakeCloud, FakeGroup, GroupConformance, Harness, MakeHarness, virtual_time

anyio_backend = virtual_time

CLOUDS = {
    "prompt": lambda: FakeCloud(max_size=5),
    "slow": lambda: FakeCloud(
        max_size=4,
        capabilities=frozenset({Capability.NAMED_CREATE, Capability.WITHDRAW, Capability.NOTICES}),
        boot_time=90,
        appear_after=20,
        delete_time=40,
        linger=60,
        latency={"init": 1, "update": 2, "increase": 6, "decrease": 3, "connect_info": 1, "heartbeat": 1},
    ),
    "plain": lambda: FakeCloud(capabilities=frozenset(), boot_time=5),
}


def harness_for(cloud: FakeCloud, group: type[FakeGroup] = FakeGroup) -> Harness:
    """A harness around a fake cloud that may take its virtual time."""

    async def kill(instance: str) -> None:
        cloud.vanish(instance)

    async def alive() -> frozenset[str]:
        return cloud.alive

    return Harness(make=lambda: group(cloud), kill=kill, alive=alive, deadline=600, settle=60, poll=1)


class TestFake(GroupConformance):
    """The suite, over clouds of different temper."""

    @pytest.fixture(params=CLOUDS)
    def make_harness(self, request: pytest.FixtureRequest) -> MakeHarness:
        """Make a cloud that holds an instance already, and find all else deleted after the check."""

        @asynccontextmanager
        async def make() -> AsyncIterator[Harness]:
            cloud = CLOUDS[request.param]()
            found = cloud.launch(1)
            yield harness_for(cloud)
            left = [machine for machine in cloud.machines.values() if machine.told_at > cloud.now < machine.gone_at]
            assert [machine.id for machine in left] == found

        return make
