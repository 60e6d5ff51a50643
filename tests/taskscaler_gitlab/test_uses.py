"""What GitLab's jobs, and their steps, have used: in metrics, in explanations, and in what is kept of jobs."""

import json
from pathlib import Path
from typing import Any

import pytest
from attrs import define

from fleeting import Usage
from gitlab_jobs import Job, Outcome
from gitlab_jobs.testing import FakeGitLab
from job_steps import Resources, Status, StepResult
from taskscaler import Lease
from taskscaler.executors import MemoryLimit
from taskscaler.observers.metrics import Metrics, MetricsConfig
from taskscaler_gitlab._finished import Finished, FinishedJob
from taskscaler_gitlab.runner._record import RESULTS
from tests.taskscaler.metrics_of import read
from tests.taskscaler_gitlab.services import Scripted, a_job, serving

pytestmark = pytest.mark.anyio

MIB = 1 << 20
LIMIT = MemoryLimit(size=64 * MIB, by="killed", why="twice the 32 MiB at which an earlier run was killed")


@pytest.fixture
def gitlab(tmp_path: Path) -> FakeGitLab:
    """A GitLab."""
    return FakeGitLab(tmp_path / "artifacts", accepts=0)


def step(name: str, seconds: float, *steps: StepResult, cpu: float = 0.5, peak: int = 30 * MIB) -> StepResult:
    """A step that went well, and what it has used."""
    used = Resources(cpu_seconds=cpu, peak_memory=peak, read_bytes=MIB, written_bytes=2 * MIB)
    return StepResult(name=name, status=Status.SUCCESS, started=10.0, ended=10.0 + seconds, resources=used, steps=steps)


TREE = StepResult(
    status=Status.SUCCESS,
    steps=(step("build", 9.0, step("cc", 8.0, cpu=7.0, peak=200 * MIB), cpu=7.0, peak=200 * MIB), step("test", 2.0)),
)


@define
class WithSteps(Scripted):
    """Runs jobs whose steps leave how they went."""

    tree: StepResult = TREE

    async def run(self, job: Job, lease: Lease, reporting: Any, **more: Any) -> Outcome:  # noqa: ANN401
        """See `Runs.run`."""
        (more["directory"] / RESULTS).write_text(json.dumps(self.tree.as_dict()))
        return await Scripted.run(self, job, lease, reporting, **more)


async def test_what_steps_have_used_is_told_and_counted(gitlab: FakeGitLab, tmp_path: Path) -> None:
    """Also by the next process, but it is counted once."""
    metrics = Metrics(MetricsConfig(steps=("build",)))
    runs = WithSteps(usage=Usage(cpu_time=7.5, peak_memory=200 * MIB), memory_limit=LIMIT)
    number, told = gitlab.enqueue(a_job()), []
    async with serving(tmp_path, gitlab, runs=runs, metrics=metrics) as bench:
        await gitlab.ended(number)
        await bench.until(lambda: isinstance(bench.service.jobs[0], FinishedJob))
        told.append(bench.service.jobs[0].explain())
        found = read(metrics)
    again = Metrics()
    async with serving(tmp_path, gitlab, metrics=again) as bench:
        await bench.until(lambda: bool(bench.service.jobs))
        told.append(bench.service.jobs[0].explain())
        assert again.meter.uses.cpu_seconds == 0
    assert told[0] == told[1]
    figures = "200 MiB of memory at most, 1 MiB read, 2 MiB written"
    assert [*told[0]] == [
        f"gitlab-{number} (build) is over: succeeded; it used 8s of CPU, 200 MiB of memory at most",
        "its memory limit was 64 MiB, twice the 32 MiB at which an earlier run was killed",
        f"step build succeeded in 9s (90%); it used 7s of CPU (93%), {figures}",
        f"step build/cc succeeded in 8s (80%); it used 7s of CPU (93%), {figures}",
        f"step test succeeded in 2s (20%); it used 0.5s of CPU (7%), {figures.replace('200', '30')}",
    ]

    def of(name: str) -> list[float]:
        return [value for series, value in found.items() if series.partition("{")[0] == name]

    assert of("taskscaler_job_cpu_seconds_total") == [7.5]
    assert of("taskscaler_job_memory_limit_bytes_sum") == [0.0, 0.0, 64.0 * MIB]
    assert sorted(of("taskscaler_step_cpu_seconds_total")) == [0.5, 7.0]
    assert sorted(of("taskscaler_step_seconds_total")) == [2.0, 8.0]
    assert sum(of("taskscaler_step_read_bytes_total")) == 2 * MIB
    (kept,) = (tmp_path / "jobs").rglob("over.json")
    how = Finished.decode(kept.read_bytes())
    assert [each.path for each in how.steps] == ["build/cc", "test"]
    assert how.memory_limit == LIMIT


async def test_of_very_many_steps_those_that_cost_most_are_named(gitlab: FakeGitLab, tmp_path: Path) -> None:
    """What is kept of a job stays small; what no machine can have used in the time is not known."""
    many = (step(f"s{at}", 0.001 * at, cpu=1e17 if at == 7 else 0.0) for at in range(150))
    runs = WithSteps(tree=StepResult(status=Status.SUCCESS, steps=tuple(many)), usage=Usage(cpu_time=1e17))
    number, metrics = gitlab.enqueue(a_job()), Metrics()
    async with serving(tmp_path, gitlab, runs=runs, metrics=metrics) as bench:
        await gitlab.ended(number)
        await bench.until(lambda: isinstance(bench.service.jobs[0], FinishedJob))
        told = [*bench.service.jobs[0].explain()]
        assert metrics.meter.uses.cpu_seconds == 0
    assert told[0] == f"gitlab-{number} (build) is over: succeeded"
    assert told[1].startswith("steps, 150 in all: 11s, 30 MiB of memory at most, 150 MiB read, 300 MiB written")
    assert [line.split(":")[0] for line in told[2:12]] == [*map("s{}".format, range(149, 140, -1)), "141 others"]
    assert len(told) == 12 + 100
    assert told[12 + 7] == "step s7 succeeded in 0s (0%); it used 30 MiB of memory at most, 1 MiB read, 2 MiB written"
    (kept,) = (tmp_path / "jobs").rglob("over.json")
    assert len(kept.read_bytes()) < 4096
