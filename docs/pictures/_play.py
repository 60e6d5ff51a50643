"""Batches for the pictures: real scalers on clouds in memory, in virtual time; the jobs do nothing but take theirs."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random

import anyio
from attrs import define, field

from fleeting import LoopClock
from fleeting.testing import FakeCloud, FakeGroup, virtual_run
from taskscaler import LeaseLost, Policy, Pool, Taskscaler
from taskscaler._told import JobTold, Progress, RunTold
from taskscaler.batch import BatchState, Job, Opened, PoolFacts, RecordedEvent
from taskscaler.executors import JobOutcome, JobSpec, Verdict

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

    def run(self) -> RunTold:
        """Play it to its end."""
        anyio.run(self._play, **virtual_run("asyncio"))
        jobs = {
            record.name: JobTold(name=record.name, state=record.state, attempts=tuple(record.attempts))
            for record in self.state.records
        }
        return RunTold(
            directory=Path(self.name),
            progress=Progress.OVER,
            started=self.state.started,
            last=self.events[-1].at,
            jobs=jobs,
            events=self.events,
        )

    def lose_one(self) -> None:
        """Let an instance vanish that has work."""
        self.cloud.vanish(next(view.id for view in self.scaler.instances() if all(view.slots)))

    async def _play(self) -> None:
        self.clock = LoopClock(epoch=MONDAY)
        group = FakeGroup(self.cloud)
        pool = Pool(group, dial=group.dial, capacity_per_instance=self.capacity, max_instances=self.most)
        self.scaler = Taskscaler(
            pool,
            policies=[self.policy],
            clock=self.clock,
            observers=[self.events.append],
            random=Random(1).random,
        )
        facts = PoolFacts(name=pool.name, plugin="fake", capacity_per_instance=self.capacity, max_instances=self.most)
        self.events.append(Opened(at=MONDAY, pools=(facts,)))
        self.state = BatchState([Job(spec=JobSpec(name=name, script="")) for name in self.jobs], now=MONDAY)
        async with self.scaler, anyio.create_task_group() as tasks:
            tasks.start_soon(self._happen)
            async with anyio.create_task_group() as jobs:
                for name in self.jobs:
                    jobs.start_soon(self._see_through, name)
            tasks.cancel_scope.cancel()

    async def _happen(self) -> None:
        for at, what in self.happens:
            await self.clock.sleep_until(MONDAY + at)
            what(self)

    async def _see_through(self, name: str) -> None:
        while not self.state[name].state.final:
            try:
                async with self.scaler.acquire(name, timeout=float("inf")) as lease:
                    self.state.begin(
                        name, pool=lease.pool, instance=lease.instance, slot=lease.slot, now=self.clock.now()
                    )
                    await anyio.sleep(self.jobs[name])
                    self.state.end(name, self._outcome(name), now=self.clock.now())
            except LeaseLost as error:
                why = f"instance {error.instance} was lost ({error.loss})"
                self.state.lose(name, why, now=self.clock.now())

    def _outcome(self, name: str) -> JobOutcome:
        if name in self.failing:
            return JobOutcome(verdict=Verdict.FAILED, exit_code=3, why="its script exited with 3")
        return JobOutcome(verdict=Verdict.SUCCEEDED, exit_code=0)
