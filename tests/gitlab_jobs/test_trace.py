"""A log on its way: patches, offsets, checksum, limit."""

import errno
import re
import zlib
from io import BytesIO
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gitlab_jobs import Trace
from gitlab_jobs._trace import MAX_PATCH


def collect(trace: Trace) -> bytes:
    """All that the coordinator gets."""
    got = b""
    while patch := trace.patch():
        assert patch.start == len(got)
        assert re.fullmatch(r"\d+-\d+", patch.content_range)
        first, last = map(int, patch.content_range.split("-"))
        assert last - first + 1 == len(patch.body) <= MAX_PATCH
        got += patch.body
        trace.accepted(patch)
    return got


@given(st.lists(st.binary(max_size=20)))
def test_what_is_sent_is_valid_and_has_the_checksum(pieces: list[bytes]) -> None:
    """However characters are cut: as if all had come at once."""
    trace = Trace()
    for piece in pieces:
        trace.write(piece)
    trace.end()
    got = collect(trace)
    assert got == b"".join(pieces).decode(errors="replace").encode()
    assert (trace.size, trace.checksum) == (len(got), f"crc32:{zlib.crc32(got):08x}")


@given(text=st.text(st.characters(codec="utf-8"), min_size=1), limit=st.integers(1, 20), cut=st.integers(1, 5))
def test_the_limit_ends_a_log_between_characters_and_says_so(text: str, limit: int, cut: int) -> None:
    """What comes later is dropped, all but notes; what is within the limit is as it was."""
    data = text.encode()
    trace = Trace(limit=limit)
    for at in range(0, len(data), cut):
        trace.write(data[at : at + cut])
    trace.end()
    trace.note("why")
    got = collect(trace)
    kept, notice, _ = got.partition(b"\n\x1b[33;1m")
    if len(data) <= limit:
        assert got == data + b"why"
    else:
        assert limit - 4 < len(kept) <= limit
        assert data.startswith(kept)
        assert notice
        assert f"limit of {limit} bytes".encode() in got
    assert got.decode().endswith("why")
    assert trace.checksum == f"crc32:{zlib.crc32(got):08x}"


def test_a_large_log_is_sent_in_pieces() -> None:
    """None larger than a mebibyte, as GitLab Runner has it; an empty one is never sent."""
    trace = Trace(limit=4 << 20)
    assert trace.patch() is None
    trace.write(b"x" * (5 << 19))
    sizes = []
    while patch := trace.patch():
        sizes.append(len(patch.body))
        trace.accepted(patch)
    assert sizes == [1 << 20, 1 << 20, 1 << 19]


@pytest.mark.parametrize(
    ("held", "sent"),
    [("0-3", 3), ("0-0", 0), ("0-10", 10), ("0-99", 10), (None, 0), ("", 0), ("bytes=0-3", 0), ("3", 0), ("0-x", 0)],
)
def test_the_coordinator_says_what_it_has(held: str | None, sent: int) -> None:
    """The number after the dash is a count, not the last offset; what makes no sense is nothing."""
    trace = Trace()
    trace.write(b"0123456789")
    patch = trace.patch()
    assert patch
    trace.accepted(patch)
    trace.refused(held)
    assert trace.sent == sent


class SmallDisk(BytesIO):
    """A file on a disk with room for so many bytes; what does not fit is written in part, then refused."""

    room = 8

    def write(self, data: Any, /) -> int:  # noqa: ANN401  (what can be written)
        """Write what there is room for."""
        left = self.room - self.tell()
        if left <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(data[:left])


@given(pieces=st.lists(st.binary(min_size=1, max_size=6)), room=st.integers(0, 12), more=st.booleans())
def test_a_full_disk_costs_the_rest_of_the_log_and_no_more(pieces: list[bytes], room: int, more: bool) -> None:  # noqa: FBT001
    """What was kept is sent as it was, and a line says why there is no more, whether or not there is room again."""
    spool = SmallDisk()
    spool.room = room
    trace = Trace(spool=spool)
    for piece in pieces:
        trace.write(piece)
    spool.room += 1000 * more
    trace.write(b"late")
    trace.end()
    trace.note("why")
    got = collect(trace)
    kept, notice, _ = got.partition(b"\n\x1b[33;1mThe log cannot be kept any more: No space left on device.")
    printed = (b"".join(pieces) + b"late").decode(errors="replace").encode()
    assert printed.startswith(kept) if notice else got == printed + b"why"
    assert got.endswith(b"why")
    assert spool.getvalue() == (kept if notice else got)
    assert (trace.size, trace.checksum) == (len(got), f"crc32:{zlib.crc32(got):08x}")


class Unreadable(BytesIO):
    """A file of which nothing is read from some offset on: it is shorter than it was, or its disk fails."""

    readable_to = 1 << 30
    error: OSError | None = None

    def read(self, size: int | None = -1, /) -> bytes:
        """Read what is still there."""
        at = self.tell()
        if at >= self.readable_to and self.error is not None:
            raise self.error
        return super().read(size)[: max(0, self.readable_to - at)]


@pytest.mark.parametrize(
    ("error", "reason"),
    [(None, "its file is shorter than it was"), (OSError(errno.EIO, "Input/output error"), "Input/output error")],
)
@pytest.mark.parametrize("at", [0, 3, 6])
def test_what_cannot_be_read_again_is_lost_and_no_more(error: OSError | None, reason: str, at: int) -> None:
    """The log goes on after what the coordinator has, with a line that says so; there is always a next piece."""
    spool = Unreadable()
    trace = Trace(spool=spool)
    trace.write(b"012345")
    patch = trace.patch(at) if at else None
    if patch:
        trace.accepted(patch)
    trace.write(b"6789")
    spool.readable_to, spool.error = at, error
    lost = trace.patch(4)
    assert lost
    assert (lost.start, lost.body, trace.checksum) == (at, b"\n\x1b[3", None)
    trace.note("why")
    trace.write(b"more")
    got = b""
    while patch := trace.patch(7):
        got += patch.body
        trace.accepted(patch)
    assert got.startswith(f"\n\x1b[33;1mWhat comes here cannot be read any more: {reason}. It is lost".encode())
    assert got.endswith(b"why")
    assert (trace.size, trace.checksum) == (at + len(got), None)
    trace.restart()
    spool.readable_to = 0
    again = trace.patch()
    assert again
    assert (again.start, again.body) == (0, got)


@given(
    text=st.text(st.characters(codec="utf-8"), max_size=6), torn=st.integers(0, 3), more=st.text("aé€😀", max_size=3)
)
def test_a_character_that_a_dying_process_wrote_in_part_is_taken_back(text: str, torn: int, more: str) -> None:
    """What follows is text again, and the rest of the log is as it was."""
    whole = (text + "😀").encode()
    written = whole[: len(whole) - torn]
    trace = Trace(spool=BytesIO(written))
    trace.write(more.encode())
    got = collect(trace)
    kept = whole if torn == 0 else text.encode()
    assert got == kept + more.encode()
    assert (trace.size, trace.checksum) == (len(got), f"crc32:{zlib.crc32(got):08x}")


def test_a_log_outlives_its_process() -> None:
    """Read again from where it was kept, it has the same checksum; where to go on, the coordinator says."""
    spool = BytesIO()
    before = Trace(spool=spool, limit=10)
    before.write(b"0123456")
    after = Trace(spool=spool, limit=10)
    assert (after.size, after.sent, after.checksum) == (7, 0, before.checksum)
    after.write(b"789abc")
    assert collect(after).startswith(b"0123456789\n\x1b[33;1mThe log has reached its limit of 10 bytes.")
    full = Trace(spool=spool, limit=10)
    full.write(b"more")
    assert full.size == after.size
