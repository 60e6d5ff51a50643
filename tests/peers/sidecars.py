"""``taskscaler-gitlab run`` with a real gitlab-runner beside each slot, as a user starts it."""

import os
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from getpass import getuser
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
from anyio.abc import Process

from tests.fleeting.sshd import Server
from tests.peers.ours import COMMAND
from tests.peers.real import ended_gently

CONFIG = """
concurrent = {at_once}
check_interval = 1
shutdown_timeout = 5
[[runners]]
name = "relay"
url = "{url}"
token = "{token}"
executor = "{executor}"
shell = "bash"
request_concurrency = 2
output_limit = 65536
{more}
[runners.taskscaler]
run_with = "sidecar"
{own}
[runners.taskscaler.sidecar]
{sidecar}
[runners.autoscaler]
capacity_per_instance = {at_once}
max_instances = 1
"""

LOCAL = """
plugin = "local"
[runners.autoscaler.plugin_config]
boot_time = "0s"
[[runners.autoscaler.policy]]
idle_count = 0
idle_time = "1m"
"""


def static(key: Path, servers: Sequence[Server]) -> str:
    """A fleet of hosts that are reached over SSH."""
    lines = ['plugin = "static"', "[runners.autoscaler.plugin_config]", f'state_dir = "{key.parent}/taken"']
    lines += [f'username = "{getuser()}"', f'key_path = "{key}"']
    for number, host in enumerate(servers, start=1):
        lines += ["[[runners.autoscaler.plugin_config.hosts]]", f'name = "host-{number}"', 'address = "127.0.0.1"']
        lines += [f"port = {host.port}", f'host_key = "{host.host_key}"']
    lines += ["[[runners.autoscaler.policy]]", "idle_count = 0", 'idle_time = "1m"']
    return "\n".join(lines)


def write_config(
    here: Path,
    url: str,
    token: str,
    *,
    sidecar: str,
    fleet: str = LOCAL,
    own: str = "",
    more: str = "",
    executor: str = "instance",
    at_once: int = 6,
) -> Path:
    """Write the file that it is started with."""
    here.mkdir(mode=0o700, parents=True, exist_ok=True)
    config = here / "config.toml"
    config.write_text(
        CONFIG.format(executor=executor, url=url, token=token, sidecar=sidecar, own=own, more=more, at_once=at_once)
        + fleet
    )
    return config


@asynccontextmanager
async def relaying(config: Path, **more: str) -> AsyncIterator[Process]:
    """It, until the body is over; *more* is in its environment."""
    here = config.parent
    environment = {"PATH": os.environ["PATH"], "HOME": str(here), "LC_ALL": "C.UTF-8"}
    with (here / "printed").open("ab") as printed, TemporaryDirectory() as short:  # a socket's path has 107 bytes
        async with await anyio.open_process(
            [*COMMAND, "run", str(config)],
            stdout=printed,
            stderr=subprocess.STDOUT,
            env={**environment, "XDG_RUNTIME_DIR": short, **more},
            cwd=here,
        ) as process, ended_gently(process):  # fmt: skip
            yield process
