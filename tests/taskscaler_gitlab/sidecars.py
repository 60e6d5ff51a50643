"""A runner whose jobs sidecars run: on instances that are processes here, with a GitLab in memory."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
from attrs import define, field

import fleeting
from fleeting import InstanceGroup, LoopClock, MemoryJournal
from gitlab_jobs import Artifact, Job, Step
from gitlab_jobs.client import GitLabClient
from gitlab_jobs.testing import URL, FakeGitLab, Stored
from taskscaler import Pool, Taskscaler
from taskscaler.executors.instance import InstanceConfig, InstanceExecutor
from taskscaler.observers.traces import Traces
from taskscaler_gitlab import read_config
from taskscaler_gitlab._service import RunnerService
from taskscaler_gitlab._view import JobView
from taskscaler_gitlab.relay import RelayWork
from tests.taskscaler_gitlab.cells_here import CellHere
from tests.taskscaler_gitlab.services import PLACE, a_job

FILE = """
concurrent = {concurrent}
check_interval = 1
[[runners]]
name = "desk"
{place}
executor = "instance"
{more}
[runners.taskscaler]
run_with = "{run_with}"
{own}
{tables}
[runners.taskscaler.sidecar]
{sidecar}
[runners.autoscaler]
plugin = "local"
"""


def script(*lines: str, leaves: tuple[str, ...] = (), **more: Any) -> Job:  # noqa: ANN401  (of a job)
    """A job that runs some lines."""
    kept = Artifact(name="kept", paths=leaves, artifact_type="archive", artifact_format="zip", when="on_success")
    steps = (Step(name="script", script=lines, timeout=3600, when="on_success"),)
    return a_job(steps=steps, artifacts=(kept,) if leaves else (), **more)


@define
class Desk:
    """What a test looks at."""

    here: Path
    service: RunnerService
    scaler: Taskscaler
    gitlab: FakeGitLab
    said: list[str]
    group: InstanceGroup
    tasks: anyio.abc.TaskGroup = field(repr=False)

    @property
    def works(self) -> list[RelayWork]:
        """The jobs that are not over."""
        views = [view.work for view in self.service.jobs if isinstance(view, JobView)]
        return [work for work in views if isinstance(work, RelayWork)]

    @property
    def notes(self) -> list[Path]:
        """What is noted down of jobs."""
        return list((self.here / "jobs" / "deliveries").glob("*/delivery.json"))

    async def until(self, is_so: Callable[[], object]) -> None:
        """Wait until something is so; looks again and again."""
        while not is_so():  # noqa: ASYNC110  (of what it looks at, nobody tells)
            await anyio.sleep(0.02)

    async def ended(self, number: int) -> Stored:
        """Wait for the end of a job, and of what it had here."""
        stored = await self.gitlab.ended(number)
        await self.until(lambda: not self.service.running)
        return stored

    def log(self, number: int) -> str:
        """What GitLab has of a job's log."""
        return self.gitlab.log(number).decode()


@asynccontextmanager
async def serving(
    here: Path,
    gitlab: FakeGitLab,
    program: Path,
    *,
    journal: MemoryJournal | None = None,
    is_killed: bool = False,
    is_left: bool = False,
    concurrent: int = 4,
    own: str = "",
    sidecar: str = "",
    more: str = "",
    run_with: str = "sidecar",
    traces: Traces | None = None,
    cells: Sequence[CellHere] = (),
    pools: Sequence[str] = ("default",),
    rules: str = "",
    **pool: Any,  # noqa: ANN401  (a pool's settings)
) -> AsyncIterator[Desk]:
    """Run a runner while the body runs; then it leaves its jobs, or is as good as killed, and instances stay."""
    path = here / "config.toml"
    sidecar = sidecar or f'binary = "{program}"'
    settings = {"concurrent": concurrent, "own": own, "sidecar": sidecar, "more": more, "run_with": run_with}
    place = "" if cells else PLACE.format(url=URL, token=gitlab.runner_token)
    several = "".join(f'[[runners.autoscaler.pools]]\nname = "{name}"\n' for name in pools if len(pools) > 1)
    tables = "".join(each.table(here) for each in cells)
    path.write_text(FILE.format(place=place, tables=tables, **settings) + several + rules)
    ways = {each.url: each.way for each in cells}
    said: list[str] = []
    service = RunnerService(
        read_config(path),
        InstanceExecutor(InstanceConfig()),
        here / "jobs",
        is_kept=journal is not None,
        say=said.append,
        connect=lambda of: GitLabClient(of.url, transport=ways.get(of.url) or gitlab.transport()),
    )
    groups = {
        name: fleeting.load("local", {"directory": str(here / f"group{f'-{name}' * (len(pools) > 1)}")})
        for name in pools
    }
    group = next(iter(groups.values()))
    fast = {
        "max_instances": 2,
        "capacity_per_instance": 2,
        "update_interval": 0.2,
        "update_interval_when_expecting": 0.1,
    }
    scaler = Taskscaler(
        [Pool(each, name=name, **{**fast, **pool}) for name, each in groups.items()],
        clock=LoopClock(),
        journal=journal,
        delete_instances_on_shutdown=not (is_killed or is_left),
        keep_instance_with_acquisitions=True,
        observers=[] if traces is None else [traces],
    )
    async with scaler, anyio.create_task_group() as tasks:
        await service.take_up(scaler, LoopClock())
        tasks.start_soon(service.run)
        yield Desk(here, service, scaler, gitlab, said, group, tasks)
        if not is_killed:
            await service.leave()
        tasks.cancel_scope.cancel()
