"""What the tests of fleeting-aws share: one process of moto's server, and a cloud of its own for each."""

from collections.abc import Iterator

import pytest

from tests.fleeting_aws.clouds import ENVIRONMENT, Cloud, new_cloud, running_server


@pytest.fixture(scope="session")
def moto_port() -> Iterator[int]:
    """One process for all tests: to start it takes seconds."""
    with running_server() as port:
        yield port


@pytest.fixture
def cloud(moto_port: int, monkeypatch: pytest.MonkeyPatch) -> Cloud:
    """A cloud for one test, and credentials for it."""
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    return new_cloud(moto_port)
