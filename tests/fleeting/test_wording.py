"""Text from outside, written as one line."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleeting._wording import ONE_LINE
from fleeting.config import harmless
from fleeting.plugins import one_line

PIECES = st.one_of(
    st.sampled_from(
        ["\n", "\r\n", "\r", "\v", "\f", "\x1c", "\x85", "\u2028", "\t", "\x1b[2K", "\x1b]0;title\x07", "\x9b1m"]
    ),
    st.sampled_from(["\u202e", "\ud800", "é", "🦊", "error: nothing is wrong", " "]),
    st.text(max_size=5),
    st.text(st.characters(), max_size=50),
)
TEXTS = st.lists(PIECES, max_size=100).map("".join)


@given(text=TEXTS, limit=st.integers(3, 2000))
def test_it_is_one_short_line_without_controls(text: str, limit: int) -> None:
    """Whatever comes in; and what is one already is not changed again."""
    line = one_line(text, limit)
    assert len(line.encode()) <= limit
    assert len(line.splitlines()) <= 1
    assert not any(unicodedata.category(character) == "Cc" for character in line)
    assert harmless(line) == line
    assert one_line(line, limit) == line


@given(text=st.text(st.characters(categories=["L", "N", "P"]), max_size=ONE_LINE // 4))
def test_a_short_line_stays_as_it_is(text: str) -> None:
    """Nothing is taken from a text that may stand as it is."""
    assert one_line(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("section_end:1:x\r\x1b[0K\nnext", "\nnext"),
        ("section_end:1:x\r\x1b[0Ksection_start:1:y\r\x1b[0K\x1b[0KGetting source\n", "Getting source\n"),
        ("10 %\r\x1b[K20 %\r\x1b[Kdone", "done"),
        ("10 %\r20 %\r\n", "20 %\n"),
    ],
)
def test_what_was_erased_is_not_shown(text: str, shown: str) -> None:
    """As on a terminal: in the log of a job for GitLab, the marks of its sections are hidden like this."""
    assert harmless(text) == shown


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("it failed\n  because\tof this\r\n\n", "it failed because of this"),
        ("a\vb\u2028c\x85d", "a b c d"),
        ("\x1b[31merror\x1b[0m: no", "error: no"),
        ("job-1\n[ 0:01] job-2 succeeded", "job-1 [ 0:01] job-2 succeeded"),
        ("", ""),
    ],
)
def test_lines_are_joined(text: str, line: str) -> None:
    """With spaces, so that no line of a name looks like one of ours."""
    assert one_line(text) == line


@pytest.mark.parametrize(
    ("character", "count", "end"), [("x", 50_000_000, ""), ("é", 1025, ""), ("\n", 50_000_000, "x")]
)
def test_a_long_text_is_cut(character: str, count: int, end: str) -> None:
    """It says so, with an ellipsis, and takes no more than it may."""
    line = one_line(character * count + end)
    assert line.endswith("…")
    assert len(line.encode()) <= ONE_LINE
