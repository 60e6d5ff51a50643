"""What a switch prints, how long it waits for what, and how it ends where it cannot go on; in virtual time."""

from collections.abc import Callable, Iterable

import anyio
import pytest
from attrs import define, field

from fleeting import ProviderError
from fleeting.testing import virtual_time
from taskscaler.serve import Canary, NoDaemon
from taskscaler_gitlab.switching._carry_out import MOST_STARTS, Carrying
from taskscaler_gitlab.switching._switch import Life, Service, Step, Stuck, Switch
from tests.taskscaler_gitlab.switch_in_time import SimColour, SimWorld

pytestmark = pytest.mark.anyio
anyio_backend = virtual_time

PATIENCE = 600.0


@define(eq=False)
class Scripted:
    """A colour of a world without time, to which things happen."""

    world: SimWorld
    name: str
    canary: Canary | Exception = field(factory=lambda: Canary(passed=True, says="canary: ran"))
    is_stuck: bool = False
    """Whether it never comes up, asks, or ends a job."""

    ends_at_once: bool = False
    """Whether it ends as soon as it was started."""

    troubles: Iterable[Exception] = ()
    """What goes wrong when it is looked at thoroughly."""

    absent: int = 0
    """So often it is not there when something is done to it."""

    job_takes: float = 0.0
    """Seconds between two ends of jobs."""

    _last: float | None = field(default=None, init=False)

    @property
    def _own(self) -> SimColour:
        return self.world.colours[self.name]

    async def look(self, *, thoroughly: bool) -> Service:
        """See `Colour.look`; time passes between two looks."""
        self.troubles = iter(self.troubles)
        if thoroughly and (trouble := next(self.troubles, None)) is not None:
            raise trouble
        if not self.is_stuck:
            self.world.proceed(self.name)
            self.world.ask(self.name)
            self.world.answer(self.name, None)
            self._last = anyio.current_time() if self._last is None else self._last
            if anyio.current_time() >= self._last + self.job_takes:
                self._last = anyio.current_time()
                self.world.end_a_job(self.name)
        return self._own.seen()

    def _there(self) -> None:
        self.absent -= 1
        if self.absent >= 0:
            raise NoDaemon("no daemon answers")

    async def start(self) -> None:
        """See `Colour.start`."""
        self._own.is_noted_paused = True
        self._own.begin()
        self._own.come_up()
        if self.ends_at_once:
            self._own.die()

    async def fly_canary(self) -> Canary:
        """See `Colour.fly_canary`."""
        self._own.flown = True
        if isinstance(self.canary, Exception):
            raise self.canary
        return self.canary

    async def pause(self) -> None:
        """See `Colour.pause`."""
        self._there()
        self._own.paused = self._own.is_noted_paused = True

    async def unpause(self) -> None:
        """See `Colour.unpause`."""
        self._there()
        self._own.paused = self._own.is_noted_paused = False

    async def delete(self) -> None:
        """See `Colour.delete`."""
        self._there()
        self._own.ending = True

    async def tidy(self) -> None:
        """See `Colour.tidy`."""
        self._own.is_noted_paused = False


@define(eq=False)
class Told:
    """A switch that is carried out, and what it says."""

    blue: Scripted
    green: Scripted
    said: list[str] = field(factory=list)
    kept: list[Switch] = field(factory=list)

    @classmethod
    def of(cls, jobs: int = 0) -> "Told":
        """Blue has some jobs."""
        world = SimWorld()
        for job in range(jobs):
            world.ask("blue")
            world.answer("blue", f"job {job}")
        return cls(Scripted(world, "blue"), Scripted(world, "green"))

    async def run(self, switch: Switch | None = None) -> Switch:
        """Carry it out."""
        colours = {"blue": self.blue, "green": self.green}
        carrying = Carrying(colours, self.kept.append, self.said.append, lambda: 7.0, PATIENCE)
        return await carrying.carry_out(switch or Switch(old="blue", new="green"))


async def test_each_step_is_said_once_and_jobs_are_waited_for_without_a_limit() -> None:
    """How many are left is said again now and then; each step is on disk, with its time."""
    told = Told.of(jobs=5)
    told.blue.job_takes = 2 * PATIENCE
    assert (await told.run()).step is Step.OVER
    assert [each.step for each in told.kept] == [*Step][1:]
    assert {each.changed_at for each in told.kept} == {7.0}
    waits = [line for line in told.said if line.startswith("waiting for ")]
    assert waits == [*(f"waiting for {number} jobs of blue" for number in (5, 4, 3, 2)), "waiting for 1 job of blue"]
    others = [line for line in told.said if line not in waits]
    assert len(others) == len(set(others))
    assert others[-1] == "done: green has the jobs, and blue is gone"


def _never_answers(told: Told) -> None:
    told.green.is_stuck = True


def _canary_fails(told: Told) -> None:
    told.green.canary = Canary(passed=False, says="the canary failed (script_failure)", log=("one", "two"))


def _gone_with_the_canary(told: Told) -> None:
    told.green.canary = NoDaemon("no daemon answers")


def _ends_at_once(told: Told) -> None:
    told.green.ends_at_once = True


def _cannot_be_paused(told: Told) -> None:
    told.blue.absent = 1_000_000


@pytest.mark.parametrize(
    ("trouble", "says", "step"),
    [
        (_never_answers, "waiting for GitLab to answer green: nothing has changed for 10m; see both", Step.TRIED),
        (_canary_fails, "the canary failed (script_failure); its log ends as above; mend green and run", Step.STARTED),
        (_gone_with_the_canary, "green has gone while it ran a canary; see its log", Step.STARTED),
        (_ends_at_once, f"green was started {MOST_STARTS} times and has ended each time; see its log", Step.BEGUN),
        (_cannot_be_paused, "pausing blue: nothing has changed for 10m", Step.POLLING),
    ],
)
async def test_where_it_cannot_go_on_it_says_why_and_what_to_do(
    trouble: Callable[[Told], None], says: str, step: Step
) -> None:
    """It stands where it stood; blue has the jobs, and another run goes on from there."""
    told = Told.of(jobs=1)
    trouble(told)
    with pytest.raises(Stuck) as caught:
        await told.run()
    assert says in str(caught.value)
    assert "--to green" in str(caught.value)
    assert (told.kept[-1].step if told.kept else Step.BEGUN) is step
    assert told.blue._own.asks
    assert trouble is not _canary_fails or told.said[-2:] == ["  one", "  two"]


async def test_what_is_away_for_a_moment_is_waited_for() -> None:
    """A service that does not answer when it is to do something, a cloud that does not show its fleet."""
    told = Told.of(jobs=1)
    told.blue.absent = told.green.absent = 3
    told.blue.troubles = [ProviderError("no such route")] * 4
    assert (await told.run()).step is Step.OVER
    assert "waiting for the cloud of blue to answer (no such route)" in told.said


async def test_a_cloud_that_never_answers_ends_it_before_it_is_over() -> None:
    """That nobody can see the old fleet does not mean that it is gone."""
    told = Told.of()
    told.blue._own.die()
    told.blue.troubles = [ProviderError("no such route")] * 10_000
    told.green._own.begin()
    told.green._own.come_up()
    with pytest.raises(Stuck, match="cloud of blue to answer"):
        await told.run(Switch(old="blue", new="green", step=Step.DELETING))
    assert told.kept == []
    assert told.blue._own.life is Life.AWAY
