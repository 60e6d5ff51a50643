"""The group keeps the contract: real boto3 against moto's server."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest

from fleeting.testing import CHECKS, Check, GroupConformance, Harness, MakeHarness, judge, name_of
from tests.conformance.harnesses import call_timeout
from tests.fleeting_aws.clouds import ENVIRONMENT, Cloud, new_cloud

OF_SIZES = (
    "increase_brings_what_it_accepted",
    "increase_stops_at_max_size",
    "partial_success_is_reported",
    "lost_answer_is_an_unknown_outcome",
    "stock_out_is_reported",
    "quota_is_reported",
    "withdraw_spares_instances",
    "withdraw_takes_requests_back",
)
"""Checks whose outcome depends on how instances are asked for."""


class TestAws(GroupConformance):
    """The suite, where AWS launches when it is told to."""

    @pytest.fixture(params=["asyncio", "trio"])
    def anyio_backend(self, request: pytest.FixtureRequest) -> str:
        """Both, unlike the other tests here."""
        backend: str = request.param
        return backend

    @pytest.fixture
    def make_harness(self, moto_port: int, monkeypatch: pytest.MonkeyPatch, check: Check) -> MakeHarness:
        """Begin anew for each check, with an instance in the group that somebody else made."""
        for name, value in ENVIRONMENT.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr("fleeting_aws._group.NOTICE_INTERVAL", 0.1)  # the suite waits in real time

        @asynccontextmanager
        async def make() -> AsyncIterator[Harness]:
            cloud = new_cloud(moto_port, page=3, group={"max_size": 8})
            await cloud.ado("launch", count=1)
            yield cloud.harness(make=partial(cloud.group, timeout=call_timeout(check, 2.5)))

        return make


@pytest.mark.anyio
@pytest.mark.parametrize("check", [check for check in CHECKS if name_of(check) in OF_SIZES], ids=name_of)
async def test_the_desired_capacity_will_do(cloud: Cloud, check: Check) -> None:
    """Where AWS does not launch when it is told to, what hangs on that holds as well."""
    new_cloud(cloud.port, group={"max_size": 8}, offers_launch=False)
    await judge(check, cloud.harness())


def test_all_of_those_checks_exist() -> None:
    """One that is renamed is not left out silently."""
    assert {*OF_SIZES} <= {name_of(check) for check in CHECKS}
