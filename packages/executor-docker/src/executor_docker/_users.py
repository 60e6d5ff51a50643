"""As whom a container's script runs: by number, since only numbers own files. Pure but for one question."""

from typing import Final

from fleeting_docker_engine import Engine, EngineRefused

_LARGEST: Final = 1 << 20
"""Bytes that a file of users may have."""

_DIGITS: Final = 10
"""Of an id; Linux has 32 bits for it."""


async def ids_of(engine: Engine, container: str, user: str) -> tuple[int, int]:
    """Find the ids of a container's user, by ``name``, ``uid``, ``uid:gid`` or ``name:group``.

    One that is not known has root's: it is for the daemon to refuse him.
    """
    name, _, group = user.partition(":")
    if (uid := _id(name or "0")) is not None and (gid := _id(group or "0")) is not None:
        return uid, gid
    uid, gid = find(await _read(engine, container, "/etc/passwd"), name)
    if group:
        gid, _ = find(await _read(engine, container, "/etc/group"), group)
    return uid, gid


def find(table: str, name: str) -> tuple[int, int]:
    """Look a name up in the text of ``/etc/passwd``; in ``/etc/group``, the first number is the group's."""
    for line in table.splitlines():
        match line.split(":"):
            case [found, _, first, second, *_] if found == name and (number := _id(first)) is not None:
                return number, _id(second) or 0
    return _id(name) or 0, 0


def _id(text: str) -> int | None:
    """Read an id; None if it is none."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _DIGITS else None


async def _read(engine: Engine, container: str, path: str) -> str:
    """Read a small file of a container; one that is not there is empty."""
    try:
        content = await engine.read_file(container, path, limit=_LARGEST)
    except EngineRefused:
        return ""
    return (content or b"").decode(errors="replace")
