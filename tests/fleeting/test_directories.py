"""What is kept on the manager's machine is kept from its other users, whatever the umask, whoever was there first."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleeting import ConnectError, GroupRefused, JournalError, SqliteJournal
from fleeting.connectors.ssh import FileHostKeys
from fleeting.plugins import PrivateDirectory, make_private, open_private, write_whole
from tests.fleeting.sshd import only_root

NOBODY = 65534


@pytest.fixture(params=[0o000, 0o022, 0o077], ids=oct)
def _umask(request: pytest.FixtureRequest) -> Iterator[None]:
    """New files are open to everybody, to readers, or to nobody else."""
    before = os.umask(request.param)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    """Its permissions."""
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.usefixtures("_umask")
def test_what_is_made_is_private_with_all_above_it(tmp_path: Path) -> None:
    """Who can write into a directory above can put another one in its place."""
    place = tmp_path / "a" / "b" / "c"
    make_private(place)
    with open(place / "file", "w", opener=open_private) as file:
        file.write("secret")
    assert [mode(path) for path in (place, place.parent, place.parent.parent)] == [0o700] * 3
    assert mode(place / "file") == 0o600


@given(st.integers(0, 0o777).map(lambda rest: rest | 0o700), st.booleans())
def test_what_others_can_write_is_refused_or_hidden(
    tmp_path_factory: pytest.TempPathFactory,
    old: int,
    hide: bool,  # noqa: FBT001  (as `make_private`)
) -> None:
    """One that is there already is used only if nobody else can put anything into it."""
    place = tmp_path_factory.mktemp("there")
    place.chmod(old)
    if old & 0o022 and not hide:
        with pytest.raises(PermissionError, match="belongs to or can be written by another user"):
            make_private(place)
        assert mode(place) == old
    else:
        make_private(place, hide=hide)
        assert mode(place) == (0o700 if hide else old)


def test_a_file_that_is_there_is_closed_to_others_and_a_link_is_not_followed(tmp_path: Path) -> None:
    """Somebody may have put it there while the directory was open."""
    target, link, pipe = tmp_path / "target", tmp_path / "link", tmp_path / "pipe"
    target.write_text("precious")
    target.chmod(0o666)
    link.symlink_to(target)
    os.mkfifo(pipe)
    for path, why in ((link, "it is a link"), (pipe, "it is not a regular file")):
        with pytest.raises(OSError, match=why):
            os.close(open_private(path, os.O_RDWR | os.O_CREAT))
    assert mode(target) == 0o666
    os.close(open_private(target, os.O_RDWR))
    assert mode(target) == 0o600


@only_root
def test_what_belongs_to_another_user_is_refused(tmp_path: Path) -> None:
    """Its owner can change it at any time."""
    place, file = tmp_path / "place", tmp_path / "file"
    place.mkdir()
    file.touch()
    for path in (place, file):
        os.chown(path, NOBODY, NOBODY)
    for hide in (False, True):
        with pytest.raises(PermissionError, match="another user"):
            make_private(place, hide=hide)
    with pytest.raises(PermissionError, match="another user"):
        os.close(open_private(file, os.O_RDWR))


@pytest.mark.anyio
async def test_a_journal_is_not_kept_where_others_can_write(tmp_path: Path) -> None:
    """Neither the file nor the locks: who can write there decides what the manager believes, or keeps it out."""
    place = tmp_path / "shared"
    place.mkdir(mode=0o777)
    place.chmod(0o777)
    refused = r"shared cannot be used: it belongs to or can be written by another user; put the journal in a dir"
    for journal in (SqliteJournal(place / "a"), SqliteJournal(tmp_path / "own" / "a", locks=place)):
        with pytest.raises(JournalError, match=refused):
            await journal.open(["group"], "me", {})
    assert list(place.iterdir()) == []


@pytest.mark.anyio
@pytest.mark.parametrize("name", ["a", "a.lock"])
async def test_a_journal_follows_no_link(tmp_path: Path, name: str) -> None:
    """Its mode would be changed, and its content, wherever it leads."""
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "precious").chmod(0o644)
    (tmp_path / name).symlink_to(tmp_path / "precious")
    with pytest.raises(JournalError, match="cannot be used: it is a link"):
        await SqliteJournal(tmp_path / "a").open(["group"], "me", {})
    assert (mode(tmp_path / "precious"), (tmp_path / "precious").read_text()) == (0o644, "precious")


@pytest.mark.anyio
async def test_host_keys_that_others_could_have_pinned_are_not_believed(tmp_path: Path) -> None:
    """Nor are any pinned beside them."""
    pins = FileHostKeys(tmp_path / "pins")
    await pins.pin("i-1", "ssh-ed25519 AAAA")
    pins.directory.chmod(0o777)
    with pytest.raises(ConnectError, match="may belong to another user; make the directory your own, with mode 0700"):
        await pins.get("i-1")
    with pytest.raises(ConnectError, match=r"cannot be pinned in .*: it belongs to or can be written by another user"):
        await pins.pin("i-2", "ssh-ed25519 AAAA")


def test_where_no_directory_can_be_made_nobody_tries_for_ever() -> None:
    """Some file systems, such as this one and those that mount others, say that a new directory is not there."""
    with pytest.raises(GroupRefused, match=r"/proc/fleeting cannot be made: .*; set plugin_config.directory"):
        PrivateDirectory(Path("/proc/fleeting"), "the instances", "plugin_config.directory").claim()


def test_a_file_that_cannot_be_written_is_called_by_its_own_name(tmp_path: Path) -> None:
    """And not by that of the file which is written first, of which nobody has heard."""
    with pytest.raises(FileNotFoundError) as refusal:
        write_whole(tmp_path / "absent" / "report.xml", b"")
    assert refusal.value.filename == str(tmp_path / "absent" / "report.xml")
