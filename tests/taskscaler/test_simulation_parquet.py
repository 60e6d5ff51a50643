"""Traces in Parquet: what is in them, and what is damaged or made to be unfolded without end."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from taskscaler.simulation import Jobs, TraceUnreadable, read_trace
from taskscaler.simulation._parquet import Limits, read_here, read_parquet

AT = datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the trace is."""
    return tmp_path / "trace.parquet"


def write(path: Path, table: Mapping[str, Any], **options: Any) -> None:  # noqa: ANN401  (pyarrow's)
    """Write a table."""
    pq.write_table(pa.table(dict(table)), path, **options)


def columns_of(jobs: Jobs) -> list[tuple[float, float]]:
    """Submits, from the first on, and durations."""
    return [(round(s - AT.timestamp(), 3), d) for s, d in zip(jobs.submits, jobs.durations, strict=True)]


def test_times_and_durations(path: Path) -> None:
    """It has kinds of its own for both; all else is as with CSV, with rows for lines."""
    write(
        path,
        {
            "submit": [AT + timedelta(seconds=5), AT, AT],
            "took": [timedelta(seconds=7.5), timedelta(seconds=30), None],
            "user": ["a", "b", "c"],
        },
    )
    trace = read_trace(path, {"duration": "took"})
    assert columns_of(trace.jobs) == [(0, 30), (5, 7.5)]
    assert trace.notes == (
        "1 row without a duration left out: those jobs never ran, or run still",
        "columns that were not used: user",
    )
    write(path, {"submit": [AT.timestamp(), AT.timestamp() + 5], "duration_ms": [30_000, -1]})
    with pytest.raises(TraceUnreadable, match=r"trace\.parquet, row 2: duration_ms is -0\.001 s"):
        read_trace(path)


def test_times_that_python_has_not(path: Path) -> None:
    """Those of pandas are in nanoseconds, and zones may have any name; one that is too late is an error."""
    nanoseconds = pa.array([int(AT.timestamp() * 1e9) + 1], pa.timestamp("ns", "Nowhere/At_all"))
    write(path, {"submit": nanoseconds, "duration": pa.array([7_500_000_001], pa.duration("ns"))})
    assert columns_of(read_here(path, {})[0].jobs()) == [(0, 7.5)]
    east = AT.astimezone(timezone(timedelta(hours=9)))
    write(path, {"submit": [east], "duration": [1.0]})
    assert columns_of(read_here(path, {})[0].jobs()) == [(0, 1)]
    write(path, {"submit": pa.array([0, 10**15], pa.timestamp("ms")), "duration": [1.0, 1.0]})
    with pytest.raises(TraceUnreadable, match=r"submit is .*, expected a time such as"):
        read_here(path, {})


def test_what_is_made_to_be_unfolded(path: Path) -> None:
    """Of two columns of one name neither is taken; texts and lists that stand for gigabytes are not unfolded."""
    pq.write_table(pa.table([[1.0], [100.0], [7.0]], names=["submit_time", "submit_time", "duration"]), path)
    with pytest.raises(TraceUnreadable, match="column 'submit_time' is there 2 times"):
        read_here(path, {})
    write(path, {"submit": ["2" * 400_000] * 50, "duration": [1.0] * 50})
    with pytest.raises(TraceUnreadable, match="a cell is longer than 1000 bytes"):
        read_here(path, {})
    write(path, {"submit": [[0.0] * 1000], "duration": [1.0]})
    with pytest.raises(TraceUnreadable, match="column 'submit' has a list"):
        read_here(path, {})
    write(path, {"submit": [AT.isoformat(), None], "duration": ["30s", "1s"]})
    with pytest.raises(TraceUnreadable, match="row 2: submit is empty"):
        read_here(path, {})


@pytest.mark.parametrize(
    ("limits", "says"),
    [
        (Limits(patience=0.001), "takes too long to read: it is damaged"),
        (Limits(memory=1024), "takes too much memory to read: it is damaged"),
    ],
)
def test_reading_is_bounded(path: Path, limits: Limits, says: str) -> None:
    """Whatever the reader does, it ends in time, and before it fills the machine."""
    write(path, {"submit": [AT], "duration": [1.0]})
    with pytest.raises(TraceUnreadable, match=says):
        read_parquet(path, {}, limits)


def test_a_reader_that_crashes(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a process of its own, so that is one error, too."""
    write(path, {"submit": [AT], "duration": [1.0]})
    monkeypatch.setenv("PYTHONPATH", str(path.parent))
    (path.parent / "pyarrow.py").write_text("import os; os.abort()")
    with pytest.raises(TraceUnreadable, match="is damaged: its reader crashed; copy it again"):
        read_trace(path)


def test_damaged_files(path: Path) -> None:
    """Wherever some bytes are others, it is a trace or one error that says so."""
    random, said, whole = Random(0), set[str](), b""
    for compression in ("snappy", "none"):
        write(
            path,
            {"submit": [AT + timedelta(seconds=each) for each in range(50)], "duration": [f"{n}s" for n in range(50)]},
            compression=compression,
        )
        whole = path.read_bytes()
        footer = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
        for number in range(100):
            content = bytearray(whole)
            for _ in range(1 + number % 3):
                content[random.randrange(4 if number % 2 else footer, len(content) - 8)] = random.randrange(256)
            path.write_bytes(content)
            try:
                read_here(path, {})
                said.add("")
            except TraceUnreadable as error:
                said.add(str(error))
    assert "" in said
    assert all(each.startswith(str(path)) for each in said - {""})
    assert sum("is damaged" in each for each in said) > 10
    for size in (0, 4, 8, 11, len(whole) // 2, len(whole) - 1):
        path.write_bytes(b"PAR1" + whole[4:size])
        with pytest.raises(TraceUnreadable, match="is damaged: its end is missing; copy it again"):
            read_trace(path)
