"""Takes our own lines out of a job's output: pure."""

import re
from collections.abc import Mapping

from attrs import define, field

from taskscaler_gitlab.runner._stages import Ended

_LINE = re.compile(rb"(begin|end|open|close) ([0-9]{1,6})(?: ([0-9]{1,3}) (yes)?| at ([0-9]{1,12}(?:\.[0-9]{1,9})?))?")
_LONGEST = 64
"""Bytes of a line of ours."""


@define
class Marks:
    """Passes a job's output on without the lines of ours in it, and remembers what they say.

    A job that finds out what they look like can write them too. It can only belie itself by that: what is made of them
    is how its own scripts have ended, and for how long a cancellation waits for what comes after them.
    """

    _nonce: str
    _stages: int
    """How many stages the job has; marks of others are heeded by nobody."""

    begun: int | None = field(default=None, init=False)
    """The stage that has begun last."""

    all_begun: set[int] = field(factory=set, init=False)
    """All that have."""

    ended: dict[int, Ended] = field(factory=dict, init=False)
    """How stages have ended, by their numbers; of those that were tried again, the last time."""

    open: int | None = field(default=None, init=False)
    """The stage whose section is open."""

    opened: dict[int, float] = field(factory=dict, init=False)
    """When sections were opened, by the numbers of their stages, in seconds since the epoch; of the instance's clock"""

    closed: dict[int, float] = field(factory=dict, init=False)
    """When they were closed; those that were opened again are not."""

    size: int = field(default=0, init=False)
    """Bytes of output that came in."""

    is_line_open: bool = field(default=False, init=False)
    """Whether what was passed on last has no end of line."""

    _held: bytes = field(default=b"", init=False)

    def feed(self, data: bytes) -> bytes:
        """Take in output; returns what of it and of what was held back is the job's."""
        self.size += len(data)
        data, shown, done = self._held + data, bytearray(), 0
        mark = f"\x1e{self._nonce} ".encode()
        self._held = b""
        while (at := data.find(mark, done)) >= 0:
            shown += data[done:at]
            line = at + len(mark)
            end = data.find(b"\n", line, line + _LONGEST + 1)
            if end < 0 and len(data) - line <= _LONGEST:
                self._held = data[at:]
                return self._shown(shown)
            if end < 0 or (found := _LINE.fullmatch(data, line, end)) is None:
                shown += mark
                done = line
            else:
                self._take(found)
                done = end + 1
        keep = _overlap(data[max(done, len(data) - len(mark)) :], mark)
        self._held = data[len(data) - keep :]
        shown += data[done : len(data) - keep]
        return self._shown(shown)

    @property
    def took(self) -> Mapping[int, float]:
        """Seconds for which sections were open that are closed, by the numbers of their stages."""
        return {number: max(0.0, at - self.opened[number]) for number, at in self.closed.items()}

    def end(self) -> bytes:
        """What is left, so that it ends with a line: what comes next begins one."""
        rest = self._shown(bytearray(self._held))
        self._held = b""
        if self.is_line_open:
            self.is_line_open = False
            rest += b"\n"
        return rest

    def _shown(self, data: bytearray) -> bytes:
        if data:
            self.is_line_open = not data.endswith(b"\n")
        return bytes(data)

    def _take(self, found: re.Match[bytes]) -> None:
        number = int(found[2])
        if number >= self._stages:
            return
        if found[1] in (b"open", b"close"):
            self._take_section(number, found)
        elif found[1] == b"begin":
            self.begun = number
            self.all_begun.add(number)
            self.ended.pop(number, None)
        elif found[1] == b"end" and found[3] is not None:
            self.ended[number] = Ended(int(found[3]), is_stopped=found[4] is not None)

    def _take_section(self, number: int, found: re.Match[bytes]) -> None:
        at = None if found[5] is None else float(found[5])  # earlier releases do not say
        if found[1] == b"open":
            self.open = number
            self.closed.pop(number, None)
            self.opened.pop(number, None)
            if at is not None:
                self.opened[number] = at
            return
        if self.open == number and at is not None and number in self.opened:
            self.closed[number] = at
        self.open = None


def _overlap(data: bytes, mark: bytes) -> int:
    """How many bytes at the end of the data a mark may begin with."""
    for size in range(min(len(data), len(mark) - 1), 0, -1):
        if mark.startswith(data[-size:]):
            return size
    return 0
