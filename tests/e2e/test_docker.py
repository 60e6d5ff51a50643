"""Jobs in containers, on instances that are containers, through SSH; and nothing is left of either."""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.fleeting_docker_engine.daemons import IMAGE, Daemon

COMMAND = (str(Path(sys.executable).with_name("taskscaler")), "run")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

BATCH = """
[autoscaler]
plugin = "docker"
capacity_per_instance = 2
max_instances = 3
update_interval = "1s"
update_interval_when_expecting = "200ms"

[autoscaler.plugin_config]
name = "e2e"
socket = "{socket}"
volumes = ["{socket}:/var/run/docker.sock"]

[executors.docker]
image = "{image}"
memory = "64m"
shares = 2

[defaults]
executor = "{executor}"
files = ["in.txt"]
artifacts = ["out"]
timeout = "2m"

[defaults.options.docker]
tmpfs = {{ "/fast" = "size=1m" }}

[[jobs]]
name = "job"
copies = {copies}
script = '''
echo job $TASKSCALER_JOB_INDEX on $TASKSCALER_INSTANCE
mkdir out
sed "s/content/job $TASKSCALER_JOB_INDEX/" in.txt >out/$TASKSCALER_JOB_INDEX
n=0; while [ $n -lt {turns} ]; do n=$((n + 1)); done
sleep 0.2
'''
"""


def write_jobs(directory: Path, docker: Daemon, *, executor: str = "docker", copies: int = 30, turns: int = 0) -> Path:
    """Write the batch's file, whose jobs count so far."""
    (directory / "in.txt").write_text("content\n")
    path = directory / "jobs.toml"
    path.write_text(BATCH.format(socket=docker.socket, image=IMAGE, executor=executor, copies=copies, turns=turns))
    return path


def run(jobs: Path, docker: Daemon, *, kill: bool = False) -> list[dict[str, Any]]:
    """Run it; kill the first instance that has two jobs once ten are done. Returns what became of the jobs."""
    output = jobs.parent / "out"
    said: list[str] = []
    running = Counter[str]()
    command = [*COMMAND, str(jobs), "--output", str(output)]
    env = {**os.environ, "XDG_STATE_HOME": str(jobs.parent / "state")}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            said.append(line)
            found = re.search(r"(runs|succeeded) on (e2e-[0-9a-f]+)", line)
            if found:
                running[found[2]] += 1 if found[1] == "runs" else -1
                if kill and running[found[2]] == 2 and "".join(said).count(" succeeded on ") >= 10:
                    docker.ask("POST", f"/containers/{found[2]}/kill")
                    kill = False
    assert process.returncode == 0, "".join(said)
    assert not kill, "there was nothing to kill:\n" + "".join(said)
    results: list[dict[str, Any]] = json.loads((output / "results.json").read_text())["jobs"]
    return results


def test_killing_an_instance_costs_no_job_and_leaves_nothing(tmp_path: Path, docker: Daemon) -> None:
    """Thirty of thirty, with their artifacts and what they used; containers, networks and volumes are as before."""
    before = anyio.run(docker.holdings)
    jobs = run(write_jobs(tmp_path, docker), docker, kill=True)
    assert [job["state"] for job in jobs] == ["succeeded"] * 30
    assert [attempt for job in jobs for attempt in job["attempts"] if attempt["state"] == "lost"]
    for index, job in enumerate(jobs):
        made = tmp_path / "out" / "artifacts" / job["name"] / "out" / str(index)
        assert made.read_text() == f"job {index}\n"
        assert job["attempts"][-1]["cpu_time"] > 0
        assert job["attempts"][-1]["peak_memory"] > 0
        assert job["attempts"][-1]["disk_written"] is not None
    assert anyio.run(docker.holdings) == before


def test_the_same_file_runs_with_the_other_executor(tmp_path: Path, docker: Daemon) -> None:
    """One key is changed: the jobs run on the instances themselves."""
    before = anyio.run(docker.holdings)
    counting = 50_000  # takes more than a hundredth of a second, which is all that a shell knows of
    jobs = run(write_jobs(tmp_path, docker, executor="instance", copies=8, turns=counting), docker)
    assert [job["state"] for job in jobs] == ["succeeded"] * 8
    assert all(job["attempts"][-1]["cpu_time"] > 0 for job in jobs)
    assert anyio.run(docker.holdings) == before


def test_what_a_killed_manager_has_left_is_gone_after_the_next(tmp_path: Path, docker: Daemon) -> None:
    """Killed while jobs run: their containers go on without it, until the batch is gone on with."""
    before = anyio.run(docker.holdings)
    jobs = write_jobs(tmp_path, docker, copies=2)
    jobs.write_text(jobs.read_text().replace("sleep 0.2", "sleep 1"))
    env = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}
    with subprocess.Popen([*COMMAND, str(jobs), "--output", str(tmp_path / "out")], env=env) as process:
        filters = {"label": ["taskscaler.kind=job"]}
        while len(docker.ask("GET", "/containers/json", query={"filters": filters})) < 2:
            assert process.poll() is None
        process.kill()
    assert any("container" in each for each in anyio.run(docker.holdings) - before)
    resumed = subprocess.run([*COMMAND, "--resume", str(tmp_path / "out")], env=env, check=False, capture_output=True)
    assert resumed.returncode == 0, resumed.stderr
    assert anyio.run(docker.holdings) == before
