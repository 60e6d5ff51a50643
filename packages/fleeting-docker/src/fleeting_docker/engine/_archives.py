"""Small archives that are made here, for the daemon to unpack in a container. Pure."""

import io
import tarfile
from collections.abc import Mapping

from attrs import frozen


@frozen
class Entry:
    """A file, or a directory if there is no content."""

    content: bytes | None = None
    mode: int = 0o644
    owner: tuple[int, int] = (0, 0)
    """Ids of user and group."""


def tar_of(entries: Mapping[str, Entry]) -> bytes:
    """Pack entries, by their paths."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for path, entry in entries.items():
            member = tarfile.TarInfo(path)
            member.mode, (member.uid, member.gid) = entry.mode, entry.owner
            if entry.content is None:
                member.type = tarfile.DIRTYPE
            else:
                member.size = len(entry.content)
            tar.addfile(member, io.BytesIO(entry.content or b""))
    return buffer.getvalue()
