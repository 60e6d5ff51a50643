"""Choosing from a tar archive while it arrives: whatever the pieces, whatever is in it."""

import io
import tarfile
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor_docker._script import read_report
from executor_docker._selection import Selector, chosen_by, literal_part
from executor_docker._users import find
from fleeting.archives import END, ArchiveRefused

NAMES = st.text(st.sampled_from("ab.é"), min_size=1, max_size=150).filter(lambda name: set(name) != {"."})
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)


def archive(files: dict[str, bytes], kind: int) -> bytes:
    """Pack files, in the form of pax or GNU."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=kind) as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(f"job/{name}")
            member.size, member.mtime = len(content), 1.5  # half a second makes a pax header
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def unpacked(data: bytes) -> dict[str, bytes]:
    """Read files."""
    with tarfile.open(fileobj=io.BytesIO(data + END)) as tar:
        return {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]  # all are files


@given(
    files=st.dictionaries(PATHS, st.binary(max_size=1500), min_size=1, max_size=5),
    kind=st.sampled_from([tarfile.PAX_FORMAT, tarfile.GNU_FORMAT]),
    piece=st.integers(1, 3000),
    pattern=st.sampled_from(["*", "a*", "*/*", "a/b"]),
)
def test_what_matches_passes_whole_and_nothing_else_does(
    files: dict[str, bytes], kind: int, piece: int, pattern: str
) -> None:
    """As if the whole archive had been looked at with a shell's globs."""
    selector, data = Selector(chosen_by(pattern, "/job", "/job")), archive(files, kind)
    chosen = b"".join(selector.feed(data[at : at + piece]) for at in range(0, len(data), piece)) + selector.finish()
    rename = chosen_by(pattern, "/job", "/job")
    assert unpacked(chosen) == {name: content for name, content in files.items() if rename(f"job/{name}")}
    if pattern == "*":
        assert set(unpacked(chosen)) == {name for name in files if not name.startswith(".")}


@given(st.binary(min_size=512, max_size=3000))
def test_what_is_no_archive_is_refused_or_gives_nothing_harmful(data: bytes) -> None:
    """No other error gets out."""
    try:
        Selector(str).feed(data)
    except ArchiveRefused:
        return


@pytest.mark.parametrize("kind", [tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.BLKTYPE])
def test_devices_do_not_pass(kind: bytes) -> None:
    """Only files, directories and links do."""
    member = tarfile.TarInfo("job/x")
    member.type = kind
    assert Selector(str).feed(member.tobuf() + END) == b""


def test_names_that_lead_out_are_not_chosen() -> None:
    """Neither by a wildcard nor by the way they are written."""
    rename = chosen_by("*", "/job", "/job")
    assert [rename(name) for name in ("job/../../etc/passwd", "../x", "job/./a", "job/a/../b")] == [
        None,
        None,
        "a",
        "b",
    ]


def test_of_a_glob_the_part_before_wildcards_is_asked_for() -> None:
    """So no more is sent than need be."""
    patterns = ("a/b", "a/*/c", "*", "a/b[0]/c")
    assert [literal_part(pattern) for pattern in patterns] == ["a/b", "a", ".", "a"]


@pytest.mark.parametrize(
    ("said", "known"),
    [
        (b"\ntaskscaler ended 0\ntaskscaler usage_usec 1500000\ntaskscaler memory 4096\n", (1.5, 4096, None, True, 0)),
        (
            b"\ntaskscaler ended 1\ntaskscaler usage_nsec 200000000\ntaskscaler oom_kill 2\n",
            (0.2, None, None, True, 2),
        ),
        (b"taskscaler wchar: 9\ntaskscaler write_bytes: 8192\ntaskscaler ended 0\n", (None, None, 8192, True, 0)),
        (
            b"Killed\ntaskscaler memory -1\ntaskscaler memory 1e\n\xfftaskscaler ended 0\n",
            (None, None, None, False, 0),
        ),
        (b"taskscaler memory 99999999999999999999999\ntaskscaler", (None, None, None, False, 0)),
        (b"", (None, None, None, False, 0)),
    ],
)
def test_of_what_a_container_tells_only_sense_is_believed(said: bytes, known: tuple[Any, ...]) -> None:
    """Of both kinds of control groups; a job could write there too."""
    report = read_report(said)
    used = report.cpu_time, report.peak_memory, report.disk_written
    assert (*used, report.is_complete, report.killed_for_memory) == known


def test_users_are_found_by_name_and_number() -> None:
    """One that is not there is root: the daemon refuses to start what he would run."""
    table = "root:x:0:0:root:/:/bin/sh\nworker:x:1000:1001::/:/bin/sh\nbroken\n"
    assert [find(table, name) for name in ("worker", "root", "1234", "nobody")] == [
        (1000, 1001),
        (0, 0),
        (1234, 0),
        (0, 0),
    ]
