"""Conversations of runners with a GitLab: written down once, and held again in every run of the tests.

A recording is a file of lines of JSON. The first says who spoke, and how its GitLab was made; each other is an event,
in the order of their effects: what an operator did (``do``), a call, or its answer. Who hung up has no answer, but a
``hung_up``. Nothing secret is in it: tokens are names, and what jobs print and leave is a length and a hash, for which
other bytes of that length stand when the conversation is held again.
"""

import hashlib
import json
import random
import re
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from attrs import define, field

from gitlab_jobs.testing import FakeGitLab

HERE = Path(__file__).parent

Event: TypeAlias = dict[str, Any]
"""A line of a recording."""

REQUEST_HEADERS = (
    "accept",
    "content-range",
    "content-type",
    "job-token",
    "private-token",
    "runner-token",
    "user-agent",
)
"""What matters of a call's headers."""

ANSWER_HEADERS = (
    "content-type",
    "job-status",
    "location",
    "range",
    "retry-after",
    "x-gitlab-last-update",
    "x-gitlab-trace-update-interval",
)
"""What matters of an answer's."""

LOG = "{checksum of the log}"
"""Stands for the checksum of all that a runner has sent of a log."""

_RUNNER = re.compile(r"\{runner (\d+)\}")
_JOB = re.compile(r"\{job (\d+)\}")
_SYSTEM = re.compile(r"\b[rs]_[0-9a-zA-Z]{12}\b")
SYSTEM = "r_000000000000"


def read(path: Path) -> tuple[Event, list[Event]]:
    """Read a recording: who spoke, and what was said."""
    about, *events = map(json.loads, path.read_text().splitlines())
    return about, events


def write(path: Path, about: Event, events: Iterable[Event]) -> None:
    """Write one."""
    path.write_text("".join(f"{json.dumps(each, ensure_ascii=False)}\n" for each in (about, *events)))


def digest(body: bytes) -> Event:
    """What is written down of bytes."""
    return {"length": len(body), "sha256": hashlib.sha256(body).hexdigest()}


def stand_in(written: Mapping[str, Any]) -> bytes:
    """Other bytes for those that were not kept: the same for the same."""
    return random.Random(written["sha256"]).randbytes(written["length"])


@define
class Names:
    """Names for what is secret, in a conversation with this GitLab."""

    gitlab: FakeGitLab
    _runners: list[str] = field(init=False, factory=list)

    def hide(self, value: Any) -> Any:  # noqa: ANN401  (any JSON)
        """Put names in the place of secrets."""
        if isinstance(value, str):
            for secret, name in self._secrets():
                value = value.replace(secret, name)
            return _SYSTEM.sub(SYSTEM, value)
        return _each(value, self.hide)

    def fill(self, value: Any) -> Any:  # noqa: ANN401  (any JSON)
        """Put this GitLab's secrets in the place of names."""
        if isinstance(value, str):
            value = _RUNNER.sub(lambda found: self._all_runners()[int(found[1])], value)
            return _JOB.sub(lambda found: self.gitlab.server.jobs[int(found[1])].job.token, value)
        return _each(value, self.fill)

    def _secrets(self) -> list[tuple[str, str]]:
        known = ((number, each) for number, each in self.gitlab.server.jobs.items() if each.has_runner)
        jobs = ((each.job.token, f"{{job {number}}}") for number, each in known)
        runners = ((token, f"{{runner {number}}}") for number, token in enumerate(self._all_runners()))
        return [(secret, name) for secret, name in (*jobs, *runners) if secret]

    def _all_runners(self) -> list[str]:
        """The tokens that runners have or had, in their order."""
        self._runners += [each for each in self.gitlab.server._runners if each not in self._runners]
        return self._runners


def _each(value: Any, do: Any) -> Any:  # noqa: ANN401  (any JSON)
    if isinstance(value, Mapping):
        return {key: do(each) for key, each in value.items()}
    return [do(each) for each in value] if isinstance(value, list) else value


@define
class Sent:
    """What a runner has sent of each log, as far as it was taken."""

    _logs: dict[int, bytearray] = field(factory=dict)

    def take(self, number: int, content_range: str, body: bytes) -> None:
        """A patch was accepted."""
        start = int(content_range.partition("-")[0])
        log = self._logs.setdefault(number, bytearray())
        log[start:] = body

    def cut(self, number: int, size: int) -> None:
        """GitLab has lost what comes after so many bytes."""
        del self._logs.setdefault(number, bytearray())[size:]

    def checksum(self, number: int) -> str:
        """As runners have it."""
        return f"crc32:{zlib.crc32(bytes(self._logs.get(number, b''))):08x}"


def job_of(path: str) -> int | None:
    """The job that a call is about."""
    found = re.search(r"/jobs/(\d+)", path)
    return int(found[1]) if found else None
