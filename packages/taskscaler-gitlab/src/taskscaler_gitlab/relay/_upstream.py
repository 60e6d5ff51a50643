"""What is said to GitLab about a job that a sidecar has reported on before: its claim, and an end that we know of."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import anyio

from gitlab_jobs import Answer, End, Job, Outcome, Patch, Update, known_reason
from gitlab_jobs.client import GitLabClient

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""Seconds before a call is repeated: doubled each time."""

PATIENCE = 2 * 3600.0
"""Seconds after which an end is given up that nobody takes; GitLab has its own time limit for the job."""

CLAIM_PAUSE = 3.0
"""Seconds before a claim is repeated: the sidecar waits for it."""

MOVES = 8
"""So often the end of a log may turn out to be elsewhere; after that the end is told without a line in the log."""

_SIZE = "0-"
_OVER = (HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT)


async def claim(client: GitLabClient, job: Job, info: Mapping[str, Any]) -> Answer:
    """Say that a job runs, until GitLab answers; returns what: it may be over, or not ours any more."""
    while True:
        answer = await client.send(job, Update(state="running"), info=info)
        if answer.status in (*_OVER, HTTPStatus.OK) or answer.job_status in ("canceled", "failed"):
            return answer
        await anyio.sleep(CLAIM_PAUSE)


async def fail(client: GitLabClient, job: Job, line: str, outcome: Outcome, info: Mapping[str, Any]) -> End:
    """Add a line to a log whose length nobody here knows, and say that the job has failed.

    GitLab says where its log ends when a piece is refused that does not begin there.
    """
    with anyio.move_on_after(PATIENCE):
        if not await _append(client, job, line.encode(errors="replace")):
            return End.REVOKED
        reason = outcome.failure_reason and known_reason(outcome.failure_reason, job.features.failure_reasons)
        update = Update(state="failed", failure_reason=reason)
        pause = FIRST_PAUSE
        while True:
            answer = await client.send(job, update, info=info)
            if answer.status == HTTPStatus.OK:
                return End.REPORTED
            if answer.status in (*_OVER, HTTPStatus.BAD_REQUEST):
                return End.REPORTED if answer.job_status == "failed" else End.REVOKED
            await anyio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
    return End.GIVEN_UP


async def _append(client: GitLabClient, job: Job, line: bytes) -> bool:
    """Append a line; false if GitLab wants no more of the job."""
    at, pause = 0, FIRST_PAUSE
    for _ in range(MOVES):
        answer = await client.send(job, Patch(at, line))
        while answer.status is None or answer.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            await anyio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
            answer = await client.send(job, Patch(at, line))
        if answer.status == HTTPStatus.FORBIDDEN:
            return False
        size = _size(answer)
        if answer.status != HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE or size is None:
            return True
        at = size
    return True


def _size(answer: Answer) -> int | None:
    """How much GitLab has of a log."""
    end = (answer.held or "").removeprefix(_SIZE)
    return int(end) if end.isascii() and end.isdigit() and len(end) < 19 else None  # noqa: PLR2004  (of 64 bits)
