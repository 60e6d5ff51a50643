"""The quickstart's batch on three hosts with OpenSSH's own server, one of which dies while jobs run on it."""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from getpass import getuser
from pathlib import Path
from typing import Any

import pytest

from fleeting.connectors.ssh import generate_key
from tests.e2e.quickstart import hold
from tests.fleeting.sshd import Server, private, sshd

COMMAND = (str(Path(sys.executable).with_name("taskscaler")), "run")
LOCAL = """plugin = "local"            # another plugin and its settings here, and the same jobs run in a cloud"""
BOOT = """boot_time = "500ms"         # a cloud would take a minute"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Sequence[Server]]:
    """Three hosts, where commands start in different directories, and one key for all of them."""
    user_key = generate_key()
    private(tmp_path / "key", user_key.private)
    with ExitStack() as stack:
        servers = []
        for number in (1, 2, 3):
            home = tmp_path / f"home-{number}"
            home.mkdir()
            settings = f'SetEnv HOME={home} SHLVL=5\nForceCommand cd {home} && eval "$SSH_ORIGINAL_COMMAND"'
            servers.append(stack.enter_context(sshd(tmp_path / f"sshd-{number}", settings, user_key=user_key)))
        yield servers


@pytest.fixture
def jobs(tmp_path: Path, quickstart: Path, hosts: Sequence[Server]) -> Path:
    """The quickstart, with these hosts in the place of the local group."""
    group = [f'state_dir = "{tmp_path}/taken"', f'username = "{getuser()}"', f'key_path = "{tmp_path}/key"']
    for number, host in enumerate(hosts, start=1):
        group += ["[[autoscaler.plugin_config.hosts]]", f'name = "host-{number}"', 'address = "127.0.0.1"']
        group += [f"port = {host.port}", f'host_key = "{host.host_key}"']
    text = quickstart.read_text()
    assert LOCAL in text
    assert BOOT in text
    quickstart.write_text(text.replace(LOCAL, 'plugin = "static"').replace(BOOT, "\n".join(group)))
    return quickstart


def run(jobs: Path, output: Path, victim: Server | None = None) -> str:
    """Run the batch, and let host 2, if it is given, die as soon as ten jobs are done and two run on it.

    Returns:
        What was said.
    """
    state = {"XDG_STATE_HOME": str(output.parent / "state")}
    said, running = [], Counter[str]()
    with subprocess.Popen(
        [*COMMAND, str(jobs), "--output", str(output)],
        env={**os.environ, **state},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            said.append(line)
            words = line.split()
            if "runs" in words or "succeeded" in words[:-1]:
                host = line.partition(" on ")[2].partition(".")[0]
                running[host] += 1 if "runs" in words else -1
            if victim and running["host-2"] == 2 and "".join(said).count(" succeeded on ") >= 10:
                victim.lose()
                victim = None
    assert process.returncode == 0, "".join(said)
    assert victim is None, "there was nothing to kill"
    return "".join(said)


def load(output: Path) -> list[dict[str, Any]]:
    """Read the results' jobs."""
    jobs: list[dict[str, Any]] = json.loads((output / "results.json").read_text())["jobs"]
    return jobs


def test_killing_a_host_costs_no_job(tmp_path: Path, hosts: Sequence[Server], jobs: Path) -> None:
    """All jobs succeed, those of the dead host elsewhere; each module was measured once; nothing is left on hosts."""
    output, over = tmp_path / "out", tmp_path / "over"
    hold(jobs, "$TASKSCALER_INSTANCE = host-2.1", over)
    try:
        said = run(jobs, output, hosts[1])
    finally:
        over.touch()  # for jobs of the dead host: only its server is dead, and they would wait for ever
    results = load(output)
    assert [job["state"] for job in results] == ["succeeded"] * 40
    tries = [attempt for job in results for attempt in job["attempts"]]
    assert {attempt["instance"].partition(".")[0] for attempt in tries} == {"host-1", "host-2", "host-3"}
    lost = [attempt for attempt in tries if attempt["state"] == "lost"]
    assert {attempt["instance"] for attempt in lost} == {"host-2.1"}
    assert all("instance host-2.1 " in attempt["why"] for attempt in lost)
    assert "retried" in said
    parts = [json.loads(part.read_text()) for part in output.glob("artifacts/*/measured.json")]
    modules = [module["module"] for part in parts for module in part]
    assert len(parts) == 40
    assert len(modules) == len(set(modules))
    for home in ("home-1", "home-3"):
        assert list((tmp_path / home / "taskscaler").iterdir()) == [], "a job left something behind"


def test_a_host_that_shows_another_key_gets_no_job(tmp_path: Path, hosts: Sequence[Server], jobs: Path) -> None:
    """Keys are pinned for each host by itself, though all three have one address: the impostor is passed over."""
    output = tmp_path / "out"
    jobs.write_text(jobs.read_text().replace(hosts[2].host_key, hosts[0].host_key))
    run(jobs, output)
    results = load(output)
    assert [job["state"] for job in results] == ["succeeded"] * 40
    used = {attempt["instance"].partition(".")[0] for job in results for attempt in job["attempts"]}
    assert used == {"host-1", "host-2"}
