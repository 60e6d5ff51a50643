"""``taskscaler-gitlab switch`` as a user starts it: two services, which are processes, and a command that is killed."""

import json
import os
import shlex
import signal
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
import pytest
from anyio import to_thread
from anyio.abc import Process
from attrs import define

from fleeting import FleetingError
from gitlab_jobs.testing import FakeGitLab, State
from taskscaler.serve import ask
from taskscaler_gitlab.switching._kept import KeptSwitch
from taskscaler_gitlab.switching._switch import Step
from tests.gitlab_jobs.serving import served
from tests.gitlab_jobs.test_peers import scripted
from tests.one_backend import one_backend
from tests.peers.ours import COMMAND

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.timeout(600)]

anyio_backend = one_backend  # the programs have their own

JOBS = 10

CONFIG = """
concurrent = 12
check_interval = 1
[[runners]]
name = "{name}"
url = "{url}"
token = "{token}"
executor = "instance"
request_concurrency = 4
[runners.autoscaler]
plugin = "local"
capacity_per_instance = 6
max_instances = 2
[runners.autoscaler.plugin_config]
boot_time = "0s"
orphan_ttl = "1h"
directory = "{here}/fleet-{name}"
[runners.autoscaler.state_storage]
enabled = true
dir = "{here}/state-{name}"
[[runners.autoscaler.policy]]
idle_count = 1
idle_time = "10m"
"""


@define
class Stage:
    """A GitLab, and two colours that may run."""

    gitlab: FakeGitLab
    here: Path
    sockets: Path
    """Where they listen: paths of sockets must be short."""

    @property
    def environment(self) -> Mapping[str, str]:
        """What all programs get."""
        return {"PATH": os.environ["PATH"], "HOME": str(self.here), "LC_ALL": "C.UTF-8"}

    def socket(self, name: str) -> Path:
        """Where a colour listens."""
        return self.sockets / f"{name}.sock"

    @property
    def go(self) -> Path:
        """What jobs wait for."""
        return self.here / "go"

    def enqueue(self) -> int:
        """Have a job come that runs until it may end."""
        wait = f"until [ -e {self.go} ]; do sleep 1; done"
        return self.gitlab.enqueue(scripted("long", "echo begins", wait, "echo ends"))

    @asynccontextmanager
    async def blue(self) -> AsyncIterator[Process]:
        """Have the old colour run."""
        command = [*COMMAND, "run", str(self.here / "blue.toml"), "--socket", str(self.socket("blue"))]
        with (self.here / "blue.log").open("ab") as printed:
            async with await anyio.open_process(
                command, stdout=printed, stderr=subprocess.STDOUT, env=self.environment, cwd=self.here
            ) as process:
                try:
                    yield process
                finally:
                    if process.returncode is None:
                        process.terminate()
                    with anyio.CancelScope(shield=True):
                        await process.wait()

    async def status(self, name: str) -> Mapping[str, Any] | None:
        """What a colour says of itself; None: it does not run."""
        with suppress(FleetingError):
            return await to_thread.run_sync(ask, self.socket(name), "GET", "/status")
        return None

    async def until_it_runs(self, name: str, *, jobs: int) -> None:
        """Wait until a colour has so many jobs."""
        while (status := await self.status(name)) is None or status["intake"]["jobs"] < jobs:  # noqa: ASYNC110  (only asking tells)
            await anyio.sleep(0.2)

    async def until_begun(self, number: int) -> None:
        """Wait until the script of each of the first jobs runs."""
        for each in range(1, number + 1):
            while b"begins\n" not in self.gitlab.log(each):  # noqa: ASYNC110  (only looking tells)
                await anyio.sleep(0.2)

    async def switch(self, *options: str, kill_at: Step | None = None) -> str:
        """Run the command to its end, or kill it once a step is on disk; returns what it has printed."""
        kept = KeptSwitch(self.here / "switch")
        command = [*COMMAND, "switch", str(self.here / "colours.toml"), *options]
        output = self.here / "output"
        with output.open("wb") as printed:
            async with await anyio.open_process(
                command, stdout=printed, stderr=subprocess.STDOUT, env=self.environment, cwd=self.here
            ) as process:
                while kill_at is not None and process.returncode is None:
                    state = kept.read() if kept.path.exists() else None
                    if (
                        state is not None
                        and not state.is_before(kill_at)
                        and state.is_aborting == (options == ("--abort",))
                    ):
                        process.kill()
                        break
                    await anyio.sleep(0.01)
                status = await process.wait()
        said = output.read_text()
        assert status == (-signal.SIGKILL if kill_at and status else 0), said
        return said

    async def is_over(self, *, retired: str) -> None:
        """See that nothing is left of a colour."""
        assert await self.status(retired) is None
        assert not self.has_fleet(retired)
        state = KeptSwitch(self.here / "switch").read()
        assert state is not None
        assert (state.step, state.retired) == (Step.OVER, retired)

    async def all_end(self, jobs: list[int]) -> None:
        """See that jobs have ended well, each with its whole log, and once."""
        for number in jobs:
            stored = await self.gitlab.ended(number)
            log = self.gitlab.log(number)
            assert stored.state is State.SUCCESS, log
            assert [log.count(word) for word in (b"\nbegins\n", b"\nends\n")] == [1, 1], log

    async def end(self, name: str) -> None:
        """Have a colour end, with its fleet."""
        with suppress(FleetingError):
            await to_thread.run_sync(
                lambda: ask(self.socket(name), "POST", "/drain", json={"delete": True}, timeout=None)
            )
        while await self.status(name) is not None or self.has_fleet(name):  # noqa: ASYNC110  (only looking tells)
            await anyio.sleep(0.2)

    def has_fleet(self, name: str) -> bool:
        """Whether a colour has instances."""
        return bool([*self.here.glob(f"fleet-{name}/*/instances/*")])


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    """Both colours with one GitLab; none of them runs."""
    gitlab = FakeGitLab(tmp_path / "gitlab", long_poll=1.0, accepts=0)
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(served(gitlab))
        sockets = Path(stack.enter_context(TemporaryDirectory()))
        made = Stage(gitlab, tmp_path, sockets)
        tables = [f'[switch]\nstate_dir = "{tmp_path}/switch"\n']
        for name in ("blue", "green"):
            text = CONFIG.format(name=name, url=url, token=gitlab.runner_token, here=tmp_path)
            (tmp_path / f"{name}.toml").write_text(text)
            tables.append(f'[colours.{name}]\nconfig = "{name}.toml"\nsocket = "{made.socket(name)}"\n')
        (tmp_path / "colours.toml").write_text("".join(tables))
        try:
            yield made
        finally:
            with anyio.CancelScope(shield=True):
                made.go.touch()
                await made.end("green")


async def test_the_command_and_the_old_service_are_killed_at_each_step(stage: Stage) -> None:
    """The command goes on each time, the old service is started again; all jobs end where they began."""
    jobs = [stage.enqueue() for _ in range(JOBS)]
    async with stage.blue() as blue:
        await stage.until_it_runs("blue", jobs=JOBS)
        await stage.until_begun(JOBS)
        for step in (Step.BEGUN, Step.STARTED, Step.TRIED, Step.POLLING, Step.STOPPED):
            await stage.switch("--to", "green", kill_at=step)
        blue.kill()
        await blue.wait()
    later = stage.enqueue()
    await stage.until_it_runs("green", jobs=1)
    stage.go.touch()
    for step in (Step.DRAINED, Step.DELETING, Step.DELETED):
        await stage.switch("--to", "green", kill_at=step)
    said = await stage.switch("--to", "green") if not _is_over(stage) else "done: "
    assert "done: " in said
    await stage.is_over(retired="blue")
    await stage.all_end([*jobs, later])
    refused = await to_thread.run_sync(lambda: _refusal(stage, "--to", "green"))
    assert "green is the running colour already" in refused


async def test_it_is_aborted_after_jobs_have_come_to_the_new_one(stage: Stage) -> None:
    """They end there, and the jobs of the old one go on; the command is killed on the way back, too.

    The new one is started by a command of the operator's, as by systemd.
    """
    run = shlex.join([*COMMAND, "run", str(stage.here / "green.toml"), "--socket", str(stage.socket("green"))])
    start = ["sh", "-c", f"setsid {run} < /dev/null > {stage.here}/green.log 2>&1 &"]
    with (stage.here / "colours.toml").open("a") as file:
        file.write(f"start = {json.dumps(start)}\n")
    jobs = [stage.enqueue() for _ in range(3)]
    async with stage.blue():
        await stage.until_it_runs("blue", jobs=3)
        await stage.switch("--to", "green", kill_at=Step.STOPPED)
        jobs += [stage.enqueue() for _ in range(2)]
        await stage.until_it_runs("green", jobs=2)
        await stage.switch("--abort", kill_at=Step.POLLING)
        await stage.switch("--abort", kill_at=Step.STOPPED)
        stage.go.touch()
        said = await stage.switch("--abort")
        assert "aborted: blue has the jobs, as before, and green is gone" in said
        assert "ready: " in (stage.here / "green.log").read_text()
        await stage.is_over(retired="green")
        jobs.append(stage.enqueue())
        await stage.all_end(jobs)
        await stage.end("blue")


def _is_over(stage: Stage) -> bool:
    state = KeptSwitch(stage.here / "switch").read()
    return state is not None and state.step is Step.OVER


def _refusal(stage: Stage, *options: str) -> str:
    done = subprocess.run(
        [*COMMAND, "switch", str(stage.here / "colours.toml"), *options],
        env=stage.environment, capture_output=True, check=False, text=True,
    )  # fmt: skip
    assert done.returncode == 1
    return done.stderr
