"""How this side talks to an agent: over its unix socket, one JSON object on a line, each way."""

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import SocketAttribute, UNIXSocketStream

from fleeting._errors import HostKeyMismatch, Unreachable
from fleeting.groups.local._agent import is_same_user


def encode(**request: object) -> bytes:
    """One request as a line."""
    return json.dumps(request).encode() + b"\n"


def attach(path: str) -> socket.socket:
    """Tell the agent that a manager is there for as long as the returned socket is open.

    Does not wait for the answer, so it does not block, whatever state the agent is in.

    Raises:
        OSError: It does not listen.
    """
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.setblocking(False)
        with _short(path) as address:
            connection.connect(address)
        connection.send(encode(op="attach"))
    except BaseException:
        connection.close()
        raise
    return connection


async def connect(path: str) -> UNIXSocketStream:
    """Connect to the agent whose socket is at *path*.

    Raises:
        Unreachable: Nobody listens there.
        HostKeyMismatch: Who listens there is another user.
    """
    try:
        with _short(path) as address:
            stream = await anyio.connect_unix(address)
    except OSError as error:
        raise Unreachable(f"no agent listens at {path}: {error.strerror}") from error
    if not is_same_user(stream.extra(SocketAttribute.raw_socket)):
        await stream.aclose()
        raise HostKeyMismatch(f"the process that listens at {path} belongs to another user; remove that file")
    return stream


async def ping(stream: UNIXSocketStream) -> None:
    """Return once the agent has answered.

    Raises:
        Unreachable: It hung up instead.
    """
    try:
        await stream.send(encode(op="ping"))
    except anyio.BrokenResourceError as error:
        raise Unreachable("the agent hung up") from error
    if await receive(stream) is None:
        raise Unreachable("the agent hung up")


async def receive(stream: UNIXSocketStream) -> dict[str, Any] | None:
    """Wait for the next answer; None if the other side hangs up instead."""
    line = bytearray()
    while not line.endswith(b"\n"):
        # A receive of anyio's that is cancelled on asyncio while data arrives ends in an InvalidStateError that
        # nobody can catch (as in https://github.com/agronholm/anyio/issues/1267); waiting like this does not.
        await anyio.wait_readable(stream.extra(SocketAttribute.raw_socket))
        try:
            line += await stream.receive()
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            return None
    answer: dict[str, Any] = json.loads(line)
    return answer


@contextmanager
def _short(path: str) -> Iterator[str]:
    """Name the socket at *path* so that it fits into an address, which holds about 100 bytes."""
    socket_path = Path(path)
    descriptor = os.open(socket_path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        link = Path(f"/proc/self/fd/{descriptor}")
        yield str(link / socket_path.name) if link.is_dir() else path
    finally:
        os.close(descriptor)
