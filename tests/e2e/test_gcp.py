"""A batch on Google Cloud as its user runs it: the command, the real SDK, and instances that answer over SSH.

The cloud is the endpoint of our own. Each of its machines is an OpenSSH server of this machine, on an address of its
own, that lets in whom the metadata lets in: no key is known to the test.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from getpass import getuser
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from attrs import define, field

from tests.fleeting.sshd import Server, free_port, sshd
from tests.fleeting_gcp.clouds import REGIONAL, serving, write_credentials
from tests.fleeting_gcp.compute_endpoint import Cloud, Machine

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

JOBS = """
[autoscaler]
plugin = "googlecompute"
capacity_per_instance = 2
max_instances = 3
update_interval_when_expecting = "100ms"
deletion_retry_interval = "1s"

[autoscaler.plugin_config]
name = "runners"
project = "acme"
{place}
credentials_file = "{credentials}"
endpoint = "{endpoint}"

[autoscaler.connector_config]
username = "{user}"
protocol_port = {port}

[[autoscaler.policy]]
idle_time = "1s"

[[jobs]]
name = "hello"
copies = 20
script = '[ "$TASKSCALER_JOB_INDEX" != 10 ] || ! mkdir {held} || sleep 5; echo "$TASKSCALER_INSTANCE"; sleep 0.3'
retries = 3
"""
"""One job makes a directory, and has time to lose its machine, unless the directory is there, as for its second try."""


@define
class Site:
    """Where the cloud's machines stand."""

    directory: Path
    port: int = field(factory=free_port)
    servers: dict[str, tuple[Server, ExitStack]] = field(factory=dict)
    numbers: Iterator[int] = field(factory=lambda: count(1))
    started: list[str] = field(factory=list)
    most: int = 0
    """Machines that stood at a time, at most."""

    def boot(self, machine: Machine) -> None:
        """Start a machine, and let it publish its host key."""
        number = next(self.numbers)
        machine.address = f"127.1.0.{number}"
        home = self.directory / f"{machine.name}.{number}"
        (home / "home").mkdir(parents=True)
        tools = self.directory / "tools"  # without a metadata server, so that no probe asks for one
        tools.mkdir(exist_ok=True)
        (tools / "curl").write_text("#!/bin/sh\nexit 6\n")
        (tools / "curl").chmod(0o755)
        command = f'ForceCommand export PATH={tools}:$PATH && cd {home}/home && eval "$SSH_ORIGINAL_COMMAND"'
        stack = ExitStack()
        settings = (f"ListenAddress {machine.address}", command)
        server = stack.enter_context(sshd(home / "sshd", *settings, port=self.port))
        self.servers[machine.name] = server, stack
        self.most = max(self.most, len(self.servers))
        self.started.append(machine.name)
        kind, key = server.host_key.split()[:2]
        machine.guest_attributes = {kind: key}
        self.let_in(machine)

    def let_in(self, machine: Machine) -> None:
        """Do as the guest agent: let in whom the metadata names."""
        lines = machine.metadata.get("ssh-keys", "").splitlines()
        home = next(self.directory.glob(f"{machine.name}.*"))
        (home / "sshd" / "authorized_keys").write_text("".join(f"{line.partition(':')[2]}\n" for line in lines))

    def end(self, machine: Machine) -> None:
        """Switch a machine off."""
        if found := self.servers.pop(machine.name, None):
            server, stack = found
            server.lose()
            stack.close()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A site that is empty in the end, whatever happened."""
    site = Site(tmp_path / "site")
    site.directory.mkdir()
    yield site
    for _, stack in site.servers.values():
        stack.close()


def run(directory: Path, cloud: Cloud, site: Site, *, preempt: bool) -> tuple[str, str]:
    """Run the batch, and take a machine away while a job waits for it; returns what was said, and which."""
    kind, _, place = cloud.place.partition("/")
    jobs, held = directory / "jobs.toml", directory / "held"
    if not preempt:
        held.mkdir()
    jobs.write_text(
        JOBS.format(
            held=held,
            place=f'{kind.removesuffix("s")} = "{place}"',
            credentials=write_credentials(directory),
            endpoint=cloud.url,
            user=getuser(),
            port=site.port,
        )
    )
    command = [str(Path(sys.executable).with_name("taskscaler")), "run", str(jobs), "--output", str(directory / "out")]
    env = {**os.environ, "XDG_STATE_HOME": str(directory / "state")}
    said, victim = [], ""
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                said.append(line)
                if preempt and not victim and "hello-11 runs on " in line:
                    victim = line.partition(" runs on ")[2].split()[0].rstrip(",")
                    cloud.preempt(victim)
        except BaseException:
            process.kill()
            raise
    assert process.returncode == 0, "".join(said)
    return "".join(said), victim


def results(directory: Path) -> list[dict[str, Any]]:
    """Read what became of the jobs."""
    jobs: list[dict[str, Any]] = json.loads((directory / "out" / "results.json").read_text())["jobs"]
    return jobs


def left(directory: Path) -> dict[str, str]:
    """Read which instances left before the batch was over, and why."""
    events = [json.loads(line) for line in (directory / "out" / "events.jsonl").read_text().splitlines()]
    leaving = [event for event in events if event.get("event") == "instance" and event["state"] == "deleting"]
    return {event["instance"]: event["why"] for event in leaving if event["why"] != "shutdown"}


CASES = {
    "zonal-calm": ({}, False),
    "regional-preempted": (REGIONAL, True),
    "zonal-preempted": ({}, True),
    "regional-calm": (REGIONAL, False),
}
"""Kinds of groups, and whether a machine is taken away."""

IN_SUITE = 2
"""Of these in the suite, where both kinds are met and both outcomes; ``pytest --full`` takes all."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Take as many cases as are wanted."""
    if "preempt" in metafunc.fixturenames:
        wanted = list(CASES)[: None if metafunc.config.getoption("--full") else IN_SUITE]
        metafunc.parametrize(("kind", "preempt"), [CASES[name] for name in wanted], ids=wanted)


@pytest.mark.usefixtures("full")
def test_twenty_jobs_leave_nothing_behind(tmp_path: Path, site: Site, kind: dict[str, Any], *, preempt: bool) -> None:
    """All succeed, be a machine lost or not; in the end the cloud has no instance, and none was asked for by number."""
    cloud = Cloud(
        boot=0.2,
        delay=0.05,
        template={"enable-guest-attributes": "TRUE"},
        on_boot=site.boot,
        on_end=site.end,
        on_metadata=site.let_in,
        **kind,
    )
    with serving(cloud):
        said, victim = run(tmp_path, cloud, site, preempt=preempt)
    jobs = results(tmp_path)
    assert [job["state"] for job in jobs] == ["succeeded"] * 20, said
    instances = {attempt["instance"] for job in jobs for attempt in job["attempts"]}
    assert instances <= set(site.started)
    gone = left(tmp_path)
    assert victim in gone or not preempt, (gone, said)
    assert site.most <= 3, said
    assert len(set(site.started)) <= 3 + len(gone), (gone, said)
    assert all(name.startswith("fleeting-") for name in site.started)
    lost = {attempt["instance"] for job in jobs for attempt in job["attempts"] if attempt["state"] == "lost"}
    assert lost == ({victim} if preempt else set())
    assert (cloud.target, cloud.alive(), cloud.machines, site.servers) == (0, [], {}, {})
    asked = {path.rpartition("/")[2] for method, path, _ in cloud.log if method == "POST"}
    assert asked == {"listManagedInstances", "createInstances", "deleteInstances", "setMetadata"}
