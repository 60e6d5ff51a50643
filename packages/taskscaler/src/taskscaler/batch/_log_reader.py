"""Reads a job's log from its end on, also while it grows: in bounded memory, whatever its size.

A log that has reached its limit is rewritten while it is read: the middle goes, and what follows it moves to the front
(see `_log`). A reader notices, because the bytes before its place are others then. It finds where the text goes on by
counting the bytes of the whole log, those that were left out included, whose number is in the mark in the middle.
"""

import os
import re
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import Self

from attrs import define, frozen

from taskscaler.batch._log import GAP_PATTERN, GAP_SIZE

_BLOCK = 1 << 16
_CHECKED = 256
"""Bytes before the reader's place that show whether the log was rewritten."""


@frozen
class Gap:
    """Where bytes are left out of a log."""

    at: int
    """Bytes before it."""

    omitted: int

    @classmethod
    def find(cls, file: FileIO, size: int) -> Self | None:
        """Find it, if there is one: with a limit of twice what is before it, the log is nearly full.

        What looks like it elsewhere was printed by the job.
        """
        at, last = max(0, size // 2 - 1), cls.last(size)
        while at <= last:
            block = os.pread(file.fileno(), _BLOCK + GAP_SIZE, at)
            found = re.search(GAP_PATTERN, block)
            if found and at + found.start() <= last:
                return cls(at + found.start(), int(found[1]))
            at += _BLOCK
        return None

    @staticmethod
    def last(size: int) -> int:
        """Where it begins at the latest, in a log of a size."""
        return size * 2 // 3

    @property
    def end(self) -> int:
        """Where in the file the text goes on."""
        return self.at + GAP_SIZE

    def whole(self, place: int) -> int:
        """Count the bytes of the whole log before a place in the file."""
        return place if place < self.end else place - GAP_SIZE + self.omitted

    def place(self, whole: int) -> int:
        """Find the place in the file before which there are so many bytes of the whole log, or where it goes on."""
        return max(self.end, whole - self.omitted + GAP_SIZE) if whole > self.at else whole


@define
class LogReader:
    """A place in a log, to read on from."""

    _file: FileIO
    _place: int = 0
    _gap: Gap | None = None
    _before: bytes = b""
    """What stands before the place, to see whether the log was rewritten."""

    _missed: int = 0
    """Bytes that were left out before they were read, and not reported yet."""

    @classmethod
    def at_last_lines(cls, path: Path, lines: int) -> Self:
        """Open a log so many lines before its end.

        Raises:
            OSError: It cannot be read, or is not there yet.
        """
        reader = cls(path.open("rb", buffering=0))
        size = os.fstat(reader._file.fileno()).st_size
        reader._gap = Gap.find(reader._file, size)
        reader._move(reader._start_of(lines, size))
        return reader

    @classmethod
    def after(cls, path: Path, whole: int) -> Self:
        """Open a log where an earlier reader was, also if it has not grown as far again.

        Args:
            path: Of the log.
            whole: What `whole` was then.

        Raises:
            OSError: It cannot be read, or is not there yet.
        """
        reader = cls(path.open("rb", buffering=0))
        gap = reader._gap = Gap.find(reader._file, os.fstat(reader._file.fileno()).st_size)
        reader._move(whole if gap is None else gap.place(whole))
        reader._missed = reader.whole - whole
        return reader

    @property
    def whole(self) -> int:
        """Bytes of the whole log before the place, those that are left out included."""
        return self._place if self._gap is None else self._gap.whole(self._place)

    def read(self) -> Iterator[bytes]:
        """Read what there is by now, in pieces; a line says what was left out meanwhile."""
        self._catch_up()
        if missed := self._missed:
            self._missed = 0
            yield f"\ntaskscaler: {missed} bytes were left out of the log before they could be shown\n".encode()
        while piece := os.pread(self._file.fileno(), _BLOCK, self._place):
            self._place += len(piece)
            self._before = (self._before + piece)[-_CHECKED:]
            yield piece

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def _catch_up(self) -> None:
        """Go to where the text goes on, if the log was rewritten."""
        size = os.fstat(self._file.fileno()).st_size
        if self._before == os.pread(self._file.fileno(), len(self._before), self._place - len(self._before)):
            if self._place <= Gap.last(size):  # then it may be ahead, and is read as the text that it is
                self._gap = Gap.find(self._file, size)
            return
        gap = Gap.find(self._file, size)
        if gap is None:  # it is being rewritten right now
            return
        whole = self.whole
        self._gap = gap
        self._move(gap.place(whole))
        self._missed += self.whole - whole

    def _move(self, place: int) -> None:
        self._place = place
        self._before = os.pread(self._file.fileno(), min(_CHECKED, place), max(0, place - _CHECKED))

    def _start_of(self, lines: int, size: int) -> int:
        """Find where the last lines begin; a line's end at the very end begins none."""
        end = size
        while lines > 0 and end > 0:
            begin = max(0, end - _BLOCK)
            block = os.pread(self._file.fileno(), end - begin, begin)
            at = len(block) - (end == size and block.endswith(b"\n"))
            while lines > 0 and (at := block.rfind(b"\n", 0, at)) >= 0:
                lines -= 1
                if not lines:
                    return begin + at + 1
            end = begin
        return end
