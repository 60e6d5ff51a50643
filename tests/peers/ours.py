"""``taskscaler-gitlab run`` on the local group, as a user starts it."""

import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
from anyio.abc import Process

from tests.peers.real import ended_gently

COMMAND = (sys.executable, "-c", "from taskscaler_gitlab.cli import main; main()")
CONFIG = """
concurrent = 6
check_interval = 1
[[runners]]
name = "ours"
url = "{url}"
token = "{token}"
executor = "instance"
request_concurrency = 2
output_limit = 65536
{more}
[runners.autoscaler]
plugin = "local"
capacity_per_instance = 6
max_instances = 1
[runners.autoscaler.plugin_config]
boot_time = "0s"
[[runners.autoscaler.policy]]
idle_count = 0
idle_time = "1m"
"""


@asynccontextmanager
async def our_runner(here: Path, url: str, token: str, *, more: str = "") -> AsyncIterator[Process]:
    """It, with all that it makes in a new directory; *more* is what the file says beside what it needs."""
    await anyio.Path(here).mkdir(parents=True)
    config = here / "config.toml"
    config.write_text(CONFIG.format(url=url, token=token, more=more))
    environment = {"PATH": os.environ["PATH"], "HOME": str(here), "LC_ALL": "C.UTF-8"}
    with TemporaryDirectory() as run, (here / "printed").open("wb") as printed:
        environment["XDG_RUNTIME_DIR"] = run  # with a socket, whose path must be short
        command = [*COMMAND, "run", str(config)]
        async with await anyio.open_process(
            command, stdout=printed, stderr=subprocess.STDOUT, env=environment, cwd=here
        ) as process, ended_gently(process), anyio.create_task_group() as tasks:  # fmt: skip
            tasks.start_soon(_runs, process, here / "printed")
            yield process
            tasks.cancel_scope.cancel()


async def _runs(process: Process, printed: Path) -> None:
    """Nobody waits for jobs of a runner that has ended by itself."""
    status = await process.wait()
    raise AssertionError(f"the runner has ended with {status}: {await anyio.Path(printed).read_text()}")
