"""What was recorded of a fleet, simulated again: the same decisions in the same order, at the same times.

The recordings are those of production: the scaler, its runtime and the driver of a group, on a cloud in memory and in
virtual time. Of stories of the chaos suite the fleet, the cloud and the jobs are played, without what goes wrong.
"""

import re
import tomllib
from collections.abc import Iterable, Sequence
from math import inf
from pathlib import Path
from random import Random

import anyio
import pytest
from attrs import define, evolve, field, fields_dict

from fleeting import Capability, LoopClock
from fleeting.plugins import structure
from fleeting.testing import FakeCloud, FakeGroup, virtual_run
from taskscaler import DecisionEvent, InstanceEvent, LeaseEvent, Policy, Pool, ScalerEvent, Taskscaler
from taskscaler._types import PoolSettings
from taskscaler.batch import Begun, Ended, JobState, Planned, PoolFacts, RecordedEvent, Started, read_events
from taskscaler.batch._events import as_line, header
from taskscaler.config import Autoscaler, PoolTable
from taskscaler.core._mediator import COALESCE
from taskscaler.simulation import Constant, Environment, Fleet, Jobs, PoolEnvironment, fit, read_trace, simulate
from tests.chaos.runner import story_of_seed

EPOCH = 1_700_000_000.0
QUICKSTART = Path(__file__).parents[2] / "examples" / "quickstart" / "jobs.toml"


@define(kw_only=True)
class Recording:
    """Production, on a cloud in memory."""

    pool: PoolSettings
    policies: tuple[Policy, ...]
    boot_time: float
    delete_time: float
    jobs: Jobs
    events: list[RecordedEvent | LeaseEvent] = field(factory=list)
    clock: LoopClock = field(init=False)
    scaler: Taskscaler = field(init=False)

    def record(self) -> "Recording":
        """Run all jobs, each at its time."""
        anyio.run(self._run, **virtual_run("asyncio"))
        return self

    async def _run(self) -> None:
        self.clock = LoopClock(epoch=EPOCH)
        cloud = FakeCloud(
            boot_time=self.boot_time,
            delete_time=self.delete_time,
            capabilities=frozenset({Capability.NAMED_CREATE}),
        )
        group = FakeGroup(cloud)
        settings = {name: getattr(self.pool, name) for name in fields_dict(PoolSettings)}
        self.scaler = Taskscaler(
            Pool(group, dial=group.dial, **settings),
            policies=self.policies,
            clock=self.clock,
            observers=[self.events.append],
            random=Random(0).random,
        )
        async with self.scaler, anyio.create_task_group() as tasks:
            for number, submit in enumerate(self.jobs.submits):
                await self.clock.sleep_until(submit)
                tasks.start_soon(self._see_through, number)

    async def _see_through(self, number: int) -> None:
        name = f"job-{number:03}"
        async with self.scaler.acquire(name, timeout=inf) as lease:
            started = Started(at=self.clock.now(), job=name, pool=lease.pool, instance=lease.instance, slot=lease.slot)
            self.events.append(started)
            await anyio.sleep(self.jobs.durations[number])
            self.events.append(Ended(at=self.clock.now(), job=name, state=JobState.SUCCEEDED, exit_code=0))

    def write(self, place: Path) -> Path:
        """Write the event log of a batch of these jobs."""
        names = [f"job-{number:03}" for number in range(len(self.jobs))]
        facts = PoolFacts(name=self.pool.name, plugin="fake", capacity_per_instance=1, max_instances=0)
        begun = Begun(at=EPOCH, jobs=tuple(Planned(name=name, retries=0) for name in names), pools=(facts,))
        lines = [as_line(event) for event in [begun, *self.events] if not isinstance(event, LeaseEvent)]
        place.mkdir()
        (place / "events.jsonl").write_bytes(header() + b"".join(lines))
        return place


def decided(events: Iterable[object]) -> list[tuple[float, str]]:
    """Decisions up to the end of the last job: when, and in words, in which instances are named in their order."""
    names: dict[str, str] = {}
    found: list[tuple[float, str]] = []
    last = 0
    for event in events:
        match event:
            case InstanceEvent(instance=instance):
                names.setdefault(instance, f"instance-{len(names)}")
            case DecisionEvent(at=at, decision=decision):
                words = re.sub(r"[\w-]+", lambda word: names.get(word[0], word[0]), str(decision))
                found.append((at - EPOCH, words))
            case Ended():
                last = len(found)
            case LeaseEvent(what="released"):
                last = len(found)
    return [each for each in found[:last] if "is not known yet" not in each[1]]


def simulated(fleet: Fleet, jobs: Jobs, environment: Environment) -> list[tuple[float, str]]:
    """What is decided in a simulation."""
    events: list[ScalerEvent] = []
    simulate(fleet, jobs, environment=environment, observer=events.append)
    return decided(events)


def assert_same(found: Sequence[tuple[float, str]], expected: Sequence[tuple[float, str]]) -> None:
    """The same was decided, one after the other; when, to within the time that a decision waits for others."""
    assert [words for _, words in found] == [words for _, words in expected]
    assert [at for at, _ in found] == pytest.approx([at for at, _ in expected], abs=COALESCE)
    assert len(expected) > 20


def test_the_quickstart(tmp_path: Path) -> None:
    """From its event log alone: the jobs, how long they ran, and what the cloud was like."""
    fleet = structure(tomllib.loads(QUICKSTART.read_text())["autoscaler"], Autoscaler)
    durations = Random(1)
    jobs = Jobs.of([(EPOCH, round(durations.uniform(0.3, 2.9), 3)) for _ in range(40)])
    recording = Recording(pool=fleet, policies=fleet.policy, boot_time=0.53, delete_time=0.11, jobs=jobs).record()
    place = recording.write(tmp_path / "results")
    trace = read_trace(place)
    assert sorted(trace.jobs.durations) == pytest.approx(sorted(jobs.durations), abs=1e-5)
    environment, _ = fit([place], in_order=True)
    found = simulated(Fleet.of(fleet), trace.jobs, environment)
    expected = decided(read_events(place / "events.jsonl"))
    assert_same(found, expected)
    assert any("removes" in words for _, words in expected)


@pytest.mark.parametrize("seed", range(10))
def test_stories(seed: int) -> None:
    """A hundred jobs in bursts and one by one, on a fleet with any settings."""
    story = story_of_seed(seed)
    pool = evolve(
        story.pool,
        instance_ready_command=None,
        instance_cleanup_command=None,
        heartbeat_on_acquire=False,
        max_instance_age=0.0,
        suspended_count=0,
    )
    boot, delete = story.cloud["boot_time"], story.cloud["delete_time"]
    assert isinstance(boot, float)
    assert isinstance(delete, float)
    boot, delete = boot + 0.37, delete + 0.13  # what falls on the same instant may come in either order
    jobs = Jobs.of((EPOCH + 5 + job.at, job.duration + 0.01) for job in story.jobs)
    jobs = Jobs.of(zip([EPOCH, *jobs.submits], [1.0, *jobs.durations], strict=True))
    recording = Recording(pool=pool, policies=(story.policy,), boot_time=boot, delete_time=delete, jobs=jobs).record()
    settings = {name: getattr(pool, name) for name in fields_dict(PoolSettings)}
    fleet = Fleet(pools=(PoolTable(plugin="fake", **settings),), policies=(story.policy,))
    cloud = PoolEnvironment(boot=Constant(boot), delete=Constant(delete))
    expected = decided(recording.events)
    assert_same(simulated(fleet, jobs, Environment(default=cloud)), expected)
