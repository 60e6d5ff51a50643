"""What is of use with pytest only: the fixture for virtual time, the conformance suite as a test class."""

from collections.abc import Callable
from typing import Any

import anyio
import pytest

from fleeting.testing._conformance import CHECKS, Check
from fleeting.testing._harness import MakeHarness, NotApplicable
from fleeting.testing._virtual_time import virtual_backend

CALLS_AT_MOST = 20
"""How many waits of the harness's deadline one check can have, in round numbers."""


@pytest.fixture(params=["asyncio", "trio"])
def virtual_time(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """Run each test on both backends in virtual time; to be used under the name ``anyio_backend``."""
    return virtual_backend(request.param)


class GroupConformance:
    """The conformance suite; a plugin's tests subclass it and override `make_harness`.

    ::

        class TestMyGroup(GroupConformance):
            @pytest.fixture
            def make_harness(self, tmp_path: Path) -> MakeHarness:
                @asynccontextmanager
                async def make() -> AsyncIterator[Harness]:
                    async with my_cloud(tmp_path) as cloud:
                        yield Harness(make=lambda: MyGroup(cloud.url), kill=cloud.terminate)

                return make
    """

    pytestmark = pytest.mark.anyio

    @pytest.fixture
    def make_harness(self) -> MakeHarness:
        """Give what sets up a cloud resource for one check."""
        raise NotImplementedError(f"{type(self).__name__} has to override the fixture make_harness")

    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
    async def test_contract(
        self, check: Check, make_harness: MakeHarness, record_property: Callable[[str, object], None]
    ) -> None:
        """The group keeps the clause of the contract that the check is about, or the clause is not about it.

        Which do not apply, and why, stands in the properties of pytest's XML report.
        """
        async with make_harness() as harness:
            try:
                with anyio.fail_after(CALLS_AT_MOST * harness.deadline):
                    await check(harness)
            except NotApplicable as reason:
                record_property("not_applicable", str(reason))
