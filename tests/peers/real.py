"""The real gitlab-runner that ``GITLAB_RUNNER`` names, as a user starts it."""

import os
import re
import subprocess
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import cached_property
from pathlib import Path

import anyio
from anyio.abc import Process
from attrs import define

from tests.peers import REAL_RUNNER

SERVICE = """
concurrent = {concurrent}
check_interval = 1
shutdown_timeout = 5
[[runners]]
name = "real"
url = "{url}"
token = "{token}"
request_concurrency = 2
output_limit = 65536
"""

SHELL = """
executor = "shell"
shell = "bash"
builds_dir = "{here}/builds"
cache_dir = "{here}/caches"
"""

DOCKER = """
executor = "docker"
[runners.docker]
host = "unix://{socket}"
image = "{image}"
helper_image = "{helper}"
pull_policy = ["never"]
network_mode = "host"
"""


@define(slots=False)
class RealRunner:
    """The program, and a directory for all that it makes."""

    here: Path

    @property
    def program(self) -> str:
        """Where it is."""
        return str(REAL_RUNNER.programs[0])

    @cached_property
    def version(self) -> tuple[int, ...]:
        """Such as 17, 9, 3."""
        said = subprocess.run([self.program, "--version"], capture_output=True, text=True, check=True).stdout
        found = re.search(r"Version:\s+([0-9]+)\.([0-9]+)\.([0-9]+)", said)
        assert found, said
        return tuple(map(int, found.groups()))

    @property
    def claims(self) -> bool:
        """Whether it says that it has taken a job before it prepares it."""
        return self.version >= (18, 5)

    @property
    def is_graceful(self) -> bool:
        """Whether a job that is cancelled has its ``after_script``."""
        return self.version >= (16, 11)

    @property
    def environment(self) -> dict[str, str]:
        """A user's who has nothing."""
        return {"PATH": os.environ["PATH"], "HOME": str(self.here), "TMPDIR": str(self.here), "LC_ALL": "C.UTF-8"}

    async def once(self, url: str, token: str, *more: str) -> str:
        """Run one job; returns what it prints."""
        _, *arguments = self._single(url, token)
        return await self.do(*arguments, "--max-builds", "1", *more)

    @asynccontextmanager
    async def alone(self, url: str, token: str, *, processes: int = 4) -> AsyncIterator[None]:
        """Several of it, each of which runs one job after the other, as a sidecar does with its one."""
        async with AsyncExitStack() as stack:
            for number in range(processes):
                command = [*self._single(url, token, f"builds-{number}"), "--output-limit", "65536"]
                printed = stack.enter_context((self.here / f"printed-{number}").open("wb"))
                process = await anyio.open_process(
                    command, stdout=printed, stderr=subprocess.STDOUT, env=self.environment, cwd=self.here
                )
                await stack.enter_async_context(process)
                await stack.enter_async_context(ended_gently(process))
            yield

    def _single(self, url: str, token: str, builds: str = "builds") -> list[str]:
        return [
            *(self.program, "run-single", "--url", url, "--token", token, "--executor", "shell", "--shell", "bash"),
            *("--builds-dir", str(self.here / builds), "--cache-dir", str(self.here / "caches")),
        ]

    async def do(self, *arguments: str) -> str:
        """Run a command of it; returns what it prints."""
        done = await anyio.run_process(
            [self.program, *arguments], stderr=subprocess.STDOUT, env=self.environment, cwd=self.here
        )
        return done.stdout.decode()

    @asynccontextmanager
    async def running(
        self, url: str, token: str, *, concurrent: int = 6, executor: str | None = None
    ) -> AsyncIterator[Process]:
        """It, as a service; with its shell executor, unless there is a table for another."""
        config = self.here / "config.toml"
        service = SERVICE.format(concurrent=concurrent, url=url, token=token)
        config.write_text(service + (executor or SHELL.format(here=self.here)))
        with (self.here / "printed").open("wb") as printed:
            command = [self.program, "run", "--config", str(config), "--working-directory", str(self.here)]
            async with await anyio.open_process(
                command, stdout=printed, stderr=subprocess.STDOUT, env=self.environment, cwd=self.here
            ) as process, ended_gently(process):  # fmt: skip
                yield process


@asynccontextmanager
async def ended_gently(process: Process) -> AsyncIterator[None]:
    """A service that is asked to end when the body is over, and killed if it does not."""
    try:
        yield
    finally:
        with anyio.CancelScope(shield=True):
            if process.returncode is None:
                process.terminate()
            with anyio.move_on_after(20):
                await process.wait()
            if process.returncode is None:
                process.kill()
