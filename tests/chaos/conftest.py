"""What the tests that play stories share."""

from collections.abc import Iterator

import pytest

from tests.chaos.runner import set_up


@pytest.fixture
def quiet() -> Iterator[None]:
    """Make a process that plays stories of this one, for one test."""
    restore = set_up()
    yield
    restore()
