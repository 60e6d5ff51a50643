"""Traces of jobs: tables whose columns are recognised, GitLab's own list, results; and what is wrong in them."""

import gzip
import json
import os
import re
import tracemalloc
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskscaler.batch._events import header
from taskscaler.simulation import Jobs, TraceUnreadable, parse_columns, read_trace

AT = 1_700_000_000.0
ISO = "2023-11-14T22:13:20Z"


def columns_of(jobs: Jobs) -> list[tuple[float, float]]:
    """Submits, from the first on, and durations."""
    return [(round(s - AT, 3), d) for s, d in zip(jobs.submits, jobs.durations, strict=True)]


def read(path: Path, text: str, columns: str = "") -> list[tuple[float, float]]:
    """Write a file and read it."""
    path.write_text(text)
    return columns_of(read_trace(path, parse_columns(columns) if columns else None).jobs)


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        (f"submit_time,duration_s\n{ISO},30\n2023-11-14T22:13:25+00:00,7.5\n", ""),
        (f"SubmitTime;Duration\n{ISO};30s\n2023-11-14 22:13:25;7.5s\n", ""),
        ("created_at\tname\truntime_ms\n1700000000\ta\t30000\n1700000005.0\tb\t7500\n", ""),
        ("\ufeffSubmit,Start,End\n1700000000000,1700000002,1700000032\n1700000005000,1700000006,1700000013.5\n", ""),
        ("JobID,Submit,Elapsed\n1,2023-11-14T22:13:20,00:00:30\n2,2023-11-14T22:13:25,0-00:00:07.5\n", ""),
        ("when,took\n1700000000,30\n1700000005,7.5\n", "submit=when,duration=took"),
        ("time,submit,duration\n0,1700000000,30\n0,1700000005,7.5\n", ""),
        ("submit,duration,run\n1700000000,0,30\n1700000005,0,7.5\n", "duration=run"),
        ("submit_time_ms,duration_ms\n1700000000000,30000\n1700000005000,7500\n", ""),
        ('submit,duration\r\n"1700000005",7.5\r\n\r\n1700000000,"30"\r\n', ""),
    ],
)
def test_tables(tmp_path: Path, text: str, columns: str) -> None:
    """Columns are recognised by usual names or named; times may be written in many ways; jobs come in order."""
    assert read(tmp_path / "trace.csv", text, columns) == [(0, 30), (5, 7.5)]


@pytest.mark.parametrize(
    "text",
    [
        "submit_time_ms,duration\n0,60\n3600000,60\n",
        "submit_min,start_ms,end_ms\n0,0,60000\n60,0,60000\n",
        "submit_h,Duration (min)\n0,1\n1,1\n",
        "submit_us,duration_ns\n0,6e10\n3600000000,60000000000\n",
    ],
)
def test_units_in_names(tmp_path: Path, text: str) -> None:
    """They hold for times, too, which may count from nought."""
    (tmp_path / "trace.csv").write_text(text)
    jobs = read_trace(tmp_path / "trace.csv").jobs
    assert (jobs.submits.tolist(), jobs.durations.tolist()) == ([0, 3600], [60, 60])


def test_seconds_that_look_like_a_date(tmp_path: Path) -> None:
    """They are seconds if the first are, or the column's name says so."""
    for text in ("submit,duration\n20240000,1\n20240131,1\n", "submit_s,duration\n20240101,1\n20240131,1\n"):
        (tmp_path / "trace.csv").write_text(text)
        assert read_trace(tmp_path / "trace.csv").jobs.submits.tolist()[1] == 20240131


def test_compressed_and_unfinished(tmp_path: Path) -> None:
    """What is compressed is read as it is; jobs without a duration are left out, and that is said; so are columns."""
    path = tmp_path / "trace.csv.gz"
    path.write_bytes(gzip.compress(f"submit,duration,user,queue\n{ISO},30,a,b\n{ISO},,a,b\n{ISO},null,a,b\n".encode()))
    trace = read_trace(path)
    assert columns_of(trace.jobs) == [(0, 30)]
    assert columns_of(read_trace(path.rename(tmp_path / "trace.csv")).jobs) == [(0, 30)]
    assert trace.notes == (
        "2 rows without a duration left out: those jobs never ran, or run still",
        "columns that were not used: user and queue",
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("when,took\n1,2\n", "no column says when a job was submitted: the columns are 'when' and 'took'; name them"),
        ("when,took\n1,2\n", "name them, such as --columns submit=NAME,duration=NAME"),
        ("submit,took\n1,2\n", "no column says how long a job ran: the columns are 'submit' and 'took'"),
        ("", "no column says when a job was submitted: the columns are none"),
        ("submit,duration\n", "has no job that has run"),
        ("submit,duration\n1,\n", "has no job that has run (1 row without a duration left out"),
        ("2024-01-01,5\n2024-01-02,5\n", "its first line has '2024-01-01' and '5', expected the names of columns; put"),
        ("submit,duration\n1,2\nsoon,2\n", "line 3: submit is 'soon', expected a time such as"),
        ("submit,duration\n1,2\n\n1,-2\n", "line 4: duration is -2 s, expected 0 s to a year"),
        ("submit,duration\n1,long\n", "line 2: duration is 'long', expected a number, or a duration such as"),
        ("submit,duration\n1,inf\n", "line 2: duration is 'inf', expected a number"),
        ("submit,duration\n1,1e300\n", "line 2: duration is 1e+300 s, expected"),
        ("submit,duration\n1e300,1\n", "line 2: submit is '1e300', expected a time between 1843 and 2096"),
        ("submit,duration\n,1\n", "line 2: submit is empty"),
        ("submit,duration\n1\n", "line 2: duration is missing: it has 1 cell"),
        ("submit,start,end\n1,5,3\n", "line 2: the time from its start to its end is -2 s"),
        ("submit,submit,duration\n1,100,7\n", "column 'submit' is there 2 times; rename one"),
        ("submit,duration\n0,1\n1700000000,1\n", "covers 19675d22h, expected at most five years"),
        ("submit,duration\n20240131,1\n", "submit is '20240131', which may be 2024-01-31 or a number of seconds"),
        ("submit,duration\n202401310930,1\n", "as 2024-01-31T09:30:00Z, or name a column of seconds submit_s"),
        ("submit,start,end\n1,20240131,20240201\n", "line 2: start is '20240131', which may be 2024-01-31"),
        ('submit,duration\n"1,2\n', "line 2: unexpected end of data"),
        ("submit,duration\n1,\x002\n", "line 2 is not text, as there are zero bytes in it; export it as CSV"),
        ("submit,duration\n1," + "2" * 70_000, "line 2 is longer than 64 KiB"),
        (f"submit,duration\n1,{'x' * 500}\n", "…', expected a number"),
    ],
)  # fmt: skip
def test_broken_tables(tmp_path: Path, text: str, says: str) -> None:
    """Each is one error, with the line."""
    with pytest.raises(TraceUnreadable, match=re.escape(says)) as caught:
        read(tmp_path / "trace.csv", text)
    assert len(str(caught.value)) < 600
    assert str(tmp_path / "trace.csv") in str(caught.value)


def test_wrong_columns(tmp_path: Path) -> None:
    """A column that was named and is not there is an error that suggests one."""
    with pytest.raises(TraceUnreadable, match="there is no column 'quened_at' for submit; did you mean `queued_at`"):
        read(tmp_path / "trace.csv", "queued_at,took\n1,2\n", "submit=quened_at,duration=took")
    for wrong in ("submit", "submits=a", "submit=", ""):
        with pytest.raises(ValueError, match="expected submit=NAME,duration=NAME, or start=NAME,end=NAME"):
            parse_columns(wrong)
    with pytest.raises(TraceUnreadable, match="is not a table, so it has no columns to name"):
        read(tmp_path / "jobs.json", json.dumps([gitlab_job()]), "submit=a,duration=b")


@given(st.binary(max_size=300))
def test_any_bytes(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    """Whatever stands in a file is a trace or one error."""
    path = tmp_path_factory.getbasetemp() / "any.csv"
    for begin in (b"", b"submit,duration\n", b"[", b"submit,duration\n1,2\n"):
        path.write_bytes(begin + content)
        with suppress(TraceUnreadable):
            assert len(read_trace(path).jobs)


def gitlab_job(**changes: object) -> dict[str, object]:
    """A job as GitLab's API has it, with some of what it says of each."""
    return {
        "id": 7,
        "status": "success",
        "created_at": "2023-11-14T22:00:00.000Z",
        "started_at": "2023-11-14T22:13:30.000Z",
        "finished_at": "2023-11-14T22:14:00.000Z",
        "duration": 30.0,
        "queued_duration": 10.0,
        **changes,
    }


PAGES: dict[str, Callable[[Sequence[object]], str]] = {
    "one array": json.dumps,
    "lines": lambda jobs: "\n".join(map(json.dumps, jobs)),
    "several arrays, one of them empty": lambda jobs: f"{json.dumps(jobs[:1])}[ ]\n {json.dumps(jobs[1:])}",
}


@pytest.mark.parametrize("write", PAGES.values(), ids=PAGES)
def test_gitlab(tmp_path: Path, write: Callable[[Sequence[object]], str]) -> None:
    """A job is submitted when it begins to wait for a runner; pages may stand one after the other."""
    jobs = [
        gitlab_job(queued_duration=5.0, duration=7.5),
        gitlab_job(),
        gitlab_job(started_at=None, duration=None, status="canceled"),
        gitlab_job(queued_duration=None, created_at="2023-11-14T23:13:28.000+01:00"),
    ]
    path = tmp_path / "jobs.json"
    path.write_text(write(jobs))
    trace = read_trace(path)
    assert columns_of(trace.jobs) == [(0, 30), (5, 7.5), (8, 30)]
    assert trace.notes == ("1 row without a duration left out: those jobs never ran, or run still",)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[1]", "job 1: it is not an object; expected JSON as GitLab's API gives it at /jobs"),
        ('{"message": "401 Unauthorized"}', "it has neither `started_at` nor `created_at`"),
        (json.dumps([gitlab_job(), gitlab_job(duration="x")]), "job 2: a duration is not a number"),
        (json.dumps([gitlab_job(duration=-1)]), "a duration is not between 0 s and a year"),
        (json.dumps([gitlab_job(started_at="now")]), "`started_at` is 'now', expected a time"),
        (f"[{json.dumps(gitlab_job())},\n{{]", "line 2: Expecting property name"),
        (f"[{json.dumps(gitlab_job())}\n{json.dumps(gitlab_job())}]", "line 2: Expecting ',' or ']'"),
        (f"[{json.dumps(gitlab_job())}", "line 1: Expecting ']'"),
        (f"[{json.dumps(gitlab_job())},]", "line 1: Expecting value"),
        ("[" * 200_000, "nested too deeply"),
    ],
)  # fmt: skip
def test_broken_gitlab_lists(tmp_path: Path, text: str, says: str) -> None:
    """Each is one error."""
    path = tmp_path / "jobs.json"
    path.write_text(text)
    with pytest.raises(TraceUnreadable, match=re.escape(says)):
        read_trace(path)


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("submit,duration\n45989.395833,60\n45990,60\n", "2025-11-28T09:29:59Z"),
        ("begin;submit;end\n45990.5;45990.25;45990.75\n45990.5;45990.25;45990.75\n", "2025-11-29T06:00:00Z"),
    ],
)
def test_dates_of_a_spreadsheet(tmp_path: Path, text: str, first: str) -> None:
    """Days with their fractions look like seconds: the whole trace would be over within moments."""
    with pytest.raises(
        TraceUnreadable, match=f"column submit has numbers from .* dates of a spreadsheet, .* {first}; "
    ):
        read(tmp_path / "trace.csv", text)
    whole = "submit,duration\n45989,60\n45990,60\n"  # seconds since midnight, as it seems
    named = text.replace("submit", "submit_s")
    earlier = "submit,duration\n36525.5,60\n45990.5,60\n"
    for each in (whole, named, earlier):
        assert len(read(tmp_path / "trace.csv", each)) == 2


def test_no_table_unpacks_to_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However small it is, and however few lines it has."""
    monkeypatch.setattr("taskscaler.simulation._tables.MOST_BYTES", 1 << 20)
    row = "1,2," + "x" * 60_000
    path = tmp_path / "trace.csv.gz"
    path.write_bytes(gzip.compress(f"submit,duration,more\n{chr(10).join([row] * 17)}\n".encode()))
    assert len(read_trace(path).jobs) == 17
    path.write_bytes(gzip.compress(f"submit,duration,more\n{chr(10).join([row] * 18)}\n".encode()))
    with pytest.raises(TraceUnreadable, match="GiB, unpacked; leave out the columns"):
        read_trace(path)


def test_no_trace_is_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be so many jobs, and no more, whether or not they have run."""
    monkeypatch.setattr("taskscaler.simulation._tables.MOST_JOBS", 3)
    assert len(read(tmp_path / "trace.csv", "submit,duration\n1,2\n1,2\n1,2\n")) == 3
    with pytest.raises(TraceUnreadable, match="line 5: there are more than 3"):
        read(tmp_path / "trace.csv", "submit,duration\n1,2\n1,\n1,2\n1,2\n")
    with pytest.raises(TraceUnreadable, match="job 4: there are more than 3 jobs"):
        read(tmp_path / "jobs.json", json.dumps([gitlab_job()] * 4))


@pytest.mark.parametrize("begin", ["[", '{"a": [', '[{"started_at": "', f"[{json.dumps(gitlab_job())}, "])
def test_no_object_is_unfolded_that_is_too_large(tmp_path: Path, begin: str) -> None:
    """A few bytes each become a list: what one job may take is bounded, and so is the whole."""
    path = tmp_path / "jobs.json"
    path.write_text(begin + ("x" * 20_000_000 if begin.endswith('"') else "[" + "[],\n" * 5_000_000))
    tracemalloc.start()
    try:
        with pytest.raises(TraceUnreadable, match="line 1: a job of more than 1 MiB, or a text without its end"):
            read_trace(path)
        assert tracemalloc.get_traced_memory()[1] < 80 << 20
    finally:
        tracemalloc.stop()


@given(st.lists(st.sampled_from(["[", "]", ",", "{", "}", '"a"', ":", " ", "\n", "1", "tr", "ue", '"', "\\", "\\u12"])))
def test_a_list_that_is_read_piece_by_piece(tmp_path_factory: pytest.TempPathFactory, pieces: list[str]) -> None:
    """It is one list to whom reads it whole, or the same mistake."""
    path = tmp_path_factory.getbasetemp() / "pieces.json"
    path.write_text("[" + json.dumps(gitlab_job()) + "".join(pieces))
    said = []
    for block in (1, 7, 1 << 18):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("taskscaler.simulation._gitlab_jobs.BLOCK", block)
            try:
                said.append(str(len(read_trace(path).jobs)))
            except TraceUnreadable as error:
                said.append(str(error))
    assert len(set(said)) == 1


def test_pipes_and_renamed_logs(tmp_path: Path) -> None:
    """A pipe can be read only once, and a log under another name is not that of the directory where it lies."""
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(TraceUnreadable, match="is a pipe or a device; name a file"):
        read_trace(tmp_path / "pipe.csv")
    (tmp_path / "saved.jsonl").write_bytes(header())
    with pytest.raises(TraceUnreadable, match="under another name"):
        read_trace(tmp_path / "saved.jsonl")


def test_what_is_no_trace(tmp_path: Path) -> None:
    """A fleet's journal and a directory without results say what to name instead."""
    path = tmp_path / "trace.csv"
    path.write_bytes("submit,duration,by\n1,2,José\n".encode("latin-1"))
    with pytest.raises(TraceUnreadable, match=r"trace\.csv: line 2 is not UTF-8; save the file in that encoding$"):
        read_trace(path)
    path.write_bytes(b"PK\x03\x04 and so on")
    with pytest.raises(TraceUnreadable, match="is a ZIP archive or a workbook; unpack it, or export it as CSV"):
        read_trace(path)
    path = tmp_path / "state.sqlite"
    path.write_bytes(b"SQLite format 3\0" + b"\0" * 100)
    with pytest.raises(TraceUnreadable, match=r"is the journal of a fleet, .*; name the results of its batches"):
        read_trace(path)
    with pytest.raises(TraceUnreadable, match="holds no results of a batch; name a directory"):
        read_trace(tmp_path)
    damaged = tmp_path / "trace.csv.gz"
    damaged.write_bytes(gzip.compress(b"submit,duration\n1,2\n" * 100)[:-9])
    with pytest.raises(TraceUnreadable, match="is damaged"):
        read_trace(damaged)
    for place in range(10, 60, 7):
        content = bytearray(gzip.compress(b"".join(b"%d,%d\n" % (each, each * each) for each in range(2000))))
        content[place] ^= 0xFF
        damaged.write_bytes(content)
        with pytest.raises(TraceUnreadable):
            read_trace(damaged)
