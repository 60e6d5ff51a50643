"""Who is at the other end of a Unix socket, as the kernel has it, and what they may do."""

import os
import socket
import struct
import sys

from attrs import frozen

from taskscaler._errors import DaemonRefused
from taskscaler.batch._share import SUBMITTED

_UCRED = struct.Struct("3i")
"""Linux: process, user and group."""

_LOCAL_PEERCRED, _LOCAL_PEERPID = 1, 2
_XUCRED = struct.Struct("=IIh")
"""macOS: the beginning of it, version and user."""


@frozen
class Peer:
    """A process that has connected."""

    uid: int
    """Its user when it connected."""

    pid: int = 0
    """0: not known."""

    by_token: bool = False
    """Whether it came over TCP, with the token: it may do what the daemon's own user may, but learns no credential and
    nothing of this machine's files."""

    @property
    def is_owner(self) -> bool:
        """Whether it is the daemon's own user, or root, who could become it."""
        return self.uid in (os.geteuid(), 0)

    def long_key(self, key: str) -> str:
        """Name a key of this user's among those of all: so nobody else can have it, also after a restart.

        Raises:
            DaemonRefused: It looks like a batch's.
        """
        if key.startswith(SUBMITTED):
            raise DaemonRefused(
                f"keys that begin with {SUBMITTED!r} are those of submitted batches; use another", status=403
            )
        return key if self.is_owner else f"{self.uid}:{key}"

    def short_key(self, key: str) -> str:
        """Name it as the user does."""
        return key if self.is_owner else key.removeprefix(f"{self.uid}:")

    def may_have(self, key: str) -> bool:
        """Whether a key, by its long name, is this user's, and none of a batch."""
        return not key.startswith(SUBMITTED) if self.is_owner else key.startswith(f"{self.uid}:")


def peer_of(connection: socket.socket) -> Peer:
    """Ask the kernel.

    Raises:
        OSError: It does not say.
    """
    if sys.platform == "linux":
        pid, uid, _ = _UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
        return Peer(uid, pid)
    _, uid, _ = _XUCRED.unpack_from(connection.getsockopt(0, _LOCAL_PEERCRED, 256))
    return Peer(uid, connection.getsockopt(0, _LOCAL_PEERPID))
