"""The group keeps the contract: offline against a test endpoint, and with ``--live`` against the cloud."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from fleeting.testing import GroupConformance, Harness, MakeHarness
from puddle_endpoint import harness_for, running


class TestPuddle(GroupConformance):
    """The whole suite, with no check skipped."""

    @pytest.fixture
    def make_harness(self) -> MakeHarness:
        """Run a cloud for each check; it already holds an instance that somebody else made."""

        @asynccontextmanager
        async def make() -> AsyncIterator[Harness]:
            async with running() as cloud:
                await cloud.launch(1)
                yield harness_for(cloud)

        return make
