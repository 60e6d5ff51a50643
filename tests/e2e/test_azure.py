"""Twenty jobs on scale sets: the command, the real SDK with its own way to a token, instances that answer over SSH."""

import json
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from getpass import getuser
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import anyio
import pytest
from anyio.abc import SocketAttribute, SocketStream
from anyio.streams.buffered import BufferedByteReceiveStream

from fleeting_azure import AzureConfig
from tests.fleeting.sshd import Server, private, sshd
from tests.fleeting_azure.arm_cloud import SET, Mode
from tests.fleeting_azure.arm_rules import TOKEN
from tests.fleeting_azure.arm_server import running

COMMAND = (str(Path(sys.executable).with_name("taskscaler")), "run")
HEADER = "the-header-that-an-identity-is-asked-with"

JOBS = """
[autoscaler]
plugin = "azure"
capacity_per_instance = 2
max_use_count = 5
max_instances = 4
update_interval_when_expecting = "200ms"

[autoscaler.plugin_config]
name = "{config.name}"
subscription_id = "{config.subscription_id}"
resource_group_name = "{config.resource_group_name}"
endpoint = "{config.endpoint}"
ca_file = "{config.ca_file}"

[autoscaler.connector_config]
username = "{user}"
key_path = "{key}"
protocol_port = {port}
use_static_credentials = true

[[autoscaler.policy]]
idle_time = "0s"

[[jobs]]
name = "job"
copies = 20
script = "echo $TASKSCALER_JOB_INDEX > number"
artifacts = ["number"]
"""

pytestmark = [pytest.mark.slow, pytest.mark.anyio, pytest.mark.timeout(600)]


@asynccontextmanager
async def identity() -> AsyncIterator[dict[str, str]]:
    """Run what gives tokens to a managed identity; gives the environment in which it is found."""

    async def serve(stream: SocketStream) -> None:
        async with stream:
            head = (await BufferedByteReceiveStream(stream).receive_until(b"\r\n\r\n", 65536)).decode()
            query = parse_qs(urlsplit(head.split()[1]).query)
            ours = HEADER in head and query["resource"][0].startswith("https://127.0.0.1:")
            token = {"access_token": TOKEN, "expires_on": str(1 << 40), "token_type": "Bearer", **query}
            body = json.dumps(token if ours else {})
            status = "200 OK" if ours else "400 Bad Request"
            head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
            await stream.send(f"{head}Connection: close\r\n\r\n{body}".encode())

    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, serve)
        url = f"http://127.0.0.1:{listener.extra(SocketAttribute.local_port)}/token"
        yield {"IDENTITY_ENDPOINT": url, "IDENTITY_HEADER": HEADER}
        tasks.cancel_scope.cancel()


def write_jobs(directory: Path, config: AzureConfig, host: Server) -> Path:
    """Write the jobs, for instances that all answer at the same address."""
    key = private(directory / "key", host.user_key.private)
    jobs = directory / "jobs.toml"
    jobs.write_text(JOBS.format(config=config, user=getuser(), key=key, port=host.port))
    return jobs


@contextmanager
def hosts(directory: Path) -> Iterator[Server]:
    """Run one server at the addresses of sixteen instances, each with a home of its own, where curl reaches nobody."""
    addresses = [f"ListenAddress 127.0.0.{number}" for number in range(4, 20)]
    (directory / "bin").mkdir(parents=True)
    (directory / "bin" / "curl").symlink_to("/bin/false")
    home = f"set -- $SSH_CONNECTION; export HOME={directory}/$3 PATH={directory}/bin:$PATH"
    home += '; mkdir -p "$HOME"; cd; eval "$SSH_ORIGINAL_COMMAND"'
    with sshd(directory, f"ForceCommand {home}", *addresses) as host:
        yield host


@pytest.mark.parametrize(("anyio_backend", "mode"), [("asyncio", "Uniform"), ("trio", "Flexible")])
@pytest.mark.usefixtures("anyio_backend")
async def test_a_batch_runs_on_a_scale_set_and_leaves_nothing(tmp_path: Path, mode: Mode) -> None:
    """All twenty jobs succeed on instances that are replaced after five; in the end the scale set is empty."""
    with hosts(tmp_path / "hosts") as host:
        settings = {"address": "127.0.0.", "public": False, "boot_time": 0.2, "page": 2}
        async with running(tmp_path, mode, **settings) as (cloud, config), identity() as environment:
            ours = {name: value for name, value in os.environ.items() if not name.startswith("AZURE_")}
            ours |= {"XDG_STATE_HOME": str(tmp_path / "state"), "HOME": str(tmp_path / "home")}
            jobs = write_jobs(tmp_path, config, host)
            ended = await anyio.run_process(
                [*COMMAND, str(jobs), "--output", str(tmp_path / "out")],
                check=False,
                env={**ours, **environment},
                stderr=-2,
            )
            said = ended.stdout.decode()
            assert ended.returncode == 0, said
            assert TOKEN not in said
            assert await cloud.alive() == set()
            assert cloud.capacity == 0
            assert cloud.victims == []
            deleted = [name for request in cloud.asked(f"POST {SET}/delete") for name in request.body["instanceIds"]]
            changes = [request.line for request in cloud.log if request.method != "GET"]
    results = json.loads((tmp_path / "out" / "results.json").read_text())["jobs"]
    assert [job["state"] for job in results] == ["succeeded"] * 20
    numbers = {int(path.read_text()) for path in (tmp_path / "out").glob("artifacts/*/number")}
    assert numbers == set(range(20))
    used = {attempt["instance"] for job in results for attempt in job["attempts"]}
    assert 4 <= len(used) == len(deleted)
    assert {line.partition(" ")[0] for line in changes} == {"PATCH", "POST"}
