"""As whom a container's script runs: by number, since only numbers own files. Pure but for one question."""

import io
import tarfile
from typing import Final

from fleeting_docker.engine import Engine, EngineRefused, quoted

_LARGEST: Final = 1 << 20
"""Bytes of a file of users that are read."""


async def ids_of(engine: Engine, container: str, user: str) -> tuple[int, int]:
    """Find the ids of a container's user, by ``name``, ``uid``, ``uid:gid`` or ``name:group``.

    One that is not known has root's: it is for the daemon to refuse him.
    """
    name, _, group = user.partition(":")
    if not name or (name.isdigit() and (group.isdigit() or not group)):
        return int(name or 0), int(group or 0)
    uid, gid = find(await _read(engine, container, "/etc/passwd"), name)
    if group:
        gid, _ = find(await _read(engine, container, "/etc/group"), group)
    return uid, gid


def find(table: str, name: str) -> tuple[int, int]:
    """Look a name up in the text of ``/etc/passwd``; in ``/etc/group``, the first number is the group's."""
    for line in table.splitlines():
        match line.split(":"):
            case [found, _, first, second, *_] if found == name and first.isdigit():
                return int(first), int(second) if second.isdigit() else 0
    return (int(name), 0) if name.isdigit() else (0, 0)


async def _read(engine: Engine, container: str, path: str) -> str:
    """Read a small file of a container; one that is not there is empty."""
    archive = bytearray()

    async def store(chunk: bytes) -> None:
        archive.extend(chunk[: _LARGEST - len(archive)])

    try:
        await engine.download(f"/containers/{quoted(container)}/archive", store, query={"path": path})
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            file = tar.extractfile(tar.getmembers()[0])
            return "" if file is None else file.read().decode(errors="replace")
    except (EngineRefused, tarfile.TarError, IndexError, KeyError):
        return ""
