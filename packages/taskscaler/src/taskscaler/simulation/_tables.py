"""Traces that are CSV: bounded, and read row by row. What all kinds of traces are gathered in."""

import csv
import gzip
import zlib
from array import array
from collections.abc import Mapping
from io import BufferedReader
from itertools import chain
from pathlib import Path
from typing import Self

from attrs import define, field

from taskscaler._errors import TraceUnreadable
from taskscaler._wording import counted, enumerated
from taskscaler.simulation._cells import FEW, Columns, find_columns
from taskscaler.simulation._jobs import Jobs
from taskscaler.simulation._synthetic import MOST_JOBS

GZIP = b"\x1f\x8b"
"""What a file begins with that it has compressed."""

LONGEST_LINE = 64 * 1024
"""Bytes."""

MOST_BYTES = 4 << 30
"""Of a whole table, unpacked: two hundred for each of the most jobs. Compressed, a small file may hold any number."""


@define
class Gathered:
    """Jobs in columns, as they are read."""

    submits: "array[float]" = field(factory=lambda: array("d"))
    durations: "array[float]" = field(factory=lambda: array("d"))
    without: int = 0
    """Rows of jobs that never ran, or run still."""

    @property
    def count(self) -> int:
        """Rows that were taken so far."""
        return len(self.submits) + self.without

    def add(self, job: tuple[float, float] | None) -> None:
        """Take one; raises ValueError if there are too many."""
        if self.count >= MOST_JOBS:
            raise ValueError(f"there are more than {MOST_JOBS} jobs")
        if job is None:
            self.without += 1
            return
        self.submits.append(job[0])
        self.durations.append(job[1])

    def jobs(self) -> Jobs:
        """In the order in which they come."""
        return Jobs.in_columns(self.submits, self.durations)

    def notes(self) -> list[str]:
        """What was left out."""
        without = f"{counted(self.without, 'row')} without a duration left out: those jobs never ran, or run still"
        return [without] if self.without else []


def read_csv(path: Path, given: Mapping[str, str]) -> tuple[Jobs, list[str]]:
    """Read CSV, also compressed with gzip; separated by commas, semicolons or tabs, with a header.

    Returns:
        The jobs, and what was left out, in sentences.

    Raises:
        TraceUnreadable: With the line that is wrong.
        OSError: It cannot be read.
    """
    gathered = Gathered()
    with gzip.open(path) if is_compressed(path) else path.open("rb") as file:
        lines = _Lines(file)
        try:
            header = next(lines, "")
            rows = csv.reader(chain([header], lines), delimiter=_delimiter(header), strict=True)
            names = [name.strip() for name in next(rows, [])]
            columns = find_columns(names, given)
            for cells in rows:
                if cells:
                    if not gathered.count:
                        columns.check_first(cells)
                    gathered.add(columns.job(cells))
            columns.check_dates(gathered.submits)
            return gathered.jobs(), [*gathered.notes(), *unused(columns)]
        except (ValueError, csv.Error) as error:
            raise TraceUnreadable(f"{path}, line {lines.number}: {error}; correct it, or leave it out") from error
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise TraceUnreadable(f"{path} is damaged: {error}; copy it again") from error
        except TraceUnreadable as error:
            raise TraceUnreadable(f"{path}: {error}") from error


@define
class _Lines:
    """The lines of a file, none of which is too long, and which are text."""

    _file: BufferedReader | gzip.GzipFile
    number: int = field(default=0, init=False)
    """Of the last one that was read, from 1."""

    _read: int = field(default=0, init=False)
    """Bytes of all of them."""

    def __iter__(self) -> Self:
        """Read until the end."""
        return self

    def __next__(self) -> str:
        """Read one. Raises TraceUnreadable without the path, or ValueError if there are too many."""
        line = self._file.readline(LONGEST_LINE + 1)
        if not line:
            raise StopIteration
        self.number += 1
        self._read += len(line)
        if self.number > MOST_JOBS + 1:
            raise ValueError(f"there are more than {MOST_JOBS} lines")
        if self._read > MOST_BYTES:
            raise TraceUnreadable(
                f"it has more than {MOST_BYTES >> 30} GiB, unpacked; leave out the columns that say neither when jobs"
                " were submitted nor how long they ran"
            )
        if len(line) > LONGEST_LINE:
            raise TraceUnreadable(
                f"line {self.number} is longer than {LONGEST_LINE // 1024} KiB, as none of a table of jobs is;"
                " name a table with a line for each job"
            )
        if b"\0" in line:
            raise TraceUnreadable(
                f"line {self.number} is not text, as there are zero bytes in it; export it as CSV, in UTF-8"
            )
        try:
            return line.decode("utf-8-sig" if self.number == 1 else "utf-8")
        except UnicodeDecodeError:
            raise TraceUnreadable(f"line {self.number} is not UTF-8; save the file in that encoding") from None


def is_compressed(path: Path) -> bool:
    """Whether gzip has made a file, or it should have. Raises OSError."""
    with path.open("rb") as file:
        return path.suffix == ".gz" or file.read(2) == GZIP


def _delimiter(header: str) -> str:
    return max(",;\t", key=lambda each: (header.count(each), each == ","))


def unused(columns: Columns) -> list[str]:
    """Name the columns that were not used."""
    names = columns.unused
    return [f"columns that were not used: {enumerated(names, most=FEW)}"] if names else []
