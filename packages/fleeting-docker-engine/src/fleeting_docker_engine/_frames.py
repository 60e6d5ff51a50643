"""The stream of an attached container without a terminal: frames of both of its outputs. Pure.

Source: the Engine API's reference, "Stream format" of ``POST /containers/{id}/attach``.
"""

from collections.abc import Iterator
from struct import Struct

from attrs import define, field

STDOUT = 1
STDERR = 2

_HEADER = Struct(">BxxxL")
"""Which output, and how many bytes follow."""


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
