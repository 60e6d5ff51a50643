"""The file in which a router keeps its registered runners: whole at any time, and another process may change it."""

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from attrs import asdict, define, field

from fleeting.plugins import make_private, open_private, structure, write_whole
from taskscaler_gitlab.cells._registry import Registered, Registry

T = TypeVar("T")

MOST = 128 << 20
"""Bytes of the file: as many as the longest descriptions and all machines of all runners may have."""


@define(eq=False)
class RegistryFile:
    """It; every method blocks."""

    directory: Path
    expires_after: int | None = None
    _seen: tuple[int, int] | None = field(default=None, init=False)
    _registry: Registry = field(factory=Registry, init=False)

    @property
    def path(self) -> Path:
        """The file."""
        return self.directory / "runners.json"

    def read(self) -> Registry:
        """All runners, as they are now.

        Raises:
            OSError: The file cannot be read.
            ConfigError, ValueError: It is damaged.
        """
        try:
            stat = self.path.stat()
        except FileNotFoundError:
            self._registry = Registry(expires_after=self.expires_after)
            self._seen = None
            return self._registry
        seen = (stat.st_mtime_ns, stat.st_ino)
        if seen != self._seen:
            self._registry = self._parsed()
            self._seen = seen
        return self._registry

    def change(self, do: Callable[[Registry], T]) -> T:
        """Change them, and keep that before anybody hears of it. Raises as `read`."""
        make_private(self.directory)
        with self._locked():
            registry = self.read()
            before = (registry.last_id, dict(registry.runners))
            try:
                done = do(registry)
                if before != (registry.last_id, registry.runners):
                    self._write(registry)
            except BaseException:
                self._seen = None  # what is in memory may not be what is kept
                self._registry = Registry(expires_after=self.expires_after)
                raise
            return done

    def _write(self, registry: Registry) -> None:
        said = {"last_id": registry.last_id, "runners": [asdict(each) for each in registry.runners.values()]}
        write_whole(self.path, json.dumps(said).encode())
        stat = self.path.stat()
        self._seen = (stat.st_mtime_ns, stat.st_ino)
        self._registry = registry  # who has read meanwhile, on another thread, has found what was there before

    def _parsed(self) -> Registry:
        with os.fdopen(open_private(self.path, os.O_RDONLY), "rb") as file:
            said = json.loads(file.read(MOST))
        if not isinstance(said, dict) or type(said.get("last_id")) is not int:
            raise ValueError(f"{self.path} is not a list of runners; restore it, or remove it to begin again")
        runners = [structure(each, Registered, source=str(self.path)) for each in said.get("runners", [])]
        return Registry(self.expires_after, said["last_id"], {each.id: each for each in runners})

    @contextmanager
    def _locked(self) -> Iterator[None]:
        descriptor = open_private(self.directory / "runners.lock", os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)
