"""What an author's pytest shows of a check: its violation, or why there is no verdict, however the harness is made."""

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

SUITE = """
from contextlib import asynccontextmanager

import anyio
import pytest

from fleeting import InstanceNotFound
from fleeting.testing import FakeCloud, FakeGroup, GroupConformance, Harness, virtual_time

anyio_backend = virtual_time


class Fussy(FakeGroup):
    async def decrease(self, instances):
        for instance in instances:
            if instance not in self.cloud.alive:
                raise InstanceNotFound(instance)
        return await super().decrease(instances)


class TestIt(GroupConformance):
    @pytest.fixture
    def make_harness(self):
        @asynccontextmanager
        async def make():
            async with anyio.create_task_group():  # as an endpoint has one
                cloud = FakeCloud()
                yield Harness(make=lambda: Fussy(cloud))

        return make
"""


def test_task_groups_of_the_harness_hide_nothing(pytester: pytest.Pytester) -> None:
    """A violation is raised, and what is not checked is skipped, as they are: not in groups of exceptions."""
    suite: Path = pytester.makepyfile(SUITE)
    chosen = "accepts_what_is_gone or heartbeat_notices_death or withdraw_spares or tells_health"
    result = pytester.runpytest_subprocess(suite, "-k", chosen, "-rfs", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=4, skipped=2, failed=2)
    said = result.stdout.str()
    assert "ExceptionGroup" not in said
    assert (
        "the contract says: decrease accepts an instance that is already gone; seen: decrease(['i-1']) raised" in said
    )
    assert "not checked: give the harness kill, which ends an instance behind the group's back" in said
