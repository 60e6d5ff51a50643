"""Scale sets keep the contract, uniform and flexible: the real SDK against a cloud of our own.

Each kind is checked on one backend, since the SDK runs in threads and knows of neither. The suite checks each clause on
one of the two, and the whole contract so on both; the other half runs with ``--rest``.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from attrs import evolve

from fleeting import LoopClock
from fleeting.testing import Check, GroupConformance, Harness, MakeHarness
from tests.conformance.harnesses import call_timeout
from tests.fleeting_azure.arm_cloud import Mode
from tests.fleeting_azure.arm_server import running
from tests.fleeting_azure.harness import HurriedClock, harness_for


class TestAzure(GroupConformance):
    """The suite, with an instance there already that somebody else made."""

    @pytest.fixture(params=["asyncio", "trio"])
    def anyio_backend(self, request: pytest.FixtureRequest) -> str:
        """One for each kind."""
        backend: str = request.param
        return backend

    @pytest.fixture
    def mode(self, anyio_backend: str) -> Mode:
        """How the scale set orchestrates its machines."""
        return "Uniform" if anyio_backend == "asyncio" else "Flexible"

    @pytest.fixture
    def make_harness(self, tmp_path: Path, mode: Mode, check: Check) -> MakeHarness:
        """Run a cloud for each check."""

        @asynccontextmanager
        async def make() -> AsyncIterator[Harness]:
            async with running(tmp_path, mode) as (cloud, config):
                await cloud.launch(1)
                brief = evolve(config, timeout=call_timeout(check, 1.0))
                yield harness_for(cloud, brief, HurriedClock(anyio.current_time(), LoopClock().now()))
                assert not cloud.victims, "the capacity was lowered"

        return make
