"""The conformance suite for connectors as test classes."""

import anyio
import pytest

from fleeting.testing._connector_checks import CONNECTOR_CHECKS, ConnectorCheck, MakeDial
from fleeting.testing._detached_checks import DETACHED_CHECKS, DetachedCheck
from fleeting.testing._forwarding_checks import FORWARDING_CHECKS, ForwardingCheck

PATIENCE = 240.0
"""Seconds that one check may take, with mebibytes and dozens of commands, on a machine with other things to do."""


class ConnectorConformance:
    """The conformance suite; a connector's tests subclass it and override `make_dial`.

    ::

        class TestMyConnector(ConnectorConformance):
            @pytest.fixture
            def make_dial(self) -> MakeDial:
                @asynccontextmanager
                async def make() -> AsyncIterator[DialInstance]:
                    async with my_instance() as info:
                        yield lambda: MyConnector().dial(info, ConnectorConfig())

                return make
    """

    pytestmark = pytest.mark.anyio

    @pytest.fixture
    def make_dial(self) -> MakeDial:
        """Give what sets up an instance for one check."""
        raise NotImplementedError(f"{type(self).__name__} must override the fixture make_dial")

    @pytest.mark.parametrize("check", CONNECTOR_CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
    async def test_contract(self, check: ConnectorCheck, make_dial: MakeDial) -> None:
        """The connector keeps the clause of the contract that the check is about."""
        with anyio.fail_after(PATIENCE):
            async with make_dial() as dial:
                await check(dial)


class DetachedConformance(ConnectorConformance):
    """The same, and what is promised of detached commands; for connectors whose connections are `RunsDetached`."""

    @pytest.mark.parametrize("check", DETACHED_CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
    async def test_contract_of_detached_commands(self, check: DetachedCheck, make_dial: MakeDial) -> None:
        """The connector keeps the clause of the contract that the check is about."""
        with anyio.fail_after(PATIENCE):
            async with make_dial() as dial:
                await check(dial)


class ForwardingConformance(ConnectorConformance):
    """The same, and what is promised of ports that are listened at; for connections that are `ForwardsPorts`.

    A connector that does this and runs detached commands derives its tests from both classes.
    """

    @pytest.mark.parametrize("check", FORWARDING_CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
    async def test_contract_of_forwarded_ports(self, check: ForwardingCheck, make_dial: MakeDial) -> None:
        """The connector keeps the clause of the contract that the check is about."""
        with anyio.fail_after(PATIENCE):
            async with make_dial() as dial:
                await check(dial)
