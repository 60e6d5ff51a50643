"""The group of an Auto Scaling group keeps the contract: real boto3 against moto's server."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from fleeting.testing import GroupConformance, Harness, MakeHarness
from tests.fleeting_aws.clouds import ENVIRONMENT, new_cloud


class TestAws(GroupConformance):
    """The suite, where AWS launches when it is told to."""

    @pytest.fixture
    def make_harness(self, moto_port: int, monkeypatch: pytest.MonkeyPatch) -> MakeHarness:
        """Begin anew for each check, with an instance in the group that somebody else made."""
        for name, value in ENVIRONMENT.items():
            monkeypatch.setenv(name, value)

        @asynccontextmanager
        async def make() -> AsyncIterator[Harness]:
            cloud = new_cloud(moto_port, page=3, group={"max_size": 8})
            await cloud.ado("launch", count=1)
            yield cloud.harness()

        return make
