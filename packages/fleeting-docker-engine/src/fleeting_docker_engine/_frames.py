"""The stream of an attached container without a terminal, and of its log: frames of both of its outputs. Pure.

Source: the Engine API's reference, "Stream format" of ``POST /containers/{id}/attach``.
"""

from collections.abc import Iterator
from struct import Struct

from attrs import define, field

from fleeting_docker_engine._errors import EngineMalformed

STDOUT = 1
STDERR = 2

_HEADER = Struct(">BxxxL")
"""Which output, and how many bytes follow."""

PIECE = 1 << 14
"""Bytes of a line that a daemon writes into a log at once: ``defaultBufSize`` of ``daemon/logger/copier.go``."""

LARGEST_FRAME = 1 << 20
"""Of a log: more than any daemon makes of a piece."""


@define
class Demultiplexer:
    """Takes the stream in pieces of any size, and gives what each output got as soon as it is there."""

    _header: bytearray = field(factory=bytearray, init=False)
    _output: int = field(default=0, init=False)
    _left: int = field(default=0, init=False)
    """Bytes of the present frame that are still to come."""

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Take a piece; yields ``(STDOUT or STDERR, bytes)``, in order, never empty."""
        view = memoryview(data)
        while view:
            if self._left:
                yield self._output, bytes(view[: self._left])
                view, self._left = view[self._left :], max(0, self._left - len(view))
            else:
                view = self._read_header(view)

    def _read_header(self, view: memoryview) -> memoryview:
        missing = _HEADER.size - len(self._header)
        self._header += view[:missing]
        if len(self._header) == _HEADER.size:
            self._output, self._left = _HEADER.unpack(self._header)
            self._header.clear()
        return view[missing:]


@define
class LogReader:
    """Takes a log of the driver ``local`` in pieces of any size, and gives what each output got, to the byte.

    Each frame is a line, or a piece of a longer one. Behind the last piece of these, daemons up to version 20.10 lose
    the line's end: it belongs behind each frame that lacks it and is no whole piece.
    """

    _rest: bytearray = field(factory=bytearray, init=False)
    """The frame that is not whole yet."""

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Take a piece; yields ``(STDOUT or STDERR, bytes)``, in order.

        Raises:
            EngineMalformed: A frame is larger than any can be.
        """
        self._rest += data
        start = 0
        while len(self._rest) - start >= _HEADER.size:
            output, size = _HEADER.unpack_from(self._rest, start)
            if size > LARGEST_FRAME:
                raise EngineMalformed("the log of a container", f"a frame of {size} bytes", f"at most {LARGEST_FRAME}")
            end = start + _HEADER.size + size
            if len(self._rest) < end:
                break
            frame = bytes(self._rest[start + _HEADER.size : end])
            yield output, frame if frame.endswith(b"\n") or size == PIECE else frame + b"\n"
            start = end
        del self._rest[:start]
