"""What is said to GitLab about sidecars: as they say it themselves, as soon as one has."""

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from attrs import define, field

from fleeting.plugins import write_whole
from gitlab_jobs.client import info

MAX_INFO = 1 << 16
"""Bytes of it that are kept."""

_ALWAYS = (
    "variables",
    "artifacts",
    "cache",
    "fallback_cache_keys",
    "upload_multiple_artifacts",
    "upload_raw_artifacts",
    "refspecs",
    "masking",
    "proxy",
    "raw_variables",
    "artifacts_exclude",
    "multi_build_steps",
    "vault_secrets",
    "return_exit_code",
    "cancel_gracefully",
)
_OF_CONTAINERS = (
    "image",
    "services",
    "service_variables",
    "service_multiple_aliases",
    "image_executor_opts",
    "service_executor_opts",
)
_WITHOUT_IMAGES = {"shell", "ssh", "instance"}
_NOT_CARRIED = ("session", "terminal")
"""What needs a way to the sidecar, while there is only one from it."""

_KNOWN = ("name", "version", "revision", "platform", "architecture", "executor", "shell")


@define
class About:
    """What GitLab is told; `as_info` is looked at before each request."""

    executor: str
    """What they run jobs with; nothing: they only bring to their ends what they have begun."""

    path: Path
    """Where what sidecars have said is kept."""

    _learned: Mapping[str, Any] | None = field(default=None, init=False)

    def load(self) -> None:
        """Read what earlier sidecars have said, if they ran jobs with the same executor; blocks."""
        with suppress(OSError, ValueError):
            self._take(json.loads(self.path.read_bytes()[:MAX_INFO]))

    @property
    def as_info(self) -> Mapping[str, Any]:
        """What is said now: that jobs may be left with us until they run is our own doing."""
        said = dict(self._learned or self._guessed)
        features = {key: each for key, each in said["features"].items() if type(each) is bool}
        said["features"] = features | dict.fromkeys(_NOT_CARRIED, False) | {"two_phase_job_commit": True}
        return said

    @property
    def _guessed(self) -> Mapping[str, Any]:
        wanted = () if self.executor in _WITHOUT_IMAGES else _OF_CONTAINERS
        return info(*_ALWAYS, *wanted, name="gitlab-runner", executor=self.executor)

    def learn(self, said: object) -> bytes | None:
        """Take what a sidecar says; returns what is to be kept, if that is new."""
        if said == self._learned or not self._take(said):
            return None
        kept = json.dumps(self._learned).encode()
        return kept if len(kept) <= MAX_INFO else None

    def keep(self, kept: bytes) -> None:
        """Keep it for the next start; blocks."""
        with suppress(OSError):
            write_whole(self.path, kept)

    def _take(self, said: object) -> bool:
        if not isinstance(said, Mapping) or (self.executor and said.get("executor") != self.executor):
            return False
        features = said.get("features")
        if not isinstance(features, Mapping):
            return False
        words = {key: said[key] for key in _KNOWN if isinstance(said.get(key), str)}
        self._learned = {**words, "features": {key: each for key, each in features.items() if type(each) is bool}}
        return True
