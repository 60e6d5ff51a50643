"""A batch on a Windows host, as far as this system can show it: a jobs file, HTTPS, and programs that we play."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fleeting.winrm_host import Authority, Host, winrm_host
from tests.taskscaler import fake_windows

COMMAND = (str(Path(sys.executable).with_name("taskscaler")), "run")

JOBS = """[autoscaler]
plugin = "static"
capacity_per_instance = 2
instance_ready_command = "echo ready"
instance_heartbeat_command = "echo well"

[autoscaler.plugin_config]
state_dir = "DIRECTORY/taken"
os = "windows"
protocol = "winrm+https"
username = "tester"
password = "let me in"

[[autoscaler.plugin_config.hosts]]
name = "win"
address = "127.0.0.1"
port = PORT

[autoscaler.connector_config]
ca_file = "DIRECTORY/authority.pem"

[[jobs]]
name = "count"
copies = 4
script = "echo $TASKSCALER_JOB_INDEX on $TASKSCALER_INSTANCE; echo $TASKSCALER_JOB_INDEX > number"
artifacts = ["number"]

[[jobs]]
name = "batch"
script = '''
@echo off
echo from cmd
exit 5
'''
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def run(directory: Path, host: Host, text: str) -> subprocess.CompletedProcess[str]:
    """Run a batch on the host."""
    jobs = directory / "jobs.toml"
    jobs.write_text(text.replace("DIRECTORY", str(directory)).replace("PORT", str(host.port)))
    env = {**os.environ, "XDG_STATE_HOME": str(directory / "state")}
    command = [*COMMAND, str(jobs), "--output", str(directory / "out")]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


def test_a_batch_runs_on_a_windows_host(tmp_path: Path) -> None:
    """Its scripts run by their first lines, artifacts come back, and nothing is left on the host."""
    authority = Authority()
    certificate, _ = authority.write(tmp_path)
    authority.write_own(tmp_path)
    (tmp_path / "home").mkdir()
    programs = str(fake_windows.install(tmp_path / "programs"))
    with winrm_host(tmp_path, programs=programs, home=str(tmp_path / "home"), certificate=str(certificate)) as host:
        done = run(tmp_path, host, JOBS)
    assert done.returncode == 1, done.stderr
    jobs = {job["name"]: job for job in json.loads((tmp_path / "out" / "results.json").read_text())["jobs"]}
    batch = jobs.pop("batch")
    assert [job["state"] for job in jobs.values()] == ["succeeded"] * 4, done
    assert (batch["state"], batch["why"]) == ("failed", "exited with 5")
    numbers = sorted(path.read_text() for path in (tmp_path / "out").glob("artifacts/*/number"))
    assert numbers == ["0\n", "1\n", "2\n", "3\n"]
    assert list((tmp_path / "home" / "taskscaler").iterdir()) == []
    assert "let me in" not in done.stdout + done.stderr
