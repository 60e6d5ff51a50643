"""The limit of open files."""

import resource
from collections.abc import Iterator

import pytest

from taskscaler._open_files import MOST, allow_open_files


@pytest.fixture
def limits() -> Iterator[int]:
    """The hard limit; the soft one is put back."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_it_is_raised_as_far_as_it_may_be(limits: int) -> None:
    """From what a shell gives to what the system lets us have, within reason; it is never lowered."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, limits))
    wanted = MOST if limits == resource.RLIM_INFINITY else min(limits, MOST)
    assert allow_open_files() == wanted
    assert allow_open_files() == wanted == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
