"""Two colours of a service in this process, each on a fleet in memory, with one GitLab; a command that is killed."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
from anyio import to_thread
from anyio.abc import TaskGroup, TaskStatus
from attrs import define, evolve, field

from fleeting import MemoryJournal
from fleeting.testing import FakeCloud
from gitlab_jobs.testing import FakeGitLab
from taskscaler.serve import Canary
from taskscaler_gitlab._paused import is_paused, pause, unpause
from taskscaler_gitlab.switching._carry_out import Carrying
from taskscaler_gitlab.switching._switch import Life, Service, Step, Switch
from tests.taskscaler_gitlab.services import Bench, Scripted, serving
from tests.time_limits import NEVER_REACHED


class Killed(Exception):
    """The command ends here."""


@define(eq=False)
class ColourHere:
    """One of them; a `Colour`."""

    name: str
    here: Path
    gitlab: FakeGitLab
    runs: Scripted
    tasks: TaskGroup
    point: Callable[[str], object]
    """Called before and after whatever is done to it, with what it is called."""

    cloud: FakeCloud = field(init=False)
    journal: MemoryJournal = field(factory=MemoryJournal, init=False)
    bench: Bench | None = field(default=None, init=False)
    _end: anyio.Event = field(factory=anyio.Event, init=False)

    @cloud.default
    def _own(self) -> FakeCloud:
        return FakeCloud(identity=f"fake/{self.name}")

    @property
    def directory(self) -> Path:
        """Where its jobs are noted down."""
        return self.here / "jobs"

    async def begin(self) -> None:
        """Have it run, if it does not."""
        if self.bench is None:
            self._end = anyio.Event()
            await anyio.Path(self.here).mkdir(exist_ok=True)
            await self.tasks.start(self._serve)

    async def _serve(self, *, task_status: TaskStatus[None]) -> None:
        async with serving(
            self.here,
            self.gitlab,
            cloud=self.cloud,
            runs=self.runs,
            journal=self.journal,
            concurrent=60,
            more="request_concurrency = 4",
            max_instances=12,
            capacity_per_instance=5,
        ) as self.bench:
            task_status.started()
            await self._end.wait()
            await self.bench.scaler.drain()
            await self.bench.service.settle()
        self.bench = None

    async def look(self, *, thoroughly: bool) -> Service:
        """See `Colour.look`."""
        if self.bench is None:
            paused = await to_thread.run_sync(is_paused, self.directory)
            left = len(self.cloud.alive) + len([*self.directory.glob("jobs/*/job.json")]) if thoroughly else 0
            return Service(paused=paused, left=left)
        intake, ends = self.bench.service.intake, self._end.is_set()
        return Service(
            life=Life.THERE,
            paused=intake.paused,
            answered=intake.answered,
            requests=intake.requests,
            jobs=intake.jobs,
            ending=ends,
            deletes=ends,
        )

    @property
    def takes_jobs(self) -> bool:
        """Whether GitLab has answered it, and it asks."""
        if self.bench is None or self._end.is_set():
            return False
        return self.bench.service.intake.answered and not self.bench.service.intake.paused

    async def _at_points(self, what: str, do: Callable[[], Awaitable[object]]) -> None:
        self.point(f"before {self.name} is {what}")
        await do()
        self.point(f"after {self.name} is {what}")

    async def start(self) -> None:
        """See `Colour.start`."""
        await self._at_points("noted as paused", lambda: to_thread.run_sync(pause, self.directory))
        await self._at_points("started", self.begin)

    async def fly_canary(self) -> Canary:
        """See `Colour.fly_canary`."""
        assert self.bench is not None
        self.point("before the canary")
        canary = await self.bench.service.fly_canary()
        self.point("after the canary")
        return canary

    async def pause(self) -> None:
        """See `Colour.pause`."""
        assert self.bench is not None
        await self._at_points("paused", self.bench.service.pause)

    async def unpause(self) -> None:
        """See `Colour.unpause`."""
        assert self.bench is not None
        await self._at_points("not paused any more", self.bench.service.unpause)

    async def delete(self) -> None:
        """See `Colour.delete`."""
        self.point(f"before {self.name} is deleted")
        assert self.bench is not None
        self.bench.service.drain(for_good=True)
        self.bench.scaler.delete_instances_on_shutdown = True
        self._end.set()
        self.point(f"after {self.name} is deleted")

    async def tidy(self) -> None:
        """See `Colour.tidy`."""
        await self._at_points("tidied", lambda: to_thread.run_sync(unpause, self.directory))


@define(eq=False)
class Command:
    """The command that switches them: it is killed once at each of its points, and begun again each time."""

    colours: dict[str, ColourHere]
    switch: Switch
    """On disk."""

    is_killed: bool
    stops_at: Step | None = None
    """The step at which it is left alone."""

    reached: Callable[[Step], object] = lambda _: None
    """Called once a step is on disk."""

    said: list[str] = field(factory=list)
    points: set[str] = field(factory=set, init=False)
    """Where it has been."""

    def point(self, what: str) -> None:
        """Be killed here, or not; at any time, some colour takes jobs."""
        assert any(each.takes_jobs for each in self.colours.values()), f"somebody takes jobs {what}"
        is_new = what not in self.points
        self.points.add(what)
        if self.is_killed and is_new:
            raise Killed

    def _keep(self, switch: Switch) -> None:
        self.point(f"before {switch.step.value} is written, {switch.is_aborting}")
        self.switch = switch
        self.reached(switch.step)
        if switch.step is self.stops_at:
            raise Killed
        self.point(f"after {switch.step.value} is written, {switch.is_aborting}")

    async def run(self) -> int:
        """Run it until it is over, or stands where it is to stop; returns how often it was killed."""
        killed = 0
        while self.switch.step not in (Step.OVER, self.stops_at):
            carrying = Carrying(self.colours, self._keep, self.said.append, lambda: 0.0, NEVER_REACHED, poll=0.02)
            try:
                await carrying.carry_out(self.switch)
            except Killed:
                killed += 1
        return killed


__all__ = ["ColourHere", "Command", "Killed", "evolve"]
