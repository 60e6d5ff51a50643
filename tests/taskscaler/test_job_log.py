"""The logs of jobs: what is kept of a long one, and that it is never longer than it may be."""

import re
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
from hypothesis import example, given
from hypothesis import strategies as st

from taskscaler.batch._addresses import Addresses
from taskscaler.batch._job import LEAST_LOG_LIMIT
from taskscaler.batch._log import JobLog

GAP = re.compile(rb"\ntaskscaler: +([0-9]+) bytes are left out here, as log_limit says\n")
LIMITS = st.integers(LEAST_LOG_LIMIT, 3 * LEAST_LOG_LIMIT)
CHUNKS = st.lists(st.lists(st.integers(0, 2 * LEAST_LOG_LIMIT), max_size=8), min_size=1, max_size=4)
"""Sizes of what is written, each list between an opening and a closing."""


def printed(size: int) -> bytes:
    """Make a text in which every place looks different."""
    return b"".join(b"%07d\n" % number for number in range(size // 8 + 1))[:size]


async def write(path: Path, sessions: Sequence[Sequence[int]], limit: int, text: bytes) -> None:
    """Write the text in pieces of these sizes, and look at the file after each."""
    done = 0
    for sizes in sessions:
        async with JobLog.open(path, limit, Addresses()) as log:
            for size in sizes:
                await log.write(text[done : done + size])
                done += size
                check(path, text[:done], limit)
            assert log.problem == ""


def check(path: Path, text: bytes, limit: int) -> None:
    """The beginning and the end are there, and what is between is counted."""
    kept = path.read_bytes()
    assert len(kept) <= limit
    if len(text) <= limit:
        assert kept == text
        return
    head, tail = kept[: limit // 2], kept[limit // 2 :]
    gap = GAP.match(tail)
    assert gap is not None
    end = tail[gap.end() :]
    assert text.startswith(head)
    assert text.endswith(end)
    assert len(end) >= limit // 4 - len(gap[0])
    assert int(gap[1]) == len(text) - len(head) - len(end)


@given(CHUNKS, LIMITS)
@example([[2 * LEAST_LOG_LIMIT] * 8], LEAST_LOG_LIMIT)
@example([[LEAST_LOG_LIMIT], [1], [1]], LEAST_LOG_LIMIT)
def test_beginning_and_end_are_kept(sessions: Sequence[Sequence[int]], limit: int) -> None:
    """However it comes, and however often the file is opened again meanwhile."""
    text = printed(sum(map(sum, sessions)))
    with TemporaryDirectory() as directory:
        anyio.run(write, Path(directory, "log"), sessions, limit, text)


@given(st.binary(max_size=3 * LEAST_LOG_LIMIT), st.lists(st.integers(0, LEAST_LOG_LIMIT)), LIMITS)
@example(
    b"x" * (LEAST_LOG_LIMIT // 2) + b"\ntaskscaler: 99999999999999999999 bytes are left out here, as log_limit says\n",
    [4096, 4096],
    LEAST_LOG_LIMIT,
)
def test_whatever_is_there_already_is_cut_too(before: bytes, sizes: list[int], limit: int) -> None:
    """A log of an earlier release, or with another limit, or with a line that looks like ours."""

    async def append(path: Path) -> None:
        async with JobLog.open(path, limit, Addresses()) as log:
            for size in sizes:
                await log.write(b"y" * size)
            assert log.problem == ""

    with TemporaryDirectory() as directory:
        path = Path(directory, "log")
        path.write_bytes(before)
        anyio.run(append, path)
        kept = path.read_bytes()
    assert len(kept) <= max(limit, 0 if any(sizes) else len(before))
    assert kept[: min(limit // 2, len(before))] == before[: limit // 2]
    assert kept.endswith(b"y" * min(sum(sizes), limit // 8))


@given(st.text(), st.text())
def test_a_remark_is_a_line_of_its_own(text: str, remark: str) -> None:
    """Whatever the job has printed before, and whatever is in the remark."""

    async def append(path: Path) -> None:
        async with JobLog.open(path, 1 << 20, Addresses()) as log:
            await log.write(text.encode(errors="replace"))
            await log.remark(remark, "the end")

    with TemporaryDirectory() as directory:
        path = Path(directory, "log")
        anyio.run(append, path)
        assert path.read_bytes().endswith(b"\ntaskscaler: the end\n" if text or remark else b"taskscaler: the end\n")
