"""A batch on an Auto Scaling group: real boto3 against moto's server, real jobs over OpenSSH's own server."""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from getpass import getuser
from pathlib import Path
from typing import Any

import pytest

from tests.fleeting.sshd import Server, sshd
from tests.fleeting.winrm_host import winrm_host
from tests.fleeting_aws.clouds import ENVIRONMENT, Cloud, new_cloud, other_client, running_server
from tests.fleeting_aws.test_group import windows_key

ADDRESSES = [f"127.0.0.{number}" for number in range(2, 18)]
"""One for each instance that may come; all are this machine's own, and sshd listens on 16 at most."""

JOBS = """
[autoscaler]
plugin = "aws"
capacity_per_instance = 2
max_instances = 4
max_use_count = 4
update_interval_when_expecting = "100ms"

[autoscaler.plugin_config]
name = "fleet"
region = "eu-west-1"
endpoint_url = "http://127.0.0.1:{cloud}"

[autoscaler.connector_config]
username = "{user}"
protocol_port = {ssh}

[[autoscaler.policy]]
idle_time = "1s"

[[jobs]]
name = "job"
copies = 20
script = "echo $TASKSCALER_INSTANCE"
"""

GITLAB = """
concurrent = 10

[[runners]]
name = "windows"
executor = "instance"
[runners.autoscaler]
plugin = "aws"
max_instances = 4
[runners.autoscaler.plugin_config]
name = "fleet"
region = "eu-west-1"
endpoint_url = "http://127.0.0.1:{cloud}"
[runners.autoscaler.connector_config]
username = "Administrator"
key_path = "{key}"
protocol_port = {winrm}
"""
"""A Windows fleet as GitLab Runner has it: nothing says by which protocol it is reached, and EC2 knows the password."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """What answers at every instance's address, in a directory for each; it lets in whose key AWS was sent."""
    keys, homes = tmp_path / "keys", tmp_path / "homes"
    keys.touch(mode=0o600)
    home = f'home={homes}/$(echo "$SSH_CONNECTION" | cut -d" " -f3); mkdir -p "$home"; export HOME="$home"'
    settings = [f'ForceCommand {home}; cd && eval "$SSH_ORIGINAL_COMMAND"', f"AuthorizedKeysFile {keys}"]
    with sshd(tmp_path / "sshd", *settings, *(f"ListenAddress {address}" for address in ADDRESSES)) as server:
        yield server


@pytest.fixture(scope="module")
def moto_port() -> Iterator[int]:
    """One process for all tests: to start it takes seconds. Each test begins anew with a cloud of its own."""
    with running_server() as port:
        yield port


@pytest.fixture
def cloud(tmp_path: Path, moto_port: int, server: Server) -> Cloud:
    """A cloud whose instances take a moment to come and to go, and tell their host key on the console."""
    console = f"-----BEGIN SSH HOST KEY KEYS-----\n{server.host_key}\n-----END SSH HOST KEY KEYS-----"
    cloud = new_cloud(moto_port, launch_delay=0.3, terminate_delay=0.3, addresses=ADDRESSES, console=console)
    cloud.do("set", keys=str(tmp_path / "keys"))
    return cloud


def run(directory: Path, cloud: Cloud, server: Server) -> list[dict[str, Any]]:
    """Run the batch as a user would; returns its results."""
    jobs = directory / "jobs.toml"
    jobs.write_text(JOBS.format(cloud=cloud.port, ssh=server.port, user=getuser()))
    done = subprocess.run(
        [str(Path(sys.executable).with_name("taskscaler")), "run", str(jobs), "--output", str(directory / "out")],
        env={**os.environ, **ENVIRONMENT, "XDG_STATE_HOME": str(directory / "state")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    results: list[dict[str, Any]] = json.loads((directory / "out" / "results.json").read_text())["jobs"]
    return results


@pytest.mark.parametrize(
    ("auth", "status", "words"),
    [
        (("Negotiate", "Basic"), 0, r"dialled +i-[0-9a-f]+ over winrm in "),
        (("Basic",), 1, r"i-[0-9a-f]+ cannot be dialled: .*basic authentication over HTTP.*set allow_plaintext"),
    ],
    ids=["as Windows listens", "basic only"],
)
def test_a_windows_fleet_of_gitlabs_is_reached_or_told_why_not(
    tmp_path: Path, moto_port: int, auth: tuple[str, ...], status: int, words: str
) -> None:
    """`taskscaler check` reads the password with the key pair, and logs in over HTTP with NTLM, which encrypts."""
    key, password = windows_key(tmp_path)
    with winrm_host(tmp_path, user="Administrator", password="pa$$word", auth=auth) as host:
        cloud = new_cloud(moto_port, addresses=["127.0.0.1"], platform="windows", password=password)
        cloud.do("launch", count=1)
        (tmp_path / "config.toml").write_text(GITLAB.format(cloud=moto_port, key=key, winrm=host.port))
        done = subprocess.run(
            [str(Path(sys.executable).with_name("taskscaler")), "check", str(tmp_path / "config.toml")],
            env={**os.environ, **ENVIRONMENT, "XDG_STATE_HOME": str(tmp_path / "state"), "COLUMNS": "1000"},
            capture_output=True,
            text=True,
            check=False,
        )
    assert (done.returncode, bool(re.search(words, done.stdout + done.stderr))) == (status, True), done
    assert "pa$$word" not in done.stdout + done.stderr


def left(cloud: Cloud) -> tuple[int, list[str], list[str]]:
    """What moto's own record has, asked by way of the SDK: the desired capacity, members, and what is paid for."""
    (group,) = other_client(cloud.port, "autoscaling").describe_auto_scaling_groups()["AutoScalingGroups"]
    lots = other_client(cloud.port, "ec2").describe_instances()["Reservations"]
    paid = [each["InstanceId"] for lot in lots for each in lot["Instances"] if each["State"]["Name"] != "terminated"]
    return group["DesiredCapacity"], [each["InstanceId"] for each in group["Instances"]], paid


def test_a_batch_grows_runs_and_leaves_nothing(tmp_path: Path, cloud: Cloud, server: Server) -> None:
    """20 jobs on at most four instances that take four each: at least five come, all go, and each was logged in to."""
    before = Counter(cloud.calls())
    results = run(tmp_path, cloud, server)
    assert [job["state"] for job in results] == ["succeeded"] * 20
    used = {attempt["instance"] for job in results for attempt in job["attempts"]}
    assert len(used) >= 5
    assert left(cloud) == (0, [], [])
    calls = Counter(cloud.calls()) - before
    assert calls["ec2-instance-connect:SendSSHPublicKey"] >= len(used)
    assert "autoscaling:SetDesiredCapacity" not in calls
