"""Pure: what has arrived in a channel and was not taken yet, at a few bytes of overhead for each piece.

A host decides how small the pieces are in which it sends. An object for each would cost a hundred times what a byte
does, so small pieces are put together: their bytes in one buffer, and beside it a number for each run of bytes of the
same stream.
"""

from array import array
from collections import deque
from typing import Final

from attrs import define, field

CRUMBS: Final = 1024
"""Bytes up to which a piece is put together with others; an object for a larger one adds less than a tenth to it."""

_BUFFER: Final = 1 << 16
"""Bytes from which on a buffer of small pieces takes no more, so that its memory is given back soon."""


@define
class _Crumbs:
    """Small pieces of both streams, in order."""

    _data: bytearray = field(factory=bytearray, init=False)
    _runs: "array[int]" = field(factory=lambda: array("I"), init=False)
    """For each run its length and its stream, which is the lowest bit."""

    _next: int = field(default=0, init=False)
    """Number of the first run that was not taken."""

    _start: int = field(default=0, init=False)
    """Where its bytes begin."""

    @property
    def has_room(self) -> bool:
        return len(self._data) < _BUFFER

    @property
    def is_empty(self) -> bool:
        return self._next == len(self._runs)

    @property
    def stream(self) -> int:
        return self._runs[self._next] & 1

    def put(self, stream: int, data: bytes) -> None:
        self._data += data
        if self._runs and self._runs[-1] & 1 == stream:
            self._runs[-1] += len(data) << 1
        else:
            self._runs.append(len(data) << 1 | stream)

    def take(self) -> bytes:
        start, self._start = self._start, self._start + (self._runs[self._next] >> 1)
        self._next += 1
        return bytes(self._data[start : self._start])


@define
class _Whole:
    """A large piece."""

    stream: int
    _data: bytes
    is_empty: bool = field(default=False, init=False)

    def take(self) -> bytes:
        self.is_empty = True
        return self._data


@define
class Arrivals:
    """Pieces of two streams, 0 and 1, in the order in which they came."""

    held: int = field(default=0, init=False)
    """Bytes that are there."""

    _parts: "deque[_Crumbs | _Whole]" = field(factory=deque, init=False)

    def __bool__(self) -> bool:
        """Whether there is something."""
        return bool(self.held)

    def put(self, stream: int, data: bytes) -> None:
        """Add a piece, unless it is empty."""
        self.held += len(data)
        if len(data) > CRUMBS:
            self._parts.append(_Whole(stream, data))
        elif data:
            last = self._parts[-1] if self._parts else None
            if not (isinstance(last, _Crumbs) and last.has_room):
                self._parts.append(last := _Crumbs())
            last.put(stream, data)

    def take(self, enough: int) -> tuple[int, bytes]:
        """Return a stream and its next bytes: at least one, and as much as is there until they are *enough*.

        Call it if there is something.
        """
        stream, taken, size = self._parts[0].stream, [], 0
        while self._parts and self._parts[0].stream == stream and size < enough:
            taken.append(data := self._parts[0].take())
            size += len(data)
            if self._parts[0].is_empty:
                self._parts.popleft()
        self.held -= size
        return stream, taken[0] if len(taken) == 1 else b"".join(taken)

    def clear(self) -> None:
        """Throw all away."""
        self._parts.clear()
        self.held = 0
