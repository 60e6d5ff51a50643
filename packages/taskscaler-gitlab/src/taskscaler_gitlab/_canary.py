"""A job of our own, that GitLab knows nothing about, through everything that GitLab's jobs go through."""

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
from anyio import to_thread
from attrs import evolve, frozen

from fleeting import JournalError
from fleeting.plugins import one_line, span
from gitlab_jobs import Features, Job, JobInfo, Step, Variable
from gitlab_jobs.client import GitLabClient
from gitlab_jobs.testing import URL, FakeGitLab, Stored
from taskscaler.serve import Canary
from taskscaler_gitlab._settings import RunnerSettings
from taskscaler_gitlab._work import FAREWELL, Work
from taskscaler_gitlab.cells._cell import Cell
from taskscaler_gitlab.relay import RelayWork

PATIENCE = 1800.0
"""Seconds that an instance may take to boot, and the job to run."""

CELL = "canary"
"""What its GitLab is called, beside others."""

REPORTING = 5.0
"""Seconds for which its GitLab may take to learn its end."""

_SAYS = "canary: ran"
_SCRIPT = (f'echo "{_SAYS} on $TASKSCALER_INSTANCE, slot $TASKSCALER_SLOT"',)
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_SHOWN = 10


@frozen(kw_only=True)
class CanaryGitLab:
    """A GitLab with nothing but a canary."""

    gitlab: FakeGitLab
    number: int
    """The job's."""

    settings: RunnerSettings
    """The runner's, at this GitLab."""

    @property
    def log(self) -> bytes:
        """As far as it has come."""
        return self.gitlab.log(self.number)


def client_of_canary(gitlab: FakeGitLab) -> GitLabClient:
    """A client of it; no connection is made."""
    return GitLabClient(URL, transport=gitlab.transport())


def origin_of_canary(system_id: str) -> str:
    """Stands for that GitLab and a manager, in the names of tries: 12 hexadecimal digits."""
    return sha256(f"{URL} {CELL} {system_id}".encode()).hexdigest()[:12]


@asynccontextmanager
async def canary_gitlab(settings: RunnerSettings) -> AsyncIterator[CanaryGitLab]:
    """Have a GitLab for a runner while the context is open.

    Raises:
        OSError: There is no place for what it keeps.
    """
    place = await to_thread.run_sync(lambda: TemporaryDirectory(prefix="taskscaler-canary-"))
    with place as directory:
        gitlab = FakeGitLab(Path(directory), long_poll=1.0, accepts=0)
        number = gitlab.enqueue(_job())
        alone = evolve(settings.taskscaler, upstreams=())
        there = evolve(settings, url=URL, token=gitlab.runner_token, taskscaler=alone)
        yield CanaryGitLab(gitlab=gitlab, number=number, settings=there)


async def fly(
    settings: RunnerSettings,
    info: Mapping[str, Any],
    cell_of: Callable[[CanaryGitLab, GitLabClient], Cell],
    take: Callable[[Cell, Job], Awaitable[Work | RelayWork | None]],
) -> Canary:
    """Have a runner that is running take the job, beside those that it has; cancelled, the job ends as well.

    Args:
        settings: The runner's.
        info: What it says of itself.
        cell_of: Makes the job's GitLab one of the runner's.
        take: Takes the job; returns what sees it to its end, unless it has ended already.

    Raises:
        JournalError: There is no place for what the job's GitLab keeps.
    """
    try:
        async with canary_gitlab(settings) as at, client_of_canary(at.gitlab) as client:
            asked = await client.ask(at.settings.token, info=info)
            if asked.job is None:
                raise JournalError(f"the canary could not be handed out ({asked.problem}); report this")
            began, stored = anyio.current_time(), None
            work = await take(cell_of(at, client), asked.job)
            try:
                with anyio.move_on_after(PATIENCE):
                    if work is not None:
                        await work.over.wait()
            finally:
                if work is not None:
                    work.interrupt("The canary was given up")
                    with anyio.move_on_after(FAREWELL + REPORTING, shield=True):
                        await work.over.wait()
            with anyio.move_on_after(REPORTING):
                stored = await at.gitlab.ended(at.number)
            return landed(stored, at.log, anyio.current_time() - began)
    except OSError as error:
        raise JournalError(f"there is no place for a canary ({error.strerror}: {error.filename})") from error


def landed(stored: Stored | None, log: bytes, took: float) -> Canary:
    """Say what came of it.

    Args:
        stored: The job as its GitLab has it; None: it did not end in time.
        log: All of it.
        took: Seconds from its request to its end.
    """
    text = _COLOUR.sub("", log.decode(errors="replace"))
    lines = [one_line(line) for line in text.splitlines() if line.strip()]
    said = next((line for line in lines if line.startswith(_SAYS)), "")
    if said and stored is not None and stored.failure_reason is None:
        return Canary(passed=True, says=f"{said}; {span(took)} from its request to its end")
    why = "did not end in time" if stored is None else f"failed ({stored.failure_reason})"
    return Canary(passed=False, says=f"the canary {why}", log=tuple(lines[-_SHOWN:]))


def _job() -> Job:
    step = Step(name="script", script=_SCRIPT, timeout=3600, when="on_success")
    reasons = ("runner_configuration_error", "image_pull_failure", "unknown_failure")
    return Job(
        id=0,
        token="",
        job_info=JobInfo(name="canary"),
        variables=(Variable(key="GIT_STRATEGY", value="none"),),
        steps=(step,),
        features=Features(failure_reasons=reasons),
    )
