"""What a job leaves behind: which files those are, as text for an instance, and how they are packed here.

An instance gives a tar archive for each set of artifacts. It is not trusted: `fleeting.archives` unpacks it into a
directory, where nothing leads out, and from that the file is made that GitLab gets. No link is followed.
"""

import gzip
import re
import stat
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from anyio import from_thread
from attrs import frozen

from fleeting.archives import ArchiveRefused, unpack
from gitlab_jobs import Artifact, Job
from taskscaler_gitlab.runner._globs import FIND, Pattern, listing, read_patterns
from taskscaler_gitlab.runner._options import Compression
from taskscaler_gitlab.runner._stages import When

MOST_ENTRIES = 100_000
"""Files, directories and links of one archive."""

MOST_BYTES = 1 << 32
"""Bytes of what is in one."""

_LEVELS: Mapping[Compression, int] = {"fastest": 0, "fast": 1, "default": 6, "slow": 7, "slowest": 9}
"""Of deflate; nothing is made smaller at 0."""

_PIECE = 1 << 20
_LONGEST_NAME = 100


@frozen(kw_only=True)
class KnownArtifact:
    """One set of artifacts of a job."""

    number: int
    artifact: Artifact
    patterns: tuple[Pattern, ...]
    excluded: tuple[Pattern, ...]
    when: When

    filename: str
    """What GitLab is to call the file."""

    @property
    def file(self) -> str:
        """Where it is below the directory of what is brought back."""
        return f"artifacts-{self.number}.tar"

    @property
    def type(self) -> str:
        """What it is for."""
        return self.artifact.artifact_type or "archive"


def artifacts_of(job: Job, expand: Callable[[str], str], project: str) -> tuple[list[KnownArtifact], list[str]]:
    """Read a job's artifacts; returns those that may have files, and what is wrong with patterns, a line each."""
    found, problems = [], []
    for number, artifact in enumerate(job.artifacts):
        patterns, outside = read_patterns(artifact.paths, expand, project)
        excluded, _ = read_patterns(artifact.exclude, expand, project)
        problems += [
            f"artifact path {path} is not in the project's directory, and left out; give paths below it"
            for path in outside
        ]
        if patterns or artifact.untracked:
            known = KnownArtifact(
                number=number,
                artifact=artifact,
                patterns=tuple(patterns),
                excluded=tuple(excluded),
                when=When.of(artifact.when),
                filename=_filename(artifact, expand(artifact.name)),
            )
            found.append(known)
    return found, problems


def _filename(artifact: Artifact, name: str) -> str:
    plain = re.sub(r"[\x00-\x1f/\\\x7f]", "_", name)[:_LONGEST_NAME].strip(". ") or "artifacts"
    ending = {"gzip": ".gz", "raw": ""}.get(artifact.artifact_format, ".zip")
    return plain if plain.endswith(ending) and ending else plain + ending


def collect_script(artifacts: Iterable[KnownArtifact]) -> str:
    """Write what packs artifacts, in the project's directory; the argument is where a leg begins."""
    lines = [FIND, "_t_failed=0"]
    for each in artifacts:
        listed = listing(each.patterns, each.excluded, untracked=each.artifact.untracked)
        lines.append(f'{listed} > "$1/list" 2> "$1/out/missing-{each.number}"')
        lines.append(f'[ ! -s "$1/list" ] || _t_tar "$1/out/{each.file}" "$1/list" || [ $? -eq 1 ] || _t_failed=1')
    return "\n".join([*lines, "exit $_t_failed"])


class NotPacked(Exception):
    """Artifacts cannot be given to GitLab; says why."""


def pack_artifacts(archive: Path, scratch: Path, target: Path, form: str, compression: Compression = "default") -> int:
    """Make of what came from an instance what GitLab gets; blocks, so call it in a thread.

    Args:
        archive: The tar archive, not trusted.
        scratch: A directory for its contents; does not exist, and is to be removed by the caller.
        target: The file; does not exist.
        form: ``zip``, ``gzip`` or ``raw``.
        compression: How hard to try.

    Returns:
        How many files and links it has.

    Raises:
        NotPacked: It is broken, too large, leads outside, or has what this format cannot have.
        OSError: There is no room here.
    """
    scratch.mkdir(mode=0o700)
    try:
        unpack(archive, scratch, size=MOST_BYTES, members=MOST_ENTRIES, modes=True)
    except ArchiveRefused as error:
        raise NotPacked(f"the artifacts were refused: {error}") from None
    entries = list(_walk(scratch))
    files = [path for path in entries if stat.S_ISREG(path.lstat().st_mode)]
    if form == "raw":
        _copy_one(files, target)
    elif form == "gzip":
        _gzip(files, target, _LEVELS[compression])
    elif form in ("", "zip"):
        _zip(entries, scratch, target, _LEVELS[compression])
    else:
        raise NotPacked(f"this runner cannot make artifacts of the format {form}; it makes zip, gzip and raw")
    return len(files) if form in ("raw", "gzip") else len(entries)


def _walk(top: Path) -> Iterator[Path]:
    """What is below a directory, links as themselves, directories if nothing is in them."""
    left = sorted(top.iterdir(), reverse=True)
    while left:
        path = left.pop()
        inner = sorted(path.iterdir(), reverse=True) if stat.S_ISDIR(path.lstat().st_mode) else []
        left += inner
        if not inner:
            yield path


def _zip(entries: Sequence[Path], top: Path, target: Path, level: int) -> None:
    deflate = zipfile.ZIP_DEFLATED
    with zipfile.ZipFile(target, "x", deflate, compresslevel=level, strict_timestamps=False) as archive:
        for path in entries:
            from_thread.check_cancelled()
            name = str(path.relative_to(top)).encode("utf-8", "surrogateescape").decode("utf-8", "replace")
            mode = path.lstat().st_mode
            if stat.S_ISREG(mode):
                archive.write(path, name)
                continue
            info = zipfile.ZipInfo(name + ("/" if stat.S_ISDIR(mode) else ""))
            info.create_system, info.external_attr = 3, (mode & 0xFFFF) << 16  # as on Unix
            archive.writestr(info, bytes(path.readlink()) if stat.S_ISLNK(mode) else b"")


def _gzip(files: Iterable[Path], target: Path, level: int) -> None:
    with target.open("xb") as out:
        for path in files:
            with gzip.GzipFile(path.name, "wb", level, fileobj=out, mtime=0) as packed:
                _copy(path, packed.write)


def _copy_one(files: Sequence[Path], target: Path) -> None:
    if len(files) != 1:
        raise NotPacked(f"artifacts of the format raw are one file, found {len(files)}")
    with target.open("xb") as out:
        _copy(files[0], out.write)


def _copy(path: Path, write: Callable[[bytes], object]) -> None:
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            from_thread.check_cancelled()
            write(piece)
