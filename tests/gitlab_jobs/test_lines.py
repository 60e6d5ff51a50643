"""Marks that GitLab's page of a job understands."""

import re

from hypothesis import given
from hypothesis import strategies as st

from gitlab_jobs import Stream, Timestamps, section_end, section_start
from gitlab_jobs._lines import MAX_LINE

LINE = re.compile(rb"2026-11-23T03:00:00\.250000Z 01O([ +])(.*)\n", re.DOTALL)
NOW = 1795402800.25


def test_sections_have_times_and_options() -> None:
    """As GitLab's page folds them."""
    assert section_start("get_sources", NOW) == b"section_start:1795402800:get_sources\r\x1b[0K"
    assert section_start("a", 1, {"collapsed": "true"}) == b"section_start:1:a[collapsed=true]\r\x1b[0K"
    assert section_end("a", 2.9) == b"section_end:2:a\r\x1b[0K"


@given(st.lists(st.tuples(st.binary(max_size=9), st.booleans())))
def test_lines_are_as_they_were_without_their_times(pieces: list[tuple[bytes, bool]]) -> None:
    """Wherever pieces end and whenever they are flushed: what is continued has a plus sign."""
    timestamps = Timestamps(Stream.JOB)
    lines: list[bytes] = []
    got = b""
    for data, flushed in pieces:
        got += timestamps.feed(data, NOW) + (timestamps.flush(NOW) if flushed else b"")
    got += timestamps.flush(NOW)
    for line in got.splitlines(keepends=True) if b"\r" not in got else []:
        found = LINE.fullmatch(line)
        if found is None:
            return  # a line of the job's own has what Python takes for an end of line
        if found[1] == b"+":
            lines[-1] += found[2]
        else:
            lines.append(found[2])
    if b"\r" not in got:
        said = b"".join(data for data, _ in pieces)
        assert lines == (said.removesuffix(b"\n").split(b"\n") if said else [])


def test_a_line_without_end_is_continued() -> None:
    """It takes no more memory than a line may have."""
    timestamps = Timestamps(Stream.JOB, is_error=True)
    got = timestamps.feed(b"x" * (MAX_LINE + 1), NOW)
    assert got.startswith(b"2026-11-23T03:00:00.250000Z 01E xxx")
    assert got.endswith(b"x\n")
    assert timestamps.feed(b"y\n", NOW) == b"2026-11-23T03:00:00.250000Z 01E+y\n"
