"""Parquet, read by a process of its own: what is damaged ends that process, and not ours.

The format describes in a few bytes what may unfold to gigabytes, or to rows without end, and its reader is C++. So it
has so much memory and so much time for each batch of rows, and its answer is one line of JSON, followed by the submits
and the durations as they are in memory. It needs no more of the system than an alarm and the size of the process, which
Linux and macOS have alike.
"""

import json
import os
import resource
import signal
import subprocess
import sys
import threading
from array import array
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING

from attrs import frozen

from taskscaler._errors import TraceUnreadable
from taskscaler.simulation._cells import find_columns
from taskscaler.simulation._jobs import Jobs
from taskscaler.simulation._tables import Gathered, unused

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

LONGEST_CELL = 1000
"""Bytes of a text."""

BATCH = 50_000
"""Rows that are read at once."""

LONGEST_ANSWER = 1 << 20
"""Bytes of the line of JSON."""

LONGEST_WHY = 200
"""Characters of what pyarrow says."""

MAGIC = b"PAR1"
SHORTEST = 12
"""Bytes of a file: the magic at both ends, and the size of the footer."""

TOO_LARGE = 77
"""The exit status of the process if it needed more memory than it may."""

LOOKS = 0.02
"""Seconds from one look at its memory to the next: what it fills meanwhile, it may have more."""

KIB = 1024 if sys.platform == "darwin" else 1
"""How many of the units of `ru_maxrss` are one KiB."""


@frozen(kw_only=True)
class Limits:
    """What reading a file may take."""

    memory: int = 2 << 20
    """KiB."""

    patience: float = 120.0
    """Seconds for each batch of rows."""


def read_parquet(path: Path, given: Mapping[str, str], limits: Limits = Limits()) -> tuple[Jobs, list[str]]:
    """Read Parquet; returns and raises as `read_csv`, with the row."""
    _check_ends(path)
    asked = json.dumps({"path": str(path), "given": dict(given), "memory": limits.memory, "patience": limits.patience})
    with TemporaryFile() as answer:
        ran = subprocess.run(
            [sys.executable, "-P", "-m", "taskscaler.simulation._parquet"],
            input=asked.encode(),
            stdout=answer,
            stderr=subprocess.DEVNULL,
            check=False,
        )
        if ran.returncode:  # a batch that is half read is no trace
            raise TraceUnreadable(f"{path} {_WHY_NOT.get(ran.returncode, _CRASHED)}")
        answer.seek(0)
        head = json.loads(answer.readline(LONGEST_ANSWER))
        if "error" in head:
            raise TraceUnreadable(head["error"])
        submits, durations = array("d"), array("d")
        for column in (submits, durations):
            column.fromfile(answer, head["jobs"])
    return Jobs.in_columns(submits, durations), head["notes"]


_CRASHED = "is damaged: its reader crashed; copy it again, or export it as CSV"

_WHY_NOT: Mapping[int, str] = {
    -signal.SIGALRM: "takes too long to read: it is damaged, or made to; copy it again, or export it as CSV",
    TOO_LARGE: "takes too much memory to read: it is damaged, or made to; copy it again, or export it as CSV",
}
"""By exit status."""


def _check_ends(path: Path) -> None:
    """See whether it is whole: that is cheap, and finds what was cut off."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 8))
        footer, magic = int.from_bytes(file.read(4), "little"), file.read(4)
    if size < SHORTEST or magic != MAGIC or footer > size - SHORTEST:
        raise TraceUnreadable(f"{path} is damaged: its end is missing; copy it again")


# --- in the process of its own -------------------------------------------------------------------------------


def main() -> None:
    """Read the file that the first line of the standard input names, and answer."""
    asked = json.loads(sys.stdin.readline())
    patience = asked["patience"]
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # which ends the process, whatever it is at
    signal.setitimer(signal.ITIMER_REAL, patience)
    threading.Thread(target=_watch, args=[asked["memory"]], daemon=True).start()  # noqa: TID251  (no loop runs here)
    try:
        gathered, notes = read_here(Path(asked["path"]), asked["given"], patience)
    except TraceUnreadable as error:
        _answer({"error": str(error)})
    else:
        _answer({"jobs": len(gathered.submits), "notes": notes})
        for column in (gathered.submits, gathered.durations):
            column.tofile(sys.stdout.buffer)
    sys.stdout.flush()


def _answer(head: Mapping[str, object]) -> None:
    sys.stdout.buffer.write(json.dumps(head).encode() + b"\n")


def _watch(most: int) -> None:
    """End the process once it has needed more than so many KiB."""
    while resource.getrusage(resource.RUSAGE_SELF).ru_maxrss <= most * KIB:
        threading.Event().wait(LOOKS)
    os._exit(TOO_LARGE)


def read_here(path: Path, given: Mapping[str, str], patience: float = 0.0) -> tuple[Gathered, list[str]]:
    """Read a file in this process.

    Args:
        path: Of the file.
        given: As `read_trace` has it.
        patience: Seconds for each batch, after which an alarm is raised; 0: none is.

    Raises:
        TraceUnreadable: With the row that is wrong.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise TraceUnreadable(
            f"{path} needs pyarrow; pip install 'taskscaler[parquet]', or export it as CSV"
        ) from error
    gathered, number = Gathered(), 0
    try:
        with pq.ParquetFile(path) as file:
            schema = file.schema_arrow
        names = [str(name) for name in schema.names]
        columns = find_columns(names, given)
        wanted = [each.name for each in (columns.submit, columns.duration, columns.start, columns.end) if each]
        for name in wanted:
            _check_kind(name, schema.field(name).type)
        texts = [name for name in wanted if pa.types.is_string(schema.field(name).type)]
        with pq.ParquetFile(path, read_dictionary=texts) as file:  # else a few bytes may stand for gigabytes
            for row in _rows(file, wanted, names, patience):
                number += 1
                if number == 1:
                    columns.check_first(row)
                gathered.add(columns.job(row))
        columns.check_dates(gathered.submits)
    except TraceUnreadable as error:
        raise TraceUnreadable(f"{path}: {error}") from error
    except (pa.ArrowException, OSError, OverflowError, MemoryError) as error:
        why = (str(error).splitlines() or [type(error).__name__])[0][:LONGEST_WHY]
        raise TraceUnreadable(f"{path} is damaged: {why}; copy it again") from error
    except ValueError as error:
        raise TraceUnreadable(f"{path}, row {number}: {error}; correct it, or leave it out") from error
    return gathered, [*gathered.notes(), *unused(columns)]


def _check_kind(name: str, kind: "pa.DataType") -> None:
    """See that a column has one value in each row: a list may have billions."""
    from pyarrow import types

    if types.is_nested(kind):
        raise TraceUnreadable(f"column {name!r} has a {str(kind)[:40]} in each row; name one with a time")


def _rows(
    file: "pq.ParquetFile", wanted: Sequence[str], names: Sequence[str], patience: float
) -> Iterator[list[object]]:
    """Rows with the cells of those columns, in the places that they have among all."""
    places = [names.index(name) for name in wanted]
    for batch in file.iter_batches(batch_size=BATCH, columns=[*wanted]):
        signal.setitimer(signal.ITIMER_REAL, patience)
        found = [_cells_of(batch.column(batch.schema.get_field_index(name))) for name in wanted]
        for cells in zip(*found, strict=True):
            row: list[object] = [None] * len(names)
            for place, cell in zip(places, cells, strict=True):
                row[place] = cell
            yield row


def _cells_of(column: "pa.Array") -> list[object]:
    """The cells of a column. Raises ValueError if a text is too long, before each of its rows has a copy of it."""
    import pyarrow as pa

    texts = getattr(column, "dictionary", None)
    if texts is not None and any(len(text.as_buffer() or b"") > LONGEST_CELL for text in texts if text.is_valid):
        raise ValueError(f"a cell is longer than {LONGEST_CELL} bytes")
    kind = column.type
    if pa.types.is_timestamp(kind):  # Python's are no finer than microseconds, and it does not know all zones
        unit = "us" if kind.unit == "ns" else kind.unit
        column = column.cast(pa.timestamp(unit, "UTC" if kind.tz else None), safe=False)
    elif pa.types.is_duration(kind) and kind.unit == "ns":
        column = column.cast(pa.duration("us"), safe=False)
    try:
        return list(column.to_pylist())
    except OverflowError:
        return [_cell(scalar) for scalar in column]


def _cell(scalar: "pa.Scalar") -> object:
    try:
        return scalar.as_py()
    except OverflowError:
        return f"{scalar.type} {scalar.value}"  # in words, as no time of Python's is so far away


if __name__ == "__main__":
    main()
