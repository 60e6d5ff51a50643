"""The group of containers keeps the contract, on a real daemon, whose trouble is made on the way to it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from fleeting.testing import GroupConformance, Harness, MakeHarness
from tests.fleeting_docker.groups import harness
from tests.fleeting_docker_engine.daemons import Daemon


class TestDocker(GroupConformance):
    """The suite, with room for three, and real containers."""

    @pytest.fixture
    def make_harness(self, docker: Daemon, tmp_path: Path) -> MakeHarness:
        """Make a group of its own on the daemon, and leave no container of it."""

        @asynccontextmanager
        async def make() -> AsyncIterator[Harness]:
            async with harness(docker, tmp_path) as made:
                yield made

        return make
