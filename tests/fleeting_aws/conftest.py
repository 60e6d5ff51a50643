"""What the tests of fleeting-aws share: one process of moto's server, and a cloud of its own for each."""

from collections.abc import Iterator

import pytest

from tests.fleeting_aws.clouds import ENVIRONMENT, Cloud, new_cloud, running_server
from tests.fleeting_aws.policy import NEVER_ASKED_FOR, permitted
from tests.one_backend import one_backend

anyio_backend = one_backend


@pytest.fixture(scope="session")
def moto_port() -> Iterator[int]:
    """One process for all tests: to start it takes seconds. Whatever any of them asked for must be in the policy."""
    with running_server() as port:
        yield port
        asked = {*new_cloud(port).calls()} - NEVER_ASKED_FOR
        assert asked <= permitted(), "the README's policy lacks what the group asks for"


@pytest.fixture
def cloud(moto_port: int, monkeypatch: pytest.MonkeyPatch) -> Cloud:
    """A cloud for one test, and credentials for it."""
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    return new_cloud(moto_port)
