"""Calls that are answered once: from bytes to a message, and back."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from job_steps._call_errors import CallFailed
from job_steps._call_status import Code
from job_steps._grpc_server import Respond
from job_steps._protobuf import MalformedMessage, decode, encode

_M = TypeVar("_M")


async def answer(kind: type[_M], make: Callable[[_M], Awaitable[object]], request: bytes, respond: Respond) -> None:
    """Answer a call."""
    await respond(encode(await make(read(kind, request))))


def read(kind: type[_M], request: bytes) -> _M:
    """Read a request.

    Raises:
        CallFailed: It is none of its kind.
    """
    try:
        return decode(kind, request)
    except MalformedMessage as error:
        raise CallFailed(Code.INVALID_ARGUMENT, f"the request cannot be read: {error}") from error
