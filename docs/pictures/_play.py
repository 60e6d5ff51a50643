"""Batches for the pictures: real scalers on clouds in memory, in virtual time; the jobs do nothing but take theirs."""

from collections.abc import Callable, Mapping, Sequence
from inspect import isawaitable
from pathlib import Path
from random import Random

import anyio
from attrs import define, field

from fleeting import LoopClock
from fleeting.testing import FakeCloud, FakeGroup, virtual_run
from taskscaler import LeaseEvent, LeaseLost, Policy, Pool, ScalerEvent, Taskscaler
from taskscaler._recorded_run import RecordedRun, recorded
from taskscaler.batch import (
    BatchEvent,
    BatchState,
    Begun,
    Ended,
    Job,
    JobState,
    Over,
    PoolFacts,
    RecordedEvent,
    Started,
)
from taskscaler.executors import JobSpec

MONDAY = 1_772_442_000.0
"""09:00 UTC on 2 March 2026."""


@define(eq=False)
class Cloud(FakeCloud):
    """A cloud whose ids look like those of others."""

    _random: Random = field(factory=lambda: Random(1), init=False)

    def _new_id(self) -> str:
        return f"worker-{self._random.getrandbits(32):08x}"


@define(kw_only=True)
class Play:
    """A batch, its fleet, and what happens to them."""

    name: str
    cloud: Cloud
    capacity: int
    most: int
    """Instances at once."""

    policy: Policy
    jobs: Mapping[str, float]
    """How long each takes, in seconds, by name."""

    failing: frozenset[str] = frozenset()
    happens: Sequence[tuple[float, Callable[["Play"], object]]] = ()
    """What is done to the cloud, or looked at, and when, in seconds since the beginning; in order."""

    events: list[RecordedEvent] = field(factory=list, init=False)
    state: BatchState = field(init=False)
    scaler: Taskscaler = field(init=False)
    clock: LoopClock = field(init=False)

    def run(self) -> RecordedRun:
        """Play it to its end."""
        anyio.run(self._play, **virtual_run("asyncio"))
        self.events.append(Over(at=self.clock.now(), well=self.state.succeeded))
        return recorded(Path(self.name), self.events, running=False)

    async def lose_one(self) -> None:
        """Let an instance vanish that has work."""
        instances = await self.scaler.instances()
        self.cloud.vanish(next(view.id for view in instances if all(view.slots)))

    async def _play(self) -> None:
        self.clock = LoopClock(epoch=MONDAY)
        group = FakeGroup(self.cloud)
        pool = Pool(group, dial=group.dial, capacity_per_instance=self.capacity, max_instances=self.most)
        self.scaler = Taskscaler(
            pool,
            policies=[self.policy],
            clock=self.clock,
            observers=[self._observe],
            random=Random(1).random,
        )
        facts = PoolFacts(name=pool.name, plugin="fake", capacity_per_instance=self.capacity, max_instances=self.most)
        jobs = [Job(spec=JobSpec(name=name, script="")) for name in self.jobs]
        begun = Begun.of(jobs, at=MONDAY, pools=[facts])
        self.events.append(begun)
        self.state = BatchState(begun)
        async with self.scaler, anyio.create_task_group() as tasks:
            tasks.start_soon(self._happen)
            async with anyio.create_task_group() as tries:
                for name in self.jobs:
                    tries.start_soon(self._see_through, name)
            tasks.cancel_scope.cancel()

    async def _happen(self) -> None:
        for at, what in self.happens:
            await self.clock.sleep_until(MONDAY + at)
            done = what(self)
            if isawaitable(done):
                await done

    async def _see_through(self, name: str) -> None:
        while not self.state[name].state.final:
            try:
                async with self.scaler.acquire(name, timeout=float("inf")) as lease:
                    now = self.clock.now()
                    self._take(Started(at=now, job=name, pool=lease.pool, instance=lease.instance, slot=lease.slot))
                    await anyio.sleep(self.jobs[name])
                    self._take(self._end(name))
            except LeaseLost as error:
                why = f"instance {error.instance} was lost ({error.loss})"
                self._take(Ended(at=self.clock.now(), job=name, state=JobState.LOST, why=why))

    def _end(self, name: str) -> Ended:
        if name in self.failing:
            why = "its script exited with 3"
            return Ended(at=self.clock.now(), job=name, state=JobState.FAILED, exit_code=3, why=why)
        return Ended(at=self.clock.now(), job=name, state=JobState.SUCCEEDED, exit_code=0)

    def _observe(self, event: ScalerEvent) -> None:
        if not isinstance(event, LeaseEvent):
            self.events.append(event)

    def _take(self, event: BatchEvent) -> None:
        self.events.append(event)
        self.state.apply(event)
