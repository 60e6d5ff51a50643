"""What is left of a job whose agent was killed, or that left something behind: found by a mark in its environment."""

import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

MARK: Final = "JOB_STEPS_JOB"
"""The environment variable of every process of a job, by whose value the job's agent finds them again. Whoever takes it
out of his environment gets away, as from Jenkins."""

_PROC: Final = Path("/proc")
_LONGEST: Final = 4 << 20
"""Bytes that are looked at of an environment."""

_ROUNDS: Final = 10
"""In how many looks: what is killed may have started something after it was looked at."""


def end_leftovers(mark: str) -> int:
    """Kill every process of this user that bears a job's mark; returns how many. Without a ``/proc``: none."""
    ended: set[int] = set()
    for _ in range(_ROUNDS):
        found = [process for process in _marked(f"{MARK}={mark}".encode()) if process != os.getpid()]
        if not found:
            break
        for process in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)
        ended.update(found)
    return len(ended)


def marked(env: Mapping[str, str], mark: str) -> Mapping[str, str]:
    """An environment with the mark of a job."""
    return {**env, MARK: mark}


def _marked(entry: bytes) -> Iterator[int]:
    for directory in _PROC.glob("[0-9]*"):
        with suppress(OSError):
            if directory.stat().st_uid != os.getuid():
                continue
            with (directory / "environ").open("rb") as file:
                if entry in file.read(_LONGEST).split(b"\0"):
                    yield int(directory.name)
