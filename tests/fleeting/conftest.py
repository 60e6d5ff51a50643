"""What several files of tests about connections share."""

import socket
from collections.abc import Iterator

import pytest

from fleeting.connectors.ssh._transport_socket import TransportSocket


@pytest.fixture
def socket_and_peer() -> Iterator[tuple[TransportSocket, socket.socket]]:
    """A transport's socket, and its other end."""
    ours, theirs = socket.socketpair()
    sock = TransportSocket(ours)
    with theirs:
        yield sock, theirs
    sock.release()
