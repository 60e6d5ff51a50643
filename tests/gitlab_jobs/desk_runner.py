"""A small runner for tests: the script of each job in a shell, with artifacts."""

import os
import signal
import subprocess
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import Process

from gitlab_jobs import Job, Outcome, Polling
from gitlab_jobs.client import GitLabClient, Reporting, Runner, info, reporting

ABOUT: dict[str, Any] = info(
    "variables", "artifacts", "masking", "return_exit_code", "two_phase_job_commit", "cancel_gracefully"
)


async def work(url: str, token: str, directory: Path, *, at_a_time: int = 6) -> None:
    """Run jobs until somebody ends it."""
    async with GitLabClient(url) as client, anyio.create_task_group() as tasks:
        polling = Polling(anyio.current_time(), check_interval=0.1)  # a user's waits, 3 s at a time, are no test's
        runner = Runner(client, token, info=ABOUT, polling=polling)
        for number in range(at_a_time):
            place = directory / str(number)
            place.mkdir()
            tasks.start_soon(_work, runner, client, place)


async def _work(runner: Runner, client: GitLabClient, place: Path) -> None:
    while True:
        job = await runner.ask()
        if job is not None:
            async with reporting(client, job, info=ABOUT) as report:
                if await report.claim():
                    (place / str(job.id)).mkdir()
                    await report.finish(await run(client, job, report, place / str(job.id)))


async def run(client: GitLabClient, job: Job, report: Reporting, place: Path) -> Outcome:
    """Run the script of a job in a directory, with what other jobs have left, and keep what it leaves."""
    for each in job.dependencies:
        if each.artifacts_file.filename:
            await client.download(each, place / "in.zip")
            zipfile.ZipFile(place / "in.zip").extractall(place)
    env = {**os.environ, **{each.key: each.value for each in job.variables}}
    script = "\n".join(job.steps[0].script)
    command = ["sh", "-ec", script]
    async with await anyio.open_process(
        command, cwd=place, env=env, stderr=subprocess.STDOUT, start_new_session=True
    ) as process, anyio.create_task_group() as tasks:  # fmt: skip
        tasks.start_soon(_stop_if_cancelled, report, process)
        assert process.stdout
        async for chunk in process.stdout:
            report.log(chunk)
        code = await process.wait()
        tasks.cancel_scope.cancel()
    for artifact in job.artifacts if code == 0 else ():
        _pack(artifact.paths, place)
        await client.upload(job, artifact, place / "out.zip", filename="artifacts.zip")
    return Outcome(is_success=code == 0, failure_reason=None if code == 0 else "script_failure", exit_code=abs(code))


async def _stop_if_cancelled(report: Reporting, process: Process) -> None:
    await report.canceling.wait()
    os.killpg(process.pid, signal.SIGKILL)


def _pack(patterns: Iterable[str], place: Path) -> None:
    with zipfile.ZipFile(place / "out.zip", "w") as archive:
        for pattern in patterns:
            for path in place.glob(f"{pattern}**/*" if pattern.endswith("/") else pattern):
                archive.write(path, path.relative_to(place))
