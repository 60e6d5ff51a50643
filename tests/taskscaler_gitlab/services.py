"""A runner on a fleet in memory, with a GitLab in memory: jobs run as the test says."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
from attrs import define, evolve, field

from fleeting import Clock, LoopClock, MemoryJournal, Usage
from fleeting.testing import FakeCloud, FakeGroup
from gitlab_jobs import Features, Job, JobInfo, Outcome
from gitlab_jobs.client import GitLabClient, Reporting
from gitlab_jobs.testing import URL, FakeGitLab
from taskscaler import Lease, Policy, Pool, Taskscaler
from taskscaler.executors import Executor, MemoryLimit
from taskscaler.executors.instance import InstanceConfig, InstanceExecutor
from taskscaler.observers.metrics import Metrics
from taskscaler.observers.traces import Traces
from taskscaler_gitlab import RunnerSettings, read_config
from taskscaler_gitlab._service import RunnerService
from taskscaler_gitlab._view import JobView
from tests.taskscaler_gitlab.cells_here import CellHere

FILE = """
concurrent = {concurrent}
check_interval = 1
[[runners]]
name = "desk"
{place}
executor = "{kind}"
{more}
[runners.autoscaler]
plugin = "local"
"""

PLACE = """
url = "{url}"
token = "{token}"
"""

Script = Callable[[Job, Lease, Reporting], Awaitable[Outcome]]


async def succeed(job: Job, _: Lease, report: Reporting) -> Outcome:
    """Say hello, and end well."""
    report.log(f"hello from {job.id}\n".encode())
    return Outcome(is_success=True)


class Held:
    """A script that runs until it is let go."""

    def __init__(self) -> None:
        """Begin."""
        self.go = anyio.Event()
        self.begun = anyio.Event()

    async def __call__(self, job: Job, lease: Lease, report: Reporting) -> Outcome:
        """Wait."""
        self.begun.set()
        report.log(b"it runs\n")
        await self.go.wait()
        return Outcome(is_success=True)


@define
class Scripted:
    """Runs jobs as a function says, and knows which have begun."""

    script: Script = succeed
    begins: bool = True
    """Whether jobs have begun when they are run."""

    runs: list[tuple[int, str]] = field(factory=list)
    """The numbers of jobs, and the names of their tries."""

    given: list[tuple[int, RunnerSettings, Executor]] = field(factory=list)
    """The numbers of jobs, and what they were run with."""

    abandoned: list[Path] = field(factory=list)
    usage: Usage = field(default=Usage())
    """What each job has used."""

    memory_limit: MemoryLimit | None = None
    """How much memory each might have."""

    stages: Mapping[str, float] = field(factory=dict)
    """Seconds that the stages of each took."""

    async def run(self, job: Job, lease: Lease, reporting: Reporting, **more: Any) -> Outcome:  # noqa: ANN401
        """See `Runs.run`."""
        directory: Path = more["directory"]
        if self.begins:
            (directory / "run").mkdir(exist_ok=True)
            (directory / "run" / "begun").touch()
        self.runs.append((job.id, more["name"]))
        self.given.append((job.id, more["settings"], more["executor"]))
        return await self.script(job, lease, reporting)

    async def abandon(self, executor: Executor, lease: Lease, *, directory: Path) -> None:
        """See `Runs.abandon`."""
        self.abandoned.append(directory)

    def kept_log(self, directory: Path) -> int:
        """See `Runs.kept_log`."""
        return 0

    def has_begun(self, directory: Path) -> bool:
        """See `Runs.has_begun`."""
        return (directory / "run" / "begun").exists()

    def usage_of(self, directory: Path) -> Usage:
        """See `Runs.usage_of`."""
        return self.usage

    def memory_limit_of(self, directory: Path) -> MemoryLimit | None:
        """See `Runs.memory_limit_of`."""
        return self.memory_limit

    def stages_of(self, directory: Path) -> Mapping[str, float]:
        """See `Runs.stages_of`."""
        return self.stages


@define
class Bench:
    """What a test looks at."""

    service: RunnerService
    scaler: Taskscaler
    gitlab: FakeGitLab
    said: list[str]
    tasks: anyio.abc.TaskGroup

    @property
    def first(self) -> JobView:
        """The first of the jobs that are not over."""
        view = self.service.jobs[0]
        assert isinstance(view, JobView)
        return view

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Wait until something is so; looks again and again."""
        while not is_so():  # noqa: ASYNC110  (of what it looks at, nobody tells)
            await anyio.sleep(0.01)

    async def taken(self, **capacity: int) -> None:
        """Wait until so many slots are in these states."""
        while True:
            now = await self.scaler.capacity()
            if all(getattr(now, name) == number for name, number in capacity.items()):
                return
            await anyio.sleep(0.01)


def a_job(name: str = "build", **more: Any) -> Job:  # noqa: ANN401  (of a job)
    """A job for GitLab to hand out."""
    reasons = Features(failure_reasons=("job_canceled", "runner_interrupted", "unknown_failure"))
    return Job(id=0, token="", job_info=JobInfo(name=name), features=reasons, **more)


@asynccontextmanager
async def serving(
    here: Path,
    gitlab: FakeGitLab,
    *,
    cloud: FakeCloud | None = None,
    runs: Scripted | None = None,
    journal: MemoryJournal | None = None,
    token: str | None = None,
    concurrent: int = 4,
    more: str = "",
    executor: Executor | None = None,
    kind: str = "instance",
    leaves: bool = True,
    url: str = URL,
    cells: Sequence[CellHere] = (),
    client: GitLabClient | None = None,
    clock: Clock | None = None,
    metrics: Metrics | None = None,
    traces: Traces | None = None,
    pools: Sequence[str] = ("default",),
    rules: str = "",
    policies: Sequence[Policy] = (Policy(),),
    **pool: Any,  # noqa: ANN401  (a pool's settings)
) -> AsyncIterator[Bench]:
    """Run a runner while the body runs; then it leaves its jobs, or is as good as killed. *cells*: instead of one."""
    path = here / "config.toml"
    place = "" if cells else PLACE.format(url=url, token=token or gitlab.runner_token)
    tables = "".join(each.table(here) for each in cells)
    several = "".join(f'[[runners.autoscaler.pools]]\nname = "{name}"\n' for name in pools if len(pools) > 1)
    file = FILE.format(place=place, concurrent=concurrent, more=f"{more}\n{tables}", kind=kind)
    path.write_text(f"{file}{several}{rules}")
    ways = {each.url: each.way for each in cells}
    said: list[str] = []
    service = RunnerService(
        read_config(path),
        executor or InstanceExecutor(InstanceConfig()),
        here / "jobs",
        is_kept=journal is not None,
        say=said.append,
        connect=lambda of: client or GitLabClient(of.url, transport=ways.get(of.url) or gitlab.transport()),
        metrics=metrics,
        runs=runs or Scripted(),
    )
    groups = {name: FakeGroup(cloud or FakeCloud(identity=f"fake/{name}")) for name in pools}
    settings = {"max_instances": 2, "capacity_per_instance": 2, "update_interval": 0.2, **pool}
    scaler = Taskscaler(
        [Pool(group, name=name, dial=group.dial, **settings) for name, group in groups.items()],
        policies=policies,
        clock=LoopClock(),
        journal=journal,
        delete_instances_on_shutdown=False,
        keep_instance_with_acquisitions=True,
        observers=[each for each in (metrics, traces) if each is not None],
    )
    async with scaler, anyio.create_task_group() as tasks:
        await service.take_up(scaler, clock or LoopClock())
        tasks.start_soon(service.run)
        yield Bench(service, scaler, gitlab, said, tasks)
        if leaves:
            await service.leave()
        tasks.cancel_scope.cancel()


def numbers(jobs: Sequence[Any]) -> list[str]:
    """The ids of jobs."""
    return [job.id for job in jobs]


__all__ = ["Bench", "Held", "Scripted", "a_job", "evolve", "numbers", "serving", "succeed"]
