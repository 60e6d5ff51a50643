"""How a job of GitLab's is described to the daemon's clients: among batches, as one with a single job."""

import os
from collections.abc import Mapping
from datetime import UTC, datetime

from attrs import asdict

from fleeting import Usage


def as_batch(
    id_: str, name: str, state: str, why: str, *, taken_at: float, over_at: float | None, is_stuck: bool = False
) -> Mapping[str, object]:
    """See `taskscaler.serve.OwnedJob.as_data`; times are seconds since the epoch."""
    return {
        "batch": id_,
        "name": name,
        "uid": os.geteuid(),
        "submitted": _iso(taken_at),
        "state": "stuck" if is_stuck else state,
        "why": why,
        "jobs": {state: 1},
        "ended": None if over_at is None else _iso(over_at),
    }


def as_job(
    name: str,
    state: str,
    why: str,
    *,
    tries: int,
    instance: str | None,
    exit_code: int | None,
    duration: float | None,
    usage: Usage,
) -> Mapping[str, object]:
    """See `taskscaler.serve.OwnedJob.record`; the duration is in seconds."""
    return {
        "name": name,
        "state": state,
        "why": why,
        "tries": tries,
        "instance": instance,
        "exit_code": exit_code,
        "duration": None if duration is None else round(duration, 3),
        **asdict(usage),
    }


def over_in_words(state: str, why: str, usage: Usage) -> str:
    """Say how a job ended, and what it has used."""
    used = f"; it used {usage.account}" if usage.account else ""
    return f"is over: {state}{f' ({why})' if why else ''}{used}"


def _iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
