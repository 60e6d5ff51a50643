"""What pytest tells an author: a sentence for what is wrong, and what to give the harness for what is not checked."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import anyio
import pytest
from attrs import evolve

from fleeting import ConnectInfo
from fleeting.testing import CHECKS, FakeCloud, FakeGroup, GroupConformance, Harness, MakeHarness, name_of, virtual_time
from tests.conformance.test_fake import harness_for

pytestmark = pytest.mark.anyio
anyio_backend = virtual_time


class _Raw(FakeGroup):
    """Lets out what a dictionary raises."""

    async def connect_info(self, instance: str) -> ConnectInfo:
        return self._known[instance]

    _known: Mapping[str, ConnectInfo] = {}


def served(*, group: type[FakeGroup] = FakeGroup, bare: bool = False) -> MakeHarness:
    """Set a cloud up as an author with a server of his own does: in a task group."""

    @asynccontextmanager
    async def make() -> AsyncIterator[Harness]:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anyio.sleep_forever)
            harness = harness_for(FakeCloud(), group)
            yield evolve(harness, kill=None) if bare else harness
            tasks.cancel_scope.cancel()

    return make


async def put_through(name: str, make_harness: MakeHarness, request: pytest.FixtureRequest) -> None:
    """Run one of the suite's tests."""
    (check,) = (each for each in CHECKS if name_of(each) == name)
    await GroupConformance().test_contract(check, make_harness, request)


async def test_a_violation_is_a_sentence_and_the_plugins_own_traceback(request: pytest.FixtureRequest) -> None:
    """Nothing of the suite's inside is shown, nor a group of exceptions; where the plugin's error arose is."""
    with pytest.raises(pytest.fail.Exception) as caught:
        await put_through("connect_info_knows_what_is_gone", served(group=_Raw), request)
    first, *more = str(caught.value).splitlines()
    assert first.startswith("the contract says: connect_info raises InstanceNotFound")
    assert first.endswith("more: docs/reference/plugin-contract.md#connect-info-knows-what-is-gone")
    assert more[0].startswith(f'  File "{__file__}", line ')
    assert more[1:] == ["    return self._known[instance]"] or more[1].strip() == "return self._known[instance]"
    assert str(caught.value).count("KeyError") == 1
    assert not caught.value.pytrace


async def test_what_is_not_checked_is_skipped_whatever_runs_the_endpoint(
    request: pytest.FixtureRequest,
) -> None:
    """A task group around the harness does not make a failure of it."""
    with pytest.raises(pytest.skip.Exception, match="not checked: give the harness kill"):
        await put_through("update_notices_death", served(bare=True), request)
