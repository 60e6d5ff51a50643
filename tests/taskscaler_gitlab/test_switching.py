"""A switch under 40 running jobs: two services, their fleets and a GitLab in this process, and the command as it is."""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from attrs import define, evolve, field

from gitlab_jobs import Job, Outcome
from gitlab_jobs.client import Reporting
from gitlab_jobs.testing import FakeGitLab, State
from taskscaler import Lease
from taskscaler_gitlab.switching._switch import Step, Switch, abort
from tests.taskscaler_gitlab.colours_here import ColourHere, Command
from tests.taskscaler_gitlab.services import Scripted, a_job

pytestmark = [
    pytest.mark.anyio,
    # httpx leaves its own generators open when an answer is not read to its end, and trio tells of them
    pytest.mark.filterwarnings("ignore:.*async_generator object .*Stream:pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:Async generator 'httpx:ResourceWarning"),
]

JOBS = 40
EARLY = (Step.BEGUN, Step.STARTED, Step.TRIED, Step.POLLING, Step.STOPPED, Step.DRAINED)


@define(eq=False)
class Story:
    """A GitLab with 40 jobs that run on blue until they may end, and what has run where."""

    gitlab: FakeGitLab
    command: Command
    go: anyio.Event = field(factory=anyio.Event)
    begun: list[tuple[int, str]] = field(factory=list)
    """The numbers of jobs, and where they began."""

    ended: list[tuple[int, str]] = field(factory=list)
    more: list[int] = field(factory=list)
    """Jobs that have come since the switch began."""

    def script(self, name: str) -> Scripted:
        """What a colour runs."""

        async def run(job: Job, lease: Lease, report: Reporting) -> Outcome:
            if job.job_info.name == "canary":
                report.log(f"canary: ran on {lease.instance}, slot {lease.slot}\n".encode())
                return Outcome(is_success=True)
            self.begun.append((job.id, name))
            report.log(b"it runs\n")
            if job.job_info.name == "long":
                await self.go.wait()
            report.log(b"it ends\n")
            self.ended.append((job.id, name))
            return Outcome(is_success=True)

        return Scripted(run)

    @property
    def colours(self) -> dict[str, ColourHere]:
        """Both."""
        return self.command.colours

    def note_step(self, step: Step) -> None:
        """Have one more job come at each step; those that run may end once no more come to blue."""
        self.more.append(self.gitlab.enqueue(a_job(f"at {step.value}")))
        if step is Step.STOPPED:
            self.go.set()

    async def check(self) -> None:
        """Each job has ended well, where it began, and ran once."""
        for number in self.gitlab.server.jobs:
            stored = await self.gitlab.ended(number)
            assert stored.state is State.SUCCESS, self.gitlab.log(number)
            assert self.gitlab.log(number) == b"it runs\nit ends\n"
        assert sorted(self.begun) == sorted(self.ended)
        assert max(Counter(number for number, _ in self.begun).values()) == 1


@asynccontextmanager
async def story(here: Path, *, is_killed: bool) -> AsyncIterator[Story]:
    """Have blue run 40 jobs."""
    gitlab = FakeGitLab(here / "gitlab", long_poll=0.2, accepts=0)
    async with anyio.create_task_group() as tasks:
        command = Command({}, Switch(old="blue", new="green"), is_killed)
        told = Story(gitlab, command)
        command.reached = told.note_step
        for name in ("blue", "green"):
            command.colours[name] = ColourHere(name, here / name, gitlab, told.script(name), tasks, command.point)
        for _ in range(JOBS):
            gitlab.enqueue(a_job("long"))
        await command.colours["blue"].begin()
        while len(told.begun) < JOBS:  # noqa: ASYNC110  (only looking tells)
            await anyio.sleep(0.02)
        yield told
        for each in command.colours.values():
            each._end.set()


@pytest.mark.parametrize("is_killed", [False, True], ids=["alone", "killed at every point"])
async def test_40_jobs_end_where_they_began_and_the_old_fleet_is_gone(tmp_path: Path, *, is_killed: bool) -> None:
    """However often the command is killed; jobs that come meanwhile run at once, on whichever takes them."""
    async with story(tmp_path, is_killed=is_killed) as told:
        killed = await told.command.run()
        assert len(told.command.points) > 20
        assert killed == (len(told.command.points) if is_killed else 0)
        await told.check()
        blue, green = told.colours.values()
        assert (blue.bench, blue.cloud.alive) == (None, frozenset())
        assert green.takes_jobs
        assert {name for number, name in told.begun if number <= JOBS} == {"blue"}
        assert not [*tmp_path.glob("*/jobs/paused")]  # noqa: ASYNC240  (of no moment here)
        number = told.gitlab.enqueue(a_job("after it"))
        await told.check()
        assert (number, "green") in told.ended


@pytest.mark.parametrize("step", EARLY, ids=lambda step: step.value)
async def test_it_is_aborted_at_every_step(tmp_path: Path, step: Step) -> None:
    """Blue keeps its jobs and its fleet and asks for more; what green has begun ends there, and its fleet goes."""
    async with story(tmp_path, is_killed=False) as told:
        command = told.command
        command.stops_at = step
        await command.run()
        assert command.switch.step is step
        command.stops_at, command.switch, command.is_killed = None, abort(command.switch, 0.0), True
        await command.run()
        blue, green = told.colours.values()
        assert (green.bench, green.cloud.alive) == (None, frozenset())
        assert blue.takes_jobs
        told.go.set()
        await told.check()
        assert {name for number, name in told.begun if number <= JOBS} == {"blue"}
        number = told.gitlab.enqueue(a_job("after it"))
        await told.check()
        assert (number, "blue") in told.ended
        assert evolve(command.switch, changed_at=0.0).reached is step
