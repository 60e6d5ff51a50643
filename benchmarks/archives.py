"""Archives: unpacked beside Python's own tarfile, in the same run and by turns; and the memory that hostile ones take.

Python's does what it is recommended for archives that are not trusted: ``extractall(filter="data")``. Where it has no
filters (before 3.11.4), the ratio is left out. Everything happens in a temporary directory; the medians count.
"""

import os
import shutil
import statistics
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from _figures import report

from fleeting.archives import Kind, Member, header, pack, unpack

ROUNDS = 7
SMALL_FILES, SMALL = 3000, 4096
LARGE_FILES, LARGE = 8, 32 << 20

NAME = 500 << 20
"""Bytes of a name that no file system takes."""

HOSTILE = """
import sys
from contextlib import suppress
from pathlib import Path
from fleeting.archives import ArchiveRefused, unpack

def kib(key):
    return next(int(line.split()[1]) for line in Path("/proc/self/status").open() if line.startswith(key))

before = kib("VmRSS")
with suppress(ArchiveRefused):
    unpack(Path(sys.argv[1]), Path(sys.argv[2]), size=1 << 30, members=100_000)
print((kib("VmHWM") - before) / 1024)
"""


def tree(directory: Path, files: int, size: int) -> Path:
    """Make files, ten in a directory, and pack them."""
    for number in range(files):
        path = directory / "tree" / f"directory-{number // 10}" / f"file-{number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(size))
    with (directory / "archive").open("wb") as file:
        file.writelines(pack({"tree": directory / "tree"}))
    return directory / "archive"


def seconds(extract: Callable[[Path, Path], object], archive: Path) -> float:
    """Unpack into a new directory; making and removing that is not counted."""
    target = archive.with_name("target")
    target.mkdir()
    start = perf_counter()
    extract(archive, target)
    taken = perf_counter() - start
    shutil.rmtree(target)
    return taken


def with_tarfile(archive: Path, target: Path) -> None:
    """Do it as Python's documentation advises."""
    with tarfile.open(archive, "r:") as tar:
        tar.extractall(target, filter="data")


def compare(name: str, archive: Path) -> None:
    """Unpack by turns."""
    has_filters = hasattr(tarfile, "data_filter")
    pairs = [(seconds(unpack, archive), seconds(with_tarfile, archive) if has_filters else 1.0) for _ in range(ROUNDS)]
    if has_filters:
        report(f"extract_tar_ratio_{name}", statistics.median(own / theirs for own, theirs in pairs), "ratio", 1)
    report(f"extract_tar_ms_{name}", statistics.median(own for own, _ in pairs) * 1e3, "ms", None)


def long_name(directory: Path) -> Path:
    """Write an archive that announces a name of 500 MB, and has it."""
    archive = directory / "name"
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, NAME
    with archive.open("wb") as file:
        file.write(info.tobuf(tarfile.GNU_FORMAT))
        file.truncate(tarfile.BLOCKSIZE + NAME)
        file.seek(0, os.SEEK_END)
        file.write(header(Member(name=b"x")))
    return archive


def many_links(directory: Path) -> Path:
    """Write an archive of nothing but links with long texts: they are all there is to remember."""
    archive = directory / "links"
    with archive.open("wb") as file:
        for number in range(100_000):
            file.write(header(Member(name=b"%0200d" % number, kind=Kind.SYMLINK, link=b"x" * 3900)))
    return archive


def memory(archive: Path) -> float:
    """Unpack in a process of its own: MiB by which its peak exceeds what it had before."""
    target = archive.with_name("target")
    target.mkdir()
    command = [sys.executable, "-c", HOSTILE, str(archive), str(target)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    shutil.rmtree(target)
    return float(done.stdout)


if __name__ == "__main__":
    with TemporaryDirectory() as temporary:
        base = Path(temporary)
        print(f"Python {sys.version.split()[0]}, {os.cpu_count()} CPUs, medians of {ROUNDS} rounds", file=sys.stderr)
        for name, files, size in (("small", SMALL_FILES, SMALL), ("large", LARGE_FILES, LARGE)):
            (base / name).mkdir()
            compare(name, tree(base / name, files, size))
        report("hostile_archive_name_rss_mib", memory(long_name(base)), "MiB", 64)
        report("hostile_archive_links_rss_mib", memory(many_links(base)), "MiB", 64)
