"""GitLab's jobs on a fleet: what a runner of our own adds to a job, and what many jobs at once cost it.

The GitLab for it is a process of its own, on this machine; instances are those of the plugin ``local``.
"""

import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from subprocess import DEVNULL
from tempfile import TemporaryDirectory
from time import perf_counter, process_time

import anyio
from _figures import report

from fleeting import LoopClock
from gitlab_jobs import Features, Job, JobInfo, Step, Variable
from gitlab_jobs.client import GitLabClient
from gitlab_jobs.coordinator import Reply
from gitlab_jobs.testing import URL, FakeGitLab
from taskscaler.executors.instance import InstanceConfig, InstanceExecutor
from taskscaler.serve import read_fleet_file
from taskscaler_gitlab import read_config
from taskscaler_gitlab._service import RunnerService

JOBS = 200
AT_ONCE = 200
SECONDS = 20.0
TOKEN = "glrt-benchmark"  # noqa: S105  (of a GitLab that lasts as long as this)

FILE = """
concurrent = {most}
check_interval = 1
[[runners]]
url = "{url}"
token = "{token}"
executor = "instance"
[runners.autoscaler]
plugin = "local"
capacity_per_instance = {slots}
max_instances = {instances}
plugin_config = {{ directory = "{here}/fleet" }}
[[runners.autoscaler.policy]]
idle_count = {slots}
idle_time = "1h"
[runners.autoscaler.state_storage]
enabled = true
dir = "{here}/state"
"""

TALKING = """
[[jobs]]
name = "job {number}"
script = "for i in $(seq {seconds}); do echo line $i; sleep 1; done"
"""


class Timed(FakeGitLab):
    """A GitLab that remembers when it handed jobs out, and when it took their ends."""

    began: float
    took: list[float]

    async def request(self, token: str, body: object) -> Reply:
        """See `FakeGitLab`."""
        reply = await super().request(token, body)  # type: ignore[arg-type]
        self.began = perf_counter()
        return reply

    async def update(self, number: int, token: str, body: dict[str, object]) -> Reply:  # type: ignore[override]
        """See `FakeGitLab`."""
        reply = await super().update(number, token, body)
        if body["state"] in ("success", "failed") and reply.status == 200:  # noqa: PLR2004  (HTTP's)
            self.took.append(perf_counter() - self.began)
        return reply


@asynccontextmanager
async def running(
    here: Path, url: str, token: str, *, most: int, slots: int, instances: int, client: GitLabClient | None = None
) -> AsyncIterator[RunnerService]:
    """Run a runner while the body runs."""
    path = here / "config.toml"
    path.write_text(FILE.format(url=url, token=token, most=most, slots=slots, instances=instances, here=here))
    config, fleet = read_config(path), read_fleet_file(path)
    executor = InstanceExecutor(InstanceConfig())
    service = RunnerService(config, executor, here / "jobs", is_kept=True, say=lambda _: None)
    if client is not None:
        service.connect = lambda _: client
    clock = LoopClock()
    scaler = fleet.scaler(clock, [])
    scaler.delete_instances_on_shutdown = True
    async with scaler, anyio.create_task_group() as tasks:
        while (await scaler.capacity()).idle < slots:  # noqa: ASYNC110  (of that, nobody tells)
            await anyio.sleep(0.05)
        await service.take_up(scaler, clock)
        tasks.start_soon(service.run)
        yield service
        await service.leave()
        tasks.cancel_scope.cancel()


async def overhead(here: Path, jobs: int) -> list[float]:
    """Seconds from the answer with a job to the answer to its end, one job after the other."""
    gitlab = Timed(here / "gitlab", long_poll=5.0, accepts=0)
    gitlab.took = []
    client = GitLabClient(URL, transport=gitlab.transport())
    step = Step(name="script", script=("true",))
    none = Variable(key="GIT_STRATEGY", value="none")
    job = Job(id=0, token="", job_info=JobInfo(name="true"), steps=(step,), variables=(none,), features=Features())
    async with running(here, URL, gitlab.runner_token, most=1, slots=1, instances=1, client=client):
        for _ in range(jobs):
            await gitlab.ended(gitlab.enqueue(job))
    return gitlab.took


async def many(here: Path) -> float:
    """The share of a core that a runner takes while so many jobs print a line a second each."""
    seconds = 900  # they are ended with their instances
    (here / "jobs.toml").write_text("".join(TALKING.format(number=each, seconds=seconds) for each in range(AT_ONCE)))
    main = "from gitlab_jobs.cli import main; main()"
    command = [
        sys.executable,
        "-c",
        main,
        "fake",
        str(here / "jobs.toml"),
        "--token",
        TOKEN,
        "--output",
        str(here / "o"),
    ]
    async with await anyio.open_process(command, stdin=DEVNULL, stderr=DEVNULL) as gitlab:
        said = await gitlab.stdout.receive() if gitlab.stdout else b""
        url = re.findall(r"http://\S+", said.decode())[0]
        async with running(here, url, TOKEN, most=AT_ONCE, slots=AT_ONCE // 4, instances=4) as service:
            while sum(view.state == "running" for view in service.jobs) < AT_ONCE:  # noqa: ASYNC110  (as above)
                await anyio.sleep(0.2)
            began, used = perf_counter(), process_time()
            await anyio.sleep(SECONDS)
            share = (process_time() - used) / (perf_counter() - began)
        gitlab.kill()
    return 100 * share


if __name__ == "__main__":
    with TemporaryDirectory() as directory:
        took = anyio.run(overhead, Path(directory), JOBS)
    report("own_job_overhead_ms", 1000 * median(took), "ms", 250, conditions=f"median of {len(took)}, script true")
    with TemporaryDirectory() as directory:
        percent = anyio.run(many, Path(directory))
    report("own_jobs_cpu_percent", percent, "%", 60, conditions=f"{AT_ONCE} jobs at once, a line a second each")
