"""Batches whose command is killed at any moment, while their jobs live on: none runs twice, and none is lost.

The world outlives the commands: instances, what runs there, and the leases that a journal would have kept. Each command
has a batch of its own over it, and is killed at a point of its own: it does nothing from then on.
"""

import math
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Callable, Container, Sequence
from contextlib import asynccontextmanager, closing
from copy import deepcopy
from pathlib import Path
from typing import Any

import anyio
import pytest
from attrs import define, field, frozen
from hypothesis import given
from hypothesis import strategies as st

from fleeting import ConnectInfo, LoopClock, Unreachable, Unsupported
from fleeting.connectors import Sink
from fleeting.errors import NameUnknown
from fleeting.events import Loss, LossKind
from taskscaler import LeaseLost, NotDetached
from taskscaler.batch import Batch, BatchState, EventLog, Job, JobState, Results, fold, read_events
from taskscaler.batch._outliving import BRIEF, ENOUGH, Durations
from taskscaler.executors import JobOutcome, JobSpec, Leased, Verdict

pytestmark = pytest.mark.anyio

OUTPUT = b"".join(b"line %d\n" % number for number in range(20))
WELL = JobOutcome(verdict=Verdict.SUCCEEDED, exit_code=0)


@define
class Life:
    """One command, which is killed after so many of its steps that anybody else could notice."""

    left: int
    leave: Callable[[], None]
    """Keeps all that is there at that moment: whatever the tasks do afterwards, nobody will know of it."""

    stop_after: int = -1
    """After so many steps it is told to stop, or to leave its jobs."""

    stop: anyio.Event = field(factory=anyio.Event)
    leaving: anyio.Event = field(factory=anyio.Event)
    """Is set in the turn of the event loop in which its jobs are left."""

    is_over: bool = False
    over: anyio.Event = field(factory=anyio.Event)

    async def step(self) -> None:
        """Do one thing, or be dead."""
        await anyio.lowlevel.checkpoint()
        self.left -= 1
        self.stop_after -= 1
        if self.stop_after == 0:
            self.stop.set()
        if self.left < 0 and not self.is_over:
            self.is_over = True
            self.leave()
            self.over.set()


@define
class Running:
    """A job on its slot; its whole output is there."""

    begun: int = 1
    outcome: JobOutcome = WELL


@frozen
class Slot:
    """A lease."""

    key: str
    scaler: "Scaler"
    instance: str
    slot: int = 0
    pool: str = "default"
    place: int = 0

    @property
    def persistent(self) -> bool:
        """Whether it may be left."""
        return self.scaler.persistent

    @property
    def cut_off(self) -> bool:
        """Whether its connection died: nothing else happens to it here."""
        return True

    def mark_suspect(self, why: str) -> None:
        """Note it."""
        self.scaler.world.suspects.append(f"{self.instance}: {why}")

    def detach(self) -> None:
        """Leave it as it is."""
        assert self.persistent
        self.scaler.held.remove(self.key)

    async def connect_info(self) -> ConnectInfo:
        """It has no address."""
        return ConnectInfo(id=self.instance)

    def dial(self) -> Any:  # noqa: ANN401  (nobody asks)
        """Refuse."""
        raise Unsupported("nobody connects here")

    @asynccontextmanager
    async def hold(self) -> AsyncIterator["Slot"]:
        """Hold it for the time of the context."""
        async with self.scaler.holding(self):
            yield self


@define
class World:
    """What is there whatever becomes of commands."""

    free: list[str] = field(factory=lambda: ["i-1", "i-2"])
    leases: dict[str, str] = field(factory=dict)
    """Instances by the keys under which they are held."""

    running: dict[str, Running] = field(factory=dict)
    """By the names of tries."""

    ran: Counter[str] = field(factory=Counter)
    """How often each job's script has begun."""

    suspects: list[str] = field(factory=list)


@define
class Scaler:
    """One command's view of the slots, all leases of which outlive it."""

    world: World
    life: Life
    held: set[str] = field(factory=set)
    lost: set[str] = field(factory=set)
    persistent: bool = True
    """Whether its leases are to outlive it."""

    changed: anyio.Event = field(factory=anyio.Event)

    @property
    def detached(self) -> Sequence[Slot]:
        """What earlier commands have left."""
        return [self._slot(key) for key in self.world.leases if key not in self.held]

    async def reattach(self, key: str) -> Slot:
        """Take up one of them."""
        await self.life.step()
        if key in self.held or key not in self.world.leases:
            raise NotDetached(key, "is not there", held=key in self.held)
        if key in self.lost:
            raise LeaseLost(key, self.world.leases.pop(key), Loss(LossKind.VANISHED))
        self.held.add(key)
        return self._slot(key)

    @asynccontextmanager
    async def acquire(
        self,
        key: str,
        *,
        timeout: float | None = None,
        expected_duration: float = math.inf,
        place: int | None = None,
        persistent: bool = False,
    ) -> AsyncIterator[Slot]:
        """Wait for a free instance."""
        assert (timeout, expected_duration, place or 0) == (math.inf, math.inf, 0)
        assert key not in self.world.leases, "somebody has this key"
        assert persistent is self.persistent
        while not self.world.free:
            await self.changed.wait()
        self.world.leases[key] = self.world.free.pop(0)
        self.held.add(key)
        async with self.holding(self._slot(key)) as slot:
            yield slot

    @asynccontextmanager
    async def holding(self, slot: Slot) -> AsyncIterator[Slot]:
        """Release it in the end."""
        await self.life.step()
        try:
            yield slot
        finally:
            with anyio.CancelScope(shield=True):
                await self.life.step()
            if slot.key in self.held:  # else it was detached
                self.held.remove(slot.key)
                self.world.free.append(self.world.leases.pop(slot.key))
                self.changed.set()
                self.changed = anyio.Event()

    def _slot(self, key: str) -> Slot:
        return Slot(key, self, self.world.leases[key])

    async def explain(self) -> str:
        """Never asked."""
        raise AssertionError

    async def stop(self) -> None:
        """Refuse those who wait: none does here."""


@define
class Executor:
    """Its jobs outlive whoever starts them."""

    world: World
    life: Life
    breaks: int = 0
    """How often a connection breaks."""

    unsupported: bool = False

    breaks_on_leaving: bool = False
    """Whether the connection breaks in the moment in which the jobs are left, before it is known that one has begun."""

    async def run(self, job: JobSpec, lease: Leased, *, output: Sink, artifacts: Path) -> JobOutcome:
        """Run a job that does not outlive anybody."""
        assert self.unsupported
        assert not await anyio.Path(artifacts).exists()
        self.world.ran[job.name] += 1
        await self.life.step()
        await output(f"run on {lease.instance}\n".encode())
        return WELL

    async def start(self, job: JobSpec, lease: Leased, *, name: str) -> None:
        """Start a job; nobody knows of it before this returns."""
        assert lease.slot == 0
        await self.life.step()
        if self.unsupported:
            raise Unsupported("not here")
        if name not in self.world.running:
            self.world.running[name] = Running()
            self.world.ran[job.name] += 1
        await self.life.step()
        if self.breaks_on_leaving:
            await self.life.leaving.wait()
            raise Unreachable("the line is dead")

    async def attach(
        self,
        job: JobSpec,
        lease: Leased,
        *,
        name: str,
        offset: int = 0,
        elapsed: float = 0.0,
        output: Sink,
        artifacts: Path,
    ) -> JobOutcome:
        """Pass its output on, a few bytes at a time, and bring something back."""
        assert lease.instance
        assert elapsed >= 0
        await self.life.step()
        if name not in self.world.running:
            raise NameUnknown(name)
        for start in range(offset, len(OUTPUT), 37):
            await output(OUTPUT[start : start + 37])
            await self.life.step()
            if self.breaks:
                self.breaks -= 1
                raise Unreachable("the line is dead")
        await anyio.Path(artifacts).mkdir()
        await anyio.Path(artifacts, job.name).touch()
        await self.life.step()
        return self.world.running[name].outcome

    async def end(self, lease: Leased, *, name: str) -> None:
        """Leave nothing of it."""
        assert lease.instance
        await self.life.step()
        self.world.running.pop(name, None)
        await self.life.step()


@define
class Command:
    """One command after the other over one world."""

    directory: Path
    jobs: Sequence[Job]
    persistent: bool = True
    world: World = field(factory=World)
    scaler: Scaler = field(init=False)
    executor: Executor = field(init=False)

    async def run(
        self,
        steps: int = 10**9,
        *,
        lose: Sequence[str] = (),
        only: Container[str] | None = None,
        stop_after: int = -1,
        leave_after: int = -1,
        **how: Any,  # noqa: ANN401  (fields of `Executor`)
    ) -> BatchState | None:
        """Run the batch, or take it up, and be killed after so many steps; returns its state if it was not."""
        results, world, kept = Results(self.directory), self.world, list[tuple[Path, World]]()

        def leave() -> None:
            copy = self.directory.with_name(f"{self.directory.name}-")
            shutil.copytree(results.directory, copy)
            kept.append((copy, deepcopy(world)))

        life = Life(steps, leave, max(stop_after, leave_after))
        self.scaler = Scaler(world, life, lost={*lose}, persistent=self.persistent)
        executor = Executor(world, life, **how)
        begun = results.events.exists()
        if not begun:
            results.prepare()
        with closing(EventLog.reopen(results) if begun else EventLog(results)) as events:
            batch = Batch(
                self.scaler, self.jobs, executors={"kept": executor}, events=events, clock=LoopClock(), only=only
            )

            async def stop() -> None:
                await life.stop.wait()
                life.leaving.set()  # wakes who waits for it once the next line has cancelled them
                await (batch.stop if leave_after < 0 else batch.leave)()

            async def run() -> None:
                await batch.run()
                life.over.set()

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(run)
                tasks.start_soon(stop)
                await life.over.wait()
                tasks.cancel_scope.cancel()
        if kept:
            ((self.directory, self.world),) = kept
            return None
        return batch.state

    def check(self, state: BatchState | None) -> None:
        """Every job has succeeded, and its script ran once; its log is what that printed, and nothing is left."""
        assert state is not None
        results = Results(self.directory)
        for job in self.jobs:
            assert state[job.name].state is JobState.SUCCEEDED
            assert len(state[job.name].attempts) == 1
            assert results.log(job.name).read_bytes() == OUTPUT
            assert [path.name for path in results.artifacts(job.name).iterdir()] == [job.name]
        assert self.world.ran == dict.fromkeys((job.name for job in self.jobs), 1)
        assert self.world.running == {}
        assert self.world.leases == {}
        assert len(self.world.free) == 2
        assert self.world.suspects == []
        assert [*fold(read_events(results.events)).records] == [*state.records]


def job(name: str, **others: Any) -> Job:  # noqa: ANN401  (fields of `Job`)
    """Make a job of which only the name matters, and what is given."""
    return Job(spec=JobSpec(name=name, script="true"), executor="kept", **others)


@pytest.fixture
def command(tmp_path: Path) -> Command:
    """Three jobs for two slots."""
    return Command(tmp_path / "out", [job(name) for name in "abc"])


async def steps_of(directory: Path, *before: int) -> int:
    """Count the steps of a command that is not killed, after some that were."""
    command = Command(directory, [job(name) for name in "abc"])
    for each in before:
        await command.run(each)
    assert await command.run() is not None
    return 10**9 - command.scaler.life.left


async def test_killed_at_any_point_no_job_runs_twice_and_none_is_lost(tmp_path: Path) -> None:
    """After every single thing that a command does, and the next one after a few more."""
    total = await steps_of(tmp_path / "counted")
    assert total > 30
    for steps in range(total):
        command = Command(tmp_path / f"{steps}", [job(name) for name in "abc"])
        assert await command.run(steps) is None
        await command.run(steps * 7 % 23)
        command.check(await command.run())


async def test_however_often_it_is_killed_a_batch_ends(command: Command) -> None:
    """A few steps at a time."""
    state = None
    for _ in range(100):
        if (state := await command.run(17)) is not None:
            break
    command.check(state)


async def test_a_job_whose_instance_is_gone_runs_elsewhere(command: Command) -> None:
    """As it would have without a command that outlives it; being interrupted costs no retry."""
    command.jobs = [job(name, retries=0) for name in "ab"]
    await command.run(12)
    (gone, *_) = command.world.leases
    state = await command.run(lose=[gone])
    assert state is not None
    assert {record.state for record in state.records} == {JobState.SUCCEEDED}
    first, second = state[gone].attempts
    assert (first.state, first.interrupted, second.state) == (JobState.LOST, True, JobState.SUCCEEDED)


async def test_a_job_of_which_nothing_is_known_any_more_is_lost(command: Command) -> None:
    """It has printed something, so it was there; it is tried again, which costs no retry either."""
    command.jobs = [job("a", retries=0)]
    await command.run(7)
    assert Results(command.directory).log("a").stat().st_size
    command.world.running.clear()
    state = await command.run()
    assert state is not None
    first, second = state["a"].attempts
    assert first.why == "what became of it on instance i-1 is unknown (nothing is known of it there)"
    assert (first.interrupted, second.state) == (True, JobState.SUCCEEDED)


async def test_a_connection_that_breaks_is_made_again(command: Command) -> None:
    """The job runs on meanwhile, and the log goes on where it broke off."""
    command.jobs = [job("a", retries=0)]
    command.check(await command.run(breaks=2))


async def test_where_jobs_cannot_outlive_a_command_they_are_run(command: Command) -> None:
    """And run again after it was killed."""
    command.jobs = [job("a", retries=0)]
    await command.run(4, unsupported=True)
    state = await command.run(unsupported=True)
    assert state is not None
    assert state["a"].state is JobState.SUCCEEDED
    assert command.world.leases == {}


async def test_jobs_that_are_not_selected_are_ended(command: Command) -> None:
    """They would run on for nobody, and hold a slot that others need; a later command runs them."""
    await command.run(12)
    assert len(command.world.running) == 2
    state = await command.run(only=["c"])
    assert state is not None
    assert command.world.running == {}
    assert command.world.leases == {}
    assert {name: record.state for name, record in state.jobs.items()} == {
        "a": JobState.CANCELLED,
        "b": JobState.CANCELLED,
        "c": JobState.SUCCEEDED,
    }


async def test_a_stopped_batch_leaves_nothing(command: Command) -> None:
    """Only a command that is killed leaves its jobs."""
    command.jobs = [job("a")]
    state = await command.run(stop_after=8)
    assert state is not None
    assert state["a"].state is JobState.CANCELLED
    assert command.world.running == {}
    assert command.world.leases == {}


@pytest.mark.parametrize("after", range(1, 4))
async def test_a_connection_that_breaks_as_its_job_is_left_has_lost_no_job(command: Command, after: int) -> None:
    """The job may have begun, and nobody has ended it: who comes next goes on with it, in the slot that it holds."""
    command.jobs = [job("a", retries=0)]
    assert await command.run(leave_after=after, breaks_on_leaving=True) is not None
    command.check(await command.run())


async def test_left_at_any_point_no_job_runs_twice_and_none_is_lost(tmp_path: Path) -> None:
    """A batch that leaves its jobs is over at once, says which run, and is gone on with; also if that is left again."""
    total = await steps_of(tmp_path / "counted")
    ran_on = set()
    for steps in range(1, total):
        command, state = Command(tmp_path / f"{steps}", [job(name) for name in "abc"]), None
        for after in (steps, steps * 7 % 23):
            state = await command.run(leave_after=after)
            assert state is not None
            if not state.succeeded:
                assert {*state.running} <= {*command.world.leases}
                ran_on |= {*state.running}
        if state and not state.all_stand:
            state = await command.run()
        command.check(state)
    assert ran_on == {*"abc"}


async def test_who_leaves_jobs_that_cannot_be_left_ends_them(command: Command) -> None:
    """They run again when the batch is gone on with, which costs no retry."""
    command.jobs = [job("a", detach=False, retries=0)]
    command.persistent = False
    state = await command.run(leave_after=1, unsupported=True)
    assert state is not None
    assert (state["a"].state, state["a"].why) == (JobState.CANCELLED, "the batch was left")
    assert command.world.leases == {}
    state = await command.run(unsupported=True)
    assert state is not None
    assert state["a"].state is JobState.SUCCEEDED


async def test_a_slot_that_another_batch_has_left_is_given_up(command: Command) -> None:
    """What runs there is none of ours; the instance is replaced, as those of killed managers are."""
    command.world.leases["a"] = command.world.free.pop(0)
    state = await command.run()
    assert state is not None
    assert state.succeeded
    assert command.world.suspects == ["i-1: what ran there was left behind"]


# --- which jobs outlive their command ----------------------------------------------------------------------------


@pytest.mark.parametrize(("detach", "outlives"), [(None, True), (True, True), (False, False)])
async def test_a_job_says_itself_whether_it_outlives_its_command(
    command: Command,
    detach: bool | None,  # noqa: FBT001
    outlives: bool,  # noqa: FBT001
) -> None:
    """One that does not is run, and holds a lease that ends with the command."""
    command.jobs = [job("a", detach=detach)]
    command.persistent = outlives
    state = await command.run(unsupported=not outlives)
    assert state is not None
    assert state["a"].attempts[0].detached is outlives


@given(durations=st.lists(st.floats(0, 2), max_size=30), expected=st.none() | st.floats(0, 2))
def test_jobs_that_are_brief_are_not_kept(durations: list[float], expected: float | None) -> None:
    """Once enough of a group have shown it, one after the other; what a job says of itself counts first."""
    known = Durations()
    for seconds in durations:
        known.learn("group", seconds)
    are_brief = len(durations) >= ENOUGH and all(seconds < BRIEF for seconds in durations[-ENOUGH:])
    assert known.outlive(job("a"), "group") is not are_brief
    assert known.outlive(job("a"), "another")
    assert known.outlive(job("a", detach=True, expected_duration=expected), "group")
    assert not known.outlive(job("a", detach=False, expected_duration=expected), "group")
    if expected is not None:
        assert known.outlive(job("a", expected_duration=expected), "group") is (expected >= BRIEF)


def test_jobs_without_a_group_are_not_alike() -> None:
    """However brief some were, the next may take days."""
    known = Durations()
    for _ in range(2 * ENOUGH):
        known.learn("", 0.0)
    assert known.outlive(job("a"), "")
