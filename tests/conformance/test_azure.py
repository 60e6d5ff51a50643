"""Scale sets keep the contract, uniform and flexible: the real SDK against a cloud of our own."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from fleeting import LoopClock
from fleeting.testing import GroupConformance, Harness, MakeHarness
from tests.fleeting_azure.arm_cloud import Mode
from tests.fleeting_azure.arm_server import running
from tests.fleeting_azure.harness import HurriedClock, harness_for


class TestAzure(GroupConformance):
    """The suite, with an instance there already that somebody else made."""

    @pytest.fixture(params=["Uniform", "Flexible"])
    def make_harness(self, tmp_path: Path, request: pytest.FixtureRequest) -> MakeHarness:
        """Run a cloud for each check."""
        mode: Mode = request.param

        @asynccontextmanager
        async def make() -> AsyncIterator[Harness]:
            async with running(tmp_path, mode) as (cloud, config):
                await cloud.launch(1)
                yield harness_for(cloud, config, HurriedClock(anyio.current_time(), LoopClock().now()))
                assert not cloud.victims, "the capacity was lowered"

        return make
