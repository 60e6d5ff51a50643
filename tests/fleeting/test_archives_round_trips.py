"""Archives of every tar that instances have: what they pack is what is unpacked."""

import io
import os
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from stat import S_IMODE, S_ISDIR, S_ISLNK

import anyio
import pytest
from anyio import from_thread, to_thread
from hypothesis import given
from hypothesis import strategies as st

from fleeting.archives import END, Kind, Member, Piece, Reader, header, unpack
from tests.needs import need

SECOND = 10**9
MTIME = 1_234_567_890 * SECOND + 123_456_789
HOLE = 1 << 20


def plant(tree: Path, *, long: bool) -> Path:
    """Make whatever is special about names, sizes, modes, times and links; some tars know no long names."""
    for name in ("a/b/c", "empty", "modes"):
        (tree / name).mkdir(parents=True)
    for size in (0, 1, 511, 512, 513, 300_000):
        (tree / f"{size}").write_bytes(os.urandom(size))
    (tree / "a" / "new\nline \\ü").write_bytes(b"x")
    (tree / "a" / os.fsdecode(b"no \xff utf-8")).write_bytes(b"x")
    for mode in (0o400, 0o644, 0o666, 0o755, 0o777):
        (tree / "modes" / f"{mode:o}").write_text("x")
        (tree / "modes" / f"{mode:o}").chmod(mode)
    for name, text in (("up", "../../300000"), ("down", "c"), ("nowhere", "c/x/y"), ("self", "self")):
        (tree / "a" / "b" / name).symlink_to(text)
    (tree / "a" / "b" / "back").symlink_to("c/../../../1")
    (tree / "a" / "same").hardlink_to(tree / "513")
    if long:
        deep = tree / ("p" * 100) / ("q" * 100) / ("r" * 100)
        deep.mkdir(parents=True)
        (deep / ("s" * 200)).write_text("deep")
        (deep / ("t" * 200)).hardlink_to(deep / ("s" * 200))
        (deep / "link").symlink_to("x" * 200)
    for name in ("modes", "empty"):
        (tree / name).chmod(0o750)
    for path in sorted(tree.rglob("*"), reverse=True):
        os.utime(path, ns=(MTIME, MTIME), follow_symlinks=False)
    os.utime(tree, ns=(MTIME, MTIME))
    return tree


def look(tree: Path, *, unit: int = 1) -> Mapping[str, object]:
    """Everything that shall be the same, times in whole units."""
    return {str(path.relative_to(tree)): _look(tree, path, unit) for path in [tree, *tree.rglob("*")]}


def _look(tree: Path, path: Path, unit: int) -> object:
    status = path.lstat()
    if S_ISLNK(status.st_mode):
        return str(path.readlink())
    if S_ISDIR(status.st_mode):
        return S_IMODE(status.st_mode), status.st_mtime_ns // unit
    same = sorted(str(other.relative_to(tree)) for other in tree.rglob("*") if other.lstat().st_ino == status.st_ino)
    return S_IMODE(status.st_mode), status.st_mtime_ns // unit, same, path.read_bytes()


def unpacked(tmp_path: Path, data: bytes) -> Path:
    """Unpack an archive that is in memory."""
    (tmp_path / "target").mkdir()
    (tmp_path / "archive").write_bytes(data)
    assert unpack(tmp_path / "archive", tmp_path / "target", modes=True) is Kind.DIRECTORY
    return tmp_path / "target"


def output(command: Sequence[str], directory: Path) -> bytes:
    """Run a tar."""
    need(command[0])
    return subprocess.run(command, cwd=directory, stdout=subprocess.PIPE, check=True).stdout


GNU = ("tar", "-cf", "-", "--format")


@pytest.mark.parametrize(
    ("command", "long", "unit"),
    [
        ((*GNU, "v7", "."), False, SECOND),
        ((*GNU, "ustar", "."), False, SECOND),
        ((*GNU, "oldgnu", "."), True, SECOND),
        ((*GNU, "gnu", "."), True, SECOND),
        ((*GNU, "gnu", "--label=tape", "--blocking-factor=100", "."), True, SECOND),
        ((*GNU, "gnu", "--incremental", "."), True, SECOND),
        ((*GNU, "posix", "."), True, 1),
        ((*GNU, "posix", "--pax-option=delete=atime,comment=x", "--xattrs", "."), True, 1),
        (("busybox", "tar", "-cf", "-", "."), True, SECOND),
    ],
    ids=["v7", "ustar", "oldgnu", "gnu", "labelled", "incremental", "posix", "attributes", "busybox"],
)
def test_what_a_program_packs_comes_out_as_it_was(
    tmp_path: Path, command: tuple[str, ...], *, long: bool, unit: int
) -> None:
    """Names, contents, modes, times and links, those of directories too."""
    tree = plant(tmp_path / "tree", long=long)
    target = unpacked(tmp_path, output(command, tree))
    assert look(target, unit=unit) == look(tree, unit=unit)


@pytest.mark.parametrize("kind", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_what_python_packs_comes_out_as_it_was(tmp_path: Path, kind: int) -> None:
    """In all its formats; the times of pax have fractions, as floats have them."""
    tree = plant(tmp_path / "tree", long=kind != tarfile.USTAR_FORMAT)
    buffer = io.BytesIO()
    headers = {"mtime": "1"} if kind == tarfile.PAX_FORMAT else None
    with tarfile.open(fileobj=buffer, mode="w", format=kind, pax_headers=headers) as tar:
        tar.add(tree, arcname=".")
    unit = SECOND if kind != tarfile.PAX_FORMAT else 1000
    assert look(unpacked(tmp_path, buffer.getvalue()), unit=unit) == look(tree, unit=unit)


@pytest.mark.parametrize(
    "form",
    [("gnu",), ("oldgnu",), *(("posix", f"--sparse-version={version}") for version in ("0.0", "0.1", "1.0"))],
    ids=" ".join,
)
@pytest.mark.parametrize("holes", [0, 1, 3, 100])
def test_files_with_gaps_keep_them(tmp_path: Path, form: tuple[str, ...], holes: int) -> None:
    """In each of the forms that GNU tar has written; with many gaps, the map has blocks of its own."""
    (tmp_path / "tree").mkdir()
    with (tmp_path / "tree" / "file").open("wb") as file:
        for number in range(holes):
            file.seek(HOLE, os.SEEK_CUR)
            file.write(b"%d" % number * 3000)
        file.truncate(file.tell() + HOLE)
    command = (*GNU, form[0], "--sparse", "--hole-detection=raw", *form[1:], ".")
    target = unpacked(tmp_path, output(command, tmp_path / "tree"))
    assert (target / "file").read_bytes() == (tmp_path / "tree" / "file").read_bytes()
    assert (target / "file").stat().st_blocks * 512 < HOLE * (holes + 1) // 2


def test_without_modes_others_may_not_write(tmp_path: Path) -> None:
    """What its owner may not run nobody may, and no special bit is kept."""
    tree = plant(tmp_path / "tree", long=False)
    (tree / "1").chmod(0o6755)
    (tmp_path / "archive").write_bytes(output((*GNU, "gnu", "."), tree))
    (tmp_path / "target").mkdir()
    unpack(tmp_path / "archive", tmp_path / "target")
    modes = {path.name: S_IMODE(path.stat().st_mode) for path in (tmp_path / "target" / "modes").iterdir()}
    assert modes == {"400": 0o600, "644": 0o644, "666": 0o644, "755": 0o755, "777": 0o755}
    assert S_IMODE((tmp_path / "target" / "1").stat().st_mode) == 0o755
    fresh = tmp_path / "fresh"
    fresh.mkdir()
    assert (tmp_path / "target" / "modes").stat().st_mode == fresh.stat().st_mode


def test_of_a_path_that_comes_twice_the_first_counts(tmp_path: Path) -> None:
    """Globs that overlap name one file several times; the second time, tar may call it a link to itself."""
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "file").write_text("x")
    (tmp_path / "tree" / "link").symlink_to("file")
    (tmp_path / "tree" / "again").hardlink_to(tmp_path / "tree" / "file")
    names = ["./file", "./link", "./again"]
    data = output((*GNU, "gnu", ".", *names, *names), tmp_path / "tree")
    assert look(unpacked(tmp_path, data), unit=SECOND) == look(tmp_path / "tree", unit=SECOND)


NAMES = st.binary(min_size=1, max_size=300).filter(lambda name: b"\0" not in name and not name.endswith(b"/"))
CONTENTS = st.binary(max_size=2000)


@given(files=st.lists(st.tuples(NAMES, CONTENTS), max_size=5), size=st.integers(1, 3000), mtime=st.integers(-9, 2**33))
def test_the_reader_does_not_care_how_an_archive_is_cut(
    files: list[tuple[bytes, bytes]], size: int, mtime: int
) -> None:
    """Members and contents are the same, in pieces of any size; and what is written here is what is read."""
    members = [Member(name=name, size=len(content), mtime=mtime * SECOND, owner=(1, 2)) for name, content in files]
    data = b"".join(
        header(member) + content + bytes(-len(content) % 512)
        for member, (_, content) in zip(members, files, strict=True)
    )
    data += END + b"whatever"
    reader, read = Reader(), []
    contents: list[bytes] = []
    for at in range(0, len(data), size):
        for event in reader.feed(data[at : at + size]):
            match event:
                case Piece(offset, part):
                    assert offset == len(contents[-1])
                    contents[-1] += part
                case member:
                    read.append(member)
                    contents.append(b"")
    reader.finish()
    assert read == members
    assert contents == [content for _, content in files]


def tape_label() -> bytes:
    """A header of GNU tar's that is no member: nothing comes of it."""
    info = tarfile.TarInfo("label")
    info.type = b"V"
    return info.tobuf(tarfile.GNU_FORMAT)


@pytest.mark.anyio
@pytest.mark.parametrize("block", [header(Member(name=b"x")), tape_label()], ids=["members", "no-members"])
async def test_a_cancelled_unpacking_ends(tmp_path: Path, block: bytes) -> None:
    """In the thread that it is in, though the archive has no end, whether or not it has members."""
    os.mkfifo(tmp_path / "archive")
    (tmp_path / "target").mkdir()
    fed = anyio.Event()

    def feed() -> None:
        with suppress(BrokenPipeError), (tmp_path / "archive").open("wb") as file:
            while True:
                file.write(block * 1000)
                from_thread.run_sync(fed.set)

    async def unpack_in_thread() -> None:
        await to_thread.run_sync(unpack, tmp_path / "archive", tmp_path / "target")

    async with anyio.create_task_group() as group:
        group.start_soon(to_thread.run_sync, feed)
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as inner:
                inner.start_soon(unpack_in_thread)
                await fed.wait()
                scope.cancel()
        assert scope.cancelled_caught
