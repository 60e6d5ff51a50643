"""A GitLab Runner's ``config.toml`` is served as it is: no key of ours in it, and none of theirs is in the way."""

import json
import signal
from pathlib import Path

import pytest

from tests.taskscaler.services import command, serving

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SECRET = "glrt-nobody-may-see-this"

CONFIG = """
concurrent = 8
check_interval = 3

[session_server]
session_timeout = 1800

[[runners]]
name = "elsewhere"
url = "https://gitlab.example"
token = "{secret}"
executor = "shell"

[[runners]]
name = "ci"
url = "https://gitlab.example"
token = "{secret}"
executor = "instance"
[runners.cache]
Type = "s3"
[runners.autoscaler]
plugin = "local"
capacity_per_instance = 2
max_use_count = 100
max_instances = {most}
update_interval_when_expecting = "20ms"
[runners.autoscaler.plugin_config]
directory = "{here}/fleet"
[[runners.autoscaler.policy]]
idle_count = {idle}
idle_time = "20m0s"

[[runners]]
name = "cd"
token = "{secret}"
executor = "instance"
[runners.autoscaler]
plugin = "local"
[runners.autoscaler.plugin_config]
directory = "{here}/other"
"""

JOBS = """
[[jobs]]
name = "job"
copies = 6
script = 'echo "ran on $TASKSCALER_INSTANCE"; echo >> {ran}'
"""


def write(here: Path, *, idle: int = 1, most: int = 3) -> None:
    """Write the runner's file."""
    (here / "config.toml").write_text(CONFIG.format(here=here, secret=SECRET, idle=idle, most=most))


def test_the_fleet_of_a_gitlab_runner_is_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the choice of a runner over a batch, a kill, a reload and a drain; no token is ever shown."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("TASKSCALER_SOCKET", raising=False)
    write(tmp_path)
    said = [command("serve", str(tmp_path / "config.toml"))[1]]
    assert "--runner" in said[0], "it names the runners that there are"
    assert '"ci", "cd"' in said[0]

    with serving(tmp_path, "--runner=ci", file="config.toml") as service:
        service.ask("POST", "/client", json={"ttl": 600})
        held = service.ask("POST", "/acquire", json={"key": "a", "request": "1"})
        (tmp_path / "jobs.toml").write_text(JOBS.format(ran=tmp_path / "ran"))
        status, batch = command("submit", str(tmp_path / "jobs.toml"), "--json")
        assert status == 0, batch
        status, ended = command("wait", json.loads(batch)["batch"])
        assert (status, "succeeded" in ended) == (0, True), ended
        assert len((tmp_path / "ran").read_text().splitlines()) == 6

        write(tmp_path, idle=2, most=5)
        service.process.send_signal(signal.SIGHUP)
        assert service.wait_for("policies were reloaded")
        status, changed = command("reload")
        assert (status, "max_instances changed from 3 to 5: takes effect when" in changed) == (0, True), changed
        service.process.kill()
        service.process.wait()
        said += [*service.lines, changed]
    assert any("unlike GitLab Runner, a daemon keeps its state all the same" in line for line in said)

    with serving(tmp_path, "--runner=ci", file="config.toml") as service:
        service.ask("POST", "/client", json={"ttl": 600})
        again = service.ask("POST", "/reattach", json={"key": "a", "request": "2"})
        assert (again["instance"], again["slot"]) == (held["instance"], held["slot"]), "its instance was not removed"
        for verb in ("status", "explain", "instances"):
            status, shown = command(verb)
            assert status == 0
            said.append(shown)
        service.ask("DELETE", "/client")
        assert command("stop", "a")[0] == 1, "it was no kept lease"
        assert command("drain", "--delete")[0] == 0
        assert service.process.wait() == 0
        said += service.lines
    assert not list((tmp_path / "fleet").glob("default-*")), "the instances are gone"
    assert not (tmp_path / "other").exists(), "the other runner's group was not touched"
    assert not any(SECRET in each for each in said)
    assert not [
        path for path in (tmp_path / "state").rglob("*") if path.is_file() and SECRET in path.read_text("latin-1")
    ]
