"""Archives: what is packed, and what of an archive is taken."""

import io
import tarfile
from pathlib import Path

import pytest

from fleeting.archives import ArchiveRefused, pack, unpack


def member(
    name: str, kind: bytes = tarfile.REGTYPE, link: str = "", content: bytes = b""
) -> tuple[tarfile.TarInfo, bytes]:
    """Make one entry of an archive."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, link, len(content)
    return info, content


def archive_of(directory: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    """Write an archive, as an evil instance might."""
    path = directory / "evil.tar"
    with tarfile.open(path, "w") as tar:
        for info, content in members:
            tar.addfile(info, io.BytesIO(content))
    return path


@pytest.mark.parametrize(
    "members",
    [
        [member("../escaped", content=b"x")],
        [member("link", tarfile.SYMTYPE, ".."), member("link/escaped", content=b"x")],
        [member("link", tarfile.SYMTYPE, "../escaped")],
        [member("link", tarfile.SYMTYPE, "/etc")],
        [member("hard", tarfile.LNKTYPE, "../evil.tar")],
        [member("fifo", tarfile.FIFOTYPE)],
        [member("device", tarfile.CHRTYPE)],
        [
            member("a/b/c", tarfile.DIRTYPE),
            member("z", tarfile.SYMTYPE, "a/b/c/x/../../../../escaped"),
            member("a/b/c/x", tarfile.SYMTYPE, "../../.."),
        ],
        [member("big", content=b"x" * 101)],
    ],
    ids=["dots", "through", "link", "absolute", "hard", "fifo", "device", "chain", "large"],
)
def test_an_unsafe_archive_is_refused(tmp_path: Path, members: list[tuple[tarfile.TarInfo, bytes]]) -> None:
    """Nothing appears outside the target, whatever is tried."""
    target = tmp_path / "target"
    target.mkdir()
    archive = archive_of(tmp_path, *members)
    with pytest.raises(ArchiveRefused):
        unpack(archive, target, size=100)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["evil.tar", "target"]


def test_an_absolute_name_stays_inside(tmp_path: Path) -> None:
    """A leading slash means nothing."""
    target = tmp_path / "target"
    target.mkdir()
    unpack(archive_of(tmp_path, member("/absolute", content=b"x")), target, size=100)
    assert (target / "absolute").read_bytes() == b"x"


def test_garbage_is_no_archive(tmp_path: Path) -> None:
    """It is refused like an unsafe one."""
    (tmp_path / "archive").write_bytes(b"garbage!" * 250)
    (tmp_path / "target").mkdir()
    with pytest.raises(ArchiveRefused, match="the archive is broken: a checksum is not a number"):
        unpack(tmp_path / "archive", tmp_path / "target", size=100)


def test_what_is_packed_belongs_to_nobody(tmp_path: Path) -> None:
    """Who runs the manager is no business of the instance's."""
    (tmp_path / "file").write_text("x")
    with tarfile.open(fileobj=io.BytesIO(b"".join(pack({"a/b": tmp_path / "file"})))) as tar:
        (info,) = tar.getmembers()
    assert (info.name, info.uid, info.gid, info.uname, info.gname) == ("a/b", 0, 0, "", "")
