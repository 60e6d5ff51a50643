"""The runner as a command, for a GitLab that others have written: logs, artifacts, and downloads that fail at first."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.gitlab_jobs.test_peers import Mock, mock

CONFIG = """
concurrent = 16
check_interval = 1
[[runners]]
name = "desk"
url = "{url}"
token = "{token}"
executor = "instance"
request_concurrency = 4
[runners.autoscaler]
plugin = "local"
capacity_per_instance = 8
max_instances = 2
[runners.autoscaler.plugin_config]
boot_time = "0s"
[[runners.autoscaler.policy]]
idle_count = 0
idle_time = "1m"
"""
COMMAND = [sys.executable, "-c", "from taskscaler_gitlab.cli import main; main()", "run"]
ENDS = ("success", "failed", "canceled")
WITHOUT_SOURCES = {"GIT_STRATEGY": "none", "ARTIFACT_DOWNLOAD_ATTEMPTS": "3"}


async def enqueue(gitlab: Mock, number: int, before: int | None) -> int:
    """A job that leaves a file, or one that has it from the job before, of which some fail."""
    if number % 2 == 0:
        more: dict[str, Any] = {"script": ["seq 1 999", f"echo from {number} > out"], "artifacts": ["out"]}
    else:
        more = {"script": ["cat out", "exit 3" if number % 10 == 9 else "true"], "dependencies": [before]}
    made = await gitlab.do("enqueue", name=f"job {number}", variables=WITHOUT_SOURCES, **more)
    job: int = made["id"]
    return job


async def ended(gitlab: Mock, job: int) -> Mapping[str, Any]:
    """What became of a job, once it has ended."""
    while (state := await gitlab.do("state", id=job))["state"] not in ENDS:  # noqa: ASYNC110  (it has no events)
        await anyio.sleep(0.2)
    return state


@pytest.mark.anyio
@pytest.mark.peers
@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_jobs_of_an_independent_gitlab(tmp_path: Path, full: bool) -> None:  # noqa: FBT001  (a fixture)
    """Every job ends as its script does, with its log, and each file comes to the job that needs it."""
    here = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state"), "XDG_RUNTIME_DIR": str(tmp_path)}
    async with mock() as gitlab:
        await gitlab.do("fail_downloads", times=1)
        jobs = list[int]()
        for number in range(200 if full else 20):
            jobs.append(await enqueue(gitlab, number, jobs[-1] if jobs else None))
        (tmp_path / "config.toml").write_text(CONFIG.format(url=gitlab.url, token=gitlab.token))
        with (tmp_path / "printed").open("wb") as printed:
            command = [*COMMAND, str(tmp_path / "config.toml")]
            async with await anyio.open_process(
                command, cwd=tmp_path, env=here, stdout=printed, stderr=subprocess.STDOUT
            ) as process:
                states = [await ended(gitlab, job) for job in jobs]
                process.terminate()
                assert await process.wait() == 0, (tmp_path / "printed").read_text()
        for number, (job, state) in enumerate(zip(jobs, states, strict=True)):
            await gitlab.do("save", id=job, to=str(tmp_path))
            log = (tmp_path / "log").read_bytes()
            assert state["state"] == ("failed" if number % 10 == 9 else "success"), log.decode()
            assert len(state["artifacts"]) == (number % 2 == 0)
            assert (b"\n999\n" if number % 2 == 0 else f"from {number - 1}\n".encode()) in log
