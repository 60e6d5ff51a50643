"""How this side talks to an agent: over its unix socket, one JSON object on a line, each way."""

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import anyio
from anyio.abc import SocketAttribute, UNIXSocketStream
from attrs import frozen

from fleeting import HostKeyMismatch, Unreachable
from fleeting.groups.local._agent import is_same_user
from fleeting.plugins import describe, one_line

LONGEST_ANSWER = 1 << 16
"""Bytes of one answer: a line of JSON with a few words in it."""


_STATUSES = 256
"""How many a command can exit with."""

_LONGEST_SIGNAL = 32
"""Bytes of a signal's name."""


@frozen(kw_only=True)
class Answer:
    """What an agent answers: to a request to run a command, how it ended."""

    exit_status: int | None = None
    signal: str | None = None
    error: str = ""
    """Why nothing was done; empty if it was."""


def encode(**request: object) -> bytes:
    """One request as a line."""
    return json.dumps(request).encode() + b"\n"


def attach(path: str) -> socket.socket:
    """Let the agent know that a manager is there for as long as the returned socket is open.

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
        raise HostKeyMismatch(f"the process listening at {path} belongs to another user; remove that file")
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


async def receive(stream: UNIXSocketStream) -> Answer | None:
    """Wait for the next answer; None if the other side hangs up instead.

    Raises:
        Unreachable: It is no answer of an agent's: a job, which runs as our user too, may have taken its place.
    """
    line, source = bytearray(), stream.extra(SocketAttribute.raw_socket)
    while not line.endswith(b"\n"):
        if len(line) > LONGEST_ANSWER:
            raise Unreachable(f"the agent answers with more than {LONGEST_ANSWER >> 10} KiB")
        # Not the stream's own: cancelled on asyncio while data arrives, that ends in an InvalidStateError which
        # nobody can catch (as in https://github.com/agronholm/anyio/issues/1267).
        await anyio.wait_readable(source)
        try:
            data = source.recv(LONGEST_ANSWER)
        except BlockingIOError:
            continue
        except OSError:
            return None
        if not data:
            return None
        line += data
    return _read(bytes(line))


def _read(line: bytes) -> Answer:
    with suppress(ValueError, RecursionError):
        match json.loads(line):
            case {"error": str(error)}:
                return Answer(error=error)
            case {"exit_status": int(status), "signal": None} if 0 <= status < _STATUSES:
                return Answer(exit_status=status)
            case {"exit_status": None, "signal": str(signal)}:
                return Answer(signal=one_line(signal, _LONGEST_SIGNAL))
            case {"ok": True}:
                return Answer()
    raise Unreachable(f"the agent answers with {describe(line[:100].decode(errors='replace'))}")


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
