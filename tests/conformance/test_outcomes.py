"""What an author's pytest shows of a check: its violation, or why there is no verdict, however the harness is made."""

from pathlib import Path

import pytest

from fleeting.testing import CHECKS

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
    chosen = "accepts_what_is_gone or heartbeat_notices_death or withdraw_spares or reports_health"
    result = pytester.runpytest_subprocess(suite, "-k", chosen, "-rfs", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=4, skipped=2, failed=2)
    said = result.stdout.str()
    assert "ExceptionGroup" not in said
    assert (
        "the contract says: decrease accepts an instance that is already gone; seen: decrease(['i-1']) raised" in said
    )
    assert "not checked: give the harness kill, which ends an instance behind the group's back" in said


BROKEN = """
from contextlib import asynccontextmanager

import pytest

from fleeting.testing import FakeCloud, FakeGroup, GroupConformance, Harness, virtual_time

anyio_backend = virtual_time


class Closed(FakeGroup):
    async def init(self, settings):
        return {"version": 1}["verison"]


class TestIt(GroupConformance):
    @pytest.fixture
    def make_harness(self):
        @asynccontextmanager
        async def make():
            yield Harness(make=lambda: Closed(FakeCloud()))

        return make
"""


def test_an_init_that_raises_is_one_failure(pytester: pytest.Pytester) -> None:
    """It is named once, with the plugin's own line; all other tests are skipped for one reason, told on one line."""
    suite = pytester.makepyfile(BROKEN)
    result = pytester.runpytest_subprocess(suite, "-ra", "-p", "no:cacheprovider", "-p", "no:xdist")
    outcomes = result.parseoutcomes()
    assert outcomes["failed"] == 1
    assert outcomes["failed"] + outcomes["skipped"] == 2 * len(CHECKS)
    lines = result.stdout.lines
    clause = "the contract says: init opens the group while nothing is wrong with the cloud"
    assert sum(line.startswith(clause) and "init raised KeyError('verison')" in line for line in lines) == 1
    assert sum("not run, because init raises" in line for line in lines) == 1
    assert any("in init" in line and "test_an_init" in line for line in lines)
    assert "_harness.py" not in result.stdout.str().partition("short test summary")[0]


def test_the_xml_report_says_what_does_not_apply(pytester: pytest.Pytester) -> None:
    """Also where warnings are errors, as in a generated plugin."""
    suite = pytester.makepyfile(SUITE)
    arguments = ("-k", "withdraw_spares", "-W", "error", "--junitxml=report.xml", "-p", "no:cacheprovider")
    result = pytester.runpytest_subprocess(suite, *arguments)
    result.assert_outcomes(passed=2)
    report = (pytester.path / "report.xml").read_text()
    assert report.count('name="not_applicable" value="the group does not claim WITHDRAW"') == 2
