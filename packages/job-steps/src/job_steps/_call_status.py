"""How gRPC calls end: the codes, and how headers write what is said with them."""

import re
from enum import IntEnum
from typing import Final
from urllib.parse import quote, unquote

from attrs import frozen

LONGEST_SAID: Final = 4096
"""Characters that are passed on of what a service says about a call."""

_TIMEOUT: Final = re.compile(r"([0-9]{1,8})([HMSmun])")
_SECONDS: Final = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_MOST_DIGITS: Final = 10**8
_SAFE: Final = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")


_CONTROL: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""What a terminal would obey; lines may end, and have tabs."""


def without_control(said: str) -> str:
    """Return what another program has said, for people: nothing in it is obeyed by a terminal."""
    return _CONTROL.sub("\ufffd", said[:LONGEST_SAID])


class Code(IntEnum):
    """gRPC's, by its names."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


_BY_NUMBER: Final = {str(int(code)): code for code in Code}


@frozen
class CallStatus:
    """How a call has ended."""

    code: Code
    said: str = ""
    """By whoever ended it; of one line or several."""


FOR_HTTP: Final = {
    400: Code.INTERNAL,
    401: Code.UNAUTHENTICATED,
    403: Code.PERMISSION_DENIED,
    404: Code.UNIMPLEMENTED,
    429: Code.UNAVAILABLE,
    502: Code.UNAVAILABLE,
    503: Code.UNAVAILABLE,
    504: Code.UNAVAILABLE,
}
"""What an HTTP status means that something other than gRPC has answered; another one: unknown."""

_REFUSED_STREAM, _CANCEL, _ENHANCE_YOUR_CALM, _INADEQUATE_SECURITY = 7, 8, 11, 12

FOR_RESET: Final = {
    _REFUSED_STREAM: Code.UNAVAILABLE,
    _CANCEL: Code.CANCELLED,
    _ENHANCE_YOUR_CALM: Code.RESOURCE_EXHAUSTED,
    _INADEQUATE_SECURITY: Code.PERMISSION_DENIED,
}
"""What HTTP/2's codes mean for the call whose stream was reset; another one: internal."""


def read_status(code: str, said: str) -> CallStatus:
    """Read ``grpc-status`` and ``grpc-message``; a code that nobody knows counts as unknown."""
    known = _BY_NUMBER.get(code, Code.UNKNOWN)
    return CallStatus(known, without_control(unquote(said, errors="replace")))


def write_said(said: str) -> str:
    """Write ``grpc-message``: printable ASCII, and the rest by percents."""
    return quote(said[:LONGEST_SAID], safe=_SAFE, errors="replace")


def read_timeout(value: str) -> float | None:
    """Read ``grpc-timeout``, in seconds; None if it is none."""
    found = _TIMEOUT.fullmatch(value)
    return int(found[1]) * _SECONDS[found[2]] if found else None


def write_timeout(seconds: float) -> str:
    """Write it, never as less than it is, in the finest unit that has room for it."""
    for unit in "num":
        count = int(seconds / _SECONDS[unit]) + 1
        if count < _MOST_DIGITS:
            return f"{count}{unit}"
    return f"{min(int(seconds) + 1, _MOST_DIGITS - 1)}S"
