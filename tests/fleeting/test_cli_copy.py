"""``fleeting cp``, over each connector."""

import filecmp
import os
import resource
import signal
import stat
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fleeting.archives import ArchiveRefused, pack
from fleeting.connectors._files import _TAKE, _put
from fleeting.errors import CopyFailed
from tests.fleeting.fleets import COMMAND, Fleet, local_fleet, ssh_fleet
from tests.fleeting.sshd import only_root
from tests.needs import need

pytestmark = pytest.mark.needs("tar")

MIB = 1 << 20

MANY = 1000
"""Files that take a moment to remove."""

MEMORY = 112
"""MiB of data that a copy may have in memory, buffers and Python's own included: over SSH, 8 MiB take more than 56."""

LARGE = 128
"""MiB of a file that does not fit into that."""


@pytest.fixture(params=[local_fleet, ssh_fleet])
def fleet(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Fleet]:
    """A group of each kind."""
    (tmp_path / "fleet").mkdir()
    with request.param(tmp_path / "fleet") as fleet:
        yield fleet


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A directory on this side."""
    (tmp_path / "here").mkdir()
    return tmp_path / "here"


@pytest.fixture
def there(tmp_path: Path) -> Path:
    """A directory of the instance's; all instances are on this host."""
    (tmp_path / "there").mkdir()
    return tmp_path / "there"


def contents(path: Path) -> Mapping[str, object]:
    """What there is in a directory, with modes; nothing but names tells where it is."""
    return {str(each.relative_to(path)): _content(each) for each in [path, *path.rglob("*")]}


def _content(path: Path) -> object:
    mode = stat.S_IMODE(path.lstat().st_mode)
    if path.is_symlink():
        return str(path.readlink())
    return mode if path.is_dir() else (mode, path.read_bytes())


def fill(directory: Path) -> Path:
    """Make a directory with whatever is special about names, modes and links."""
    directory.mkdir()
    (directory / "a b").mkdir()
    (directory / "empty").mkdir(mode=0o750)
    (directory / "a b" / "new\nline").write_bytes(b"\0\xff" * 1000)
    (directory / "a b" / os.fsdecode(b"no \xff utf-8")).write_bytes(b"x")
    (directory / "-r").write_text("")
    (directory / ("long" * 60)).write_text("long")
    for mode in (0o400, 0o644, 0o666, 0o755, 0o777):
        (directory / f"{mode:o}").write_text(f"{mode:o}")
        (directory / f"{mode:o}").chmod(mode)
    (directory / "link").symlink_to("a b")
    return directory


def test_a_directory_goes_up_and_comes_down_as_it_is(fleet: Fleet, here: Path, there: Path) -> None:
    """Names, bytes, modes and links; to a new name, and into a directory."""
    instance, source = fleet.grow(), fill(here / "source")
    for target, made in ((f"{there}/new", there / "new"), (f"{there}", there / "source"), (f"{there}/", None)):
        done = fleet.fleeting("cp", str(source), f"{instance}:{target}")
        assert (done.exit_code, done.output) == (0, "")
        if made:
            assert contents(made) == contents(source)
    for target, made in ((f"{here}/down", here / "down"), (f"{here}/down", here / "down" / "new")):
        assert fleet.fleeting("cp", f"{instance}:{there}/new", target).exit_code == 0
        assert contents(made) == contents(source)
        if made.parent == here:
            fleet.fleeting("cp", f"{instance}:{there}/new", str(here / "down"))


def test_a_file_goes_up_and_comes_down_as_it_is(fleet: Fleet, here: Path, there: Path) -> None:
    """To a new name, into a directory, and in place of one that is there."""
    instance, name = fleet.grow(), "a\nfile 'with' $(name)"
    (here / name).write_bytes(b"x")
    (here / name).chmod(0o751)
    for target in (f"{there}", f"{there}/", f"{there}/other", f"{there}/other", f"{there}/-v"):
        assert fleet.fleeting("cp", str(here / name), f"{instance}:{target}").output == ""
    assert set(contents(there)) == {".", name, "other", "-v"}
    assert _content(there / name) == _content(there / "other") == (0o751, b"x")
    (there / "other").write_bytes(b"y")
    for target in (f"{here}", f"{here}/", f"{here}/new", f"{here}/new"):
        assert fleet.fleeting("cp", f"{instance}:{there}/other", target).output == ""
    assert _content(here / "other") == _content(here / "new") == (0o751, b"y")
    assert set(contents(here)) == {".", name, "other", "new"}


def test_a_relative_path_begins_where_commands_start(fleet: Fleet, here: Path) -> None:
    """On the instance; without any path, it is that directory."""
    instance, name = fleet.grow(), f"copy-{os.getpid()}"
    (here / name).write_text("x")
    try:
        assert fleet.fleeting("cp", str(here / name), f"{instance}:").output == ""
        assert fleet.piped("run", instance, "--", "cat", name).stdout == b"x"
        assert fleet.fleeting("cp", f"{instance}:{name}", str(here / "back")).output == ""
        assert (here / "back").read_text() == "x"
    finally:
        fleet.fleeting("run", instance, "--", "rm", "-f", name)


def test_directories_are_merged(fleet: Fleet, here: Path, there: Path) -> None:
    """What is only at the target stays; what is on both sides is replaced."""
    instance = fleet.grow()
    for side, only in ((here, "mine"), (there, "theirs")):
        (side / "d" / "deep").mkdir(parents=True)
        (side / "d" / "deep" / only).write_text(only)
        (side / "d" / "both").write_text(only)
    assert fleet.fleeting("cp", str(here / "d"), f"{instance}:{there}").output == ""
    assert {path.name for path in (there / "d").rglob("*")} == {"deep", "mine", "theirs", "both"}
    assert (there / "d" / "both").read_text() == "mine"
    (there / "d" / "both").write_text("changed")
    assert fleet.fleeting("cp", f"{instance}:{there}/d", str(here)).output == ""
    assert {path.name for path in (here / "d").rglob("*")} == {"deep", "mine", "theirs", "both"}
    assert (here / "d" / "both").read_text() == "changed"


def test_merging_follows_no_link_on_this_side(fleet: Fleet, here: Path, there: Path) -> None:
    """Nothing comes to where a link leads."""
    (here / "outside").mkdir()
    (here / "d").mkdir()
    (here / "d" / "sub").symlink_to(here / "outside")
    (there / "d" / "sub").mkdir(parents=True)
    (there / "d" / "sub" / "file").write_text("x")
    done = fleet.fleeting("cp", f"{fleet.grow()}:{there}/d", str(here))
    assert (done.exit_code, "the copy failed here:" in done.stderr) == (1, True)
    assert list((here / "outside").iterdir()) == []


@pytest.mark.parametrize(
    ("source", "target", "told"),
    [
        ("{here}/nix", "{i}:{there}", "the copy failed here: {here}/nix: No such file or directory"),
        ("{here}/file", "{i}:{there}/nix/x", "the copy failed on {i}: there is no directory {there}/nix/"),
        ("{here}/file", "{i}:{there}/nix/", "the copy failed on {i}: there is no directory {there}/nix/"),
        ("{here}/d", "{i}:{there}/file", "the copy failed on {i}: {there}/file is not a directory"),
        ("{here}/file", "{i}:{there}/in", "the copy failed on {i}: {there}/in/file is a directory"),
        ("{here}/file", "{i}:/proc", "the copy failed on {i}: mkdir: cannot create directory"),
        ("{here}/fifo", "{i}:{there}", "the copy failed here: {here}/fifo is neither a file nor a directory"),
        ("/", "{i}:{there}", "the copy failed here: a whole file system cannot be copied"),
        ("{i}:{there}/nix", "{here}", "the copy failed on {i}: there is no {there}/nix"),
        ("{i}:{there}/fifo", "{here}", "the copy failed on {i}: {there}/fifo is neither a file nor a directory"),
        ("{i}:{there}/file", "{here}/nix/x", "the copy failed here: there is no directory {here}/nix"),
        ("{i}:{there}/file", "{here}/nix/", "the copy failed here: there is no directory {here}/nix"),
        ("{i}:{there}/file", "/proc", "the copy failed here: /proc/"),
        ("{i}:{there}/in", "{here}/file", "the copy failed here: {here}/file: Not a directory"),
        ("{i}:{there}/file", "{here}/in", "the copy failed here: {here}/in/file: Is a directory"),
        ("{i}:{there}/bad", "{here}", 'the copy failed here: the link "link" leads outside its directory'),
        ("{i}:", "{here}", "{here} is a directory, but the copy has no name; write {here}/NAME"),
        ("x:a", "{here}", "instance x does not exist; the group has {i}"),
    ],
)
def test_what_cannot_be_copied_is_told(tmp_path: Path, source: str, target: str, told: str) -> None:
    """One sentence that says on which side; nothing is left behind on either."""
    here, there = tmp_path / "here", tmp_path / "there"
    for side in (here, there):
        (side / "d").mkdir(parents=True)
        (side / "file").write_text("x")
        (side / "in" / "file").mkdir(parents=True)
        os.mkfifo(side / "fifo")
    (there / "bad").mkdir()
    (there / "bad" / "link").symlink_to("/etc")
    before = sorted(here.rglob("*")), sorted(there.rglob("*"))
    with local_fleet(tmp_path) as fleet:
        words = {"here": str(here), "there": str(there), "i": fleet.grow()}
        done = fleet.fleeting("cp", source.format(**words), target.format(**words))
    assert done.exit_code == 1
    assert told.format(**words) in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert (sorted(here.rglob("*")), sorted(there.rglob("*"))) == before


def test_one_side_has_to_be_an_instance(tmp_path: Path) -> None:
    """Else the arguments are wrong, and so they are if both are."""
    with local_fleet(tmp_path) as fleet:
        instance = fleet.grow()
        neither, both = fleet.fleeting("cp", "a", "b"), fleet.fleeting("cp", f"{instance}:a", f"{instance}:b")
    assert "neither SRC nor DST is on an instance; write INSTANCE:PATH" in neither.stderr
    assert "both are on instances; copy to this machine first" in both.stderr
    assert (neither.exit_code, both.exit_code) == (2, 2)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A disk that holds 1 MiB."""
    need("mount", "umount")
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["/bin/mount", "-t", "tmpfs", "-o", "size=1m", "none", disk], check=False).returncode:
        pytest.skip("nothing may be mounted here")
    yield disk
    subprocess.run(["/bin/umount", disk], check=True)


@only_root
def test_a_full_disk_is_told(fleet: Fleet, here: Path, small: Path) -> None:
    """On either side; it is not kept full by what had come."""
    instance = fleet.grow()
    (here / "big").write_bytes(bytes(2 * MIB))
    done = fleet.fleeting("cp", str(here / "big"), f"{instance}:{small}")
    assert (done.exit_code, done.stderr.count("\n")) == (1, 1)
    assert f"the copy failed on {instance}: no space is left for {small}/big" in done.stderr
    assert list(small.iterdir()) == []
    done = fleet.fleeting("cp", f"{instance}:{here}/big", str(small))
    assert (done.exit_code, done.stderr.count("\n")) == (1, 1)
    assert f"the copy failed here: {small}/big: No space left on device" in done.stderr
    assert list(small.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_copy_leaves_nothing(fleet: Fleet, here: Path, there: Path, number: signal.Signals) -> None:
    """Neither the file nor a part of it; on both sides, and both ways."""
    (here / "source").mkdir()
    (here / "source" / "big").touch()
    os.truncate(here / "source" / "big", 8192 * MIB)  # takes no room, and long
    instance = fleet.grow()
    for arguments, stage in (
        ((str(here / "source"), f"{instance}:{there}/x"), there),
        ((f"{instance}:{here}/source", f"{there}/x"), there),
    ):
        with subprocess.Popen([COMMAND, "cp", str(fleet.config), *arguments]) as process:
            while not list(stage.iterdir()):
                with pytest.raises(subprocess.TimeoutExpired):  # which looks now and then, and leaves it the core
                    process.wait(0.05)
            process.send_signal(number)
            assert process.wait() == 128 + number
        assert list(there.iterdir()) == []


def test_an_archive_that_breaks_off_is_not_taken_for_a_whole_one(here: Path, there: Path) -> None:
    """Wherever the connection broke: tar itself is content with some of these."""
    source = fill(here / "source")
    whole = b"".join(pack({"data": source}, last="last"))
    for end in range(0, len(whole) - 1024, 512):
        command = ["/bin/sh", "-c", _TAKE, "sh", str(there / "x"), "source", "directory", ".stage"]
        assert subprocess.run(command, input=whole[:end], stderr=subprocess.DEVNULL, check=False).returncode
        assert list(there.iterdir()) == []


@pytest.mark.parametrize("members", [[], ["a", "b"], ["link"], ["link", "a"]])
def test_an_instance_that_sends_something_else_is_refused(here: Path, there: Path, members: list[str]) -> None:
    """One file was asked for; what an instance packs is its own choice."""
    archive, unpacked = there / "archive.tar", there / "contents"
    with tarfile.open(archive, "w") as tar:
        for name in members:
            member = tarfile.TarInfo(name)
            member.type, member.linkname = (tarfile.SYMTYPE, "a") if name == "link" else (tarfile.REGTYPE, "")
            tar.addfile(member)
    with pytest.raises(CopyFailed, match="something other than the requested file"):
        _put(archive, unpacked, here / "file")
    assert list(here.iterdir()) == []


@pytest.mark.parametrize(
    ("own", "why"),
    [
        ({"d": "here/outside"}, "is a link, but the copy is a directory"),
        ({"d/sub": "../outside"}, "Not a directory"),
        ({"d/y": "../outside"}, 'the link "x" leads outside its directory'),
        ({"d/file/in": "nothing"}, "Is a directory"),
    ],
)
def test_what_is_in_the_way_has_nothing_copied(tmp_path: Path, own: Mapping[str, str], why: str) -> None:
    """Links and directories that were here before; half of a copy would be worse than none."""
    there, here = tmp_path / "there", tmp_path / "here"
    (there / "sub").mkdir(parents=True)
    (there / "file").write_text("x")
    (there / "x").symlink_to("y/secret")
    (here / "outside").mkdir(parents=True)
    for name, text in own.items():
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).symlink_to(text)
    before = sorted(here.rglob("*"))
    (tmp_path / "archive").write_bytes(b"".join(pack({".": there})))
    with pytest.raises((CopyFailed, ArchiveRefused, OSError), match=why):
        _put(tmp_path / "archive", tmp_path / "contents", here / "d")
    assert sorted(here.rglob("*")) == before


def test_what_is_ended_while_it_clears_away_still_does(here: Path, there: Path) -> None:
    """A copy that is given up gets the end of its input first, and the signal after that."""
    (here / "source").mkdir()
    for number in range(MANY):
        (here / "source" / str(number)).touch()
    whole = b"".join(pack({"data": here / "source"}))
    for _ in range(2):
        command = ["/bin/sh", "-c", _TAKE, "sh", str(there / "x"), "source", "directory", ".stage"]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        ) as process:
            assert process.stdin is not None and process.stderr is not None  # noqa: PT018  (for the type checker)
            process.stdin.write(whole)
            process.stdin.close()
            process.stderr.readline()
            with suppress(FileNotFoundError):  # it was faster
                while len(list((there / ".stage" / "data").iterdir())) == MANY:
                    pass
            os.killpg(process.pid, signal.SIGTERM)
        assert list(there.iterdir()) == []


NAMES = st.binary(min_size=1, max_size=40).filter(lambda name: not {0, 47} & set(name) and name not in (b".", b".."))
TREES = st.recursive(
    st.tuples(st.binary(max_size=2000), st.integers(0, 0o777).map(lambda mode: mode | 0o400)),
    lambda inner: st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=8,
)
Tree = Mapping[bytes, "Tree"] | tuple[bytes, int]


def plant(tree: Tree, path: bytes) -> None:
    """Make what hypothesis has thought of."""
    if isinstance(tree, tuple):
        Path(os.fsdecode(path)).write_bytes(tree[0])
        Path(os.fsdecode(path)).chmod(tree[1])
        return
    Path(os.fsdecode(path)).mkdir()
    for name, inner in tree.items():
        plant(inner, path + b"/" + name)


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Fleet, str]]:
    """A group with one instance, for many copies."""
    with local_fleet(tmp_path_factory.mktemp("grown")) as fleet:
        yield fleet, fleet.grow()


@settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.too_slow])
@given(tree=TREES)
def test_whatever_goes_up_comes_down_the_same(grown: tuple[Fleet, str], tree: Tree) -> None:
    """Any names, any bytes, any modes that the owner can read."""
    fleet, instance = grown
    with tempfile.TemporaryDirectory() as directory:
        base = Path(directory)
        plant(tree, os.fsencode(base / "source"))
        assert fleet.fleeting("cp", str(base / "source"), f"{instance}:{base}/there").output == ""
        assert fleet.fleeting("cp", f"{instance}:{base}/there", str(base / "back")).output == ""
        assert contents(base / "source") == contents(base / "there") == contents(base / "back")


@pytest.mark.slow
def test_large_copies_take_little_memory(fleet: Fleet, here: Path, there: Path) -> None:
    """A file that is larger than all the memory that a copy may have is nowhere in memory as a whole."""
    instance = fleet.grow()
    with (here / "big").open("wb") as file:
        for _ in range(LARGE):
            file.write(os.urandom(MIB))
    for source, target in (
        (f"{here}/big", f"{instance}:{there}/big"),
        (f"{instance}:{there}/big", f"{here}/back"),
    ):
        command = [COMMAND, "cp", str(fleet.config), source, target]
        subprocess.run(command, check=True, preexec_fn=_bound_memory)
    assert filecmp.cmp(here / "big", here / "back", shallow=False)


def _bound_memory() -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY * MIB, MEMORY * MIB))
