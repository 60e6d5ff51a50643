"""Archives from somebody who wants to get out of the directory that they are unpacked into."""

import os
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fleeting.archives import ArchiveRefused, _unpacking, unpack
from fleeting.connectors._files import _put
from fleeting.errors import CopyFailed
from tests.fleeting.raw_archives import BLOCK, END, Spec, header, long_name, member, padded, pax, record

LONG = b"/".join([b"d" * 250] * 17)
"""A path with more bytes than a path may have."""

PARTS = st.sampled_from([b"a", b"b", b"c", b"..", b"..", b".", b"", b"secret", b"outside", b"target", b"n" * 300])
PATHS = st.one_of(
    st.sampled_from([b"a", b"b", b"c"]),
    st.lists(PARTS, min_size=1, max_size=6).map(b"/".join),
    st.sampled_from([b"@/secret", b"@", b"/etc/passwd", LONG, b"a/" * 200 + b"..", LONG + b"/../" * 20]),
)
RECORDS = st.fixed_dictionaries(
    {},
    optional={
        b"path": PATHS,
        b"linkpath": PATHS,
        b"size": st.sampled_from([b"0", b"1", b"512", b"1000000000000", b"-1", b"x"]),
        b"mtime": st.sampled_from([b"1.5", b"-3", b"99999999999999999999", b"nan"]),
        b"GNU.sparse.name": PATHS,
        b"GNU.sparse.map": st.sampled_from([b"0,3", b"5,3", b"5,-3", b"9223372036854775807,3", b"1,2,0,1"]),
        b"GNU.sparse.size": st.sampled_from([b"3", b"100", b"9223372036854775807"]),
    },
)
SPECS = st.builds(
    Spec,
    name=PATHS,
    kind=st.sampled_from([b"0", b"0", b"1", b"1", b"2", b"2", b"2", b"5", b"\0", b"3", b"6", b"7", b"S", b"D", b"Z"]),
    link=PATHS,
    content=st.sampled_from([b"", b"", b"evil", b"e" * 600]),
    size=st.none() | st.sampled_from([0, 3, 1000, 1 << 40, -1]),
    mode=st.sampled_from([0o644, 0o777, 0o7777, 0o4755, 0]),
    mtime=st.sampled_from([0, 1, 1 << 33, -1, (1 << 87) - 1]),
    is_long=st.booleans(),
    records=st.just({}) | RECORDS,
)
SLY_NAMES = st.sampled_from([b"a", b"b", b"c", b"a/b", b"a/c", b"b/a", b"a/b/c"])
SLY = st.builds(
    Spec,
    name=SLY_NAMES,
    kind=st.sampled_from([b"0", b"1", b"2", b"2", b"5"]),
    link=SLY_NAMES | st.sampled_from([b".", b"..", b"../a", b"../b", b"../secret", b"../../secret", b"a/..", b"b/.."]),
    content=st.just(b"evil"),
    mode=st.just(0o777),
)
"""Each might be taken by itself; it is together that they lead out."""

ARCHIVES = st.lists(SLY, max_size=8) | st.lists(SPECS, max_size=8)
DAMAGE = st.none() | st.none() | st.tuples(st.integers(0, 5000), st.binary(max_size=3))
"""Where an archive breaks off, and what comes instead."""


def written(specs: Sequence[Spec], outside: Path, damage: tuple[int, bytes] | None = None) -> bytes:
    """Write the archive that was thought of."""
    data = b"".join(spec.write(os.fsencode(outside)) for spec in specs) + END
    return data if damage is None else data[: damage[0]] + damage[1] + data[damage[0] + len(damage[1]) :]


@contextmanager
def world() -> Iterator[tuple[Path, Callable[[], Mapping[str, object]]]]:
    """A directory with a target in it, and a look at everything that is not in the target."""
    with tempfile.TemporaryDirectory() as directory:
        base = Path(directory).resolve()
        for name in ("secret", "outside/secret", "outside/a/b", "a", ".bashrc"):
            (base / name).parent.mkdir(parents=True, exist_ok=True)
            (base / name).write_text(name)
            (base / name).chmod(0o600)
        (base / "outside" / "link").symlink_to("secret")
        (base / "target").mkdir()
        for path in base.rglob("*"):
            os.utime(path, (1000, 1000), follow_symlinks=False)
        os.utime(base, (1000, 1000))
        yield base, lambda: {str(path): seen(path) for path in [base, *base.rglob("*")] if not inside(path, base)}


def inside(path: Path, base: Path) -> bool:
    """Whether it is the target, in the target, or what is used to make it."""
    return path.relative_to(base).parts[:1] in {("target",), ("archive",)}


def seen(path: Path) -> object:
    """All that may not change; a hard link from elsewhere shows, too."""
    status = path.lstat()
    content = path.read_bytes() if path.is_file() and not path.is_symlink() else None
    entries = path.iterdir() if path.is_dir() and not path.is_symlink() else ()
    names = sorted({entry.name for entry in entries} - {"target", "archive"})
    time = None if path.name.startswith("tmp") else status.st_mtime_ns
    return status.st_mode, status.st_ino, status.st_nlink if content else None, time, content, names


def links_in(directory: Path) -> list[Path]:
    """List the links in a directory."""
    found = []
    for parent, directories, files in os.walk(directory):
        found += [Path(parent, name) for name in (*directories, *files)]
    return [path for path in found if path.is_symlink()]


def write_through(links: Sequence[Path]) -> None:
    """Do what a careless user of the links would do: the kernel itself finds out where they lead."""
    for link in links:
        with suppress(OSError), link.open("ab") as file:
            file.write(b"overwritten")
        with suppress(OSError):
            (link / "made").touch()


def assert_held(base: Path, before: Mapping[str, object], look: Callable[[], Mapping[str, object]]) -> None:
    """Nothing outside has changed, no link leads out, and there is nothing but files, directories and links."""
    assert look() == before
    for path in (base / "target").rglob("*"):
        mode = path.lstat().st_mode
        assert path.is_symlink() or path.is_dir() or path.is_file()
        assert path.is_symlink() or not mode & 0o7000
    links = links_in(base / "target")
    for link in links:
        assert Path(os.path.realpath(link)).is_relative_to(base / "target")
    write_through(links)
    assert look() == before


SYMLINK_CHAIN = [
    Spec(name=b"a/b/c", kind=b"5"),
    Spec(name=b"z", kind=b"2", link=b"a/b/c/x/../../../../.bashrc"),
    Spec(name=b"a/b/c/x", kind=b"2", link=b"../../.."),
    Spec(name=b"z", content=b"evil"),
]
HARD_LINK_TO_SYMLINK = [
    Spec(name=b"s", kind=b"2", link=b"@/secret"),
    Spec(name=b"h", kind=b"1", link=b"s", mode=0o777),
    Spec(name=b"h", content=b"evil", mode=0o777),
]
LINKED_DIRECTORY = [Spec(name=b"l", kind=b"2", link=b".."), Spec(name=b"l/secret", content=b"evil")]
OVER_LONG = [  # realpath gives up on a path that is too long; the file system does not on its parts
    *(Spec(name=b"/".join([b"d" * 247] * depth), kind=b"5") for depth in range(1, 17)),
    *(Spec(name=b"/".join([b"abcdefghijklmnop"[at : at + 1] for at in range(depth)]), kind=b"2", link=b"d" * 247)
      for depth in range(1, 17)),
    Spec(name=b"/".join([b"a"] * 16) + b"/" + b"l" * 254, kind=b"2", link=b"../" * 16),
    Spec(name=b"escape", kind=b"2", link=b"l" * 254 + b"/../../.bashrc"),
    Spec(name=b"h", kind=b"1", link=b"escape"),
    Spec(name=b"h", content=b"evil"),
]  # fmt: skip


@settings(max_examples=250)
@given(specs=ARCHIVES, damage=DAMAGE, modes=st.booleans())
@example(specs=SYMLINK_CHAIN, damage=None, modes=True)
@example(specs=HARD_LINK_TO_SYMLINK, damage=None, modes=True)
@example(specs=LINKED_DIRECTORY, damage=None, modes=False)
@example(specs=OVER_LONG, damage=None, modes=True)
def test_whatever_is_in_an_archive_nothing_outside_changes(
    specs: list[Spec], damage: tuple[int, bytes] | None, *, modes: bool
) -> None:
    """In content, mode and time, whether it is taken or refused; no link leads out; no other error gets out."""
    with world() as (base, look):
        archive = base / "archive"
        archive.write_bytes(written(specs, base / "outside", damage))
        before = look()
        with suppress(ArchiveRefused):
            unpack(archive, base / "target", size=1 << 41, modes=modes)
        assert_held(base, before, look)


OWN_LINKS = st.dictionaries(
    st.sampled_from(["a", "b", "c", "d/a", "d/b"]),
    st.sampled_from(["../outside", "../outside/secret", "d", ".", "b", "/etc", "d/../..", "missing"]),
    max_size=3,
)


@settings(max_examples=150)
@given(archives=st.lists(ARCHIVES, min_size=1, max_size=3), own=OWN_LINKS)
@example(archives=[[Spec(name=b".", kind=b"5"), Spec(name=b"y", kind=b"2", link=b"a/secret")]], own={"a": "../outside"})
@example(
    archives=[
        [Spec(name=b".", kind=b"5"), Spec(name=b"y", kind=b"2", link=b"f/../secret")],
        [Spec(name=b".", kind=b"5"), Spec(name=b"f", kind=b"2", link=b".")],
    ],
    own={},
)
@example(
    archives=[
        [
            Spec(name=b".", kind=b"5"),
            Spec(name=b"p/d/f", content=b"x"),
            Spec(name=b"p/x", kind=b"2", link=b"d/../../secret"),
        ]
    ],
    own={"p/d": "../../outside/a"},
)
def test_whatever_is_copied_over_a_directory_nothing_outside_changes(
    archives: list[list[Spec]], own: dict[str, str]
) -> None:
    """Copies one after the other, and links that were there before: none is followed, and no new one leads out."""
    with world() as (base, look):
        (base / "target" / "d").mkdir()
        for name, text in own.items():
            (base / "target" / name).parent.mkdir(exist_ok=True)
            (base / "target" / name).symlink_to(text)
        before, mine = look(), dict(own)
        for specs in archives:
            archive = base / "archive"
            archive.write_bytes(written([Spec(name=b"./", kind=b"5"), *specs], base / "outside"))
            with (
                tempfile.TemporaryDirectory(dir=base / "target", prefix=".") as contents,
                suppress(ArchiveRefused, CopyFailed, OSError),
            ):
                _put(archive, Path(contents, "contents"), base / "target")
            assert look() == before
            made = [link for link in links_in(base / "target") if mine.get(name_of(link, base)) != str(link.readlink())]
            mine = {name: text for name, text in mine.items() if (base / "target" / name).is_symlink()}
            for link in made:
                assert Path(os.path.realpath(link)).is_relative_to(base / "target")
            write_through(made)
            assert look() == before


def name_of(link: Path, base: Path) -> str:
    """Name a link as it was made."""
    return str(link.relative_to(base / "target"))


def unpacked(tmp_path: Path, data: bytes, **limits: float) -> Path:
    """Unpack an archive that is in memory."""
    (tmp_path / "target").mkdir()
    (tmp_path / "archive").write_bytes(data)
    unpack(tmp_path / "archive", tmp_path / "target", **limits)  # type: ignore[arg-type]  # only limits are numbers
    return tmp_path / "target"


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (member(b"../x"), 'the path "../x" leads outside its directory'),
        (member(b"a/../../x"), 'the path "a/../../x" leads outside its directory'),
        (pax({b"path": b"a/" * 128 + b"b"}) + member(b"x"), "more than 128 directories"),
        (pax({b"path": b"n" * 256}) + member(b"x"), "is too long here"),
        (pax({b"path": b"n" * 4096}) + member(b"x"), "is not a name"),
        (pax({b"path": b"a\0b"}) + member(b"x"), "is not a name"),
        (member(b"."), "names the directory itself"),
        (member(b"f", b"6"), '"f" is a device, a FIFO, or of an unknown type; leave it out'),
        (member(b"f", b"3"), '"f" is a device, a FIFO, or of an unknown type; leave it out'),
        (member(b"f\n\x1b[2Jok", b"4"), '"f ok" is a device'),
        (member(b"l", b"2", link=b"/etc"), 'the link "l" leads outside its directory'),
        (member(b"l", b"2", link=b".."), 'the link "l" leads outside its directory'),
        (
            member(b"l", b"2", link=b"x/../y"),
            'the link "l" goes up from outside the archive\'s directories',
        ),
        (member(b"l", b"2"), 'the link "l" points to an impossible path'),
        (member(b"l", b"2", link=b"x") + member(b"l/x"), '"l" is both a link and a directory'),
        (member(b"l/x") + member(b"l", b"2", link=b"x"), 'the path "l" occurs twice, with different types'),
        (member(b"l") + member(b"l/x"), 'cannot be unpacked: "l/x": Not a directory'),
        (member(b"h", b"1", link=b"x"), 'the hard link "h" points to no earlier file'),
        (member(b"d", b"5") + member(b"h", b"1", link=b"d"), "points to no earlier file"),
        (member(b"s", b"2", link=b"x") + member(b"h", b"1", link=b"s"), "points to no earlier file"),
        (member(b"h", b"1", link=b"x") + member(b"x"), "points to no earlier file"),
        (member(b"h", b"1", link=b"../archive"), 'the path "../archive" leads outside its directory'),
        (header(b"x", size=-1), "a size is out of range"),
        (header(b"x", size=1 << 63), "a size is out of range"),
        (header(b"x")[:-1] + b"!", "a header's checksum is wrong"),
        (member(b"x", b"M"), "one volume of several"),
        (header(b"x", b"x", size=0), "has 0 bytes, not 1 to 1048576"),
        (header(b"x", b"x", size=1 << 21), "has 2097152 bytes, not 1 to 1048576"),
        (header(b"x", b"L", size=1 << 21), "has 2097152 bytes, not 1 to 4096"),
        (header(b"x", b"K", size=1 << 21), "has 2097152 bytes, not 1 to 4096"),
        (long_name(b"n") + END, "it ends with an extended header"),
        (header(b"x", b"x", size=5) + padded(b"hello"), "not made of records"),
        (header(b"x", b"x", size=8) + padded(b"99 a=bc\n"), "not made of records"),
        (pax([(b"a", b"")] * 4097) + member(b"x"), "more than 4096 records"),
        (pax({b"path": b"y"}, b"g") + member(b"x"), "gives all members one path"),
        (pax({b"mtime": b"1e9"}) + member(b"x"), "a time is not a number"),
        (pax({b"size": b"9" * 21}) + member(b"x"), "a size is not a number"),
        (pax({b"GNU.sparse.map": b"0,1,0,1", b"GNU.sparse.size": b"9"}) + member(b"x"), "goes backwards"),
        (pax({b"GNU.sparse.map": b"8,2", b"GNU.sparse.size": b"9"}) + member(b"x"), "goes beyond its end"),
        (pax({b"GNU.sparse.map": b"8,1", b"GNU.sparse.size": b"9"}) + member(b"x"), "does not fit its content"),
        (pax({b"GNU.sparse.map": b"8,1"}) + member(b"x"), "a file with gaps has no size"),
        (pax({b"GNU.sparse.map": b"9,0," * 16400 + b"9", b"GNU.sparse.size": b"9"}) + member(b"x"), "16384 gaps"),
        (member(b"x", content=b"x" * 101), "they have more than 100 bytes"),
        (member(b"x", content=b"x" * 60) + member(b"x", content=b"x" * 60), "they have more than 100 bytes"),
        (pax({b"GNU.sparse.map": b"101,0", b"GNU.sparse.size": b"101"}) + member(b"x"), "more than 100 bytes"),
        (b"".join(member(b"%d" % each) for each in range(11)), "they are more than 10 files"),
        (member(b"a/b/c/d/e/f/g/h/i/j/k"), "they are more than 10 files"),
    ],
)
def test_what_is_refused_is_refused_by_a_sentence(tmp_path: Path, data: bytes, why: str) -> None:
    """It names the member and what is wrong with it, on one line."""
    with pytest.raises(ArchiveRefused) as caught:
        unpacked(tmp_path, data + END, size=100, members=10)
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1024


@pytest.mark.parametrize("end", [0, 100, 512, 600, 1024, 1030])
def test_an_archive_that_breaks_off_is_refused(tmp_path: Path, end: int) -> None:
    """Wherever it does, between two members too: the rest of a tree may be missing."""
    whole = member(b"x", content=b"x" * 100) + END
    with pytest.raises(ArchiveRefused, match="it is truncated"):
        unpacked(tmp_path, whole[:end])


def test_only_an_empty_directory_is_unpacked_into(tmp_path: Path) -> None:
    """What was there could be a link, or be taken for a file of the archive."""
    (tmp_path / "target").mkdir()
    (tmp_path / "link").symlink_to("target")
    (tmp_path / "archive").write_bytes(END)
    with pytest.raises(ArchiveRefused, match=r"link: (Not a directory|Too many levels of symbolic links)"):
        unpack(tmp_path / "archive", tmp_path / "link")
    (tmp_path / "target" / "file").touch()
    with pytest.raises(ArchiveRefused, match="target is not empty; unpack into a new directory"):
        unpack(tmp_path / "archive", tmp_path / "target")


def many(count: int, write: Callable[[int], bytes]) -> bytes:
    """Write many members."""
    return b"".join(map(write, range(count))) + END


HUNGRY: Mapping[str, Callable[[], bytes]] = {
    "name": lambda: header(b"x", b"L", size=500 << 20) + bytes(BLOCK) + END,
    "pax": lambda: header(b"x", b"x", size=500 << 20) + bytes(BLOCK) + END,
    "records": lambda: pax([(b"a", b"")] * 150_000) + member(b"x") + END,
    "for all": lambda: many(40, lambda _: pax([(b"k" * 1000 + b"%d" % each, b"v" * 100) for each in range(900)], b"g")),
    "map": lambda: pax({b"GNU.sparse.map": b"1," * 400_000 + b"1", b"GNU.sparse.size": b"9"}) + member(b"x") + END,
    "lines": lambda: pax({b"GNU.sparse.major": b"1", b"GNU.sparse.minor": b"0", b"GNU.sparse.realsize": b"9"})
    + member(b"x", content=b"9" * 19 + b"\n" + b"1\n" * (1 << 20))
    + END,
    "extensions": lambda: header(b"x", b"S")[:482] + b"\1" + header(b"x", b"S")[483:] + bytes(8 << 20),
    "links": lambda: many(1_500, lambda number: long_name(b"l" * 200 + b"%d" % number)
                  + long_name(b"t/" * 100 + b"x" * 3500, b"K") + header(b"x", b"2")),
    "directories": lambda: many(500, lambda number: long_name(b"d/" * 120 + b"%0200d" % (number % 2))
                                + header(b"x", b"5")),
}  # fmt: skip


@pytest.mark.parametrize("kind", HUNGRY)
def test_no_archive_takes_much_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Whatever it says of itself: limits hold before anything is kept. It may be refused, or harmless."""
    monkeypatch.setattr(_unpacking, "MOST_REMEMBERED", 1 << 22)  # with the true limit it takes half a minute
    (tmp_path / "target").mkdir()
    (tmp_path / "archive").write_bytes(HUNGRY[kind]())
    tracemalloc.start()
    try:
        with suppress(ArchiveRefused):
            unpack(tmp_path / "archive", tmp_path / "target", size=1 << 30, members=100_000)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 16 << 20


DEEP = b"d/" * 126
WEARING: Mapping[str, Callable[[], bytes]] = {
    "members": lambda: many(200, lambda number: long_name(b"%d/" % (number % 2) + DEEP + b"x") + header(b"x")),
    "links": lambda: long_name(DEEP + b"a") + header(b"x", b"5") + long_name(DEEP + b"b") + header(b"x", b"5")
    + many(200, lambda number: long_name(DEEP + b"l%d" % number) + long_name(b"a/../b/../" * 63 + b"x", b"K")
           + header(b"x", b"2")),
}  # fmt: skip


@pytest.mark.parametrize("kind", WEARING)
def test_an_archive_that_wears_the_file_system_out_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Each member is cheap to send, and opens hundreds of directories."""
    monkeypatch.setattr(_unpacking, "_STEPS", 10_000)
    with pytest.raises(ArchiveRefused, match="jumps between deep directories"):
        unpacked(tmp_path, WEARING[kind]())


def test_a_record_counts_itself() -> None:
    """The tests' own writer is right about lengths."""
    assert [record(b"k", b"v" * size)[:4] for size in (1, 4, 5, 93, 94)] == [
        b"6 k=",
        b"9 k=",
        b"11 k",
        b"99 k",
        b"101 ",
    ]
