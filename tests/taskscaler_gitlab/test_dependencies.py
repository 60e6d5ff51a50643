"""Archives of other jobs, which nobody trusts: what is taken of them, what they cost, and that none of it goes on."""

import gzip
import struct
import tracemalloc
import zipfile
from pathlib import Path

import anyio
import pytest
from anyio import from_thread, to_thread

from taskscaler_gitlab.runner._dependencies import NotTaken, Room, _Archive, take_archive


def listing(count: int, name: bytes = b"", *, says: int = 0, is_large: bool = False) -> bytes:
    """A zip file of nothing but its list: so many entries, another number of which it speaks, 64-bit records or not."""
    entry = struct.pack("<4s4B4HL2L5H2L", b"PK\1\2", 20, 3, 20, 0, 0, 0, 0, 33, 0, 0, 0, len(name), *([0] * 6)) + name
    listed, size = entry * count, len(entry) * count
    if is_large:
        listed += struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, says, says, size, 0)
        listed += struct.pack("<4sLQL", b"PK\6\7", 0, size, 1)
    return listed + struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, says, says, 0 if is_large else size, 0, 0)


@pytest.mark.parametrize("is_large", [False, True])
def test_a_list_of_files_that_fills_the_memory_is_not_read(tmp_path: Path, *, is_large: bool) -> None:
    """Of a zip file with and without its 64-bit records."""
    path = tmp_path / "long.zip"
    path.write_bytes(listing(600, b"x" * 60_000, is_large=is_large))
    with pytest.raises(NotTaken, match="the list of its files has 36027600 bytes"):
        _taken(path, tmp_path / "scratch", tmp_path / "target")


def test_an_ordinary_archive_is_taken(tmp_path: Path) -> None:
    """With as many files as it has."""
    path = tmp_path / "small.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(10):
            archive.writestr(str(number), b"x")
    assert _taken(path, tmp_path / "scratch", tmp_path / "target") == 10


@pytest.mark.slow
def test_a_zip_of_70000_files_is_taken(tmp_path: Path) -> None:
    """Fewer than are too many, and more than its list has 16 bits for."""
    path = tmp_path / "large.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(70_000):
            archive.writestr(str(number), b"")
    assert _taken(path, tmp_path / "scratch", tmp_path / "target") == 70_000


@pytest.mark.parametrize(("says", "is_large"), [(700_000 & 0xFFFF, False), (1, False), (0, True)])
def test_entries_are_counted_before_anything_is_made_of_them(tmp_path: Path, says: int, *, is_large: bool) -> None:
    """700,000 in a list of 31 MiB, whatever the archive says of their number: memory for the list is all they cost."""
    path = tmp_path / "many.zip"
    path.write_bytes(listing(700_000, says=says, is_large=is_large))
    tracemalloc.start()
    try:
        with pytest.raises(NotTaken, match="more than 100000 entries"):
            _taken(path, tmp_path / "scratch", tmp_path / "target")
        assert tracemalloc.get_traced_memory()[1] < 48 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.anyio
@pytest.mark.parametrize("form", ["zip", "gzip"])
async def test_archives_have_room_together(tmp_path: Path, form: str) -> None:
    """Of a job that gets many, the last ones have what the others leave: none fills the manager's disk."""
    path, content = tmp_path / "archive", bytes(1000)
    if form == "zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("x", content)
    else:
        path.write_bytes(gzip.compress(content))

    async def take(**room: int) -> Room:
        target = tmp_path / f"{room}"
        return await to_thread.run_sync(take_archive, path, tmp_path / "scratch", target, "x", Room(**room))

    assert await take(size=1500, entries=3) == Room(size=500, entries=2)
    with pytest.raises(NotTaken, match=r"more than 999 bytes.*; all archives of a job"):
        await take(size=999)
    with pytest.raises(NotTaken, match=r"more than 0 files.*; all archives of a job"):
        await take(entries=0)


@pytest.mark.anyio
async def test_archives_of_empty_files_have_room_together(tmp_path: Path) -> None:
    """They have no bytes, and yet a disk has room for so many only; directories that nobody lists are among them."""
    path, room = tmp_path / "archive", Room(entries=9)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/b/c/file", b"")
    for left in (5, 1):
        room = await to_thread.run_sync(take_archive, path, tmp_path / "scratch", tmp_path / str(left), "x", room)
        assert room.entries == left
    with pytest.raises(NotTaken, match=r"more than 1 files.*; all archives of a job may have 250000 together"):
        await to_thread.run_sync(take_archive, path, tmp_path / "scratch", tmp_path / "last", "x", room)


def test_overlapping_files_are_refused(tmp_path: Path) -> None:
    """A small archive could have a thread unpack the same bytes for days."""
    path = tmp_path / "folded.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x", bytes(1 << 16))
    data = path.read_bytes()
    start = data.index(b"PK\1\2")
    listed, end = data[start:-22] * 1000, bytearray(data[-22:])
    struct.pack_into("<2HL", end, 8, 1000, 1000, len(listed))
    path.write_bytes(data[:start] + listed + end)
    with pytest.raises(NotTaken, match="overlap"):
        _taken(path, tmp_path / "scratch", tmp_path / "target")


@pytest.mark.anyio
@pytest.mark.parametrize("form", ["zip", "gzip"])
async def test_a_cancelled_job_looks_at_no_archive(tmp_path: Path, form: str) -> None:
    """Not even to see how large its file is: what is wrong behind the first bytes is never found."""
    path, scratch = tmp_path / "archive", tmp_path / "scratch"
    path.write_bytes(b"PK\3\4 nothing" if form == "zip" else gzip.compress(bytes(1 << 20)) + b"nothing")

    def take(scope: anyio.CancelScope) -> None:
        from_thread.run_sync(scope.cancel)
        take_archive(path, scratch, tmp_path / "target", "x", Room())

    with anyio.CancelScope() as scope:
        await to_thread.run_sync(take, scope)
    assert scope.cancelled_caught
    assert not scratch.exists()


@pytest.mark.anyio
async def test_a_piece_is_not_read_after_a_cancellation(tmp_path: Path) -> None:
    """Nor do empty parts of a gzip file, of which millions fit into a download, keep a thread from its end."""
    path = tmp_path / "archive"
    path.write_bytes(gzip.compress(b"") * 50_000 + b"nothing")

    def read(scope: anyio.CancelScope) -> None:
        with _Archive(path) as archive, gzip.GzipFile(fileobj=archive) as file:
            from_thread.run_sync(scope.cancel)
            file.read(1)

    with anyio.CancelScope() as scope:
        await to_thread.run_sync(read, scope)
    assert scope.cancelled_caught


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_zip_file_that_python_unpacks_all_at_once_is_refused(tmp_path: Path, method: int) -> None:
    """Some hundred bytes of it would fill the memory, whatever they claim to be."""
    path = tmp_path / "small.zip"
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("x", bytes(1 << 20))
    with pytest.raises(NotTaken, match=f"method {method}"):
        _taken(path, tmp_path / "scratch", tmp_path / "target")


@pytest.mark.parametrize("form", ["zip", "gzip"])
def test_an_archive_that_is_damaged_anywhere_is_refused_or_taken(tmp_path: Path, form: str) -> None:
    """Nothing else comes of any of its bytes being another: the job is told, and its runner is not to blame."""
    good = tmp_path / "good"
    if form == "zip":
        with zipfile.ZipFile(good, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("ü", b"hello world" * 50)
            archive.writestr("d/", b"")
    else:
        good.write_bytes(gzip.compress(b"hello world" * 50, mtime=0))
    whole, path, refused = good.read_bytes(), tmp_path / "damaged", 0

    async def take(number: int) -> None:
        await to_thread.run_sync(take_archive, path, tmp_path / "scratch", tmp_path / str(number), "x", Room())

    async def take_all() -> None:
        nonlocal refused
        for number in range(len(whole)):
            path.write_bytes(whole[:number] + bytes([whole[number] ^ 0xFF]) + whole[number + 1 :])
            try:
                await take(number)
            except NotTaken:
                refused += 1

    anyio.run(take_all)
    assert refused > len(whole) // 3


def _taken(path: Path, scratch: Path, target: Path) -> int:
    async def take() -> None:
        await to_thread.run_sync(take_archive, path, scratch, target, "x", Room())

    anyio.run(take)
    return len(list(target.iterdir()))
