"""What executors say of jobs' steps and memory limits, in all that a batch leaves, and in metrics."""

import json
from pathlib import Path

import pytest
from attrs import define, evolve, field

from taskscaler._use_meter import UseMeter
from taskscaler.batch import Ended, Retries, read_events
from taskscaler.executors import JobOutcome, MemoryLimit, StepUse, Verdict
from tests.taskscaler.test_batch import BADLY, Bench, SmallScaler, finished, gives, job

MIB = 1 << 20

STEPS = tuple(StepUse(path=f"step{at}", ended="succeeded", duration=at / 10, peak_memory=at) for at in range(30))
LIMIT = MemoryLimit(size=64 * MIB, by="killed", why="twice the 32 MiB at which an earlier run was killed")
USED = JobOutcome(verdict=Verdict.SUCCEEDED, exit_code=0, cpu_time=2.0, memory_limit=LIMIT, steps=STEPS)


@define
class Counted(SmallScaler):
    """A scaler whose jobs are counted."""

    use_meter: UseMeter = field(factory=UseMeter)


@pytest.mark.anyio
async def test_what_steps_used_is_written_down_and_counted(tmp_path: Path) -> None:
    """Few of many are written down, all are counted; results have the limit, and its reason."""
    bench, meter = Bench(tmp_path / "results"), UseMeter(["step7"])
    jobs = [job("a", retries=Retries(failed=0)), job("b", retries=Retries(failed=0))]
    batch = bench.batch(*jobs, plays={"a": gives(USED), "b": gives(BADLY)}, use_meter=meter)
    state = await finished(batch)
    assert state["a"].attempts[0].memory_limit == LIMIT
    (attempt,) = next(each for each in bench.summary()["jobs"] if each["name"] == "a")["attempts"]
    assert attempt["memory_limit"] == {"size": 64 * MIB, "by": "killed", "why": LIMIT.why, "reached": False}
    ended = {each.job: each for each in read_events(tmp_path / "results/events.jsonl") if isinstance(each, Ended)}
    assert [each.path for each in ended["a"].steps] == [*(f"step{at}" for at in range(21, 30)), ""]
    assert sum(each.count for each in ended["a"].steps) == len(STEPS)
    assert (ended["b"].steps, ended["b"].memory_limit) == ((), None)
    assert len(json.dumps(attempt)) < 1000
    assert meter.steps == {**meter.steps, ("other", "succeeded"): 29, ("step7", "succeeded"): 1}
    assert (meter.cpu_seconds, sum(meter.limits["killed"].counts)) == (2.0, 1)


@pytest.mark.anyio
async def test_a_scaler_that_is_counted_counts_what_its_jobs_use(tmp_path: Path) -> None:
    """Nobody has to say so to the batch. What nothing can have used in its time is not counted."""
    scaler = Counted()
    impossible = evolve(USED, steps=(StepUse(path="a", cpu_time=1e17, disk_read=1 << 60, disk_written=7),))
    lies = job("b"), {"b": gives(evolve(impossible, cpu_time=1e9, peak_memory=1 << 60))}
    await finished(Bench(tmp_path / "lies", scaler).batch(lies[0], plays=lies[1]))
    assert (scaler.use_meter.cpu_seconds, sum(scaler.use_meter.peaks.counts)) == (0, 0)
    assert (scaler.use_meter.step_cpu_seconds, scaler.use_meter.step_read) == ({"other": 0}, {"other": 0})
    assert scaler.use_meter.step_written == {"other": 7}
    await finished(Bench(tmp_path / "results", scaler).batch(job("a"), plays={"a": gives(USED)}))
    assert scaler.use_meter.cpu_seconds == 2.0
