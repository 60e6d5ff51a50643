"""The settings with which jobs were begun: a job goes on with its own after the file has changed.

Otherwise a job that outlives the runner could be looked for with another executor, or in another directory, and begin a
second time. Each version of the settings is one file for our user alone, named after what is in it, and is removed once
no job needs it.
"""

import json
from collections.abc import Collection
from hashlib import sha256
from pathlib import Path
from typing import Any

from attrs import Attribute, asdict, evolve, frozen

from fleeting import Duration
from fleeting.plugins import make_private, structure, write_whole
from gitlab_jobs import shorten
from taskscaler_gitlab._settings import RunnerSettings

_LENGTH = 16
_MOST = 16 << 20
"""Bytes of settings, certificates included."""


@frozen
class NotedSettings:
    """The directory in which they are."""

    path: Path

    def keep(self, settings: RunnerSettings) -> str:
        """Note settings down; returns their name. Blocks.

        Raises:
            OSError: They cannot be written.
        """
        data = _encode(settings)
        name = sha256(data).hexdigest()[:_LENGTH]
        make_private(self.path)
        if not self._file(name).exists():
            write_whole(self._file(name), data)
        return name

    def read(self, name: str, now: RunnerSettings) -> RunnerSettings:
        """Read settings; what is none of a job's business is as it is *now*. Blocks.

        Raises:
            OSError, ValueError, ConfigError: They cannot be read.
        """
        with self._file(name).open("rb") as file:
            data = file.read(_MOST)
        if sha256(data).hexdigest()[:_LENGTH] != name:
            raise ValueError("it was changed")
        found = structure(json.loads(data), RunnerSettings)
        own = now.taskscaler
        return evolve(found, taskscaler=evolve(found.taskscaler, **{each: getattr(own, each) for each in _OF_RUNNER}))

    def has_others(self, names: Collection[str]) -> bool:
        """Whether there are settings of other names, with which jobs may have started. Blocks."""
        return any(file.stem not in names for file in self.path.iterdir())

    def forget_others(self, names: Collection[str]) -> None:
        """Remove all that have other names. Blocks."""
        for file in self.path.iterdir():
            if file.stem not in names:
                file.unlink(missing_ok=True)

    def _file(self, name: str) -> Path:
        return self.path / f"{name}.json"


_OF_RUNNER = frozenset({"retention", "cache_retention", "state_dir", "upstreams"})
"""What of our own table no job notices."""


def _encode(settings: RunnerSettings) -> bytes:
    noted = evolve(settings, token=_beginning(settings.token))
    return json.dumps(asdict(noted, filter=_is_of_jobs, value_serializer=_written), sort_keys=True).encode()


def _written(_: object, field: "Attribute[Any] | None", value: object) -> object:
    """Write a duration as the schema reads it, with its unit."""
    is_duration = field is not None and field.type in (Duration, Duration | None)
    return f"{value:.9f}s" if is_duration and isinstance(value, float | int) else value


def _beginning(token: str) -> str:
    """What jobs need of the runner's token, in the names of their directories: nobody can ask for jobs with it."""
    short = shorten(token)
    return next(token[:length] for length in range(len(token) + 1) if shorten(token[:length]) == short)


def _is_of_jobs(field: "Attribute[Any]", value: object) -> bool:
    """JSON has null where a value is missing, and the schema nothing. What sidecars get, only they notice."""
    return value is not None and field.name not in _OF_RUNNER | {"passed", "tokens"}
