"""A program that is started as gitlab-runner is, and runs one job: for tests without a real one.

It reads the same file, asks with the same token, and ends after one job, or when it is told to. If a file ``ends`` is
beside it, it removes that, and ends at once.
"""

import os
import shutil
import signal
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio

from gitlab_jobs import Job, Outcome
from gitlab_jobs.client import GitLabClient, Reporting, Runner, reporting
from tests.gitlab_jobs.desk_runner import ABOUT, run

SAYS = "Version:      17.9.3\nGit revision: none\n"
ROOT, MODULE = Path(__file__).parents[2], "tests.taskscaler_gitlab.stand_in"


def made(place: Path, *, is_idle: bool = False, claims: bool = True, stands_for: Path | None = None) -> Path:
    """Make it a program of its own.

    Args:
        place: Its directory.
        is_idle: Whether it does nothing, so that a test can make its calls.
        claims: Whether it begins with a job only once that is claimed, as gitlab-runner does from 18.5 on.
        stands_for: A real one, which then does the work.
    """
    program = place / "gitlab-runner"
    version = f"case $1 in --version) printf %s '{SAYS}'; exit ;; esac"  # asked of each instance: no Python for that
    ends = f"[ ! -e {place}/ends ] || {{ rm {place}/ends; exit 1; }}"
    python = f'env PYTHONPATH={ROOT} CLAIMS={claims:d} {sys.executable} -m {MODULE} "$@"'
    work = "sleep 1000" if is_idle else f'{stands_for} "$@"' if stands_for else python
    program.write_text(f"#!/bin/sh\n{version}\n{ends}\nexec {work}\n")
    program.chmod(0o755)
    return program


async def _serve(url: str, token: str, place: Path, about: Mapping[str, Any]) -> None:
    async with GitLabClient(url) as client, anyio.create_task_group() as tasks:
        tasks.start_soon(_end_when_told, tasks.cancel_scope)
        runner = Runner(client, token, info=about)
        while (job := await runner.ask()) is None:
            pass
        async with reporting(client, job, info=about) as report:
            if await report.claim():  # as it says of itself that it does
                await _carry_out(client, job, report, place / str(job.id))
        tasks.cancel_scope.cancel()


async def _carry_out(client: GitLabClient, job: Job, report: Reporting, directory: Path) -> None:
    await anyio.Path(directory).mkdir(parents=True, exist_ok=True)
    try:
        outcome = await run(client, job, report, directory)
    finally:
        shutil.rmtree(directory)
    if report.canceling.is_set():
        outcome = Outcome(is_success=False, failure_reason="job_canceled")
    await report.finish(outcome)


async def _end_when_told(scope: anyio.CancelScope) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM) as signals:
        async for _ in signals:
            scope.cancel()
            return


def main(arguments: list[str]) -> None:
    """Be it."""
    verb, _config, path, *rest = arguments
    assert (verb, rest[0], rest[2:]) == ("run-single", "--runner", ["--max-builds", "1"])
    (entry,) = tomllib.loads(Path(path).read_text())["runners"]
    assert entry["name"] == rest[1]
    assert "CI_SERVER_TOKEN" not in os.environ
    features = ABOUT["features"] | {"two_phase_job_commit": os.environ["CLAIMS"] == "1"}
    about = ABOUT | {"executor": "shell", "features": features}
    anyio.run(_serve, entry["url"], entry["token"], Path(entry["builds_dir"]), about)


if __name__ == "__main__":
    main(sys.argv[1:])
