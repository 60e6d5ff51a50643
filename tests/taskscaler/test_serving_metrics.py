"""Commands that show metrics: a batch of its own fleet, a daemon of its, and what is refused."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.taskscaler.metrics_of import parse
from tests.taskscaler.services import COMMAND, command, serving, write

JOBS = """
[autoscaler]
plugin = "local"
update_interval_when_expecting = "20ms"
price_per_hour = 0.5
currency = "EUR"
plugin_config = {{ directory = "{here}/fleet" }}
[autoscaler.state_storage]
enabled = false
[[jobs]]
name = "waits"
script = "cat {here}/goes-on"
env = {{ TOKEN = "s3cret-token" }}
"""


def address(line: str) -> str:
    """Where metrics are, as a command says it."""
    return line.split("metrics: ")[1].strip()


@pytest.mark.slow
def test_a_batch_shows_its_fleet_and_its_jobs(tmp_path: Path) -> None:
    """While it runs, Prometheus finds the batch's instances and jobs where --metrics says, and no secret of them."""
    os.mkfifo(tmp_path / "goes-on")
    (tmp_path / "jobs.toml").write_text(JOBS.format(here=tmp_path))
    arguments = [*COMMAND, "run", "jobs.toml", "--output", "out", "--metrics", "127.0.0.1:0"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, cwd=tmp_path) as process:
        try:
            assert process.stdout
            url = next(address(line) for line in process.stdout if "metrics: " in line)
            next(line for line in process.stdout if "waits runs on" in line)
            shown = httpx.get(url, trust_env=False).text
            with (tmp_path / "goes-on").open("w") as pipe:
                pipe.write("on\n")
            process.stdout.read()
            assert process.wait() == 0
        finally:
            process.kill()
    found = parse(shown)
    assert found['taskscaler_jobs{state="running"}'] == 1
    assert found['fleeting_taskscaler_tasks{state="acquired"}'] == 1
    assert found['fleeting_provisioner_instances{state="running"}'] == 1
    assert found['taskscaler_cost_total{currency="EUR",pool="default"}'] > 0
    assert "s3cret" not in shown


@pytest.mark.slow
def test_a_daemon_shows_its_fleet(tmp_path: Path) -> None:
    """Where --metrics says, as long as it serves; the unit that it prints does the same."""
    write(tmp_path, idle=1, most=2)
    with serving(tmp_path, "--metrics", "127.0.0.1:0") as service:
        url = next(address(line) for line in service.lines if line.startswith("metrics: "))
        found = parse(httpx.get(url, trust_env=False).text)
        assert service.end(signal.SIGTERM) == 0
    assert found["fleeting_provisioner_max_instances"] == 2
    assert found["taskscaler_batches"] == 0
    assert not [name for name in found if name.startswith("taskscaler_cost_total")]  # there is no price
    status, unit = command("serve", str(tmp_path / "fleet.toml"), "--metrics", "127.0.0.1:9252", "--unit")
    assert status == 0
    assert "--metrics=127.0.0.1:9252" in unit


def test_metrics_of_a_daemons_fleet_are_the_daemons(tmp_path: Path) -> None:
    """A batch on a daemon's fleet has none to show, and says who has."""
    jobs = tmp_path / "jobs.toml"
    jobs.write_text('[[jobs]]\nname = "a"\nscript = "true"\n')
    status, printed = command(
        "run", str(jobs), "--output", str(tmp_path / "out"), f"--daemon={tmp_path / 'no.sock'}", "--metrics", "[::1]:0"
    )
    assert status == 2
    assert "give taskscaler serve --metrics" in printed
    status, printed = command("run", str(jobs), f"--daemon={tmp_path / 'no.sock'}", "--traces")
    assert status == 2
    assert "leave --traces out, or use taskscaler submit" in " ".join(printed.split())
    assert not (tmp_path / "out").exists()


def test_an_address_is_checked() -> None:
    """What is no HOST:PORT is refused before anything starts."""
    status, printed = command("run", __file__, "--metrics", "9252")
    assert status == 2
    assert "'9252' is not HOST:PORT" in printed


@pytest.mark.parametrize("verb", ["run", "serve"])
def test_without_the_library_the_error_says_what_to_install(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client library is an extra: who wants metrics without it gets one sentence, and nothing starts."""
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    (tmp_path / "jobs.toml").write_text(JOBS.format(here=tmp_path) if verb == "run" else '[autoscaler]\nplugin="local"')
    status, printed = command(verb, str(tmp_path / "jobs.toml"), "--metrics", "127.0.0.1:0")
    assert status == 2
    assert "metrics need prometheus_client, which is not installed; install taskscaler[metrics]" in printed
