"""Named caches: volumes that stay on the instance and, if asked for, archives that stay on the manager."""

import math
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Self
from uuid import uuid4

import anyio
from anyio import to_thread
from attrs import frozen

from executor_docker._artifacts import COLLECT_TIMEOUT, save
from executor_docker._config import DockerConfig
from executor_docker._owner import CACHE, KIND
from fleeting.archives import CHUNK, END, ArchiveRefused
from fleeting.errors import SystemRefused
from fleeting.plugins import format_duration, make_private, open_private
from fleeting_docker_engine import Engine, EngineRefused, quoted

PREFIX = "taskscaler-cache-"
"""What the names of the volumes begin with."""

NOT_FOUND = 404


@frozen
class Caches:
    """The caches of one job."""

    places: Mapping[str, str]
    """Where each is in the container, by its name."""

    fresh: frozenset[str]
    """Names of those that are new on this instance, and empty."""

    @property
    def volumes(self) -> Mapping[str, str]:
        """Volumes by their places."""
        return {place: f"{PREFIX}{name}" for name, place in self.places.items()}


async def prepare(engine: Engine, places: Mapping[str, str]) -> Caches:
    """Make the volumes that are not there yet."""
    return Caches(places, frozenset([name for name in places if await _is_made(engine, name)]))


async def _is_made(engine: Engine, name: str) -> bool:
    """Make a cache's volume; False if it is there already."""
    volume = f"{PREFIX}{name}"
    try:
        await engine.ask("GET", f"/volumes/{quoted(volume)}")
    except EngineRefused as error:
        if error.status != NOT_FOUND:
            raise
        await engine.ask("POST", "/volumes/create", json={"Name": volume, "Labels": {KIND: CACHE}})
        return True
    return False


async def fill(engine: Engine, config: DockerConfig, caches: Caches, container: str) -> list[str]:
    """Put into caches that are new what the manager has kept of them; returns what went wrong, a sentence each."""
    warnings = []
    for name in caches.fresh:
        archive = _archive(config, name)
        if archive:
            try:
                await _fill(engine, container, caches.places[name], archive)
            except OSError as error:
                warnings.append(f"the cache {name} was not taken from the manager: {SystemRefused(error)}")
    return warnings


async def _fill(engine: Engine, container: str, place: str, archive: Path) -> None:
    """Fill one cache, if there is something for it that nobody but us can have put there."""
    path, query = f"/containers/{quoted(container)}/archive", {"path": place}
    if await anyio.Path(archive).exists():
        await to_thread.run_sync(make_private, archive.parent)
        async with await anyio.open_file(archive, "rb", opener=open_private) as file:
            await engine.ask("PUT", path, query=query, body=_Chunks(file), patience=math.inf)


async def keep(engine: Engine, config: DockerConfig, caches: Caches, container: str) -> list[str]:
    """Keep the caches of a job that has succeeded on the manager; returns what went wrong, a sentence each."""
    warnings = []
    for name, place in caches.places.items():
        archive = _archive(config, name)
        if archive:
            why = f"it took longer than {format_duration(COLLECT_TIMEOUT)}"
            with anyio.move_on_after(COLLECT_TIMEOUT):
                why = await _keep(engine, container, place, archive, config.cache_limit)
            warnings += [f"the cache {name} was not kept on the manager: {why}"] if why else []
    return warnings


async def _keep(engine: Engine, container: str, place: str, archive: Path, limit: int) -> str:
    """Keep one cache, whole or not at all; returns why not, or nothing."""
    top = PurePosixPath(place).name

    def below(name: str) -> str | None:
        path = PurePosixPath(name)
        inside = path.parts[1:] if path.parts[:1] == (top,) else ()
        return str(PurePosixPath(*inside)) if inside and ".." not in inside else None

    draft = archive.with_name(f".{archive.name}-{uuid4().hex}")
    try:
        await to_thread.run_sync(make_private, archive.parent)
        async with await anyio.open_file(draft, "wb", opener=open_private) as file:
            await save(engine, container, place, below, file, limit=limit)
            await file.write(END)
        await to_thread.run_sync(draft.replace, archive)
    except ArchiveRefused as error:
        return str(error)
    except OSError as error:
        return str(SystemRefused(error))
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
    return ""


def _archive(config: DockerConfig, name: str) -> Path | None:
    return None if config.cache_dir is None else Path(config.cache_dir, f"{name}.tar")


@frozen
class _Chunks:
    """An open file, as what a request carries."""

    _file: anyio.AsyncFile[bytes]

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        chunk = await self._file.read(CHUNK)
        if not chunk:
            raise StopAsyncIteration
        return chunk
