"""One record: wherever a command is killed, all that is said of the batch afterwards agrees."""

import json
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path

import anyio
import pytest
from attrs import define, field
from hypothesis import given

from fleeting import LoopClock, Unreachable
from fleeting.connectors import Sink
from fleeting.testing import FakeCloud, FakeGroup
from taskscaler import Pool, Taskscaler
from taskscaler._recorded_run import Progress, RecordedRun, read_run, recorded
from taskscaler.batch import (
    Attempt,
    Batch,
    BatchState,
    EventLog,
    Job,
    JobChanged,
    JobState,
    Over,
    PoolFacts,
    RecordedEvent,
    Results,
    Resumed,
    fold,
)
from taskscaler.diagnose._explain_run import explain_instance_of, explain_job, explain_run
from taskscaler.executors import JobOutcome, JobSpec, Leased, Verdict
from taskscaler.report import figure_out, lay_out
from tests.taskscaler.recorded import records

AT = 2e9
"""When everybody is asked."""


# --- what is said ------------------------------------------------------------------------------------------------


def tries(attempts: Sequence[Attempt]) -> list[tuple[str, str]]:
    """How they ended, and why."""
    return [(attempt.state.value, attempt.why) for attempt in attempts]


def check_agreement(run: RecordedRun, scratch: Path) -> None:
    """Whatever is asked, each job stands alike, was tried alike, and each instance met the same end."""
    stands = {name: record.state.value for name, record in run.jobs.items()}
    tried = {name: tries(record.attempts) for name, record in run.jobs.items()}
    results = Results(scratch)
    results.begin(0)
    results.write_summary(run.state, now=run.last)
    summary = json.loads(results.summary.read_text())
    assert {job["name"]: job["state"] for job in summary["jobs"]} == stands
    assert {job["name"]: [(each["state"], each["why"]) for each in job["attempts"]] for job in summary["jobs"]} == tried
    explained = explain_run(run, AT).as_dict()
    for name, record in run.jobs.items():
        about = explain_job(run, name, AT).as_dict()
        assert about["state"] == stands[name]
        assert [(each["state"], each["why"]) for each in about["attempts"]] == tried[name]  # type: ignore[attr-defined]
        assert (record.name, stands[name]) in {(each["name"], each["state"]) for each in explained["jobs"]}  # type: ignore[attr-defined]
    timeline = lay_out(run)
    drawn: dict[str, dict[int, tuple[str, str]]] = {name: {} for name in stands}
    for row in timeline.rows:
        for bar in row.bars:
            drawn[bar.job][bar.number] = (bar.state.value, bar.why)
    for name, bars in drawn.items():  # of an instance that was there for no time at all, nothing is drawn
        assert bars.items() <= dict(enumerate(tried[name], 1)).items()
    figures = figure_out(run, timeline)
    assert figures.states == Counter(stands.values())
    lost = {place for place, instance in run.instances.items() if instance.lost is not None}
    assert {(row.pool, row.instance) for row in timeline.rows if row.lost} <= lost
    for pool, id_ in run.instances:
        fate = str(explain_instance_of(run, f"{pool}/{id_}", AT).as_dict()["why"])
        assert fate.startswith("lost:") == ((pool, id_) in lost)


def check_resumed(state: BatchState, before: BatchState) -> None:
    """What stands is left alone, all else waits, and no try is forgotten."""
    for name, record in before.jobs.items():
        after = state[name]
        assert after.state is (record.state if record.state.stands else JobState.QUEUED)
        assert tries(after.attempts) == tries(record.attempts)


# --- a scripted run, killed everywhere ---------------------------------------------------------------------------


@define
class Scripted:
    """An executor under which a job does what its name says, on a cloud whose instances vanish."""

    hangs: bool = True
    cloud: FakeCloud = field(factory=FakeCloud)
    ran: Counter[str] = field(factory=Counter)
    hanging: anyio.Event = field(factory=anyio.Event)

    async def run(self, job: JobSpec, lease: Leased, *, output: Sink, artifacts: Path) -> JobOutcome:
        """Do it."""
        self.ran[job.name] += 1
        await anyio.lowlevel.checkpoint()
        match job.name.partition("-")[0]:
            case "fails":
                return JobOutcome(verdict=Verdict.FAILED, exit_code=3, why="exited with 3")
            case "vanishes" if self.ran[job.name] == 1:
                self.cloud.vanish(lease.instance)
                await anyio.sleep_forever()
            case "breaks":
                raise Unreachable("dead line")
            case "hangs" if self.hangs:
                self.hanging.set()
                await anyio.sleep_forever()
        return JobOutcome(verdict=Verdict.SUCCEEDED, exit_code=0)


NAMES = ("good-1", "fails", "vanishes", "breaks", "good-2", "hangs", "good-3")
JOBS = [Job(spec=JobSpec(name=name, script=""), executor="scripted", retries=1) for name in NAMES]
FACTS = PoolFacts(name="default", plugin="fake", capacity_per_instance=1, max_instances=2)


@define
class Display:
    """What was reported, and what a kill at that moment leaves of the log."""

    results: Results
    shown: dict[str, JobState] = field(factory=dict)
    moments: list[tuple[bytes, dict[str, JobState]]] = field(factory=list)

    def __call__(self, change: JobChanged) -> None:
        """Show how a job stands."""
        self.shown[change.record.name] = change.record.state
        self.moments.append((self.results.events.read_bytes(), dict(self.shown)))


@asynccontextmanager
async def manager(directory: Path, scripted: Scripted) -> AsyncIterator[tuple[Batch, Display, EventLog]]:
    """A command that runs the batch, or resumes it; when the body is left, it goes on to the end."""
    results = Results(directory)
    log = EventLog.reopen(results) if results.events.exists() else EventLog(results)
    log.pools = (FACTS,)
    display = Display(results)
    group = FakeGroup(scripted.cloud)
    pool = Pool(group, dial=group.dial, max_instances=2, update_interval=0.01, update_interval_when_expecting=0.01)
    executors = {"scripted": scripted}
    with closing(log):
        async with (
            log.writing(),
            Taskscaler(pool, delete_instances_on_shutdown=True, observers=[log]) as scaler,
            anyio.create_task_group() as tasks,
        ):
            batch = Batch(scaler, JOBS, executors=executors, events=log, clock=LoopClock(), observer=display)
            tasks.start_soon(batch.run)
            yield batch, display, log
        if batch.state.all_stand:
            log.end(Over(at=LoopClock().now(), well=batch.state.succeeded))


async def play(directory: Path) -> list[Display]:
    """Run the batch with three commands: one is killed, one is told to stop, the last sees it through."""
    Results(directory / "killed").prepare()
    displays = []
    scripted = Scripted()
    async with manager(directory / "killed", scripted) as (batch, display, log):
        await scripted.hanging.wait()
        while batch.state.count(JobState.RUNNING, JobState.QUEUED) > 1:
            await anyio.lowlevel.checkpoint()
        await log.flush()
        shutil.copytree(directory / "killed", directory / "batch")
        displays.append(display)
        await batch.stop()
    scripted = Scripted()
    async with manager(directory / "batch", scripted) as (batch, display, _):
        await scripted.hanging.wait()
        displays.append(display)
        await batch.stop()
    scripted = Scripted(hangs=False)
    async with manager(directory / "batch", scripted) as (_, display, _):
        displays.append(display)
    return displays


@pytest.mark.anyio
async def test_wherever_a_command_is_killed_all_agree(tmp_path: Path) -> None:
    """What was reported stands; results, report, explanations, timeline and the next command agree on the rest."""
    displays = await play(tmp_path)
    log = tmp_path / "batch" / "events.jsonl"
    whole = log.read_bytes()
    run = read_run(tmp_path / "batch")
    assert run.progress is Progress.OVER
    assert {name: record.state.value for name, record in run.jobs.items()} == {
        **dict.fromkeys(NAMES, "succeeded"),
        "fails": "failed",
        "breaks": "lost",
    }
    assert [attempt.state.value for attempt in run.jobs["hangs"].attempts] == ["lost", "cancelled", "succeeded"]
    assert [attempt.interrupted for attempt in run.jobs["hangs"].attempts] == [True, False, False]
    for events, shown in (moment for display in displays for moment in display.moments):
        killed = results_of(tmp_path, events)
        stands = read_run(killed.directory).jobs
        for name, state in shown.items():
            assert state is stands[name].state if state.stands else stands[name].attempts or state.final
    summary = json.loads((tmp_path / "batch" / "results.json").read_text())
    assert {job["name"]: job["state"] for job in summary["jobs"]} == {
        name: record.state.value for name, record in run.jobs.items()
    }
    begun = whole.index(b"\n", whole.index(b"\n") + 1) + 1
    ends = [at + 1 for at, byte in enumerate(whole) if byte == ord("\n") and at + 1 >= begun]
    for size in [*ends, *(end - 20 for end in ends[1:])]:
        killed = results_of(tmp_path, whole[:size])
        run = read_run(killed.directory)
        check_agreement(run, tmp_path / "scratch")
        with closing(EventLog.reopen(killed)) as log_:
            log_.check(JOBS)
            check_resumed(log_.begin(JOBS, at=AT), run.state)


def results_of(place: Path, events: bytes) -> Results:
    """Make the results of a command that has left this log."""
    results = Results(place / "cut off")
    results.directory.mkdir(exist_ok=True)
    results.events.write_bytes(events)
    return results


# --- any log -----------------------------------------------------------------------------------------------------


@given(records())
def test_any_prefix_of_a_log_makes_sense(events: list[RecordedEvent]) -> None:
    """It folds; and what stands goes on to stand, as does each try that has ended."""
    before = fold(events[:1])
    for size in range(2, len(events) + 1):
        after = fold(events[:size])
        assert after.last >= before.last
        for name, record in before.jobs.items():
            following = after[name]
            ended = [attempt for attempt in record.attempts if attempt.ended is not None]
            assert following.attempts[: len(ended)] == ended
            assert len(following.attempts) >= len(record.attempts)
            if record.state.stands:
                assert following == record
        before = after


@given(records())
def test_all_agree_on_any_log(tmp_path_factory: pytest.TempPathFactory, events: list[RecordedEvent]) -> None:
    """While a command runs the batch, and when it was killed."""
    for running in (True, False):
        check_agreement(recorded(Path("results"), events, running=running), tmp_path_factory.getbasetemp() / "scratch")
    killed, resumed = recorded(Path("results"), events, running=False), fold(events)
    resumed.apply(Resumed(at=AT))
    check_resumed(resumed, killed.state)
