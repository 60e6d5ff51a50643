"""The agent's socket: of mode 0600, in a directory of mode 0700, put up again if somebody takes it away."""

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

LONGEST_PATH: Final = 100
"""Bytes that a socket's address has room for on every system."""

MOST_CONNECTIONS: Final = 64

LOOK_EVERY: Final = 2.0
"""Seconds between two looks whether the socket is where it should be."""

_SOCKET: Final = "agent.sock"


def socket_path(directory: Path) -> Path:
    """Where the socket of an agent is: in its directory, or in one of its own if that is too far down."""
    path = directory / _SOCKET
    if len(os.fsencode(path)) <= LONGEST_PATH:
        return path
    return Path(tempfile.mkdtemp(prefix="job-steps-")) / _SOCKET  # of mode 0700


async def listen(
    path: Path,
    serve: Callable[[ByteStream], Awaitable[None]],
    *,
    connections: TaskGroup,
    ready: Callable[[], None],
    is_over: Callable[[int], bool],
) -> None:
    """Serve whoever connects, until it is over.

    Args:
        path: Where.
        serve: What is done with each connection, within *connections*, which outlive the socket.
        connections: See there.
        ready: Called once somebody can connect.
        is_over: Asked every now and then, with how many are connected.
    """
    open_now = 0

    async def answer(stream: SocketStream) -> None:
        nonlocal open_now
        if open_now >= MOST_CONNECTIONS or not _is_ours(stream.extra(SocketAttribute.raw_socket)):
            await stream.aclose()
            return
        open_now += 1
        try:
            await serve(stream)
        finally:
            open_now -= 1

    async def accept(listener: SocketListener) -> None:
        while True:
            with suppress(OSError, anyio.BrokenResourceError):  # too many files are open, for example
                await listener.serve(answer, connections)
            await anyio.sleep(LOOK_EVERY)  # those who wait are taken then

    has_listened = False
    try:
        while not is_over(open_now):
            try:
                listener = await _bind(path)
            except OSError:
                if not has_listened:
                    raise
                await anyio.sleep(LOOK_EVERY)  # whoever took it away may be at it still; those who are connected go on
                continue
            has_listened = True
            async with listener, anyio.create_task_group() as accepting:
                bound = _inode(path)
                accepting.start_soon(accept, listener)
                ready()
                while _inode(path) == bound and not is_over(open_now):  # noqa: ASYNC110  (nobody tells)
                    await anyio.sleep(LOOK_EVERY)
                accepting.cancel_scope.cancel()
    finally:
        _remove(path)


async def _bind(path: Path) -> SocketListener:
    """Listen beside the path, then there: so nobody who sees it has to wait, and what was there is replaced."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    beside = path.with_name(f"{path.name}.{os.getpid()}")
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
