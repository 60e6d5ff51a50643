"""The agent's socket: of mode 0600, in a directory of mode 0700, put up again if somebody takes it away."""

import logging
import os
import socket
import struct
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import anyio
from anyio.abc import ByteStream, SocketAttribute, SocketListener, SocketStream, TaskGroup

from job_steps._grpc_server import Presence

LONGEST_PATH: Final = 100
"""Bytes that a socket's address has room for on every system."""

MOST_CONNECTIONS: Final = 64

IDLE_TIME: Final = 10.0
"""Seconds without a call, after which a connection makes room for another one if there are as many as there may be."""

LOOK_EVERY: Final = 2.0
"""Seconds between two looks whether the socket is where it should be."""

_SOCKET: Final = "agent.sock"
_BESIDE: Final = "new.sock"
"""What it is called before somebody can connect: no longer name than its own, for which there is room."""

_log = logging.getLogger("job_steps.agent")


def socket_path(directory: Path) -> Path:
    """Where the socket of an agent is: in its directory, or in one of its own if that is too far down."""
    path = directory / _SOCKET
    if len(os.fsencode(path)) <= LONGEST_PATH:
        return path
    return Path(tempfile.mkdtemp(prefix="job-steps-")) / _SOCKET  # of mode 0700


async def listen(
    path: Path,
    serve: Callable[[ByteStream, Presence], Awaitable[None]],
    *,
    connections: TaskGroup,
    take: Callable[[], bool],
    ready: Callable[[], None],
    is_over: Callable[[int], bool],
) -> None:
    """Serve whoever connects, until it is over.

    Args:
        path: Where.
        serve: What is done with each connection, within *connections*, which outlive the socket.
        connections: See there.
        take: Asked before anybody can connect, the first time and whenever the socket was taken away: whether no other
            agent has the directory. Nobody connects as long as one has.
        ready: Called once somebody can connect.
        is_over: Asked every now and then, with how many are connected.
    """
    present = _Present(serve)

    async def accept(listener: SocketListener) -> None:
        while True:
            with suppress(OSError, anyio.BrokenResourceError):  # too many files are open, for example
                await listener.serve(present.answer, connections)
            await anyio.sleep(LOOK_EVERY)  # those who wait are taken then

    has_listened = False
    try:
        while not is_over(present.count):
            try:
                listener = await _bind(path) if take() else None
            except OSError:
                if not has_listened:
                    raise
                await anyio.sleep(LOOK_EVERY)  # whoever took it away may be at it still; those who are connected go on
                continue
            if listener is None:  # another agent is there, since somebody has removed ours
                await anyio.sleep(LOOK_EVERY)
                continue
            has_listened = True
            async with listener, anyio.create_task_group() as accepting:
                bound = _inode(path)
                accepting.start_soon(accept, listener)
                ready()
                while _inode(path) == bound and not is_over(present.count):  # noqa: ASYNC110  (nobody tells)
                    await anyio.sleep(LOOK_EVERY)
                accepting.cancel_scope.cancel()
    finally:
        with suppress(OSError):
            if has_listened and take():
                _remove(path)


class _Present:
    """Those who are connected."""

    def __init__(self, serve: Callable[[ByteStream, Presence], Awaitable[None]]) -> None:
        self._serve = serve
        self._all: list[Presence] = []

    @property
    def count(self) -> int:
        """How many they are."""
        return len(self._all)

    async def answer(self, stream: SocketStream) -> None:
        """Serve somebody, if there is room."""
        presence = Presence(anyio.current_time())
        if not _is_ours(stream.extra(SocketAttribute.raw_socket)) or not self._make_room():
            await stream.aclose()
            return
        self._all.append(presence)
        try:
            with presence.scope:
                async with stream:
                    await self._serve(stream, presence)
        except Exception:  # noqa: BLE001  (one connection's is no reason to end the others, or jobs)
            _log.exception("step_connection_failed")
        finally:
            self._all.remove(presence)

    def _make_room(self) -> bool:
        """Whether another one can be had: one that nobody calls through may have to go."""
        if len(self._all) < MOST_CONNECTIONS:
            return True
        now = anyio.current_time()
        idle = [one for one in self._all if not one.calls and now - one.since >= IDLE_TIME]
        longest = min((one for one in idle if not one.scope.cancel_called), key=lambda one: one.since, default=None)
        if longest is not None:
            longest.scope.cancel()
        return longest is not None


async def _bind(path: Path) -> SocketListener:
    """Listen beside the path, then there: so nobody who sees it has to wait, and what was there is replaced."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    beside = path.with_name(_BESIDE)
    listener = await anyio.create_unix_listener(beside, mode=0o600)
    try:
        beside.rename(path)
    except BaseException:
        await listener.aclose()
        raise
    return listener


def _remove(path: Path) -> None:
    """Remove the socket, and the directory that was made for it alone; one that has anything else in it stays."""
    with suppress(OSError):
        path.unlink()
        path.parent.rmdir()


def _inode(path: Path) -> int | None:
    try:
        return path.lstat().st_ino
    except OSError:
        return None


def _is_ours(connection: socket.socket) -> bool:
    """Whether who has connected is our user, or root; where the system does not say, the modes must do."""
    if not hasattr(socket, "SO_PEERCRED"):
        return True
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, uid, _ = struct.unpack("3i", credentials)
    return uid in (os.getuid(), 0)
