"""Batches: the bookkeeping by itself, then jobs on their way through a scaler that behaves."""

import json
import math
import os
import re
import shutil
import stat
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from errno import ENOSPC
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
import pytest
from attrs import define, evolve, field, frozen
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from fleeting import ConnectError, ConnectInfo, Connection, LoopClock, Unreachable, Unsupported
from fleeting.connectors import Sink
from fleeting.events import Loss, LossKind
from fleeting.testing import FakeCloud, FakeGroup
from taskscaler import LeaseLost, NoCapacity, NotDetached, Pool, Taskscaler
from taskscaler.batch import (
    Batch,
    BatchState,
    Begun,
    CannotResume,
    Ended,
    EventLog,
    GivenUp,
    Held,
    Job,
    JobChanged,
    JobState,
    Kept,
    Over,
    Planned,
    Replanned,
    Rerun,
    Results,
    ResultsInTheWay,
    Resumed,
    Retries,
    Started,
    _history,
    _runner,
    fold,
    read_events,
    run_batch,
)
from taskscaler.batch._plan import Plan
from taskscaler.executors import JobOutcome, JobSpec, Leased, Verdict

INTERNAL, EXTERNAL = "10.0.0.5", "203.0.113.7"
"""Addresses of every instance."""

WELL = JobOutcome(verdict=Verdict.SUCCEEDED, exit_code=0)
BADLY = JobOutcome(verdict=Verdict.FAILED, exit_code=3, why="exited with 3")
LATE = JobOutcome(verdict=Verdict.TIMED_OUT, why="took longer than 1s")


def job(name: str, *, retries: int | Retries = 2, **others: Any) -> Job:  # noqa: ANN401  (fields of `Job`)
    """Make a job of which only the name matters, and what is given."""
    return Job(spec=JobSpec(name=name, script="true"), executor="scripted", retries=retries, **others)


# --- the bookkeeping -------------------------------------------------------------------------------------


class Bookkeeping(RuleBasedStateMachine):
    """Everything that can happen to jobs, against a plain dictionary of where each should stand."""

    def __init__(self) -> None:
        """Queue three jobs, one of which may not be retried."""
        super().__init__()
        self.now = 100.0
        jobs = [job("a"), job("b", retries=Retries(lost=1, failed=2)), job("c", retries=0)]
        self.retries = {each.name: each.retries for each in jobs}
        self.state = BatchState(Begun.of(jobs, at=self.now))
        self.stands = dict.fromkeys(self.retries, JobState.QUEUED)
        self.losses = dict.fromkeys(self.retries, 0)
        self.failures = dict.fromkeys(self.retries, 0)
        self.forgiven = dict.fromkeys(self.retries, 0)
        """Losses before a job was run anew."""

        self.added = 0

    def pick(self, data: st.DataObject, *states: JobState) -> str | None:
        """Choose a job that stands in one of these states."""
        self.now += 1
        names = [name for name, state in self.stands.items() if state in states]
        return data.draw(st.sampled_from(names)) if names else None

    @rule(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        """A job is given a slot."""
        if name := self.pick(data, JobState.QUEUED):
            started = Started(at=self.now, job=name, pool="default", instance=f"i-{name}", slot=0)
            (change,) = self.state.apply(started)
            self.stands[name] = JobState.RUNNING
            assert change == JobChanged(at=self.now, record=self.state[name])

    @rule(data=st.data(), outcome=st.sampled_from([WELL, BADLY, LATE]))
    def end(self, data: st.DataObject, outcome: JobOutcome) -> None:
        """A job ends."""
        if name := self.pick(data, JobState.RUNNING):
            stands = JobState(outcome.verdict.value)
            self.state.apply(Ended(at=self.now, job=name, state=stands, exit_code=outcome.exit_code, why=outcome.why))
            self.failures[name] += stands is not JobState.SUCCEEDED
            again = stands is not JobState.SUCCEEDED and self.failures[name] <= self.retries[name].failed
            self.stands[name] = JobState.QUEUED if again else stands
            assert self.state[name].exit_code == outcome.exit_code

    @rule(data=st.data(), preempted=st.booleans())
    def lose(self, data: st.DataObject, preempted: bool) -> None:  # noqa: FBT001  (drawn)
        """A job's instance is lost; what was preempted does not count."""
        if name := self.pick(data, JobState.RUNNING):
            lost = Ended(at=self.now, job=name, state=JobState.LOST, why="gone", preempted=preempted)
            self.state.apply(lost)
            self.losses[name] += not preempted
            again = self.losses[name] - self.forgiven[name] <= int(self.retries[name].lost)
            self.stands[name] = JobState.QUEUED if again else JobState.LOST

    @rule()
    def resume(self) -> None:
        """The manager is killed, and another one takes up what was written down."""
        self.now += 1
        self.state.apply(Resumed(at=self.now))
        for name, state in self.stands.items():
            if not state.stands:
                self.stands[name] = JobState.QUEUED

    @rule(data=st.data())
    def rerun(self, data: st.DataObject) -> None:
        """A job that is over is run again by a later command; its tries stay, and use up no retries."""
        self.resume()
        if name := self.pick(data, *(state for state in JobState if state.stands)):
            tries = self.state[name].attempts
            self.state.apply(Rerun(at=self.now, jobs=(name,)))
            self.stands[name] = JobState.QUEUED
            self.failures[name], self.forgiven[name] = 0, self.losses[name]
            assert self.state[name].attempts == tries

    @rule(data=st.data())
    def plan_anew(self, data: st.DataObject) -> None:
        """The jobs file has changed: one job that is not over is gone, a new one has come, and others stay."""
        self.resume()
        gone = self.pick(data, JobState.QUEUED)
        self.added += 1
        self.retries[f"new-{self.added}"] = Retries()
        known = {name: self.state[name].attempts for name in self.stands}
        names = data.draw(st.permutations([name for name in self.retries if name != gone]))
        jobs = [Planned(name=name, retries=self.retries[name]) for name in names]
        self.state.apply(Replanned(at=self.now, jobs=Plan(jobs)))
        self.retries = {name: self.retries[name] for name in names}
        self.stands = {name: self.stands.get(name, JobState.QUEUED) for name in names}
        for count in (self.losses, self.failures, self.forgiven):
            count.setdefault(f"new-{self.added}", 0)
        assert all(self.state[name].attempts == known.get(name, []) for name in names)

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        """A job is given up."""
        if name := self.pick(data, JobState.QUEUED, JobState.RUNNING):
            end: Ended | GivenUp = GivenUp(at=self.now, jobs=(name,), state=JobState.CANCELLED, why="enough")
            if self.stands[name] is JobState.RUNNING:
                end = Ended(at=self.now, job=name, state=JobState.CANCELLED, why="enough")
            self.state.apply(end)
            self.stands[name] = JobState.CANCELLED

    @invariant()
    def every_job_stands_where_it_should(self) -> None:
        """States, counts, the slots in use, and the open attempt of each running job."""
        assert {record.name: record.state for record in self.state.records} == self.stands
        assert {kind: self.state.count(kind) for kind in JobState} == {
            kind: list(self.stands.values()).count(kind) for kind in JobState
        }
        assert self.state.done == sum(state.stands for state in self.stands.values())
        running = {name for name, state in self.stands.items() if state is JobState.RUNNING}
        assert self.state.running.keys() == running
        for record in self.state.records:
            open_attempts = [attempt for attempt in record.attempts if attempt.ended is None]
            assert open_attempts == (record.attempts[-1:] if record.name in running else [])
            losses = [attempt for attempt in record.lost_attempts if not attempt.excused]
            assert len(losses) == self.losses[record.name]


Bookkeeping.TestCase.settings = settings(max_examples=40, stateful_step_count=25)
TestBookkeeping = Bookkeeping.TestCase


# --- a scaler and an executor that behave ----------------------------------------------------------------


@frozen
class Slot:
    """What the scaler hands out."""

    instance: str
    slot: int = 0
    pool: str = "default"
    suspects: list[tuple[str, str]] = field(factory=list)
    place: int = 0

    persistent: bool = False
    cut_off: bool = True
    """Whether its connection died where an executor says that the instance cannot be reached."""

    def mark_suspect(self, why: str) -> None:
        """Note it; the scaler heeds it when the lease ends."""
        self.suspects.append((self.instance, why))

    def detach(self) -> None:
        """Never happen: these leases end with their scaler."""
        raise AssertionError

    async def connect_info(self) -> ConnectInfo:
        """Tell both addresses."""
        return ConnectInfo(id=self.instance, internal_addr=INTERNAL, external_addr=EXTERNAL)

    def dial(self) -> AbstractAsyncContextManager[Connection]:
        """Refuse: nothing is there."""
        raise Unsupported("these instances cannot be connected to")


@define
class SmallScaler:
    """A few instances of one slot each, first come, first served; a new one comes for each that is lost."""

    free: list[str] = field(factory=lambda: ["i-1", "i-2"])
    queue: list[str] = field(factory=list)
    made: int = 2
    held: dict[str, tuple[str, anyio.CancelScope]] = field(factory=dict)
    losses: dict[str, Loss] = field(factory=dict)
    suspects: list[tuple[str, str]] = field(factory=list)
    cut_off: bool = True
    asked: int = 0
    places: list[tuple[str, int | None]] = field(factory=list)
    """For each acquire its key, and the place in the queue that it wanted back."""

    detached: Sequence[Kept] = ()
    stopped: bool = False
    changed: anyio.Event = field(factory=anyio.Event)

    async def reattach(self, key: str) -> Held:
        """Nothing was left."""
        raise NotDetached(key, "was never left", held=False)

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
        """Wait for a free instance and hold it."""
        assert timeout == math.inf
        assert not persistent, "the executors here do not reattach"
        self.asked += 1
        number = self.asked if place is None else place
        self.places.append((key, place))
        self.queue.append(key)
        try:
            while not self.stopped and (not self.free or self.queue[0] != key):
                await self.changed.wait()
        finally:
            self.queue.remove(key)
            self._tell()
        if self.stopped:
            raise NoCapacity("the scaler was stopped")
        instance = self.free.pop(0)
        with anyio.CancelScope() as body:
            self.held[key] = instance, body
            try:
                yield Slot(instance, suspects=self.suspects, place=number, cut_off=self.cut_off)
            finally:
                del self.held[key]
                if instance in dict(self.suspects):
                    self.made += 1
                    self._give(f"i-{self.made}")
                elif key not in self.losses:
                    self._give(instance)
        if body.cancelled_caught:
            raise LeaseLost(key, instance, self.losses.pop(key))

    def lose(self, key: str, kind: LossKind = LossKind.VANISHED) -> None:
        """Lose the instance that *key* holds."""
        self.losses[key] = Loss(kind)
        self.held[key][1].cancel()
        self.made += 1
        self._give(f"i-{self.made}")

    async def explain(self) -> str:
        """Who waits."""
        return f"{' and '.join(self.queue)} wait"

    async def stop(self) -> None:
        """Break every lease and refuse every waiter."""
        self.stopped = True
        for key in self.held:
            self.lose(key, LossKind.KILLED)
        self._tell()

    def _give(self, instance: str) -> None:
        self.free.append(instance)
        self._tell()

    def _tell(self) -> None:
        self.changed.set()
        self.changed = anyio.Event()


Play = Callable[[JobSpec, Leased, Sink, Path], Awaitable[JobOutcome]]


@define
class Scripted:
    """An executor that plays what the test has written for a job; all others end well."""

    plays: Mapping[str, Play] = field(factory=dict)
    ran: list[tuple[str, str]] = field(factory=list)

    async def run(self, job: JobSpec, lease: Leased, *, output: Sink, artifacts: Path) -> JobOutcome:
        """Play the job."""
        self.ran.append((job.name, lease.instance))
        await anyio.lowlevel.checkpoint()
        play = self.plays.get(job.name)
        return await play(job, lease, output, artifacts) if play else WELL


def gives(outcome: JobOutcome, text: bytes = b"") -> Play:
    """Print something and end so."""

    async def play(_: JobSpec, __: Leased, output: Sink, ___: Path) -> JobOutcome:
        await output(text)
        return outcome

    return play


def exits_with(code: int) -> Play:
    """Fail each time."""

    async def play(_: JobSpec, __: Leased, ___: Sink, ____: Path) -> JobOutcome:
        return JobOutcome(verdict=Verdict.FAILED, exit_code=code, why=f"exited with {code}")

    return play


def fails_with(error: Exception, *, times: int = 1000) -> Play:
    """Raise so many times, then end well."""
    left = times

    async def play(_: JobSpec, __: Leased, output: Sink, ___: Path) -> JobOutcome:
        nonlocal left
        left -= 1
        if left >= 0:
            await output(b"half a line")
            raise error
        return WELL

    return play


async def hangs(_: JobSpec, __: Leased, output: Sink, ___: Path) -> JobOutcome:
    """Run for ever."""
    await output(b"running\n")
    await anyio.sleep_forever()
    return WELL


@define
class Hanging:
    """A play that runs for ever, and tells when it has begun to."""

    begun: anyio.Event = field(factory=anyio.Event)

    async def __call__(self, spec: JobSpec, lease: Leased, output: Sink, artifacts: Path) -> JobOutcome:
        """Print, leave half of something, and hang."""
        await anyio.Path(artifacts).mkdir()
        await anyio.Path(artifacts, "half").touch()
        await output(b"running\n")
        self.begun.set()
        await anyio.sleep_forever()
        return WELL


@define
class Bench:
    """A batch with everything it needs."""

    directory: Path
    scaler: SmallScaler = field(factory=SmallScaler)
    seen: list[tuple[str, JobState]] = field(factory=list)
    happened: anyio.Event = field(factory=anyio.Event)

    def batch(
        self,
        *jobs: Job,
        plays: Mapping[str, Play] | None = None,
        patience: float = math.inf,
        events: EventLog | None = None,
        **settings: Any,  # noqa: ANN401  (of a batch)
    ) -> Batch:
        """Make a batch of these jobs."""
        events = events or self.events()
        if events.past is None:
            events.results.prepare()
        return Batch(
            self.scaler,
            jobs,
            executors={"scripted": Scripted(plays or {})},
            events=events,
            clock=LoopClock(),
            patience=patience,
            observer=self._see,
            **settings,
        )

    def events(self) -> EventLog:
        """Prepare the event log of a new batch."""
        return EventLog(Results(self.directory), jobs_file=Path("jobs.toml"), text="jobs = []\n")

    def killed(self) -> "Bench":
        """Make another bench of what a command leaves that is killed right now."""
        copy = self.directory.with_name(f"{self.directory.name}-killed")
        shutil.copytree(self.directory, copy)
        return Bench(copy)

    def reopened(self) -> EventLog:
        """Take up the event log that is there."""
        return EventLog.reopen(Results(self.directory))

    def _see(self, change: JobChanged) -> None:
        self.seen.append((change.record.name, change.record.state))
        self.happened.set()
        self.happened = anyio.Event()

    async def until(self, name: str, state: JobState) -> None:
        """Wait until a job came to stand so."""
        while (name, state) not in self.seen:
            await self.happened.wait()

    def summary(self) -> Any:  # noqa: ANN401  (JSON)
        """Read the results."""
        return json.loads((self.directory / "results.json").read_text())

    def states(self) -> dict[str, str]:
        """States of all jobs, from the results."""
        return {each["name"]: each["state"] for each in self.summary()["jobs"]}

    def state_of(self, name: str) -> Any:  # noqa: ANN401  (JSON)
        """What the results say of a job."""
        return next(each for each in self.summary()["jobs"] if each["name"] == name)

    def log(self, name: str) -> str:
        """Read a job's log."""
        return Results(self.directory).log(name).read_text()


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """Set up a bench, results in a directory that does not exist yet."""
    return Bench(tmp_path / "results")


async def finished(batch: Batch) -> BatchState:
    """Run a batch to its end."""
    return await batch.run()


# --- what needs what ------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_a_job_begins_once_what_it_needs_has_succeeded(bench: Bench) -> None:
    """Jobs and groups; what needs a job that failed is skipped, and so is what needs that, unless it always runs."""
    jobs = [
        job("deploy", needs=("test",)),
        job("notify", needs=("deploy", "build"), when="always"),
        job("test", needs=("build",)),
        job("build-1", group="build"),
        job("build-2", group="build"),
        job("docs", needs=("build-1",)),
    ]
    state = await finished(bench.batch(*jobs, plays={"build-2": exits_with(1)}))
    began = [name for name, state in bench.seen if state is JobState.RUNNING]
    assert sorted(began[:2]) == ["build-1", "build-2"]
    assert sorted(began[2:]) == ["docs", "notify"]
    assert {record.name: record.why for record in state.records if record.state is JobState.SKIPPED} == {
        "deploy": "needs test, which was skipped",
        "test": "needs build-2, which failed",
    }
    assert (state.all_stand, state.succeeded) == (True, False)


@pytest.mark.anyio
async def test_no_more_jobs_of_a_group_are_under_way_than_may_be(bench: Bench) -> None:
    """Those held back ask for no slot, and others go ahead of them."""
    limited = [job(f"limited-{number}", group="limited", max_parallel=1) for number in range(3)]
    await finished(bench.batch(*limited, job("free")))
    limited_only = [(name, state) for name, state in bench.seen if name != "free"]
    assert limited_only == [
        (f"limited-{number}", state) for number in range(3) for state in (JobState.RUNNING, JobState.SUCCEEDED)
    ]
    order = [name for name, state in bench.seen if state is JobState.RUNNING]
    assert order.index("free") < order.index("limited-2")


@pytest.mark.anyio
async def test_what_waits_for_others_goes_on_where_it_was(bench: Bench) -> None:
    """A batch that was stopped meanwhile has cancelled it; resumed, it waits again, or is skipped."""
    jobs = [job("a"), job("b", needs=("a",)), job("c"), job("d", needs=("c",))]
    hanging = Hanging()
    batch = bench.batch(*jobs, plays={"a": hanging, "c": exits_with(1)})
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(batch.run)
        await hanging.begun.wait()
        await bench.until("d", JobState.SKIPPED)
        assert batch.held_back == "jobs wait for a"
        await batch.stop()
    assert {name: record.state.value for name, record in batch.state.jobs.items()} == {
        "a": "cancelled",
        "b": "cancelled",
        "c": "failed",
        "d": "skipped",
    }
    batch._events.close()
    state = await finished(Bench(bench.directory).batch(*jobs, events=bench.reopened()))
    assert [record.state.value for record in state.records] == ["succeeded", "succeeded", "failed", "skipped"]


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("needs", "message"), [(("x",), "the job 'a' needs 'x', which is not a job"), (("b",), "a needs b needs a")]
)
async def test_needs_that_nobody_can_meet_are_refused(bench: Bench, needs: tuple[str, ...], message: str) -> None:
    """When a program asks for them; a jobs file was checked before."""
    with pytest.raises(ValueError, match=message):
        bench.batch(job("a", needs=needs), job("b", needs=("a",)))


# --- how a batch goes ------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_a_failed_job_is_tried_again_after_its_backoff(bench: Bench) -> None:
    """It holds no slot meanwhile, the wait doubles, and once its retries are used up, it has failed."""
    retries = Retries(failed=2, backoff=0.02, on_exit=(3,))
    asked = bench.scaler.places
    state = await finished(bench.batch(job("a", retries=retries), job("b"), plays={"a": exits_with(3)}))
    tries = bench.state_of("a")["attempts"]
    assert [each["state"] for each in tries] == ["failed"] * 3
    assert bench.states() == {"a": "failed", "b": "succeeded"}
    waits = [after.started - (before.ended or math.inf) for before, after in pairwise(state["a"].attempts)]
    assert waits[0] >= 0.02
    assert waits[1] >= 0.04
    assert [place is None for key, place in asked if key == "a"] == [True, False, False]


@pytest.mark.anyio
async def test_a_job_that_waits_for_its_next_try_is_cancelled_at_once(bench: Bench) -> None:
    """Draining does not wait for an hour; and the job, which was not given its chance, has it in a later run."""
    batch = bench.batch(job("a", retries=Retries(failed=1, backoff=3600)), plays={"a": exits_with(3)})
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(batch.run)
        await bench.until("a", JobState.QUEUED)
        while not batch.resting:
            await batch._changed.wait()
        assert re.fullmatch("1 job pauses for (1h|59m[0-9]+s) before it is retried", batch.resting)
        batch._patience = 0.0  # is of no account, as all that is left rests
        batch._wake()
        for _ in range(5):  # asyncio needs a turn more for each thing that follows from another
            await anyio.wait_all_tasks_blocked()
        assert batch.state["a"].state is JobState.QUEUED
        batch.drain()
    assert batch.resting == ""
    assert bench.states() == {"a": "cancelled"}
    assert len(bench.state_of("a")["attempts"]) == 1


@pytest.mark.anyio
async def test_a_lost_job_goes_back_to_its_place_in_the_queue(bench: Bench) -> None:
    """It asks the scaler for the place that it had, however often it is lost; others ask for none."""

    async def lose_twice(spec: JobSpec, _: Leased, __: Sink, ___: Path) -> JobOutcome:
        if sum(key == "a" for key, _ in bench.scaler.places) < 3:
            bench.scaler.lose(spec.name)
            await anyio.sleep_forever()
        return WELL

    await finished(bench.batch(job("a", retries=3), job("b"), plays={"a": lose_twice}))
    asked = bench.scaler.places
    assert [place for key, place in asked if key == "b"] == [None]
    first = asked.index(("a", None)) + 1
    assert [place for key, place in asked if key == "a"] == [None, first, first]


@pytest.mark.anyio
async def test_every_job_runs_once(bench: Bench) -> None:
    """More jobs than slots: all succeed, in the order of the batch, and none runs twice."""
    names = [f"job-{number}" for number in range(20)]
    state = await finished(bench.batch(*map(job, names)))
    assert state.succeeded
    assert [name for name, state in bench.seen if state is JobState.RUNNING] == names
    assert [each["name"] for each in bench.summary()["jobs"]] == names
    assert all(len(each["attempts"]) == 1 for each in bench.summary()["jobs"])


@pytest.mark.anyio
@pytest.mark.parametrize("internal", [False, True])
@pytest.mark.parametrize("external", [False, True])
async def test_a_log_names_exactly_the_addresses_that_it_may(bench: Bench, internal: bool, external: bool) -> None:  # noqa: FBT001
    """At the beginning of each try, and in whatever an error says; the others never, however they come up."""
    dead = Unreachable(f"nothing answers at {INTERNAL}:22, nor at {EXTERNAL}0")
    refused = ConnectError(f"{EXTERNAL} and {INTERNAL} do not want us")
    plays = {"lost": fails_with(dead, times=1), "failed": fails_with(refused)}
    jobs = job("lost"), job("failed"), job("good")
    await finished(bench.batch(*jobs, plays=plays, log_internal_ip=internal, log_external_ip=external))
    named = [address for address, may in ((INTERNAL, internal), (EXTERNAL, external)) if may]
    for name in ("lost", "failed", "good"):
        log = bench.log(name)
        assert [address for address in (INTERNAL, EXTERNAL) if address in log] == named
        tries = len(bench.state_of(name)["attempts"])
        assert log.count("taskscaler: runs on i-") == (tries if named else 0)
        assert not named or f"({', '.join(named)})\n" in log
    assert f"at {INTERNAL if internal else '[address]'}:22" in bench.log("lost")


@pytest.mark.anyio
async def test_results_tell_everything(bench: Bench) -> None:
    """What a program wants to know of each job and of the fleet."""
    bench.scaler.free = ["i-1"]
    plays = {"bad": gives(BADLY), "late": gives(LATE), "lost": fails_with(Unreachable("dead line"), times=1)}
    await finished(bench.batch(job("bad"), job("late"), job("lost"), plays=plays))
    summary = bench.summary()
    assert summary["version"] == 1
    assert set(summary) == {"version", "started", "ended", "duration", "jobs", "fleet"}
    bad, late, lost = summary["jobs"]
    assert (bad["state"], bad["exit_code"], bad["why"]) == ("failed", 3, "exited with 3")
    assert (late["state"], late["exit_code"], late["why"]) == ("timed_out", None, "took longer than 1s")
    assert (lost["state"], lost["exit_code"], lost["why"]) == ("succeeded", 0, "")
    assert [attempt["state"] for attempt in lost["attempts"]] == ["lost", "succeeded"]
    assert lost["attempts"][0]["why"] == "the connection to instance i-1 broke (dead line)"
    (instance,) = summary["fleet"]["instances"]
    assert (instance["id"], instance["attempts"], instance["lost"]) == ("i-1", 4, 1)
    assert instance["first_used"] <= instance["last_used"] <= summary["ended"]


@pytest.mark.anyio
async def test_a_log_has_what_the_job_printed_as_it_is(bench: Bench) -> None:
    """Bytes, whatever they are; a remark follows only if something was wrong, on a line of its own."""
    plays = {"good": gives(WELL, b"\x1b[31mred\xff\r\n"), "bad": gives(BADLY, b"no end of line")}
    await finished(bench.batch(job("good"), job("bad"), plays=plays))
    assert Results(bench.directory).log("good").read_bytes() == b"\x1b[31mred\xff\r\n"
    assert bench.log("bad") == "no end of line\ntaskscaler: exited with 3\n"


@pytest.mark.anyio
async def test_a_lost_job_is_tried_again_elsewhere(bench: Bench) -> None:
    """The lease breaks while the job runs; it is run again on the instance that comes instead."""
    bench.scaler.free = ["i-1"]
    plays: dict[str, Play] = {"job": hangs}
    batch = bench.batch(job("job"), plays=plays)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(finished, batch)
        await bench.until("job", JobState.RUNNING)
        plays["job"] = gives(WELL)
        bench.scaler.lose("job")
    assert [state for _, state in bench.seen] == [
        JobState.RUNNING,
        JobState.QUEUED,
        JobState.RUNNING,
        JobState.SUCCEEDED,
    ]
    assert [attempt.instance for attempt in batch.state["job"].attempts] == ["i-1", "i-3"]
    assert "taskscaler: instance i-1 was lost (vanished)\n" in bench.log("job")


@pytest.mark.anyio
@pytest.mark.parametrize("retries", [0, 2])
async def test_retries_end(bench: Bench, retries: int) -> None:
    """A job that loses its instance each time is tried once more than its retries."""
    await finished(bench.batch(job("job", retries=retries), plays={"job": fails_with(Unreachable("dead line"))}))
    (result,) = bench.summary()["jobs"]
    assert result["state"] == "lost"
    assert len(result["attempts"]) == retries + 1
    remarks = [
        f"taskscaler: the connection to instance {attempt['instance']} broke (dead line)\n"
        for attempt in result["attempts"]
    ]
    assert bench.log("job") == "".join(f"half a line\n{remark}" for remark in remarks)


@pytest.mark.anyio
@pytest.mark.parametrize("outcome", [BADLY, LATE])
async def test_what_a_job_did_by_itself_stands(bench: Bench, outcome: JobOutcome) -> None:
    """Failing and taking too long are not retried."""
    state = await finished(bench.batch(job("job"), plays={"job": gives(outcome)}))
    assert len(state["job"].attempts) == 1
    assert not state.succeeded


@pytest.mark.anyio
@pytest.mark.parametrize("error", [ConnectError("cannot prepare"), FileNotFoundError("no such file")])
async def test_a_job_that_cannot_be_run_has_failed(bench: Bench, error: Exception) -> None:
    """Another instance would not help; the others go on."""
    state = await finished(bench.batch(job("job"), job("other"), plays={"job": fails_with(error)}))
    assert (state["job"].state, state["job"].why) == (JobState.FAILED, str(error))
    assert state["other"].state is JobState.SUCCEEDED


@pytest.mark.anyio
async def test_what_was_preempted_costs_no_retry(bench: Bench) -> None:
    """Ten times the cloud takes the instance, as announced, and once without a word: its only retry is enough."""
    losses = [*[LossKind.PREEMPTED] * 10, LossKind.VANISHED]

    async def play(_: JobSpec, __: Leased, ___: Sink, ____: Path) -> JobOutcome:
        if losses:
            bench.scaler.lose("job", losses.pop(0))
            await anyio.sleep_forever()
        return WELL

    state = await finished(bench.batch(job("job", retries=1), plays={"job": play}))
    assert state["job"].state is JobState.SUCCEEDED
    (result,) = bench.summary()["jobs"]
    assert [attempt["preempted"] for attempt in result["attempts"]] == [*[True] * 10, False, False]
    assert {attempt["pool"] for attempt in result["attempts"]} == {"default"}


@pytest.mark.anyio
async def test_artifacts_of_a_lost_try_do_not_mix_with_the_next(bench: Bench) -> None:
    """The directory is gone before the job runs again."""
    tries = 0

    async def play(_: JobSpec, __: Leased, ___: Sink, artifacts: Path) -> JobOutcome:
        nonlocal tries
        tries += 1
        await anyio.Path(artifacts).mkdir()
        await anyio.Path(artifacts, f"try-{tries}").touch()
        if tries == 1:
            raise Unreachable("dead line")
        return WELL

    await finished(bench.batch(job("job"), plays={"job": play}))
    assert [path.name for path in Results(bench.directory).artifacts("job").iterdir()] == ["try-2"]


@pytest.mark.anyio
async def test_a_drained_batch_lets_running_jobs_end(bench: Bench) -> None:
    """No job begins any more; those that never began are cancelled, those that ran have their outcomes."""
    go = anyio.Event()

    async def play(*_: object) -> JobOutcome:
        await go.wait()
        return BADLY

    names = [f"job-{number}" for number in range(5)]
    batch = bench.batch(*map(job, names), plays=dict.fromkeys(names, play))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(finished, batch)
        await bench.until("job-1", JobState.RUNNING)
        batch.drain()
        await bench.until("job-4", JobState.CANCELLED)
        go.set()
    assert list(bench.states().values()) == ["failed", "failed", "cancelled", "cancelled", "cancelled"]
    assert bench.summary()["jobs"][4]["why"] == "the batch was interrupted"


@pytest.mark.anyio
async def test_a_stopped_batch_ends_at_once(bench: Bench) -> None:
    """Running jobs are cancelled too and not tried again, after a drain or without one."""
    batch = bench.batch(job("a"), job("b"), job("c"), plays={"a": hangs, "b": hangs})
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(finished, batch)
        await bench.until("b", JobState.RUNNING)
        batch.drain()
        await batch.stop()
    assert set(bench.states().values()) == {"cancelled"}
    assert bench.summary()["jobs"][0]["attempts"][0]["state"] == "cancelled"


@pytest.mark.anyio
async def test_a_batch_drained_before_it_runs_begins_nothing(bench: Bench) -> None:
    """Ctrl-C while the fleet is opened."""
    batch = bench.batch(job("a"), job("b"))
    batch.drain()
    await finished(batch)
    assert set(bench.states().values()) == {"cancelled"}
    assert bench.scaler.held == {}


@pytest.mark.anyio
async def test_a_cancelled_batch_still_writes_its_results(bench: Bench) -> None:
    """Whoever runs it may be cancelled; what was done is not forgotten."""
    batch = bench.batch(job("a"), job("b"), plays={"b": hangs})
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(finished, batch)
        await bench.until("a", JobState.SUCCEEDED)
        await bench.until("b", JobState.RUNNING)
        tasks.cancel_scope.cancel()
    assert bench.states() == {"a": "succeeded", "b": "cancelled"}


@pytest.mark.anyio
async def test_waiting_ends_once_nothing_has_run_for_too_long(bench: Bench) -> None:
    """A fleet that never comes is given up, with a state that says so."""
    bench.scaler.free = []
    batch = bench.batch(job("a"), job("b"), patience=0.01)
    await finished(batch)
    assert set(bench.states().values()) == {"no_capacity"}
    why = "no slot became free within 10ms (instance_acquire_timeout)"
    assert bench.summary()["jobs"][0]["why"] == why
    assert batch.why_given_up == "a and b wait", "asked for too late, when nobody waits any more"


@pytest.mark.anyio
async def test_who_waits_behind_a_running_job_waits_for_ever(bench: Bench) -> None:
    """Patience is about capacity, not about a long queue: while something runs, nothing is given up."""
    go = anyio.Event()

    async def play(*_: object) -> JobOutcome:
        await go.wait()
        return WELL

    batch = bench.batch(*map(job, "abcd"), plays={"a": hangs, "b": play, "c": hangs})
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(finished, batch)
        await bench.until("b", JobState.RUNNING)
        batch._patience = 0.0
        go.set()
        await bench.until("c", JobState.RUNNING)
        await anyio.wait_all_tasks_blocked()
        assert batch.state["d"].state is JobState.QUEUED
        await batch.stop()


@pytest.mark.anyio
async def test_a_refusal_is_the_end_of_a_job(bench: Bench) -> None:
    """If the scaler says that there will be no slot, asking again makes no sense."""
    bench.scaler.stopped = True
    state = await finished(bench.batch(job("a")))
    assert (state["a"].state, state["a"].why) == (JobState.NO_CAPACITY, "the scaler was stopped")


@pytest.mark.anyio
async def test_results_are_never_mixed(bench: Bench) -> None:
    """A directory that has something in it is refused, and stays as it is: that may be for everybody."""
    bench.directory.mkdir()
    bench.directory.chmod(0o755)
    (bench.directory / "results.json").touch()
    with pytest.raises(ResultsInTheWay, match="is not empty; name another directory, or remove this one"):
        executors = {"scripted": Scripted()}
        await run_batch(bench.scaler, [job("a")], executors=executors, output=bench.directory, clock=LoopClock())
    assert bench.directory.stat().st_mode & 0o777 == 0o755
    (bench.directory / "events.jsonl").touch()
    with pytest.raises(ResultsInTheWay, match="has the results of a batch; resume it with --resume"):
        Results(bench.directory).prepare()


@pytest.mark.anyio
async def test_one_call_runs_a_batch(bench: Bench) -> None:
    """What people script with."""
    executors = {"scripted": Scripted()}
    state = await run_batch(bench.scaler, [job("a")], executors=executors, output=bench.directory, clock=LoopClock())
    assert state.succeeded
    assert bench.states() == {"a": "succeeded"}


class Rude(Exception):
    """An exception that cannot even be written."""

    def __str__(self) -> str:
        """Raise."""
        raise KeyError("no text")


def deep_group() -> Exception:
    """Groups within groups, deeper than recursion goes."""
    error: Exception = KeyError("Id")
    for _ in range(2000):
        error = ExceptionGroup("group", [error])
    return error


ODD: Mapping[str, Callable[[], Exception]] = {
    "group": lambda: ExceptionGroup("x", [KeyError("Id"), Unreachable("dead line")]),
    "deep group": deep_group,
    "bytes": lambda: UnicodeDecodeError("utf-8", b"\xff\xfe", 0, 1, "invalid start byte"),
    "key": lambda: KeyError("State"),
    "rude": Rude,
    "long": lambda: ValueError("\n[ 0:01] other succeeded" * 10_000),
    "no slot": lambda: NoCapacity("none"),
    "lost": lambda: LeaseLost("other", "i-9", Loss(LossKind.VANISHED)),
    "stop": StopAsyncIteration,
    "surrogate": lambda: ValueError("\udcff"),
    "assertion": AssertionError,
    "recursion": RecursionError,
}
"""What nobody expects of an executor."""


@pytest.mark.anyio
@pytest.mark.parametrize("odd", ODD)
async def test_whatever_an_executor_raises_fails_that_try_alone(
    bench: Bench, odd: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The traceback is logged, the instance is suspect, the job is tried elsewhere, and the others never notice."""
    others = [job(f"other-{number}") for number in range(6)]
    plays = {"job": fails_with(ODD[odd](), times=1)}
    state = await finished(bench.batch(job("job"), *others, plays=plays))
    assert state.succeeded
    first, second = state["job"].attempts
    assert first.state is JobState.LOST
    assert first.instance != second.instance
    assert [instance for instance, _ in bench.scaler.suspects] == [first.instance]
    assert {each for record in map(state.__getitem__, [each.name for each in others]) for each in record.attempts}
    assert all(len(state[each.name].attempts) == 1 for each in others)
    assert "failed unexpectedly" in first.why
    assert "\n" not in first.why
    assert len(first.why.encode()) <= 1024
    assert bench.log("job").count("\n") == 2
    (logged,) = [record for record in caplog.records if record.message == "try_failed"]
    assert logged.exc_info is not None


@define
class Stumbling:
    """A play with a task beside it, that fails when it is cancelled; the second time it ends well."""

    begun: anyio.Event = field(factory=anyio.Event)

    async def __call__(self, spec: JobSpec, lease: Leased, output: Sink, artifacts: Path) -> JobOutcome:
        """Hang, and raise in the clean-up."""
        if not self.begun.is_set():
            await self._stumble()
        return WELL

    async def _stumble(self) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anyio.sleep_forever)
            self.begun.set()
            try:
                await anyio.sleep_forever()
            finally:
                raise KeyError("Id")


@pytest.mark.anyio
async def test_a_clean_up_that_fails_after_a_loss_is_that_loss(bench: Bench) -> None:
    """The others never notice, nothing speaks against the instance, and a preempted job keeps its retries."""
    play = Stumbling()
    batch = bench.batch(job("job", retries=0), job("other"), plays={"job": play})
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(batch.run)
        await play.begun.wait()
        bench.scaler.lose("job", LossKind.PREEMPTED)
    assert batch.state.succeeded
    first, _ = batch.state["job"].attempts
    assert (first.preempted, "was lost" in first.why) == (True, True)
    assert bench.scaler.suspects == []


@pytest.mark.anyio
async def test_who_is_wrong_each_time_is_lost_in_the_end(bench: Bench) -> None:
    """After as many retries as a job whose instances are lost."""
    state = await finished(bench.batch(job("bad"), job("good"), plays={"bad": fails_with(KeyError("Id"))}))
    assert (state["bad"].state, len(state["bad"].attempts)) == (JobState.LOST, 3)
    assert state["good"].state is JobState.SUCCEEDED


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("error", "end"),
    [
        (ConnectError("cannot prepare"), JobState.FAILED),
        (OSError(ENOSPC, "No space left on device"), JobState.FAILED),
        (Unreachable("dead line"), JobState.SUCCEEDED),
    ],
)
async def test_an_error_in_a_group_is_the_one_that_it_is(bench: Bench, error: Exception, end: JobState) -> None:
    """Executors have tasks, which wrap what they raise; the instance is not suspect for it."""
    wrapped = ExceptionGroup("tasks", [ExceptionGroup("tasks", [error])])
    state = await finished(bench.batch(job("job"), plays={"job": fails_with(wrapped, times=1)}))
    assert state["job"].state is end
    assert bench.scaler.suspects == []


@pytest.mark.anyio
async def test_where_nobody_answers_on_a_connection_that_lives_a_job_is_not_tried_again(bench: Bench) -> None:
    """As if the Docker daemon there hung: the instance is suspect, and the retry goes elsewhere."""
    bench.scaler.free, bench.scaler.cut_off = ["i-1"], False
    mute = Unreachable("the Docker daemon did not answer within 30s (i-1)")
    state = await finished(bench.batch(job("job"), plays={"job": fails_with(mute, times=1)}))
    first, second = state["job"].attempts
    assert (first.state, second.state) == (JobState.LOST, JobState.SUCCEEDED)
    assert first.instance != second.instance
    assert bench.scaler.suspects == [(first.instance, str(mute))]


@given(st.lists(st.sampled_from([None, *ODD]), min_size=1, max_size=6), st.integers(0, 2))
@settings(max_examples=25, deadline=None)
def test_innocent_jobs_finish_whatever_happens_to_others(odds: list[str | None], retries: int) -> None:
    """Each job either is innocent and succeeds, or is tried as often as it may be; the batch goes to its end."""
    jobs = [job(f"job-{number}", retries=retries) for number in range(len(odds))]
    plays = {each.name: fails_with(ODD[odd]()) for each, odd in zip(jobs, odds, strict=True) if odd}

    async def run(directory: Path) -> BatchState:
        return await finished(Bench(directory).batch(*jobs, plays=plays))

    with TemporaryDirectory() as directory:
        state = anyio.run(run, Path(directory, "results"))
    for each, odd in zip(jobs, odds, strict=True):
        assert state[each.name].state is (JobState.LOST if odd else JobState.SUCCEEDED)
        assert len(state[each.name].attempts) == (retries + 1 if odd else 1)


@pytest.mark.anyio
async def test_an_outcome_that_is_none_fails_that_try(bench: Bench) -> None:
    """An executor that gives back something else is as wrong as one that raises."""

    async def nothing(*_: object) -> Any:  # noqa: ANN401
        return None

    state = await finished(bench.batch(job("job", retries=0), job("other"), plays={"job": nothing}))
    assert (state["job"].state, state["other"].state) == (JobState.LOST, JobState.SUCCEEDED)


@pytest.mark.anyio
async def test_an_observer_that_raises_ends_nothing(bench: Bench) -> None:
    """What shows the batch is not what runs it."""
    batch = bench.batch(job("a"), job("b"))
    batch._history._observer = lambda _: (_ for _ in ()).throw(ZeroDivisionError)
    assert (await finished(batch)).succeeded


@pytest.mark.anyio
async def test_an_executor_that_is_not_there_is_told_before_anything_begins(bench: Bench) -> None:
    """It is a mistake of who made the batch, and no instance's."""
    with pytest.raises(ValueError, match='jobs: expected executors among "scripted", found "boxes"'):
        bench.batch(evolve(job("a"), executor="boxes"))


@pytest.mark.anyio
async def test_few_of_many_jobs_wait_at_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that what is cancelled by an interrupt is bounded, however many jobs there are."""
    monkeypatch.setattr(_runner, "MOST_WAITING", 50)
    jobs = [job(f"job-{number}") for number in range(20_000)]
    go = anyio.Event()

    async def play(*_: object) -> JobOutcome:
        await go.wait()
        return WELL

    batch = bench.batch(*jobs, plays={"job-0": play, "job-1": play})
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(finished, batch)
        await bench.until("job-1", JobState.RUNNING)
        await anyio.wait_all_tasks_blocked()
        assert len(bench.scaler.queue) == 50
        batch.drain()
        await bench.until("job-19999", JobState.CANCELLED)
        go.set()
    assert bench.scaler.asked == 52, "those that never waited were asked for, only to be cancelled"
    assert batch.state.count(JobState.CANCELLED) == 19_998
    assert len(bench.summary()["jobs"]) == 20_000


@pytest.mark.anyio
async def test_jobs_queue_in_order_where_few_may_wait(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one waits as soon as one has a slot; nothing is overtaken, nothing forgotten."""
    monkeypatch.setattr(_runner, "MOST_WAITING", 2)
    names = [f"job-{number}" for number in range(20)]
    lost = fails_with(Unreachable("dead line"), times=1)
    state = await finished(bench.batch(*map(job, names), plays={"job-3": lost, "job-4": lost}))
    assert state.succeeded
    first = dict.fromkeys(name for name, state in bench.seen if state is JobState.RUNNING)
    assert list(first) == names


# --- disks that are full ---------------------------------------------------------------------------------


class Disk:
    """A disk that is full for some files: they may be written over, as far as they have room, and not grow."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Stand between the batch and the system's calls."""
        self.full: Callable[[str], bool] = lambda _: False
        self._pwrite, self._write = os.pwrite, os.write
        monkeypatch.setattr(os, "pwrite", self.pwrite)
        monkeypatch.setattr(os, "write", self.write)

    def pwrite(self, file: int, data: bytes, offset: int) -> int:
        """Write."""
        self._check(file, offset + len(data))
        return self._pwrite(file, data, offset)

    def write(self, file: int, data: bytes) -> int:
        """Write."""
        try:
            self._check(file, os.fstat(file).st_size + len(data))
        except OSError:
            self._write(file, data[:7])  # as much as there is room for
            raise
        return self._write(file, data)

    def _check(self, file: int, size: int) -> None:
        if size > os.fstat(file).st_size and self.full(str(Path(f"/proc/self/fd/{file}").readlink())):
            raise OSError(ENOSPC, "No space left on device")


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    """A disk, which is not full yet; nobody waits for it for long."""
    monkeypatch.setattr(_history, "COMMIT_PAUSE", 0.001)
    return Disk(monkeypatch)


@pytest.mark.anyio
async def test_a_log_that_cannot_be_written_is_its_job_s_problem(bench: Bench, disk: Disk) -> None:
    """The job goes on, with a warning; what can be written again is."""
    disk.full = lambda path: path.endswith("/bad.log")

    async def play(_: JobSpec, __: Leased, output: Sink, ___: Path) -> JobOutcome:
        await output(b"lost\n")
        disk.full = lambda _: False
        await output(b"kept\n")
        return WELL

    state = await finished(bench.batch(job("bad"), job("good"), plays={"bad": play, "good": gives(WELL, b"all\n")}))
    assert state.succeeded
    assert state["bad"].warnings == ("its log is incomplete: No space left on device",)
    assert bench.log("bad").strip().splitlines() == [
        "taskscaler: something is missing here: No space left on device",
        "kept",
        "taskscaler: its log is incomplete: No space left on device",
    ]
    assert (bench.log("good"), state["good"].warnings) == ("all\n", ())


@pytest.mark.anyio
async def test_a_log_has_no_more_bytes_than_it_may(bench: Bench) -> None:
    """Over all tries; what the batch itself says is at its end."""

    async def play(_: JobSpec, __: Leased, output: Sink, ___: Path) -> JobOutcome:
        for number in range(20):
            await output(b"%d" % (number % 10) * 1000)
        if len(state["job"].attempts) == 1:
            raise Unreachable("dead line")
        return BADLY

    batch = bench.batch(evolve(job("job"), log_limit=8192), plays={"job": play})
    state = batch.state
    await finished(batch)
    text = bench.log("job")
    assert len(text) <= 8192
    assert text.startswith("0" * 1000 + "1" * 1000)
    assert text.endswith("9" * 1000 + "\ntaskscaler: exited with 3\n")
    assert re.search(r"\ntaskscaler: +[0-9]+ bytes are left out here, as log_limit says\n", text)


@pytest.mark.anyio
async def test_a_log_that_cannot_even_be_opened_is_its_job_s_problem(bench: Bench) -> None:
    """Whatever is in its place."""
    batch = bench.batch(job("bad"), job("good"), plays={"bad": gives(BADLY, b"text")})
    Results(bench.directory).log("bad").mkdir(parents=True)
    state = await finished(batch)
    assert (state["bad"].state, state["good"].state) == (JobState.FAILED, JobState.SUCCEEDED)


@pytest.mark.anyio
async def test_what_cannot_be_written_down_is_done_again_later(bench: Bench, disk: Disk) -> None:
    """No line is torn, the batch goes to its end, and when it is resumed what is not known is run."""
    jobs = [job("a"), job("b"), job("c")]

    async def fills(*_: object) -> JobOutcome:
        disk.full = lambda path: path.endswith("events.jsonl")
        return WELL

    bench.scaler.free = ["i-1"]
    with closing(bench.events()) as events:
        state = await finished(bench.batch(*jobs, plays={"b": fills}, events=events))
    assert bench.states() == {"a": "succeeded", "b": "cancelled", "c": "cancelled"}
    assert bench.state_of("b")["why"] == "that it has ended could not be written down: No space left on device"
    assert bench.state_of("c")["why"] == "that it has begun could not be written down: No space left on device"
    assert not state.all_stand
    disk.full = lambda _: False
    again = Bench(bench.directory)
    with closing(again.reopened()) as events:
        state = await finished(again.batch(*jobs, events=events))
    assert state.succeeded
    assert [len(record.attempts) for record in state.records] == [1, 2, 1]


@pytest.mark.anyio
async def test_a_disk_that_has_room_again_in_time_costs_nobody_anything(bench: Bench, disk: Disk) -> None:
    """What one job had filled it with is gone when that is over."""
    refusals = 3

    def full(path: str) -> bool:
        nonlocal refusals
        refusals -= path.endswith("events.jsonl") and refusals > 0
        return path.endswith("events.jsonl") and refusals > 0

    async def fills(*_: object) -> JobOutcome:
        disk.full = full
        return WELL

    with closing(bench.events()) as events:
        state = await finished(bench.batch(job("a"), job("b"), plays={"a": fills}, events=events))
    assert refusals == 0
    assert state.succeeded


@pytest.mark.anyio
@pytest.mark.parametrize("others", [0, 100])
async def test_the_summary_has_room_on_a_disk_that_is_full(bench: Bench, disk: Disk, others: int) -> None:
    """It was reserved before anything could fill the disk; a long one is written briefly."""
    why = "x" * 1000

    async def fills(*_: object) -> JobOutcome:
        disk.full = lambda path: not path.endswith("events.jsonl")
        return evolve(BADLY, why=why, warnings=[why] * 20)

    jobs = [*(job(f"other-{number}") for number in range(others)), job("bad")]
    state = await finished(bench.batch(*jobs, plays={"bad": fills}))
    assert state["bad"].state is JobState.FAILED
    bad = bench.state_of("bad")
    assert (bad["state"], bad["why"]) == ("failed", why if others else why[:80])
    assert len(bad["warnings"]) == (20 if others else 0)
    assert len(bench.states()) == others + 1


@pytest.mark.anyio
async def test_a_summary_that_cannot_be_written_is_told(bench: Bench, disk: Disk) -> None:
    """And nothing else is lost with it; scripts have an error."""
    disk.full = lambda path: "results.json" in path and len(bench.seen) > 0
    bench.directory.mkdir()
    batch = bench.batch(job("a"))
    (Results(bench.directory).summary).mkdir()
    state = await finished(batch)
    assert state.succeeded
    assert isinstance(batch.summary_refused, OSError)


# --- going on with an interrupted batch -------------------------------------------------------------------


async def killed_while(hanging: Hanging, bench: Bench, batch: Batch) -> Bench:
    """Run a batch until a job hangs, and kill it there."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(finished, batch)
        await hanging.begun.wait()
        killed = bench.killed()
        tasks.cancel_scope.cancel()
    return killed


@pytest.mark.anyio
async def test_an_interrupted_batch_goes_on(bench: Bench) -> None:
    """What is over stays so, what ran is tried again, what waited runs; the results cover everything."""
    bench.scaler.free = ["i-1"]
    jobs = [job(name) for name in ("good", "bad", "runs", "waits")]
    plays: dict[str, Play] = {"good": gives(WELL, b"first\n"), "bad": gives(BADLY), "runs": (hanging := Hanging())}
    with closing(bench.events()) as events:
        batch = bench.batch(*jobs, plays=plays, events=events)
        started = batch.state.started
        killed = await killed_while(hanging, bench, batch)
    with closing(killed.reopened()) as events:
        batch = killed.batch(*jobs, plays={"runs": gives(WELL, b"again\n")}, events=events)
        assert batch.state.count(JobState.QUEUED) == 2
        state = await finished(batch)
    assert killed.states() == {"good": "succeeded", "bad": "failed", "runs": "succeeded", "waits": "succeeded"}
    assert {name for name, state in killed.seen if state is JobState.RUNNING} == {"runs", "waits"}
    assert len(killed.seen) == 4
    first, second = killed.summary()["jobs"][2]["attempts"]
    assert (first["state"], first["why"], first["interrupted"]) == ("lost", "the manager was stopped", True)
    assert first["started"] <= first["ended"] <= second["started"]
    assert not second["interrupted"]
    assert killed.log("good") == "first\n"
    assert killed.log("runs") == "running\ntaskscaler: the manager was stopped\nagain\n"
    assert state.started == started
    assert (state.all_stand, state.succeeded) == (True, False)


@pytest.mark.anyio
async def test_being_interrupted_costs_no_retry(bench: Bench) -> None:
    """However often the manager is killed; a lost instance still does, over all runs together."""
    jobs, losing = [job("job", retries=1)], fails_with(Unreachable("dead line"), times=1)
    hanging = Hanging()

    async def loses_then_hangs(spec: JobSpec, lease: Leased, output: Sink, artifacts: Path) -> JobOutcome:
        await losing(spec, lease, output, artifacts)
        return await hanging(spec, lease, output, artifacts)

    with closing(bench.events()) as events:
        batch = bench.batch(*jobs, plays={"job": loses_then_hangs}, events=events)
        killed = await killed_while(hanging, bench, batch)
    for _ in range(2):
        with closing(killed.reopened()) as events:
            batch = killed.batch(*jobs, plays={"job": (again := Hanging())}, events=events)
            killed = await killed_while(again, killed, batch)
    losing = fails_with(Unreachable("dead line"))
    with closing(killed.reopened()) as events:
        await finished(killed.batch(*jobs, plays={"job": losing}, events=events))
    (result,) = killed.summary()["jobs"]
    assert (result["state"], len(result["attempts"])) == ("lost", 5)
    assert [attempt["interrupted"] for attempt in result["attempts"]] == [False, True, True, True, False]


@pytest.mark.anyio
async def test_jobs_that_are_over_run_again(bench: Bench) -> None:
    """With all their retries; the tries before stay in the results, marked by the run that made them."""
    jobs = [job("good"), job("bad", retries=Retries(failed=1)), job("worse")]
    with closing(bench.events()) as events:
        async with events.writing():
            await finished(bench.batch(*jobs, plays={"bad": exits_with(1), "worse": exits_with(2)}, events=events))
        events.end(Over(at=1.0, well=False))
    with closing(bench.reopened()) as events:
        assert events.past is not None
        assert events.past.over is not None
        async with events.writing():
            state = await finished(
                bench.batch(*jobs, plays={"bad": exits_with(1)}, events=events, rerun=["bad", "worse"])
            )
    assert bench.states() == {"good": "succeeded", "bad": "failed", "worse": "succeeded"}
    assert [each["run"] for each in bench.state_of("bad")["attempts"]] == [1, 1, 2, 2]
    assert [each["run"] for each in bench.state_of("worse")["attempts"]] == [1, 2]
    assert [*fold(read_events(bench.directory / "events.jsonl")).records] == [*state.records]


@pytest.mark.anyio
async def test_jobs_that_are_not_over_are_those_of_the_caller(bench: Bench) -> None:
    """A later run has other jobs: what is over stays in the results, what is not and is gone is no part of them."""
    with closing(bench.events()) as events:
        await finished(bench.batch(job("over"), job("kept"), job("gone"), only={"over"}, events=events))
    assert bench.states() == {"over": "succeeded", "kept": "cancelled", "gone": "cancelled"}
    assert bench.state_of("kept")["why"] == "not selected in this run"
    with closing(bench.reopened()) as events:
        state = await finished(bench.batch(job("kept"), job("new"), events=events))
    assert bench.states() == {"kept": "succeeded", "new": "succeeded", "over": "succeeded"}
    assert [*fold(read_events(bench.directory / "events.jsonl")).records] == [*state.records]


@pytest.mark.anyio
async def test_after_enough_failures_nothing_more_is_begun(bench: Bench) -> None:
    """Jobs that run go on to their ends; the rest has its chance later."""
    begun = anyio.Event()

    async def slow(_: JobSpec, __: Leased, ___: Sink, ____: Path) -> JobOutcome:
        begun.set()
        await bench.until("b", JobState.FAILED)
        return WELL

    async def fails(_: JobSpec, __: Leased, ___: Sink, ____: Path) -> JobOutcome:
        await begun.wait()
        return BADLY

    jobs = [job("a"), job("b"), job("c"), job("d")]
    await finished(bench.batch(*jobs, plays={"a": slow, "b": fails}, fail_fast=1))
    assert bench.states() == {"a": "succeeded", "b": "failed", "c": "cancelled", "d": "cancelled"}
    assert bench.state_of("d")["why"] == "not started, because 1 job failed"


@pytest.mark.anyio
async def test_what_never_had_its_chance_has_it_when_the_batch_is_resumed(bench: Bench) -> None:
    """Jobs that were cancelled, running or waiting, and those for which there was no capacity."""
    jobs = [job(name) for name in "abc"]
    with closing(bench.events()) as events:
        batch = bench.batch(*jobs, plays={"a": hangs, "b": hangs}, events=events)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(finished, batch)
            await bench.until("b", JobState.RUNNING)
            await batch.stop()
    assert not batch.state.all_stand
    again = Bench(bench.directory)
    again.scaler.free = []
    with closing(again.reopened()) as events:
        state = await finished(again.batch(*jobs, patience=0.01, events=events))
    assert set(again.states().values()) == {"no_capacity"}
    assert not state.all_stand
    again = Bench(bench.directory)
    with closing(again.reopened()) as events:
        await finished(again.batch(*jobs, events=events))
    assert set(again.states().values()) == {"succeeded"}
    assert [len(each["attempts"]) for each in again.summary()["jobs"]] == [2, 2, 1]


@pytest.mark.anyio
async def test_artifacts_of_an_interrupted_try_do_not_mix_with_the_next(bench: Bench) -> None:
    """The directory is gone before the job runs again."""

    async def leaves(_: JobSpec, __: Leased, ___: Sink, artifacts: Path) -> JobOutcome:
        await anyio.Path(artifacts).mkdir()
        await anyio.Path(artifacts, "whole").touch()
        return WELL

    hanging = Hanging()
    with closing(bench.events()) as events:
        batch = bench.batch(job("a"), plays={"a": hanging}, events=events)
        killed = await killed_while(hanging, bench, batch)
    assert (Results(killed.directory).artifacts("a") / "half").exists()
    with closing(killed.reopened()) as events:
        await finished(killed.batch(job("a"), plays={"a": leaves}, events=events))
    assert [path.name for path in Results(killed.directory).artifacts("a").iterdir()] == ["whole"]


@pytest.mark.anyio
async def test_a_log_cut_off_anywhere_says_what_was_whole(bench: Bench) -> None:
    """The process may die in the middle of a line: that event never happened, and the next one follows neatly."""
    jobs = [job("a"), job("b")]
    with closing(bench.events()) as events:
        await finished(bench.batch(*jobs, plays={"b": gives(BADLY)}, events=events))
    path = Results(bench.directory).events
    whole = path.read_bytes()
    begun = whole.index(b"\n", whole.index(b"\n") + 1) + 1
    for size in {*range(begun, len(whole), 61), len(whole) - 1, len(whole)}:
        path.write_bytes(whole[:size])
        with closing(bench.reopened()) as events:
            kept = path.read_bytes()
            assert kept == whole[: whole.rindex(b"\n", 0, size) + 1]
            events.begin(jobs, at=0.0)
            events.open()
        assert path.read_bytes() == kept + b'{"at": 0.0, "event": "resumed", "pools": []}\n'
        with closing(bench.reopened()) as events:
            assert events.past is not None
            for record in events.past.records:
                assert all(attempt.ended is not None for attempt in record.attempts)


@pytest.mark.anyio
async def test_nobody_else_can_read_what_is_needed_to_go_on(bench: Bench) -> None:
    """The jobs file is kept as it was, in a directory of our own, and goes when nothing is left to do."""
    results = Results(bench.directory)
    with closing(bench.events()) as events:
        await finished(bench.batch(job("a"), events=events))
        assert stat.S_IMODE(results.resume.stat().st_mode) == 0o700
        assert stat.S_IMODE(results.events.stat().st_mode) == 0o600
        assert {stat.S_IMODE(path.stat().st_mode) for path in results.resume.iterdir()} == {0o600}
        assert results.jobs_file.read_text() == "jobs = []\n"
        events.end(Over(at=1.0, well=True))
        assert not results.resume.exists()
    with closing(bench.reopened()) as events:
        assert events.past is not None
        assert events.past.over == Over(at=1.0, well=True)
        assert events.past.count(JobState.SUCCEEDED) == len(events.past) == 1


@pytest.mark.anyio
async def test_only_one_command_writes_a_log(bench: Bench) -> None:
    """A batch that still runs cannot be resumed, nor can one that never was."""
    with pytest.raises(CannotResume, match=r"no batch was started in .*results; run its jobs file instead"):
        bench.reopened()
    with closing(bench.events()) as events:
        await finished(bench.batch(job("a"), events=events))
        with pytest.raises(CannotResume, match=r"the batch in .*results is still being run"):
            bench.reopened()
        events.close()
        with pytest.raises(ValueError, match="closed"):
            events.end(Over(at=1.0, well=True))


# --- over the real scaler --------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_jobs_outlive_instances_of_a_real_fleet(tmp_path: Path) -> None:
    """Instances vanish under running jobs: every job still succeeds, and none on an instance it lost."""
    cloud = FakeCloud()
    group = FakeGroup(cloud)
    pool = Pool(group, dial=group.dial, max_instances=2, update_interval=0.01, update_interval_when_expecting=0.01)
    vanished: set[str] = set()

    async def play(spec: JobSpec, lease: Leased, _: Sink, __: Path) -> JobOutcome:
        if spec.name in {"job-0", "job-3"} and spec.name not in vanished:
            vanished.add(spec.name)
            cloud.vanish(lease.instance)
            await anyio.sleep_forever()
        return WELL

    names = [f"job-{number}" for number in range(8)]
    executors = {"scripted": Scripted(dict.fromkeys(names, play))}
    async with Taskscaler(pool, delete_instances_on_shutdown=True) as scaler:
        jobs = [job(name) for name in names]
        state = await run_batch(scaler, jobs, executors=executors, output=tmp_path / "out", clock=LoopClock())
    assert state.succeeded
    for name in ("job-0", "job-3"):
        first, second = state[name].attempts
        assert first.instance != second.instance
        assert first.why.startswith(f"instance {first.instance} was lost")
    assert sum(len(record.attempts) for record in state.records) == len(names) + 2
