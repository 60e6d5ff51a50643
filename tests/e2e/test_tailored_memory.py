"""Jobs in containers whose memory follows what earlier runs needed, as a program over a real daemon."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fleeting_docker_engine.daemons import IMAGE, Daemon

COMMAND = (str(Path(sys.executable).with_name("taskscaler")), "run", "jobs.toml", "--output")
EXPLAIN = (COMMAND[0], "explain")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

MIB = 1 << 20

BATCH = f"""
[autoscaler]
plugin = "local"
capacity_per_instance = 2
max_instances = 1

[executors.docker]
image = "{IMAGE}"
socket = "{{socket}}"
network = "none"
memory = "256m"
tailor_memory = {{{{ min = "16m", max = "512m" }}}}

[defaults]
executor = "docker"
timeout = "2m"

[[jobs]]
name = "leaks"
retries = {{{{ failed = 1 }}}}
script = "dd if=/dev/zero of=/dev/null bs=40M count=1"
options.docker.memory = "32m"

[[jobs]]
name = "small"
copies = 10
script = '''
cat /sys/fs/cgroup/memory.max 2>/dev/null || cat /sys/fs/cgroup/memory/memory.limit_in_bytes
dd if=/dev/zero of=/dev/null bs=12M count=1
'''
"""


def test_a_job_that_leaks_is_done_on_the_retry_and_small_ones_get_less(tmp_path: Path, docker: Daemon) -> None:
    """One is killed at 32 MiB and needs 40; ten use 5 % of 256 MiB, and the next ten; slots stay two."""
    (tmp_path / "jobs.toml").write_text(BATCH.format(socket=docker.socket))
    env = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}
    limits: list[int] = []
    for turn in range(2):
        out = tmp_path / f"out-{turn}"
        done = subprocess.run([*COMMAND, str(out)], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        jobs = {job["name"]: job for job in json.loads((out / "results.json").read_text())["jobs"]}
        tries = jobs["leaks"]["attempts"]
        said = (out / "logs" / "leaks.log").read_text()
        assert "Memory limit: 64 MiB (twice the 32 MiB at which an earlier run was killed)" in said
        assert [each["state"] for each in tries] == (["succeeded"] if turn else ["failed", "succeeded"])
        if not turn:
            why = (
                r"exited with \d+: it needed more memory than its 32 MiB and was killed; its next run gets up to 64 MiB"
            )
            assert re.fullmatch(why, tries[0]["why"])
        small = sorted(
            (job for name, job in jobs.items() if name != "leaks"), key=lambda job: job["attempts"][0]["started"]
        )
        assert {job["state"] for job in small} == {"succeeded"}
        assert all(len(job["attempts"]) == 1 for job in small)
        assert {attempt["slot"] for job in jobs.values() for attempt in job["attempts"]} == {0, 1}
        logs = [(out / "logs" / f"{job['name']}.log").read_text() for job in small]
        limits += [int(re.findall(r"^\d+$", log, flags=re.MULTILINE)[0]) for log in logs]
        for job, limit, log in zip(small, limits[-10:], logs, strict=True):
            assert (limit == 256 * MIB) is ("Memory limit" not in log)
            told = job["attempts"][0]["memory_limit"]
            assert (told["size"], told["reached"]) == (limit, False)
            assert told["by"] == ("measured" if "Memory limit" in log else "usual")
        first, last = tries[0]["memory_limit"], tries[-1]["memory_limit"]
        assert (last["size"], last["by"], last["reached"]) == (64 * MIB, "killed", False)
        if not turn:
            assert (first["size"], first["by"], first["why"], first["reached"]) == (32 * MIB, "usual", "", True)
            explained = subprocess.run(
                [*EXPLAIN, str(out), "--job", "leaks"], env=env, capture_output=True, text=True, check=True
            ).stdout
            assert "memory limit 32 MiB; it needed more\n" in explained
            assert "memory limit 64 MiB, twice the 32 MiB at which an earlier run was killed\n" in explained
    assert limits.count(256 * MIB) >= 5, "nothing is known before five are over"
    assert max(limits[10:]) <= 64 * MIB, "what ten of them needed is known"
    assert min(limits) >= 16 * MIB
