"""What was recorded of a fleet, simulated again: the same decisions in the same order, at the same times.

The recordings are those of production: the scaler, its runtime and the driver of a group, on a cloud in memory and in
virtual time. Of stories of the chaos suite the fleet, the cloud and the jobs are played, with faults of which an event
log tells. It does not tell when an instance with jobs turned unhealthy, nor of one that nobody ever saw.
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

from fleeting import Capability, CapacityUnavailable, LoopClock, ScaleThrottle, State
from fleeting.plugins import structure
from fleeting.testing import FakeCloud, FakeGroup, IncreaseFault, virtual_run
from taskscaler import DecisionEvent, InstanceEvent, LeaseEvent, LeaseLost, Policy, Pool, ScalerEvent, Taskscaler
from taskscaler._types import PoolSettings
from taskscaler.batch import Begun, Ended, JobState, Planned, PoolFacts, RecordedEvent, Started, read_events
from taskscaler.batch._events import as_line, header
from taskscaler.config import Autoscaler, PoolTable
from taskscaler.core._mediator import COALESCE
from taskscaler.simulation import Constant, Empirical, Environment, Fleet, Jobs, fit, read_trace, simulate
from tests.chaos.runner import story_of_seed

EPOCH = 1_700_000_000.0
READY = 0.0137
"""Seconds that connecting takes in a story: what falls on the same instant may come in either order."""

QUICKSTART = Path(__file__).parents[2] / "examples" / "quickstart" / "jobs.toml"


class Cloud(FakeCloud):
    """One whose instances are in their order wherever they are sorted."""

    def _new_id(self) -> str:
        return f"i-{super()._new_id().removeprefix('i-'):>06}"


@define(kw_only=True)
class Recording:
    """Production, on a cloud in memory."""

    pool: PoolSettings
    policies: tuple[Policy, ...]
    boot_time: float
    delete_time: float
    jobs: Jobs
    ready_time: float = 0.0
    """Seconds from when an instance is seen to run until it takes jobs."""

    suspends: tuple[float, float] | None = None
    """Seconds that suspending and resuming take; None: the cloud can do neither."""

    faults: Sequence[tuple[float, str]] = ()
    """When what goes wrong, besides which instance is hit; a request that does waits for the next."""

    events: list[RecordedEvent | LeaseEvent] = field(factory=list)
    clock: LoopClock = field(init=False)
    scaler: Taskscaler = field(init=False)

    def record(self) -> "Recording":
        """Run all jobs, each at its time."""
        anyio.run(self._run, **virtual_run("asyncio"))
        return self

    async def _run(self) -> None:
        self.clock = LoopClock(epoch=EPOCH)
        suspend_time, resume_time = self.suspends or (0.0, 0.0)
        able = {Capability.NAMED_CREATE, *([Capability.SUSPEND_RESUME] if self.suspends else [])}
        cloud = Cloud(
            boot_time=self.boot_time,
            delete_time=self.delete_time,
            suspend_time=suspend_time,
            resume_time=resume_time,
            latency={"connect_info": self.ready_time},
            capabilities=frozenset(able),
        )
        group = FakeGroup(cloud)
        settings = {name: getattr(self.pool, name) for name in fields_dict(PoolSettings)}
        self.scaler = Taskscaler(
            Pool(group, dial=group.dial, **settings),
            policies=self.policies,
            clock=self.clock,
            observers=[self.events.append],
            random=Random(f"0/{self.pool.name}/plan").random,  # no log has it: what the simulation of seed 0 draws
        )
        async with self.scaler, anyio.create_task_group() as tasks:
            tasks.start_soon(self._go_wrong, cloud)
            for number, submit in enumerate(self.jobs.submits):
                await self.clock.sleep_until(submit)
                tasks.start_soon(self._see_through, number)

    async def _go_wrong(self, cloud: FakeCloud) -> None:
        chance = Random(len(self.faults))
        for at, fault in self.faults:
            await self.clock.sleep_until(at)
            seen = {event.instance for event in self.events if isinstance(event, InstanceEvent)}
            running = sorted(id_ for id_ in seen if cloud.machines[id_].state(cloud.now) is State.RUNNING)
            match fault:
                case "refused":
                    cloud.faults.increase.once(IncreaseFault(refuse=CapacityUnavailable("none of this type left")))
                case "broken":
                    cloud.faults.increase.once(IncreaseFault(broken=True))
                case "taken" if running:
                    cloud.vanish(chance.choice(running))

    async def _see_through(self, number: int) -> None:
        name, place = f"job-{number:03}", None
        while True:
            try:
                async with self.scaler.acquire(name, timeout=inf, place=place) as lease:
                    place = lease.place
                    self.events.append(
                        Started(
                            at=self.clock.now(), job=name, pool=lease.pool, instance=lease.instance, slot=lease.slot
                        )
                    )
                    await anyio.sleep(self.jobs.durations[number])
                    self.events.append(Ended(at=self.clock.now(), job=name, state=JobState.SUCCEEDED, exit_code=0))
                    return
            except LeaseLost as error:
                self.events.append(Ended(at=self.clock.now(), job=name, state=JobState.LOST, why=str(error.loss)))

    def write(self, place: Path) -> Path:
        """Write the event log of a batch of these jobs."""
        names = [f"job-{number:03}" for number in range(len(self.jobs))]
        facts = PoolFacts(name=self.pool.name, plugin="fake", capacity_per_instance=1, max_instances=0)
        begun = Begun(at=EPOCH, jobs=tuple(Planned(name=name, retries=100) for name in names), pools=(facts,))
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


def troubled(seed: int, jobs: Jobs) -> Sequence[tuple[float, str]]:
    """A dozen faults, while jobs come."""
    random = Random(f"{seed}/faults")
    kinds = ["refused", "broken", "taken", "taken"] * 3
    random.shuffle(kinds)
    until = jobs.begins + 0.7 * (jobs.submits[-1] - jobs.begins)  # what waits for a request is to meet one
    times = sorted(random.uniform(jobs.begins + 1.0, until) for _ in kinds)
    return [*zip(times, kinds, strict=True)]


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
def test_stories(tmp_path: Path, seed: int) -> None:
    """A hundred jobs in bursts and one by one, on a fleet with any settings, and what goes wrong there.

    Requests are refused, instances fail to boot, and others are taken while they idle or have jobs; heartbeats are
    made, and idle instances sleep. What the cloud was like is read from the event log.
    """
    story = story_of_seed(seed)
    pool = evolve(
        story.pool,
        instance_ready_command=None,
        instance_cleanup_command=None,
        heartbeat_on_acquire=False,
        max_instance_age=0.0,
        suspended_count=seed % 3,
        failure_threshold=3,
    )
    boot, delete = story.cloud["boot_time"], story.cloud["delete_time"]
    assert isinstance(boot, float)
    assert isinstance(delete, float)
    boot, delete = boot + 0.37, delete + 0.13  # what falls on the same instant may come in either order
    lengths = [job.duration + 0.01 + 1e-4 * number for number, job in enumerate(story.jobs)]
    jobs = Jobs.of((EPOCH + 5 + job.at, length) for job, length in zip(story.jobs, lengths, strict=True))
    jobs = Jobs.of(zip([EPOCH, *jobs.submits], [1.0, *jobs.durations], strict=True))
    suspends = (1.71, 2.93) if pool.suspended_count else None
    recording = Recording(
        pool=pool,
        policies=(story.policy,),
        boot_time=boot,
        delete_time=delete,
        jobs=jobs,
        ready_time=READY,
        suspends=suspends,
        faults=troubled(seed, jobs),
    ).record()
    settings = {name: getattr(pool, name) for name in fields_dict(PoolSettings)}
    fleet = Fleet(pools=(PoolTable(plugin="fake", **settings),), policies=(story.policy,))
    environment, _ = fit([recording.write(tmp_path / "results")], in_order=True)
    cloud = environment.of(pool.name)
    if suspends is not None:
        cloud = evolve(cloud, suspend=Constant(suspends[0]), resume=Constant(suspends[1]))
    expected = decided(recording.events)
    assert_same(simulated(fleet, jobs, Environment(default=cloud)), expected)
    assert cloud.course is not None
    fates = cloud.course.fates
    assert all([cloud.course.refusals, any(fate.fails for fate in fates), any(fate.taken < inf for fate in fates)])
    assert any(event.what == "lost" for event in recording.events if isinstance(event, LeaseEvent))


def test_what_failed_is_known_and_takes_part_in_no_time(tmp_path: Path) -> None:
    """A refused request brings nothing, so that what is asked for next is not older than it is."""
    jobs = Jobs.of([(EPOCH + 100.0 * number, 5.0) for number in range(8)])
    pool = PoolSettings(name="a", scale_throttle=ScaleThrottle(limit=-1))
    faults = [(EPOCH + 50.0, "refused"), (EPOCH + 250.0, "broken"), (EPOCH + 450.0, "refused")]
    recording = Recording(
        pool=pool, policies=(Policy(),), boot_time=10.4, delete_time=1.0, jobs=jobs, faults=faults
    ).record()
    environment, notes = fit([recording.write(tmp_path / "results")])
    found = environment.of("a")
    assert found.boot_failure == pytest.approx(1 / 9)
    assert isinstance(found.boot, Empirical | Constant)
    assert found.boot.sample(Random(0)) < 10.4 + pool.update_interval_when_expecting + 1.0
    assert "11.1% fail to boot" in notes[0]
