"""Tar archives on the manager's side: packs what a job needs, unpacks what it leaves.

What comes back from a job is not trusted. Only files, directories and links are taken; links are made after
everything else, so that nothing is ever written through one, and must end inside the target.
"""

import io
import os
import tarfile
from collections.abc import Mapping
from pathlib import Path

MOST_MEMBERS = 100_000
"""So many files, directories and links are unpacked at most."""


class ArchiveRefused(Exception):
    """The archive is broken, too large, or reaches outside its target; the message says which."""


def pack(files: Mapping[str, Path]) -> bytes:
    """Pack files and directories, by the path that each shall have, owned by nobody in particular."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, path in files.items():
            tar.add(path, arcname=name, filter=_without_owner)
    return buffer.getvalue()


def unpack(archive: Path, target: Path, *, limit: int) -> None:
    """Unpack into the empty directory *target* at most *limit* bytes.

    Raises:
        ArchiveRefused: The target may hold a part by then; remove it.
    """
    try:
        with tarfile.open(archive, "r:") as tar:
            members = _acceptable_members(tar, limit)
            for member in sorted(members, key=tarfile.TarInfo.issym):
                tar.extract(member, target, filter="data")
    except (tarfile.TarError, OSError, ValueError, OverflowError, KeyError, EOFError) as error:  # all seen to come
        raise ArchiveRefused(f"the archive is broken or unsafe: {error}") from error
    _refuse_links_that_leave(target, [target / member.name for member in members if member.issym()])


def _without_owner(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def _acceptable_members(tar: tarfile.TarFile, limit: int) -> list[tarfile.TarInfo]:
    """List the members, each path once: overlapping globs name one file several times."""
    members: dict[str, tarfile.TarInfo] = {}
    size = 0
    for member in tar:
        size += member.size
        if size > limit:
            raise ArchiveRefused(f"they have more than {limit} bytes; raise artifact_limit")
        members.setdefault(os.path.normpath(member.name), member)
        if len(members) > MOST_MEMBERS:
            raise ArchiveRefused(f"they are more than {MOST_MEMBERS} files; pack them in the job")
    return list(members.values())


def _refuse_links_that_leave(target: Path, links: list[Path]) -> None:
    """Follow every link once all exist: each by itself may look harmless."""
    root = target.resolve()
    for link in links:
        if not Path(os.path.realpath(link)).is_relative_to(root):
            raise ArchiveRefused(f"the link {link.relative_to(target)} leads outside the job's directory")
