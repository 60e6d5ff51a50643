"""What several files of tests about connections share."""

import socket
from collections.abc import Iterator

import pytest

from fleeting.connectors.ssh._tap import Tap


@pytest.fixture
def tapped() -> Iterator[tuple[Tap, socket.socket]]:
    """A tap, and the other end of its socket."""
    ours, theirs = socket.socketpair()
    tap = Tap(ours)
    with theirs:
        yield tap, theirs
    tap.release()
