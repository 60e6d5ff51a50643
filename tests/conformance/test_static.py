"""The static group keeps the contract, over hosts that are agents of a local one.

It is given no ``kill``: a host that cannot be reached may be back in a moment, and no list of hosts can tell that one
is gone for good, so `update` goes on showing it. Heartbeats notice it (tests/fleeting/test_static_group.py).

With a reset each clause is checked on one backend, without on the other: what a reset does stands there too, on both.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from anyio.from_thread import start_blocking_portal

from fleeting.groups.static import StaticGroup
from fleeting.testing import GroupConformance, Harness, MakeHarness
from tests.conformance.harnesses import LONG, WHAT_TAKES_AN_ENDPOINT
from tests.fleeting import static_hosts


@pytest.fixture(scope="session")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[static_hosts.Hosts]:
    """Run three machines for all checks; to start them takes longer than most of these."""
    directory = tmp_path_factory.mktemp("hosts")
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(static_hosts.running(directory, 3)) as running,
    ):
        yield running


class TestStatic(GroupConformance):
    """The suite, over three hosts, with and without a reset between two who have one."""

    @pytest.fixture(params=[None, "rm -rf *"], ids=["plain", "with a reset"])
    def reset(self, request: pytest.FixtureRequest) -> str | None:
        """The command, if there is one."""
        reset: str | None = request.param
        return reset

    @pytest.fixture
    def anyio_backend(self, reset: str | None) -> str:
        """The one for this kind."""
        return "trio" if reset else "asyncio"

    @pytest.fixture
    def make_harness(self, hosts: static_hosts.Hosts, tmp_path: Path, reset: str | None) -> MakeHarness:
        """Forget who had the hosts, which all checks share: no check can kill one."""

        @asynccontextmanager
        async def make() -> AsyncIterator[Harness]:
            config = hosts.config(reset_command=reset, state_dir=str(tmp_path / "state"))
            yield Harness(
                make=lambda: StaticGroup(config),
                deadline=LONG,
                settle=0.1,
                poll=0.01,
                unknown_id="host-1.1000",
                cannot=dict.fromkeys(
                    (*WHAT_TAKES_AN_ENDPOINT, "kill"),
                    "a list is its cloud: nobody answers requests, and a host that cannot be reached stays on it",
                ),
            )

        return make
